"""Positions without a meaning, and masks that do not fit their tokens, are refused."""

import math

import pytest
import torch
from cases import good
from draws import gaussian

import howsmooth as hs
from howsmooth.errors import (
    AssumptionError,
    DtypeError,
    HowsmoothError,
    NonFiniteError,
    ShapeError,
)

pytestmark = pytest.mark.untyped


def test_a_rotary_dimension_must_be_even():
    with pytest.raises(ShapeError, match="even and positive, got 3"):
        hs.maps.Rotary(dim=3)
    with pytest.raises(ShapeError, match="heads of dimension 3"):
        hs.Attention(
            query=torch.ones(1, 3, 4),
            key=torch.ones(1, 3, 4),
            value=torch.ones(1, 3, 4),
            positions=hs.maps.Positions(rotary=hs.maps.Rotary()),
        )
    with pytest.raises(ShapeError, match="1 entries, got"):
        good(positions=hs.maps.Positions(rotary=hs.maps.Rotary(frequencies=torch.ones(2))))
    with pytest.raises(AssumptionError, match="base must be positive"):
        hs.maps.Rotary(base=0.0)


POSITIONS = [
    ({"window": 0}, AssumptionError, "window must be a whole number, at least 1"),
    ({"padding": torch.ones(5)}, DtypeError, "padding must be boolean"),
    ({"mask": torch.ones(5)}, ShapeError, r"mask must be \(n, n\)"),
    ({"mask": torch.ones(5, 4, dtype=torch.bool)}, ShapeError, r"got \(5, 4\)"),
    ({"mask": torch.ones(5, 5, dtype=torch.int64)}, DtypeError, "boolean .* or floating point"),
    ({"mask": torch.full((5, 5), torch.nan)}, NonFiniteError, "neither NaN nor"),
    ({"relative_bias": torch.ones(4, 8)}, ShapeError, "2L - 1"),
    ({"relative_bias": torch.full((4, 9), torch.inf)}, NonFiniteError, "relative_bias must be finite"),
    ({"position_bias": torch.ones(8)}, ShapeError, "one entry per position"),
    ({"position_bias": torch.full((4, 9), torch.inf)}, NonFiniteError, "position_bias must be finite"),
]


@pytest.mark.parametrize(("parts", "error", "sentence"), POSITIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_positions_are_refused(parts, error, sentence):
    with pytest.raises(error, match=sentence):
        hs.maps.Positions(**parts)


FITTING = [
    (
        hs.maps.Positions(padding=torch.ones(4, dtype=torch.bool)),
        "padding must have one entry for each of 5 tokens, got 4",
    ),
    (hs.maps.Positions(mask=torch.ones(4, 4, dtype=torch.bool)), r"mask must end in \(5, 5\)"),
    (hs.maps.Positions(relative_bias=torch.ones(1, 7)), "9 entries or more, got 7"),
    (hs.maps.Positions(position_bias=torch.ones(1, 4)), "reach 5 tokens, got 4 entries"),
    (hs.maps.Positions(rotary=hs.maps.Rotary(positions=torch.arange(3))), "for each of 5 tokens, got 3"),
    (hs.maps.Positions(padding=torch.ones(3, 5, dtype=torch.bool)), "must broadcast"),
]


@pytest.mark.parametrize(("positions", "sentence"), FITTING, ids=lambda x: x if isinstance(x, str) else "")
def test_masks_that_do_not_fit_the_tokens_are_refused(positions, sentence):
    with pytest.raises(ShapeError, match=sentence):
        good(positions=positions)(torch.ones(2, 5, 6))


BLIND = [
    hs.maps.Positions(padding=torch.zeros(5, dtype=torch.bool)),
    hs.maps.Positions(causal=True, padding=torch.tensor([False, True, True, True, True])),
    hs.maps.Positions(mask=torch.eye(5, dtype=torch.bool).logical_and(torch.arange(5) > 0)),
    hs.maps.Positions(window=1, mask=~torch.eye(5, dtype=torch.bool)),
    hs.maps.Positions(mask=torch.full((5, 5), -torch.inf)),
]


@pytest.mark.parametrize("positions", BLIND)
def test_a_row_that_may_attend_to_nothing_is_refused(positions):
    for use in (good(positions=positions), good(positions=positions).jacobian):
        with pytest.raises(AssumptionError, match="token 0 may attend to nothing"):
            use(torch.ones(5, 6))


def parts(rng):
    return {
        "query": gaussian(rng, 4, 3, 4),
        "key": gaussian(rng, 2, 3, 4),
        "value": gaussian(rng, 2, 5, 4),
        "output": gaussian(rng, 4, 4, 5),
    }


BAD_POSITIONS = {
    "window 0": ({"window": 0}, AssumptionError),
    "window -1": ({"window": -1}, AssumptionError),
    "short padding": ({"padding": torch.ones(5).bool()}, ShapeError),
    "numeric padding": ({"padding": torch.ones(6)}, DtypeError),
    "all padding": ({"padding": torch.zeros(6).bool()}, AssumptionError),
    "left padding, causal": ({"padding": torch.arange(6) > 0, "causal": True}, AssumptionError),
    "padding at the window": ({"padding": torch.arange(6) < 3, "window": 2}, AssumptionError),
    "square mask of other length": ({"mask": torch.ones(5, 5).bool()}, ShapeError),
    "oblong mask": ({"mask": torch.ones(6, 5).bool()}, ShapeError),
    "mask of three heads": ({"mask": torch.ones(3, 6, 6).bool()}, ShapeError),
    "integer mask": ({"mask": torch.ones(6, 6).long()}, DtypeError),
    "NaN mask": ({"mask": torch.full((6, 6), math.nan).double()}, NonFiniteError),
    "+inf mask": ({"mask": torch.full((6, 6), math.inf).double()}, NonFiniteError),
    "blind row": ({"mask": torch.ones(6, 6).bool() & (torch.arange(6) != 3)[:, None]}, AssumptionError),
    "blind additive row": (
        {"mask": torch.zeros(6, 6).double().index_fill(0, torch.tensor([2]), -math.inf)},
        AssumptionError,
    ),
    "blind in one head": (
        {"mask": torch.ones(4, 6, 6).bool() & (torch.arange(24).view(4, 6) != 20)[..., None]},
        AssumptionError,
    ),
    "only the future, causal": (
        {"mask": torch.ones(6, 6).bool().triu(1) | torch.eye(6).bool() & (torch.arange(6) == 5), "causal": True},
        AssumptionError,
    ),
    "short bias": ({"relative_bias": torch.zeros(4, 9).double()}, ShapeError),
    "even bias": ({"relative_bias": torch.zeros(4, 12).double()}, ShapeError),
    "bias of two heads": ({"relative_bias": torch.zeros(2, 11).double()}, ShapeError),
    "NaN bias": ({"relative_bias": torch.full((4, 11), math.nan).double()}, NonFiniteError),
    "rotary on three numbers": ({"rotary": {}}, ShapeError),
    "rotary of odd dimension": ({"rotary": {"dim": 1}}, ShapeError),
    "rotary wider than the head": ({"rotary": {"dim": 4}}, ShapeError),
    "rotary base 0": ({"rotary": {"dim": 2, "base": 0.0}}, AssumptionError),
    "rotary frequencies": ({"rotary": {"dim": 2, "frequencies": torch.ones(2).double()}}, ShapeError),
    "rotary positions": ({"rotary": {"dim": 2, "positions": torch.arange(5)}}, ShapeError),
}


def with_rotary(keywords):
    return keywords | ({"rotary": hs.maps.Rotary(**keywords["rotary"])} if "rotary" in keywords else {})


@pytest.mark.parametrize("memory", [2**30, 0])
@pytest.mark.parametrize("name", BAD_POSITIONS)
def test_positions_without_a_meaning_are_refused(rng, name, memory):
    keywords, error = BAD_POSITIONS[name]
    X = gaussian(rng, 6, 4)
    for ask in (lambda f: f(X), lambda f: f.jacobian(X, memory=memory)):
        with pytest.raises(error):
            ask(hs.Attention(**parts(rng), positions=hs.maps.Positions(**with_rotary(keywords))))


def test_a_blind_row_far_down_a_long_sequence_is_refused(rng):
    n = 300
    mask = torch.ones(n, n).bool()
    mask[277] = False
    f = hs.Attention(**parts(rng), positions=hs.maps.Positions(mask=mask))
    for memory in (2**30, 0):
        with pytest.raises(AssumptionError, match="277"):
            f.jacobian(gaussian(rng, n, 4), memory=memory)
    with pytest.raises(AssumptionError, match="277"):
        f(gaussian(rng, n, 4))


@pytest.mark.parametrize(
    "rotary",
    [
        {"base": math.nan},
        {"base": math.inf},
        {"frequencies": torch.tensor([math.nan, 1.0])},
        {"positions": torch.tensor([0.0, 1.0, math.nan])},
    ],
    ids=["NaN base", "inf base", "frequencies", "positions"],
)
def test_rotary_settings_that_are_not_finite_are_refused(rng, rotary):
    Q = gaussian(rng, 2, 4, 4)
    with pytest.raises(HowsmoothError):
        hs.Attention(query=Q, key=Q, value=Q, positions=hs.maps.Positions(rotary=hs.maps.Rotary(**rotary)))(
            gaussian(rng, 3, 4)
        )


def test_a_window_that_is_not_a_whole_number_is_refused(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng)
    with pytest.raises(HowsmoothError):
        hs.Attention(query=f.query, key=f.key, value=f.value, positions=hs.maps.Positions(window=1.5))(
            gaussian(rng, 5, 4)
        )
