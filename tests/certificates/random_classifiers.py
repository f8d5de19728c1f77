"""Classifiers to attack, drawn by number: random ones of every shape, ones of wild scales, and a trained one."""

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from networks import classifier

import howsmooth as hs
from howsmooth.certificates.sentences import classifier_at
from howsmooth.maps.activations import ACTIVATIONS
from howsmooth.models.inputs.model_inputs import read_sentence

TEXTS = ("a gripping film", "dull and much too long", "it is not without charm .", "one of the best films of the year")
SCALES = (1e-3, 1e-2, 0.1, 1.0, 1.0, 1.0, 10.0, 100.0, 1e3)
Choose = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A classifier at an input, with tokens that move in a ball."""

    f: hs.maps.Chain
    X: torch.Tensor
    tokens: torch.Tensor
    p: float
    what: str


def draw(seed: int) -> Drawn:
    """Draw a scene; the same for the same seed. Every third one is wild, every tenth one trained."""
    choose = np.random.default_rng(seed)
    f, X, what = _trained(choose) if seed % 10 == 9 else _random(seed, choose)
    if seed % 3 == 2:
        f, X, wild = hs.maps.Chain(*(_wild(part, choose) for part in f.maps)), *_wild_tokens(X, choose)
        what += wild
    n, p = len(X), float(choose.choice([1.0, 2.0, 2.0, math.inf]))
    tokens = torch.tensor(sorted(choose.choice(n, size=1 if choose.random() < 0.8 else 2, replace=False).tolist()))
    return Drawn(f=f, X=X, tokens=tokens, p=p, what=f"seed {seed}: {what}, tokens {tokens.tolist()}, p = {p:g}")


def _random(seed: int, choose: Choose) -> tuple[hs.maps.Chain, torch.Tensor, str]:
    options = {
        "layers": 1 + seed % 6,
        "activation": sorted(ACTIVATIONS)[seed % len(ACTIVATIONS)],
        "norm": ("layer", "rms")[int(choose.integers(2))],
        "before": bool(choose.integers(2)),
        "gated": bool(choose.random() < 0.25),
        "causal": bool(choose.integers(2)),
        "n": int(choose.integers(2, 6)),
    }
    if choose.random() < 0.2:
        options["rotary"] = hs.maps.Rotary(base=100.0)
    rng = torch.Generator().manual_seed(seed)
    f = classifier(rng, **options)
    # trained networks attend more sharply than random ones, and their MLPs are steeper
    sharp = float(choose.choice([1.0, 1.0, 3.0]))
    f = hs.maps.Chain(*(_sharper(part, sharp) for part in f.maps))
    X = float(choose.choice([0.1, 1.0, 1.0, 5.0])) * torch.randn(options["n"], 8, generator=rng, dtype=torch.float64)
    return f, X, f"{options}, times {sharp:g}"


@functools.cache
def _reviews() -> hs.Transformer:
    return hs.load("reviews", dtype=torch.float64)


def _trained(choose: Choose) -> tuple[hs.maps.Chain, torch.Tensor, str]:
    text = str(choose.choice(TEXTS))
    at, layer = [("embeddings", 0), ("attention", 0), ("attention", 2)][int(choose.integers(3))]
    f, X = classifier_at(_reviews(), torch.tensor(read_sentence(_reviews(), text)), at=at, layer=layer)
    return f, X, f"reviews, {text!r}, at {at} {layer}"


def _sharper(part: object, times: float) -> object:
    if isinstance(part, hs.maps.Residual):
        return hs.maps.Residual(_sharper(part.map, times))
    if isinstance(part, hs.maps.Chain):
        return hs.maps.Chain(*(_sharper(inner, times) for inner in part.maps))
    if isinstance(part, hs.Attention):
        return dataclasses.replace(part, query=times * part.query, value=times * part.value)
    return dataclasses.replace(part, up=times * part.up) if isinstance(part, hs.maps.MLP) else part


def _wild(part: object, choose: Choose) -> object:
    """Scale weights by powers of ten, turn scores round, draw the eps of norms anew."""
    if isinstance(part, hs.maps.Residual):
        return hs.maps.Residual(_wild(part.map, choose))
    if isinstance(part, hs.maps.Chain):
        return hs.maps.Chain(*(_wild(inner, choose) for inner in part.maps))
    if isinstance(part, hs.maps.LayerNorm | hs.maps.RMSNorm):
        return dataclasses.replace(part, eps=float(choose.choice([1e-12, 1e-9, 1e-6, 1e-4, 1e-2])))
    names = {hs.Attention: ("query", "value"), hs.maps.MLP: ("up", "down"), hs.maps.GatedMLP: ("gate", "up", "down")}
    scaled = {name: float(choose.choice(SCALES)) * getattr(part, name) for name in names.get(type(part), ())}
    if isinstance(part, hs.Attention):
        scaled["scale"] = part.score_scale * float(choose.choice([1.0, -1.0]))
    return dataclasses.replace(part, **scaled) if scaled else part


def _wild_tokens(X: torch.Tensor, choose: Choose) -> tuple[torch.Tensor, str]:
    """Scale tokens, and make some alike, nearly constant, or far from zero."""
    X = float(choose.choice([1e-6, 1e-3, 1.0, 1.0, 1e2, 1e4])) * X
    how = str(choose.choice(["as they are", "alike", "nearly constant", "far away"]))
    if how == "alike":
        X = X[:1].repeat(len(X), 1)
    elif how == "nearly constant":
        X = torch.cat((X[:1].mean() + 1e-7 * X[:1], X[1:]))
    elif how == "far away":
        X = X + 1e3 * X.abs().max()
    return X, f", wild, tokens {how} of size {float(X.abs().max()):.1e}"
