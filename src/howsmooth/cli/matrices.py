"""Read the matrices of attention from files: the options that name them, and the map they make."""

import dataclasses
import difflib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.model_layers import read_layer
from howsmooth.errors import AssumptionError, DtypeError, FileError, NonFiniteError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from howsmooth.maps.attention import Attention

ENDINGS = (".npz", ".npy", ".safetensors")
PANEL = "Weights (.npz, .npy or .safetensors)"


def _file(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", metavar="FILE[:KEY]", help=text, rich_help_panel=PANEL, show_default=False)


OptionA = Annotated[str | None, _file("A", "The matrix of the scores, (d, d).")]
OptionV = Annotated[str | None, _file("V", "The value matrix, (v, d); the identity if left out.")]
OptionQuery = Annotated[str | None, _file("query", "Queries, (heads, k, d) or (heads·k, d).")]
OptionKey = Annotated[str | None, _file("key", "Keys, (groups, k, d) or (groups·k, d).")]
OptionValue = Annotated[str | None, _file("value", "Values, (groups, v, d) or (groups·v, d).")]
OptionOutput = Annotated[str | None, _file("output", "Output projection, (heads, out, v) or (out, heads·v).")]
OptionHeads = Annotated[
    int | None, typer.Option("--heads", help="Heads in a 2-D matrix; 1 if left out.", rich_help_panel=PANEL)
]
OptionGroups = Annotated[
    int | None,
    typer.Option(
        "--groups", help="Heads in 2-D keys and values; as many as queries if left out.", rich_help_panel=PANEL
    ),
]
OptionScale = Annotated[
    float | None,
    typer.Option("--scale", help="What scores are multiplied by; with --A 1, else 1/√k.", rich_help_panel=PANEL),
]
OptionCausal = Annotated[
    bool, typer.Option("--causal", help="A token sees only itself and the past.", rich_help_panel=PANEL)
]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Where the weights of a layer are, as written on the command line: each ``FILE`` or ``FILE:KEY``.

    Attributes:
        A: The bilinear form of a single head.
        V: The values of a single head; the identity if ``None``.
        query: The queries of all heads.
        key: The keys of all groups.
        value: The values of all groups.
        output: The output projection; heads are concatenated if ``None``.
        heads: Into how many heads a 2-D matrix is split.
        groups: Into how many groups 2-D keys and values are split.
        scale: What scores are multiplied by.
        causal: Whether a token sees only itself and the past.
        model: A model whose layer stands in place of files.
        layer: Which one.
        part: Which part of it.
        besides: What else the command takes in place of weights, in words.
    """

    A: str | None = None
    V: str | None = None
    query: str | None = None
    key: str | None = None
    value: str | None = None
    output: str | None = None
    heads: int | None = None
    groups: int | None = None
    scale: float | None = None
    causal: bool = False
    model: str | None = None
    layer: int | None = None
    part: str = "attention"
    besides: str = ""

    @property
    def sources(self) -> dict[str, str]:
        """The files by the name of their option."""
        named = {name: getattr(self, name) for name in ("A", "V", "query", "key", "value", "output")}
        return {name: source for name, source in named.items() if source is not None}

    @property
    def about(self) -> dict[str, str]:
        """What is kept beside an input that was built from these weights."""
        from howsmooth import __version__

        layer = {"model": self.model, "layer": str(self.layer), "map": self.part} if self.model is not None else {}
        return {"howsmooth": __version__} | layer | self.sources

    def __post_init__(self) -> None:
        """Refuse options that contradict each other, before any file is opened."""
        if self.model is not None or self.layer is not None:
            self._require_model_alone()
            return
        given, single = set(self.sources), {"A", "V"}
        if given & single and given - single:
            raise AssumptionError(
                f"give either --A and --V, or --query, --key and --value; got {_flags(self.sources)} together."
            )
        missing = [name for name in ("query", "key", "value") if name not in given]
        if "A" not in given and missing:
            raise AssumptionError(
                f"give the weights: --A and --V for one head, or --query, --key and --value{self.besides}; "
                f"got {_flags(self.sources) or 'none of them'}."
            )
        for name, many in (("heads", self.heads), ("groups", self.groups)):
            if many is not None and many < 1:
                raise AssumptionError(f"--{name} must be at least 1, got {many}.")
            if many is not None and many != 1 and "A" in given:
                raise AssumptionError(f"--{name} splits --query, --key and --value, but A is one head; leave it out.")

    def _require_model_alone(self) -> None:
        if self.model is None or self.layer is None:
            missing = "--model" if self.model is None else "--layer"
            raise AssumptionError(f"--model and --layer go together; {missing} is missing.")
        flags = {"heads": self.heads, "groups": self.groups, "scale": self.scale, "causal": self.causal or None}
        given = self.sources | {name: "" for name, value in flags.items() if value is not None}
        if given:
            raise AssumptionError(f"a layer of a model has its own weights, got {_flags(given)} too; leave them out.")

    def read(self) -> "Attention":
        """Read every file and build the layer; one dtype for all, float64 if any of them needs it."""
        import torch

        if self.model is not None and self.layer is not None:
            return read_layer(self.model, self.layer, self.part)
        read = {name: read_matrix(source, name) for name, source in self.sources.items()}
        double = any(x.dtype == torch.float64 for x in read.values())
        matrices = {name: x.to(torch.float64 if double else torch.float32) for name, x in read.items()}
        return self._single_head(matrices) if "A" in matrices else self._stacked(matrices)

    def _single_head(self, matrices: "dict[str, Tensor]") -> "Attention":
        import torch

        import howsmooth as hs

        A = matrices["A"]
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ShapeError(f"A must be a square matrix, (d, d), got the shape {tuple(A.shape)}.")
        V = matrices.get("V", torch.eye(len(A), dtype=A.dtype))
        if V.ndim != 2 or V.shape[1] != len(A):
            raise ShapeError(
                f"V must be a matrix with as many columns as A, (v, {len(A)}), got the shape {tuple(V.shape)}."
            )
        head = hs.Attention.single_head(A=A, V=V, causal=self.causal)
        return head if self.scale is None else dataclasses.replace(head, scale=self.scale)

    def _stacked(self, matrices: "dict[str, Tensor]") -> "Attention":
        import howsmooth as hs

        query = matrices["query"]
        heads = self.heads or (len(query) if query.ndim == 3 else 1)
        shared = [len(matrices[name]) for name in ("key", "value") if matrices[name].ndim == 3]
        groups = self.groups or (shared[0] if shared else heads)
        output = matrices.get("output")
        return hs.Attention(
            query=_split_rows(query, heads, "query", "heads"),
            key=_split_rows(matrices["key"], groups, "key", "groups"),
            value=_split_rows(matrices["value"], groups, "value", "groups"),
            output=None if output is None else _split_columns(output, heads),
            scale=self.scale,
            positions=hs.Positions(causal=self.causal),
        )


def _flags(names: "dict[str, str]") -> str:
    return ", ".join(f"--{name}" for name in names)


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


def read_matrix(source: str, name: str) -> "Tensor":
    """Read one array as a tensor of float32 or float64, whichever loses nothing.

    Args:
        source: ``FILE`` or ``FILE:KEY``.
        name: The option it was given to, and the key that is tried if none is given.

    Raises:
        FileError: If there is no such file or key, or the file is damaged.
        DtypeError: If the entries are not real numbers.
        ShapeError: If the array is empty.
        NonFiniteError: If an entry is NaN or infinite.
    """
    import torch

    path, key = split_source(source)
    read = _read_safetensors if path.suffix == ".safetensors" else _read_numpy
    with _explained(path):
        x = read(path, key, name)
    if x.numel() == 0:
        raise ShapeError(f"{name} must not be empty, but has the shape {tuple(x.shape)} in {str(path)!r}.")
    bad = x.numel() - int(torch.isfinite(x).sum())
    if bad:
        raise NonFiniteError(
            f"{name} must be finite, but {bad} of its {x.numel()} entries in {str(path)!r} are NaN or infinite."
        )
    return x


def split_source(source: str) -> tuple[Path, str | None]:
    """Split ``FILE:KEY`` into an existing file and a key; a name that exists as a whole is a file, colons and all."""
    cuts = [i for i, letter in enumerate(source) if letter == ":"]
    for cut in [len(source), *reversed(cuts)]:
        if os.path.exists(source[:cut]):
            path = Path(source[:cut])
            _require_readable(path)
            return path, source[cut + 1 :] if cut < len(source) else None
    file, _colon, _key = source.rpartition(":")
    missing = file if file.endswith(ENDINGS) else source
    raise FileError(f"there is no file {missing!r}; write FILE or FILE:KEY.")


def _require_readable(path: Path) -> None:
    if path.is_dir():
        raise FileError(f"{str(path)!r} is a folder; name a file in it that ends in {', '.join(ENDINGS)}.")
    if not path.is_file():
        raise FileError(f"{str(path)!r} is not a regular file.")
    if path.suffix not in ENDINGS:
        raise FileError(f"{str(path)!r} must end in one of {', '.join(ENDINGS)}.")
    if not os.access(path, os.R_OK):
        raise FileError(f"{str(path)!r} may not be read; see its permissions.")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn whatever a reader stumbles over in a damaged file into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks of the reader on the header of a file
            yield
    except (DtypeError, FileError):
        raise
    except MemoryError as error:
        raise FileError(f"{str(path)!r} does not fit into memory, or is damaged.") from error
    except Exception as error:
        raise FileError(
            f"{str(path)!r} cannot be read: not a {path.suffix} file, cut short, or damaged "
            "(pickled Python objects are never loaded)."
        ) from error


def _read_numpy(path: Path, key: str | None, name: str) -> "Tensor":
    import numpy as np

    with path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            return _from_numpy(loaded[_choose(loaded.files, path, key, name)], path, name)
    if key is not None:
        raise FileError(f"{str(path)!r} holds one array without a name; leave :{key} out.")
    return _from_numpy(loaded, path, name)


def _from_numpy(array: "np.ndarray", path: Path, name: str) -> "Tensor":
    import numpy as np
    import torch

    if array.dtype.kind not in "fiu":
        raise DtypeError(f"{name} must hold real numbers, but is {array.dtype} in {str(path)!r}.")
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, and is refused as such
        native = np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)
    return torch.from_numpy(native).reshape(array.shape)


def _read_safetensors(path: Path, key: str | None, name: str) -> "Tensor":
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        x: Tensor = file.get_tensor(_choose(list(file.keys()), path, key, name))
    if x.is_complex() or x.dtype == torch.bool:
        raise DtypeError(f"{name} must hold real numbers, but is {x.dtype} in {str(path)!r}.")
    single = x.is_floating_point() and x.dtype != torch.float64
    return x.to(torch.float32 if single else torch.float64, copy=True)


def _choose(names: list[str], path: Path, key: str | None, name: str) -> str:
    """Pick the array that was named, or the only one, or the one called like the option."""
    if not names:
        raise FileError(f"{str(path)!r} holds no arrays.")
    if key is not None:
        if key in names:
            return key
        nearest = _nearest(key, names)
        hint = f"did you mean {nearest!r}?" if nearest else "choose one of them."
        raise FileError(f"{str(path)!r} has no array {key!r}; it holds {_listed(names)}: {hint}")
    if len(names) == 1:
        return names[0]
    if name in names:
        return name
    example = f"{path}:{_nearest(name, names) or names[0]}"
    raise FileError(
        f"{str(path)!r} holds {len(names)} arrays, {_listed(names)}: name the one for --{name}, as in {example!r}."
    )


def _nearest(key: str, names: list[str]) -> str | None:
    folded = {name.lower(): name for name in reversed(names)}
    return next((folded[match] for match in difflib.get_close_matches(key.lower(), folded, n=1, cutoff=0.4)), None)


def _listed(names: list[str], most: int = 12) -> str:
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([repr(name) for name in names[:most]] + rest)
