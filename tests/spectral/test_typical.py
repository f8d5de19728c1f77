import dataclasses
import io
import json
import math

import numpy as np
import pytest
import torch
from oracles import dense_jacobian
from rich.console import Console
from torch.testing import assert_close

import howsmooth as hs
from howsmooth import metrics
from howsmooth.errors import AssumptionError, NonFiniteError
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.spectral.typical import mean_gain, mean_square_interval, typical_gain_of
from howsmooth.wording import at_least, at_most, number


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def exact(f, X):
    dense = dense_jacobian(f, X)
    return float(dense.detach().norm()) / math.sqrt(X.numel())


def test_the_gain_of_an_isometry_is_exact_from_any_sample(rng):
    turn = torch.linalg.qr(gauss(rng, 7, 7)).Q
    found = typical_gain_of(hs.maps.Dense(3 * turn), samples=2, seed=rng)
    assert_close(found.value, torch.tensor(3.0, dtype=torch.float64))
    assert found.low < 3 < found.high


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"k": 1}], ids=["plain", "causal", "compressed"])
@pytest.mark.parametrize("samples", [2, 300], ids=["sampled", "exact"])
def test_the_gain_of_attention_is_its_frobenius_norm_over_the_root_of_its_size(options, samples, rng):
    f = hs.Attention.random(heads=1, d=6, dtype=torch.float64, seed=rng, **{"k": 3} | options)
    X = gauss(rng, 4, 6)
    found = hs.typical_gain(f, X, samples=samples, confidence=0.9999, seed=rng)
    assert float(found.low) <= exact(f, X) * (1 + 1e-12)
    assert exact(f, X) * (1 - 1e-12) <= float(found.high)
    if samples >= X.numel():
        assert_close(found.value, torch.tensor(exact(f, X), dtype=torch.float64))
        assert found.low == found.value == found.high
        assert found.products <= X.numel()


def test_callables_and_modules_are_differentiated_by_autograd(rng):
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5)).double()
    X = gauss(rng, 4, 3)
    found = hs.typical_gain(module, X, samples=10, confidence=0.9999, seed=rng)
    true = exact(lambda Y: torch.tanh(module[0](Y)), X)
    assert float(found.low) <= true <= float(found.high)


def test_a_batch_has_a_gain_for_each_input(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    X = gauss(rng, 2, 3, 5, 4)
    found = hs.typical_gain(f, X, samples=10, confidence=1 - 1e-6, seed=rng)
    assert found.value.shape == found.low.shape == found.high.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert float(found.low[i, j]) <= exact(f, X[i, j]) <= float(found.high[i, j])


SPECTRA = {
    "two alike": lambda i: 1.0 * (i <= 2),
    "three alike": lambda i: 1.0 * (i <= 3),
    "two before a bulk": lambda i: torch.where(i <= 2, 1.0, 0.1),
    "one and a smaller one": lambda i: torch.where(i <= 1, 1.0, 0.7 * (i == 2)),
    "harmonic": lambda i: 1 / i,
    "random": lambda i: i.new_tensor(np.random.default_rng(0).random(len(i))),
}


@pytest.mark.parametrize("samples", [1, 16])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_the_interval_holds_as_often_as_it_says_whatever_the_singular_values(spectrum, samples, rng):
    values = spectrum(torch.arange(1, 31, dtype=torch.float64))
    matrix = torch.linalg.qr(gauss(rng, 30, 30)).Q * values
    true = float(matrix.norm()) / math.sqrt(30)
    found = typical_gain_of(hs.maps.Dense(matrix.expand(2000, 30, 30)), samples=samples, seed=rng)
    share = ((found.low <= true) & (true <= found.high)).double().mean()
    # 2000 intervals: one and a half per cent are three standard deviations
    assert float(share) >= 0.95 - 0.015


def test_the_interval_is_no_wider_than_the_worst_spectrum_needs(rng):
    # of two equal singular values one is deflated; the other is one squared normal number for each sample
    matrix = torch.linalg.qr(gauss(rng, 500, 500)).Q[:2].expand(2000, 2, 500)
    found = typical_gain_of(hs.maps.Dense(matrix), samples=16, seed=rng)
    true = math.sqrt(2 / 500)
    share = ((found.low <= true) & (true <= found.high)).double().mean()
    assert float(share) <= 0.95 + 0.015


@pytest.mark.parametrize("windows", [1, 3])
def test_the_interval_of_a_mean_over_windows_holds_as_often_as_it_says(windows, rng):
    values = torch.zeros(3, 30, dtype=torch.float64)
    values[0, :2], values[1, :4], values[2, :3] = 1.0, 0.5, torch.tensor([2.0, 0.5, 0.5])
    matrices = torch.linalg.qr(gauss(rng, windows, 30, 30)).Q * values[:windows, None]
    true = float((matrices.square().sum((-1, -2)) / 30).mean().sqrt())
    op = hs.maps.Dense(matrices.expand(2000, windows, 30, 30))
    norm = hs.spectral_norm(op, seed=rng)
    found = typical_gain_of(op, samples=8, seed=rng, estimate=norm)
    rows = zip(*(x.tolist() for x in (found.value, norm.lower, norm.upper)), strict=True)
    means = [mean_gain(*row, [30.0] * windows, samples=8, doubt=0.05, bound_doubt=0.001) for row in rows]
    share = sum(low <= true <= high for _value, low, high in means) / len(means)
    assert share >= 0.95 - 0.015
    if windows == 1:
        assert [low for _value, low, _high in means] == pytest.approx(found.low.flatten().tolist(), rel=1e-9)


def test_a_bound_on_the_norm_that_is_doubted_as_much_as_the_interval_is_not_used():
    free = mean_square_interval(10.0, math.inf, samples=8, doubt=0.05)
    assert mean_square_interval(10.0, 1.0, samples=8, doubt=0.05, bound_doubt=0.05) == free
    low, high = mean_square_interval(10.0, 1.0, samples=8, doubt=0.05, bound_doubt=0.04)
    assert free[0] < low < 10 < high < free[1]


def test_the_typical_gain_is_below_the_worst(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X = gauss(rng, 12, 8)
    assert hs.typical_gain(f, X, seed=rng).value < hs.local_lipschitz(f, X, seed=rng).lower


def test_a_seed_repeats_it_and_sizes_do_not_matter(rng):
    matrix = gauss(rng, 5, 6)
    small, large, plain = (typical_gain_of(hs.maps.Dense(scale * matrix), seed=3) for scale in (1e-200, 1e200, 1.0))
    assert_close(1e200 * small.value, plain.value)
    assert_close(1e-200 * large.high, plain.high)
    assert typical_gain_of(hs.maps.Dense(0 * matrix), seed=rng).high == 0


def test_a_gain_shows_itself(rng):
    one = typical_gain_of(hs.maps.Dense(2 * torch.eye(3, dtype=torch.float64)), seed=rng)
    many = typical_gain_of(hs.maps.Dense(2 * torch.eye(3, dtype=torch.float64).expand(4, 3, 3)), seed=rng)
    assert repr(one) == "TypicalGain: 2 [2, 2] (95 %, 16 samples)"
    assert repr(many) == "TypicalGain: 4 inputs, from 2 [2, 2] to 2 [2, 2] (95 % each, 16 samples)"
    wide = typical_gain_of(hs.maps.Dense(torch.diag(torch.arange(1.0, 30.0, dtype=torch.float64))), samples=4, seed=rng)
    low, high = at_least(float(wide.low), 2), at_most(float(wide.high), 2)
    assert repr(wide) == f"TypicalGain: {number(float(wide.value), 2)} [{low}, {high}] (95 %, 4 samples)"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(one)
    assert "2 [2, 2]" in console.export_text()
    assert many._repr_html_().count("<tr>") == 5
    told = json.loads(many.to_json())
    assert told["value"] == many.value.tolist()
    assert (told["samples"], told["products"], told["confidence"]) == (16, 3, 0.95)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("field", "value"), [("samples", 0), ("samples", 2.5), ("samples", None), ("confidence", None), ("confidence", 1.0)]
)
def test_settings_that_cannot_be_are_refused_before_the_map_is_evaluated(field, value):
    def never(X):
        raise RuntimeError("evaluated")

    with pytest.raises(AssumptionError, match=field) as refusal:
        hs.typical_gain(never, torch.ones(2, 2), **{field: value})
    assert refusal.value.field == field


def test_a_product_that_is_not_finite_is_refused():
    class Broken(hs.maps.Dense):
        def jvp(self, E):
            return E * math.nan

    with pytest.raises(NonFiniteError, match="not differentiable"):
        typical_gain_of(Broken(torch.eye(2, dtype=torch.float64)))


def test_a_bracket_that_is_known_already_costs_no_product(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    J = f.jacobian(gauss(rng, 4, 6))
    found = typical_gain_of(J, samples=3, seed=rng, estimate=hs.spectral_norm(J, seed=rng))
    assert (found.samples, found.products) == (3, 4)


PADDED = {
    "weighted": metrics.weighted(torch.diag(torch.tensor([1.0, 4.0, 9.0, 1.0, 2.0, 3.0], dtype=torch.float64))),
    "condition": metrics.condition,
    "relative → total": metrics.Metrics(input=metrics.relative, output=metrics.total),
    "condition → total": metrics.Metrics(input=metrics.condition, output=metrics.total),
    "token → total": metrics.Metrics(input=metrics.token, output=metrics.total),
    "total → token": metrics.Metrics(input=metrics.total, output=metrics.token),
    "weighted → entries": metrics.Metrics(input=metrics.weighted(4 * torch.eye(6)), output=metrics.entries),
}


@pytest.mark.parametrize("metric", PADDED.values(), ids=PADDED)
def test_padded_tokens_count_for_nothing_in_any_metric(metric, rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X, real = gauss(rng, 2, 12, 6), torch.tensor([[True] * 2 + [False] * 10, [True] * 12])
    masked = dataclasses.replace(f, positions=dataclasses.replace(f.positions, padding=real))
    restricted = RealTokens(map=masked, real=real)
    many, few = (
        hs.typical_gain(restricted, X, metric=metric, samples=samples, confidence=0.9999, seed=rng)
        for samples in (400, 7)
    )
    for row, n in enumerate((2, 12)):
        alone = hs.typical_gain(f, X[row, :n], metric=metric, samples=400, seed=rng)
        # exact between Euclidean metrics, otherwise a mean of samples; counting ten padded tokens divides it by 2.4
        assert_close(many.value[row], alone.value, rtol=1e-9 if alone.low == alone.high else 0.2, atol=0.0)
        assert few.low[row] <= alone.value <= few.high[row]


def test_padded_tokens_count_for_nothing(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    X, real = gauss(rng, 2, 5, 6), torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    masked = dataclasses.replace(f, positions=dataclasses.replace(f.positions, padding=real))
    J = RealTokens(map=masked, real=real).jacobian(X)
    for samples in (7, 30):
        found = typical_gain_of(J, samples=samples, confidence=0.9999, seed=rng)
        for row, n in enumerate((3, 5)):
            true = exact(f, X[row, :n])
            assert found.low[row] <= true * (1 + 1e-12)
            assert true * (1 - 1e-12) <= found.high[row]
