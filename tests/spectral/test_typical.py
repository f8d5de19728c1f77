import io
import json
import math

import pytest
import torch
from oracles import dense_jacobian
from rich.console import Console
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, NonFiniteError
from howsmooth.spectral.typical import typical_gain_of

MANY = 300


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def exact(f, X):
    dense = dense_jacobian(f, X)
    return float(dense.detach().norm()) / math.sqrt(X.numel())


def test_the_gain_of_an_isometry_is_exact_from_any_sample(rng):
    turn = torch.linalg.qr(gauss(rng, 7, 7)).Q
    found = typical_gain_of(hs.Dense(3 * turn), samples=2, generator=rng)
    three = torch.tensor(3.0, dtype=torch.float64)
    assert_close(found.value, three)
    assert_close(found.low, three)
    assert_close(found.high, three)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"k": 1}], ids=["plain", "causal", "compressed"])
def test_the_gain_of_attention_is_its_frobenius_norm_over_the_root_of_its_size(options, rng):
    k = options.pop("k", 3)
    f = hs.Attention.random(heads=1, d=6, k=k, dtype=torch.float64, generator=rng, **options)
    X = gauss(rng, 4, 6)
    found = hs.typical_gain(f, X, samples=MANY, confidence=0.9999, generator=rng)
    assert float(found.low) <= exact(f, X) <= float(found.high)
    # a few standard errors of 300 samples
    assert float(found.value) == pytest.approx(exact(f, X), rel=0.15)
    assert found.products == found.samples == MANY


def test_callables_and_modules_are_differentiated_by_autograd(rng):
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5)).double()
    X = gauss(rng, 4, 3)
    found = hs.typical_gain(module, X, samples=MANY, confidence=0.9999, generator=rng)
    true = exact(lambda Y: torch.tanh(module[0](Y)), X)
    assert float(found.low) <= true <= float(found.high)


def test_a_batch_has_a_gain_for_each_input(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    X = gauss(rng, 2, 3, 5, 4)
    found = hs.typical_gain(f, X, samples=MANY, confidence=1 - 1e-6, generator=rng)
    assert found.value.shape == found.low.shape == found.high.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert float(found.low[i, j]) <= exact(f, X[i, j]) <= float(found.high[i, j])


def test_the_interval_holds_as_often_as_it_says(rng):
    matrix = gauss(rng, 30, 30)
    true = float(matrix.norm()) / math.sqrt(30)
    batch = hs.Dense(matrix.expand(2000, 30, 30))
    found = typical_gain_of(batch, samples=16, confidence=0.9, generator=rng)
    share = ((found.low <= true) & (true <= found.high)).double().mean()
    # 2000 intervals: two per cent are three standard deviations
    assert float(share) == pytest.approx(0.9, abs=0.02)


def test_the_typical_gain_is_below_the_worst(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    X = gauss(rng, 12, 8)
    assert hs.typical_gain(f, X, generator=rng).value < hs.local_lipschitz(f, X, generator=rng).lower


def test_a_seed_repeats_it_and_sizes_do_not_matter(rng):
    matrix = gauss(rng, 5, 6)
    small, large, plain = (
        typical_gain_of(hs.Dense(scale * matrix), generator=torch.Generator().manual_seed(3))
        for scale in (1e-200, 1e200, 1.0)
    )
    assert_close(1e200 * small.value, plain.value)
    assert_close(1e-200 * large.high, plain.high)
    assert typical_gain_of(hs.Dense(0 * matrix), generator=rng).high == 0


def test_a_gain_shows_itself(rng):
    one = typical_gain_of(hs.Dense(2 * torch.eye(3, dtype=torch.float64)), generator=rng)
    many = typical_gain_of(hs.Dense(2 * torch.eye(3, dtype=torch.float64).expand(4, 3, 3)), generator=rng)
    assert repr(one) == "TypicalGain: 2 in [2, 2] (95 %, 16 samples)"
    assert repr(many) == "TypicalGain: 4 inputs, from 2 to 2 (95 %, 16 samples)"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(one)
    assert "2 in [2, 2]" in console.export_text()
    assert many._repr_html_().count("<tr>") == 5
    told = json.loads(many.to_json())
    assert told["value"] == many.value.tolist()
    assert (told["samples"], told["products"], told["confidence"]) == (16, 16, 0.95)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("field", "value"), [("samples", 1), ("samples", 2.5), ("samples", None), ("confidence", None), ("confidence", 1.0)]
)
def test_settings_that_cannot_be_are_refused_before_the_map_is_evaluated(field, value):
    def never(X):
        raise RuntimeError("evaluated")

    with pytest.raises(AssumptionError, match=field) as refusal:
        hs.typical_gain(never, torch.ones(2, 2), **{field: value})
    assert refusal.value.field == field


def test_a_product_that_is_not_finite_is_refused():
    class Broken(hs.Dense):
        def jvp(self, E):
            return E * math.nan

    with pytest.raises(NonFiniteError, match="not differentiable"):
        typical_gain_of(Broken(torch.eye(2, dtype=torch.float64)))


def test_a_gain_that_is_known_already_costs_no_product(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    J = f.jacobian(gauss(rng, 4, 6))
    first = hs.spectral_norm(J, generator=torch.Generator().manual_seed(1))
    found = typical_gain_of(J, samples=3, generator=rng, known=first.random_gain)
    assert (found.samples, found.products) == (3, 2)
    again = typical_gain_of(J, samples=3, generator=torch.Generator().manual_seed(1))  # begins at the same direction
    assert found.value != again.value
    both = typical_gain_of(J, samples=2, generator=torch.Generator().manual_seed(1), known=first.random_gain)
    assert_close(both.value, first.random_gain)
