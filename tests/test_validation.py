import pytest
import torch

import howsmooth as hs
from howsmooth.errors import HowsmoothError

ATTENTION = hs.Attention.single_head(A=torch.eye(2), V=torch.eye(2))
X = torch.ones(3, 2)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: ATTENTION(torch.ones(3, 5)), "X"),
        (lambda: ATTENTION([[1.0, 2.0], [3.0]]), "X"),
        (lambda: ATTENTION(X.double()), "X"),
        (lambda: ATTENTION(X * torch.nan), "X"),
        (lambda: hs.maps.LayerNorm(gain=torch.ones(2), bias=torch.ones(3)), "bias"),
        (lambda: hs.maps.LayerNorm(gain=torch.ones(2), eps=-1.0), "eps"),
        (lambda: hs.domains.Ball(-1.0), "radius"),
        (lambda: hs.domains.Neighbourhood(X, eps=0.0), "eps"),
        (lambda: hs.bounds.sharp_upper(ATTENTION, n=0, radius=1.0), "n"),
        (lambda: hs.bounds.sharp_upper(ATTENTION, n=3, radius=-1.0), "radius"),
        (lambda: hs.bounds.sharp_mean_field_upper(ATTENTION, radius=1.0, p=0.5), "p"),
        (lambda: hs.bounds.sharp_upper(torch.nn.Linear(2, 2), n=3, radius=1.0), "attention"),
        (lambda: hs.maximise(ATTENTION, n=3, domain=hs.domains.Ball, steps=1), "domain"),
        (lambda: hs.maximise(ATTENTION, n=3, domain=hs.domains.Ball(1.0), steps=-1), "steps"),
        (
            lambda: hs.transport.wasserstein(hs.transport.DiscreteMeasure(X), hs.transport.DiscreteMeasure(X), p=0.5),
            "p",
        ),
        (lambda: hs.local_lipschitz("f", X), "f"),
    ],
)
def test_a_refusal_about_one_argument_names_it(ask, field):
    with pytest.raises(HowsmoothError) as refusal:
        ask()
    assert refusal.value.field == field
