"""Families that are not known: their attention modules are found by name and differentiated as they are."""

from typing import Any

from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Find the innermost modules that call themselves attention; cross-attention is left out."""
    named = {
        path: module
        for path, module in model.named_modules()
        if "attention" in type(module).__name__.lower() and "cross" not in f"{path} {type(module).__name__}".lower()
    }
    innermost = [path for path in named if not any(other.startswith(f"{path}.") for other in named)]
    return [
        Site(layer=i, attention=None, reads=path, writes=path, block=_block(path, innermost))
        for i, path in enumerate(innermost)
    ]


def _block(path: str, others: list[str]) -> str:
    """Return the largest module around attention, and around no other, that stands in a list of layers."""
    parts = path.split(".")
    numbered = [".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.isdigit()]
    alone = (block for block in numbered if sum(f"{other}.".startswith(f"{block}.") for other in others) == 1)
    return next(alone, path)
