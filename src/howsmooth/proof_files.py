"""Proof files: what a result claims, and all that a second program needs to check it (docs, :ref:`proofs`).

A map enters as steps: the kind of each, its settings, and its weights as arrays of float64, which hold float32 exactly.
"""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from howsmooth.errors import AssumptionError
from howsmooth.files import whole
from howsmooth.rounding import PROOF_ROOM

FORMAT = "howsmooth proof 2"


@dataclass(frozen=True, eq=False)
class Step:
    """One map on tokens."""

    kind: str  # ``attention``, ``norm``, ``mlp``, ``pooling``, ``dense``, ``pointwise`` or ``affine``
    settings: dict[str, Any]  # what is no array, as plain values
    arrays: dict[
        str, Any
    ]  # the weights by their names, arrays of numpy; balls where a checker knows them up to a radius

    def described(self) -> dict[str, Any]:
        """Return all but the weights themselves."""
        shapes = {name: list(self.arrays[name].shape) for name in sorted(self.arrays)}
        return {"kind": self.kind, "settings": self.settings, "shapes": shapes}


def steps_of(f: Any) -> list[Step]:
    """Return a map as steps.

    Raises:
        AssumptionError: If it holds a map, or an option of one, that proof files do not know.
    """
    name = type(f).__name__
    if name == "Chain":
        return [step for part in f.maps for step in steps_of(part)]
    if name == "Residual":
        *first, last = steps_of(f.map)
        if last.settings.get("residual"):
            raise AssumptionError("proof files do not know a residual connection that ends where another one does.")
        return [*first, Step(last.kind, {**last.settings, "residual": len(first) + 1}, last.arrays)]
    if name not in READERS:
        raise AssumptionError(f"proof files know {', '.join(READERS)} and chains of these, got {name}.")
    return [READERS[name](f)]


def _attention(f: Any) -> Step:
    unknown = {
        **{name: getattr(f, name) for name in ("query_norm", "key_norm", "softcap", "sink", "weights")},
        **{name: value for name, value in vars(f.positions).items() if name != "causal"},
    }
    found = [name for name, value in unknown.items() if value is not None]
    if found or f.query.ndim != 3:
        raise AssumptionError(f"proof files do not know attention with {', '.join(found) or 'batch axes'}.")
    names = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")
    settings = {"scale": float(f.score_scale), "causal": bool(f.positions.causal)}
    return Step("attention", settings, _arrays(f, names))


def _norm(f: Any) -> Step:
    settings = {"eps": float(f.eps), "centred": type(f).__name__ == "LayerNorm"}
    return Step("norm", settings, _arrays(f, ("gain", "bias")))


def _mlp(f: Any) -> Step:
    activation = getattr(f.activation, "name", str(f.activation))
    return Step("mlp", {"activation": activation}, _arrays(f, ("up", "up_bias", "down", "down_bias")))


def _pooling(f: Any) -> Step:
    return Step("pooling", {}, _arrays(f, ("weights",)))


def _pointwise(f: Any) -> Step:
    return Step("pointwise", {"activation": f.activation.name}, {})


def _dense(f: Any) -> Step:
    return Step("dense", {}, _arrays(f, ("weight", "bias")))


def _affine(f: Any) -> Step:
    return Step("affine", {}, _arrays(f, ("weight", "bias")))


READERS = {
    "Attention": _attention,
    "LayerNorm": _norm,
    "RMSNorm": _norm,
    "MLP": _mlp,
    "Pooling": _pooling,
    "Pointwise": _pointwise,
    "Dense": _dense,
    "Affine": _affine,
}


def _arrays(f: Any, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    there = {name: getattr(f, name, None) for name in names}
    return {name: x.detach().cpu().double().numpy() for name, x in there.items() if x is not None}


def fingerprint(steps: list[Step]) -> str:
    """Return the SHA-256 of the descriptions, as JSON, followed by all arrays, as little-endian float64 in C order."""
    text = json.dumps([step.described() for step in steps], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode())
    for step in steps:
        for name in sorted(step.arrays):
            digest.update(np.ascontiguousarray(step.arrays[name], dtype="<f8").tobytes())
    return digest.hexdigest()


def file_fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the bytes of an ONNX file, then of the files beside it that hold its weights."""
    import onnx

    digest = hashlib.sha256(Path(path).read_bytes())
    tensors = onnx.load(os.fspath(path), load_external_data=False).graph.initializer
    beside = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    for name in sorted(beside):
        digest.update((Path(path).parent / name).read_bytes())
    return digest.hexdigest()


def write_proof(path: str | os.PathLike[str], f: Any, claims: list[dict[str, Any]]) -> None:
    """Write claims about a map, or about the network in an ONNX file; each with what a checker needs.

    Raises:
        AssumptionError: If the path does not end in ``.json``, a number is not finite, or the map is not known.
    """
    target = Path(path)
    if target.suffix != ".json":
        raise AssumptionError(f"a proof is saved as .json, got {target.name!r}; change the ending.", field="path")
    about: dict[str, Any]
    if isinstance(f, str | os.PathLike):
        about = {"file": Path(f).name, "sha256": file_fingerprint(f)}
    else:
        steps = steps_of(f)
        about = {"sha256": fingerprint(steps), "steps": [step.described() for step in steps]}
    try:
        text = json.dumps({"format": FORMAT, "map": about, "claims": claims}, allow_nan=False)
    except ValueError as error:
        raise AssumptionError("a proof needs finite numbers, and this result has others.") from error
    with whole(target) as partial:
        partial.write_text(text, encoding="utf-8")


def lower_claim(f: Any, tokens: Any, direction: Any, attained: float, radius: float | None) -> dict[str, Any]:
    """Claim that a direction at given tokens is stretched by so much, whatever is ``attained`` in float64 at most."""
    import torch

    wide, X, E = f.to(torch.float64, "cpu"), tokens.detach().cpu().double(), direction.detach().cpu().double()
    with torch.no_grad():
        there = float(wide.jacobian(X).jvp(E).norm() / E.norm())
    if not math.isfinite(there) or not there >= attained * (1 - 1e-5):
        raise AssumptionError(f"the stored direction attains {there}, less than {attained}: there is nothing to save.")
    domain = {} if radius is None else {"radius": float(radius)}
    value = min(there, float(attained)) * (1 - PROOF_ROOM)
    return {"kind": "lower", "value": value, **domain, "tokens": X.tolist(), "direction": E.tolist()}
