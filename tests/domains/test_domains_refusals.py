"""What is no domain is refused."""

import math

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError, NonFiniteError, ShapeError

pytestmark = pytest.mark.untyped


X = torch.ones(5, 3, dtype=torch.float64)


NAN = torch.full((5, 3), torch.nan, dtype=torch.float64)


DOMAINS = [
    (lambda: hs.domains.Ball(0.0), AssumptionError, "radius of a ball must be positive and finite, got 0.0"),
    (lambda: hs.domains.Ball(-1.0, centre=X[0]), AssumptionError, "got -1.0"),
    (lambda: hs.domains.Ball(math.nan), AssumptionError, "got nan"),
    (lambda: hs.domains.Ball(math.inf), AssumptionError, "got inf"),
    (lambda: hs.domains.Ball(1.0, centre=X), ShapeError, r"centre must be one point, \(d,\), got \(5, 3\)"),
    (lambda: hs.domains.Ball(1.0, centre=NAN[0]), NonFiniteError, "centre must be finite"),
    (lambda: hs.domains.Ball(1.0, centre=[0.0]), DtypeError, "centre must be a torch.Tensor"),
    (lambda: hs.domains.Sphere(0.0), AssumptionError, "radius of a sphere must be positive and finite, got 0.0"),
    (lambda: hs.domains.Sphere(math.nan), AssumptionError, "got nan"),
    (
        lambda: hs.domains.LayerNormImage(torch.nn.LayerNorm(3)),
        DtypeError,
        "hs.maps.LayerNorm or an hs.maps.RMSNorm, got LayerNorm",
    ),
    (lambda: hs.domains.LayerNormImage(hs.maps.RMSNorm(gain=torch.zeros(3))), AssumptionError, "a single point"),
    (lambda: hs.domains.LayerNormImage(hs.maps.LayerNorm(gain=torch.ones(1))), AssumptionError, "a single point"),
    (lambda: hs.domains.Neighbourhood(X, 0.0), AssumptionError, "eps must be positive and finite, got 0.0"),
    (lambda: hs.domains.Neighbourhood(X, math.inf), AssumptionError, "got inf"),
    (lambda: hs.domains.Neighbourhood(X[None], 0.1), ShapeError, r"X must be one input, \(n, d\), got \(1, 5, 3\)"),
    (lambda: hs.domains.Neighbourhood(NAN, 0.1), NonFiniteError, "X must be finite"),
    (lambda: hs.domains.Neighbourhood(X.long(), 0.1), DtypeError, "X must hold real"),
]


@pytest.mark.parametrize(("build", "error", "sentence"), DOMAINS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_no_domain_is_refused(build, error, sentence):
    with pytest.raises(error, match=sentence) as refusal:
        build()
    assert isinstance(refusal.value, HowsmoothError)


@pytest.mark.parametrize("domain", ["Ball", "Sphere"])
@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_domains_without_a_radius_are_refused(domain, radius):
    with pytest.raises(HowsmoothError, match="radius"):
        getattr(hs.domains, domain)(radius)


def test_a_neighbourhood_needs_a_radius_and_tokens():
    X = torch.zeros(3, 2).double()
    for eps in (-0.1, math.nan, math.inf):
        with pytest.raises(HowsmoothError, match="eps"):
            hs.domains.Neighbourhood(X, eps=eps)
