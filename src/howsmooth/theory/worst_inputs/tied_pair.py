"""Theorem 2: two tokens that tie for the attention of all others, in one head."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.errors import AssumptionError
from howsmooth.theory.heads import Head, log
from howsmooth.theory.linalg.lbfgs import lowest_point

# How many singular vectors of V enter the choice of z; the others can only help.
VALUE_DIRECTIONS = 16
CANDIDATES = 6
STARTS = 3
ITERATIONS = 60
# Halvings of the interval that holds an eigenvalue: to a part in 10¹² of it.
BISECTIONS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class TiedPair:
    r"""The tokens, the explicit perturbation of the proof, and the logarithm of what it proves.

    Attributes:
        first: :math:`x_1`.
        second: :math:`x_2`.
        copies: The token that all others equal.
        direction: The unit vector along which :math:`x_1` moves by :math:`+1/\sqrt2` and :math:`x_2` by the opposite.
        log_value: The logarithm of the lower bound, for this head alone.
    """

    first: Float[Tensor, " d"]
    second: Float[Tensor, " d"]
    copies: Float[Tensor, " d"]
    direction: Float[Tensor, " d"]
    log_value: float

    def tokens(self, n: int) -> Float[Tensor, "n d"]:
        """Return the sequence: the pair first, where a causal mask lets everybody see it."""
        return torch.cat((self.first[None], self.second[None], self.copies.expand(n - 2, -1)))

    def perturbation(self, n: int) -> Float[Tensor, "n d"]:
        """Return the unit perturbation of the proof."""
        E = self.first.new_zeros(n, self.first.numel())
        E[0], E[1] = self.direction / math.sqrt(2), -self.direction / math.sqrt(2)
        return E


class TiedProblem:
    r"""The lower bound as a smooth function of the copies' place and the angle of the pair, in k + m numbers.

    With :math:`y = \beta + rDe`, :math:`q = Qy + b` and :math:`g = K^\top q`, the pair is
    :math:`x_{1,2} = \beta + D(\cos\theta\,\hat w\pm\sin\theta\,\zeta)`, :math:`\hat w = D^\top g/|D^\top g|`,
    :math:`\zeta\perp\hat w`, and the bound

    .. math:: \sqrt{2(n-2)}\;p\,|g|\,\sin\theta\,|VD\zeta|,\qquad
              p = \frac1{2+(n-2)e^{-\Delta}},\quad \Delta = |D^\top g|\cos\theta - r\langle D^\top g, e\rangle.

    The value depends on e through :math:`QDe` and :math:`KDe` only, so e lies in the span of their rows.
    """

    def __init__(self, head: Head, frame: StretchedSphere, n: int | None) -> None:
        """Prepare the small matrices; without ``n``, every point takes the number of copies that suits it best."""
        self.head, self.frame, self.log_copies = head, frame, None if n is None else math.log(n - 2)
        QD, self.KD = frame.pull(head.Q), frame.pull(head.K)
        # the bound sees e through QDe and KDe: the search is in the span of their rows, not in all of d dimensions
        rows = torch.cat((QD, self.KD))
        self.basis = torch.linalg.qr(rows.mT).Q
        self.base = head.Q @ frame.centre + head.query_bias
        self.QB, self.KB = QD @ self.basis, self.KD @ self.basis
        self.gram = head.K @ head.K.mT
        _left, self.values, right = torch.linalg.svd(frame.pull(head.mixed), full_matrices=False)
        # The search maximises over the leading singular vectors of V; the bound itself takes the best of all, in
        # pair().
        count = min(VALUE_DIRECTIONS, self.values.numel())
        self.values, self.right = self.values[:count], right[:count]
        self.cross = self.right @ self.KD.mT
        small = (self.base, self.QB, self.KB, self.KD, self.gram, self.values, self.cross)
        self._arrays = tuple(x.numpy() for x in small)

    def log_value(self, c: Float[Tensor, "... m"], r: Tensor, cosine: Tensor) -> Float[Tensor, "..."]:
        """Return the logarithm of the bound at unit coordinates ``c`` of e."""
        q = self.base + r[..., None] * (c @ self.QB.mT)
        wide = (q @ self.KD).norm(dim=-1)  # |Dᵀg|
        gradient = torch.einsum("...i,ij,...j->...", q, self.gram, q).clamp_min(1e-300).sqrt()
        # Δ: by how much the score of either token of the pair exceeds that of a copy.
        delta = wide * cosine - r * (q * (c @ self.KB.mT)).sum(-1)
        overlap = q @ self.cross.mT / wide.clamp_min(1e-300)[..., None]
        spread = 0.5 * self._stretch_beside(overlap).clamp_min(1e-300).log()
        sine = 0.5 * torch.log1p(-cosine.square())
        return self._share(delta) + gradient.log() + sine + spread

    def _share(self, delta: Tensor) -> Tensor:
        r"""Return :math:`\log(\sqrt{2N}\,p)` for N copies; the best number, :math:`2e^\Delta`, gives Δ/2 − log 2."""
        if self.log_copies is None:
            return delta / 2 - math.log(2)
        two = torch.full_like(delta, math.log(2))
        return 0.5 * (math.log(2) + self.log_copies) - torch.logaddexp(two, self.log_copies - delta)

    def _stretch_beside(self, overlap: Float[Tensor, "... t"]) -> Float[Tensor, "..."]:
        r"""Return :math:`\|VD(I-\hat w\hat w^\top)\|^2` from the overlaps of :math:`\hat w` with singular vectors.

        The largest eigenvalue of :math:`\mathrm{diag}(\sigma^2) - ss^\top`, where :math:`s = \sigma\circ` overlap: the
        root of :math:`\sum_is_i^2/(\sigma_i^2-\lambda) = 1` below :math:`\sigma_1^2` and above :math:`\sigma_2^2`.
        """
        # Why not eigvalsh: ten thousand matrices of a grid, of which one number each is wanted.
        squares, weights = self.values.square(), (self.values * overlap).square()
        low = squares[0] - weights[..., 0]
        low, high = low.clamp_min(squares[1]) if len(squares) > 1 else low, squares[0].expand(low.shape)
        for _halving in range(BISECTIONS):
            middle = (low + high) / 2
            beyond = (weights / (squares - middle[..., None])).sum(-1) > 1
            low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
        return low

    def starts(self) -> Float[Tensor, "s m"]:
        """Return unit coordinates: what scores stretch most, and what likes itself least."""
        # Copies that score low among themselves (small ⟨Ae, e⟩) leave the attention to the pair.
        A = self.KB.mT @ self.QB
        _left, _values, right = torch.linalg.svd(A)
        _values, vectors = torch.linalg.eigh(A + A.mT)
        return torch.cat((right[:CANDIDATES], vectors.mT[:CANDIDATES]))

    def screened(self, c: Float[Tensor, "s m"]) -> list[np.ndarray]:
        """Return the best few starts with their best r and cos θ on a grid."""
        # A grid in two variables for every start: the function has several maxima, and L-BFGS finds only the nearest.
        like = c.new_zeros(1)
        r = torch.logspace(-1.5, 0, 16).to(like) if self.frame.solid else like + 1
        cosine = torch.cat((like, 1 - torch.logspace(-4, -0.3, 20).to(like), torch.logspace(-4, -0.3, 24).to(like)))
        grid_r, grid_cosine = (x.flatten().expand(len(c), -1) for x in torch.meshgrid(r, cosine, indexing="ij"))
        # Why these too: with steep scores everything is decided within a small angle, between two points of the grid
        leads = math.log(3.0) + (0.0 if self.log_copies is None else self.log_copies) + torch.arange(0, 8, 2).to(like)
        lead_r, lead = (x.flatten().expand(len(c), -1) for x in torch.meshgrid(r, leads, indexing="ij"))
        grid_r = torch.cat((grid_r, lead_r), -1)
        grid_cosine = torch.cat((grid_cosine, self._ahead(c[:, None], lead_r, lead)), -1)
        values = self.log_value(c[:, None], grid_r, grid_cosine)
        best, place = values.max(-1)
        order = best.argsort(descending=True)[:STARTS].tolist()
        return [np.concatenate((c[i].numpy(), [grid_r[i, place[i]], grid_cosine[i, place[i]]])) for i in order]

    def _ahead(self, c: Float[Tensor, "... m"], r: Tensor, lead: Tensor) -> Float[Tensor, "..."]:
        """Return the cosine at which the scores of the pair lead those of the copies by so much."""
        q = self.base + r[..., None] * (c @ self.QB.mT)
        needed = lead + r * (q * (c @ self.KB.mT)).sum(-1)
        return (needed / (q @ self.KD).norm(dim=-1).clamp_min(1e-300)).clamp(0.0, 1 - 1e-9)

    def climb(self, start: np.ndarray) -> TiedPair:
        """Maximise from one start by L-BFGS; return the pair at the best point, which may be the start."""
        lowest = 1e-3 if self.frame.solid else 1.0
        bounds = [(None, None)] * (start.size - 2) + [(lowest, 1.0), (0.0, 1 - 1e-9)]
        with np.errstate(over="ignore", invalid="ignore"):  # where no pair is tied, a slope may overflow
            end = lowest_point(self.loss, start, iterations=ITERATIONS, bounds=bounds)
        return max((self.pair(x) for x in (start, end)), key=lambda pair: pair.log_value)

    def loss(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        r"""Return what is minimised, −:meth:`log_value` at one point, and its gradient.

        The largest eigenvalue λ of :meth:`_stretch_beside`, with the unit eigenvector ω, has the derivative
        :math:`-2\langle\omega,s\rangle\,\omega` by the scaled overlaps s.
        """
        # Why not autograd: thousands of points of forty numbers, where dispatch is nearly all of the time.
        if not np.isfinite(x).all():  # a line search has failed
            return math.inf, np.full_like(x, math.nan)
        base, QB, KB, KD, gram, values, cross = self._arrays
        c, r, cosine = x[:-2], x[-2], x[-1]
        length = np.sqrt(c @ c)
        e = c / length
        Qe, Ke = QB @ e, KB @ e
        q = base + r * Qe
        w, gram_q = q @ KD, gram @ q
        wide = max(np.sqrt(w @ w), 1e-300)
        steep = max(q @ gram_q, 1e-300)
        overlap = cross @ q / wide
        scaled = values * overlap
        if not np.isfinite(scaled @ scaled):
            return math.inf, np.full_like(x, math.nan)
        eigenvalues, vectors = np.linalg.eigh(np.diag(values**2) - np.outer(scaled, scaled))
        stretch, top = max(eigenvalues[-1], 1e-300), vectors[:, -1]
        delta = wide * cosine - r * (q @ Ke)
        if self.log_copies is None:
            share, slope = delta / 2 - math.log(2), 0.5
        else:
            ahead = self.log_copies - delta
            total = np.logaddexp(math.log(2), ahead)
            share, slope = 0.5 * (math.log(2) + self.log_copies) - total, np.exp(ahead - total)
        value = share + 0.5 * (math.log(steep) + math.log1p(-(cosine**2)) + math.log(stretch))
        by_overlap = -(top @ scaled) * top * values / stretch
        by_wide = slope * cosine - by_overlap @ overlap / wide
        by_q = by_wide * (KD @ w) / wide - slope * r * Ke + gram_q / steep + by_overlap @ cross / wide
        by_e = r * (by_q @ QB - slope * (q @ KB))
        by_r = by_q @ Qe - slope * (q @ Ke)
        by_cosine = slope * wide - cosine / (1 - cosine**2)
        return -value, -np.concatenate(((by_e - (e @ by_e) * e) / length, [by_r, by_cosine]))

    def pair(self, x: np.ndarray) -> TiedPair:
        """Build the tokens of a point, and evaluate the bound at them; where g = 0, nothing is proven."""
        c, r, cosine = torch.tensor(x[:-2]), float(x[-2]), float(x[-1])
        e = self.basis @ (c / c.norm())
        copies = self.frame.point(r * e)
        g = (self.head.Q @ copies + self.head.query_bias) @ self.head.K
        w = self.frame.pull(g)
        w = w / w.norm().clamp_min(1e-300)
        VD = self.frame.pull(self.head.mixed)
        # the best z beside w, from the whole of V
        zeta = torch.linalg.svd(VD - (VD @ w)[:, None] * w, full_matrices=False).Vh[0]
        zeta = zeta - (zeta @ w) * w
        zeta = zeta / zeta.norm().clamp_min(1e-300)
        sine = math.sqrt(1 - cosine**2)
        first, second = (self.frame.point(cosine * w + sign * sine * zeta) for sign in (1, -1))
        # the true tokens count, not the formula: the value is evaluated at what rounding made of them
        moved = float((self.head.mixed @ (first - second)).norm())
        share = float(self._share(g @ (first - copies)))
        log_value = share + log(float(g.norm())) + log(moved) - math.log(2)
        log_value = -math.inf if math.isnan(log_value) else log_value  # what is no number proves nothing
        direction = g / g.norm().clamp_min(1e-300)
        return TiedPair(first=first, second=second, copies=copies, direction=direction, log_value=log_value)


def best_pair(head: Head, frame: StretchedSphere, n: int | None) -> TiedPair:
    """Find the best tied pair of one head, for n tokens or for as many as suit it best."""
    if head.d - frame.centred < 2:
        raise AssumptionError("a tied pair needs two dimensions, got one; use two_point.", field="attention")
    if head.norm_A == 0 and not bool(head.query_bias.any()):
        raise AssumptionError("a tied pair needs A ≠ 0: here all scores are zero; use equal_tokens.", field="attention")
    if head.norm_WV == 0:
        raise AssumptionError("a tied pair needs V ≠ 0: here nothing moves; use equal_tokens.", field="attention")
    problem = TiedProblem(head, frame, n)
    with torch.no_grad():
        starts = problem.screened(problem.starts())
    return max((problem.climb(start) for start in starts), key=lambda pair: pair.log_value)
