"""Error budgets: what an error inside a model (rounded weights, a rounded cache) does to its output."""

from howsmooth.lazy_names import names_of_stub

__all__, __getattr__, __dir__ = names_of_stub(__name__, __file__)
