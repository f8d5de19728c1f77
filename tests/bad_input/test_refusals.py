"""Each refusal says what we need, what we got, what to do."""

import pytest
import torch
from torch import nn

import howsmooth as hs
from howsmooth.errors import (
    AssumptionError,
    DeviceError,
    DtypeError,
    HowsmoothError,
    NonFiniteError,
    ShapeError,
)


def good(**changes):
    parts = {
        "query": torch.ones(4, 2, 6),
        "key": torch.ones(2, 2, 6),
        "value": torch.ones(2, 3, 6),
        "output": torch.ones(4, 6, 3),
    }
    return hs.Attention(**(parts | changes))


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
    ([[1.0] * 6], DtypeError, r"torch.Tensor, got list"),
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
    ({"query_norm": hs.RMSNorm(gain=torch.ones(3))}, ShapeError, "gain of query_norm"),
    ({"weights": torch.tensor([-1.0, 2.0])}, AssumptionError, "must not be negative"),
    ({"weights": torch.tensor([torch.nan, 2.0])}, NonFiniteError, "weights must be finite"),
    ({"positions": hs.Positions(relative_bias=torch.ones(3, 9))}, ShapeError, "1 or 4 heads, got 3"),
    ({"positions": hs.Positions(rotary=hs.Rotary(dim=4))}, ShapeError, "4 exceeds the head dimension 2"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), WEIGHTS, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_weights_are_refused(changes, error, sentence):
    with pytest.raises(error, match=sentence):
        good(**changes)


def test_a_rotary_dimension_must_be_even():
    with pytest.raises(ShapeError, match="even and positive, got 3"):
        hs.Rotary(dim=3)
    with pytest.raises(ShapeError, match="heads of dimension 3"):
        hs.Attention(
            query=torch.ones(1, 3, 4),
            key=torch.ones(1, 3, 4),
            value=torch.ones(1, 3, 4),
            positions=hs.Positions(rotary=hs.Rotary()),
        )
    with pytest.raises(ShapeError, match="1 entries, got"):
        good(positions=hs.Positions(rotary=hs.Rotary(frequencies=torch.ones(2))))
    with pytest.raises(AssumptionError, match="base must be positive"):
        hs.Rotary(base=0.0)


POSITIONS = [
    ({"window": 0}, AssumptionError, "window must be a whole number, at least 1"),
    ({"padding": torch.ones(5)}, DtypeError, "padding must be boolean"),
    ({"mask": torch.ones(5)}, ShapeError, r"mask must be \(n, n\)"),
    ({"mask": torch.ones(5, 4, dtype=torch.bool)}, ShapeError, r"got \(5, 4\)"),
    ({"mask": torch.ones(5, 5, dtype=torch.int64)}, DtypeError, "boolean .* or floating point"),
    ({"mask": torch.full((5, 5), torch.nan)}, NonFiniteError, "neither NaN nor"),
    ({"relative_bias": torch.ones(4, 8)}, ShapeError, "2L - 1"),
    ({"relative_bias": torch.full((4, 9), torch.inf)}, NonFiniteError, "relative_bias must be finite"),
]


@pytest.mark.parametrize(("parts", "error", "sentence"), POSITIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_positions_are_refused(parts, error, sentence):
    with pytest.raises(error, match=sentence):
        hs.Positions(**parts)


FITTING = [
    (hs.Positions(padding=torch.ones(4, dtype=torch.bool)), "padding must have one entry for each of 5 tokens, got 4"),
    (hs.Positions(mask=torch.ones(4, 4, dtype=torch.bool)), r"mask must end in \(5, 5\)"),
    (hs.Positions(relative_bias=torch.ones(1, 7)), "9 entries or more, got 7"),
    (hs.Positions(rotary=hs.Rotary(positions=torch.arange(3))), "for each of 5 tokens, got 3"),
    (hs.Positions(padding=torch.ones(3, 5, dtype=torch.bool)), "must broadcast"),
]


@pytest.mark.parametrize(("positions", "sentence"), FITTING, ids=lambda x: x if isinstance(x, str) else "")
def test_masks_that_do_not_fit_the_tokens_are_refused(positions, sentence):
    with pytest.raises(ShapeError, match=sentence):
        good(positions=positions)(torch.ones(2, 5, 6))


BLIND = [
    hs.Positions(padding=torch.zeros(5, dtype=torch.bool)),
    hs.Positions(causal=True, padding=torch.tensor([False, True, True, True, True])),
    hs.Positions(mask=torch.eye(5, dtype=torch.bool).logical_and(torch.arange(5) > 0)),
    hs.Positions(window=1, mask=~torch.eye(5, dtype=torch.bool)),
    hs.Positions(mask=torch.full((5, 5), -torch.inf)),
]


@pytest.mark.parametrize("positions", BLIND)
def test_a_row_that_may_attend_to_nothing_is_refused(positions):
    for use in (good(positions=positions), good(positions=positions).jacobian):
        with pytest.raises(AssumptionError, match="token 0 may attend to nothing"):
            use(torch.ones(5, 6))


def test_weights_that_leave_nothing_to_see_are_refused():
    f = good(weights=torch.tensor([0.0, 1.0, 1.0]), positions=hs.Positions(causal=True))
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
        hs.Attention.single_head(A=torch.ones(3, 3), V=torch.ones(3, 3), causal=True, positions=hs.Positions())
    with pytest.raises(ShapeError, match="multiple of heads"):
        hs.Attention.random(heads=5, d=12)


def test_a_head_that_does_not_exist_is_refused():
    with pytest.raises(AssumptionError, match="0 to 3, got 4"):
        good().head(4)


def test_bad_norms_are_refused():
    with pytest.raises(ShapeError, match="bias must have the shape"):
        hs.LayerNorm(gain=torch.ones(3), bias=torch.ones(4))
    with pytest.raises(AssumptionError, match="eps must not be negative"):
        hs.RMSNorm(gain=torch.ones(3), eps=-1.0)
    with pytest.raises(NonFiniteError, match="gain must be finite"):
        hs.RMSNorm(gain=torch.tensor([torch.inf, 1.0]))
    with pytest.raises(AssumptionError, match="without spread"):
        hs.LayerNorm(gain=torch.ones(3), eps=0.0)(torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"n, 3\)"):
        hs.LayerNorm(gain=torch.ones(3)).jacobian(torch.ones(2, 4))


def test_bad_compositions_are_refused():
    with pytest.raises(ShapeError, match="at least one map"):
        hs.Chain()
    with pytest.raises(DtypeError, match="maps with a `jacobian`, got Linear"):
        hs.Chain(nn.Linear(3, 3))
    with pytest.raises(ShapeError, match="input and output"):
        hs.Residual(hs.Attention.single_head(A=torch.eye(3), V=torch.ones(2, 3))).jacobian(torch.ones(4, 3))
    chain = hs.Chain(hs.LayerNorm(gain=torch.ones(6)), good().per_head())
    with pytest.raises(ShapeError, match="share their batch axes"):
        chain.jacobian(torch.randn(5, 6))


def test_bad_perturbations_are_refused():
    J = good().jacobian(torch.ones(5, 6))
    with pytest.raises(ShapeError, match=r"perturbation must have the shape \(5, 6\), got \(4, 6\)"):
        J.jvp(torch.ones(4, 6))
    with pytest.raises(ShapeError, match="cotangent"):
        J.vjp(torch.ones(6, 5))


SETTINGS = [
    ({"rtol": 0.0}, "rtol must be at least"),
    ({"rtol": 1e-9}, "use float64"),
    ({"rtol": float("nan")}, "rtol must be at least"),
    ({"confidence": 1.0}, "strictly between 0 and 1"),
    ({"confidence": 0.0}, "strictly between 0 and 1"),
    ({"max_steps": 0}, "max_steps must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("settings", "sentence"), SETTINGS, ids=str)
def test_bad_settings_are_refused(settings, sentence):
    with pytest.raises(AssumptionError, match=sentence):
        hs.local_lipschitz(good(), torch.ones(5, 6), **settings)


def test_bad_requests_for_singular_values_are_refused():
    for k in (0, 4):
        with pytest.raises(AssumptionError, match=f"between 1 and 3, .* got {k}"):
            hs.singular_values(hs.Dense(torch.ones(3, 5)), k=k)
    with pytest.raises(AssumptionError, match="power_iteration needs"):
        hs.power_iteration(hs.Dense(torch.ones(3, 5)), rtol=0.0)


def test_operators_that_are_empty_or_not_finite_are_refused():
    with pytest.raises(AssumptionError, match="must not be empty"):
        hs.spectral_norm(hs.Dense(torch.ones(0, 5)))
    with pytest.raises(NonFiniteError, match="matrix must be finite"):
        hs.Dense(NAN)


def test_maps_whose_output_is_not_finite_are_refused():
    huge = hs.Attention.single_head(A=1e38 * torch.eye(2), V=torch.eye(2))
    with pytest.raises(NonFiniteError, match="output of attention"):
        hs.local_lipschitz(huge, 1e10 * torch.randn(3, 2))
    with pytest.raises(NonFiniteError, match="output of the callable"):
        hs.local_lipschitz(lambda X: X / 0, torch.ones(3, 2))
    with pytest.raises(NonFiniteError, match="product with the operator is not finite"):
        hs.local_lipschitz(torch.sqrt, torch.zeros(3, 2))


def test_callables_that_are_no_maps_are_refused():
    X = torch.ones(2, 3)
    with pytest.raises(DtypeError, match="one tensor, got tuple"):
        hs.local_lipschitz(lambda X: (X, X), X)
    with pytest.raises(DtypeError, match="callable on tensors, got int"):
        hs.local_lipschitz(3, X)
    with pytest.raises(DtypeError, match="output of the callable must hold real"):
        hs.local_lipschitz(lambda X: X.long(), X)
    with pytest.raises(ShapeError, match="keep the batch axes"):
        hs.local_lipschitz(lambda X: X.sum(), torch.ones(4, 2, 3))
    with pytest.raises(AssumptionError, match="mixes the batch axes"):
        hs.local_lipschitz(lambda X: X + X.mean(0), torch.randn(4, 2, 3))


def test_every_error_is_also_the_builtin_that_a_caller_would_guess():
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DtypeError, TypeError)
    for error in (ShapeError, DtypeError, DeviceError, NonFiniteError, AssumptionError):
        assert issubclass(error, HowsmoothError)
