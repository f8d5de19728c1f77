"""One attention layer of a built-in model, straight from its file: to import a model's modules takes longer than that.

The weights are known by their checksum, so that what is read here was compared with the modules once and for all.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from howsmooth.files import read_bytes
from howsmooth.maps.attention import Attention
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.families.parameters import projections
from howsmooth.models.loading.names import BUILT_IN, built_in_path, check_weights

# The four linear layers of attention in a block of BERT.
BERT_LINEAR = ("self.query", "self.key", "self.value", "output.dense")


def built_in_layer(name: str, index: int) -> AttentionLayer | None:
    """Return one attention layer of a built-in BERT, without its block; none for other models, and other layers.

    Attention and paths are those of ``hs.load(name).layer(index)``, in a fifth of the time.
    """
    path = built_in_path(name) if name in BUILT_IN else None
    if path is None or not path.is_dir():
        return None
    config = json.loads(read_bytes(path / "config.json", "a config.json", field="model"))
    if config["model_type"] != "bert" or not 0 <= index < config["num_hidden_layers"]:
        return None
    check_weights(name, path)
    heads, block = config["num_attention_heads"], f"encoder.layer.{index}"
    query, key, value, output = _bert_linear(path / "model.safetensors", f"{block}.attention")
    scale = (config["hidden_size"] // heads) ** -0.5
    attention = Attention(**projections(query, key, value, output, heads), scale=scale)
    return AttentionLayer(
        index=index,
        attention=attention,
        attention_path=f"{block}.attention.self",
        projection_path=f"{block}.attention.output.dense",
        block_path=block,
    )


def _bert_linear(file: Path, attention: str) -> list[Any]:
    """Return the linear layers of attention; half precision is measured in float32."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as tensors:
        # the trunk of a classifier has a name of its own
        prefix = next(key for key in tensors.keys() if f"{attention}.self.query.weight" in key)  # noqa: SIM118
        prefix = prefix.removesuffix("self.query.weight")

        def read(name: str) -> Tensor:
            return tensors.get_tensor(prefix + name).to(torch.float32)

        return [SimpleNamespace(weight=read(f"{name}.weight"), bias=read(f"{name}.bias")) for name in BERT_LINEAR]
