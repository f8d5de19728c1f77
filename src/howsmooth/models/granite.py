"""Granite: Llama with a scale of its own for the scores, and one for what is added to the residual."""

import dataclasses
from typing import Any

from howsmooth.models import llama
from howsmooth.models.ends import Ends
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_shared(site, model.config.residual_multiplier) for site in llama.sites(model)]


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return llama.ends(model)


def _shared(site: Site, share: float) -> Site:
    own = None if site.feed_forward is None else dataclasses.replace(site.feed_forward, share=share)
    return dataclasses.replace(site, share=share, feed_forward=own)
