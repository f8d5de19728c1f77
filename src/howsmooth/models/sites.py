"""One attention layer of a transformer: its exact map, its norms, and where its input is found."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models import blocks, views
from howsmooth.models.anatomy import NO_RESIDUAL, NOT_IN_FRONT, Anatomy
from howsmooth.models.calls import Call
from howsmooth.models.feed_forward import FeedForward
from howsmooth.models.names import check_map_name, head_number
from howsmooth.models.part_calls import HeadCall, PartCall
from howsmooth.models.tracing import Place

Measurable = Map | Callable[[Tensor], Any]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Site:
    """One attention layer.

    Attributes:
        layer: Its number, from 0.
        attention: Its exact map: heads and output projection, with masks, biases and positions. None for a family that
            is not known: then the module itself is differentiated.
        reads: The module whose hidden states are what attention reads.
        writes: The module that puts out what attention puts out.
        block: The module of the whole block.
        residual_inside: Whether the module that reads adds the residual itself, as in ALBERT and BLOOM.
        before: The norm in front of attention.
        after: The norm behind attention, before the residual is added.
        outer: The norm behind the residual sum.
        share: What the output of attention is multiplied by before the residual is added.
        adds_normed: Whether the residual is what the norm in front puts out, not what it reads.
        feed_forward: What the block has beside attention; none where that has no closed form here.
        anatomy: Where its parts are, for a family that is not known; none until it was seen to run.
    """

    layer: int
    attention: Attention | None
    reads: str
    writes: str
    block: str
    residual_inside: bool = False
    before: Norm | None = None
    after: Norm | None = None
    outer: Norm | None = None
    share: float = 1.0
    adds_normed: bool = False
    feed_forward: FeedForward | None = None
    anatomy: Anatomy | None = None

    def __repr__(self) -> str:
        """Say which layer it is, and what its attention is."""
        return views.site_line(self)

    def _repr_html_(self) -> str:
        return views.site_html(self)

    @property
    def puts_out(self) -> str:
        """The outermost module that puts out what attention puts out, since a hook may stand behind the projection."""
        inside = self.writes.startswith(f"{self.reads}.") and not self.residual_inside
        return self.reads if inside else self.writes

    @property
    def exact(self) -> Attention:
        """The map in closed form.

        Raises:
            AssumptionError: If the family is not known.
        """
        if self.attention is None:
            raise AssumptionError(
                "this model's family has no closed form here: use transformer.activations(tokens).at(…), where its "
                "modules are differentiated as they are called.",
                field="map",
            )
        return self.attention

    @property
    def head_count(self) -> int:
        """How many heads there are to measure one by one.

        Raises:
            AssumptionError: If they cannot be told apart.
        """
        if self.attention is not None:
            return self.attention.layout.heads
        if self.anatomy is None:
            return self.exact.layout.heads  # which refuses
        self.anatomy.places("head:0")
        return int(self.anatomy.head_count)

    def map(self, name: str = "attention", *, padding: Bool[Tensor, "*batch n"] | None = None) -> Map:
        """Return the map of a part of the layer.

        ``attention``, ``heads`` and ``head:3`` read what attention reads, ``mlp`` reads what the feed-forward part
        reads; ``normed``, ``residual`` and ``block`` read what the block reads.

        Args:
            name: Which part.
            padding: True for real tokens, where some are padding: then it is the map among those.
        """
        check_map_name(name)
        found = self._part(name, self.padded(padding))
        return found if padding is None or bool(padding.all()) else RealTokens(map=found, real=padding)

    def _part(self, name: str, attention: Attention) -> Map:
        if name == "attention":
            return attention
        if name == "heads":
            return dataclasses.replace(attention, output=None, output_bias=None)
        if name.startswith("head:"):
            return self._head(attention, head_number(name))
        if name == "normed":
            return self._normed(attention)
        if name == "residual":
            return self.stream(attention)
        if name == "mlp":
            return blocks.feed_forward(self).map
        if name == "block":
            return blocks.block(self, attention)
        raise AssumptionError(
            f"the map {name!r} is not of one layer; use transformer.activations(tokens).at(…).", field="map"
        )

    def feeding(self, X: Float[Tensor, "*batch n d"], padding: Bool[Tensor, "*batch n"] | None = None) -> Tensor:
        """Return what the feed-forward part reads where the block reads ``X``."""
        return blocks.entering(self, self.padded(padding))(X)

    def check(self, name: str) -> None:
        """Refuse a part that this layer does not have."""
        check_map_name(name)
        if name == "mlp":
            blocks.feed_forward(self)
        elif self.attention is None:
            if self.anatomy is not None:
                self.anatomy.places(name)
        elif name != "block":
            self.map(name)

    def called(self, name: str, attention: Call, block: Call) -> Callable[[Tensor], Tensor]:
        """Return a part of the layer as the model called it: the whole block, or a part of a family that is not known.

        Raises:
            AssumptionError: If the part is not known.
        """
        self.check(name)
        if name == "block":
            return block
        if self.anatomy is None:
            raise AssumptionError(f"{self.reads!r} was not seen to run, so that its parts are not known.", field="map")
        return _heard(self, self.anatomy, name, attention, block)

    def padded(self, padding: Bool[Tensor, "*batch n"] | None) -> Attention:
        """Return the exact map where some tokens are padding: those are not seen, and have no position of their own."""
        if padding is None:
            return self.exact
        positions = self.exact.positions
        if positions.position_bias is not None:
            positions = dataclasses.replace(positions, position_bias=_counted(positions.position_bias, padding))
        if positions.window is None and bool(padding[..., 0].all()):
            return dataclasses.replace(self.exact, positions=dataclasses.replace(positions, padding=padding))
        # a padded token could be left with nothing to see; let it see itself, as nobody reads what comes out there
        itself = torch.eye(padding.shape[-1], dtype=torch.bool, device=padding.device)
        mask = padding[..., None, None, :] | itself
        return dataclasses.replace(self.exact, positions=dataclasses.replace(positions, mask=mask))

    def _head(self, attention: Attention, h: int) -> Attention:
        heads = attention.layout.heads
        if not 0 <= h < heads:
            raise AssumptionError(f"layer {self.layer} has the heads 0 to {heads - 1}, got head:{h}.", field="map")
        return attention.head(h)

    def shared(self, attention: Attention) -> Attention:
        """Return attention with its output multiplied as it is added to the residual."""
        return _multiplied(attention, self.share)

    def stream(self, attention: Attention) -> Chain | Residual:
        """Return the residual sum around attention, normed if the norm comes behind."""
        attention = self.shared(attention)
        if self.adds_normed:
            parts = (self.before, Residual(attention), self.outer)
        else:
            parts = (None, Residual(blocks.chain(self.before, attention, self.after)), self.outer)
        whole = blocks.chain(*parts)
        return whole if len(whole.maps) > 1 else parts[1]

    def _normed(self, attention: Attention) -> Chain:
        if self.before is not None:
            return Chain(self.before, attention)
        if self.after is None and self.outer is None:  # ModernBERT's first layer reads what the embeddings have normed
            return Chain(attention)
        raise AssumptionError(NOT_IN_FRONT, field="map")


def by_autograd(site: Site) -> Site:
    """Return a layer without its closed form, so that its modules are differentiated as they are called."""
    attention = (Place(path=site.puts_out, side="writes"),)
    anatomy = Anatomy(
        attention=attention,
        heads=(Place(path=site.writes, side="reads"),),
        normed=attention if site.before is not None else NOT_IN_FRONT,
        residual=NO_RESIDUAL,
        projection=site.writes,
        head_count=site.exact.layout.heads,
    )
    return Site(
        layer=site.layer, attention=None, reads=site.reads, writes=site.writes, block=site.block, anatomy=anatomy
    )


def seeing_both_sides(site: Site) -> Site:
    """Return a decoder's layer as it is when the configuration says that it is not causal."""
    if site.attention is None or not site.attention.positions.causal:
        return site
    window = site.attention.positions.window
    # a window of w tokens has its own token among them; one on both sides reaches w tokens further
    positions = dataclasses.replace(
        site.attention.positions, causal=False, window=None if window is None else window + 1
    )
    return dataclasses.replace(site, attention=dataclasses.replace(site.attention, positions=positions))


def _heard(site: Site, anatomy: Anatomy, name: str, attention: Call, block: Call) -> PartCall | HeadCall:
    """Return the map from what attention or the block reads to what is heard at the places of a part."""
    places = anatomy.places(name)
    if reads_the_block(name):
        return PartCall(call=block, root=site.block, places=places)
    inside = all(f"{place.path}.".startswith(f"{site.reads}.") for place in places)
    if inside:
        found = PartCall(call=attention, root=site.reads, places=places)
    else:  # the projection stands outside: the block runs, and only what attention reads is swapped
        found = PartCall(call=block, root=site.block, places=places, enters=site.reads)
    if not name.startswith("head:"):
        return found
    projection = found.module(anatomy.projection)
    return HeadCall.of(found, projection, head_number(name), int(anatomy.head_count), attention.tokens)


def _counted(bias: Float[Tensor, "heads reach"], padding: Bool[Tensor, "*batch n"]) -> Float[Tensor, "*batch heads n"]:
    """Return the bias of every token's position among the real ones; ALiBi does not count the others."""
    return bias[:, (padding.cumsum(-1) - 1).clamp(min=0)].movedim(0, -2)


def _multiplied(attention: Attention, factor: float) -> Attention:
    """Return attention whose output is multiplied: the values carry the factor, whether heads are mixed or not."""
    if factor == 1.0:
        return attention
    biases = {"value_bias": attention.value_bias, "output_bias": attention.output_bias}
    changed: dict[str, Any] = {name: factor * bias for name, bias in biases.items() if bias is not None}
    return dataclasses.replace(attention, value=factor * attention.value, **changed)


def reads_the_block(name: str) -> bool:
    """Tell whether a map reads what the block reads, rather than what attention reads."""
    return name in ("normed", "residual", "mlp", "block")
