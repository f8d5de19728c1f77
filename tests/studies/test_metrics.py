"""One metric through every room: measured, searched, bounded, penalised, kept and reported."""

import dataclasses
import math

import pytest
import torch

import howsmooth as hs
from howsmooth import metrics
from howsmooth.errors import AssumptionError
from howsmooth.report.page import write_report


def draw(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def attention(rng, **options):
    weights = {"query": draw(rng, 2, 2, 3), "key": draw(rng, 2, 2, 3), "value": draw(rng, 2, 2, 3)}
    return hs.Attention(**weights, output=draw(rng, 2, 3, 2), **options)


def form(rng):
    M = draw(rng, 3, 3)
    return metrics.weighted(M @ M.mT + 0.3 * torch.eye(3, dtype=torch.float64))


class Halves(metrics.Metric):
    """A toy metric in one place: the first half of the tokens counts twice."""

    name, words = "halves", "tokens move by at most ε, those of the first half by half of it"

    def _weights(self, E):
        n = E.shape[-2]
        return torch.where(torch.arange(n) < n // 2, 2.0, 1.0).to(E)[:, None]

    def size(self, E):
        return metrics.token.size(E * self._weights(E))

    def dual_size(self, G):
        return metrics.token.dual_size(G / self._weights(G))

    def steepest(self, G):
        return metrics.token.steepest(G) / self._weights(G)

    def support(self, F):
        return metrics.token.support(F * self._weights(F)) * self._weights(F)

    def nearest(self, E, eps):
        return metrics.token.nearest(E * self._weights(E), eps) / self._weights(E)

    def euclidean_ratios(self, shape):
        return math.sqrt(shape[0]), 2.0


def test_a_metric_that_is_one_class_goes_everywhere_without_another_line(tiny, small, rng, tmp_path, monkeypatch):
    f, X = attention(rng), torch.randn(4, 3, generator=rng, dtype=torch.float64)
    J = f.jacobian(X)
    metric = Halves()
    found = hs.local_lipschitz(f, X, metric=metric, seed=rng)
    torch.testing.assert_close(metric.size(found.direction), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(metric.size(J.jvp(found.direction)), found.lower, rtol=1e-9, atol=0.0)
    for E in torch.randn(200, 4, 3, generator=rng, dtype=torch.float64):
        assert metric.size(J.jvp(E)) <= metric.size(E) * found.upper
    attacked = hs.attack(f, X, eps=1e-5, metric=metric, budget=80)
    assert attacked.metric == "halves"
    assert metric.size(attacked.perturbation) <= 1e-5
    assert attacked.displacement <= attacked.ceiling
    torch.testing.assert_close(attacked.gain, found.lower, rtol=0.02, atol=0.0)
    assert metric.size(hs.domains.Neighbourhood(X, 0.1, metric).nearest(X + 1) - X) <= 0.1
    with pytest.raises(AssumptionError, match=r"total, entries, sum and hs\.metrics\.weighted, got 'halves'"):
        hs.certify(f, X, metric=metric)
    with pytest.raises(AssumptionError, match="theorems on balls are about the metrics total, token"):
        hs.bounds.table(f, n=4, radius=1.0, metric=metric)
    # by its name it is measured at texts, kept and reported
    monkeypatch.setitem(metrics.NAMED, "halves", metric)
    measured = hs.measure(tiny, metric="halves", out=tmp_path, **small)
    assert "metric halves" in repr(measured)
    assert {record.ask.metric for record in measured.records} == {"halves"}
    assert "metric halves" in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["total", "token", "relative", "condition", "entries", "sum"])
def test_measurements_at_texts_are_those_of_each_window_and_say_what_they_are_relative_to(tiny, small, name):
    asked = small | {"layers": [1], "lengths": [4], "sequences": 1}
    (record,) = hs.measure(tiny, metric=name, rtol=1e-3, **asked).records
    f, X = tiny.activations(tiny.windows(hs.models.inputs.text.read_text(small["text"]), length=4, count=1)).at(1)
    alone = hs.local_lipschitz(f, X, metric=name)[0]
    # both brackets hold the same number
    assert record.answer.lower <= float(alone.upper)
    assert float(alone.lower) <= record.answer.upper
    size = metrics.NAMED[name].at(X).size(X) / metrics.NAMED[name].at(f(X)).size(f(X))
    assert record.answer.relative == pytest.approx(record.answer.lower * float(size), rel=1e-5)
    assert 0 < record.answer.typical <= record.answer.upper
    assert sum(record.answer.sensitivity) == pytest.approx(1.0, rel=1e-5)


def test_what_a_measurement_cannot_prove_is_refused_and_other_metrics_have_other_keys(tiny, small):
    with pytest.raises(AssumptionError, match="proven in the metrics total and token, got 'sum'"):
        hs.measure(tiny, metric="sum", certificate=True, **small)
    with pytest.raises(AssumptionError, match="there is no metric 'tokn'; did you mean token"):
        hs.measure(tiny, metric="tokn", **small)
    asked = small | {"layers": [0], "lengths": [4], "sequences": 1}
    (token,), (total,) = (hs.measure(tiny, metric=m, certificate=True, **asked).records for m in ("token", "total"))
    assert token.ask.key != total.ask.key
    assert token.answer.upper <= token.answer.local_upper * (1 + 2e-3)


MECHANISMS = {
    "L2": lambda rng, **w: hs.maps.L2Attention(**w),
    "cosine": lambda rng, **w: hs.maps.CosineAttention(**w, eps=0.3),
    "normalised": lambda rng, **w: hs.maps.CosineAttention(**w, eps=0.3, normalise_values=True),
    "differential": lambda rng, **w: hs.maps.DifferentialAttention(**w, subtracted=draw(rng, 2)),
}


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize("seed", range(4))
def test_any_softmax_has_a_bound_between_largest_tokens_for_every_number_of_them(kind, seed):
    rng = torch.Generator().manual_seed(seed)
    size = (0.3, 1.0, 3.0, 1.0)[seed]
    weights = {name: size * draw(rng, 2, 2, 3) for name in ("query", "key", "value")}
    biases = {f"{name}_bias": draw(rng, 2, 2) for name in ("query", "key", "value")} if seed == 3 else {}
    output = {"output": draw(rng, 2, 3, 2)} if seed % 2 else {}
    f = MECHANISMS[kind](rng, **weights, **output, **biases)
    radius = 0.3 + 2 * float(torch.rand((), generator=rng))
    bound = hs.bounds.token_upper(f, radius=radius).value
    for n in (1, 3, 7):
        X = hs.domains.Ball(radius).draw(4, n, draw(rng, 3), rng)
        assert float(hs.local_lipschitz(f, X, metric="token", seed=rng).lower.max()) <= bound
    assert hs.bounds.smallest_upper(f, n=3, radius=radius, metric="token").value == bound


def test_weights_that_are_no_softmax_are_refused(rng):
    f = hs.maps.SigmoidAttention(query=draw(rng, 1, 2, 3), key=draw(rng, 1, 2, 3), value=draw(rng, 1, 2, 3))
    with pytest.raises(AssumptionError, match="weights that are a softmax"):
        hs.bounds.token_upper(f, radius=1.0)
    with pytest.raises(AssumptionError, match="weights that are a softmax"):
        hs.bracket(f, n=3, radius=1.0, metric="token")


@pytest.mark.parametrize("joined", [True, False])
def test_in_a_form_attention_is_another_one_whose_bounds_hold(rng, joined):
    f = attention(rng, value_bias=draw(rng, 2, 2))
    if not joined:  # heads side by side, as wide as the tokens
        f = hs.Attention(query=draw(rng, 3, 2, 3), key=draw(rng, 3, 2, 3), value=draw(rng, 3, 1, 3))
    metric, radius = form(rng), 1.5
    table = hs.bounds.table(f, n=4, radius=radius, metric=metric)
    assert table.upper.name == "sharp_upper"
    assert "metric weighted" in table.upper.domain
    for X in hs.domains.Ball(radius).draw(20, 4, draw(rng, 3), rng):
        assert float(hs.local_lipschitz(f, X, metric=metric).lower) <= table.upper.value
    # ten times the form is the same constant; the Euclidean one has the bounds of the total norm
    identity = torch.eye(3, dtype=torch.float64)
    scaled = hs.bounds.smallest_upper(f, n=4, radius=radius, metric=metrics.weighted(10 * identity))
    assert scaled.value == pytest.approx(hs.bounds.smallest_upper(f, n=4, radius=radius).value, rel=1e-9)
    with pytest.raises(AssumptionError, match="the form has 2 coordinates"):
        hs.bounds.table(f, n=4, radius=1.0, metric=metrics.weighted(identity[:2, :2]))


def test_a_bracket_between_largest_tokens_holds_an_input_and_a_theorem(rng):
    f = attention(rng)
    explicit, searched = (hs.bracket(f, n=5, radius=3.0, metric="token", search=search) for search in (False, True))
    assert explicit.lower.value <= searched.lower.value * (1 + 1e-6)
    assert searched.ratio < 4
    assert searched.upper.name == "token_upper"
    assert "largest token" in explicit.upper.domain
    there = hs.local_lipschitz(f, searched.lower.tokens, metric="token")
    assert float(there.upper) >= searched.lower.value
    for name in ("relative", "entries"):
        with pytest.raises(AssumptionError, match=f"total, token and hs.metrics.weighted, got '{name}'"):
            hs.bracket(f, n=5, radius=3.0, metric=name)


@pytest.mark.parametrize("name", ["token", "entries", "sum", "weighted", "mixed"])
def test_a_search_climbs_in_any_metric_and_its_input_attains_what_it_says(name, rng):
    metric = {"weighted": form(rng), "mixed": hs.Metrics(input=metrics.token, output=metrics.total)}.get(name, name)
    f, domain = attention(rng), hs.domains.Ball(2.0)
    found = hs.maximise(f, n=3, domain=domain, starts=2, steps=6, metric=metric)
    assert list(found.trace) == sorted(found.trace)
    assert found.trace[-1] > found.trace[0]
    there = hs.local_lipschitz(f, found.tokens, metric=metric)
    assert there.upper >= found.value
    with pytest.raises(AssumptionError, match="compares inputs in one metric"):
        hs.maximise(f, n=3, domain=domain, metric="relative")
    with pytest.raises(AssumptionError, match="over measures in total"):
        hs.maximise(f, n=3, domain=domain, metric="token", weights=True)


@pytest.mark.parametrize("name", ["token", "entries", "sum", "weighted"])
def test_a_penalty_in_any_metric_is_the_constant_and_has_its_gradient(name, rng):
    metric = form(rng) if name == "weighted" else name
    f, X = attention(rng), draw(rng, 4, 3)

    def constant(scale):
        return hs.local_lipschitz(dataclasses.replace(f, value=f.value * scale), X, metric=metric, rtol=1e-6)

    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    state = hs.training.WarmStart()
    found = hs.penalty(lambda Z: dataclasses.replace(f, value=f.value * scale)(Z), X, metric=metric, state=state)
    assert float(found.detach()) == pytest.approx(float(constant(1.0).lower), rel=2e-2)
    found.backward()
    # the map is linear in its values, so the constant is its own derivative
    assert float(scale.grad) == pytest.approx(float(found.detach()), rel=1e-9)
    again = hs.penalty(f, X, metric=metric, state=state, steps=3)
    assert float(again) >= float(found.detach()) * (1 - 1e-3)
    assert float(again) <= float(constant(1.0).upper) * (1 + 1e-9)
    with pytest.raises(AssumptionError, match="penalties are in the metrics total, token"):
        hs.penalty(f, X, metric="relative")


@pytest.mark.parametrize("name", [*metrics.NAMED, "weighted"])
def test_neighbourhoods_are_balls_of_any_metric(name, rng):
    X = draw(rng, 4, 3)
    domain = hs.domains.Neighbourhood(X, 0.3, metric=form(rng) if name == "weighted" else name)
    there = domain.size
    for Z in (domain.nearest(X + draw(rng, 5, 4, 3)), domain.draw(5, 4, X[0], rng)):
        assert float(there.size(Z - X).max()) <= 0.3
        assert float(there.size(Z - X).max()) >= 0.3 * (1 - 1e-9)
    assert torch.equal(domain.nearest(X), X)
    inner = X + 0.1 * there.draw(X, rng)
    torch.testing.assert_close(domain.direction(inner, X), X, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("metric", ["entries", "relative"])
def test_theorem_five_is_about_two_metrics(metric, rng):
    with pytest.raises(AssumptionError, match="Theorem 5 is about the metrics total and token"):
        hs.bounds.neighbourhood_upper(attention(rng), draw(rng, 4, 3), eps=0.1, metric=metric)
