"""Columns in single precision, whose sizes are widened by what that may have taken from them."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.pushing import Link, Seen, directions, walk
from howsmooth.certificates.sizes import ROUND, Ball

# What single precision may take from a size: a share of itself, and so many times what random sums of its columns are
# wrong by. That all of these are so much less wrong than the columns has a probability of 4e-9.
WIDE, TIMES, PROBES = 1e-3, 100.0, 4
# Squares of smaller numbers than this vanish in single precision, or nearly.
TINY = 1e-17


def spread_roughly(links: list[Link], place: int, *, exact: list[Link]) -> Seen:
    r"""Push the directions of a remainder in single precision, and widen sizes by what that may have taken from them.

    Gaussian sums of the columns are pushed in double precision beside them, along the exact derivatives. If M is what a
    stage sees and :math:`\Delta` what rounding did to the columns, then such a sum is wrong by :math:`M\Delta g`, and
    :math:`P(|M\Delta g| < t\|M\Delta\|) \le P(|g_1| < t)`, while the size is wrong by no more than
    :math:`\|M\Delta\|`.
    """
    found, sums = Seen(), list[Tensor]()
    generator = torch.Generator().manual_seed(place)
    for bundle, columns in zip(directions(links, place), directions(exact, place), strict=True):
        weights = _weights(bundle.shape[1], generator)
        rough = walk(links, place, bundle, found.output)
        right = walk(exact, place, _summed(weights, columns), sums, Ball(1.0))
        for (later, entering, sizes), (_later, expected, _sizes) in zip(rough, right, strict=True):
            sizes = outward(sizes, _wrong(links[later], exact[later], _summed(weights, entering), expected))
            found.add(later, sizes)
        found.wrong.append(_summed(weights, found.output[-1]) - sums[-1])
    return found


def _wrong(rough: Link, exact: Link, found: Float[Tensor, "groups k n d"], expected: Tensor) -> Tensor:
    """Return by how much sums of columns differ from what is expected, as a stage sees them, and as it sees wrongly."""
    assert rough.stage is not None
    assert exact.stage is not None
    each, right = (x.flatten(0, 1)[:, None] for x in (found, expected))
    blurred = rough.stage.seen(each.float(), ROUND).double() - exact.stage.seen(each, ROUND)
    return (exact.stage.seen(each - right, ROUND) + blurred.abs()).unflatten(0, found.shape[:2])


def _weights(r: int, generator: torch.Generator) -> Float[Tensor, "k r"]:
    """Return what sums are made with; a few columns are looked at one by one."""
    if r <= PROBES:
        return torch.eye(r, dtype=torch.float64)
    return torch.randn(PROBES, r, generator=generator, dtype=torch.float64)


def _summed(weights: Float[Tensor, "k r"], columns: Float[Tensor, "groups r n d"]) -> Float[Tensor, "groups k n d"]:
    """Return sums of columns, in double precision."""
    return (weights.to(columns.dtype) @ columns.flatten(2)).double().unflatten(2, columns.shape[2:])


def outward(sizes: Float[Tensor, "groups sizes"], wrong: Float[Tensor, "groups probes sizes"]) -> Tensor:
    """Widen sizes in single precision by a share of themselves, and by errors that sums of their columns have."""
    return (1 + WIDE) * sizes.double() + TIMES * wrong.amax(1) + TINY
