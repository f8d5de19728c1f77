"""One attention layer, from files or from a model: the options that name it, and the map it is."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.array_files import holds_by_name, read_matrix, split_source
from howsmooth.cli.options import checked_model
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.models.loading.names import check_family_name
from howsmooth.models.map_names import MapName
from howsmooth.search.mechanisms import MECHANISMS, check_kind, of_kind

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.attention import Attention
    from howsmooth.maps.heads import MultiHead


SINGLE, MANY = ("A", "V"), ("query", "key", "value", "output")
BIASES = tuple(f"{name}_bias" for name in MANY)
FILES = SINGLE + MANY + BIASES
IN_FILES = "Weights (.npz, .npy or .safetensors)"
IN_A_MODEL = "A layer of a model, in place of weights in files"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _file(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(_flag(name), metavar="FILE[:KEY]", help=text, rich_help_panel=IN_FILES, show_default=False)


def _how(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", help=text, rich_help_panel=IN_FILES)


def _where(
    name: str, text: str, check: Callable[..., object] | None = None, metavar: str | None = None
) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", help=text, rich_help_panel=IN_A_MODEL, callback=check, metavar=metavar)


@dataclass(frozen=True, kw_only=True)
class LayerSource:
    """Where one attention layer comes from, as written on the command line: files, or a layer of a model.

    The options of the command line are declared here, beside their fields.
    """

    A: Annotated[str | None, _file("A", "The matrix of the scores, (d, d).")] = None
    V: Annotated[str | None, _file("V", "The value matrix, (v, d); the identity if left out.")] = None
    query: Annotated[str | None, _file("query", "Queries, (heads, k, d) or (heads·k, d).")] = None
    key: Annotated[str | None, _file("key", "Keys, (groups, k, d) or (groups·k, d).")] = None
    value: Annotated[str | None, _file("value", "Values, (groups, v, d) or (groups·v, d).")] = None
    output: Annotated[str | None, _file("output", "Output projection, (heads, out, v) or (out, heads·v).")] = None
    query_bias: Annotated[
        str | None,
        _file("query_bias", "Biases of queries; of --query FILE without a KEY, its query_bias if there is one."),
    ] = None
    key_bias: Annotated[str | None, _file("key_bias", "Biases of keys, likewise.")] = None
    value_bias: Annotated[str | None, _file("value_bias", "Biases of values, likewise.")] = None
    output_bias: Annotated[str | None, _file("output_bias", "Bias of the output, likewise.")] = None
    heads: Annotated[int | None, _how("heads", "Heads in a 2-D matrix; 1 if left out.")] = None
    groups: Annotated[int | None, _how("groups", "Heads in 2-D keys and values; as many as queries if left out.")] = (
        None
    )
    scale: Annotated[float | None, _how("scale", "What scores are multiplied by; with --A 1, else 1/√k.")] = None
    causal: Annotated[bool, _how("causal", "A token sees only itself and the past.")] = False
    model: Annotated[
        str | None, _where("model", "A built-in name, a folder, a .gguf file or a hub id.", checked_model)
    ] = None
    layer: Annotated[int | None, _where("layer", "Which attention layer of it.")] = None
    map: Annotated[str, _where("map", "Which part of the layer: attention, heads or head:3.")] = "attention"
    family: Annotated[
        str | None, _where("family", "The family of a model whose config.json has no model_type.", metavar="bert")
    ] = None
    kind: Annotated[
        str,
        typer.Option("--kind", help=f"How scores become weights: {', '.join(MECHANISMS)}.", callback=check_kind),
    ] = "softmax"

    @property
    def sources(self) -> dict[str, str]:
        """The files by the name of their option."""
        named = {name: getattr(self, name) for name in FILES}
        return {name: source for name, source in named.items() if source is not None}

    @property
    def paths(self) -> list[Path]:
        """The files that are read.

        Raises:
            FileError: If one of them cannot be.
        """
        return [path for path, _key in (split_source(source) for source in self.sources.values())]

    @property
    def about(self) -> dict[str, str]:
        """What is kept beside an input that was found for this layer."""
        from howsmooth import __version__

        layer = {"model": self.model, "layer": str(self.layer), "map": self.map} if self.model is not None else {}
        family = {"family": self.family} if self.family else {}
        return {"howsmooth": __version__} | layer | family | self.sources

    def check(self) -> None:
        """Refuse what contradicts itself or is not there, before any file is opened and torch is imported.

        Raises:
            AssumptionError: If options contradict each other, or some are missing.
            FileError: If a file is not there, or of another kind.
        """
        if self.model is not None or self.layer is not None:
            self._require_model_alone()
        else:
            self._require_files()

    def _require_files(self) -> None:
        if self.family is not None:
            raise AssumptionError("--family is that of a model; give --model and --layer too.", field="family")
        if self.map != "attention":
            raise AssumptionError(
                f"--map {self.map} is a part of a model's layer; weights in files are one whole. Leave it out.",
                field="map",
            )
        given, single = set(self.sources), set(SINGLE)
        if given & single and given - single:
            raise AssumptionError(
                f"give either --A and --V, or --query, --key and --value; got {_flags(self.sources)} together."
            )
        if "A" not in given and not {"query", "key", "value"} <= given:
            raise AssumptionError(
                "give the weights: --A and --V for one head, or --query, --key and --value, or --model and --layer; "
                f"got {_flags(self.sources) or 'none of them'}."
            )
        if "output_bias" in given and "output" not in given:
            raise AssumptionError(
                "--output-bias is added by the output projection; give --output too.", field="output_bias"
            )
        for name, many in (("heads", self.heads), ("groups", self.groups)):
            if many is not None and many < 1:
                raise AssumptionError(f"--{name} must be at least 1, got {many}.", field=name)
            if many is not None and many != 1 and "A" in given:
                raise AssumptionError(
                    f"--{name} splits --query, --key and --value, but A is one head; leave it out.", field=name
                )
        if self.scale is not None and not math.isfinite(self.scale):
            raise AssumptionError(f"scale must be finite, got {self.scale}.", field="scale")
        for source in self.sources.values():
            split_source(source)

    def _require_model_alone(self) -> None:
        if self.model is None or self.layer is None:
            missing = "--model" if self.model is None else "--layer"
            raise AssumptionError(f"--model and --layer go together; {missing} is missing.", field="layer")
        flags = {"heads": self.heads, "groups": self.groups, "scale": self.scale, "causal": self.causal or None}
        given = self.sources | {name: "" for name, value in flags.items() if value is not None}
        if given:
            raise AssumptionError(f"a layer of a model has its own weights, got {_flags(given)} too; leave them out.")
        if self.layer < 0:
            raise AssumptionError(f"--layer counts from 0, got {self.layer}.", field="layer")
        if self.family is not None:
            check_family_name(self.family)
        if MapName.parse(self.map).kind not in ("attention", "heads", "head"):
            raise AssumptionError(
                f"theorems are about attention alone, got --map {self.map}; use attention, heads or head:3.",
                field="map",
            )

    @property
    def _beside(self) -> dict[str, str]:
        """The biases that lie in the files of their matrices, under their own names: a layer saved whole has them.

        Only where a matrix was found by its name too. Whoever names keys of their own names those of biases as well.
        """
        whole = {name: source for name, source in self.sources.items() if name in MANY}
        return {f"{name}_bias": source for name, source in whole.items() if holds_by_name(source, name, f"{name}_bias")}

    def read(self) -> "MultiHead":
        """Read every file and build the layer of its kind; one dtype for all, float64 if any of them needs it."""
        return of_kind(self._read(), self.kind)

    def _read(self) -> "Attention":
        import torch

        if self.model is not None and self.layer is not None:
            return _layer_of(self.model, self.layer, self.map, self.family or "")
        read = {name: read_matrix(source, name) for name, source in (self._beside | self.sources).items()}
        double = any(x.dtype == torch.float64 for x in read.values())
        matrices = {name: x.to(torch.float64 if double else torch.float32) for name, x in read.items()}
        if "A" in matrices:
            return single_head(matrices, scale=self.scale, causal=self.causal)
        return many_heads(matrices, heads=self.heads, groups=self.groups, scale=self.scale, causal=self.causal)


def _flags(names: dict[str, str]) -> str:
    return ", ".join(_flag(name) for name in names)


def _layer_of(model: str, layer: int, part: str, family: str) -> "Attention":
    from howsmooth.maps.attention import Attention
    from howsmooth.models.load import load

    found = load(model, family=family).layer(layer).map(part)
    if not isinstance(found, Attention):
        raise AssumptionError(f"theorems are about attention alone, got --map {part}.", field="map")
    return found


def single_head(matrices: "dict[str, Tensor]", *, scale: float | None, causal: bool) -> "Attention":
    """Build one head from ``A`` and ``V``; without values they are the identity."""
    import torch

    import howsmooth as hs

    A = matrices["A"]
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f"A must be a square matrix, (d, d), got the shape {tuple(A.shape)}.", field="A")
    V = matrices.get("V", torch.eye(len(A), dtype=A.dtype))
    if V.ndim != 2 or V.shape[1] != len(A):
        raise ShapeError(
            f"V must be a matrix with as many columns as A, (v, {len(A)}), got the shape {tuple(V.shape)}.", field="V"
        )
    head = hs.Attention.single_head(A=A, V=V, causal=causal)
    return head if scale is None else dataclasses.replace(head, scale=scale)


def many_heads(
    matrices: "dict[str, Tensor]", *, heads: int | None, groups: int | None, scale: float | None, causal: bool
) -> "Attention":
    """Build a layer from ``query``, ``key``, ``value`` and ``output``, and their biases.

    Matrices in three axes say how many heads there are.
    """
    import howsmooth as hs

    query = matrices["query"]
    heads = heads or (len(query) if query.ndim == 3 else 1)
    shared = [len(matrices[name]) for name in ("key", "value") if matrices[name].ndim == 3]
    groups = groups or (shared[0] if shared else heads)
    output = matrices.get("output")
    return hs.Attention(
        query=_split_rows(query, heads, "query", "heads"),
        key=_split_rows(matrices["key"], groups, "key", "groups"),
        value=_split_rows(matrices["value"], groups, "value", "groups"),
        output=None if output is None else _split_columns(output, heads),
        query_bias=_split_bias(matrices, "query", heads, "heads"),
        key_bias=_split_bias(matrices, "key", groups, "groups"),
        value_bias=_split_bias(matrices, "value", groups, "groups"),
        output_bias=matrices.get("output_bias"),
        scale=scale,
        positions=hs.maps.Positions(causal=causal),
    )


def _split_bias(matrices: "dict[str, Tensor]", name: str, parts: int, option: str) -> "Tensor | None":
    """Give a bias its head axis: ``(parts · rows,)`` becomes ``(parts, rows)``."""
    bias = matrices.get(f"{name}_bias")
    if bias is None or bias.ndim == 2:
        return bias
    if bias.ndim != 1:
        raise ShapeError(f"{name}_bias must have 1 or 2 axes, got the shape {tuple(bias.shape)}.", field=f"{name}_bias")
    if len(bias) % parts:
        raise ShapeError(
            f"{name}_bias must split into {parts} {option}, but has {len(bias)} entries; see --{option}.",
            field=f"{name}_bias",
        )
    return bias.unflatten(0, (parts, -1))


def _split_rows(x: "Tensor", parts: int, name: str, option: str) -> "Tensor":
    """Give a 2-D matrix its head axis: ``(parts · rows, d)`` becomes ``(parts, rows, d)``."""
    _require_split(x, parts, name, option, axis=0)
    return x if x.ndim == 3 else x.unflatten(0, (parts, -1))


def _split_columns(x: "Tensor", heads: int) -> "Tensor":
    """Give a 2-D output projection its head axis: ``(out, heads · v)`` becomes ``(heads, out, v)``."""
    _require_split(x, heads, "output", "heads", axis=1)
    return x if x.ndim == 3 else x.unflatten(1, (heads, -1)).movedim(1, 0)


def _require_split(x: "Tensor", parts: int, name: str, option: str, *, axis: int) -> None:
    if x.ndim not in (2, 3):
        raise ShapeError(f"{name} must have 2 or 3 axes, got the shape {tuple(x.shape)}.")
    if x.ndim == 3 and len(x) != parts:
        raise ShapeError(f"{name} must have {parts} {option} along its first axis, got the shape {tuple(x.shape)}.")
    if x.ndim == 2 and x.shape[axis] % parts:
        lines = ("rows", "columns")[axis]
        raise ShapeError(f"{name} must split into {parts} {option}, but has {x.shape[axis]} {lines}; see --{option}.")
