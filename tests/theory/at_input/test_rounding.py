import math

import pytest
import torch
from draws import gaussian
from theory.example_layers import form
from theory.fuzz import truth

import howsmooth as hs
from howsmooth.errors import NonFiniteError
from howsmooth.theory.heads import heads_of, log_sum
from howsmooth.theory.linalg.matrix_norms import matrix_norm
from howsmooth.theory.results import Bound, Side

EYE = torch.eye(2, dtype=torch.float64)


@pytest.fixture
def one_interval(monkeypatch):
    """Sum the second derivative over one interval: on balls this small it adds nothing that could hide rounding."""
    monkeypatch.setattr("howsmooth.theory.around_input.neighbourhood.INTERVALS", 1)


@pytest.mark.slow
def test_the_certificate_of_saturated_rows_is_not_zero():
    for seed in range(55, 65):  # one of them left a matrix of rounding alone, whose root was no number
        rng = torch.Generator().manual_seed(seed)
        f = hs.Attention.random(heads=4, d=8, seed=rng, dtype=torch.float64)
        X = 10 * gaussian(rng, 6, 8)
        assert truth(f, X) <= hs.bounds.local_upper(f, X).value


@pytest.mark.slow
@pytest.mark.usefixtures("one_interval")
@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_certificates_at_an_input_include_the_rounding_of_scores(size):
    for seed in range(6):
        rng = torch.Generator().manual_seed(seed)
        f, X = form(gaussian(rng, 3, 3), gaussian(rng, 3, 3)), size * gaussian(rng, 1, 3).expand(4, 3)
        X = X + gaussian(rng, 4, 3) / size  # scores of any size, whose differences are ordinary
        true = truth(f, X)
        assert true <= hs.bounds.local_upper(f, X).value
        assert true <= hs.bounds.attention_map_upper(f, X).value
        assert true <= hs.bounds.neighbourhood_upper(f, X, eps=1e-9).value


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e100, 1e150, 1e200])
def test_enormous_weights_make_no_bound_small(rng, size):
    X = gaussian(rng, 4, 2)
    for f in (form(size * gaussian(rng, 2, 2), EYE), form(EYE, size * gaussian(rng, 2, 2))):
        true = truth(f, X)
        found = [
            hs.bounds.local_upper(f, X),
            hs.bounds.attention_map_upper(f, X),
            hs.bounds.neighbourhood_upper(f, X, eps=0.1),
            hs.bounds.neighbourhood_upper(f, X, eps=0.1, metric="token"),
            hs.bounds.sharp_upper(f, n=4, radius=1e50),
            hs.bounds.discrete_upper(f, n=4, radius=1e50),
        ]
        assert all(true <= bound.value for bound in found), found


def test_the_norm_of_a_form_holds_where_queries_and_keys_cancel():
    # ‖KᵀQ‖ is 1e-12 of ‖K‖‖Q‖; what is computed of it is rounding
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(gaussian(rng, 6, 6)).Q
        K = basis[:3] @ gaussian(rng, 6, 6)
        Q = basis[3:] @ torch.linalg.inv(basis @ basis.mT) @ gaussian(rng, 6, 6)
        f = hs.Attention(query=torch.cat((Q, Q))[None], key=torch.cat((K, -K * (1 + 1e-15)))[None], value=Q[None])
        (head,) = heads_of(f)
        exact = (head.K.numpy().astype("longdouble").T @ head.Q.numpy().astype("longdouble")).astype(float)
        assert matrix_norm(torch.as_tensor(exact)) <= head.norm_A


def test_the_bound_around_an_input_does_not_depend_on_a_start_that_can_be_known():
    """Values orthogonal to the start that the seed 0 draws: a Krylov space that grows from it never meets them."""
    n, d = 8, 16
    start = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone = torch.linalg.svd(start).Vh[-1]  # ⟂ every token of the start
    V = torch.eye(d, dtype=torch.float64) + torch.outer(alone, alone)
    f = form(torch.zeros(d, d, dtype=torch.float64), V)
    assert hs.bounds.neighbourhood_upper(f, torch.zeros(n, d, dtype=torch.float64), eps=1e-6).value >= 2.0


@pytest.mark.slow
@pytest.mark.usefixtures("one_interval")
def test_the_bound_around_an_input_is_about_the_map_and_not_about_its_rounding():
    for seed in range(30):
        rng = torch.Generator().manual_seed(seed)
        f = hs.Attention(
            query=gaussian(rng, 1, 2, 2).float(),
            key=gaussian(rng, 1, 2, 2).float(),
            value=gaussian(rng, 1, 2, 2).float(),
            query_bias=30 * gaussian(rng, 1, 2).float(),
            key_bias=3000 * gaussian(rng, 1, 2).float(),
        )
        X = 0.03 * gaussian(rng, 2, 2).float()
        assert truth(f, X) <= hs.bounds.neighbourhood_upper(f, X, eps=1e-6).value


def test_what_is_no_number_is_no_bound():
    with pytest.raises(NonFiniteError, match="no number"):
        Bound(value=math.nan, side=Side.UPPER, name="x", domain="", source="", log_value=0.0)
    assert math.isnan(log_sum((-math.inf, math.nan)))
    assert matrix_norm(torch.full((2, 2), torch.nan)) == math.inf
