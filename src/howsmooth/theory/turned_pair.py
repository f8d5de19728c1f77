"""Two tokens that tie for the attention of all others under rotary positions, where no two others ask alike."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.rotary import Rotation
from howsmooth.theory.heads import Head, heads_of, log

# By so much the scores of the pair lead those of the others, to begin with; the best counts.
LEADS = (8.0, 16.0, 32.0, 64.0)
# The pair stays at least this far from one another, whatever lead it needs.
LARGEST_COSINE = 0.7


@dataclass(frozen=True, kw_only=True, eq=False)
class TurnedPair:
    r"""The tokens, the perturbation that moves their outputs, and the logarithm of how far.

    Attributes:
        X: The tokens.
        E: The unit perturbation: the pair moves along one direction, to opposite sides.
        log_value: The logarithm of the response of the whole layer, a lower bound.
    """

    X: Float[Tensor, "n d"]
    E: Float[Tensor, "n d"]
    log_value: float


class TurnedProblem:
    r"""Pairs for the heads of one layer on sequences of n tokens, all of length R.

    Row i pulls at the pair's token j by :math:`A_{i-j}y_i`, :math:`A_\delta = K^\top\Theta_\delta Q`. A direction e in
    which the pair moves is pulled at most by :math:`y_i = R\,A_{i-j}^\top e/|A_{i-j}^\top e|`, and the best e is the
    leading eigenvector of :math:`\sum_iA_{i-j}A_{i-j}^\top`, the matrix of ``sharp_upper``. The pair is
    :math:`x_{1,2} = R(\cos\theta\,e\pm\sin\theta\,z)`: the first part takes the attention of the others, and z is what
    the values stretch most. Then the rows turn so that both tokens tie in all heads,

    .. math:: \langle y_i,\;A_{i-j_1}^{h\top}x_1 - A_{i-j_2}^{h\top}x_2\rangle = 0\quad\text{for all } h.
    """

    def __init__(self, attention: Attention, n: int, radius: float) -> None:
        """Prepare what all pairs share."""
        self.attention = attention.to(torch.float64, "cpu")
        self.heads, self.n, self.radius = heads_of(attention), n, radius
        # where a mask lets everybody see them; otherwise in the middle, close to all
        first = 0 if attention.positions.causal else (n - 2) // 2
        self.places = torch.tensor([first, first + 1])
        self.others = torch.tensor([i for i in range(n) if i not in (first, first + 1)])
        rotary = attention.positions.rotary
        assert rotary is not None
        self.rotary = rotary

    def _rotation(self, places: Tensor, like: Tensor) -> Rotation:
        return dataclasses.replace(self.rotary, positions=places).rotation(len(places), like.shape[-1], like)

    def asked(self, head: Head, keys: Float[Tensor, "m k"], places: Tensor) -> Float[Tensor, "m others d"]:
        r"""Return :math:`Q^\top\Theta_i^\top\Theta_jk`: what the other rows' tokens are to a key at place j."""
        turned = self._rotation(places, keys)(keys[None])[0]
        spread = turned[:, None].expand(-1, len(self.others), -1)
        return self._rotation(self.others, keys).T(spread) @ head.Q

    def pairs(self, head: Head) -> list[TurnedPair]:
        """Return the pair of one head, for several leads of its scores, each measured on the whole layer."""
        e = self._direction(head)
        wanted = self.asked(head, (head.K @ e)[None], self.places[:1])[0]
        steep = float(wanted.norm(dim=-1).median()) * self.radius**2
        beside = head.mixed - (head.mixed @ e)[:, None] * e
        z = torch.linalg.svd(beside, full_matrices=False).Vh[0]
        cosines = sorted({min(LARGEST_COSINE, lead / max(steep, 1e-300)) for lead in LEADS})
        return [self._pair(wanted, e, z - (z @ e) * e, cosine) for cosine in cosines]

    def _direction(self, head: Head) -> Float[Tensor, " d"]:
        r"""Return the leading eigenvector of :math:`\sum_iA_{i-j}A_{i-j}^\top`, by its factor in k dimensions."""
        identity = torch.eye(len(head.K), dtype=torch.float64)
        pulls = self.asked(head, identity, self.places[:1].expand(len(identity)))
        gram = torch.einsum("anr,bnr->ab", pulls, pulls)
        values, vectors = torch.linalg.eigh(gram)
        factor = (vectors * values.clamp_min(0).sqrt()).mT @ head.K
        return torch.linalg.svd(factor, full_matrices=False).Vh[0]

    def _pair(
        self, wanted: Float[Tensor, "others d"], e: Float[Tensor, " d"], z: Float[Tensor, " d"], cosine: float
    ) -> TurnedPair:
        sine = math.sqrt(1 - cosine**2)
        pair = self.radius * torch.stack((cosine * e + sine * z, cosine * e - sine * z))
        X = wanted.new_zeros(self.n, len(e))
        X[self.places], X[self.others] = pair, self._tied(wanted, pair)
        E = torch.zeros_like(X)
        E[self.places[0]], E[self.places[1]] = e / math.sqrt(2), -e / math.sqrt(2)
        return TurnedPair(X=X, E=E, log_value=log(float(self.attention.jacobian(X).jvp(E).norm())))

    def _tied(self, wanted: Float[Tensor, "others d"], pair: Float[Tensor, "2 d"]) -> Float[Tensor, "others d"]:
        """Return the tokens of length R that are nearest to some directions, and see the pair tie in every head."""
        uneven = torch.stack([self._uneven(head, pair) for head in self.heads], 1)
        basis = torch.linalg.qr(uneven.mT).Q
        for _twice in range(2):  # what rounding leaves of the scores after one projection would break the tie
            wanted = wanted - (basis @ (basis.mT @ wanted[..., None]))[..., 0]
        return self.radius * wanted / wanted.norm(dim=-1, keepdim=True).clamp_min(1e-300)

    def _uneven(self, head: Head, pair: Float[Tensor, "2 d"]) -> Float[Tensor, "others d"]:
        first, second = self.asked(head, pair @ head.K.mT, self.places)
        return first - second


def turned_pairs(attention: Attention, n: int, radius: float, *, heads: int | None = None) -> list[TurnedPair]:
    """Return the best pair of every head, or of so many that promise most by the product of their norms."""
    problem = TurnedProblem(attention, n, radius)
    some = sorted(problem.heads, key=lambda head: head.norm_A * head.norm_WV, reverse=True)[:heads]
    with torch.no_grad():
        return [max(problem.pairs(head), key=lambda pair: pair.log_value) for head in some]
