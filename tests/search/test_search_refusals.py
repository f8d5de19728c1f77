"""A search refuses before it computes anything, and says what to do."""

import pytest
import torch
from draws import gaussian
from theory.example_layers import form

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError, NonFiniteError, ShapeError
from howsmooth.search.mechanisms import of_kind

pytestmark = pytest.mark.untyped


def attention(**options):
    return hs.Attention.single_head(A=torch.eye(3).double(), V=torch.eye(3).double(), **options)


X = torch.ones(5, 3, dtype=torch.float64)


NAN = torch.full((5, 3), torch.nan, dtype=torch.float64)


ARGUMENTS = [
    ({"n": 0}, AssumptionError, "n must be a whole number, at least 1, got 0"),
    ({"n": 2.5}, AssumptionError, r"n must be .* got 2.5"),
    ({"steps": -1}, AssumptionError, "steps must be a whole number, 0 or more, got -1"),
    ({"steps": 1.5}, AssumptionError, r"steps must be .* got 1.5"),
    ({"starts": 0}, AssumptionError, "starts must be at least 1, or inputs of your own, got 0"),
    ({"starts": True}, AssumptionError, "got True"),
    ({"starts": []}, AssumptionError, "starts is empty"),
    ({"starts": torch.ones(0, 5, 3)}, AssumptionError, "starts is empty"),
    ({"starts": 2.0}, DtypeError, "a number, a tensor or a list of inputs, got float"),
    ({"starts": "random"}, DtypeError, "got str"),
    ({"starts": X}, ShapeError, r"a tensor of starts must have the shape \(starts, 5, d\), got \(5, 3\)"),
    ({"starts": [X[:4]]}, ShapeError, r"the same shape \(5, d\), got \(4, 3\)"),
    ({"starts": [X, X[:, :2]]}, ShapeError, r"the same shape \(5, d\), got \(5, 2\)"),
    ({"starts": [X[:, :2]]}, ShapeError, "dimension of a token, got f: 3, starts: 2"),
    ({"starts": [NAN]}, NonFiniteError, "a start must be finite"),
    ({"starts": [X.long()]}, DtypeError, "a start must hold real"),
    ({"starts": [[1.0, 2.0, 3.0]]}, DtypeError, r"torch.Tensor, got list"),
    ({"d": 4}, ShapeError, "dimension of a token, got f: 3, d: 4"),
    ({"domain": 5.0}, DtypeError, r"such as hs.domains.Ball\(5.0\).* got float"),
    ({"domain": hs.domains.Ball}, DtypeError, "got Ball"),
    ({"domain": hs.domains.Ball(1.0, centre=torch.ones(2))}, ShapeError, "got f: 3, the domain: 2"),
    ({"domain": hs.domains.Neighbourhood(torch.ones(4, 3), 0.1)}, ShapeError, "inputs of 4 tokens, got n = 5"),
    ({"domain": hs.domains.Neighbourhood(torch.ones(5, 2), 0.1)}, ShapeError, "the domain: 2"),
    ({"domain": hs.domains.LayerNormImage(hs.maps.RMSNorm(gain=torch.ones(2)))}, ShapeError, "the domain: 2"),
    ({"seed": "0"}, DtypeError, "seed must be a whole number or a torch.Generator, got str"),
    ({"progress": True}, DtypeError, "progress must be callable"),
    ({"f": 3.0}, DtypeError, "f must be a map, a module or a callable on tensors, got float"),
    ({"f": lambda X: X}, ShapeError, r"cannot be told from this map and this domain; give it as d="),
    ({"f": hs.maps.Chain(attention().per_head())}, ShapeError, "a search takes one map, got a batch of shape"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), ARGUMENTS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_be_searched_is_refused(changes, error, sentence):
    arguments = {"f": attention(), "n": 5, "domain": hs.domains.Ball(2.0), "steps": 1} | changes
    with pytest.raises(error, match=sentence):
        hs.maximise(arguments.pop("f"), **arguments)


def test_nothing_is_computed_before_a_refusal():
    class Untouchable(hs.Attention):
        def jacobian(self, X, **options):
            raise RuntimeError

    f = Untouchable(query=X[None, :3], key=X[None, :3], value=X[None, :3])
    with pytest.raises(ShapeError):
        hs.maximise(f, n=5, domain=hs.domains.Ball(2.0), starts=[X[:4]])


def test_a_neighbourhood_of_another_shape_is_refused(rng):
    f = form(gaussian(rng, 3, 3))
    for X in (gaussian(rng, 5, 4), gaussian(rng, 6, 3)):
        with pytest.raises(HowsmoothError):
            hs.maximise(f, n=5, domain=hs.domains.Neighbourhood(X, eps=0.1), starts=1, steps=1)


def test_tied_keys_belong_to_one_head():
    key = torch.ones(1, 2, 3)
    shared = hs.Attention(query=torch.ones(2, 2, 3), key=key, value=key, output=torch.ones(2, 3, 2))
    with pytest.raises(AssumptionError, match="but here 2 heads share the keys of 1"):
        of_kind(shared, "l2-tied")
    assert of_kind(shared, "l2").layout == shared.layout
