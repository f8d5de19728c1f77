"""Attacks of given size, and what they reach."""

from howsmooth.attacks.perturbations import attack as attack
from howsmooth.attacks.result import Attack as Attack

__all__: list[str]
