"""The reader of weights: the map with a given fingerprint, in a model, in a file, or as it is; and of sentences."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from howsmooth.check.graph import Graph
from howsmooth.check.outcomes import CannotCheck
from howsmooth.errors import AssumptionError, HowsmoothError
from howsmooth.models.loading.adapters import changed_forward
from howsmooth.proof_files import Step, file_fingerprint, fingerprint, steps_of

ARRAY_FILES = (".npz", ".safetensors")


def opened(model: Any, about: dict[str, Any]) -> Any:
    """Return the model of a name, once for all that is read of it; maps and files as they are."""
    if not isinstance(model, str | os.PathLike) or is_array_file(model) or "steps" not in about:
        return model
    if Path(model).suffix == ".onnx":
        raise CannotCheck("the proof is about a map or a model, and no ONNX file")
    from howsmooth.models.load import load

    return load(os.fspath(model))


def subject_of(model: Any, about: dict[str, Any]) -> "list[Step] | Graph":
    """Return what a proof is about: a map as steps, or a network as the graph of its file.

    Args:
        model: A model, a ``.npz`` or ``.safetensors`` file with the arrays of one layer, an ONNX file, or a map.
        about: What the file says of it: a fingerprint, and of a map the steps without their weights.

    Raises:
        CannotCheck: If it has another fingerprint.
    """
    if "steps" not in about:
        if not isinstance(model, str | os.PathLike) or is_array_file(model):
            raise CannotCheck("the proof is about an ONNX file, and needs that")
        try:
            if file_fingerprint(model) == about["sha256"]:
                return Graph(model)
        except CannotCheck:
            raise
        except Exception as error:  # it is not there, or no ONNX file
            raise CannotCheck(f"the network cannot be read: {str(error).splitlines()[0]}") from error
        raise CannotCheck("the file of the network is another one than that of the proof: it has other bytes")
    try:
        for found in _candidates(model, about):
            for steps in (found, picked_early(found)):
                if fingerprint(steps) == about["sha256"]:
                    return steps
    except HowsmoothError as error:
        raise CannotCheck(f"the model is not read: {error}") from error
    raise CannotCheck("the weights are others than those of the proof: no map here has its fingerprint")


def is_array_file(model: Any) -> bool:
    """Tell whether a model is named by a file of arrays."""
    return isinstance(model, str | os.PathLike) and Path(model).suffix in ARRAY_FILES


def picked_early(steps: list[Step]) -> list[Step]:
    """Return the same map with a pooling that picks one token moved before all steps that act on single tokens."""
    found = list(steps)
    for place in reversed(range(1, len(found))):
        weights = found[place].arrays.get("weights", np.zeros(0)) if found[place].kind == "pooling" else np.zeros(0)
        picks = weights.ndim == 1 and np.count_nonzero(weights) == 1 and weights.max() == 1
        if picks and found[place - 1].kind in ("norm", "mlp"):
            found[place - 1 : place + 1] = found[place], found[place - 1]
    return found


def _candidates(model: Any, about: dict[str, Any]) -> Iterator[list[Step]]:
    if is_array_file(model):
        described = about.get("steps")
        if isinstance(described, list) and len(described) == 1 and isinstance(described[0], dict):
            settings = described[0].get("settings")
            settings = settings if isinstance(settings, dict) else {}
            yield [Step(str(described[0].get("kind")), settings, _of_one_head(_arrays(model)))]
        return
    if not hasattr(model, "layers"):
        yield steps_of(model)
        return
    if why := changed_forward(model.with_head or model.module):
        raise CannotCheck(f"the model is more than its weights: {why}")
    words = [shape for step in _described(about) for shape in step.get("shapes", {}).get("weights", [])]
    if words:  # what pools tokens says how many there are
        yield _classifier(model, words[0])
        return
    for layer in model.layers:
        yield from _attention_of(layer)


def _described(about: dict[str, Any]) -> list[dict[str, Any]]:
    found = about.get("steps")
    return [step for step in found if isinstance(step, dict)] if isinstance(found, list) else []


def _classifier(model: Any, n: int) -> list[Step]:
    """Return a classifier on sentences of so many tokens, from their embeddings on."""
    import torch

    f, _X = model.activations(torch.ones(1, n, dtype=torch.long)).at(0, "classes")
    return steps_of(f)


def read_sentence(model: Any, sentence: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the embeddings of a sentence, the logits that the module itself computes in float64, and its tokens."""
    import torch

    from howsmooth.models.autograd.hooks import first_tensor
    from howsmooth.models.inputs import model_inputs

    if not hasattr(model, "layers"):
        raise CannotCheck("a sentence is read by a model with a tokenizer, and this is a map or a file")
    try:
        model.require_in_memory("a sentence")
        tokens = model_inputs.read_sentence(model, sentence)
        _f, X = model.activations(torch.tensor([tokens])).at(0, "classes")
        module = copy.deepcopy(model.with_head or model.module).to("cpu", torch.float64)
        with torch.no_grad():
            logits = first_tensor(module(torch.tensor([tokens])))
    except Exception as error:  # modules have their own ways not to run
        raise CannotCheck(f"the model does not read the sentence: {error}") from error
    return X[0].cpu().double().numpy(), logits.flatten().numpy(), model.require_tokenizer().pieces(tokens)


def _attention_of(layer: Any) -> Iterator[list[Step]]:
    """Yield the attention of a layer, and each of its heads."""
    try:
        attention = layer.map("attention")
        yield steps_of(attention)
        for h in range(attention.layout.heads):
            yield steps_of(attention.head(h))
    except AssumptionError:
        return


def _of_one_head(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return A and V, if a file holds these, as queries, keys and values of one head: scores are ⟨Ax, y⟩."""
    if "A" not in arrays:
        return arrays
    unit = np.eye(len(arrays["A"]))
    return {"query": arrays["A"][None], "key": unit[None], "value": arrays.get("V", unit)[None]}


def _arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    if Path(path).suffix == ".npz":
        with np.load(path) as file:
            return {name: np.asarray(file[name], dtype=np.float64) for name in file.files}
    from safetensors.numpy import load_file

    return {name: np.asarray(x, dtype=np.float64) for name, x in load_file(path).items()}
