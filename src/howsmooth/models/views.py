"""Models, their layers and what enters them, as one line and as tables for notebooks."""

from typing import TYPE_CHECKING

from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.markup import paragraph, table
from howsmooth.models.names import MAPS

if TYPE_CHECKING:
    from howsmooth.models.activations import Activations
    from howsmooth.models.sites import Site
    from howsmooth.models.transformer import Transformer

HEAD = ("layer", "attention", "maps", "block")


def measurable_parts(site: "Site") -> tuple[str, ...]:
    """Return the names of the maps that a layer has; any head stands for all."""
    found = []
    for name in MAPS:
        try:
            site.check("head:0" if name.startswith("head:") else name)
        except AssumptionError:
            continue
        found.append("head:0" if name.startswith("head:") else name)
    return tuple(found)


def site_line(site: "Site") -> str:
    """Say what a layer is."""
    how = f"by autograd: {', '.join(measurable_parts(site))}" if site.attention is None else str(site.attention)
    return f"Site(layer {site.layer}, {how})"


def activations_line(found: "Activations") -> str:
    """Say what was run."""
    count, n, d = found.blocks[0].shape
    real = "" if found.padding is None else f", {int(found.padding.sum())} of {count * n} tokens real"
    return f"Activations({count} × {n} tokens, d = {d}, {len(found.sites)} layers{real})"


def transformer_html(model: "Transformer") -> str:
    """Return the layers of a model and what to know about it."""
    notes = "".join(paragraph(f"Note: {note}.") for note in model.notes)
    return table(HEAD, map(_row, model.sites), caption=model.name) + notes


def site_html(site: "Site") -> str:
    """Return one layer."""
    return table(HEAD, [_row(site)])


def activations_html(found: "Activations") -> str:
    """Return what enters each layer: how large tokens are on average."""
    head = ("layer", "attention reads, |x|", "the block reads, |x|")
    rows = [
        (site.layer, *(f"{_radius(found, X[site.layer]):.3g}" for X in (found.attention, found.blocks)))
        for site in found.sites
    ]
    return table(head, rows, caption=activations_line(found))


def _row(site: "Site") -> tuple[object, ...]:
    what = "by autograd" if site.attention is None else str(site.attention)
    return site.layer, what, ", ".join(measurable_parts(site)), site.block


def _radius(found: "Activations", X: Tensor) -> float:
    """Return the root mean square of the norms of real tokens."""
    norms = X.double().norm(dim=-1)
    real = norms if found.padding is None else norms[found.padding]
    return float(real.square().mean().sqrt())
