r"""Ranges of linear and quadratic functions on a box.

A box of inputs is :math:`x = x_0 + e\circ\xi` with :math:`\xi\in[-1,1]^m`. The network sees it through the coordinates
:math:`y = U\xi` of the first tokens, far fewer than there are pixels; the nonlinearities that are relaxed add symbols
:math:`\eta\in[-1,1]` of their own behind these.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.affine import Affine
from howsmooth.rounding import RANGE_SHARE

# Products of pairs of generators are kept for all forms where they are at most so many numbers.
PAIRS = 2**25


@dataclass(frozen=True, eq=False)
class BoxSymbols:
    r"""The symbols :math:`\xi` behind coordinates :math:`y = U\xi`, in blocks that share no symbol.

    Attributes:
        generators: U, one matrix for each block; blocks are padded with zeros to one size.
    """

    generators: Float[Tensor, "blocks c s"]

    @classmethod
    def of(cls, embedding: Affine, widths: Float[Tensor, " m"]) -> tuple["BoxSymbols", Float[Tensor, "n d r"]]:
        """Return the symbols of a box with these half-widths, and the derivative of the first tokens in y.

        Tokens that read common inputs share a block; patches that do not overlap have one each.
        """
        matrix = embedding.weight.flatten(2) * widths  # n, d, m
        n, d, _inputs = matrix.shape
        groups = _groups((matrix != 0).any(1))
        if not groups:  # one point: a symbol that moves nothing
            return cls(matrix.new_ones(1, 1, 1)), matrix.new_zeros(n, d, 1)
        sizes = [(len(tokens) * d, int(reads.sum())) for tokens, reads in groups]
        rows, columns = (max(size[axis] for size in sizes) for axis in (0, 1))
        generators = matrix.new_zeros(len(groups), rows, columns)
        derivative = matrix.new_zeros(n, d, len(groups), rows)
        for place, ((tokens, reads), (height, width)) in enumerate(zip(groups, sizes, strict=True)):
            generators[place, :height, :width] = matrix[tokens][..., reads].flatten(0, 1)
            for k, token in enumerate(tokens):
                derivative[token, :, place, k * d : (k + 1) * d] = torch.eye(d, dtype=matrix.dtype)
        return cls(generators), derivative.flatten(2)

    @property
    def coordinates(self) -> int:
        """How many coordinates y has."""
        return self.generators.shape[0] * self.generators.shape[1]

    @functools.cached_property
    def _gram(self) -> Float[Tensor, "blocks c c"]:
        return self.generators @ self.generators.mT

    @functools.cached_property
    def _pairs(self) -> Float[Tensor, "blocks p s"] | None:
        """The products of all pairs of rows of U, symbol by symbol, unless they are too many."""
        U = self.generators
        rows, columns = torch.triu_indices(U.shape[1], U.shape[1])
        return U[:, rows] * U[:, columns] if U.shape[0] * len(rows) * U.shape[2] <= PAIRS else None

    def _diagonal(self, D: Float[Tensor, "forms blocks c c"]) -> Float[Tensor, "forms blocks s"]:
        r"""Return the diagonals of :math:`U^\top DU`, of symmetric D."""
        if self._pairs is None:
            return (self.generators * (D @ self.generators)).sum(2)
        rows, columns = torch.triu_indices(*D.shape[2:])
        both = torch.where(rows == columns, 1.0, 2.0)  # entries off the diagonal stand for two
        return torch.einsum("fbp,bps->fbs", both * D[..., rows, columns], self._pairs)

    def _weighted_gram(self, w: Float[Tensor, "forms blocks s"]) -> Float[Tensor, "forms blocks c c"]:
        r"""Return :math:`U\,\mathrm{diag}(w)U^\top`."""
        U = self.generators
        if self._pairs is None:
            return (U * w.unsqueeze(2)) @ U.mT
        rows, columns = torch.triu_indices(U.shape[1], U.shape[1])
        S = U.new_empty(*w.shape[:2], U.shape[1], U.shape[1])
        S[..., rows, columns] = S[..., columns, rows] = torch.einsum("fbs,bps->fbp", w, self._pairs)
        return S

    def pixels(self, f: Float[Tensor, "*batch r"]) -> Float[Tensor, "*batch symbols"]:
        r"""Return the coefficients :math:`U^\top f` of linear functions of y on the symbols of the box."""
        blocks = f[..., : self.coordinates].unflatten(-1, self.generators.shape[:2])
        return torch.einsum("...bc,bcs->...bs", blocks, self.generators).flatten(-2)

    def coefficients(self, f: Float[Tensor, "*batch r"]) -> Float[Tensor, "*batch symbols"]:
        """Return the coefficients of linear functions on the symbols of the box and on those of stages."""
        return torch.cat([self.pixels(f), f[..., self.coordinates :]], -1)

    def linear_range(self, f: Float[Tensor, "*batch r"]) -> Float[Tensor, "*batch"]:
        r"""Return :math:`\max_\xi\langle f,(y,\eta)\rangle = |U^\top f_y|_1+|f_\eta|_1`."""
        flat = f.reshape(-1, f.shape[-1])
        found = [self.coefficients(part).abs().sum(-1) for part in flat.split(512)]
        return torch.cat(found).reshape(f.shape[:-1]) * (1 + RANGE_SHARE)

    def quadratic_range(self, H: Float[Tensor, "forms r r"]) -> tuple[Float[Tensor, " forms"], Float[Tensor, " forms"]]:
        r"""Bound quadratic forms: return a, b with :math:`-a\le(y,\eta)^\top H(y,\eta)\le b` on the box.

        For weights :math:`w>0` of the symbols, :math:`S = U\,\mathrm{diag}(w)^{-1}U^\top = CC^\top` has
        :math:`y^\top S^{-1}y\le\sum_aw_a\xi_a^2\le\sum_aw_a`, so that the form lies between the extreme eigenvalues of
        :math:`C^\top HC`, times :math:`\sum_aw_a`. This is the dual of the semidefinite relaxation over signs at one
        point; at a form of rank one the weights taken here, the row norms of :math:`U^\top HU`, attain the maximum.
        Where forms have many directions, it is smaller than :math:`\sum_{ab}|U^\top HU|_{ab}` by their square root.
        """
        sizes = H.abs().amax((1, 2))
        unit = torch.nan_to_num(H / sizes.clamp_min(1e-300)[:, None, None], nan=0.0, posinf=0.0, neginf=0.0)
        ranges = (torch.nan_to_num(sizes * x, nan=torch.inf, posinf=torch.inf) for x in self._unit_range(unit))
        below, above = ranges  # of what is not finite they are infinite
        return below, above

    def _unit_range(self, H: Float[Tensor, "forms r r"]) -> tuple[Float[Tensor, " forms"], Float[Tensor, " forms"]]:
        """Bound quadratic forms with entries of order one."""
        U, base = self.generators, self.coordinates
        blocks, rows, _symbols = U.shape
        free = H.shape[-1] - base
        # the diagonal blocks of H G H, with G the Gram matrix of all symbols
        H_blocks = H[:, :, :base].unflatten(2, (blocks, rows)).movedim(2, 1)
        GH = torch.cat([(self._gram @ H[:, :base].unflatten(1, (blocks, rows))).flatten(1, 2), H[:, base:]], 1)
        w = _weights(self._diagonal(H_blocks.mT @ GH[:, :, :base].unflatten(2, (blocks, rows)).movedim(2, 1)))
        S = self._weighted_gram(1 / w)
        size = S.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-300)
        # A larger S is a larger set of y; this much keeps the factorisation from failing.
        C = torch.linalg.cholesky(S + 1e-12 * size[..., None, None] * torch.eye(rows, dtype=U.dtype))
        total = w.sum((1, 2))
        X = _both_sides(C, H[:, :base, :base])
        if free:
            v = _weights((H[:, :, base:] * GH[:, :, base:]).sum(1))
            total = total + v.sum(1)
            root = v.rsqrt()
            cross = (C.mT @ H[:, :base, base:].unflatten(1, (blocks, rows))).flatten(1, 2) * root[:, None]
            corner = H[:, base:, base:] * root[:, None] * root[..., None]
            X = torch.cat([torch.cat([X, cross], 2), torch.cat([cross.mT, corner], 2)], 1)
        values = torch.linalg.eigvalsh(X)
        lost = RANGE_SHARE * torch.linalg.matrix_norm(X)
        return (lost - values[:, 0]).clamp_min(0) * total, (values[:, -1] + lost).clamp_min(0) * total


def _weights(squares: Tensor) -> Tensor:
    """Return row norms, none of them zero."""
    norms = squares.clamp_min(0).sqrt()
    return norms + 1e-3 * norms.flatten(1).amax(1)[(..., *(None,) * (norms.ndim - 1))] + 1e-150


def _both_sides(C: Tensor, H: Tensor) -> Tensor:
    r"""Return :math:`C^\top HC` for a C in blocks."""
    blocks, rows = C.shape[1:3]
    left = (C.mT @ H.unflatten(1, (blocks, rows))).flatten(1, 2)
    return (C.mT @ left.mT.unflatten(1, (blocks, rows))).flatten(1, 2)


def _groups(reads: Tensor) -> list[tuple[list[int], Tensor]]:
    """Return groups of tokens that read no common input, each with the inputs that it reads."""
    groups: list[tuple[list[int], Tensor]] = []
    for token, mask in enumerate(reads):
        if not mask.any():
            continue
        together = [group for group in groups if (group[1] & mask).any()]
        tokens = sorted([token, *(t for group in together for t in group[0])])
        for group in together:
            groups.remove(group)
            mask = mask | group[1]
        groups.append((tokens, mask))
    return groups
