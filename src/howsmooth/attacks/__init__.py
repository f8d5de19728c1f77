"""What an adversary gets: perturbations of given size that move the output most, beside what the constant predicts."""

from howsmooth.lazy_names import names_of_stub

__all__, __getattr__, __dir__ = names_of_stub(__name__, __file__)
