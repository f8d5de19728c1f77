"""Another checkpoint of the same model: fine-tuned, or quantised by somebody else."""

import functools

from torch import Tensor

from howsmooth.budgets.schemes.scheme import UNROUNDED_BITS, Scheme, SchemeWords
from howsmooth.errors import AssumptionError, ShapeError

NAMES = ["against:MODEL"]


def read(words: SchemeWords) -> Scheme | None:
    """Read ``against:other/model``: what it takes to go from one checkpoint to the other."""
    if words.first != "against":
        return None
    model = ":".join(words.options)
    if not model:
        raise words.unknown("name a model, as in against:other/model")

    def rounded(W: Tensor, name: str) -> Tensor:
        weights = checkpoint(model)
        # one of the two may have been loaded with its head, whose module puts a prefix in front of names
        found = next((other for key, other in weights.items() if _same(key, name)), None)
        if found is None:
            raise AssumptionError(f"{model!r} has no parameter {name!r}.", field="schemes")
        if found.shape != W.shape:
            raise ShapeError(
                f"{name!r} has the shape {tuple(W.shape)} here and {tuple(found.shape)} in {model!r}; the other "
                "checkpoint must be of the same model.",
                field="schemes",
            )
        return found.to(W)

    return Scheme(name=words.name, rounded=rounded, number_bits=UNROUNDED_BITS, by_name=True)


def _same(key: str, name: str) -> bool:
    return key == name or key.endswith(f".{name}") or name.endswith(f".{key}")


@functools.lru_cache(maxsize=1)
def checkpoint(model: str) -> dict[str, Tensor]:
    """Return the parameters of another model; the last one is kept."""
    from howsmooth.models.load import load

    found = load(model)
    return {name: p.detach() for name, p in (found.with_head or found.module).named_parameters()}
