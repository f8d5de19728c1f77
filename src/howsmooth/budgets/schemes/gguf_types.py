"""The types of GGUF files, quantised by the ``gguf`` package where it has a quantiser."""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from howsmooth.budgets.schemes.scheme import Scheme, SchemeWords
from howsmooth.errors import AssumptionError, nearest

NAMES = ["gguf:Q8_0"]


def read(words: SchemeWords) -> Scheme | None:
    """Read ``gguf:Q4_0`` and other types that the package can write."""
    if words.first != "gguf":
        return None
    if importlib.util.find_spec("gguf") is None:
        raise AssumptionError(f"{words.name!r} needs the package gguf; pip install gguf.", field="schemes")
    import gguf

    types = {kind.name: kind for kind in gguf.GGMLQuantizationType if _writes(kind)}
    wanted = ":".join(words.options).upper()
    if wanted not in types:
        raise AssumptionError(
            f"the package gguf has no quantiser for {wanted or 'no type'} (k-quants need llama.cpp: quantise with it "
            f"and name its file with against=){nearest(wanted, types)}",
            field="schemes",
        )
    numbers, size = gguf.GGML_QUANT_SIZES[types[wanted]]

    def rounded(W: Tensor, name: str) -> Tensor:
        if W.shape[-1] % numbers:
            raise AssumptionError(
                f"{wanted} needs rows that are a multiple of {numbers} long, but {name!r} has {W.shape[-1]} columns.",
                field="schemes",
            )
        array = W.detach().float().cpu().numpy()
        written = gguf.dequantize(gguf.quantize(array, types[wanted]), types[wanted])
        return torch.from_numpy(written.astype("float32")).reshape(W.shape).to(W)

    return Scheme(name=words.name, rounded=rounded, number_bits=8 * size / numbers)


def _writes(kind: Any) -> bool:
    """Return whether the package has a quantiser of its own for a type."""
    import gguf
    import numpy as np

    numbers, _size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quantize(np.zeros((1, numbers), dtype=np.float32), kind)
    except NotImplementedError:
        return False
    return True
