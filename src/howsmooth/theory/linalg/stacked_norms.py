r"""Theorem 1, heads together: norms of many matrices at once, stacked under scales or in all unit combinations.

:func:`balance_scales` searches for scales that make a product of two norms of stacks small.

:func:`products_norm` bounds :math:`\sup_{|c|=1}\|\sum_hc_hA_h\|`, the largest value of a form of three vectors, which
nobody can compute in general. Two bounds are well known: the norms of the matrices one under the other, and side by
side. The square of what is here is at most the mean of their squares, as
:math:`\sum_{hg}\langle A_g^\top z_h, A_h^\top z_g\rangle\le\sum_{hg}|A_g^\top z_h|^2`. It is often next to the truth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from howsmooth.theory.linalg.lbfgs import lowest_point
from howsmooth.theory.linalg.matrix_norms import UNIT

# So often the scales are improved; each time adds so many directions in which the norms are known.
ROUNDS, DIRECTIONS = 5, 3
# Larger problems would take longer than all the rest.
LARGEST = 9216
# So many rows of all matrices enter S as they are, the strongest; the others by norms and by their coupling to these.
WHOLE = 1152
# Gram matrices are computed in so many rows of blocks, each block once, where they have so many rows at least.
GRAM_BLOCKS, LEAST_GRAM = 4, 256
# The bound is so far above the eigenvalue that iteration found.
SLACK = 2e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedMatrices:
    r"""Blocks :math:`X_h` with r rows each, stacked, and the norm of :math:`(t_hX_h)_h` for any scales t."""

    blocks: Float[Tensor, "heads r d"]  # the blocks, divided by ``size``
    size: float  # the largest entry of all
    error: Float[Tensor, " heads"]  # bounds on the rounding errors of the blocks, in the norm

    @classmethod
    def of(cls, blocks: list[Tensor], errors: list[float] | None = None) -> "StackedMatrices":
        """Stack matrices of one width; shorter ones are filled up with zeros."""
        rows = max(len(block) for block in blocks)
        padded = torch.stack([torch.nn.functional.pad(block, (0, 0, 0, rows - len(block))) for block in blocks])
        size = float(padded.abs().max())
        error = torch.tensor([0.0] * len(blocks) if errors is None else errors, dtype=torch.float64)
        return cls(blocks=padded / (size if size > 0 else 1.0), size=size, error=error)

    def norm(self, t: Float[Tensor, " heads"]) -> float:
        r"""Return :math:`\|(t_hX_h)_h\|_2 = \lambda_{\max}(\sum_ht_h^2X_h^\top X_h)^{1/2}`, rounding included."""
        norm, _images = self.norm_and_images(t)
        return norm

    def norm_and_images(self, t: Float[Tensor, " heads"]) -> tuple[float, Float[Tensor, "heads r c"]]:
        """Return the norm, and what the blocks make of the leading singular vectors at these scales."""
        scaled = t[:, None, None] * self.blocks
        largest = float(scaled.abs().max())
        if not math.isfinite(largest):
            return math.inf, self.blocks[..., :0]
        flat = (scaled / (largest if largest > 0 else 1.0)).flatten(0, 1)  # squares stay in the range of the numbers
        values, vectors = _leading(flat.mT @ flat)
        # sums of so many products, each part at most as large as the largest eigenvalue
        rounding = (len(flat) + 8 * flat.shape[1]) * min(flat.shape) * UNIT
        exact = math.sqrt(float(values[-1])) * (1 + rounding)  # at least one, as an entry is; or all are zero
        norm = exact * largest * self.size + float((t * self.error).norm()) * (1 + rounding)
        return norm, self.blocks @ vectors

    def norm_of_images(self, images: list[Float[Tensor, "heads r c"]], t: Float[Tensor, " heads"]) -> Tensor:
        """Return the norm in the directions that have these images: from below, cheap, and differentiable."""
        scaled = torch.cat(images, dim=-1) * t[:, None, None]
        scaled = scaled.flatten(0, 1)
        # Why not normalised in the combination: each direction alone is a unit vector, and that is enough to steer by.
        return self.size * scaled.square().sum(0).pow(8).sum().clamp_min(1e-300).pow(1 / 16)


def _leading(gram: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " c"], Float[Tensor, "d c"]]:
    """Return the largest eigenvalues, in increasing order, and their eigenvectors: a quarter of the time of all."""
    d = len(gram)
    ends = [max(0, d - DIRECTIONS), d - 1]
    values, vectors = eigh(gram.numpy(), subset_by_index=ends, driver="evr", check_finite=False)
    return torch.from_numpy(values), torch.from_numpy(vectors)


# Several stacks under the same scales, of which the largest counts.
Stacks = tuple[StackedMatrices, ...]


def largest_norm(stacks: Stacks, t: Float[Tensor, " heads"]) -> float:
    """Return the largest norm of several stacks under the same scales."""
    return max(stack.norm(t) for stack in stacks)


def balance_scales(
    values: StackedMatrices, stacks: Stacks, s: Float[Tensor, " heads"]
) -> tuple[float, Float[Tensor, " heads"]]:
    r"""Search for scales s that make :math:`\|(X_h/s_h)_h\|\,\|(s_hY_h)_h\|` small, X the values; return both.

    Every product that is returned was computed at its scales, so the search itself proves nothing and may stop early.
    """
    log_s, best, scales = s.log(), math.inf, s
    # images of the leading directions at all scales so far: the norms in these directions are the model of a step
    value_images: list[Tensor] = []
    stack_images: list[list[Tensor]] = [[] for _stack in stacks]

    def model(s: Float[Tensor, " heads"]) -> Tensor:
        norms = [stack.norm_of_images(images, s) for stack, images in zip(stacks, stack_images, strict=True)]
        return values.norm_of_images(value_images, 1 / s) * torch.stack(norms).amax()

    for _round in range(ROUNDS):
        s = log_s.exp()
        value_norm, images = values.norm_and_images(1 / s)
        value_images.append(images)
        stack_norms = []
        for stack, kept in zip(stacks, stack_images, strict=True):
            norm, images = stack.norm_and_images(s)
            kept.append(images)
            stack_norms.append(norm)
        found = value_norm * max(stack_norms)
        if not math.isfinite(found):
            break
        done = found > best * (1 - 1e-3)
        best, scales = (found, s) if found < best else (best, scales)
        if done and _round > 1:
            break
        log_s = _improved(model, log_s)
    return best, scales


def _improved(model: Callable[[Tensor], Tensor], log_s: Tensor) -> Tensor:
    """Return better scales, by the norms in the directions kept so far."""

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.inference_mode(False), torch.enable_grad():  # whatever the caller has switched off
            point = torch.tensor(x, requires_grad=True)
            value = model(point.exp()).log()
            (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    # Scales enter by their logarithms: only ratios between heads matter, and all are positive.
    start = log_s.numpy()
    near = [(x - 1.0, x + 1.0) for x in start]  # further away the norms lie in other directions
    return torch.from_numpy(lowest_point(loss, start, iterations=60, bounds=near))


def products_norm(factors: list[tuple[Tensor, Tensor]]) -> float:
    r"""Bound :math:`\sup_{|c|=1}\|\sum_hc_hK_h^\top Q_h\|` from above, given every Q and K."""
    # Why not form every A_h: d × d matrices for all heads; tokens count through their keys alone.
    keys = torch.cat([K for _Q, K in factors])
    # up to an isometry, the tokens are as many numbers as there are keys
    basis = torch.linalg.qr(keys.mT).R.mT if keys.shape[0] < keys.shape[1] else keys
    if len(factors) * min(basis.shape[1], factors[0][0].shape[1]) > LARGEST:
        return math.inf
    blocks = basis.split([len(K) for _Q, K in factors])
    forms = torch.stack([K.mT @ Q for K, (Q, _K) in zip(blocks, factors, strict=True)])
    error = sum((sum(K.shape) * 4 * UNIT * float(K.norm()) * float(Q.norm())) ** 2 for Q, K in factors)
    return max_unit_combination_norm(forms) + math.sqrt(error)


def max_unit_combination_norm(A: Float[Tensor, "h a b"]) -> float:
    r"""Bound :math:`\sup_{|c|=1}\|\sum_hc_hA_h\|` from above; infinity where that would take too long.

    The square is the largest value of :math:`\sum_{hg}c_hc_g\langle e, A_hA_g^\top e\rangle` over unit c and e. The
    matrix of the blocks :math:`A_hA_g^\top` has this form, at :math:`c\otimes e`; so has that of the blocks
    :math:`A_gA_h^\top`, and so has half of their sum S, whose largest eigenvalue is a bound. The transposes have the
    same norm and another bound; the smaller one is returned.
    """
    size = float(A.abs().max())
    if not 0 < size < math.inf:
        return 0.0 if size == 0 else math.inf
    sides = [B / size for B in (A, A.mT) if len(B) * B.shape[1] <= LARGEST]
    return size * min((_on_one_side(B) for B in sides), default=math.inf)


def _on_one_side(A: Float[Tensor, "h a b"]) -> float:
    r"""Bound the square root of the largest eigenvalue of S.

    Rows are turned so that the strongest come first. With :math:`S_{22}\preceq\beta I` for the weak ones, S is at most
    :math:`\lambda > \beta` if :math:`S_{11} + S_{12}S_{12}^\top/(\lambda-\beta)\preceq\lambda I`: completing the
    square. Lanczos' iteration finds such a number, and a Cholesky factor of the difference proves it.
    """
    # S would have heads × rows dimensions: the weak rows enter by a norm, and only the strong ones are decomposed.
    heads, rows, columns = A.shape
    strong = min(rows, max(1, WHOLE // heads))
    _sizes, basis = torch.linalg.eigh(_gram(A.transpose(0, 1).flatten(1)))
    strong_rows, weak_rows = (basis.flip(-1).mT @ A).split([strong, rows - strong], dim=1)
    beta, S, coupling = _by_norms(weak_rows), _blocks(strong_rows, strong_rows), _blocks(strong_rows, weak_rows)
    coupled = _gram(coupling)
    largest = _root(S, coupled, beta) * (1 + SLACK)
    if not largest > beta:
        return math.inf
    # In place: S is the largest matrix of all, and becomes λI − S₁₁ − S₁₂S₁₂ᵀ/(λ−β).
    S.add_(coupled, alpha=1 / (largest - beta)).neg_().diagonal().add_(largest)
    _factor, failed = torch.linalg.cholesky_ex(S)
    if failed:
        return math.inf
    whole, coupling_size = float(A.square().sum()), float(coupling.norm())
    # sums of so many products in S and in its square, and what a factor of a nearly singular matrix may hide
    error = (columns + 2) * whole * (1 + 2 * coupling_size / (largest - beta))
    error += (coupling.shape[1] + 4) * coupling_size**2 / (largest - beta) + 2 * (len(S) + 2) * largest * len(S)
    # rows are turned by what is orthogonal but for rounding
    return math.sqrt(largest + UNIT * error) * (1 + 16 * rows * UNIT) + 16 * rows * UNIT * math.sqrt(whole)


def _blocks(some: Float[Tensor, "h a c"], others: Float[Tensor, "h b c"]) -> Float[Tensor, "ha hb"]:
    """Return the blocks of S between some rows and others."""
    heads, a, b = len(some), some.shape[1], others.shape[1]
    gram = (some.flatten(0, 1) @ others.flatten(0, 1).mT).view(heads, a, heads, b)
    return (gram + gram.transpose(0, 2)).div_(2).reshape(heads * a, heads * b)


def _gram(rows: Float[Tensor, "m n"]) -> Float[Tensor, "m m"]:
    """Return the products of all rows with each other; of two blocks that mirror one another one is computed."""
    m = len(rows)
    if m < LEAST_GRAM:
        return rows @ rows.mT
    gram, size = rows.new_empty(m, m), -(-m // GRAM_BLOCKS)
    for start in range(0, m, size):
        end = min(start + size, m)
        torch.mm(rows[start:end], rows[:end].mT, out=gram[start:end, :end])
        gram[:start, start:end] = gram[start:end, :start].mT
    return gram


def _by_norms(A: Float[Tensor, "h a b"]) -> float:
    """Bound the largest eigenvalue of S by the two norms that are well known."""
    if not A.numel():
        return 0.0
    # Half the sum of both squares, as S is half the sum of both matrices.
    grams = (_gram(A.flatten(0, 1).mT), _gram(A.transpose(0, 1).flatten(1)))
    squares = [float(torch.linalg.eigvalsh(gram)[-1]) for gram in grams]
    error = 2 * (len(A) * sum(A.shape[1:]) + 8) * UNIT * float(A.square().sum())
    return sum(squares) / 2 + error


def _root(S: Float[Tensor, "m m"], coupled: Float[Tensor, "m m"], beta: float) -> float:
    r"""Find :math:`\lambda`, nearly, the largest eigenvalue of :math:`S + T/(\lambda-\beta)` for the coupling T."""
    alone = _largest(S)
    if not coupled.any():
        return alone
    # above, by norms alone; from there once below and once above
    high = (alone + beta) / 2 + math.hypot((alone - beta) / 2, math.sqrt(_largest(coupled)))
    low = _largest(S + coupled / (high - beta))
    return min(high, _largest(S + coupled / (low - beta))) if low > beta else high


def _largest(S: Float[Tensor, "m m"]) -> float:
    """Return the largest eigenvalue, nearly, from below."""
    start = torch.ones(len(S), dtype=S.dtype).numpy()
    product = LinearOperator(S.shape, matvec=lambda x: (S @ torch.from_numpy(np.ravel(x))).numpy(), dtype=start.dtype)
    try:
        found = eigsh(product, k=1, which="LA", tol=SLACK / 4, v0=start, maxiter=300, return_eigenvectors=False)
    except ArpackNoConvergence:
        return math.nan
    return float(found[0])
