"""How large a model is, known before it is built: against the file of its weights, and against the machine's memory."""

import copy
from pathlib import Path
from typing import Any

import torch

from howsmooth.errors import UnsupportedModelError
from howsmooth.memory import require_memory
from howsmooth.models.config_file import DECODER_LAYERS, LAYERS


def require_room(config: Any, name: str, *, weights: int | None = None) -> None:
    """Refuse a configuration that asks for more than its weights can hold, or more than the machine has.

    Args:
        config: A configuration of the transformers library.
        name: Of which model it is, for the message.
        weights: How many bytes the files of the weights have; none where there are no files yet.

    Raises:
        UnsupportedModelError: If its weights cannot be so many.
        AssumptionError: If they do not fit into memory.
    """
    count = parameters(config)
    if count is None:
        return  # a composed family; the loader itself says what is wrong with it
    if weights and count > 8 * weights:  # no format has less than a bit for each parameter
        raise UnsupportedModelError(
            f"the config.json of {name!r} speaks of {count:,} parameters, more than its weights of {weights:,} bytes "
            "can hold; are they of another model?",
            field="model",
        )
    require_memory(count * _bytes_each(config), f"the model {name!r}, of {count:,} parameters,", field="model")


def parameters(config: Any) -> int | None:
    """Count the parameters of a model from two of its layers, without memory for any of them.

    All layers of a stack are alike, so one more layer of each kind says what the others add. Building all of them, even
    without memory, would take a millisecond for each layer.
    """
    try:
        stacks = {key: n for key, n in config.to_dict().items() if key in LAYERS | DECODER_LAYERS and n}
        least = _count(_with_layers(config, dict.fromkeys(stacks, 1)))
        more = {key: _count(_with_layers(config, dict.fromkeys(stacks, 1) | {key: 2})) - least for key in stacks}
        return least + sum((n - 1) * more[key] for key, n in stacks.items())
    except Exception:  # configurations of strangers refuse to be shortened in ways of their own
        return None


def weights_size(path: Path) -> int:
    """Return how many bytes the weights in a folder have, or those in one file."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for ending in ("safetensors", "bin") for file in path.glob(f"*.{ending}"))


def _count(config: Any) -> int:
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())


def _with_layers(config: Any, layers: dict[str, int]) -> Any:
    """Return a copy with so many layers; lists with an entry for each layer are shortened with them."""
    shorter = copy.deepcopy(config)
    for key, n in layers.items():
        for name, value in config.to_dict().items():
            if isinstance(value, list) and len(value) == getattr(config, key):
                setattr(shorter, name, value[:n])
        setattr(shorter, key, n)
    return shorter


def _bytes_each(config: Any) -> int:
    dtype = getattr(config, "dtype", None)
    return dtype.itemsize if isinstance(dtype, torch.dtype) else torch.get_default_dtype().itemsize
