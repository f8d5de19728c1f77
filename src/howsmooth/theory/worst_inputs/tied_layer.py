"""Theorem 2 for a whole layer: its tied pairs, with and without rotary positions."""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Rotary, Rotation
from howsmooth.theory.assumptions import require_causal_or_none, require_scores_alone
from howsmooth.theory.ball.rotary_forms import gram_factor
from howsmooth.theory.heads import Head, heads_of, log
from howsmooth.theory.linalg.lbfgs import lowest_point
from howsmooth.theory.linalg.matrix_norms import matrix_norm
from howsmooth.theory.worst_inputs.tied_pair import TiedPair, best_pair

# So many heads of a layer are tried for its best tied pair: those with the largest product of norms.
PROMISING = 4
# By so much the scores of the pair lead the others' at first, or at these cosines between the pair and its middle.
LEADS = (8.0, 16.0, 32.0, 64.0)
COSINES = (0.3, 0.5)
# How much the others keep of what makes them attract one another.
KEPT = (1.0, 0.5, 0.0)
# Points are evaluated together as long as their hyperplanes have so many numbers.
NUMBERS = 2**22
# The best pair is improved by so many steps; more of them, or a second pair, gain a few parts in a hundred.
ITERATIONS = 10
# Every response of a rotary layer costs the square of the length: where its best pair alone is asked for, longer
# sequences learn from so many of their tokens which head has it, and beyond so many it is not improved.
SCREENED, CLIMBING = 128, 512


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPair:
    r"""The tokens, the perturbation that moves their outputs, and the logarithm of how far."""

    X: Float[Tensor, "n d"]  # the tokens
    E: Float[Tensor, "n d"]  # the unit perturbation, of the pair alone
    log_value: float  # the logarithm of what the pair proves of the whole layer, a lower bound


def require_tied(attention: Attention, *, turned: bool = True) -> None:
    """Refuse maps whose scores or masks break the tie; under rotary positions pairs are ``turned``."""
    require_scores_alone(attention, "a tied pair", "hs.maximise", turned=turned)
    require_causal_or_none(attention, "a tied pair", "hs.maximise")


def pairs_of_heads(attention: Attention, n: int, radius: float) -> list[LayerPair]:
    """Return the best pair of every head that has one."""
    require_tied(attention)
    if attention.positions.rotary is not None:
        return rotary_tied_pairs(attention, n, radius)
    return pairs_in(attention, n, StretchedSphere.ball(attention.d, radius, solid=True))


def pairs_in_ball(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> list[LayerPair]:
    """Return the pairs among which the best is, from the ``heads`` with the largest norms.

    Without rotary positions one pair is tied in all heads. With them, the best by its response to one perturbation is
    returned alone: responses are near the constants, which cost more.
    """
    require_tied(attention)
    if attention.positions.rotary is not None:
        found = rotary_tied_pairs(attention, n, radius, heads=heads, best=True)
        return [max(found, key=lambda pair: pair.log_value)]
    frame = StretchedSphere.ball(attention.d, radius, solid=True)
    pairs = best_pairs(attention, n, frame, heads=heads)
    pairs = [*pairs, *tied_in_all(attention, pairs, n, frame)]
    return [pair_in_layer(attention, pair, n) for pair in pairs]


def pairs_on_sphere(attention: Attention, n: int, radius: float) -> list[LayerPair]:
    """Return the pairs among which the best is whose tokens all have length ``radius``."""
    if attention.positions.rotary is not None:
        return pairs_in_ball(attention, n, radius, heads=PROMISING)  # rotary pairs are on the sphere
    require_tied(attention)
    return pairs_in(attention, n, StretchedSphere.ball(attention.d, radius, solid=False))


def tied_value(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> float:
    """Return the logarithm of what tied pairs prove about a layer in a ball."""
    return max(pair.log_value for pair in pairs_in_ball(attention, n, radius, heads=heads))


def pairs_in(attention: Attention, n: int, frame: StretchedSphere) -> list[LayerPair]:
    """Return the best pair of every head that has one, anywhere."""
    return [pair_in_layer(attention, pair, n) for pair in best_pairs(attention, n, frame)]


def pair_in_layer(attention: Attention, pair: TiedPair, n: int) -> LayerPair:
    """Return the tokens of a pair, and what it proves of the whole layer."""
    return LayerPair(X=pair.tokens(n), E=pair.perturbation(n), log_value=proven(attention, pair, n))


def best_pairs(attention: Attention, n: int, frame: StretchedSphere, *, heads: int | None = None) -> list[TiedPair]:
    """Find the best tied pair of every head that has one; heads without scores or values have none.

    With ``heads``, only so many are tried: those with the largest product of their two norms.
    """
    pairs, refusal = [], None
    promising = heads_of(attention)
    if heads is not None:
        promising = tuple(sorted(promising, key=lambda head: head.norm_A * head.norm_WV, reverse=True)[:heads])
    for head in promising:
        try:
            pairs.append(best_pair(head, frame, n))
        except AssumptionError as error:
            refusal = error
    if refusal is not None and not pairs:
        raise refusal
    return pairs


def tied_in_all(attention: Attention, pairs: list[TiedPair], n: int, frame: StretchedSphere) -> list[TiedPair]:
    r"""Turn the best of some pairs so that it ties in all heads at once; nothing where that is not possible.

    The pair is :math:`c\pm z`. With z beside c and every :math:`g_h = A_hy + K_h^\top b_h`, y the copies' place, all
    heads answer together to the best direction:

    .. math:: \sqrt{2(n-2)}\,\Bigl\|\sum_hp_h\,(W_hV_hz)\,g_h^\top\Bigr\|,\qquad
              p_h = \frac1{2+(n-2)e^{-\langle g_h,\,c-y\rangle}}.

    In a ball or on a sphere only: there z may turn without leaving the domain.
    """
    heads = heads_of(attention)
    round_ball = not frame.centred and not bool(frame.centre.any()) and bool((frame.stretch == frame.stretch[0]).all())
    if len(heads) < 2 or len(heads) + 2 > attention.d or not round_ball:
        return []
    # The middle c of the best pair stays, and z is projected onto what no head's score sees.
    pair = max(pairs, key=lambda found: found.log_value)
    middle, half = (pair.first + pair.second) / 2, (pair.first - pair.second) / 2
    g = torch.stack([(head.Q @ pair.copies + head.query_bias) @ head.K for head in heads])
    known = torch.cat((g, middle[None]))
    known = known / known.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    basis, values, _right = torch.linalg.svd(known.mT, full_matrices=False)
    basis = basis[:, values > 1e-12]
    z = half
    for _twice in range(2):  # what rounding leaves of the scores after one projection would break the tie
        z = z - basis @ (basis.mT @ z)
    if not float(z.norm()) > 1e-6 * float(half.norm()):
        return []
    z = z * (half.norm() / z.norm())
    # p_h: the attention that each of the two tokens has in head h from every copy.
    share = 1 / (2 + (n - 2) * torch.exp(-(g @ (middle - pair.copies)).clamp_min(-700.0)))
    parts = [p * torch.outer(_moved(head, z), pull) for p, head, pull in zip(share, heads, g, strict=True)]
    response = torch.cat(parts) if attention.output is None else torch.stack(parts).sum(0)
    _left, sizes, right = torch.linalg.svd(response, full_matrices=False)
    log_value = 0.5 * math.log(2 * (n - 2)) + log(float(sizes[0]))
    return [TiedPair(first=middle + z, second=middle - z, copies=pair.copies, direction=right[0], log_value=log_value)]


def _moved(head: Head, z: Float[Tensor, " d"]) -> Float[Tensor, " out"]:
    return head.V @ z if head.W is None else head.W @ (head.V @ z)


def proven(attention: Attention, pair: TiedPair, n: int) -> float:
    """Return the logarithm of the bound: the formula for one head, the response to the same direction for several."""
    if attention.layout.heads == 1:
        return pair.log_value
    wide = attention.to(torch.float64, "cpu")
    with torch.no_grad():
        return log(float(wide.jacobian(pair.tokens(n)).jvp(pair.perturbation(n)).norm()))


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
        self.placed = rotary.positions is not None  # whether positions are given one by one
        self.attention = attention.to(torch.float64, "cpu")
        self.heads, self.n, self.radius = heads_of(attention), n, radius
        # where a mask lets everybody see them; otherwise in the middle, close to all
        first = 0 if attention.positions.causal else (n - 2) // 2
        self.pair, self.others = [first, first + 1], [i for i in range(n) if i not in (first, first + 1)]
        self.order = torch.tensor(self.pair + self.others).argsort()
        self.queries, self.query_biases = (
            torch.stack(x) for x in zip(*((h.Q, h.query_bias) for h in self.heads), strict=True)
        )
        self.keys, self.key_biases = (torch.cat(x) for x in zip(*((h.K, h.key_bias) for h in self.heads), strict=True))
        known = torch.arange(n) if rotary.positions is None else rotary.positions.cpu()
        self.turn, self.turn_others = (
            _rotation(rotary, known[places], attention) for places in (self.pair, self.others)
        )
        distances = (known[self.others] - known[first]).tolist()
        # factors of the sums of AAᵀ over all that see the pair's first token
        self.form_factors = {head: gram_factor(head.Q, head.K, rotary, distances)[0] for head in self.heads}

    def rotated_back(self, keys: Float[Tensor, "*batch m k"]) -> Float[Tensor, "*batch m others k"]:
        r"""Return :math:`\Theta_i^\top k`, what the others' queries are multiplied with, for turned keys."""
        return self.turn_others.T(keys[..., None, :].expand(*keys.shape[:-1], len(self.others), -1))

    def starts(self, head: Head, kept: tuple[float, ...] = KEPT) -> list[np.ndarray]:
        """Return pairs of one head, for several leads of its scores, as points to climb from.

        The others keep one of several shares of what makes them attract one another.
        """
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
            torch.cat((wanted - (1 - share) * attracting, *_mirrored(cosine * e, z), *_mirrored(0 * e, e))).numpy()
            for cosine in sorted(cosines)
            for share in kept
        ]

    def promise(self, head: Head) -> float:
        r"""Return :math:`\|WV\|\,\|\sum_iA_{i-j}A_{i-j}^\top\|^{1/2}`: what this head by itself could come near."""
        return head.norm_WV * matrix_norm(self.form_factors[head])

    def tokens(
        self, points: Float[Tensor, "*batch rows d"]
    ) -> tuple[Float[Tensor, "*batch n d"], Float[Tensor, "*batch n d"]]:
        """Return the tokens and the perturbation that each point stands for."""
        wanted, pair, moves = points[..., :-4, :], points[..., -4:-2, :], points[..., -2:, :]
        pair = self.radius * pair / pair.norm(dim=-1, keepdim=True).clamp_min(1.0)
        moves = moves / moves.flatten(-2).norm(dim=-1)[..., None, None]
        X = torch.cat((pair, self._tied(wanted, pair)), dim=-2)[..., self.order, :]
        E = torch.cat((moves, torch.zeros_like(wanted)), dim=-2)[..., self.order, :]
        return X, E

    def _tied(
        self, wanted: Float[Tensor, "*batch others d"], pair: Float[Tensor, "*batch 2 d"]
    ) -> Float[Tensor, "*batch others d"]:
        """Return tokens of length R near some directions, that see the pair tie in every head.

        Head h ties at token y on a hyperplane, ⟨c_h, y⟩ = −s_h. All heads tie on an affine subspace, which meets the
        sphere of radius R in a smaller sphere: its centre is the point of the subspace next to the origin, and its
        radius follows by Pythagoras. The token is the point of that sphere in the wanted direction.
        """
        normals, shift = self._tie_constraints(pair)
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

    def _tie_constraints(
        self, pair: Float[Tensor, "*batch 2 d"]
    ) -> tuple[Float[Tensor, "*batch others heads d"], Float[Tensor, "*batch others heads"]]:
        """Return the normals c of the hyperplanes on which heads tie, and their shifts s, for all others."""
        keys = (pair @ self.keys.mT + self.key_biases).unflatten(-1, (len(self.heads), -1)).transpose(-3, -2)
        first, second = self.turn(keys).unbind(-2)
        difference = self.rotated_back(first - second)
        normals = torch.einsum("...hik,hkd->...ihd", difference, self.queries)
        return normals, torch.einsum("...hik,hk->...ih", difference, self.query_biases)

    def log_value(self, points: Float[Tensor, "*batch rows d"]) -> Float[Tensor, "*batch"]:
        """Return the logarithm of the response of the whole layer."""
        X, E = self.tokens(points)
        return self.attention.jacobian(X).jvp(E).flatten(-2).norm(dim=-1).log()

    def best(self, points: list[np.ndarray]) -> tuple[LayerPair, np.ndarray]:
        """Return the point of some with the largest response, and its pair; what is no number has none."""
        together = max(1, NUMBERS // (len(self.others) * self.queries[:, 0].numel()))
        with torch.no_grad():
            parts = torch.from_numpy(np.stack(points)).split(together)
            found = torch.cat([self.log_value(part) for part in parts]).nan_to_num(-math.inf, posinf=-math.inf)
        best = points[int(found.argmax())]
        return self.built(best), best

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
            response = self.attention.jacobian(X).jvp(E).norm().nan_to_num(0.0, posinf=0.0)
        return LayerPair(X=X, E=E, log_value=log(float(response)))


def rotary_tied_pairs(
    attention: Attention, n: int, radius: float, *, heads: int | None = None, best: bool = False
) -> list[LayerPair]:
    """Return the best pair of every head, or of so many that promise most; the best one climbs on the whole layer.

    Where the ``best`` one is enough, long sequences look for it in the head that is best among few tokens.
    """
    if attention.d < 2:
        raise AssumptionError("a tied pair needs two dimensions, got one; use hs.maximise.", field="attention")
    problem = RotaryTiedProblem(attention, n, radius)
    some = [h for h, head in enumerate(problem.heads) if head.norm_Q * head.norm_K * head.norm_WV > 0]
    if not some:
        raise AssumptionError(
            "a tied pair needs A ≠ 0 and V ≠ 0: here no head has both; use equal_tokens.", field="attention"
        )
    # All starts are evaluated; only the best one is improved.
    some = sorted(some, key=lambda h: problem.promise(problem.heads[h]), reverse=True)[:heads]
    kept: tuple[float, ...] = KEPT
    if best and n > SCREENED and not problem.placed:
        few = RotaryTiedProblem(attention, SCREENED, radius)
        trials = itertools.product(some, KEPT)
        head, share = max(trials, key=lambda trial: _proven(few.best(few.starts(few.heads[trial[0]], (trial[1],)))))
        some, kept = [head], (share,)
    found = [problem.best(problem.starts(problem.heads[h], kept)) for h in some]
    most = max(range(len(found)), key=lambda h: _proven(found[h]))
    if not best or n <= CLIMBING:
        climbed = problem.climb(found[most][1])
        found[most] = max(found[most], (problem.built(climbed), climbed), key=_proven)
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
