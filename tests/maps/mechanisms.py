"""Every mechanism from its definition, as dense matrices, and one list of cases that all of them meet."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from cases import PADDING, D, N, boolean_mask, rms_norm
from torch import Tensor

import howsmooth as hs


def plain_positions(positions, S):
    """Additive terms, and who sees whom, one pair at a time in spirit: no tiles, nothing in place."""
    n = S.shape[-1]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    hidden = torch.zeros(n, n, dtype=torch.bool)
    if positions.causal:
        hidden = hidden | (j > i)
    if positions.window is not None:
        hidden = hidden | ((i - j).abs() >= positions.window)
    if positions.padding is not None:
        hidden = hidden | ~positions.padding[..., None, None, :]
    if positions.relative_bias is not None:
        S = S + positions.relative_bias[..., (positions.relative_bias.shape[-1] + 1) // 2 - 1 + j - i]
    if positions.position_bias is not None:
        S = S + positions.position_bias[..., None, :n]
    if positions.mask is not None:
        if positions.mask.dtype == torch.bool:
            hidden = hidden | ~positions.mask
        else:
            S = S + positions.mask
    return S.masked_fill(hidden, -math.inf), hidden.expand(S.shape)


def plain_projections(f, X):
    """Queries, keys and values (*batch, heads, n, width), each head with its own."""
    layout = f.layout

    def project(M, bias, repeats):
        x = torch.einsum("hkd,...nd->...hnk", M, X)
        x = x if bias is None else x + bias[:, None]
        return x.repeat_interleave(repeats, dim=-3)

    q = project(f.query, f.query_bias, 1)
    k = project(f.key, f.key_bias, layout.shared)
    v = project(f.value, f.value_bias, layout.shared)
    q = q if f.query_norm is None else f.query_norm.apply(q)
    k = k if f.key_norm is None else f.key_norm.apply(k)
    if f.positions.rotary is not None:
        turn = f.positions.rotary.rotation(X.shape[-2], layout.k, X)
        q, k = turn(q), turn(k)
    return q, k, v


def plain_scores(f, q, k):
    S = f.score_scale * (q @ k.mT)
    return S if f.softcap is None else f.softcap * torch.tanh(S / f.softcap)


def masses(f, n):
    """For how many tokens each counts."""
    a = torch.ones(n, dtype=torch.float64) if f.weights is None else f.weights
    count = n if getattr(f, "count", None) is None else f.count
    return (count * a / a.sum(-1, keepdim=True))[..., None, None, :]


def softmax_with_masses(S, f):
    a = 1 if f.weights is None else f.weights[..., None, None, :]
    E = a * torch.exp(S - S.amax(-1, keepdim=True))
    return E / E.sum(-1, keepdim=True)


def plain_softmax(f, q, k, v):
    S, _hidden = plain_positions(f.positions, plain_scores(f, q, k))
    if f.sink is None:
        return softmax_with_masses(S, f) @ v
    a = 1 if f.weights is None else f.weights[..., None, None, :]
    E = a * torch.exp(S)
    return E / (E.sum(-1, keepdim=True) + torch.exp(f.sink)[:, None, None]) @ v


def plain_l2(f, q, k, v):
    distance = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    S, _hidden = plain_positions(f.positions, -f.score_scale * distance)
    return softmax_with_masses(S, f) @ v


def plain_sigmoid(f, q, k, v):
    n = q.shape[-2]
    b = -math.log(n if f.count is None else f.count) if f.bias is None else f.bias
    S, _hidden = plain_positions(f.positions, plain_scores(f, q, k) + b)
    return (masses(f, n) / (1 + torch.exp(-S))) @ v


def plain_cosine(f, q, k, v):
    def unit(x):
        return x / (x.square().sum(-1, keepdim=True) + f.eps).sqrt()

    S, _hidden = plain_positions(f.positions, plain_scores(f, unit(q), unit(k)))
    return f.gain * softmax_with_masses(S, f) @ (unit(v) if f.normalise_values else v)


def plain_entmax(f, q, k, v):
    """τ by bisection, then one step of Newton's that autograd follows: the derivative of the solution."""
    S, hidden = plain_positions(f.positions, plain_scores(f, q, k))
    m = masses(f, S.shape[-1]).expand(S.shape).masked_fill(hidden, 0)
    z = (f.alpha - 1) * S.masked_fill(hidden, 0)
    power = 1 / (f.alpha - 1)

    def excess(tau):
        return (m * (z - tau).relu() ** power).sum(-1, keepdim=True) - 1

    with torch.no_grad():
        low, high = z.amin(-1, keepdim=True) - 1e3, z.amax(-1, keepdim=True)
        for _ in range(60):
            middle = (low + high) / 2
            above = excess(middle) > 0
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        tau = low
    for _ in range(2):
        slope = (m * power * (z - tau).relu() ** (power - 1) * (z > tau)).sum(-1, keepdim=True)
        tau = tau + excess(tau) / slope
    return (m * (z - tau).relu() ** power) @ v


def plain_sinkhorn(f, q, k, v):
    """Through the loop: very many iterations, each recorded."""
    S, _hidden = plain_positions(f.positions, plain_scores(f, q, k))
    a = masses(f, S.shape[-1]) / S.shape[-1]
    f_row = torch.zeros_like(S[..., :1])
    for _ in range(150):
        g = -torch.logsumexp(S + f_row + a.log().mT, dim=-2, keepdim=True)
        f_row = -torch.logsumexp(S + g + a.log(), dim=-1, keepdim=True)
    return torch.exp(S + f_row + g) * a @ v


def plain_differential(f, q, k, v):
    half = q.shape[-1] // 2
    parts = []
    for piece in (slice(0, half), slice(half, 2 * half)):
        S, _hidden = plain_positions(f.positions, plain_scores(f, q[..., piece], k[..., piece]))
        parts.append(softmax_with_masses(S, f))
    return (parts[0] - f.subtracted[:, None, None] * parts[1]) @ v


def plain_linear(f, q, k, v):
    if f.features == "elu":
        q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    _S, hidden = plain_positions(f.positions, torch.zeros(*q.shape[:-1], q.shape[-2], dtype=q.dtype))
    weights = (q @ k.mT * masses(f, q.shape[-2])).masked_fill(hidden, 0)
    means = weights @ v
    return means / weights.sum(-1, keepdim=True) if f.normalised else means


PLAIN = {
    hs.Attention: plain_softmax,
    hs.maps.L2Attention: plain_l2,
    hs.maps.SigmoidAttention: plain_sigmoid,
    hs.maps.CosineAttention: plain_cosine,
    hs.maps.EntmaxAttention: plain_entmax,
    hs.maps.SinkhornAttention: plain_sinkhorn,
    hs.maps.DifferentialAttention: plain_differential,
    hs.maps.LinearAttention: plain_linear,
}


def plain(f):
    """The same map, written by hand."""

    def attention(X):
        q, k, v = plain_projections(f, X)
        if getattr(f, "tied", False):
            A = f.score_scale * f.query.mT @ f.query
            v = torch.einsum("hvd,hde,...ne->...hnv", f.value, A, X)
        means = PLAIN[type(f)](f, q, k, v)
        if f.output is None:
            return means.movedim(-3, -2).flatten(-2)
        Y = torch.einsum("hov,...hnv->...no", f.output, means)
        return Y if f.output_bias is None else Y + f.output_bias

    return attention


@dataclass(frozen=True)
class Kind:
    """A mechanism, and what it has that others do not."""

    name: str
    cls: type
    options: Callable[..., dict] = lambda g, heads: {}
    maskable: bool = True
    biasable: bool = True
    rotary: bool = True
    capped: bool = True

    def __str__(self) -> str:
        return self.name

    def build(self, gauss, *, heads=3, groups=None, k=4, v=3, out=5, biases=True, size=1.0, **options):
        """Multi-head attention with every parameter random and no two widths alike."""
        groups = heads if groups is None else groups
        bias = {
            "query_bias": gauss(heads, k),
            "key_bias": gauss(groups, k),
            "value_bias": gauss(groups, v),
            "output_bias": gauss(out),
        }
        return self.cls(
            query=size * gauss(heads, k, D),
            key=size * gauss(groups, k, D),
            value=gauss(groups, v, D),
            output=gauss(heads, out, v),
            **(bias if biases else {}),
            **self.options(gauss, heads),
            **options,
        )


KINDS = [
    Kind("sink", hs.Attention, lambda g, heads: {"sink": g(heads)}),
    Kind("l2", hs.maps.L2Attention, lambda g, heads: {"scale": 0.1}, capped=False),
    Kind("sigmoid", hs.maps.SigmoidAttention),
    Kind("sigmoid, biased", hs.maps.SigmoidAttention, lambda g, heads: {"bias": 0.3, "count": 4.5}),
    Kind("cosine", hs.maps.CosineAttention, lambda g, heads: {"scale": 3.0, "gain": 0.7, "eps": 0.1}),
    Kind("cosine, values too", hs.maps.CosineAttention, lambda g, heads: {"gain": 0.7, "normalise_values": True}),
    Kind("entmax 1.5", hs.maps.EntmaxAttention),
    Kind("sparsemax", hs.maps.EntmaxAttention, lambda g, heads: {"alpha": 2.0, "scale": 0.1}),
    Kind("entmax, counting", hs.maps.EntmaxAttention, lambda g, heads: {"count": 3.5, "scale": 0.3}),
    Kind("sinkhorn", hs.maps.SinkhornAttention, lambda g, heads: {"scale": 0.1}, maskable=False),
    Kind("differential", hs.maps.DifferentialAttention, lambda g, heads: {"subtracted": g(heads)}, rotary=False),
    Kind("linear", hs.maps.LinearAttention, biasable=False, capped=False),
    Kind(
        "linear, no denominator",
        hs.maps.LinearAttention,
        lambda g, heads: {"normalised": False, "count": 2.5},
        biasable=False,
        capped=False,
    ),
    Kind(
        "linear, identity",
        hs.maps.LinearAttention,
        lambda g, heads: {"normalised": False, "features": "identity"},
        biasable=False,
        capped=False,
    ),
]


@dataclass(frozen=True)
class Feature:
    """What a layer may have besides."""

    name: str
    options: Callable[..., dict]
    batch: tuple[int, ...] = ()
    fits: Callable[[Kind], bool] = lambda kind: True

    def __str__(self) -> str:
        return self.name


def _mass(g):
    return torch.cat((g(N - 1).exp(), torch.zeros(1).double()))


FEATURES = [
    Feature("plain", lambda g: {}),
    Feature("no biases", lambda g: {"biases": False}),
    Feature("grouped", lambda g: {"heads": 6, "groups": 2}),
    Feature("norms", lambda g: {"query_norm": rms_norm(g, 4), "key_norm": rms_norm(g, 4)}),
    Feature("weights", lambda g: {"weights": g(N).exp()}),
    Feature("a weight is zero", lambda g: {"weights": _mass(g)}),
    Feature("batch", lambda g: {"heads": 4, "groups": 2}, batch=(2, 3)),
    Feature("weights per sequence", lambda g: {"weights": g(3, N).exp(), "heads": 4, "groups": 2}, batch=(3,)),
    Feature("causal", lambda g: {"positions": hs.maps.Positions(causal=True)}, fits=lambda kind: kind.maskable),
    Feature(
        "causal, grouped, weights",
        lambda g: {"positions": hs.maps.Positions(causal=True), "weights": g(N).exp(), "heads": 4, "groups": 2},
        fits=lambda kind: kind.maskable,
    ),
    Feature("window", lambda g: {"positions": hs.maps.Positions(window=3)}, fits=lambda kind: kind.maskable),
    Feature("padding", lambda g: {"positions": hs.maps.Positions(padding=PADDING)}, fits=lambda kind: kind.maskable),
    Feature(
        "mask per head and sequence",
        lambda g: {"positions": hs.maps.Positions(mask=boolean_mask(g, 3, 3))},
        batch=(3,),
        fits=lambda kind: kind.maskable,
    ),
    Feature(
        "biases of position",
        lambda g: {"positions": hs.maps.Positions(relative_bias=g(3, 2 * N + 3), position_bias=g(3, N))},
        fits=lambda kind: kind.biasable,
    ),
    Feature(
        "rotary", lambda g: {"positions": hs.maps.Positions(rotary=hs.maps.Rotary())}, fits=lambda kind: kind.rotary
    ),
    Feature("soft cap", lambda g: {"softcap": 1.5}, fits=lambda kind: kind.capped),
]


@dataclass(frozen=True)
class Layer:
    """A mechanism with a feature."""

    kind: Kind
    feature: Feature

    def __str__(self) -> str:
        return f"{self.kind}: {self.feature}"

    def build(self, rng: torch.Generator) -> tuple[hs.Attention, Tensor]:
        def gauss(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=rng)

        return self.kind.build(gauss, **self.feature.options(gauss)), gauss(*self.feature.batch, N, D)


LAYERS = [Layer(kind, feature) for kind in KINDS for feature in FEATURES if feature.fits(kind)]
EACH = [Layer(kind, FEATURES[2]) for kind in KINDS]
