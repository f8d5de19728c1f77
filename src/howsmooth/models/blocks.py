"""A block in closed form: attention and the feed-forward part, one after the other or side by side."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual, Sum
from howsmooth.maps.protocols import Map
from howsmooth.models.feed_forward import FeedForward

if TYPE_CHECKING:  # a site asks for its block
    from howsmooth.models.sites import Site


def block(site: "Site", attention: Attention) -> Chain:
    """Return the whole block of a layer.

    Args:
        site: The layer.
        attention: Its attention, as padding makes it.

    Raises:
        AssumptionError: If its feed-forward part is not known.
    """
    own = feed_forward(site)
    if own.parallel:
        return Chain(_side_by_side(site, own, attention))
    return Chain(*_parts(site.stream(attention)), *_second_half(own).maps)


def entering(site: "Site", attention: Attention) -> Callable[[Tensor], Tensor]:
    """Return the map from what the block reads to what its feed-forward part reads; the arguments are the same."""
    own = feed_forward(site)
    maps = (*(() if own.parallel else _parts(site.stream(attention))), *(() if own.before is None else (own.before,)))
    return Chain(*maps) if maps else lambda X: X


def feed_forward(site: "Site") -> FeedForward:
    """Return the feed-forward part of a layer.

    Raises:
        AssumptionError: If it is not known.
    """
    if site.feed_forward is None:
        raise AssumptionError(
            "the feed-forward part of this model's family has no closed form here; use map='block', which is measured "
            "as the model calls it.",
            field="map",
        )
    return site.feed_forward


def chain(*parts: Map | None) -> Chain:
    """Chain the parts that there are."""
    return Chain(*(part for part in parts if part is not None))


def _side_by_side(site: "Site", own: FeedForward, attention: Attention) -> Residual:
    attention = site.shared(attention)
    if own.before is site.before and own.before is not None:  # they read one norm, so it is applied once
        return Residual(Chain(own.before, Sum(chain(attention, site.after), chain(own.shared, own.after))))
    return Residual(Sum(chain(site.before, attention, site.after), chain(own.before, own.shared, own.after)))


def _second_half(own: FeedForward) -> Chain:
    if own.adds_normed:
        return chain(own.before, Residual(chain(own.shared, own.after)), own.outer)
    return chain(Residual(chain(own.before, own.shared, own.after)), own.outer)


def _parts(f: Map) -> tuple[Map, ...]:
    return f.maps if isinstance(f, Chain) else (f,)
