import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.errors import HowsmoothError
from howsmooth.validation import is_finite

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


def test_a_seed_is_a_number_of_any_kind_or_a_generator():
    def drawn(seed):
        return hs.Attention.random(heads=1, d=2, seed=seed).query

    one = drawn(3)
    assert torch.equal(one, drawn(np.int64(3)))
    assert torch.equal(one, drawn(torch.Generator().manual_seed(3)))
    torch.manual_seed(3)
    assert torch.equal(one, drawn(None))
    assert not torch.equal(one, drawn(None))


@pytest.mark.untyped
@pytest.mark.parametrize("seed", ["3", 3.0, True, torch.tensor(3), -1, 2**63], ids=repr)
def test_what_seeds_nothing_is_refused(seed):
    for ask in (
        lambda: hs.local_lipschitz(ATTENTION, X, seed=seed),
        lambda: hs.maximise(ATTENTION, n=3, domain=hs.domains.Ball(1.0), seed=seed),
        lambda: hs.attack(ATTENTION, X, eps=0.1, seed=seed),
    ):
        with pytest.raises(HowsmoothError, match="seed must be") as refusal:
            ask()
        assert refusal.value.field == "seed"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_numbers_are_told_from_others_even_where_their_sum_is_not(dtype):
    largest = torch.finfo(dtype).max
    for finite in ([], [0.0, -0.0], [largest, largest, 1.0], [largest, -largest], [-largest] * 3):
        assert is_finite(torch.tensor(finite, dtype=dtype))
    for other in (
        [torch.inf],
        [torch.inf, -torch.inf],
        [torch.nan, 1.0],
        [largest, largest, torch.nan],
        [-torch.inf, 2],
    ):
        assert not is_finite(torch.tensor(other, dtype=dtype))
