r"""The norm of a derivative between largest tokens: attained below, bounded above.

Let :math:`J_i` be the rows of the derivative that belong to output token i. For every choice of positive weights
:math:`w_{ij}` with :math:`\sum_jw_{ij} = 1`,

.. math:: \max_{|e_j|\le1}\Bigl|\sum_jJ_{ij}e_j\Bigr|^2 \le \lambda_{\max}(M_i),\qquad
          M_i = \sum_jJ_{ij}J_{ij}^\top/w_{ij},

by Cauchy and Schwarz, since :math:`\sum_jw_{ij}|e_j|^2\le1`. With :math:`w_{ij}` proportional to
:math:`|J_{ij}^\top y|` at the top eigenvector y of :math:`M_i` both sides are equal, and alternating
:math:`e_j\leftarrow J_{ij}^\top y/|J_{ij}^\top y|`, :math:`y\leftarrow\sum_jJ_{ij}e_j` leads there. The largest
eigenvalues are bounded as singular values are, by Lanczos from a random start, see
:mod:`howsmooth.spectral.lanczos_upper_bound`; the doubt is shared out among the rows. Where no doubt is to be left
(``confidence=1``), all of :math:`M_i` is computed, and its eigenvalues with it: a proof, for as many products with
:math:`M_i` as an output token has coordinates. A row with several maxima needs
weights of its own: with :math:`\Theta\succeq0` of trace one,

.. math:: \min_w\lambda_{\max}(M_i) = \max_\Theta\Bigl(\sum_j\sqrt{\mathrm{tr}(J_{ij}^\top\Theta J_{ij})}\Bigr)^2,

a concave problem, and the same alternating steps climb it with a few vectors instead of one,
:math:`\Theta = \sum_ky_ky_k^\top`.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.lanczos_upper_bound import exceeds, least_overlap, upper_bound
from howsmooth.spectral.operators import basis_vector
from howsmooth.spectral.stopping import slack

# The rows of a derivative are assembled from products if these are not more.
BASIS_PRODUCTS = 2048
# Both ends are widened by so many units in the last place: conversions and sums of squares.
MARGIN_UNITS = 8
# Alternating steps of one vector and of several, Lanczos steps, and rounds of all.
POWER_STEPS, BLOCK_STEPS, LANCZOS_STEPS, ROUNDS = 100, 12, 60, 2
# Lanczos bounds are looked at after so many steps: for few rows that takes as long as a step.
CHECKED = 3
# A weight is at least this share of the largest one in its row: blocks that vanish at y may not vanish elsewhere.
LEAST_WEIGHT = 1e-5
# Rows are left alone once so many times their last gain does not reach the largest; that one, below this share of rtol.
GAIN_FACTOR, STILL = 4.0, 0.02
# Rows leave the alternating iteration when so many are left: copying them costs about a step.
LEAVING_SHARE = 0.75


@runtime_checkable
class TokenRows(Protocol):
    """Some rows of the derivative at one input."""

    @property
    def out(self) -> int:
        """The dimension of an output token."""

    def take(self, index: Tensor) -> "TokenRows":
        """Pick some of the rows."""

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        r"""Return :math:`\sum_jJ_{ij}J_{ij}^\top y_i/w_{ij}` for every row, and the norms :math:`|J_{ij}^\top y_i|`.

        Without weights these are the norms themselves.
        """

    def weighted(self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out"]:
        """Return the first of the two alone."""


@runtime_checkable
class HasTokenRows(Protocol):
    """An operator that knows its rows in closed form."""

    def token_rows(self) -> TokenRows | None:
        """Return them; none where they have no closed form, or take too much memory."""


class _Stepping:
    """Rows whose products under weights come with the norms."""

    def weighted(self: TokenRows, Y: Tensor, w: Tensor) -> Tensor:
        """Return the products alone."""
        moved, _sizes = self.step(Y, w)
        return moved


@dataclass(frozen=True, eq=False)
class DenseRows(_Stepping):
    """The rows of any derivative, as one array."""

    J: Float[Tensor, "m out n d"]  # the derivative: output token and coordinate, input token and coordinate

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.J.shape[1]

    def take(self, index: Tensor) -> "DenseRows":
        """Pick some of the rows."""
        return DenseRows(self.J[index])

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        """Pull a cotangent of each row back, and push it forward under weights."""
        sizes, E = _divided(torch.einsum("iajb,ia->ijb", self.J, Y), w)
        return torch.einsum("iajb,ijb->ia", self.J, E), sizes


@dataclass(frozen=True, eq=False)
class ProductRows(_Stepping):
    """The rows of any derivative, each by two products with the whole."""

    op: LinearOperator  # the derivative at one input
    at: Int[Tensor, " rows"]  # which output tokens these are

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.op.codomain[-1]

    def take(self, index: Tensor) -> "ProductRows":
        """Pick some of the rows."""
        return ProductRows(self.op, self.at[index])

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        """Pull the cotangent of each row back, and push it forward under weights."""
        moved, lengths = [], []
        for place, (row, y) in enumerate(zip(self.at.tolist(), Y, strict=True)):
            s = self.op.vjp(_at_row(self.op, row, y)).reshape(self.op.domain)
            sizes, E = _divided(s, None if w is None else w[place])
            moved.append(self.op.jvp(E.reshape(*self.op.batch, *self.op.domain)).reshape(self.op.codomain)[row])
            lengths.append(sizes)
        return torch.stack(moved), torch.stack(lengths)


def _divided(s: Float[Tensor, "*rows n d"], w: Float[Tensor, "*rows n"] | None) -> tuple[Tensor, Tensor]:
    """Return the norms of tokens, and the tokens divided by the weights or, without these, by their norms."""
    sizes = s.norm(dim=-1)
    w = torch.where(sizes > 0, sizes, 1.0) if w is None else w
    return sizes, s / w.unsqueeze(-1)


def _at_row(op: LinearOperator, row: int, y: Tensor) -> Tensor:
    """Return the cotangent that is y at one output token, and zero at the others."""
    G = torch.zeros(op.codomain, dtype=op.dtype, device=op.device)
    G[row] = y.to(op.dtype)
    return G.reshape(*op.batch, *op.codomain)


def rows_of(op: LinearOperator) -> TokenRows:
    """Return the rows of one operator: in closed form, as a matrix where few products give it, or by products."""
    if isinstance(op, HasTokenRows) and (rows := op.token_rows()) is not None:
        return rows
    count = math.prod(op.codomain)
    if count > BASIS_PRODUCTS:
        return ProductRows(op, torch.arange(op.codomain[0], device=op.device))
    J = torch.stack([op.vjp(basis_vector(op, op.codomain, place)).reshape(op.domain) for place in range(count)])
    return DenseRows(J.reshape(*op.codomain, *op.domain))


def no_proof() -> AssumptionError:
    """Return the refusal of a proof that would take too many products."""
    return AssumptionError(
        "no upper end is proven between these metrics at this size; give a confidence below 1, such as 0.999.",
        field="confidence",
    )


class RowSearch:
    """The largest norm of a row: from below by alternating, from above by Lanczos with the weights that this gives."""

    def __init__(
        self,
        rows: TokenRows,
        op: LinearOperator,
        rtol: float,
        confidence: float,
        generator: torch.Generator | None,
    ) -> None:
        self.rows, self.op, self.rtol, self.generator = rows, op, rtol, generator
        m, n = op.codomain[0], op.domain[0]
        self.proven = confidence == 1
        if self.proven and isinstance(rows, ProductRows):
            raise no_proof()
        self.delta = 0.0 if self.proven else least_overlap(rows.out, 1 - (1 - confidence) / (m * ROUNDS))
        self.Y = self._random(m)
        self.columns = self.Y.unsqueeze(1)
        self.sizes = torch.zeros(m, n, dtype=op.dtype, device=op.device)
        self.values = torch.zeros(m, dtype=op.dtype, device=op.device)
        self.upper = torch.full((m,), math.inf, dtype=torch.float64, device=op.device)
        self.steps = 0

    @property
    def goal(self) -> float:
        """What upper ends have to come below."""
        return float(self.values.max()) * (1 + self.rtol / 2)

    def bracket(self) -> tuple[float, Float[Tensor, "n d"], int]:
        """Return the upper end, the perturbation that attains the lower one, and the number of products."""
        some = torch.arange(len(self.Y), device=self.op.device)
        starts = self.Y
        for round_ in range(ROUNDS):
            self._alternate(some, starts)
            unproven = self.upper[some] > self.goal
            some, starts = some[unproven], starts[unproven]
            if not some.numel():
                break
            if round_:
                self._blend(some, starts)
            bounds, starts = self._largest_eigenvalues(some)
            improved = bounds < self.upper[some] * (1 - self.rtol / 4)
            self.upper[some] = torch.minimum(self.upper[some], bounds)
            left = improved & (self.upper[some] > self.goal)
            # from the top eigenvectors, along which the weights were too small
            some, starts = some[left], starts[left]
            if not some.numel():
                break
        row = int(self.values.argmax())
        pulled = self.op.vjp(_at_row(self.op, row, self.Y[row])).reshape(self.op.domain)
        _lengths, E = _divided(pulled, None)
        together = 1 if isinstance(self.rows, ProductRows) else len(self.Y)  # rows that share two products
        return float(self.upper.max()), E, 1 + 2 * math.ceil(self.steps / together)

    def _alternate(self, some: Tensor, Y: Float[Tensor, "some out"]) -> None:
        """Alternate until no row gains that could be the largest.

        The values never fall. A row far below the largest is proven to be so by weights that are far from its best.
        """
        active = torch.arange(len(some), device=some.device)
        value, sizes = torch.zeros_like(self.values[some]), torch.zeros_like(self.sizes[some])
        rows, Y = self._take(some), Y.clone()
        for _step in range(POWER_STEPS):
            moved, sizes[active] = self._step(rows, Y[active], None)
            before, value[active] = value[active], moved.norm(dim=-1)
            Y[active] = _unit(moved)
            best = max(float(self.values.max()), float(value.max()))
            room = best * (1 + GAIN_FACTOR * STILL * self.rtol) - value[active]
            gaining = (GAIN_FACTOR * (value[active] - before) > room).nonzero().flatten()
            if not gaining.numel():
                break
            if len(gaining) <= LEAVING_SHARE * len(active):
                rows, active = rows.take(gaining), active[gaining]
        better = value > self.values[some]
        self.values[some] = torch.maximum(value, self.values[some])
        self.Y[some] = torch.where(better.unsqueeze(-1), Y, self.Y[some])
        self.sizes[some] = torch.where(better.unsqueeze(-1), sizes, self.sizes[some])
        self.columns[some, 0] = self.Y[some]

    def _blend(self, some: Tensor, Y: Float[Tensor, "some out"]) -> None:
        """Alternate all vectors that were found for a row together, with one more; this gives the best weights."""
        self.columns = torch.cat((self.columns, torch.zeros_like(self.columns[:, :1])), dim=1)
        self.columns[some, -1] = Y
        count, columns, w = self.columns.shape[1], self.columns[some], self.sizes[some]
        rows = self.rows.take(some.repeat_interleave(count))
        for _step in range(BLOCK_STEPS):
            moved, sizes = self._step(rows, columns.flatten(0, 1), _weights(w).repeat_interleave(count, 0))
            w = sizes.unflatten(0, (-1, count)).norm(dim=1)
            columns = _unit(moved.unflatten(0, (-1, count)).flatten(1)).unflatten(1, (count, -1))
        self.columns[some], self.sizes[some] = columns, w

    def _largest_eigenvalues(self, some: Tensor) -> tuple[Float[Tensor, " some"], Float[Tensor, "some out"]]:
        """Bound the roots of largest eigenvalues under the weights, as far as the goal asks; with Ritz vectors."""
        w = _weights(self.sizes[some])
        if self.proven:
            return self._all_eigenvalues(some, w)
        goal, rounding = self.goal, slack(self.op.dtype)
        upper = torch.zeros(len(some), dtype=torch.float64, device=some.device)
        tops = torch.zeros_like(self.Y[some])
        active = torch.arange(len(some), device=some.device)
        basis = self._random(len(some)).unsqueeze(1)
        diagonal, beside, latest = np.zeros((len(some), 0)), np.zeros((len(some), 0)), []
        rows, last = self._take(some), min(self.rows.out, LANCZOS_STEPS)
        for step in range(1, last + 1):
            moved = self._weighted(rows, basis[:, -1], w)
            a = (moved * basis[:, -1]).sum(-1)
            for _twice in range(2):
                moved = moved - ((basis @ moved.unsqueeze(-1)).mT @ basis).squeeze(1)
            latest.append(torch.stack((a, moved.norm(dim=-1)), -1))
            if step % CHECKED and step < last:
                basis = torch.cat((basis, _unit(moved).unsqueeze(1)), dim=1)
                continue
            new, latest = torch.stack(latest, 1).double().cpu().numpy(), []
            diagonal, beside = np.c_[diagonal, new[:, :, 0]], np.c_[beside, new[:, :, 1]]
            T = _tridiagonal(diagonal, beside)
            ritz = np.sqrt(np.linalg.eigvalsh(T)[:, -1].clip(0))
            # a row below the goal only has to be proven to be so, and one far above needs other weights first
            excess = (ritz - goal).clip(0)
            bounds = np.maximum(ritz * (1 + self.rtol / 4) + 0.5 * excess, goal / rounding)
            alphas, betas = _bidiagonal(diagonal, beside)
            done = exceeds(bounds, alphas, betas, self.delta**-2) | (step == self.rows.out) | (bounds == 0)
            if step == LANCZOS_STEPS and not done.all():
                bounds[~done] = upper_bound(ritz[~done], alphas[~done], betas[~done], self.delta)
                done[:] = True
            index = torch.as_tensor(np.flatnonzero(done), device=some.device)
            _values, vectors = np.linalg.eigh(T[done])
            mix = torch.as_tensor(vectors[:, :, -1:], dtype=basis.dtype, device=basis.device)
            tops[active[index]] = (mix.mT @ basis[index]).squeeze(1)
            upper[active[index]] = torch.as_tensor(bounds[done] * rounding, device=some.device)
            if done.all():
                break
            rest = torch.as_tensor(np.flatnonzero(~done), device=some.device)
            if done.any():
                rows, w = rows.take(rest), w[rest]
            active, diagonal, beside = active[rest], diagonal[~done], beside[~done]
            basis = torch.cat((basis[rest], _unit(moved[rest]).unsqueeze(1)), dim=1)
        return upper, tops

    def _all_eigenvalues(self, some: Tensor, w: Tensor) -> tuple[Float[Tensor, " some"], Float[Tensor, "some out"]]:
        r"""Compute :math:`M_i` column by column, and return what Lanczos would bound."""
        rows, out = self._take(some), self.rows.out
        identity = torch.eye(out, dtype=self.op.dtype, device=some.device)
        columns = [self._weighted(rows, e.expand(len(some), out), w) for e in identity]
        M = torch.stack(columns, dim=-1).double()
        values, vectors = torch.linalg.eigh(0.5 * (M + M.mT))
        # sums over coordinates and input tokens, and the eigenvalues themselves
        room = 1 + MARGIN_UNITS * (out + w.shape[-1]) * torch.finfo(self.op.dtype).eps
        return values[:, -1].clamp_min(0).sqrt() * room, vectors[..., -1].to(self.op.dtype)

    def _take(self, some: Tensor) -> TokenRows:
        return self.rows if len(some) == len(self.Y) else self.rows.take(some)

    def _step(self, rows: TokenRows, Y: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
        self.steps += len(Y)
        return rows.step(Y, w)

    def _weighted(self, rows: TokenRows, Y: Tensor, w: Tensor) -> Tensor:
        self.steps += len(Y)
        return rows.weighted(Y, w)

    def _random(self, count: int) -> Float[Tensor, "count out"]:
        draw = torch.randn(count, self.rows.out, dtype=self.op.dtype, generator=self.generator)
        return _unit(draw.to(self.op.device))


def _weights(sizes: Float[Tensor, "rows n"]) -> Float[Tensor, "rows n"]:
    """Return positive weights that sum to one, nearly proportional to the sizes; equal ones where all are zero."""
    largest = sizes.amax(-1, keepdim=True)
    weights = sizes + torch.where(largest > 0, LEAST_WEIGHT * largest, 1.0)
    return weights / weights.sum(-1, keepdim=True)


def _unit(Y: Float[Tensor, "rows out"]) -> Float[Tensor, "rows out"]:
    sizes = Y.norm(dim=-1, keepdim=True)
    return Y / torch.where(sizes > 0, sizes, 1.0)


def _tridiagonal(diagonal: np.ndarray, beside: np.ndarray) -> np.ndarray:
    """Return the matrices of Lanczos, one for each row."""
    k = diagonal.shape[1]
    T = np.zeros((len(diagonal), k, k))
    T[:, range(k), range(k)] = diagonal
    T[:, range(1, k), range(k - 1)] = T[:, range(k - 1), range(1, k)] = beside[:, :-1]
    return T


def _bidiagonal(diagonal: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Factorise :math:`T = B^\top B`; what rounding makes of zero is a little more than zero."""
    least = 1e-30 * diagonal.max(axis=1).clip(1e-200)
    alphas, betas = np.empty_like(diagonal), np.empty_like(diagonal)
    before = np.zeros(len(diagonal))
    for step in range(diagonal.shape[1]):
        alphas[:, step] = np.sqrt(np.maximum(diagonal[:, step] - before**2, least))
        betas[:, step] = before = np.maximum(beside[:, step], least) / alphas[:, step]
    return alphas, betas
