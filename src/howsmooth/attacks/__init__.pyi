"""Attacks of given size, and what they reach."""

from howsmooth.attacks.perturbations import Attack as Attack
from howsmooth.attacks.perturbations import attack as attack

__all__: list[str]
