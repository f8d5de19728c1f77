"""Names of models and of parts of a layer, checked without torch: a slip is told before anything slow is imported."""

import difflib
import os
import re

from howsmooth.errors import AssumptionError, UnsupportedModelError, nearest
from howsmooth.models.builtin import BUILT_IN, built_in_path
from howsmooth.models.map_names import RANGES, WHOLE, check_whole_name, is_whole
from howsmooth.models.registry import FAMILIES

RANDOM = "random:"
# What is measured of a layer, or of many; head:3 stands for any head, and so do other numbers.
MAPS = ("attention", "heads", "head:3", "normed", "residual", "mlp", "block", *WHOLE, *RANGES)
# A model of a hub is OWNER/NAME, or NAME alone for the oldest ones.
HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w(?:[\w.-]{0,94}\w)?", re.ASCII)


def check_model_name(name: str) -> None:
    """Refuse a name that can stand for no model: no built-in, no folder, no GGUF file, no family, no hub id.

    Nothing is read and no hub is asked: see :func:`howsmooth.models.hub.check_reachable` for that.

    Raises:
        UnsupportedModelError: If nothing can be loaded under this name; it suggests the nearest ones.
    """
    if name.startswith(RANDOM):
        _check_family(name.removeprefix(RANDOM))
    elif name in BUILT_IN:
        built_in_path(name)
    elif not name.strip():
        raise UnsupportedModelError(
            f"the name of a model must not be empty; give one of {', '.join(BUILT_IN)}, a folder with a config.json, "
            "or a hub id.",
            field="model",
        )
    elif os.path.exists(name):  # and not Path.exists, which raises where a name is too long for a file system
        _check_place(name)
    elif _is_a_slip(name) or not may_be_hub_id(name):
        raise UnsupportedModelError(not_found(name), field="model")


def check_map_name(name: str) -> None:
    """Refuse a name that stands for no map of a layer, or of many.

    Raises:
        AssumptionError: If it is none of ``MAPS``, nor one of them with other numbers.
    """
    if name.startswith("head:"):
        head_number(name)
    elif is_whole(name):
        check_whole_name(name)
    elif name not in MAPS:
        raise AssumptionError(f"map must be one of {', '.join(MAPS)}, got {name!r}.", field="map")


def head_number(name: str) -> int:
    """Return which head a name such as ``head:3`` means."""
    try:
        return int(name.removeprefix("head:"))
    except ValueError as error:
        raise AssumptionError(f"a head is named by its number, as in head:3, got {name!r}.", field="map") from error


def may_be_hub_id(name: str) -> bool:
    """Tell whether a name is written as a hub's ids are."""
    if name.endswith((".gguf", ".git")) or "--" in name or ".." in name:
        return False
    return HUB_ID.fullmatch(name) is not None


def not_found(name: str, why: str = "nor a hub id within reach") -> str:
    """Say that a name stands for nothing, and which names do."""
    names = (*BUILT_IN, *(RANDOM + family for family in FAMILIES))
    near = nearest(name, names)
    # the families are too many to list in a sentence
    hint = (
        near if "did you mean" in near else f"; known are {', '.join(BUILT_IN)} and {RANDOM}FAMILY (howsmooth models)."
    )
    return f"no model {name!r}: neither a built-in, nor a folder here, {why}{hint}"


def check_family_name(family: str) -> None:
    """Refuse a name that stands for no family of transformers; those that go by autograd are families too.

    Raises:
        UnsupportedModelError: If the transformers library knows no such family; it suggests the nearest ones.
    """
    if family in FAMILIES:
        return
    from transformers import CONFIG_MAPPING  # which does not import torch, and knows hundreds

    if family not in CONFIG_MAPPING:
        raise UnsupportedModelError(f"there is no family {family!r}{nearest(family, FAMILIES)}", field="family")


def _check_family(family: str) -> None:
    if family not in FAMILIES:
        raise UnsupportedModelError(f"there is no family {family!r}{nearest(family, FAMILIES)}", field="model")


def _check_place(name: str) -> None:
    """Refuse a folder without a configuration, and a file that is not GGUF."""
    if os.path.isdir(name):
        if not os.path.exists(os.path.join(name, "config.json")):
            raise UnsupportedModelError(
                f"no model can be loaded from the folder {name!r}: it holds no config.json.", field="model"
            )
    elif not (name.endswith(".gguf") and os.path.isfile(name)):
        raise UnsupportedModelError(
            f"{name!r} is a file that holds no model; we need a folder with a config.json, or a .gguf file.",
            field="model",
        )


def _is_a_slip(name: str) -> bool:
    """Tell whether a built-in name was meant: not worth asking a hub about."""
    return bool(difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.8))
