"""Monitors for training loops of libraries: ``hs.training.callbacks.HuggingFace`` and ``.Lightning``."""

from howsmooth.training.callbacks.hugging_face import HuggingFace
from howsmooth.training.callbacks.lightning import Lightning

__all__ = ["HuggingFace", "Lightning"]
