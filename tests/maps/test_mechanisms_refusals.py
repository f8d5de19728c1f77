"""Settings of mechanisms that have no meaning: each refusal says what we need, what we got, what to do."""

import math

import pytest
import torch
from draws import gaussian

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError, NonFiniteError, ShapeError
from howsmooth.maps.positions import Distances
from howsmooth.theory.assumptions import require_attention

pytestmark = pytest.mark.untyped

CLASSES = [
    hs.maps.L2Attention,
    hs.maps.SigmoidAttention,
    hs.maps.LinearAttention,
    hs.maps.SinkhornAttention,
    hs.maps.CosineAttention,
    hs.maps.EntmaxAttention,
    hs.maps.DifferentialAttention,
    hs.Attention,
]
EYE = torch.eye(2)


def one(cls, **options):
    return cls.single_head(**({"Q": EYE, "K": EYE, "V": EYE} | options))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_matrices_that_do_not_fit_are_refused(cls):
    for options, error, sentence in (
        ({"Q": torch.ones(2)}, ShapeError, r"Q must be a matrix, got \(2,\)"),
        ({"K": torch.ones(4, 2)}, ShapeError, r"key must have the shape \(1, 2, 2\), got \(1, 4, 2\)"),
        ({"V": torch.ones(2, 3)}, ShapeError, r"value must have the shape \(1, 2, 2\)"),
        ({"V": torch.ones(2, 2).double()}, DtypeError, "value and query must have one dtype"),
        ({"V": "values"}, DtypeError, "V must be a torch.Tensor, got str"),
        ({"Q": EYE * torch.nan}, NonFiniteError, "query must be finite"),
        ({"causal": True, "positions": hs.maps.Positions()}, AssumptionError, "either causal=True or positions"),
        ({"weights": torch.tensor([-1.0, 1.0])}, AssumptionError, "masses and must not be negative"),
    ):
        with pytest.raises(error, match=sentence):
            one(cls, **options)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_bad_tokens_are_refused(cls):
    f = one(cls)
    for X, error, sentence in (
        (torch.ones(5, 7), ShapeError, r"\(\*batch, n, 2\).*got \(5, 7\)"),
        (torch.full((3, 2), torch.nan), NonFiniteError, "tokens must be finite"),
        (torch.ones(3, 2).double(), DtypeError, "one dtype"),
    ):
        for use in (f, f.jacobian, lambda X: hs.local_lipschitz(f, X)):
            with pytest.raises(error, match=sentence):
                use(X)
    with pytest.raises(AssumptionError, match="memory must be a number of bytes"):
        f.jacobian(torch.ones(3, 2), memory=-1)


DISTANCES = hs.maps.Positions(distances=Distances(keys=torch.ones(1, 5, 2), queries=torch.ones(1, 5, 2)))
ADDED = hs.maps.Positions(relative_bias=torch.ones(1, 9))

SETTINGS = [
    (hs.maps.L2Attention, {"tied": True, "K": 2 * EYE}, AssumptionError, "tied=True needs key to be query"),
    (hs.maps.L2Attention, {"positions": DISTANCES}, AssumptionError, "no keys of positions"),
    (hs.maps.SigmoidAttention, {"bias": math.inf}, AssumptionError, "bias must be finite, got inf"),
    (hs.maps.SigmoidAttention, {"count": 0}, AssumptionError, "count must be positive and finite, got 0"),
    (
        hs.maps.EntmaxAttention,
        {"alpha": 1.0},
        AssumptionError,
        "alpha must be 1.5 or 2, got 1.0; for 1 use hs.Attention",
    ),
    (hs.maps.EntmaxAttention, {"count": math.nan}, AssumptionError, "count must be positive"),
    (hs.maps.CosineAttention, {"eps": -1.0}, AssumptionError, "eps must not be negative"),
    (hs.maps.CosineAttention, {"gain": math.nan}, AssumptionError, "gain must be finite"),
    (hs.maps.CosineAttention, {"scale": math.inf}, AssumptionError, "scale must be finite"),
    (hs.maps.CosineAttention, {"positions": DISTANCES}, AssumptionError, "no keys of distances"),
    (hs.maps.SinkhornAttention, {"causal": True}, AssumptionError, "under a causal one they are the identity"),
    (hs.maps.SinkhornAttention, {"positions": hs.maps.Positions(window=2)}, AssumptionError, "have no mask"),
    (hs.maps.LinearAttention, {"features": "softmax"}, AssumptionError, "'elu' or 'identity', got 'softmax'"),
    (hs.maps.LinearAttention, {"features": "identity"}, AssumptionError, "a denominator needs positive features"),
    (hs.maps.LinearAttention, {"positions": ADDED}, AssumptionError, "no scores that anything could be added to"),
    (hs.maps.DifferentialAttention, {"Q": torch.ones(3, 2), "K": torch.ones(3, 2)}, ShapeError, "must be even, got 3"),
    (hs.maps.DifferentialAttention, {"subtracted": math.inf}, NonFiniteError, "subtracted must be finite"),
    (
        hs.maps.DifferentialAttention,
        {"positions": hs.maps.Positions(rotary=hs.maps.Rotary())},
        AssumptionError,
        "rotary",
    ),
    (hs.Attention, {"sink": math.nan}, NonFiniteError, "sink must be finite"),
    (hs.Attention, {"A": EYE}, AssumptionError, "either A, or Q and K"),
    (hs.Attention, {"K": None}, AssumptionError, "either A, or Q and K"),
]


@pytest.mark.parametrize(
    ("cls", "options", "error", "sentence"), SETTINGS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_settings_without_a_meaning_are_refused(cls, options, error, sentence):
    with pytest.raises(error, match=sentence):
        one(cls, **options)


def test_what_a_layer_brings_along_is_checked():
    layer = {"query": torch.ones(2, 4, 3), "key": torch.ones(2, 4, 3), "value": torch.ones(2, 4, 3)}
    with pytest.raises(ShapeError, match=r"sink must have the shape \(2,\), got \(3,\)"):
        hs.Attention(**layer, sink=torch.zeros(3))
    with pytest.raises(ShapeError, match=r"subtracted must have the shape \(2,\)"):
        hs.maps.DifferentialAttention(**layer, subtracted=torch.zeros(3))
    with pytest.raises(AssumptionError, match="no soft cap"):
        hs.maps.L2Attention(**layer, softcap=1.0)
    with pytest.raises(AssumptionError, match="max_steps must be at least 1, got 0"):
        hs.maps.SinkhornAttention(**layer, max_steps=0)


@pytest.mark.parametrize("cls", [hs.maps.SigmoidAttention, hs.maps.EntmaxAttention], ids=lambda cls: cls.__name__)
def test_maps_that_count_tokens_need_a_count_on_measures(cls):
    measure = hs.transport.DiscreteMeasure(torch.ones(3, 2))
    with pytest.raises(AssumptionError, match="needs count=…, the number of tokens"):
        hs.local_lipschitz(one(cls), measure)
    assert hs.local_lipschitz(one(cls, count=3.0), measure).lower > 0


def test_a_row_that_sees_nothing_is_refused_where_weights_are_shares():
    hidden = hs.maps.Positions(mask=torch.tensor([[True, False], [False, False]]))
    X = torch.ones(2, 2)
    for cls in (
        hs.maps.L2Attention,
        hs.maps.CosineAttention,
        hs.maps.EntmaxAttention,
        hs.maps.LinearAttention,
        hs.maps.DifferentialAttention,
    ):
        with pytest.raises(AssumptionError, match="may attend to nothing"):
            one(cls, positions=hidden)(X)
    assert one(hs.maps.SigmoidAttention, positions=hidden)(X)[1].eq(0).all()
    assert one(hs.Attention, positions=hidden, sink=0.0)(X)[1].eq(0).all()


def test_scores_that_cannot_be_balanced_are_refused(rng):
    X = gaussian(rng, 6, 2)
    f = hs.maps.SinkhornAttention.single_head(Q=300 * EYE.double(), K=EYE.double(), V=EYE.double())
    with pytest.raises(HowsmoothError, match=r"not found in 1,?000 steps|permutation"):
        f.jacobian(X)


@pytest.mark.parametrize("cls", CLASSES[:-1], ids=lambda cls: cls.__name__)
def test_theorems_about_the_softmax_refuse_other_maps(cls):
    with pytest.raises(DtypeError, match=f"theorems are about hs.Attention, got {cls.__name__}"):
        require_attention(one(cls))


def test_theorems_that_do_not_know_sinks_refuse_them():
    with pytest.raises(AssumptionError, match="do not cover sinks"):
        require_attention(one(hs.Attention, sink=0.0))
