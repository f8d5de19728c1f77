"""Patterns of worst inputs, from which a search starts where the weights of a map are not used."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Domain

# Ranges of the angle of a tied pair, and of the norm of the other tokens as a share of the radius.
ANGLES, SHARES = (0.3, 1.2), (0.1, 1.0)
CLUSTERS = 3


def start_patterns(
    domain: Domain, n: int, like: Float[Tensor, " d"], count: int, generator: torch.Generator
) -> Float[Tensor, "s n d"]:
    r"""Return inputs to start a search from: ``count`` of each pattern, in random directions.

    - random tokens, from a small part of the domain to the whole;
    - two points: one token far from all others, which are opposite, at half the way or at the origin;
    - a tied pair :math:`R(\cos\theta\,w\pm\sin\theta\,z)`, the others together at :math:`re`;
    - a token at the origin with the others at both ends of a diameter;
    - clusters: a few places, random numbers of tokens at each;
    - equal tokens.
    """
    R = domain.scale
    drawn = domain.draw(count, n, like, generator)
    patterns = [drawn]
    for _each in range(count):
        e, w, z = _frame(like, generator)
        patterns.append(_at((R * e, n - 1), (-R * e, 1), (0 * e, 0)))
        patterns.append(_at((R / 2 * e, n - 1), (R * e, 1)))
        theta, share = (_between(*ends, generator) for ends in (ANGLES, SHARES))
        middle, offset = R * torch.cos(theta) * w, R * torch.sin(theta) * z
        patterns.append(_at((share * R * e, n - 2), (middle + offset, 1), (middle - offset, 1)))
        half = (n - 1) // 2
        patterns.append(_at((R * e, n - 1 - half), (-R * e, half), (0 * e, 1)))
        places = domain.draw(1, CLUSTERS, like, generator)[0] if domain.shape[0] is None else drawn[0][:CLUSTERS]
        which = torch.randint(len(places), (n,), generator=generator, device=generator.device)
        patterns.append(places[which.to(places.device)])
        patterns.append(_at((_between(0.0, 1.0, generator).to(e) * R * e, n)))
    stacked = [x if x.ndim == 3 else x.unsqueeze(0) for x in patterns]
    return domain.nearest(torch.cat(stacked).to(like))


def _frame(like: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw three unit vectors, the last two at right angles; on a line they are one."""
    drawn = torch.randn(3, like.numel(), dtype=like.dtype, generator=generator, device=generator.device).to(like.device)
    e, w = torch.nn.functional.normalize(drawn[:2], dim=-1)
    z = drawn[2] - (drawn[2] @ w) * w if like.numel() > 1 else drawn[2]
    return e, w, torch.nn.functional.normalize(z, dim=-1)


def _at(*places: tuple[Tensor, int]) -> Float[Tensor, "n d"]:
    """Put a number of tokens at each place; negative numbers count as zero."""
    n = max(1, sum(many for _place, many in places))
    rows = torch.cat([place.expand(max(many, 0), -1) for place, many in places])
    return rows[:n]


def _between(low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand((), dtype=torch.float64, generator=generator, device=generator.device)
