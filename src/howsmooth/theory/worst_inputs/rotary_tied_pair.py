"""Theorem 2 under rotary positions: a tied pair, where every other token has another query."""

import dataclasses
import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.rotary import Rotary, Rotation
from howsmooth.theory.ball.rotary_forms import gram_factor
from howsmooth.theory.heads import Head, heads_of, log
from howsmooth.theory.linalg.lbfgs import lowest_point
from howsmooth.theory.linalg.matrix_norms import matrix_norm
from howsmooth.theory.worst_inputs.tied_pair import LayerPair

# By so much the scores of the pair lead the others' at first, or at these cosines between the pair and its middle.
LEADS = (8.0, 16.0, 32.0, 64.0)
COSINES = (0.3, 0.5)
# How much the others keep of what makes them attract one another.
KEPT = (1.0, 0.5, 0.0)
# The best pair is improved by so many steps; more of them, or a second pair, gain a few parts in a hundred.
ITERATIONS = 10


class RotaryTiedProblem:
    r"""Pairs for one layer on sequences of n tokens, all of length R.

    The score of row i has the gradient :math:`A_{i-j}y_i` at the pair's token j, with
    :math:`A_\delta = K^\top\Theta_\delta Q`. Along the direction e in which the pair moves it is largest for
    :math:`y_i = R\,A_{i-j}^\top e/|A_{i-j}^\top e|`, and the best e is the leading eigenvector of
    :math:`\sum_iA_{i-j}A_{i-j}^\top`, the matrix of ``sharp_upper``. The pair is
    :math:`x_{1,2} = R(\cos\theta\,e\pm\sin\theta\,z)`: the first part wins the attention of the others, and z is what
    the values stretch most. Then the others turn so that both tokens tie in all heads,

    .. math:: \langle\Theta_i(Q_hy_i + b_h),\;\Theta_{j_1}K_hx_1 - \Theta_{j_2}K_hx_2\rangle = 0\quad\text{for all } h.
    """

    def __init__(self, attention: Attention, n: int, radius: float) -> None:
        """Prepare what all pairs share."""
        rotary = attention.positions.rotary
        assert rotary is not None
        self.attention = attention.to(torch.float64, "cpu")
        self.heads, self.n, self.radius = heads_of(attention), n, radius
        # where a mask lets everybody see them; otherwise in the middle, close to all
        first = 0 if attention.positions.causal else (n - 2) // 2
        self.pair, self.others = [first, first + 1], [i for i in range(n) if i not in (first, first + 1)]
        known = torch.arange(n) if rotary.positions is None else rotary.positions.cpu()
        self.turn, self.turn_others = (
            _rotation(rotary, known[places], attention) for places in (self.pair, self.others)
        )
        distances = (known[self.others] - known[first]).tolist()
        # factors of the sums of AAᵀ over all that see the pair's first token
        self.form_factors = {head: gram_factor(head.Q, head.K, rotary, distances)[0] for head in self.heads}

    def rotated_back(self, keys: Float[Tensor, "m k"]) -> Float[Tensor, "m others k"]:
        r"""Return :math:`\Theta_i^\top k`, what the others' queries are multiplied with, for turned keys."""
        return self.turn_others.T(keys[:, None].expand(-1, len(self.others), -1))

    def starts(self, head: Head) -> list[np.ndarray]:
        """Return pairs of one head, for several leads of its scores, as points to climb from."""
        e = torch.linalg.svd(self.form_factors[head], full_matrices=False).Vh[0]
        wanted = self.rotated_back(self.turn((head.K @ e).expand(1, 2, -1))[:, 0])[0] @ head.Q
        steep = float(wanted.norm(dim=-1).median()) * self.radius**2
        z = torch.linalg.svd(head.mixed - (head.mixed @ e)[:, None] * e, full_matrices=False).Vh[0]
        z = z - (z @ e) * e
        wanted = wanted / wanted.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        basis = torch.linalg.qr(head.K.mT).Q
        attracting = wanted @ basis @ basis.mT
        cosines = {min(max(COSINES), lead / max(steep, 1e-300)) for lead in LEADS} | set(COSINES)
        return [
            torch.cat((wanted - (1 - kept) * attracting, *_mirrored(cosine * e, z), *_mirrored(0 * e, e))).numpy()
            for cosine in sorted(cosines)
            for kept in KEPT
        ]

    def promise(self, head: Head) -> float:
        r"""Return :math:`\|WV\|\,\|\sum_iA_{i-j}A_{i-j}^\top\|^{1/2}`: what this head by itself could come near."""
        return head.norm_WV * matrix_norm(self.form_factors[head])

    def tokens(self, point: Float[Tensor, "rows d"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        """Return the tokens and the perturbation that a point stands for."""
        wanted, pair, moves = point[:-4], point[-4:-2], point[-2:]
        pair = self.radius * pair / pair.norm(dim=-1, keepdim=True).clamp_min(1.0)
        order = torch.tensor(self.pair + self.others).argsort()
        X = torch.cat((pair, self._tied(wanted, pair)))[order]
        E = torch.cat((moves / moves.norm(), torch.zeros_like(wanted)))[order]
        return X, E

    def _tied(self, wanted: Float[Tensor, "others d"], pair: Float[Tensor, "2 d"]) -> Float[Tensor, "others d"]:
        """Return tokens of length R near some directions, that see the pair tie in every head.

        Head h ties at token y on a hyperplane, ⟨c_h, y⟩ = −s_h. All heads tie on an affine subspace, which meets the
        sphere of radius R in a smaller sphere: its centre is the point of the subspace next to the origin, and its
        radius follows by Pythagoras. The token is the point of that sphere in the wanted direction.
        """
        constraints = [self._tie_constraint(head, pair) for head in self.heads]
        normals, shift = (torch.stack(side, 1) for side in zip(*constraints, strict=True))
        size = normals.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        normals = normals / size
        # heads with the same hyperplane differ by rounding alone; the ridge keeps the system solvable
        gram = normals @ normals.mT + 1e-13 * torch.eye(len(self.heads), dtype=normals.dtype)
        centre = -(normals.mT @ torch.linalg.solve(gram, shift[..., None] / size))[..., 0]
        for _twice in range(2):  # what rounding leaves of the scores after one projection would break the tie
            wanted = wanted - (normals.mT @ torch.linalg.solve(gram, normals @ wanted[..., None]))[..., 0]
        # a subspace outside of the ball has no token there; the nearest one nearly ties
        inside = self.radius / centre.norm(dim=-1, keepdim=True).clamp_min(self.radius)
        radius = (self.radius**2 - (inside * centre).square().sum(-1, keepdim=True)).clamp_min(1e-300).sqrt()
        return inside * centre + radius * wanted / wanted.norm(dim=-1, keepdim=True).clamp_min(1e-300)

    def _tie_constraint(self, head: Head, pair: Float[Tensor, "2 d"]) -> tuple[Float[Tensor, "others d"], Tensor]:
        """Return the normal c of the hyperplane on which a head ties, and its shift s, for all others."""
        keys = self.turn((pair @ head.K.mT + head.key_bias)[None])[0]
        difference = self.rotated_back(keys[:1] - keys[1:])[0]
        return difference @ head.Q, difference @ head.query_bias

    def log_value(self, point: Float[Tensor, "rows d"]) -> Tensor:
        """Return the logarithm of the response of the whole layer."""
        return self._response(*self.tokens(point)).log()

    def _response(self, X: Float[Tensor, "n d"], E: Float[Tensor, "n d"]) -> Tensor:
        return self.attention.jacobian(X).jvp(E).norm()

    def climb(self, start: np.ndarray) -> np.ndarray:
        """Improve a point by L-BFGS."""

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.tensor(x, requires_grad=True)
            value = -self.log_value(point.view(start.shape))
            (gradient,) = torch.autograd.grad(value, point)
            return value.item(), gradient.numpy()

        return lowest_point(loss, start.ravel(), iterations=ITERATIONS).reshape(start.shape)

    def built(self, point: np.ndarray) -> LayerPair:
        """Return the pair of a point, and what it proves; what is no number proves nothing."""
        with torch.no_grad():
            X, E = self.tokens(torch.from_numpy(point))
            response = self._response(X, E).nan_to_num(0.0, posinf=0.0)
        return LayerPair(X=X, E=E, log_value=log(float(response)))


def rotary_tied_pairs(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> list[LayerPair]:
    """Return the best pair of every head, or of so many that promise most; the best one climbs on the whole layer."""
    if attention.d < 2:
        raise AssumptionError("a tied pair needs two dimensions, got one; use hs.maximise.", field="attention")
    problem = RotaryTiedProblem(attention, n, radius)
    some = [head for head in problem.heads if head.norm_Q * head.norm_K * head.norm_WV > 0]
    if not some:
        raise AssumptionError(
            "a tied pair needs A ≠ 0 and V ≠ 0: here no head has both; use equal_tokens.", field="attention"
        )
    some = sorted(some, key=problem.promise, reverse=True)[:heads]
    tried = [[(problem.built(point), point) for point in problem.starts(head)] for head in some]
    found = [max(pairs, key=_proven) for pairs in tried]
    best = max(range(len(found)), key=lambda h: _proven(found[h]))
    climbed = problem.climb(found[best][1])
    found[best] = max(found[best], (problem.built(climbed), climbed), key=_proven)
    return [pair for pair, _point in found]


def _proven(found: tuple[LayerPair, np.ndarray]) -> float:
    return found[0].log_value


def _mirrored(middle: Float[Tensor, " d"], side: Float[Tensor, " d"]) -> tuple[Tensor, Tensor]:
    """Return two points on either side of a middle, at distance one from the origin."""
    sine = math.sqrt(1 - float(middle.square().sum()))
    return (middle + sine * side)[None], (middle - sine * side)[None]


def _rotation(rotary: Rotary, positions: Tensor, attention: Attention) -> Rotation:
    """Return the rotation of tokens at some positions."""
    like = torch.empty(0, attention.layout.k, dtype=torch.float64)
    return dataclasses.replace(rotary, positions=positions).rotation(len(positions), attention.layout.k, like)
