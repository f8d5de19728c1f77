"""Properties of networks on boxes: proofs and counterexamples."""

from howsmooth.lazy_names import names_of_stub

__all__, __getattr__, __dir__ = names_of_stub(__name__, __file__)
