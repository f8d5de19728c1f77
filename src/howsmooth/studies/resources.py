"""Models and texts that tasks name: loaded once in each process."""

import dataclasses
import functools

import torch

from howsmooth.errors import AssumptionError, DtypeError, FileError
from howsmooth.maps.attention import Attention
from howsmooth.models.base import Transformer, load
from howsmooth.models.text import Text, read_text
from howsmooth.studies.tasks import Task

# Models in memory, by name, numbers and device: some of them no name leads to.
_ADOPTED: dict[tuple[str, str, str], Transformer] = {}


def adopt(transformer: Transformer, task: Task) -> None:
    """Let tasks like this one, in this process, find a model that is in memory already."""
    _ADOPTED[task.model, task.dtype, task.device] = transformer


def transformer_of(task: Task) -> Transformer:
    """Return the model that a task names."""
    return _ADOPTED.get((task.model, task.dtype, task.device)) or _loaded(task.model, task.dtype, task.device)


@functools.lru_cache(maxsize=2)
def _loaded(name: str, dtype: str, device: str) -> Transformer:
    return load(name, dtype=number_type(dtype), device=device or None)


def text_of(task: Task) -> Text:
    """Return the text that a task names, if it still is what it was."""
    text = _read(task.text)
    if text.digest != task.digest:
        _read.cache_clear()  # the file may have changed before the task was made
        text = _read(task.text)
    if text.digest != task.digest:
        raise FileError(f"the text {task.text!r} is not what it was when the task was made; make the study anew.")
    return text


@functools.lru_cache(maxsize=4)
def _read(name: str) -> Text:
    return read_text(name)


def number_type(name: str) -> torch.dtype | None:
    """Return the numbers that a name stands for; none for those of the model."""
    if name not in ("", "float16", "bfloat16", "float32", "float64"):
        raise DtypeError(f"dtype must be float32, float64, float16 or bfloat16, got {name!r}.")
    return getattr(torch, name) if name else None


def attention_of(task: Task) -> Attention:
    """Return the attention map that a task names: from matrices, or a part of a layer of a model."""
    if task.A:
        A, V = (torch.tensor(matrix, dtype=torch.float64) for matrix in (task.A, task.V))
        return Attention.single_head(A=A, V=V)
    found = transformer_of(task).sites[task.layer].map(task.map)
    if not isinstance(found, Attention):
        raise DtypeError(
            f"{task.kind!r} tasks need an attention map, got {task.map!r}; use attention, heads or head:3."
        )
    if task.biases:
        return found
    return dataclasses.replace(found, query_bias=None, key_bias=None, value_bias=None, output_bias=None)


def check_layer(model: str, layer: int, length: int) -> None:
    """Refuse a model that cannot be loaded, a layer that it does not have, or a length beyond its positions."""
    found = _loaded(model, "", "")
    found.site(layer)
    if found.max_length is not None and length > found.max_length:
        raise AssumptionError(f"{model!r} has positions for {found.max_length} tokens, got a length of {length}.")
