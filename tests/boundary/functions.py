"""The table of public functions: how each is called, and with which tensors. A new function is one more line."""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from boundary.inputs import BATCHES, STRANGE
from torch import Tensor, nn

import howsmooth as hs
from howsmooth.training.hooks import mode_restored

N, D, HEADS, K = 4, 6, 2, 3
DRAW = torch.Generator().manual_seed(5)
Answer = Any
Inputs = Mapping[str, Tensor]


def gauss(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=DRAW)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Case:
    """A public function as it is called.

    Attributes:
        name: Its name, and behind a comma which of its uses this is.
        call: Takes the tensors by their names.
        inputs: Tensors that are held in every way, the strange ones one after the other.
        beside: Tensors that are held in every way of a program alone: functions of maps leave them to the map.
        batch: Whether the first input may have axes in front.
        arrays: Whether the first input may be an array.
        refuses: Ways to hold tensors that it may refuse, though a program has them.
        unlike: Ways that say nothing about it.
        rtol: How far apart the answers of searches may be.
        slow: Whether a few layouts have to do.
    """

    name: str
    call: Callable[..., Answer]
    inputs: Inputs
    beside: Inputs = field(default_factory=dict)
    batch: bool = False
    arrays: bool = False
    refuses: Sequence[str] = ()
    unlike: Sequence[str] = ()
    rtol: float = 0.0
    slow: bool = False


X, G = gauss(N, D), gauss(N, D)
SQUARE = gauss(D, D)
FORM = SQUARE @ SQUARE.mT + torch.eye(D, dtype=torch.float64)
QKV = {"query": gauss(HEADS, K, D), "key": gauss(HEADS, K, D), "value": gauss(HEADS, K, D)}
LAYER = QKV | {"output": gauss(HEADS, D, K)}
BIASES = {f"{name}_bias": gauss(HEADS, K) for name in QKV} | {"output_bias": gauss(D)}
HEAD = {"A": gauss(D, D), "V": gauss(D, D)}
NORM = {"gain": gauss(D), "bias": gauss(D)}
MLP = {"up": gauss(8, D), "down": gauss(5, 8), "up_bias": gauss(8), "down_bias": gauss(5)}
ATOMS = {"points": X, "weights": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)}
PLACED = ATOMS | {"positions": torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)}
GAUSSIAN = {"mean": gauss(D), "covariance": FORM}
REAL = torch.tensor([False, True, True, True])
CLASSES = gauss(3, D)
BOX = {"lower": X - 0.1, "upper": X + 0.1, "rows": gauss(1, 3), "bounds": torch.tensor([1e3], dtype=torch.float64)}
VALUES = ("with NaN", "with inf")
ONE_ROW = ("with rows that are one", "with rows that are one, in a graph")
AUTOCAST = ("in float32, under autocast",)
KINDS = tuple(held.name for held in STRANGE)
BATCHED = tuple(held.name for held in BATCHES)
WRAPPED = ("made in inference mode",)  # tensors inside a callable, which autograd cannot record


def at_tokens(name: str, call: Callable[..., Answer], **options: Any) -> Case:
    """A function of attention and tokens."""
    return Case(name, lambda X, **layer: call(hs.Attention(**layer), X), {"X": X}, LAYER, arrays=True, **options)


def at_head(name: str, call: Callable[..., Answer], **options: Any) -> Case:
    """A function of the head of the theory, and of tokens."""
    single = hs.Attention.single_head
    return Case(name, lambda X, **head: call(single(**head), X), {"X": X}, HEAD, arrays=True, **options)


def of_layer(name: str, call: Callable[..., Answer], **options: Any) -> Case:
    return Case(name, lambda **layer: call(hs.Attention(**layer)), {}, LAYER, **options)


def of_head(name: str, call: Callable[..., Answer], **options: Any) -> Case:
    return Case(name, lambda **head: call(hs.Attention.single_head(**head)), {}, HEAD, **options)


def of_callable(name: str, call: Callable[..., Answer], **options: Any) -> Case:
    """A function of any callable, and of tokens."""
    wrapped = {"A": HEAD["A"]}
    return Case(name, lambda X, A: call(lambda Y: (Y @ A).tanh(), X), {"X": X}, wrapped, refuses=WRAPPED, **options)


def at_measure(name: str, call: Callable[..., Answer], **options: Any) -> Case:
    """A function of attention and a measure."""

    def called(points: Any, weights: Any, **head: Any) -> Answer:
        return call(hs.Attention.single_head(**head), hs.transport.DiscreteMeasure(points, weights))

    return Case(name, called, ATOMS, HEAD, unlike=ONE_ROW, **options)


def of_measure(name: str, call: Callable[..., Answer], **inputs: Tensor) -> Case:
    """A function of a measure, and of others."""

    def called(points: Any, weights: Any, positions: Any, **others: Any) -> Answer:
        return call(hs.transport.DiscreteMeasure(points, weights, positions), **others)

    return Case(name, called, inputs, PLACED, unlike=ONE_ROW)


def is_map(name: str, make: Callable[..., Any], weights: Inputs, *methods: str, **more: Any) -> list[Case]:
    """A map: its value with every tensor held in every way, its derivative, and what else it does to tokens."""
    some = {"batch": True} | more
    return [
        Case(f"{name}.__call__", lambda X, **w: make(**w)(X), {"X": X} | weights, **some),
        *(Case(f"{name}.{method}", lambda X, method=method, **w: getattr(make(**w), method)(X), {"X": X}, weights,
               **{"unlike": AUTOCAST} | some) for method in ("jacobian", *methods)),
    ]  # fmt: skip


def is_metric(name: str, metric: hs.Metric, *methods: str) -> list[Case]:
    """A metric: what it says of perturbations; searches leave out what has no size, so that NaN passes."""
    names = ("size", "dual_size", "steepest", "support", *methods)
    return [
        *(Case(f"{name}.{method}", lambda E, method=method: getattr(metric, method)(E), {"E": X}, batch=True,
               unlike=(*VALUES, "a number")) for method in names),
        Case(f"{name}.nearest", lambda E: metric.nearest(E, 0.5), {"E": X}, unlike=VALUES, batch=True),
        Case(f"{name}.along", lambda E, G: metric.along(metric.nearest(E, 0.5), G, 0.4), {"E": X, "G": G},
             unlike=VALUES),
        Case(f"{name}.draw", lambda like: metric.size(metric.draw(like, rng())), {"like": X}, batch=True,
             unlike=VALUES, rtol=1e-2),
        Case(f"{name}.at", lambda E: metric.at(E).size(E), {"E": X}, unlike=VALUES),
    ]  # fmt: skip


def is_domain(name: str, make: Callable[..., Any], weights: Inputs) -> list[Case]:
    """A domain: where it brings inputs, how they may move, and whether it draws from itself."""

    def outside(like: Any, **w: Any) -> Tensor:
        domain = make(**w)
        drawn = domain.draw(3, N, like, rng())
        return 1 + (drawn - domain.nearest(drawn)).abs().max()

    def direction(X: Any, G: Any, **w: Any) -> Tensor:
        domain = make(**w)
        return domain.direction(domain.nearest(X), G)

    return [
        Case(f"{name}.nearest", lambda X, **w: make(**w).nearest(X), {"X": X} | weights, batch=True),
        Case(f"{name}.direction", direction, {"X": X, "G": G}, weights, unlike=VALUES),
        Case(f"{name}.draw", outside, {"like": gauss(D)}, weights, unlike=VALUES, rtol=1e-2),
    ]


def network(**weights: Any) -> hs.maps.Chain:
    readout = hs.maps.Dense(CLASSES.to(weights["query"].dtype))
    return hs.maps.Chain(hs.Attention(**weights), hs.maps.Pooling.mean(n=N, like=weights["query"]), readout)


def positioned(X: Tensor = X, **positions: Any) -> Tensor:
    return hs.Attention(**LAYER, positions=hs.maps.Positions(**positions))(X)


def wanted(lower: Any, upper: Any, rows: Any, bounds: Any) -> hs.verification.Property:
    return hs.verification.Property(lower, upper, ((rows, bounds),))


def written(save: Callable[[str], None]) -> int:
    """Return how much a proof file claims."""
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/proof.json")
        return len(json.loads(Path(f"{folder}/proof.json").read_text())["claims"])


def multihead(in_proj: Tensor) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(D, HEADS).to(in_proj.dtype)
    module.in_proj_weight, module.out_proj.weight = nn.Parameter(in_proj), nn.Parameter(torch.eye(D).to(in_proj))
    return module


@functools.cache
def small() -> hs.Transformer:
    return hs.load(classifier())


class Between(tuple):
    """Two ends that the truth lies between."""


def causal(f: hs.Attention) -> hs.Attention:
    return dataclasses.replace(f, positions=hs.maps.Positions(causal=True))


def interval(gain: hs.spectral.TypicalGain) -> Between:
    return Between((gain.low, gain.high))


def with_gradients(f: Callable[..., Tensor]) -> Callable[..., Answer]:
    """Return the value of a function and its gradients in every argument."""

    def both(**given: Tensor) -> Answer:
        with torch.inference_mode(False), torch.enable_grad():
            # in the memory that they lie in, unless autograd cannot record that
            own = {name: (x.clone() if x.is_inference() else x.detach()).requires_grad_() for name, x in given.items()}
            value = f(**own)
            return value, torch.autograd.grad(value.square().sum(), list(own.values()))

    return both


def causal_sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return hs.sdpa(query, key, value, is_causal=True)


# fmt: off
MAPS = [
    is_map("hs.Attention", hs.Attention, LAYER | BIASES, "project", arrays=True),
    is_map("hs.maps.SigmoidAttention", hs.maps.SigmoidAttention, LAYER, arrays=True),
    is_map("hs.maps.L2Attention", hs.maps.L2Attention, QKV, arrays=True),
    is_map("hs.maps.SinkhornAttention", hs.maps.SinkhornAttention, LAYER, arrays=True, refuses=AUTOCAST),
    is_map("hs.maps.LinearAttention", hs.maps.LinearAttention, LAYER, "value_and_jacobian", arrays=True),
    is_map("hs.maps.Dense", hs.maps.Dense, {"weight": gauss(5, D), "bias": gauss(5)}),
    is_map("hs.maps.Affine", hs.maps.Affine, {"weight": gauss(2, 5, N, D), "bias": gauss(2, 5)}),
    is_map("hs.maps.Pooling", hs.maps.Pooling, {"weights": gauss(N)}),
    is_map("hs.maps.LayerNorm", hs.maps.LayerNorm, NORM),
    is_map("hs.maps.RMSNorm", hs.maps.RMSNorm, NORM, "value_and_jacobian"),
    is_map("hs.maps.MLP", hs.maps.MLP, MLP, "value_and_jacobian"),
    is_map("hs.maps.GatedMLP", hs.maps.GatedMLP, {"gate": gauss(8, D), "up": MLP["up"], "down": MLP["down"]}),
    is_map("hs.maps.Residual", lambda **w: hs.maps.Residual(hs.Attention(**w)), LAYER, "value_and_jacobian"),
    is_map("hs.maps.Sum", lambda gain, **w: hs.maps.Sum(hs.Attention(**w), hs.maps.RMSNorm(gain=gain)),
           LAYER | {"gain": NORM["gain"]}, "value_and_jacobian"),
    is_map("hs.maps.Chain", lambda gain, **w: hs.maps.Chain(hs.maps.RMSNorm(gain=gain), hs.Attention(**w)),
           LAYER | {"gain": NORM["gain"]}, "value_and_jacobian"),
]
ISOMETRIES = ("standard", "standard_transpose", "original", "original_transpose")
METRICS = [
    is_metric("hs.metrics.Euclidean", hs.metrics.total, *ISOMETRIES),
    is_metric("hs.metrics.Euclidean, weighted", hs.metrics.weighted(FORM), *ISOMETRIES),
    is_metric("hs.metrics.LargestToken", hs.metrics.token),
    is_metric("hs.metrics.LargestEntry", hs.metrics.entries),
    is_metric("hs.metrics.SumOfEntries", hs.metrics.sum),
    [
        Case("hs.metrics.weighted", lambda M: hs.metrics.weighted(M).size(X), {"M": FORM}, unlike=ONE_ROW),
        Case("hs.metrics.covariance", lambda T: hs.metrics.covariance(T).size(X), {"T": torch.cat((X, G))},
             unlike=BATCHED),
        Case("hs.metrics.Relative.at", lambda T: hs.metrics.relative.at(T).size(T), {"T": X}, batch=True,
             unlike=VALUES),
        Case("hs.Metrics.at", lambda T, Y: hs.metrics.as_metrics("condition").at(T, Y).output.size(Y), {"T": X, "Y": G},
             unlike=(*VALUES, *BATCHED)),
    ],
]
DOMAINS = [
    is_domain("hs.domains.Ball", lambda centre: hs.domains.Ball(1.5, centre=centre), {"centre": gauss(D)}),
    is_domain("hs.domains.Sphere", lambda: hs.domains.Sphere(1.5), {}),
    is_domain("hs.domains.Neighbourhood", lambda centre: hs.domains.Neighbourhood(centre, eps=0.7), {"centre": G}),
    is_domain("hs.domains.LayerNormImage", lambda **w: hs.domains.LayerNormImage(hs.maps.LayerNorm(**w)), NORM),
    [Case("hs.domains.Ellipsoid", lambda **w: hs.domains.Ellipsoid(**w, centred=True).radius,
          {"gain": NORM["gain"], "centre": NORM["bias"]})],
]
Measure, Gaussian = hs.transport.DiscreteMeasure, hs.GaussianMeasure
TRANSPORT = [
    Case("hs.transport.DiscreteMeasure", Measure, PLACED, unlike=ONE_ROW),
    Case("hs.transport.DiscreteMeasure.from_sequence", lambda X: Measure.from_sequence(X, causal=True), {"X": X}),
    of_measure("hs.transport.DiscreteMeasure.merge", lambda mu: mu.merge(0.5)),
    of_measure("hs.transport.DiscreteMeasure.split", lambda mu, moves: mu.split(1, 2, moves), moves=gauss(2, D)),
    of_measure("hs.transport.DiscreteMeasure.push_forward", lambda mu: mu.push_forward(lambda x: x.tanh())),
    of_measure("hs.transport.DiscreteMeasure.resample", lambda mu: len(mu.resample(3, seed=0))),
    of_measure("hs.transport.DiscreteMeasure.to_json", lambda mu: Measure.from_json(mu.to_json())),
    of_measure("hs.transport.DiscreteMeasure.to", lambda mu: mu.to(torch.float64)),
    Case("hs.transport.wasserstein", lambda points, weights, others:
         hs.transport.wasserstein(Measure(points, weights), Measure(others)), ATOMS | {"others": G}, unlike=ONE_ROW),
    Case("hs.transport.TransportPlan.cost", lambda points, weights, others:
         hs.transport.transport_plan(mu := Measure(points, weights), nu := Measure(others)).cost(mu, nu, 2.0),
         {}, ATOMS | {"others": G}, unlike=ONE_ROW),
    Case("hs.transport.transport_plan", lambda points, weights, others:
         hs.transport.transport_plan(Measure(points, weights), Measure(others)).dense().sum(0), {},
         ATOMS | {"others": G}, unlike=ONE_ROW),
    Case("hs.transport.conditional_wasserstein", lambda points, others, **m:
         hs.transport.conditional_wasserstein(Measure(points, **m), Measure(others, **m)), {},
         PLACED | {"others": G}, unlike=ONE_ROW),
    Case("hs.GaussianMeasure", lambda **g: Gaussian(**g).root, GAUSSIAN, unlike=ONE_ROW),
    Case("hs.GaussianMeasure.fitted", lambda X: Gaussian.fitted(X).covariance, {"X": X}),
    Case("hs.GaussianMeasure.distance", lambda mean, covariance, other:
         Gaussian(mean, covariance).distance(Gaussian(other, covariance)), {}, GAUSSIAN | {"other": gauss(D)},
         unlike=ONE_ROW),
    Case("hs.GaussianMeasure.push_forward", lambda A, V, **g:
         Gaussian(**g).push_forward(hs.Attention.single_head(A=A, V=V).on(Gaussian(**g))).mean, {}, GAUSSIAN | HEAD,
         unlike=(*ONE_ROW, *AUTOCAST)),
    Case("hs.GaussianMeasure.to", lambda **g: Gaussian(**g).to(torch.float64).mean, {}, GAUSSIAN, unlike=ONE_ROW),
    Case("hs.Attention.on_gaussian", lambda A, V, **g:
         hs.Attention.single_head(A=A, V=V).on_gaussian(Gaussian(**g)).matrix, {}, GAUSSIAN | HEAD,
         unlike=(*ONE_ROW, *AUTOCAST)),
    at_measure("hs.Attention.on", lambda f, mu: f.on(mu)(mu.points)),
    at_measure("hs.Attention.jacobian_on", lambda f, mu: f.jacobian_on(mu)),
    at_measure("hs.maps.mean_field", lambda f, mu: hs.maps.mean_field(f)(mu)),
    at_measure("hs.local_lipschitz, at a measure", lambda f, mu: hs.local_lipschitz(f, mu, seed=0)),
    at_measure("hs.splitting", lambda f, mu: hs.splitting(f, mu, seed=0).moving),
    at_measure("hs.split_attack", lambda f, mu: hs.split_attack(f, mu, eps=1e-2, seed=0).splitting.splitting),
]
ANY_LENGTH = ("discrete_upper", "kim_lower", "sharp_lower", "sharp_upper", "smallest_upper", "table")
MEAN_FIELD = ("mean_field_lower", "mean_field_upper", "sharp_mean_field_lower", "sharp_mean_field_upper", "token_upper")
WORST = ("candidates", "equal_tokens", "origin_token", "tied_pair", "tied_pair_on_sphere", "tied_pairs", "two_point")
THEORY = [
    *(of_layer(f"hs.bounds.{name}", lambda f, b=name: getattr(hs.bounds, b)(f, n=N, radius=2.0), slow=True)
      for name in ANY_LENGTH),
    *(of_head(f"hs.bounds.{name}", lambda f, b=name: getattr(hs.bounds, b)(f, radius=2.0)) for name in MEAN_FIELD),
    of_head("hs.bounds.masked_mean_field_upper", lambda f: hs.bounds.masked_mean_field_upper(causal(f), radius=2.0)),
    of_head("hs.bounds.discrete_lower", lambda f: hs.bounds.discrete_lower(f, n=N, radius=2.0)),
    of_layer("hs.bounds.largest_logit_cap", lambda f: hs.bounds.largest_logit_cap(f, 800.0, radius=2.0, n=N)),
    of_layer("hs.bounds.logit_cap", lambda f: hs.bounds.logit_cap(f, 3.0, radius=2.0, n=N)),
    Case("hs.bounds.kim_l2_upper", lambda **w:
         hs.bounds.kim_l2_upper(hs.maps.L2Attention(key=w["query"], tied=True, **w), n=N), {},
         {name: QKV[name] for name in ("query", "value")}),
    at_tokens("hs.bounds.local_upper", hs.bounds.local_upper),
    at_tokens("hs.bounds.neighbourhood_upper", lambda f, X: hs.bounds.neighbourhood_upper(f, X, eps=0.1), slow=True),
    at_tokens("hs.bounds.displacement_upper", lambda f, X: hs.bounds.displacement_upper(f, X, eps=0.1), slow=True),
    at_head("hs.bounds.attention_map_upper", hs.bounds.attention_map_upper),
    at_head("hs.bounds.large_radius_limit", lambda f, X: hs.bounds.large_radius_limit(f, X).value),
    Case("hs.bounds.ramapuram_upper", lambda X, A, V:
         hs.bounds.ramapuram_upper(hs.maps.SigmoidAttention.single_head(Q=A, K=V, V=A), X), {"X": X}, HEAD,
         arrays=True),
    *(of_head(f"hs.inputs.{name}", lambda f, b=name: getattr(hs.inputs, b)(f, N, 2.0), slow=True) for name in WORST),
    Case("hs.inputs.tied_pair_on_image", lambda gain, **head: hs.inputs.tied_pair_on_image(
         hs.Attention.single_head(**head), N, hs.maps.LayerNorm(gain=gain)), {}, HEAD | {"gain": NORM["gain"]}),
    of_head("hs.bracket", lambda f: hs.bracket(f, n=N, radius=2.0), slow=True),
    of_head("hs.regimes", lambda f: [row.found for row in hs.regimes(f, 2.0, (3, 4)).rows], rtol=1e-2),
]
MEASURING = [
    at_tokens("hs.local_lipschitz", lambda f, X: hs.local_lipschitz(f, X, seed=0), batch=True),
    *(at_tokens(f"hs.local_lipschitz, in the metric {m}", lambda f, X, m=m: hs.local_lipschitz(f, X, seed=0, metric=m,
      rtol=1e-2)) for m in ("token", "relative", "condition", "entries", "sum")),
    of_callable("hs.local_lipschitz, of a callable", lambda f, X: hs.local_lipschitz(f, X, seed=0), batch=True),
    of_callable("hs.spectral.JacobianOperator", hs.spectral.JacobianOperator, batch=True),
    of_callable("hs.spectral.JacobianOperator.or_operator", hs.spectral.JacobianOperator.or_operator, batch=True),
    *(Case(f"hs.spectral.JacobianOperator.{m}", lambda E, X, m=m:
           getattr(hs.spectral.JacobianOperator(torch.tanh, X), m)(E), {"E": G}, {"X": X}, unlike=VALUES)
      for m in ("jvp", "vjp")),
    Case("hs.spectral_norm", lambda W: hs.spectral_norm(hs.maps.Dense(W), seed=0), {"W": gauss(5, D)}, batch=True),
    Case("hs.singular_values", lambda W:
         Between(((s := hs.singular_values(hs.maps.Dense(W), k=2, seed=0)).values, s.upper)), {"W": gauss(5, D)},
         batch=True),
    Case("hs.spectral.typical_gain_of", lambda W: interval(hs.spectral.typical_gain_of(hs.maps.Dense(W), seed=0)),
         {"W": gauss(5, D)}, batch=True),
    *(Case(f"hs.maps.Dense.{m}", lambda E, W, m=m: getattr(hs.maps.Dense(W), m)(E), {"E": gauss(size)},
           {"W": gauss(5, D)}, unlike=VALUES) for m, size in (("jvp", D), ("vjp", 5))),
    at_tokens("hs.typical_gain", lambda f, X: interval(hs.typical_gain(f, X, seed=0)), batch=True),
    at_tokens("hs.attack", lambda f, X: hs.attack(f, X, eps=0.1, budget=20, bounded=False).displacement, batch=True,
              rtol=1e-2),
    Case("hs.penalty", lambda X, **w: hs.penalty(hs.Attention(**w), X, seed=0), {"X": X}, LAYER, batch=True, rtol=1e-2),
    Case("hs.penalty, with gradients", with_gradients(lambda X, **w: hs.penalty(hs.Attention(**w), X, seed=0)), {},
         LAYER | {"X": X}, rtol=1e-2),
    of_callable("hs.penalty, of a callable", lambda f, X: hs.penalty(f, X, seed=0), batch=True, rtol=1e-2),
    Case("hs.training.WarmStart.guess", lambda X, **w: hs.penalty(hs.Attention(**w), X, seed=0, state=(
         s := hs.training.WarmStart())) + s.guess(X).norm(), {}, LAYER | {"X": X}, rtol=1e-2),
    of_head("hs.maximise", lambda f: hs.maximise(f, n=N, domain=hs.domains.Ball(1.0), steps=3, seed=0), rtol=0.3,
            slow=True),
    of_head("hs.audit", lambda f: hs.audit(f, claimed=1e9, n=N, domain=hs.domains.Ball(1.0), steps=2, starts=1).refuted,
            slow=True),
    at_head("hs.search.worst_nearby", lambda f, X: hs.search.worst_nearby(f, X, eps=0.1, steps=2, starts=1).there,
            slow=True),
]
ATTENDED = {"query": gauss(2, N, K), "key": gauss(2, N, K), "value": gauss(2, N, K)}
AT = {"n": N, "radius": 2.0}
ROUNDED = ("int4:g32", "int8:channel:asym", "nf4", "fp8", "prune:0.5", "prune:2:4", "gguf:Q8_0")
OTHERS = [
    of_layer("hs.Bound.save", lambda f: written(lambda path: hs.bounds.sharp_upper(f, **AT).save(path, f, **AT)),
             slow=True),
    Case("hs.NormEstimate.save", lambda X, **w: written(lambda path:
         hs.local_lipschitz(f := hs.Attention(**w), X, seed=0).save(path, f, X)), {"X": X}, LAYER, slow=True),
    of_head("hs.Witness.save", lambda f: written(lambda path: hs.inputs.tied_pair(f, N, 2.0).save(path, f)), slow=True),
    Case("hs.Attention.from_torch", lambda W, X: hs.Attention.from_torch(multihead(W))(X), {},
         {"W": gauss(3 * D, D), "X": X}),
    Case("hs.tokens.invert", lambda X: hs.tokens.invert(small(), X).distances, {"X": gauss(N, 8)}, batch=True,
         slow=True),
    at_tokens("hs.Attention.value_and_jacobian", lambda f, X: f.value_and_jacobian(X)[0], batch=True, unlike=AUTOCAST),
    at_tokens("hs.Attention.query_side", lambda f, X: f.query_side(X), unlike=AUTOCAST),
    of_layer("hs.Attention.head", lambda f: f.head(1)(X.to(f.dtype))),
    of_layer("hs.Attention.per_head", lambda f: f.per_head()(X.to(f.dtype))),
    of_layer("hs.Attention.to", lambda f: f.to(torch.float64)(X)),
    Case("hs.Attention.single_head", lambda **head: hs.Attention.single_head(**head).query, HEAD),
    # in the place of torch's function it says what torch says, and passes on what it passes on
    Case("hs.sdpa", causal_sdpa, ATTENDED, unlike=(*KINDS, *BATCHED)),
    Case("hs.sdpa, with gradients", with_gradients(causal_sdpa), ATTENDED, unlike=(*KINDS, *BATCHED)),
    Case("hs.sdpa, with a mask", with_gradients(lambda mask, **x: hs.sdpa(**x, attn_mask=mask)),
         ATTENDED | {"mask": gauss(N, N)}, unlike=(*KINDS, *BATCHED)),
    Case("hs.verification.Property", lambda **b:
         hs.verify(network(**LAYER), wanted(**b), timeout=20).status == "proven", BOX, slow=True),
    Case("hs.verification.Property.robust", lambda x:
         hs.verification.Property.robust(x, eps=0.1, label=0, classes=3).lower, {"x": X}, arrays=True),
    Case("hs.verify", lambda **w: hs.verify(network(**w), wanted(**BOX), timeout=20).margins, {}, LAYER,
         refuses=("in float32", *AUTOCAST), slow=True),
    Case("hs.certify", lambda X, **w: hs.certify(network(**w), X, word=0).radii[0].certified, {"X": X}, LAYER,
         arrays=True, rtol=1e-4, slow=True),
    Case("hs.certificates.SentenceCertifier", lambda X: hs.certificates.SentenceCertifier(network(**LAYER), X).radius(
         [0], p=2).certified, {"X": X}, arrays=True, rtol=1e-4, slow=True),
    *(Case(f"hs.budgets.Scheme.error, {name}", lambda W, s=name: hs.budgets.scheme(s).error(W).norm() > 0,
           {"W": gauss(4, 32)}, unlike=BATCHED) for name in ROUNDED),
    Case("hs.budgets.Scheme.bits", lambda W: hs.budgets.scheme("int4:g32").bits(W), {"W": gauss(4, 64)},
         unlike=(*VALUES, *BATCHED)),
    Case("hs.maps.Positions", positioned, {"padding": REAL, "mask": torch.ones(N, N, dtype=torch.bool),
         "relative_bias": gauss(HEADS, 2 * N - 1), "position_bias": gauss(HEADS, N)}),
    Case("hs.maps.Positions, with an additive mask", positioned, {"mask": gauss(N, N)}, unlike=("with inf", *BATCHED)),
    Case("hs.maps.Rotary", lambda **p: positioned(rotary=hs.maps.Rotary(dim=2, **p)),
         {"positions": torch.arange(N), "frequencies": gauss(1)}),
    *(Case(f"hs.maps.Pooling.{m}", lambda real, X, m=m: getattr(hs.maps.Pooling, m)(real=real, like=X)(X),
           {"real": REAL, "X": X}) for m in ("mean", "first", "last")),
]
# fmt: on
CASES = [case for group in (*MAPS, *METRICS, *DOMAINS, TRANSPORT, THEORY, MEASURING, OTHERS) for case in group]


class Block(nn.Module):
    """Attention and dropout behind a norm, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(D), nn.Dropout(0.5)
        self.mix, self.out, self.last = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(X)).chunk(3, -1)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return X + self.last(self.drop(self.out(attended).tanh()))


def block() -> nn.Module:
    return randomised(Block())


def classifier() -> nn.Module:
    """A small classifier of sentences."""
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(**shape, vocab_size=30, max_position_embeddings=12, num_labels=2)
    return randomised(transformers.BertForSequenceClassification(config))


def randomised(module: nn.Module) -> nn.Module:
    generator = rng()
    for parameter in module.parameters():
        parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator)
    return module.double().eval()


def one(ids: Any) -> Any:
    return ids[0] if np.ndim(ids) == 2 else ids


def penalised(f: nn.Module, X: Any) -> Tensor:
    """Penalise what a pass without dropout reads."""
    with mode_restored(f), hs.training.attention_penalty(f, seed=0) as smooth:
        f.eval()(X)
        return smooth()


def probed(f: nn.Module, X: Any) -> list[float]:
    with mode_restored(f), hs.probe(f.train(), every=1) as probe:
        f(X)
        probe.step()
    return [probe.looks[0].heads[0].step]


def replaced(f: nn.Module, X: Any) -> Tensor:
    with mode_restored(f), hs.use_sdpa(f.eval()):
        return f(X)


# fmt: off
# What is asked of a module at tokens X.
OF_BLOCKS = {
    "hs.local_lipschitz": lambda f, X: hs.local_lipschitz(f, X, seed=0),
    "hs.typical_gain": lambda f, X: interval(hs.typical_gain(f, X, seed=0)),
    "hs.attack": lambda f, X: hs.attack(f, X, eps=0.1, budget=20).displacement,
    "hs.penalty": lambda f, X: hs.penalty(f, X, seed=0),
    "hs.spectral.JacobianOperator": hs.spectral.JacobianOperator,
    "hs.audit": lambda f, X: hs.audit(f, claimed=1e9, n=N, domain=hs.domains.Neighbourhood(X, 0.1), steps=1,
                                      starts=1).refuted,
    "hs.use_sdpa": replaced,
}
# What is asked of a model at token ids.
OF_MODELS = {
    "hs.load": lambda f, X: hs.load(f).activations(X).attention[0],
    "hs.Transformer.activations": lambda f, X: hs.local_lipschitz(*hs.load(f).activations(X).at(0), seed=0),
    "hs.Activations.at": lambda f, X: hs.local_lipschitz(*hs.load(f).activations(X).at(0, "block"), seed=0),
    "hs.Activations.per_head": lambda f, X: hs.local_lipschitz(*hs.load(f).activations(X).per_head(0), seed=0),
    "hs.Transformer.embed": lambda f, X: hs.load(f).embed(X),
    "hs.swap": lambda f, X: hs.swap(hs.load(f), one(X)).displacement,
    "hs.budget": lambda f, X: hs.budget(f, X, schemes=["int8"], passes=2).effects[0].kl > 0,
    "hs.budgets.Budget.measured": lambda f, X:
        (b := hs.budget(f, X, schemes=["int8"], passes=2)).measured({b.effects[0].name: "int8"}, tokens=X) > 0,
    "hs.measure": lambda f, X: hs.measure(f, token_ids=X, layers=0, rtol=1e-2).records[0].answer.lower,
    "hs.certify": lambda f, X: hs.certify(f, one(X), word=1).predicted,
    "hs.Monitor": lambda f, X: hs.Monitor(f, every=1).look({"input_ids": X}, step=1).readings[0].lower,
    "hs.training.attention_penalty": penalised,
    "hs.probe": probed,
}
# fmt: on
OF_IDS = ("hs.Transformer.activations", "hs.Transformer.embed", "hs.swap", "hs.budget", "hs.measure", "hs.certify")
# What keeps a model to run it later puts it in eval mode, and says so.
PUT_IN_EVAL_MODE = {*OF_MODELS} - {"hs.measure", "hs.Monitor", "hs.training.attention_penalty", "hs.probe"}
# What is no part of the function: torch's own refusals, and passes in training that the caller runs.
UNLIKE = {
    "hs.use_sdpa": ("on the meta device", "that writes over its input"),
    "hs.probe": ("on the meta device", "with weights of spectral norm one, in train mode"),
}
# What is not tested here, and why.
EXEMPT = {
    r"hs\.(\w+\.)?(NormEstimate|Witness|Attack|Outcome|Certificate|Verdict|Inversion|Swap|Run)": "results",
    r"hs\.(search\.(Nearby|S\w+)|spectral\.(SingularValues|TypicalGain))": "results, too",
    r"hs\.(BoundsTable|Bracket)\.save": "write files as Bound.save does",
    r"hs\.budgets\.Budget\.(by_token|outcome|recipe)": "run other windows as Budget.measured does",
    r"hs\.training\.(AttentionPenalty|Probe)": "made by attention_penalty and probe",
    r"hs\.(Metric|domains\.Domain|spectral\.LinearOperator)\.\w+": "protocols: what follows them is tested",
    r"hs\.maps\.(Chain|Residual|Sum)\.(evaluate|with_children)": "steps of a composition, whose parts check",
    r"hs\.maps\.\w+Norm\.(apply|linearise)": "unchecked, as they say, for maps that have checked",
    r"hs\.maps\.(Dense\.take|Positions\.(apply|take)|Rotary\.rotation)": "steps of attention, which has checked",
    r"hs\.training\.WarmStart\.remember": "a step of the penalty",
    r"hs\.(verification\.(read_module|Verdict\.save)|certified_accuracy|compare)": "read files, folders and sentences",
    r"hs\.verification\.Property\.violated_by": "a step of verify, whose outputs are in float64",
    r"hs\.maps\.(Cosine|Differential|Entmax)Attention.*": "leave the library",
    r"hs\.certificates\.(certify_synonyms|ReplacementHull.*)": "leave the library",
}
