"""One list of maps that every operator meets, each with its input; all parameters random, all numbers float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import howsmooth as hs
from howsmooth.maps.positions import Distances

N, D = 7, 6  # tokens and their dimension


@dataclass(frozen=True)
class Case:
    """A map with a name."""

    name: str
    make: Callable[[Callable[..., Tensor]], Callable[[Tensor], Tensor]]
    batch: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name

    def build(self, rng: torch.Generator) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        def gauss(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=rng)

        return self.make(gauss), gauss(*self.batch, N, D)


def layer(gauss, *, heads=3, groups=None, k=4, v=3, out=5, biases=True, **options) -> hs.Attention:
    """Multi-head attention with every parameter random and no two widths alike."""
    groups = heads if groups is None else groups
    bias = {
        "query_bias": gauss(heads, k),
        "key_bias": gauss(groups, k),
        "value_bias": gauss(groups, v),
        "output_bias": gauss(out),
    }
    return hs.Attention(
        query=gauss(heads, k, D),
        key=gauss(groups, k, D),
        value=gauss(groups, v, D),
        output=gauss(heads, out, v),
        **(bias if biases else {}),
        **options,
    )


def layer_norm(gauss, d=D) -> hs.maps.LayerNorm:
    return hs.maps.LayerNorm(gain=gauss(d), bias=gauss(d), eps=0.1)


def rms_norm(gauss, d=D) -> hs.maps.RMSNorm:
    return hs.maps.RMSNorm(gain=gauss(d), bias=gauss(d), eps=0.1)


def mlp(gauss, *, hidden=8, out=5, **options) -> hs.maps.MLP:
    return hs.maps.MLP(
        up=gauss(hidden, D), down=gauss(out, hidden), up_bias=gauss(hidden), down_bias=gauss(out), **options
    )


def gated_mlp(gauss, *, hidden=8, out=5, **options) -> hs.maps.GatedMLP:
    biases = {"gate_bias": gauss(hidden), "up_bias": gauss(hidden), "down_bias": gauss(out)}
    return hs.maps.GatedMLP(gate=gauss(hidden, D), up=gauss(hidden, D), down=gauss(out, hidden), **biases, **options)


def boolean_mask(gauss, *lead: int) -> Tensor:
    return (gauss(*lead, N, N) > 0) | torch.eye(N, dtype=torch.bool)


def _additive(gauss) -> Tensor:
    mask = gauss(3, N, N)
    mask[:, 2, 5] = -torch.inf
    return mask


def _distances(gauss) -> Distances:
    return Distances(keys=gauss(3, 2 * N + 3, 4), queries=gauss(3, 2 * N + 3, 4))


PADDING = torch.tensor([True, True, False, True, True, False, True])

POSITIONS: dict[str, Callable[..., hs.maps.Positions]] = {
    "unmasked": lambda g: hs.maps.Positions(),
    "causal": lambda g: hs.maps.Positions(causal=True),
    "window": lambda g: hs.maps.Positions(window=3),
    "causal window": lambda g: hs.maps.Positions(causal=True, window=2),
    "padding": lambda g: hs.maps.Positions(padding=PADDING),
    "causal padding": lambda g: hs.maps.Positions(causal=True, padding=PADDING),
    "boolean mask": lambda g: hs.maps.Positions(mask=boolean_mask(g)),
    "mask per head": lambda g: hs.maps.Positions(mask=boolean_mask(g, 3)),
    "additive mask": lambda g: hs.maps.Positions(mask=_additive(g)),
    "relative bias": lambda g: hs.maps.Positions(relative_bias=g(3, 2 * N + 3)),
    "position bias": lambda g: hs.maps.Positions(causal=True, position_bias=g(3, N + 2)),
    "rotary": lambda g: hs.maps.Positions(rotary=hs.maps.Rotary()),
    "interleaved rotary": lambda g: hs.maps.Positions(causal=True, rotary=hs.maps.Rotary(interleaved=True, base=100.0)),
    "partial rotary": lambda g: hs.maps.Positions(rotary=hs.maps.Rotary(dim=2, positions=torch.arange(N) * 3 + 1)),
    "given frequencies": lambda g: hs.maps.Positions(rotary=hs.maps.Rotary(frequencies=g(2).abs())),
    "everything": lambda g: hs.maps.Positions(
        causal=True,
        window=5,
        padding=torch.tensor([True] * 6 + [False]),
        mask=_additive(g),
        relative_bias=g(1, 2 * N - 1),
        position_bias=g(1, N),
        rotary=hs.maps.Rotary(dim=2, interleaved=True),
    ),
}

SINGLE = [
    Case("bilinear form", lambda g: hs.Attention.single_head(A=g(D, D), V=g(D, D))),
    Case("causal form, rectangular V", lambda g: hs.Attention.single_head(A=g(D, D), V=g(2, D), causal=True)),
    *(Case(name, lambda g, p=p: layer(g, positions=p(g))) for name, p in POSITIONS.items()),
    *(
        Case(f"{name}, grouped queries", lambda g, p=p: layer(g, heads=6, groups=2, positions=p(g)))
        for name, p in POSITIONS.items()
        if "per head" not in name and name not in ("additive mask", "relative bias", "position bias", "everything")
    ),
    Case("no biases", lambda g: layer(g, biases=False)),
    Case("concatenated heads", lambda g: hs.Attention(query=g(2, 3, D), key=g(2, 3, D), value=g(2, 4, D))),
    Case("one narrow head", lambda g: layer(g, heads=1, k=1, v=2)),
    Case("wide keys, scale", lambda g: layer(g, k=9, scale=0.3)),
    Case("soft cap", lambda g: layer(g, softcap=1.5, positions=hs.maps.Positions(causal=True))),
    Case("query and key norms", lambda g: layer(g, query_norm=rms_norm(g, 4), key_norm=layer_norm(g, 4))),
    Case(
        "query norm, rotary, soft cap",
        lambda g: layer(
            g,
            heads=4,
            groups=2,
            softcap=2.0,
            query_norm=rms_norm(g, 4),
            key_norm=rms_norm(g, 4),
            positions=hs.maps.Positions(causal=True, rotary=hs.maps.Rotary()),
        ),
    ),
    Case("token weights", lambda g: layer(g, weights=g(N).exp())),
    Case("token weights, one zero", lambda g: layer(g, weights=torch.cat((g(N - 1).exp(), torch.zeros(1).double())))),
    Case("head of a layer", lambda g: layer(g, heads=4, groups=2).head(3)),
]

# No theorem covers these, nor those with norms over all heads.
DISTANCES = [
    Case("distances", lambda g: layer(g, positions=hs.maps.Positions(distances=_distances(g)))),
    Case(
        "distances, causal window",
        lambda g: layer(g, positions=hs.maps.Positions(causal=True, window=4, distances=_distances(g))),
    ),
    Case("distances, soft cap", lambda g: layer(g, softcap=1.5, positions=hs.maps.Positions(distances=_distances(g)))),
]

JOINT = [
    Case("norms over all heads", lambda g: layer(g, query_norm=rms_norm(g, 12), key_norm=rms_norm(g, 12))),
    Case("query norm over all heads, no biases", lambda g: layer(g, biases=False, query_norm=rms_norm(g, 12))),
    Case(
        "norms over all heads, grouped queries, rotary, soft cap",
        lambda g: layer(
            g,
            heads=4,
            groups=2,
            softcap=2.0,
            query_norm=rms_norm(g, 16),
            key_norm=rms_norm(g, 8),
            positions=hs.maps.Positions(causal=True, rotary=hs.maps.Rotary()),
        ),
    ),
]
UNCOVERED = DISTANCES + JOINT

NORMS = [
    Case("layer norm", layer_norm),
    Case("rms norm", rms_norm),
    Case("plain rms norm", lambda g: hs.maps.RMSNorm(gain=g(D), eps=0.0)),
]

FEED_FORWARD = [
    Case("linear", lambda g: hs.maps.Dense(weight=g(4, D), bias=g(4))),
    Case("mlp", mlp),
    Case("mlp without biases", lambda g: hs.maps.MLP(up=g(8, D), down=g(5, 8), activation="silu")),
    Case("gated mlp", gated_mlp),
    Case("gated mlp without biases", lambda g: hs.maps.GatedMLP(gate=g(8, D), up=g(8, D), down=g(5, 8))),
    Case("pooling", lambda g: hs.maps.Pooling(weights=g(N))),
]

COMPOSED = [
    Case("norm, then attention", lambda g: hs.maps.Chain(layer_norm(g), layer(g))),
    Case("attention, then norm", lambda g: hs.maps.Chain(layer(g), rms_norm(g, 5))),
    Case("residual", lambda g: hs.maps.Residual(layer(g, out=D))),
    Case("pre-norm residual", lambda g: hs.maps.Residual(hs.maps.Chain(rms_norm(g), layer(g, out=D)))),
    Case("post-norm residual", lambda g: hs.maps.Chain(hs.maps.Residual(layer(g, out=D)), layer_norm(g))),
    Case(
        "side by side",
        lambda g: hs.maps.Residual(hs.maps.Sum(layer(g, out=D), hs.maps.Chain(rms_norm(g), mlp(g, out=D)))),
    ),
    Case(
        "block, then the mean",
        lambda g: hs.maps.Chain(
            hs.maps.Residual(hs.maps.Chain(layer_norm(g), layer(g, out=D))),
            hs.maps.Residual(gated_mlp(g, out=D)),
            hs.maps.Pooling.mean(n=N, like=g(1)),
        ),
    ),
    Case(
        "two layers",
        lambda g: hs.maps.Chain(hs.maps.Residual(layer(g, out=D)), layer_norm(g), hs.maps.Residual(layer(g, out=D))),
    ),
]

BATCHED = [
    Case("batch", lambda g: layer(g, positions=hs.maps.Positions(causal=True)), batch=(3,)),
    Case("batch of batches, grouped", lambda g: layer(g, heads=4, groups=2), batch=(2, 3)),
    Case("padding per sequence", lambda g: layer(g, positions=hs.maps.Positions(padding=_paddings())), batch=(3,)),
    Case("weights per sequence", lambda g: layer(g, weights=g(3, N).exp()), batch=(3,)),
    Case("mask per sequence", lambda g: layer(g, positions=hs.maps.Positions(mask=boolean_mask(g, 3, 3))), batch=(3,)),
    Case("positions per sequence", lambda g: layer(g, positions=_rotary_batch()), batch=(3,)),
    Case("batched mlp", mlp, batch=(2, 3)),
    Case("batched gated mlp", gated_mlp, batch=(3,)),
    Case("pooling per sequence", lambda g: hs.maps.Pooling(weights=g(3, N)), batch=(3,)),
    Case("batched sum", lambda g: hs.maps.Sum(layer(g), hs.maps.Dense(weight=g(5, D))), batch=(3,)),
    Case(
        "distances in a batch", lambda g: layer(g, positions=hs.maps.Positions(distances=_distances(g))), batch=(2, 3)
    ),
    Case("batched norms over all heads", lambda g: JOINT[2].make(g), batch=(2, 3)),
    Case("batched chain", lambda g: hs.maps.Chain(layer_norm(g), hs.maps.Residual(layer(g, out=D))), batch=(2,)),
]


def _paddings() -> Tensor:
    return torch.arange(N) < torch.tensor([[N], [4], [2]])


def _rotary_batch() -> hs.maps.Positions:
    return hs.maps.Positions(rotary=hs.maps.Rotary(positions=torch.arange(3 * N).reshape(3, N)))


CASES = SINGLE + UNCOVERED + NORMS + FEED_FORWARD + COMPOSED


def good(**changes):
    """Return a layer with shared keys that nothing is wrong with, but for what is changed."""
    parts = {
        "query": torch.ones(4, 2, 6),
        "key": torch.ones(2, 2, 6),
        "value": torch.ones(2, 3, 6),
        "output": torch.ones(4, 6, 3),
    }
    return hs.Attention(**(parts | changes))
