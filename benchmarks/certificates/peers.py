"""Run one peer on one network: the same sentences and positions as ours, in the peer's own environment.

    python benchmarks/certificates/peers.py crown TASK.json --checkout PATH

``compare.py`` writes the task and calls this script; nothing of howsmooth is imported here, and nothing of a peer is
copied: what they need is read from checkouts that the reader supplies. A task names the folder of a network, and for
every sentence its label, its embeddings before the first norm, positions and our radii there, our margin and its slope
at the first of them. Peers compute in float32. One line of JSON is printed for every position.
"""

import argparse
import gc
import importlib
import json
import math
import resource
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Radii are known to this share of themselves, and are called zero below the smallest.
RTOL = 0.01
SMALLEST = 1e-7
# A bracket of a radius is looked for by this factor, then by its square, and so on.
WIDEN = 1.15
# A peer bounds our network if its bound at a small radius is our margin less its exact first order. At the smallest
# ones single precision fails some.
SMALL, SAME = (1e-6, 1e-5, 1e-4, 1e-3), 1e-3

# From a word and how far it may move to the least margin that is proven.
Proof = Callable[[int, float], float]
Model = Any


def crown(model: Model, X: torch.Tensor, label: int, checkout: Path) -> Proof:
    """Bound the margin by auto_LiRPA's CROWN."""
    sys.path.insert(0, str(checkout))
    lirpa: Any = importlib.import_module("auto_LiRPA")
    perturbations: Any = importlib.import_module("auto_LiRPA.perturbations")
    gelu: Any = importlib.import_module("auto_LiRPA.operators.gelu").GELU()

    class OneWord(torch.nn.Module):
        """From the embedding of one word to the margin."""

        def __init__(self, word: int) -> None:
            super().__init__()
            self.word, self.network = word, plain(model, label, gelu)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before, behind = X[None, : self.word], X[None, self.word + 1 :]
            found: torch.Tensor = self.network(torch.cat((before, x, behind), dim=1))
            return found

    def proven(word: int, eps: float) -> float:
        gc.collect()  # graphs refer to themselves, and hold gigabytes
        x = X[None, word : word + 1]
        bounded = lirpa.BoundedModule(OneWord(word), x, device="cpu")
        ball = lirpa.BoundedTensor(x, perturbations.PerturbationLpNorm(norm=2, eps=eps))
        try:
            with torch.no_grad():
                low, _high = bounded.compute_bounds(x=(ball,), method="CROWN", bound_upper=False)
        except AssertionError:  # an interval leaves the domain of a relaxation
            return -math.inf
        return float(low.min())

    return proven


def baf(model: Model, X: torch.Tensor, label: int, checkout: Path) -> Proof:
    """Bound the margin by the backward-and-forward relaxation of Shi et al."""
    _without_data(checkout)
    torch.Tensor.cuda = lambda self, *_args, **_others: self  # type: ignore[method-assign]
    home: Any = importlib.import_module("Verifiers.VerifierBackward")
    home.check = lambda *_args, **_others: None
    args = _arguments("baf")
    verifier = home.VerifierBackward(args, types.SimpleNamespace(model=model), None)
    verifier.layer_norm, verifier.std = "standard", _Anything()

    def proven(word: int, eps: float) -> float:
        safe = verifier.verify_safety({"label": label}, X[None], word, eps)
        last = verifier.controller.layers[-1]
        # it gives up where an interval leaves the domain of a relaxation
        return -math.inf if safe is False else _least(last.l[0][0], last.u[0][0], label)

    return proven


def deept(model: Model, X: torch.Tensor, label: int, checkout: Path) -> Proof:
    """Bound the margin by DeepT-Fast, with the options that its authors give for a standard LayerNorm."""
    _without_data(checkout)
    home: Any = importlib.import_module("Verifiers.VerifierZonotope")
    args = _arguments("zonotope")
    args.num_input_error_terms = X.shape[-1]
    verifier = home.VerifierZonotope(args, types.SimpleNamespace(model=model), None)
    verifier.layer_norm = "standard"

    def proven(word: int, eps: float) -> float:
        found = verifier.get_bounds_difference_in_scores(X[None], word, eps)
        if found is None:
            return -math.inf
        low, high = found
        return _least(low, high, label)

    return proven


def plain(model: Model, label: int, gelu: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """Return the network from embeddings to the margin, in operations that auto_LiRPA knows, among them its GELU."""
    config = model.config

    class Norm(torch.nn.Module):
        """LayerNorm written out."""

        def __init__(self, norm: Model) -> None:
            super().__init__()
            self.gain, self.bias, self.eps = norm.weight.detach(), norm.bias.detach(), norm.eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            centred = x - x.mean(-1, keepdim=True)
            # a square, not a product: CROWN's relaxation of it is tighter
            variance = centred.pow(2).mean(-1, keepdim=True)
            return centred / torch.sqrt(variance + self.eps) * self.gain + self.bias

    class Margin(torch.nn.Module):
        """From embeddings to the margin."""

        def __init__(self) -> None:
            super().__init__()
            bert = model.bert
            self.first, self.pooler = Norm(bert.embeddings.LayerNorm), bert.pooler.dense
            self.layers = torch.nn.ModuleList(bert.encoder.layer)
            both = [(layer.attention.output.LayerNorm, layer.output.LayerNorm) for layer in bert.encoder.layer]
            self.norms = torch.nn.ModuleList(Norm(norm) for pair in both for norm in pair)
            weight, bias = model.classifier.weight, model.classifier.bias
            self.weight = (weight[label] - weight[1 - label]).detach()[:, None]
            self.bias = (bias[label] - bias[1 - label]).detach()

        def heads(self, x: torch.Tensor) -> torch.Tensor:
            count = config.num_attention_heads
            return x.view(x.shape[0], x.shape[1], count, x.shape[2] // count).permute(0, 2, 1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            width = (config.hidden_size // config.num_attention_heads) ** 0.5
            for i, layer in enumerate(self.layers):
                own: Any = layer.attention.self  # type: ignore[union-attr]
                q, k, v = self.heads(own.query(x)), self.heads(own.key(x)), self.heads(own.value(x))
                mean = torch.softmax(q.matmul(k.transpose(-1, -2)) / width, dim=-1).matmul(v)
                mean = mean.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], config.hidden_size)
                x = self.norms[2 * i](layer.attention.output.dense(mean) + x)  # type: ignore[union-attr,operator]
                hidden = layer.intermediate.dense(x)  # type: ignore[union-attr,operator]
                hidden = torch.relu(hidden) if config.hidden_act == "relu" else gelu(hidden)
                x = self.norms[2 * i + 1](layer.output.dense(hidden) + x)  # type: ignore[union-attr,operator]
            return torch.tanh(self.pooler(x[:, 0])).matmul(self.weight) + self.bias

    return Margin().to(model.dtype).eval()


PEERS = {"crown": crown, "baf": baf, "deept": deept}


def _least(low: torch.Tensor, high: torch.Tensor, label: int) -> float:
    """Turn bounds of the first logit less the second into the least margin of the label."""
    return float(-high if label else low)


class _Anything:
    """What checks against stored values would look at."""

    def __getitem__(self, _key: object) -> Any:
        return torch.zeros(99, 1, 1, 1, 1)


def _arguments(method: str) -> Any:
    """Return the options of both older verifiers, by their own parser."""
    Parser: Any = importlib.import_module("Parser").Parser
    given = ["--method", method, "--p", "2", "--layer_norm", "standard", "--dir", "none", "--data", "sst"]
    if method == "zonotope":
        given += ["--cpu", "--max-num-error-terms", "14000", "--error-reduction-method", "box"]
        given += ["--add-softmax-sum-constraint"]
    parser = Parser.get_parser() if hasattr(Parser, "get_parser") else Parser().getParser()
    args = parser.parse_args(given)
    args.device, args.num_perturbed_words, args.with_lirpa_transformer = "cpu", 1, False
    return args


def _without_data(checkout: Path) -> None:
    """Let a checkout be imported without its data sets and its own copies of models."""
    inner = checkout / "Robustness-Verification-for-Transformers"
    sys.path.insert(0, str(inner if inner.exists() else checkout))
    # where numpy kept this once
    sys.modules["numpy.linalg.linalg"] = np.linalg
    for name in ("data_utils", "Models.BERT", "vit", "Verifiers.synonym_attack"):
        stub = types.ModuleType(name)
        stub.__getattr__ = lambda _name: None  # type: ignore[method-assign]
        sys.modules[name] = stub


def radius(proven: Proof, word: int, begin: float) -> tuple[float, float, int]:
    """Return the largest radius that holds, zero for none, one that does not, and how many were tried."""
    low, high, eps, factor, count = 0.0, math.inf, begin, WIDEN, 0
    while not (high - low <= RTOL * high < math.inf or high < SMALLEST):
        low, high, count = (eps, high, count + 1) if proven(word, eps) > 0 else (low, eps, count + 1)
        if low > 0 and high < math.inf:
            eps = (low * high) ** 0.5
        else:
            eps, factor = (eps * factor if low > 0 else eps / factor), factor**2
    return low, high, count


def rows(peer: str, model: Model, task: dict[str, Any], checkout: Path) -> Iterator[dict[str, Any]]:
    """Yield the radius at every position; the search begins at the last share of ours."""
    share = task["share"]
    for sentence in task["sentences"]:
        X = torch.tensor(sentence["embeddings"], dtype=torch.float32)
        proven = PEERS[peer](model, X, sentence["label"], checkout)
        first, margin, slope = sentence["words"][0], sentence["margin"], sentence["slope"]
        offs = (proven(first, eps) - (margin - slope * eps) for eps in SMALL)
        off = next((off for off in offs if abs(off) < SAME), None)
        if off is None:
            raise SystemExit(f"{peer} bounds another network: near the centre its margin is not {margin}.")
        for word, own in zip(sentence["words"], sentence["radii"], strict=True):
            began = time.process_time()
            low, high, count = radius(proven, word, share * own)
            share = max(low, SMALLEST) / own
            seconds, memory = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            row = {"sentence": sentence["number"], "word": word, "radius": low, "fails": high, "tried": count}
            yield {**row, "off": off, "seconds": seconds, "megabytes": memory}


def main() -> None:
    """Read a task and print radii."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("task", type=Path)
    parser.add_argument("--checkout", type=Path, required=True)
    asked = parser.parse_args()
    from transformers import BertForSequenceClassification

    task = json.loads(asked.task.read_text())
    model: Model = BertForSequenceClassification.from_pretrained(task["home"]).float().eval().requires_grad_(False)
    for row in rows(asked.peer, model, task, asked.checkout):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
