"""Weights that stay in files: which tensor of a module lies where, and one of them at a time in memory."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from howsmooth.errors import NonFiniteError, UnsupportedModelError
from howsmooth.validation import is_finite

# Numbers that weights are read in, by their names in safetensors.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# The language head in the transformers library, and in files that it wrote some time ago.
HEAD, FORMER_HEAD = "lm_head.", "embed_out."


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightFiles:
    """The weights of a module in safetensors files, converted as they are read."""

    model: str  # the name of the model, for messages
    places: Mapping[str, tuple[Path, str]]  # the file of each tensor and its name there, by its name in the module
    dtypes: frozenset[torch.dtype]  # the dtypes of the numbers in the files
    # the dtype that weights are rounded to first; none if they are taken as they are
    rounded: torch.dtype | None = None
    dtype: torch.dtype = torch.float32  # the dtype that they are converted to
    device: torch.device | str = "cpu"  # the device that they are moved to

    @classmethod
    def of(cls, module: Any, files: Sequence[Path], model: str) -> "WeightFiles":
        """Find every parameter of a module in some files, by its name or that behind the prefix of its family.

        Headers alone are read. Weights that are stored in other shapes than the module has are refused.
        """
        stored = {key: (file, *about) for file in files for key, about in header(file).items()}
        places, dtypes = {}, set()
        for name, parameter, alike in _named_alike(module, stored):
            if not alike and name.startswith("pooler"):
                continue
            if not alike:
                raise UnsupportedModelError(
                    f"{model!r} cannot be streamed: its safetensors files hold no {name!r}, which the loader of "
                    "transformers makes of other tensors, or of none; load it with streamed=False.",
                    field="streamed",
                )
            file, shape, kind = stored[alike[0]]
            if shape != tuple(parameter.shape):
                raise UnsupportedModelError(
                    f"no model can be loaded from {model!r}: {alike[0]!r} has the shape {shape}, but its config.json "
                    f"speaks of {tuple(parameter.shape)}.",
                    field="model",
                )
            if kind not in DTYPES:
                raise UnsupportedModelError(
                    f"the weights of {model!r} are {kind} ({alike[0]!r}), which is not streamed; convert the model to "
                    "bfloat16 or float32 first.",
                    field="model",
                )
            places[name] = (file, alike[0])
            dtypes.add(DTYPES[kind])
        return cls(model=model, places=places, dtypes=frozenset(dtypes))

    def read(self, name: str, rows: Tensor | None = None) -> Tensor:
        """Read one tensor, or some rows of it, and convert it."""
        found = self._stored(name, rows)
        if not is_finite(found):
            raise NonFiniteError(
                f"the weights of {self.model!r} hold NaN or infinity, first in {name!r}.", field="model"
            )
        found = found if self.rounded is None else found.to(self.rounded)
        return found.to(device=self.device, dtype=self.dtype)

    def _stored(self, name: str, rows: Tensor | None) -> Tensor:
        from safetensors import safe_open

        file, key = self.places[name]
        with safe_open(file, framework="pt") as tensors:
            # what is stored is mapped, not copied: of a table only the pages of its rows are read
            found = tensors.get_tensor(key)
            return found if rows is None else found[rows]

    def fill(self, module: nn.Module, path: str) -> None:
        """Give all parameters of a part of a module their values."""
        part = module.get_submodule(path)
        names = {name: f"{path}.{name}".removeprefix(".") for name, _parameter in part.named_parameters()}
        values = {name: self.read(whole) for name, whole in names.items() if whole in self.places}
        part.load_state_dict(values, strict=False, assign=True)

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.stat().st_size for file in {file for file, _key in self.places.values()})

    @property
    def stamp(self) -> str:
        """A hash of the names, sizes and times of the files: equal if nobody has written to them."""
        files = sorted({file for file, _key in self.places.values()})
        states = [(file.name, os.stat(file)) for file in files]
        about = [(name, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for name, state in states]
        return hashlib.blake2b(repr(about).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class GGUFWeights(WeightFiles):
    """The weights of a module in a GGUF file, dequantised one by one as they are read.

    Names and changes of layout are those of the transformers library.
    """

    tensors: Mapping[str, Any]  # the tensors of the file, by their names there; their numbers are mapped, not copied
    processor: Any  # of transformers: what its loader does to each tensor
    shapes: Mapping[str, tuple[int, ...]]  # of the parameters

    @classmethod
    def of_file(cls, module: Any, file: Path, model: str) -> "GGUFWeights":
        """Find every parameter of a module in a file; those that the loader makes of several tensors are refused."""
        from gguf import GGUFReader
        from transformers.modeling_gguf_pytorch_utils import (
            TENSOR_PROCESSORS,
            TensorProcessor,
            get_gguf_hf_weights_map,
            load_gguf_checkpoint,
        )

        reader = GGUFReader(str(file))
        architecture = bytes(reader.fields["general.architecture"].parts[-1]).decode()
        config = load_gguf_checkpoint(str(file))["config"]
        processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        stored: dict[str, list[str]] = {}
        for key, name in get_gguf_hf_weights_map(module, processor).items():
            stored.setdefault(name, []).append(key)
        places, shapes = {}, {}
        for name, parameter, alike in _named_alike(module, stored):
            keys = [key for place in alike for key in stored[place]]
            if len(set(keys)) != 1 or keys[0] not in tensors:
                raise UnsupportedModelError(
                    f"{model!r} cannot be streamed: its parameter {name!r} is no single tensor of the GGUF file; load "
                    "it with streamed=False.",
                    field="streamed",
                )
            places[name], shapes[name] = (file, keys[0]), tuple(parameter.shape)
        dtypes = frozenset({torch.float32})  # what dequantised numbers are
        return cls(model=model, places=places, dtypes=dtypes, tensors=tensors, processor=processor, shapes=shapes)

    def _stored(self, name: str, rows: Tensor | None) -> Tensor:
        import gguf

        _file, key = self.places[name]
        tensor = self.tensors[key]
        data = tensor.data if rows is None else tensor.data[rows.numpy()]
        found = self.processor.process(
            weights=gguf.dequantize(data, tensor.tensor_type), name=key, tensor_key_mapping={}, parsed_parameters={}
        )
        weights = torch.from_numpy(np.array(found.weights))
        shape = self.shapes[name] if rows is None else (len(rows), *self.shapes[name][1:])
        if found.name != key or tuple(weights.shape) != shape:
            raise UnsupportedModelError(
                f"no model can be loaded from {self.model!r}: {key!r} has the shape {tuple(weights.shape)}, but its "
                f"header speaks of {shape}.",
                field="model",
            )
        return weights


def _named_alike(module: Any, stored: Mapping[str, Any]) -> Iterator[tuple[str, nn.Parameter, list[str]]]:
    """Yield every parameter of a module with the names under which it is stored.

    These are its own or that behind the prefix of its family; what is tied is stored under one of its names, and the
    head of some families under its former one.
    """
    prefix = f"{getattr(module, 'base_model_prefix', '')}."
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        renamed = [FORMER_HEAD + name.removeprefix(HEAD)] if name.startswith(HEAD) else []
        names.setdefault(id(parameter), []).extend([name, *renamed])
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield (
            name,
            parameter,
            [key for alias in names[id(parameter)] for key in (alias, prefix + alias) if key in stored],
        )


def header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the kind of numbers of every tensor in a file."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as tensors:
        slices = {key: tensors.get_slice(key) for key in tensors.keys()}  # noqa: SIM118
        return {key: (tuple(found.get_shape()), found.get_dtype()) for key, found in slices.items()}
