"""A search refuses before it computes anything, and says what to do."""

import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError, NonFiniteError, ShapeError

X = torch.ones(5, 3, dtype=torch.float64)
NAN = torch.full((5, 3), torch.nan, dtype=torch.float64)


def attention(**options):
    return hs.Attention.single_head(A=torch.eye(3).double(), V=torch.eye(3).double(), **options)


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
    ({"domain": 5.0}, DtypeError, r"such as hs.Ball\(5.0\).* got float"),
    ({"domain": hs.Ball}, DtypeError, "got Ball"),
    ({"domain": hs.Ball(1.0, centre=torch.ones(2))}, ShapeError, "got f: 3, the domain: 2"),
    ({"domain": hs.Neighbourhood(torch.ones(4, 3), 0.1)}, ShapeError, "inputs of 4 tokens, got n = 5"),
    ({"domain": hs.Neighbourhood(torch.ones(5, 2), 0.1)}, ShapeError, "the domain: 2"),
    ({"domain": hs.LayerNormImage(hs.RMSNorm(gain=torch.ones(2)))}, ShapeError, "the domain: 2"),
    ({"generator": 0}, DtypeError, "generator must be a torch.Generator, got int"),
    ({"progress": True}, DtypeError, "progress must be callable"),
    ({"f": 3.0}, DtypeError, "f must be a map, a module or a callable on tensors, got float"),
    ({"f": lambda X: X}, ShapeError, r"cannot be told from this map and this domain; give it as d="),
    ({"f": hs.Chain(attention().per_head())}, ShapeError, "a search takes one map, got a batch of shape"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), ARGUMENTS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_be_searched_is_refused(changes, error, sentence):
    arguments = {"f": attention(), "n": 5, "domain": hs.Ball(2.0), "steps": 1} | changes
    with pytest.raises(error, match=sentence):
        hs.maximise(arguments.pop("f"), **arguments)


DOMAINS = [
    (lambda: hs.Ball(0.0), AssumptionError, "radius of a ball must be positive and finite, got 0.0"),
    (lambda: hs.Ball(-1.0, centre=X[0]), AssumptionError, "got -1.0"),
    (lambda: hs.Ball(math.nan), AssumptionError, "got nan"),
    (lambda: hs.Ball(math.inf), AssumptionError, "got inf"),
    (lambda: hs.Ball(1.0, centre=X), ShapeError, r"centre must be one point, \(d,\), got \(5, 3\)"),
    (lambda: hs.Ball(1.0, centre=NAN[0]), NonFiniteError, "centre must be finite"),
    (lambda: hs.Ball(1.0, centre=[0.0]), DtypeError, "centre must be a torch.Tensor"),
    (lambda: hs.Sphere(0.0), AssumptionError, "radius of a sphere must be positive and finite, got 0.0"),
    (lambda: hs.Sphere(math.nan), AssumptionError, "got nan"),
    (lambda: hs.LayerNormImage(torch.nn.LayerNorm(3)), DtypeError, "hs.LayerNorm or an hs.RMSNorm, got LayerNorm"),
    (lambda: hs.LayerNormImage(hs.RMSNorm(gain=torch.zeros(3))), AssumptionError, "a single point"),
    (lambda: hs.LayerNormImage(hs.LayerNorm(gain=torch.ones(1))), AssumptionError, "a single point"),
    (lambda: hs.Neighbourhood(X, 0.0), AssumptionError, "eps must be positive and finite, got 0.0"),
    (lambda: hs.Neighbourhood(X, math.inf), AssumptionError, "got inf"),
    (lambda: hs.Neighbourhood(X[None], 0.1), ShapeError, r"X must be one input, \(n, d\), got \(1, 5, 3\)"),
    (lambda: hs.Neighbourhood(NAN, 0.1), NonFiniteError, "X must be finite"),
    (lambda: hs.Neighbourhood(X.long(), 0.1), DtypeError, "X must hold real"),
]


@pytest.mark.parametrize(("build", "error", "sentence"), DOMAINS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_no_domain_is_refused(build, error, sentence):
    with pytest.raises(error, match=sentence) as refusal:
        build()
    assert isinstance(refusal.value, HowsmoothError)


def test_nothing_is_computed_before_a_refusal():
    class Untouchable(hs.Attention):
        def jacobian(self, X, **options):
            raise RuntimeError

    f = Untouchable(query=X[None, :3], key=X[None, :3], value=X[None, :3])
    with pytest.raises(ShapeError):
        hs.maximise(f, n=5, domain=hs.Ball(2.0), starts=[X[:4]])
