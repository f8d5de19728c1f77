"""Starts of a search: the caller's inputs or random ones, and those that theory builds from the weights."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.domains.domain import Ball, Domain, Sphere, WithMasses
from howsmooth.domains.norm_image import LayerNormImage
from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.norms import Norm
from howsmooth.search.measure_search import MeasureMap
from howsmooth.spectral.operators import HALF
from howsmooth.theory.inputs import candidates, tied_pair_on_image, tied_pair_on_sphere
from howsmooth.theory.results import Witness
from howsmooth.transport.measures import DiscreteMeasure
from howsmooth.validation import require_finite, require_floating

# How many inputs of each pattern a search starts from, where theory builds none.
PATTERNS = 2

Starts = int | Float[Tensor, "s n d"] | Sequence[Tensor | Witness | DiscreteMeasure]
# Ranges of the angle of a tied pair, and of the norm of the other tokens as a share of the radius.
ANGLES, SHARES = (0.3, 1.2), (0.1, 1.0)
CLUSTERS = 3


def check_starts(starts: Starts, n: int) -> int | list[Float[Tensor, "n d"]]:
    """Return the number of random inputs, or the caller's own ones."""
    if isinstance(starts, int):
        if isinstance(starts, bool) or starts < 1:
            raise AssumptionError(f"starts must be at least 1, or inputs of your own, got {starts}.", field="starts")
        return starts
    if isinstance(starts, Tensor) and starts.ndim != 3:
        raise ShapeError(
            f"a tensor of starts must have the shape (starts, {n}, d), got {tuple(starts.shape)}.", field="starts"
        )
    if not isinstance(starts, Tensor | Sequence) or isinstance(starts, str):
        raise DtypeError(
            f"starts must be a number, a tensor or a list of inputs, got {type(starts).__name__}.", field="starts"
        )
    inputs: list[Any] = [start.tokens if isinstance(start, Witness) else start for start in starts]
    if not inputs:
        raise AssumptionError("starts is empty; give inputs of your own, or a number of random ones.", field="starts")
    for x in inputs:
        require_floating(x, "a start")
        if x.ndim != 2 or x.shape[0] != n or x.shape != inputs[0].shape:
            raise ShapeError(f"every start must have the same shape ({n}, d), got {tuple(x.shape)}.", field="starts")
        require_finite(x, "a start")
    return inputs


def empty_token(f: Any, domain: Domain, starts: int | list[Tensor], d: int | None) -> Float[Tensor, " d"]:
    """Return an empty token with the dimension, dtype and device that the map takes; half precision becomes float32."""
    weights, inputs = _token_weights(f), [] if isinstance(starts, int) else starts
    known = {
        "f": None if weights is None else weights.shape[-1],
        "the domain": domain.shape[1],
        "starts": inputs[0].shape[-1] if inputs else None,
        "d": d,
    }
    widths = {name: width for name, width in known.items() if width is not None}
    if not widths:
        raise ShapeError(
            "the dimension of a token cannot be told from this map and this domain; give it as d=….", field="d"
        )
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{name}: {width}" for name, width in widths.items())
        raise ShapeError(f"all must agree on the dimension of a token, got {found}.")
    model = next((x for x in (weights, _parameter(f), *inputs) if x is not None), torch.empty(0))
    dtype = torch.float32 if model.dtype in HALF else model.dtype
    return torch.empty(next(iter(widths.values())), dtype=dtype, device=model.device)


def gather_starts(
    f: Any,
    n: int,
    domain: Domain,
    starts: int | list[Tensor],
    like: Float[Tensor, " d"],
    generator: torch.Generator,
) -> Float[Tensor, "s n d"]:
    """Return every input to start from, brought into the domain."""
    given = domain.draw(starts, n, like, generator) if isinstance(starts, int) else _stacked(starts, like)
    built = _built_by_theory(f, n, domain)
    if not built and isinstance(f, MultiHead):  # theory builds none: the patterns of worst inputs
        built = list(start_patterns(domain, n, like, PATTERNS, generator))
    return domain.nearest(torch.cat((given, _stacked(built, like))) if built else given)


def _stacked(inputs: list[Tensor], like: Tensor) -> Float[Tensor, "s n d"]:
    return torch.stack([x.detach().to(like) for x in inputs])


def _built_by_theory(f: Any, n: int, domain: Domain) -> list[Float[Tensor, "n d"]]:
    """Return the inputs that theory builds from the weights of attention, where it can."""
    if isinstance(f, MeasureMap) and isinstance(domain, WithMasses):
        return f.explicit_measures(n, domain.places)
    if not isinstance(f, Attention):
        return []
    try:
        if isinstance(domain, Ball) and domain.centre is None:
            return [witness.tokens for witness in candidates(f, n, domain.radius)]
        if isinstance(domain, Sphere):
            return [tied_pair_on_sphere(f, n, domain.radius).tokens]
        if isinstance(domain, LayerNormImage):
            return [tied_pair_on_image(f, n, domain.norm).tokens]
    except AssumptionError:
        return []  # no theorem for this map: the other starts remain
    return []


def _token_weights(f: Any) -> Tensor | None:
    """Return a tensor with a column for each coordinate of the tokens that the map takes."""
    if isinstance(f, MultiHead):
        return f.query
    if isinstance(f, MeasureMap):
        return torch.nn.functional.pad(f.attention.query, (0, 1))  # one coordinate more: the mass
    if isinstance(f, Norm):
        return f.gain
    return _token_weights(f.children[0]) if isinstance(f, Chain | Residual) else None


def _parameter(f: Any) -> Tensor | None:
    return next(f.parameters(), None) if isinstance(f, nn.Module) else None


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
