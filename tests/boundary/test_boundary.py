"""Every public function, with the inputs that people have: the answer of its plain twin, or a refusal in a sentence."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from boundary.inputs import LAYOUTS, ROUNDING, STATES, STRANGE, Held
from torch import Tensor

import howsmooth as hs
from howsmooth.errors import HowsmoothError
from howsmooth.linear_operators import LinearOperator

N, D, HEADS, K = 4, 6, 2, 3
RNG = torch.Generator().manual_seed(5)
TOTAL, TOKEN = hs.metrics.total, hs.metrics.token
Answer = Any


def gauss(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=RNG)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A public function, how it is called, and its tensors: those that are held in every way, and others beside."""

    name: str
    call: Callable[..., Answer]
    inputs: Mapping[str, Tensor]
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    batch: bool = False  # whether the first input may have axes in front
    unlike: tuple[str, ...] = ()  # ways of holding that say nothing here
    rtol: float = 0.0  # how far apart answers of searches may be

    def __str__(self) -> str:
        return self.name


X, G = gauss(N, D), gauss(N, D)
SQUARE = gauss(D, D)
FORM = SQUARE @ SQUARE.mT + torch.eye(D, dtype=torch.float64)
LAYER = {"query": gauss(HEADS, K, D), "key": gauss(HEADS, K, D), "value": gauss(HEADS, K, D), "output": gauss(HEADS, D, K)}
BIASES = {"query_bias": gauss(HEADS, K), "key_bias": gauss(HEADS, K), "value_bias": gauss(HEADS, K), "output_bias": gauss(D)}
HEAD = {"A": gauss(D, D), "V": gauss(D, D)}
MASSES = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def case(name, call, beside=None, *, batch=False, unlike=(), rtol=0.0, **inputs) -> Case:
    return Case(name=name, call=call, inputs=inputs, beside=beside or {}, batch=batch, unlike=unlike, rtol=rtol)


def at_tokens(name, call, **options) -> Case:
    """A function of attention and tokens."""
    return case(name, lambda X, **layer: call(hs.Attention(**layer), X), LAYER, X=X, **options)


def of_layer(name, call, **options) -> Case:
    """A function of attention alone."""
    return case(name, lambda **layer: call(hs.Attention(**layer)), LAYER, **options)


def of_head(name, call, **options) -> Case:
    """A function of the head of the theory."""
    return case(name, lambda **head: call(hs.Attention.single_head(**head)), HEAD, **options)


def at_head(name, call, **options) -> Case:
    return case(name, lambda X, **head: call(hs.Attention.single_head(**head), X), HEAD, X=X, **options)


def products(J: LinearOperator) -> tuple[Tensor, Tensor]:
    """Return what an operator does to vectors of ones."""
    E, F = (torch.ones(*J.batch, *shape, dtype=J.dtype) for shape in (J.domain, J.codomain))
    return J.jvp(E), J.vjp(F)


def is_map(name, make, weights, X=X, methods=("jacobian",), batch=True):
    """A map: its value with every tensor held in every way, and its derivative."""
    return [
        case(f"{name}.__call__", lambda X, **w: make(**w)(X), X=X, **weights, batch=batch),
        *(case(f"{name}.{m}", lambda X, m=m, **w: getattr(make(**w), m)(X), weights, X=X, batch=batch) for m in methods),
    ]


def is_metric(name, metric, extra=()):
    """A metric: what it says of perturbations."""
    return [
        *(case(f"{name}.{m}", lambda E, m=m: getattr(metric, m)(E), E=X, batch=True)
          for m in ("size", "dual_size", "steepest", "support", *extra)),
        case(f"{name}.nearest", lambda E: metric.nearest(E, 0.5), E=X, batch=True),
        case(f"{name}.along", lambda E, G: metric.along(metric.nearest(E, 0.5), G, 0.5), E=X, G=G),
        case(f"{name}.draw", lambda like: metric.size(metric.draw(like, rng())), like=X, unlike=VALUES, rtol=1e-2),
        case(f"{name}.at", lambda X: metric.at(X).size(X), X=X),
    ]


def is_domain(name, make, weights):
    """A domain: where it brings inputs, where it lets them go, what it draws."""
    return [
        case(f"{name}.nearest", lambda X, **w: make(**w).nearest(X), X=X, **weights, batch=True),
        case(f"{name}.direction", lambda X, G, **w: (d := make(**w)).direction(d.nearest(X), G), weights, X=X, G=G),
        case(f"{name}.draw", lambda like, **w: ((d := make(**w)).draw(3, N, like[0], rng()) - d.nearest(d.draw(3, N, like[0], rng())) + 1), weights, like=X, unlike=VALUES, rtol=1e-2),
    ]


def rng():
    return torch.Generator().manual_seed(0)


VALUES = ("NaN", "inf")  # of what lends its shape and dtype alone
NORM = {"gain": gauss(D), "bias": gauss(D)}
BOUNDS = ["discrete_lower", "discrete_upper", "kim_lower", "sharp_lower", "sharp_upper", "smallest_upper", "table"]
MEAN_FIELD = ["masked_mean_field_upper", "mean_field_lower", "mean_field_upper", "sharp_mean_field_lower",
    "sharp_mean_field_upper"]  # fmt: skip
WORST = ["candidates", "equal_tokens", "origin_token", "tied_pair", "tied_pair_on_sphere", "tied_pairs", "two_point"]
MECHANISMS = {
    "SigmoidAttention": {"count": N}, "L2Attention": {}, "SinkhornAttention": {}, "LinearAttention": {},
}
QKV = {name: LAYER[name] for name in ("query", "key", "value")}
MAPS = [
    is_map("hs.Attention", hs.Attention, LAYER | BIASES, methods=("jacobian", "query_side", "project")),
    is_map("hs.maps.SigmoidAttention", hs.maps.SigmoidAttention, LAYER),
    is_map("hs.maps.L2Attention", hs.maps.L2Attention, QKV),
    is_map("hs.maps.SinkhornAttention", hs.maps.SinkhornAttention, LAYER),
    is_map("hs.maps.LinearAttention", hs.maps.LinearAttention, LAYER),
    is_map("hs.maps.Dense", hs.maps.Dense, {"weight": gauss(5, D), "bias": gauss(5)}),
    is_map("hs.maps.Affine", hs.maps.Affine, {"weight": gauss(2, 5, N, D), "bias": gauss(2, 5)}),
    is_map("hs.maps.Pooling", hs.maps.Pooling, {"weights": gauss(N)}),
    is_map("hs.maps.LayerNorm", hs.maps.LayerNorm, NORM, methods=("jacobian", "apply", "linearise")),
    is_map("hs.maps.RMSNorm", hs.maps.RMSNorm, NORM, methods=("jacobian", "apply", "linearise")),
    is_map("hs.maps.MLP", hs.maps.MLP, {"up": gauss(8, D), "down": gauss(5, 8), "up_bias": gauss(8), "down_bias": gauss(5)}),
    is_map("hs.maps.GatedMLP", hs.maps.GatedMLP, {"gate": gauss(8, D), "up": gauss(8, D), "down": gauss(5, 8)}),
    is_map("hs.maps.Residual", lambda **w: hs.maps.Residual(hs.Attention(**w)), LAYER),
    is_map("hs.maps.Sum", lambda gain, **w: hs.maps.Sum(hs.Attention(**w), hs.maps.RMSNorm(gain=gain)), LAYER | {"gain": NORM["gain"]}),
    is_map("hs.maps.Chain", lambda gain, **w: hs.maps.Chain(hs.maps.RMSNorm(gain=gain), hs.Attention(**w)), LAYER | {"gain": NORM["gain"]}),
]
METRICS = [
    is_metric("hs.metrics.Euclidean", hs.metrics.total, ("standard", "standard_transpose", "original", "original_transpose")),
    is_metric("hs.metrics.LargestToken", hs.metrics.token),
    is_metric("hs.metrics.LargestEntry", hs.metrics.entries),
    is_metric("hs.metrics.SumOfEntries", hs.metrics.sum),
    is_metric("hs.metrics.weighted", hs.metrics.weighted(FORM), ("standard", "standard_transpose", "original", "original_transpose")),
    [
        case("hs.metrics.weighted", lambda M: hs.metrics.weighted(M).size(X), M=FORM, unlike=("expanded rows",)),
        case("hs.metrics.covariance", lambda T: hs.metrics.covariance(T).size(X), T=torch.cat((X, G))),
        case("hs.metrics.Relative.at", lambda T: hs.metrics.relative.at(T).size(T), T=X, batch=True),
        case("hs.metrics.condition.at", lambda T: hs.metrics.condition.at(T).size(T), T=X, batch=True),
        case("hs.Metrics.at", lambda T, Y: (m := hs.metrics.as_metrics("relative").at(T, Y)).input.size(T) + m.output.size(Y), T=X, Y=G),
    ],
]
DOMAINS = [
    is_domain("hs.domains.Ball", lambda centre: hs.domains.Ball(1.5, centre=centre), {"centre": gauss(D)}),
    is_domain("hs.domains.Sphere", lambda: hs.domains.Sphere(1.5), {}),
    is_domain("hs.domains.Neighbourhood", lambda centre: hs.domains.Neighbourhood(centre, eps=0.7), {"centre": gauss(N, D)}),
    is_domain("hs.domains.LayerNormImage", lambda **w: hs.domains.LayerNormImage(hs.maps.LayerNorm(**w)), NORM),
    [case("hs.domains.Ellipsoid", lambda **w: (hs.domains.Ellipsoid(**w, centred=True).radius), gain=NORM["gain"], centre=NORM["bias"])],
]
def causal(f):
    import dataclasses
    return dataclasses.replace(f, positions=hs.maps.Positions(causal=True))

def measure(points, weights, positions=None):
    return hs.transport.DiscreteMeasure(points, weights, positions)

def parts(mu):
    return mu.points, mu.weights, *(() if mu.positions is None else (mu.positions,))

ATOMS = {"points": X, "weights": MASSES, "positions": torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)}
PAIR = {"points": X, "weights": MASSES, "others": G}
GAUSS = {"mean": gauss(D), "covariance": FORM}
NOROWS = ("expanded rows", "empty")
def at_measure(name, call, **options):
    return case(name, lambda points, weights, **w: call(hs.Attention.single_head(**w), measure(points, weights)), HEAD, points=X, weights=MASSES, unlike=("expanded rows",), **options)

def gaussian(mean, covariance):
    return hs.GaussianMeasure(mean, covariance)

MEASURES = [
    case("hs.transport.DiscreteMeasure", lambda **m: parts(measure(**m)), **ATOMS, unlike=("expanded rows",)),
    case("hs.transport.DiscreteMeasure.from_sequence", lambda X: parts(hs.transport.DiscreteMeasure.from_sequence(X, causal=True)), X=X),
    case("hs.transport.DiscreteMeasure.merge", lambda **m: parts(measure(**m).merge(0.5)), ATOMS, unlike=("expanded rows",)),
    case("hs.transport.DiscreteMeasure.split", lambda moves, **m: parts(measure(**m).split(1, 2, moves)), ATOMS, moves=gauss(2, D), unlike=("expanded rows",)),
    case("hs.transport.DiscreteMeasure.push_forward", lambda A, **m: parts(measure(**m).push_forward(lambda x: x @ A)), ATOMS, A=HEAD["A"], unlike=("expanded rows",)),
    case("hs.transport.DiscreteMeasure.resample", lambda **m: len(measure(**m).resample(3, seed=0)), ATOMS, unlike=("expanded rows",)),
    case("hs.transport.DiscreteMeasure.to_json", lambda **m: parts(hs.transport.DiscreteMeasure.from_json(measure(**m).to_json())), ATOMS, unlike=("expanded rows",)),
    case("hs.transport.DiscreteMeasure.to", lambda **m: parts(measure(**m).to(torch.float64)), ATOMS, unlike=("expanded rows",)),
    case("hs.transport.wasserstein", lambda points, others, weights: hs.transport.wasserstein(measure(points, weights), measure(others, None)), **PAIR, unlike=("expanded rows",)),
    case("hs.transport.transport_plan", lambda points, others, weights: (p := hs.transport.transport_plan(mu := measure(points, weights), nu := measure(others, None))).cost(mu, nu, 2.0), PAIR, unlike=("expanded rows",)),
    case("hs.transport.TransportPlan.dense", lambda points, others, weights: hs.transport.transport_plan(measure(points, weights), measure(others, None)).dense().sum(), PAIR, unlike=("expanded rows",)),
    case("hs.transport.conditional_wasserstein", lambda others, points, **m: hs.transport.conditional_wasserstein(measure(points, **m), measure(others, **m)), ATOMS | {"others": G}, unlike=("expanded rows",)),
    case("hs.GaussianMeasure", lambda **g: gaussian(**g).root, **GAUSS, unlike=("expanded rows",)),
    case("hs.GaussianMeasure.fitted", lambda X: hs.GaussianMeasure.fitted(X).covariance, X=X),
    case("hs.GaussianMeasure.distance", lambda mean, covariance, other: gaussian(mean, covariance).distance(gaussian(other, covariance)), GAUSS | {"other": gauss(D)}, unlike=("expanded rows",)),
    case("hs.GaussianMeasure.push_forward", lambda A, V, **g: gaussian(**g).push_forward(hs.Attention.single_head(A=A, V=V).on(gaussian(**g))).mean, GAUSS | HEAD, unlike=("expanded rows",)),
    case("hs.GaussianMeasure.sample", lambda **g: gaussian(**g).sample(3, seed=0).shape[0], GAUSS, unlike=("expanded rows",)),
    at_measure("hs.Attention.on", lambda f, mu: f.on(mu)(mu.points)),
    at_measure("hs.Attention.jacobian_on", lambda f, mu: f.jacobian_on(mu)),
    at_measure("hs.maps.mean_field", lambda f, mu: hs.maps.mean_field(f)(mu).points),
    at_measure("hs.splitting", lambda f, mu: [(s := hs.splitting(f, mu, seed=0)).moving, s.splitting]),
    at_measure("hs.split_attack", lambda f, mu: [(s := hs.split_attack(f, mu, eps=1e-2, seed=0)).splitting.moving], rtol=1e-2),
    at_measure("hs.local_lipschitz, at a measure", lambda f, mu: hs.local_lipschitz(f, mu, seed=0)),
    case("hs.Attention.on_gaussian", lambda A, V, **g: hs.Attention.single_head(A=A, V=V).on_gaussian(gaussian(**g)).matrix, GAUSS | HEAD, unlike=("expanded rows",)),
]
LENGTHS = (2, 4)
FUNCTIONS = [
    at_tokens("hs.Attention.value_and_jacobian", lambda f, X: f.value_and_jacobian(X)[0], batch=True),
    of_layer("hs.Attention.head", lambda f: f.head(1)(X.to(f.dtype))),
    of_layer("hs.Attention.per_head", lambda f: f.per_head()(X.to(f.dtype))),
    of_layer("hs.Attention.to", lambda f: f.to(torch.float64)(X)),
    case("hs.Attention.single_head", lambda **head: hs.Attention.single_head(**head).query, **HEAD),
    at_tokens("hs.local_lipschitz", lambda f, X: hs.local_lipschitz(f, X, seed=0), batch=True),
    *(at_tokens(f"hs.local_lipschitz, {m}", lambda f, X, m=m: hs.local_lipschitz(f, X, seed=0, metric=m, rtol=1e-2)) for m in ("token", "relative", "condition", "entries", "sum")),
    case("hs.local_lipschitz, of a callable", lambda X, A: hs.local_lipschitz(lambda Y: (Y @ A).tanh(), X, seed=0), {"A": HEAD["A"]}, X=X, batch=True),
    case("hs.spectral.JacobianOperator", lambda X, A: hs.spectral.JacobianOperator(lambda Y: (Y @ A).tanh(), X), {"A": HEAD["A"]}, X=X, batch=True),
    case("hs.spectral.JacobianOperator.jvp", lambda E, X, A: hs.spectral.JacobianOperator(lambda Y: (Y @ A).tanh(), X).jvp(E), {"A": HEAD["A"], "X": X}, E=G),
    case("hs.spectral.JacobianOperator.vjp", lambda E, X, A: hs.spectral.JacobianOperator(lambda Y: (Y @ A).tanh(), X).vjp(E), {"A": HEAD["A"], "X": X}, E=G),
    case("hs.spectral.JacobianOperator.or_operator", lambda X, A: hs.spectral.JacobianOperator.or_operator(lambda Y: (Y @ A).tanh(), X), {"A": HEAD["A"]}, X=X),
    case("hs.spectral.spectral_norm", lambda W: hs.spectral_norm(hs.maps.Dense(W), seed=0), W=gauss(5, D), batch=True),
    case("hs.spectral.singular_values", lambda W: (s := hs.singular_values(hs.maps.Dense(W), k=2, seed=0)) and [list(zip(s.values, s.upper))] and (s.values, ), W=gauss(5, D), rtol=2e-3),
    case("hs.spectral.typical_gain_of", lambda W: ends(hs.spectral.typical_gain_of(hs.maps.Dense(W), samples=8, seed=0)), W=gauss(5, D)),
    case("hs.maps.Dense.jvp", lambda E, W: hs.maps.Dense(W).jvp(E), {"W": gauss(5, D)}, E=gauss(D)),
    case("hs.maps.Dense.vjp", lambda E, W: hs.maps.Dense(W).vjp(E), {"W": gauss(5, D)}, E=gauss(5)),
    at_tokens("hs.attack", lambda f, X: hs.attack(f, X, eps=0.1, budget=20, bounded=False).displacement, batch=True, rtol=1e-2),
    at_tokens("hs.penalty", lambda f, X: hs.penalty(f, X, seed=0), batch=True, rtol=1e-2),
    case("hs.penalty, of a callable", lambda X, A: hs.penalty(lambda Y: (Y @ A).tanh(), X, seed=0), {"A": HEAD["A"]}, X=X, batch=True, rtol=1e-2),
    at_tokens("hs.spectral.typical_gain", lambda f, X: ends(hs.typical_gain(f, X, samples=8, seed=0)), batch=True),
    at_tokens("hs.bounds.local_upper", hs.bounds.local_upper),
    at_head("hs.bounds.attention_map_upper", hs.bounds.attention_map_upper),
    at_head("hs.bounds.large_radius_limit", lambda f, X: [getattr(hs.bounds.large_radius_limit(f, X), k) for k in ("value",)]),
    at_tokens("hs.bounds.neighbourhood_upper", lambda f, X: hs.bounds.neighbourhood_upper(f, X, eps=0.1)),
    at_tokens("hs.bounds.displacement_upper", lambda f, X: hs.bounds.displacement_upper(f, X, eps=0.1)),
    case("hs.bounds.ramapuram_upper", lambda X, **w: hs.bounds.ramapuram_upper(hs.maps.SigmoidAttention.single_head(Q=w["A"], K=w["V"], V=w["A"]), X), HEAD, X=X),
    case("hs.bounds.kim_l2_upper", lambda query, value: hs.bounds.kim_l2_upper(hs.maps.L2Attention(query=query, key=query, value=value), n=N), {"query": LAYER["query"], "value": LAYER["value"]}),
    *(of_layer(f"hs.bounds.{name}", lambda f, name=name: getattr(hs.bounds, name)(f, n=N, radius=2.0)) for name in BOUNDS),
    *(of_head(f"hs.bounds.{name}", lambda f, name=name: getattr(hs.bounds, name)(causal(f) if "masked" in name else f, radius=2.0)) for name in MEAN_FIELD),
    of_layer("hs.bounds.token_upper", lambda f: hs.bounds.token_upper(f, radius=2.0)),
    of_layer("hs.bounds.largest_logit_cap", lambda f: hs.bounds.largest_logit_cap(f, 1e4, radius=2.0, n=N)),
    of_layer("hs.bounds.logit_cap", lambda f: hs.bounds.logit_cap(f, 3.0, radius=2.0, n=N)),
    *(of_head(f"hs.inputs.{name}", lambda f, name=name: getattr(hs.inputs, name)(f, N, 2.0)) for name in WORST),
    of_head("hs.inputs.tied_pair_on_image", lambda f: hs.inputs.tied_pair_on_image(f, N, hs.maps.LayerNorm(gain=torch.ones(D, dtype=f.dtype)))),
    of_head("hs.bracket", lambda f: hs.bracket(f, n=N, radius=2.0)),
    of_head("hs.regimes", lambda f: [r.found for r in hs.regimes(f, 2.0, LENGTHS).rows], rtol=1e-2),
    of_head("hs.maximise", lambda f: hs.maximise(f, n=N, domain=hs.domains.Ball(1.0), steps=5, seed=0).measured, rtol=0.3),
    of_head("hs.audit", lambda f: hs.audit(f, claimed=1e9, n=N, domain=hs.domains.Ball(1.0), steps=2, starts=1).refuted),
    at_head("hs.search.worst_nearby", lambda f, X: hs.search.worst_nearby(f, X, eps=0.1, steps=5).there),
]


def ends(gain):
    """A typical gain: where the truth lies."""
    return hs.NormEstimate(**{f.name: None for f in dataclasses.fields(hs.NormEstimate) if f.init} | {"lower": gain.low, "upper": gain.high, "statuses": ()})


SDPA = {"query": gauss(2, N, K), "key": gauss(2, N, K), "value": gauss(2, N, K)}
BOX = {"lower": X - 0.1, "upper": X + 0.1, "rows": gauss(1, 3), "bounds": torch.tensor([1e3], dtype=torch.float64)}


def network(**w):
    return hs.maps.Chain(hs.Attention(**w), hs.maps.Pooling.mean(n=N, like=X), hs.maps.Dense(CLASSES))


CLASSES = gauss(3, D)


def wanted(lower, upper, rows, bounds):
    return hs.verification.Property(lower, upper, ((rows, bounds),))


OTHERS = [
    case("hs.sdpa", lambda query, key, value: hs.sdpa(query, key, value, is_causal=True), **SDPA, unlike=("expanded rows",)),
    case("hs.sdpa, with a mask", lambda query, key, value, mask: hs.sdpa(query, key, value, mask), SDPA, mask=gauss(N, N)),
    case("hs.sdpa, with a boolean mask", lambda query, key, value, mask: hs.sdpa(query, key, value, mask), SDPA, mask=torch.ones(N, N, dtype=torch.bool).tril()),
    case("hs.verification.Property", lambda **b: hs.verify(network(**LAYER), wanted(**b), timeout=20).status == "proven", **BOX),
    case("hs.verification.Property.robust", lambda x: (p := hs.verification.Property.robust(x, eps=0.1, label=0, classes=3)) and (p.lower, p.upper), x=X),
    case("hs.verification.verify", lambda **w: hs.verify(network(**{k: v for k, v in w.items()}), wanted(**BOX)).margins, LAYER),
    case("hs.certify", lambda X: hs.certify(network(**LAYER), X, word=0).radii[0].certified, X=X),
    case("hs.certificates.SentenceCertifier", lambda X: hs.certificates.SentenceCertifier(network(**LAYER), X).radius([0], p=2).certified, X=X),
    case("hs.certificates.ReplacementHull.scalar_norms", lambda c: hs.certificates.ReplacementHull(counts=(1, 2)).scalar_norms(c), c=gauss(2, 3)),
    case("hs.certificates.ReplacementHull.vector_norms", lambda c: hs.certificates.ReplacementHull(counts=(1, 2)).vector_norms(c), c=gauss(2, 3, D)),
    *(case(f"hs.budgets.Scheme.error, {name}", lambda W, name=name: hs.budgets.scheme(name).error(W).norm() > 0, W=gauss(4, 64)) for name in ("int4:g32", "int8:channel:asym", "nf4", "fp8", "bf16", "prune:0.5", "prune:2:4", "gguf:Q8_0")),
    case("hs.budgets.Scheme.bits", lambda W: hs.budgets.scheme("int4:g32").bits(W), W=gauss(4, 64)),
    case("hs.maps.Positions", lambda **p: hs.Attention(**LAYER, positions=hs.maps.Positions(**p))(X), padding=torch.tensor([False, True, True, True]), mask=torch.ones(N, N, dtype=torch.bool), relative_bias=gauss(HEADS, 2*N-1), position_bias=gauss(HEADS, N)),
    case("hs.maps.Positions, additive mask", lambda **p: hs.Attention(**LAYER, positions=hs.maps.Positions(**p))(X), mask=gauss(N, N)),
    case("hs.maps.Rotary", lambda **p: hs.Attention(**LAYER, positions=hs.maps.Positions(rotary=hs.maps.Rotary(dim=2, **p)))(X), positions=torch.arange(N), frequencies=gauss(1)),
    *(case(f"hs.maps.Pooling.{m}", lambda real, X, m=m: getattr(hs.maps.Pooling, m)(real=real, like=X)(X), real=torch.tensor([False, True, True, True]), X=X) for m in ("mean", "first", "last")),
    case("hs.training.WarmStart.guess", lambda X, **w: [hs.penalty(hs.Attention(**w), X, state=(s := hs.training.WarmStart()), seed=0), s.guess(X).norm()], LAYER, X=X, rtol=1e-2),
]
CASES = [c for group in (*MAPS, *METRICS, *DOMAINS, MEASURES, FUNCTIONS, OTHERS) for c in group]


def leaves(answer: Answer) -> list[Any]:
    """Return what an answer claims: numbers, and pairs of ends that the truth lies between."""
    if isinstance(answer, LinearOperator):
        return leaves(products(answer))
    if isinstance(answer, hs.Witness):
        return leaves(answer.measured)
    if isinstance(answer, hs.NormEstimate):
        return [(answer.lower.detach().double(), answer.upper.detach().double())]
    if isinstance(answer, hs.Bracket):
        return [tuple(torch.tensor(end.value) for end in (answer.lower, answer.upper))]
    if isinstance(answer, hs.Bound):
        return [torch.tensor(answer.value, dtype=torch.float64)]
    if isinstance(answer, Tensor):
        return [answer.detach().double()]
    if isinstance(answer, bool | int | float):
        return [torch.tensor(float(answer), dtype=torch.float64)]
    if isinstance(answer, hs.BoundsTable):
        return leaves(answer.bounds)
    if isinstance(answer, tuple | list):
        return [leaf for part in answer for leaf in leaves(part)]
    raise TypeError(f"what does {type(answer).__name__} claim?")


def require_same(found: list[Any], twin: list[Any], rtol: float) -> None:
    assert len(found) == len(twin)
    for one, other in zip(found, twin, strict=True):
        if isinstance(one, tuple):
            (low, high), (least, most) = one, other
            assert bool((low <= high).all()), f"lower {low} above upper {high}"
            assert low.isfinite().all() and not high.isnan().any()
            assert bool((low <= most * (1 + rtol)).all() and (high >= least * (1 - rtol)).all()), (one, other)
        else:
            size = float(other.abs().max()) if other.numel() else 0.0
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol * size, check_dtype=False)


def plain(x: Any) -> Any:
    return torch.as_tensor(x).detach().to(torch.float64).contiguous().clone() if torch.as_tensor(x).is_floating_point() or torch.as_tensor(x).ndim else x


def is_number(leaf: Any) -> bool:
    return not any(bool(part.isnan().any()) for part in (leaf if isinstance(leaf, tuple) else (leaf,)))


def is_finite(leaf: Any) -> bool:
    return all(bool(part.isfinite().all()) for part in (leaf if isinstance(leaf, tuple) else (leaf,)))


def memory(x: Any) -> Any:
    if isinstance(x, Tensor) and not x.is_sparse and not x.is_meta:
        return bytes(x.untyped_storage()), x.requires_grad
    return None


TWINS = {}


def twin_of(case, given):
    key = case.name, *(x.numpy().tobytes() for x in given.values())
    if key not in TWINS:
        try:
            TWINS[key] = leaves(case.call(**given))
        except HowsmoothError as refusal:
            TWINS[key] = refusal
    return TWINS[key]


def check(case: Case, held: Held, argument: str | None) -> str:
    base = {**case.inputs, **case.beside}
    with held.within():
        given = {name: held.hold(x) if argument in (None, name) else x.clone() for name, x in base.items()}
    before = {name: memory(x) for name, x in given.items()}
    refusal, found = None, None
    with held.within():
        try:
            found = leaves(case.call(**given))
        except HowsmoothError as error:
            refusal = error
    for name, x in given.items():
        assert memory(x) == before[name], f"{name} was changed"
    if refusal is not None:
        text = str(refusal)
        assert text.strip().endswith(".") and "\n" not in text and len(text) < 500, text
    if held.owed == "refusal":
        if refusal is None:
            assert all(map(is_number, found)), f"NaN: {found}"
            assert not all(map(is_finite, found)), f"finite: {found}"
        return "refused" if refusal else "infinite"
    with torch.inference_mode(False):
        twins = {name: torch.as_tensor(x).detach() if not isinstance(x, Tensor) else x.detach() for name, x in given.items()} if False else {}
    exact = {name: as_plain(x) for name, x in given.items()}
    twin = twin_of(case, exact)
    if isinstance(twin, HowsmoothError):
        assert refusal is not None, f"the twin is refused: {twin}"
        return "refused"
    if refusal is not None:
        assert held.owed == "answer or refusal", f"refused: {refusal}"
        return "refused"
    lowest = max(ROUNDING.get(getattr(x, "dtype", None), 0.0) for x in given.values())
    if "autocast" in held.name: lowest = ROUNDING[torch.bfloat16]
    require_same(found, twin, max(lowest, case.rtol, 1e-8))
    return "same"


def as_plain(x):
    import numpy as np
    if isinstance(x, (list, tuple)): x = torch.tensor(x, dtype=torch.float64)
    if isinstance(x, np.ndarray): x = torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("=")).copy())
    if not isinstance(x, Tensor): return x
    x = x.detach()
    if x.is_sparse: x = x.to_dense()
    if x.is_complex(): x = x.real
    x = x.resolve_neg()
    with torch.inference_mode(False):
        if x.dtype == torch.bool: return x.clone()
        return x.double().clone(memory_format=torch.contiguous_format) if x.ndim or True else x


def pairs():
    for c in CASES:
        for held in (*LAYOUTS, *STATES):
            if held.name not in c.unlike: yield c, held, None
        for held in STRANGE:
            for name in c.inputs:
                if held.name not in c.unlike: yield c, held, name
