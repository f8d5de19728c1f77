"""Checks of a configuration before anything is built: it can be read, its sizes are plausible, and it fits memory."""

import json
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch

from howsmooth.errors import FileError, UnsupportedModelError
from howsmooth.files import read_bytes, require_memory, require_size

LARGEST_FILE = 2**24  # bytes; those of real models are a few kilobytes
MOST_LAYERS = 2_000
# The least and the largest value of every size; the largest vocabularies have a few million words. Configurations make
# lists as long as the number of labels or experts.
LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "num_encoder_layers"),
    *("num_hidden_groups", "inner_group_num"),
)
WIDTHS = (
    *("hidden_size", "n_embd", "dim", "d_model", "embedding_size", "word_embed_proj_dim", "vocab_size"),
    *("intermediate_size", "hidden_dim", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_key_value_heads", "head_dim", "d_kv", "max_position_embeddings", "n_positions", "image_size", "patch_size"),
)
RANGES = (
    dict.fromkeys(LAYERS, (1, MOST_LAYERS))
    | dict.fromkeys(("decoder_layers", "num_decoder_layers"), (0, MOST_LAYERS))  # an encoder may come alone
    | dict.fromkeys(WIDTHS, (1, 10**8))
    | {"num_labels": (0, 10**6)}
)
EXPERTS, MOST_EXPERTS = re.compile(r"(num|n)_\w*experts"), 10**4


def check_config_file(file: Path, name: str, *, family: str = "", known: Container[str] = ()) -> None:
    """Check that a config.json is a JSON object with plausible sizes, and names one family."""

    def refusal(what: str, *, field: str = "model") -> UnsupportedModelError:
        return UnsupportedModelError(f"no model can be loaded from {name!r}: its config.json {what}", field=field)

    try:
        require_size(file, "a config.json", field="model", most=LARGEST_FILE)
        config = json.loads(read_bytes(file, "a config.json", field="model"))
    except (FileError, ValueError, RecursionError) as error:
        raise refusal(f"cannot be read: {str(error).rstrip('.')}.") from error
    if not isinstance(config, dict):
        raise refusal(f"must hold one object, got {type(config).__name__}.")
    for key, value, (least, most) in _sizes(config):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise refusal(f"says {key} = {value!r:.40}; it must be a whole number, {least} to {most:,}.")
    model_type = config.get("model_type")
    if not family and model_type is None:
        # the loader would guess it from the name of the folder
        raise refusal("has no model_type; say of which family it is, as with family='bert'.", field="family")
    if family and model_type is not None and model_type != family and model_type in known:
        parts = {part.get("model_type") for part in config.values() if isinstance(part, dict)}
        if family not in parts | {f"{model_type}_text_model", f"{model_type}_vision_model"}:
            raise refusal(f"says model_type = {model_type!r}, got the family {family!r}; leave it out.", field="family")


def _sizes(config: dict[str, Any]) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """Yield every size and its range, including those of the parts of a composed model."""
    for key, value in config.items():
        limits = (0, MOST_EXPERTS) if EXPERTS.fullmatch(key) else RANGES.get(key)
        if isinstance(value, dict):
            yield from _sizes(value)
        elif value is not None and limits is not None:
            # some families have a size for each stage
            yield from ((key, size, limits) for size in (value if isinstance(value, list) else [value]))


def require_model_memory(config: Any, count: int, name: str) -> None:
    """Refuse a model of so many parameters that does not fit into memory."""
    require_memory(count * _bytes_each(config), f"the model {name!r}, of {count:,} parameters,", field="model")


def parameter_count(config: Any, path: Path | None = None) -> int | None:
    """Count the parameters of a model: by the size of its files, or on the meta device where they are not here yet."""
    if path is not None and (size := _weights_size(path)):
        return size // _bytes_each(config)
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
    except Exception:  # a composed family, which the loader checks itself
        return None


def _bytes_each(config: Any) -> int:
    dtype = getattr(config, "dtype", None)
    return (dtype if isinstance(dtype, torch.dtype) else torch.get_default_dtype()).itemsize


def _weights_size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    # the same weights may be there in two formats, of which the loader takes the first
    sizes = ([file.stat().st_size for file in path.glob(f"*.{ending}")] for ending in ("safetensors", "bin"))
    return next((sum(found) for found in sizes if found), 0)
