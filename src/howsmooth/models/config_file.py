"""A model's config.json, checked before anything is built from it: that it can be read, and that its sizes can be."""

import json
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from howsmooth.errors import UnsupportedModelError

LARGEST_FILE = 2**24  # bytes; those of real models are a few kilobytes
MOST_LAYERS = 2_000
MOST = 10**8  # of anything else: the largest vocabularies have a few million words
MOST_OF = {"num_labels": 10**6, "attention_types": MOST_LAYERS}  # of which configurations make lists
EXPERTS, MOST_EXPERTS = re.compile(r"(num|n)_\w*experts"), 10**4
LAYERS = {
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "num_encoder_layers"),
    *("num_hidden_groups", "inner_group_num"),
}
# An encoder may come without a decoder, but not the other way round.
DECODER_LAYERS = {"decoder_layers", "num_decoder_layers"}
WIDTHS = {
    *("hidden_size", "n_embd", "dim", "d_model", "embedding_size", "word_embed_proj_dim", "vocab_size"),
    *("intermediate_size", "hidden_dim", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_key_value_heads", "head_dim", "d_kv", "max_position_embeddings", "n_positions", "image_size", "patch_size"),
}


def check_config_file(file: Path, name: str, *, family: str = "", known: Container[str] = ()) -> None:
    """Refuse a config.json that is no JSON object, or speaks of sizes that no model has, or of no family or another.

    Args:
        file: The config.json.
        name: Of which model it is, for the message.
        family: Of which family it is said to be, if it is.
        known: The families that the loader knows.

    Raises:
        UnsupportedModelError: If it cannot be read, a size in it is not a number within reason, or the family is in
            doubt.
    """
    config = _read(file, name)
    for key, value in _sizes(config):
        least = 0 if key in DECODER_LAYERS or key in MOST_OF else 1
        most = MOST_LAYERS if key in LAYERS | DECODER_LAYERS else MOST_OF.get(key, MOST)
        if EXPERTS.fullmatch(key):
            least, most = 0, MOST_EXPERTS
        if not isinstance(value, int) or isinstance(value, bool):
            raise _refusal(name, f"says {key} = {_shown(value)}; it must be a whole number.")
        if not least <= value <= most:
            raise _refusal(name, f"says {key} = {_shown(value)}; it must be {least} to {most:,}.")
    _check_family(config, name, family, known)


def _check_family(config: dict[str, Any], name: str, family: str, known: Container[str]) -> None:
    own = config.get("model_type")
    if not family and own is None:
        # the loader would guess it from the name of the folder
        raise _refusal(name, "has no model_type; say of which family it is, as with --family bert.", field="family")
    if not family or own is None:
        return
    parts = {part.get("model_type") for part in config.values() if isinstance(part, dict)}
    if own != family and own in known and family not in parts | {f"{own}_text_model", f"{own}_vision_model"}:
        raise _refusal(
            name, f"says model_type = {_shown(own)}, got the family {family!r}; leave it out.", field="family"
        )


def _read(file: Path, name: str) -> dict[str, Any]:
    try:
        if not file.is_file():  # a device would never end
            raise _refusal(name, "is not a file.")
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


def _sizes(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every size that is given, those of the parts of a composed model too."""
    left = [config]
    while left:
        for key, value in left.pop().items():
            if isinstance(value, dict):
                left.append(value)
            elif value is not None and (key in LAYERS | DECODER_LAYERS | WIDTHS or EXPERTS.fullmatch(key)):
                # some families give a size for each stage
                yield from ((key, one) for one in (value if isinstance(value, list) else [value]))
            elif key in MOST_OF:
                yield from ((key, one) for one in _numbers(value))


def _numbers(value: Any) -> Iterator[int]:
    """Yield the whole numbers in nested lists."""
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int):
        yield value


def _refusal(name: str, what: str, *, field: str = "model") -> UnsupportedModelError:
    return UnsupportedModelError(f"no model can be loaded from {name!r}: its config.json {what}", field=field)


def _shown(value: object) -> str:
    """Show a value that may be of any length."""
    whole = repr(value)
    return whole if len(whole) <= 40 else f"{whole[:37]}…"
