"""Checks of a configuration or a GGUF header before anything is built: it can be read, and its sizes are plausible."""

import copy
import json
import re
import struct
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch

from howsmooth.errors import UnsupportedModelError
from howsmooth.files import require_memory, require_room

LARGEST_FILE = 2**24  # bytes; those of real models are a few kilobytes
MOST_LAYERS = 2_000
# The least and the largest value of every size; the largest vocabularies have a few million words. Configurations make
# lists as long as the number of labels, or as the pattern of attention types says.
ENCODER_LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "num_encoder_layers"),
    *("num_hidden_groups", "inner_group_num"),
)
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers")  # an encoder may come without a decoder
WIDTHS = (
    *("hidden_size", "n_embd", "dim", "d_model", "embedding_size", "word_embed_proj_dim", "vocab_size"),
    *("intermediate_size", "hidden_dim", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_key_value_heads", "head_dim", "d_kv", "max_position_embeddings", "n_positions", "image_size", "patch_size"),
)
RANGES = (
    dict.fromkeys(ENCODER_LAYERS, (1, MOST_LAYERS))
    | dict.fromkeys(DECODER_LAYERS, (0, MOST_LAYERS))
    | dict.fromkeys(WIDTHS, (1, 10**8))
    | {"num_labels": (0, 10**6), "attention_types": (0, MOST_LAYERS)}
)
EXPERTS, MOST_EXPERTS = re.compile(r"(num|n)_\w*experts"), 10**4
# GGUF: bytes of each type of number, by its code; 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
# Bytes of memory that the reader of GGUF takes for each entry of an array: two views of the file.
BYTES_PER_ENTRY = 1024
# The least size of an entry of the header, and of a tensor, in bytes.
ENTRY, TENSOR = 13, 24
LONGEST_NAME = 2**16 - 1


def check_config_file(file: Path, name: str, *, family: str = "", known: Container[str] = ()) -> None:
    """Check that a config.json is a JSON object with plausible sizes, and names one family."""
    config = _read(file, name)
    for key, value, (least, most) in _sizes(config):
        if not isinstance(value, int) or isinstance(value, bool):
            raise _refusal(name, f"says {key} = {_shown(value)}; it must be a whole number.")
        if not least <= value <= most:
            raise _refusal(name, f"says {key} = {_shown(value)}; it must be {least} to {most:,}.")
    model_type = config.get("model_type")
    if not family and model_type is None:
        # the loader would guess it from the name of the folder
        raise _refusal(name, "has no model_type; say of which family it is, as with family='bert'.", field="family")
    if family and model_type is not None and model_type != family and model_type in known:
        parts = {part.get("model_type") for part in config.values() if isinstance(part, dict)}
        if family not in parts | {f"{model_type}_text_model", f"{model_type}_vision_model"}:
            says = f"says model_type = {_shown(model_type)}, got the family {family!r}; leave it out."
            raise _refusal(name, says, field="family")


def _read(file: Path, name: str) -> dict[str, Any]:
    if not file.is_file():  # a device would never end
        raise _refusal(name, "is not a file.")
    try:
        with file.open("rb") as stream:
            raw = stream.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            raise _refusal(name, f"has more than {LARGEST_FILE:,} bytes, which no configuration needs.")
        found = json.loads(raw)
    except OSError as error:
        raise _refusal(name, f"cannot be read: {error.strerror or error}.") from error
    except RecursionError as error:
        raise _refusal(name, "is nested too deeply.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _refusal(name, f"is not JSON: {error}.") from error
    except ValueError as error:  # Python reads no integer of thousands of digits
        raise _refusal(name, "holds a number with thousands of digits.") from error
    if not isinstance(found, dict):
        raise _refusal(name, f"must hold one object, got {type(found).__name__}.")
    return found


def _sizes(config: dict[str, Any]) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """Yield every size and its range, including those of the parts of a composed model."""
    left = [config]  # and no recursion: it may be nested deeply
    while left:
        for key, value in left.pop().items():
            limits = (0, MOST_EXPERTS) if EXPERTS.fullmatch(key) else RANGES.get(key)
            if isinstance(value, dict):
                left.append(value)
            elif value is not None and limits is not None:
                # some families have a size for each stage; a pattern of attention types holds their names too
                names = key == "attention_types"
                yield from ((key, size, limits) for size in _leaves(value) if not (names and isinstance(size, str)))


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what nested lists hold."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left.extend(part)
        else:
            yield part


def _refusal(name: str, what: str, *, field: str = "model") -> UnsupportedModelError:
    return UnsupportedModelError(f"no model can be loaded from {name!r}: its config.json {what}", field=field)


def _shown(value: object) -> str:
    """Show a value that may be of any length."""
    whole = repr(value)
    return whole if len(whole) <= 40 else f"{whole[:37]}…"


def check_parameter_count(config: Any, name: str, *, weights: int | None = None) -> int | None:
    """Check that the parameters of a configuration fit into its weights, and return how many they are, if known."""
    count = parameter_count(config)
    if count is None:
        return None  # a composed family, which the loader checks itself
    if weights and count > 8 * weights:  # every format takes at least one bit for a parameter
        raise UnsupportedModelError(
            f"the config.json of {name!r} speaks of {count:,} parameters, more than its weights of {weights:,} bytes "
            "can hold; are they of another model?",
            field="model",
        )
    return count


def require_model_memory(config: Any, count: int, name: str) -> None:
    """Refuse a model of so many parameters that does not fit into memory."""
    dtype = getattr(config, "dtype", None)
    each = (dtype if isinstance(dtype, torch.dtype) else torch.get_default_dtype()).itemsize
    require_memory(count * each, f"the model {name!r}, of {count:,} parameters,", field="model")


def parameter_count(config: Any) -> int | None:
    """Count the parameters of a model from one and two of its layers, on the meta device.

    All layers of a stack are alike, so the second layer of each stack adds what every other adds. Building all of them,
    even without memory, would take a millisecond for each layer.
    """
    try:
        stacks = {key: n for key, n in config.to_dict().items() if key in ENCODER_LAYERS + DECODER_LAYERS and n}
        if max(stacks.values(), default=0) <= 2:
            return _count(config)
        least = _count(_with_layers(config, dict.fromkeys(stacks, 1)))
        more = {key: _count(_with_layers(config, dict.fromkeys(stacks, 1) | {key: 2})) - least for key in stacks}
        return least + sum((n - 1) * more[key] for key, n in stacks.items())
    except Exception:  # unknown configurations refuse fewer layers in ways of their own
        return None


def weights_size(path: Path) -> int:
    """Return the size of the weights in a folder, or in one file, in bytes."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for ending in ("safetensors", "bin") for file in path.glob(f"*.{ending}"))


def _count(config: Any) -> int:
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())


def _with_layers(config: Any, layers: dict[str, int]) -> Any:
    """Return a copy with other numbers of layers; lists with one entry for each layer are shortened."""
    shorter = copy.deepcopy(config)
    for key, n in layers.items():
        for name, value in config.to_dict().items():
            if isinstance(value, list) and len(value) == getattr(config, key):
                setattr(shorter, name, value[:n])
        setattr(shorter, key, n)
    return shorter


def check_gguf(path: Path) -> None:
    """Check that a header is valid, and that its entries fit into the file and into memory.

    The reader of the gguf package would make an object of every entry first.
    """
    size, held = path.stat().st_size, 0

    def damaged(why: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{str(path)!r} is a file that holds no model, or is damaged: {why}; we need a .gguf file, or a "
            "folder with a config.json.",
            field="model",
        )

    def whole(code: str) -> int:
        found = file.read(struct.calcsize(code))
        if len(found) < struct.calcsize(code):
            raise damaged("its header is cut short")
        (number,) = struct.unpack(f"<{code}", found)
        return number

    def skip(count: int) -> None:
        if file.tell() + count > size:
            raise damaged(f"it speaks of {count:,} bytes at byte {file.tell():,}, and is shorter")
        file.seek(count, 1)

    def value(kind: int, depth: int = 0) -> None:
        nonlocal held
        if kind in SIZES:
            skip(SIZES[kind])
        elif kind == STRING:
            skip(whole("Q"))
        elif kind == ARRAY and depth < 4:
            kind, count = whole("I"), whole("Q")
            held += count
            require_room(BYTES_PER_ENTRY * held, f"the header of {str(path)!r}", field="model")
            if kind in SIZES:
                skip(count * SIZES[kind])
                return
            for _entry in range(count):
                value(kind, depth + 1)
        else:
            raise damaged(f"it speaks of a value of the kind {kind}")

    with path.open("rb") as file:
        if file.read(4) != b"GGUF" or whole("I") not in (2, 3):
            raise damaged("it does not begin as GGUF of version 2 or 3")
        tensors, entries = whole("Q"), whole("Q")
        if TENSOR * tensors + ENTRY * entries > size:
            raise damaged(f"it speaks of {tensors:,} tensors and {entries:,} settings, and is shorter")
        for _entry in range(entries):
            if (length := whole("Q")) > LONGEST_NAME:
                raise damaged(f"the name of a setting has {length:,} bytes")
            name, kind = file.read(length), whole("I")
            if not (name.endswith(b".block_count") and SIZES.get(kind) == 4):
                value(kind)
            elif (layers := whole("I")) > MOST_LAYERS:
                raise damaged(f"it speaks of {layers:,} layers")
