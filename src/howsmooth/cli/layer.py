"""One attention layer, of a model or of a file of weights: the options that name it, and the map it is."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import howsmooth as hs
from howsmooth.cli.array_files import array_names, is_array_file, read_arrays
from howsmooth.cli.options import OptionDevice, OptionThreads, checked, model_names, set_threads
from howsmooth.cli.printing import begin
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.models.loading.names import check_family_name, check_model_name
from howsmooth.models.map_names import MapName
from howsmooth.search.mechanisms import MECHANISMS, check_kind, of_kind

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.attention import Attention
    from howsmooth.maps.heads import MultiHead


# The arrays of a single head, of a layer of several, and of its biases.
SINGLE, MANY = ("A", "V"), ("query", "key", "value", "output")
MOST = 12  # names that are shown
ARRAYS = (*SINGLE, *MANY, *(f"{name}_bias" for name in MANY))


def _of_model(flag: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, help=text, rich_help_panel="A layer of a model", **more)


def _of_weights(flag: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, help=text, rich_help_panel="A file of weights in place of a model", **more)


@dataclass(frozen=True, kw_only=True)
class LayerSource:
    """Where one attention layer comes from, as written on the command line: a layer of a model, or a file of weights.

    The options of the command line are declared here, beside their fields.
    """

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A built-in name, a folder, a .gguf file or a hub id; or a file of weights, .npz or "
            ".safetensors, with the arrays A and V of one head, or query, key, value, output and query_bias, … of "
            "several. Rows are outputs, as in torch.nn.Linear.",
            callback=checked(lambda source: is_array_file(source) or check_model_name(source)),
            autocompletion=model_names,
        ),
    ] = None
    layer: Annotated[
        int | None, typer.Option("--layer", "--layers", help="Which layer.", rich_help_panel="A layer of a model")
    ] = None
    map: Annotated[str, _of_model("--map", "Which part of the layer: attention, heads or head:3.")] = "attention"
    family: Annotated[
        str | None, _of_model("--family", "The family of a model whose config.json has no model_type.", metavar="bert")
    ] = None
    heads: Annotated[int | None, _of_weights("--heads", "How many heads 2-D matrices hold; 1 if left out.")] = None
    scale: Annotated[
        float | None, _of_weights("--scale", "The factor of the scores; for A it is 1, else 1/√k, if left out.")
    ] = None
    causal: Annotated[bool, _of_weights("--causal", "Each token attends to itself and the past only.")] = False
    kind: Annotated[
        str,
        typer.Option("--kind", help=f"How scores become weights: {', '.join(MECHANISMS)}.", callback=check_kind),
    ] = "softmax"
    device: OptionDevice = None
    threads: OptionThreads = None

    @property
    def _is_of_model(self) -> bool:
        return self.layer is not None or (self.model is not None and not is_array_file(self.model))

    @property
    def _path(self) -> Path | None:
        """The file of weights."""
        return None if self._is_of_model or self.model is None else Path(self.model)

    @property
    def paths(self) -> list[Path]:
        """The files that are read."""
        return [] if self._path is None else [self._path]

    @property
    def about(self) -> dict[str, str]:
        """What is kept beside an input that was found for this layer."""
        layer = {"model": self.model or "", "layer": str(self.layer), "map": self.map} if self._is_of_model else {}
        family = {"family": self.family} if self.family else {}
        return {"howsmooth": hs.__version__} | layer | family | ({"weights": str(self._path)} if self._path else {})

    def check(self) -> None:
        """Refuse what contradicts itself or is not there, before torch is imported."""
        if self._is_of_model:
            self._check_model()
        else:
            self._check_weights()

    def _check_model(self) -> None:
        if self.model is None or is_array_file(self.model):
            raise AssumptionError("--layer is that of a model; name the model first, as in minilm --layer 4.")
        if self.layer is None:
            raise AssumptionError(f"{self.model!r} is a model; say which of its layers with --layer.", field="layer")
        given = [f"--{name}" for name in ("heads", "scale", "causal") if getattr(self, name) not in (None, False)]
        if given:
            raise AssumptionError(f"a layer of a model has its own weights; leave out {' and '.join(given)}.")
        if self.layer < 0:
            raise AssumptionError(f"--layer counts from 0, got {self.layer}.", field="layer")
        if self.family is not None:
            check_family_name(self.family)
        if MapName.parse(self.map).kind not in ("attention", "heads", "head"):
            raise AssumptionError(
                f"theorems are about attention alone, got --map {self.map}; use attention, heads or head:3.",
                field="map",
            )

    def _check_weights(self) -> None:
        if self.family is not None:
            raise AssumptionError("--family is that of a model; name a model and its --layer.", field="family")
        if self.map != "attention":
            raise AssumptionError(
                f"--map {self.map} is a part of a model's layer; weights in files are one whole. Leave it out.",
                field="map",
            )
        names = [] if self._path is None else array_names(self._path)
        given = {name for name in ARRAYS if name in names}
        if given & set(SINGLE) and given - set(SINGLE):
            raise AssumptionError(
                "a layer is either A and V, one head, or query, key and value; got "
                f"{', '.join(name for name in ARRAYS if name in given)} together."
            )
        if "A" not in given and not {"query", "key", "value"} <= given:
            listed = ", ".join(names[:MOST] + [f"and {len(names) - MOST} more"] * (len(names) > MOST))
            raise AssumptionError(
                "give a model and its --layer, as in minilm --layer 4, or a file of weights with arrays called A, or "
                f"query, key and value; got {listed or 'none of them'}."
            )
        if "output_bias" in given and "output" not in given:
            raise AssumptionError("output_bias is added by the output projection; give output too.")
        if self.heads is not None and self.heads < 1:
            raise AssumptionError(f"--heads must be at least 1, got {self.heads}.", field="heads")
        if (self.heads or 1) != 1 and "A" in given:
            raise AssumptionError("--heads splits query, key and value, but A is one head.", field="heads")
        if self.scale is not None and not math.isfinite(self.scale):
            raise AssumptionError(f"scale must be finite, got {self.scale}.", field="scale")

    def read(self) -> "MultiHead":
        """Read every file and build the layer of its kind, on its device; one dtype for all, float64 if any needs it.

        From here on torch uses as many threads as were asked for.
        """
        begin(f"Reading {self.model}")
        set_threads(self.threads)
        found = of_kind(self._read(), self.kind)
        return found if self.device is None else found.to(device=self.device)

    def _read(self) -> "Attention":
        import torch

        if self._path is None:
            return self._layer_of_model()
        names = array_names(self._path)
        read = read_arrays(self._path, [name for name in ARRAYS if name in names])
        double = any(x.dtype == torch.float64 for x in read.values())
        arrays = {name: x.to(torch.float64 if double else torch.float32) for name, x in read.items()}
        found = _single_head(arrays, self.causal) if "A" in arrays else self._many_heads(arrays)
        return found if self.scale is None else replace(found, scale=self.scale)

    def _layer_of_model(self) -> "Attention":
        from howsmooth.models.loading.built_in_layers import built_in_layer

        model, index = self.model or "", self.layer or 0
        layer = None if self.family else built_in_layer(model, index)
        if layer is None:
            layer = hs.load(model, family=self.family or "").layer(index)
        found = layer.map(self.map)
        if not isinstance(found, hs.Attention):
            raise AssumptionError(f"theorems are about attention alone, got --map {self.map}.", field="map")
        return found

    def _many_heads(self, arrays: "dict[str, Tensor]") -> "Attention":
        """Build a layer of several heads; matrices in three axes say how many there are.

        Heads of keys and values have as many rows as those of queries; where there are fewer, they are shared.
        """
        query, key = arrays["query"], arrays["key"]
        heads = self.heads or (len(query) if query.ndim == 3 else 1)
        rows = query.shape[-2] if query.ndim == 3 else len(query) // heads
        groups = len(key) if key.ndim == 3 else max(1, len(key) // max(1, rows))
        parts = {"query": heads, "key": groups, "value": groups, "output": heads}
        split: dict[str, Any] = {
            name: _split(arrays[name], name, many) for name, many in parts.items() if name in arrays
        }
        for name in ("query_bias", "key_bias", "value_bias"):
            if name in arrays:
                split[name] = _split(arrays[name], name, parts[name.removesuffix("_bias")], axes=1)
        return hs.Attention(
            **split, output_bias=arrays.get("output_bias"), positions=hs.maps.Positions(causal=self.causal)
        )


def _single_head(arrays: "dict[str, Tensor]", causal: bool) -> "Attention":
    """Build one head from ``A`` and ``V``; without values they are the identity."""
    import torch

    A = arrays["A"]
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f"A must be a square matrix, (d, d), got the shape {tuple(A.shape)}.")
    V = arrays.get("V", torch.eye(len(A), dtype=A.dtype))
    if V.ndim != 2 or V.shape[1] != len(A):
        raise ShapeError(
            f"V must be a matrix with as many columns as A, (v, {len(A)}), got the shape {tuple(V.shape)}."
        )
    return hs.Attention.single_head(A=A, V=V, causal=causal)


def _split(x: "Tensor", name: str, heads: int, *, axes: int = 2) -> "Tensor":
    """Give a matrix or a bias its head axis: ``(heads · rows, …)`` or, of the output, ``(out, heads · v)``."""
    axis = 1 if name == "output" else 0
    if x.ndim not in (axes, axes + 1):
        raise ShapeError(f"{name} must have {axes} or {axes + 1} axes, got the shape {tuple(x.shape)}.")
    if axes == 2 and x.ndim == 3 and len(x) != heads:
        raise ShapeError(f"{name} must have {heads} heads along its first axis, got the shape {tuple(x.shape)}.")
    if x.ndim == axes and x.shape[axis] % heads:
        lines = ("rows", "columns")[axis] if axes == 2 else "entries"
        raise ShapeError(f"{name} must split into {heads} heads, but has {x.shape[axis]} {lines}; see --heads.")
    return x.unflatten(axis, (heads, -1)).movedim(axis, 0) if x.ndim == axes else x
