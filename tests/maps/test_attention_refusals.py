"""Weights, tokens and settings that are no attention: each refusal says what we need, what we got, what to do."""

import math

import pytest
import torch
from cases import good
from draws import gaussian

import howsmooth as hs
from howsmooth.errors import (
    AssumptionError,
    DeviceError,
    DtypeError,
    HowsmoothError,
    NonFiniteError,
    ShapeError,
)

pytestmark = pytest.mark.untyped


NAN = torch.tensor([[torch.nan] * 6] * 5)


TOKENS = [
    (torch.ones(5, 7), ShapeError, r"\(\*batch, n, 6\).*got \(5, 7\)"),
    (torch.ones(6), ShapeError, r"got \(6,\)"),
    (torch.ones(0, 6), ShapeError, r"n >= 1, got \(0, 6\)"),
    (torch.ones(5, 6, dtype=torch.int64), DtypeError, r"real floating-point numbers, got torch.int64"),
    (torch.ones(5, 6, dtype=torch.complex64), DtypeError, r"got torch.complex64"),
    (torch.ones(5, 6, dtype=torch.float64), DtypeError, r"one dtype, got torch.float64 and torch.float32"),
    (torch.ones(5, 6, device="meta"), DeviceError, r"one device, got meta and cpu"),
    (NAN, NonFiniteError, r"tokens must be finite, but 30 of its 30"),
    (torch.full((5, 6), torch.inf), NonFiniteError, r"NaN or infinite"),
]


@pytest.mark.parametrize(("X", "error", "sentence"), TOKENS, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_tokens_are_refused(X, error, sentence):
    for use in (good(), good().jacobian, lambda X: hs.local_lipschitz(good(), X)):
        with pytest.raises(error, match=sentence):
            use(X)


WEIGHTS = [
    ({"key": torch.ones(3, 2, 6)}, ShapeError, "multiple of the key/value groups, got 4 and 3"),
    ({"key": torch.ones(2, 5, 6)}, ShapeError, r"key must have the shape \(2, 2, 6\), got \(2, 5, 6\)"),
    ({"value": torch.ones(2, 3, 5)}, ShapeError, r"value must have the shape \(2, 3, 6\)"),
    ({"output": torch.ones(4, 6, 2)}, ShapeError, r"output must have the shape \(4, 6, 3\)"),
    ({"query": torch.ones(2, 6)}, ShapeError, r"query must have a head axis"),
    ({"query": torch.ones(4, 2, 6).double()}, DtypeError, "one dtype"),
    ({"query": torch.full((4, 2, 6), torch.nan)}, NonFiniteError, "query must be finite"),
    ({"value": torch.full((2, 3, 6), torch.inf)}, NonFiniteError, "value must be finite"),
    ({"query": torch.ones(4, 2, 6, dtype=torch.int32)}, DtypeError, "query must hold real"),
    ({"query_bias": torch.ones(4, 3)}, ShapeError, r"query_bias must have the shape \(4, 2\)"),
    ({"output_bias": torch.full((6,), torch.nan)}, NonFiniteError, "output_bias must be finite"),
    ({"softcap": 0.0}, AssumptionError, "softcap must be positive, got 0.0"),
    ({"scale": float("nan")}, AssumptionError, "scale must be finite"),
    ({"query_norm": hs.maps.RMSNorm(gain=torch.ones(3))}, ShapeError, "gain of query_norm"),
    ({"weights": torch.tensor([-1.0, 2.0])}, AssumptionError, "must not be negative"),
    ({"weights": torch.tensor([torch.nan, 2.0])}, NonFiniteError, "weights must be finite"),
    ({"positions": hs.maps.Positions(relative_bias=torch.ones(3, 9))}, ShapeError, "1 or 4 heads, got 3"),
    ({"positions": hs.maps.Positions(rotary=hs.maps.Rotary(dim=4))}, ShapeError, "4 exceeds the head dimension 2"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), WEIGHTS, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_weights_are_refused(changes, error, sentence):
    with pytest.raises(error, match=sentence):
        good(**changes)


def test_weights_that_leave_nothing_to_see_are_refused():
    f = good(weights=torch.tensor([0.0, 1.0, 1.0]), positions=hs.maps.Positions(causal=True))
    with pytest.raises(AssumptionError, match="token 0 may attend to nothing"):
        f(torch.ones(3, 6))
    with pytest.raises(ShapeError, match="weights must have one entry for each of 5 tokens, got 3"):
        f(torch.ones(5, 6))


def test_bad_bilinear_forms_are_refused():
    with pytest.raises(ShapeError, match=r"square matrix, got \(2, 3\)"):
        hs.Attention.single_head(A=torch.ones(2, 3), V=torch.ones(3, 3))
    with pytest.raises(ShapeError, match="value must have the shape"):
        hs.Attention.single_head(A=torch.ones(3, 3), V=torch.ones(3, 2))
    with pytest.raises(AssumptionError, match="not both"):
        hs.Attention.single_head(A=torch.ones(3, 3), V=torch.ones(3, 3), causal=True, positions=hs.maps.Positions())
    with pytest.raises(ShapeError, match="multiple of heads"):
        hs.Attention.random(heads=5, d=12)


def test_a_head_that_does_not_exist_is_refused():
    with pytest.raises(AssumptionError, match="0 to 3, got 4"):
        good().head(4)


def test_bad_perturbations_are_refused():
    J = good().jacobian(torch.ones(5, 6))
    with pytest.raises(ShapeError, match=r"perturbation must have the shape \(5, 6\), got \(4, 6\)"):
        J.jvp(torch.ones(4, 6))
    with pytest.raises(ShapeError, match="cotangent"):
        J.vjp(torch.ones(6, 5))


def parts(rng):
    return {
        "query": gaussian(rng, 4, 3, 4),
        "key": gaussian(rng, 2, 3, 4),
        "value": gaussian(rng, 2, 5, 4),
        "output": gaussian(rng, 4, 4, 5),
    }


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("query", (3, 4)),
        ("query", (3, 3, 4)),
        ("key", (3, 3, 4)),
        ("key", (2, 2, 4)),
        ("key", (2, 3, 5)),
        ("value", (1, 5, 4)),
        ("value", (2, 5, 3)),
        ("output", (2, 4, 5)),
        ("output", (4, 4, 4)),
        ("query_bias", (3,)),
        ("query_bias", (2, 3)),
        ("key_bias", (4, 3)),
        ("value_bias", (4, 5)),
        ("value_bias", (2, 3)),
        ("output_bias", (5,)),
    ],
    ids=str,
)
def test_weights_of_the_wrong_shape_are_refused(rng, name, shape):
    with pytest.raises(ShapeError):
        hs.Attention(**(parts(rng) | {name: gaussian(rng, *shape)}))


def test_heads_that_groups_do_not_divide_are_refused(rng):
    with pytest.raises(ShapeError, match="multiple"):
        hs.Attention(**(parts(rng) | {"key": gaussian(rng, 3, 3, 4), "value": gaussian(rng, 3, 5, 4)}))


@pytest.mark.parametrize("name", ["query", "key", "value", "output", "query_bias", "output_bias"])
def test_weights_that_are_not_finite_reals_of_one_dtype_are_refused(rng, name):
    good = parts(rng) | {"query_bias": gaussian(rng, 4, 3), "output_bias": gaussian(rng, 4)}
    for poison in (math.nan, math.inf):
        bad = good[name].clone()
        bad.view(-1)[-1] = poison
        with pytest.raises(NonFiniteError):
            hs.Attention(**(good | {name: bad}))
    for convert in (torch.Tensor.float, torch.Tensor.long, lambda t: t + 0j):
        with pytest.raises(DtypeError):
            hs.Attention(**(good | {name: convert(good[name])}))
    if name != "query":
        with pytest.raises(DeviceError):
            hs.Attention(**(good | {name: good[name].to("meta")}))


def make_bad_tokens(d=4):
    good = torch.ones(6, d).double()
    return {
        "one axis": (good[0], ShapeError),
        "other dimension": (torch.ones(6, d + 1).double(), ShapeError),
        "no tokens": (good[:0], ShapeError),
        "float32": (good.float(), DtypeError),
        "integers": (good.long(), DtypeError),
        "booleans": (good.bool(), DtypeError),
        "complex": (good + 0j, DtypeError),
        "NaN": (good * math.nan, NonFiniteError),
        "inf": (good * math.inf, NonFiniteError),
    }


@pytest.mark.parametrize("name", make_bad_tokens())
def test_bad_tokens_are_refused_by_value_jacobian_and_estimate(rng, name):
    bad, error = make_bad_tokens()[name]
    f = hs.Attention(**parts(rng))
    with pytest.raises(error):
        f(bad)
    norm = hs.maps.LayerNorm(gain=torch.ones(4).double())
    for g in (f, norm, hs.maps.Chain(norm, f), hs.maps.Residual(f)):
        for ask in (g.jacobian, lambda X, g=g: hs.local_lipschitz(g, X)):
            with pytest.raises(error):
                ask(bad)


def test_perturbations_of_the_wrong_shape_are_refused(rng):
    f = hs.Attention(**(parts(rng) | {"output": gaussian(rng, 4, 7, 5)}))
    X = gaussian(rng, 2, 6, 4)
    for operator in (
        f.jacobian(X),
        f.jacobian(X, memory=0),
        hs.maps.Chain(f).jacobian(X),
        hs.spectral.JacobianOperator(f, X),
    ):
        for shape in [(6, 4), (2, 6, 7), (2, 5, 4), (48,), (3, 2, 6, 4)]:
            with pytest.raises(ShapeError):
                operator.jvp(gaussian(rng, *shape))
        with pytest.raises(ShapeError):
            operator.vjp(gaussian(rng, 2, 6, 4))


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"weights": torch.ones(5).double()}, ShapeError),
        ({"weights": -torch.ones(6).double()}, AssumptionError),
        ({"weights": torch.zeros(6).double()}, AssumptionError),
        ({"weights": torch.full((6,), math.nan).double()}, NonFiniteError),
        ({"weights": torch.ones(6).long()}, DtypeError),
        ({"weights": torch.ones(3, 6).double()}, ShapeError),
        ({"scale": math.nan}, AssumptionError),
        ({"scale": math.inf}, AssumptionError),
        ({"softcap": 0.0}, AssumptionError),
        ({"softcap": -1.0}, AssumptionError),
        ({"softcap": math.nan}, AssumptionError),
        ({"query_norm": hs.maps.RMSNorm(gain=torch.ones(4).double())}, ShapeError),
        ({"key_norm": hs.maps.RMSNorm(gain=torch.ones(3))}, DtypeError),
    ],
    ids=str,
)
def test_other_settings_without_a_meaning_are_refused(rng, keywords, error):
    with pytest.raises(error):
        hs.Attention(**parts(rng), **keywords)(gaussian(rng, 2, 6, 4))


def test_a_map_whose_output_overflows_is_refused(rng):
    f = hs.Attention(**(parts(rng) | {"value": torch.full((2, 5, 4), 1e308, dtype=torch.float64)}))
    with pytest.raises(NonFiniteError):
        hs.local_lipschitz(f, gaussian(rng, 6, 4))


def test_heads_that_do_not_exist_are_refused(rng):
    f = hs.Attention(**parts(rng))
    for h in (4, -5, 100):
        with pytest.raises(HowsmoothError):
            f.head(h)


@pytest.mark.parametrize(("A", "V"), [((3, 4), (4, 4)), ((4,), (4, 4)), ((4, 4), (4, 3)), ((4, 4), (4,))], ids=str)
def test_single_heads_of_the_wrong_shape_are_refused(rng, A, V):
    with pytest.raises(ShapeError):
        hs.Attention.single_head(A=gaussian(rng, *A), V=gaussian(rng, *V))


def test_causal_and_positions_together_are_refused(rng):
    with pytest.raises(AssumptionError):
        hs.Attention.single_head(
            A=gaussian(rng, 4, 4), V=gaussian(rng, 4, 4), causal=True, positions=hs.maps.Positions(window=2)
        )


def test_an_empty_batch_is_refused(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    X = torch.zeros(0, 5, 4).double()
    for ask in (f, f.jacobian, lambda Z: hs.local_lipschitz(f, Z)):
        with pytest.raises(HowsmoothError):
            ask(X)


def test_perturbations_of_another_dtype_are_refused(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    operator = f.jacobian(gaussian(rng, 5, 4))
    for product in (operator.jvp, operator.vjp):
        with pytest.raises(DtypeError):
            product(gaussian(rng, 5, 4).float())


def test_half_precision_tokens_and_double_weights_are_mixed_dtypes(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    with pytest.raises(DtypeError):
        hs.local_lipschitz(f, gaussian(rng, 5, 4).half())


def test_a_layer_without_heads_is_refused():
    with pytest.raises(HowsmoothError):
        hs.Attention.random(heads=0, d=4)


def test_a_bias_that_is_a_list_is_refused_like_a_weight_that_is_one(rng):
    Q = gaussian(rng, 2, 3, 4)
    with pytest.raises(DtypeError):
        hs.Attention(query=Q, key=Q, value=Q, query_bias=gaussian(rng, 2, 3).tolist())
