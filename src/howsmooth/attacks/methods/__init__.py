"""How an adversary looks for a perturbation: one file for each method, each with ``search(objective, generator)``."""

import importlib
from collections.abc import Callable

import torch

from howsmooth.attacks.objective import Objective

Search = Callable[[Objective, torch.Generator], None]


def search_by(method: str) -> Search:
    """Return the search of a method."""
    return importlib.import_module(f"{__name__}.{method}").search
