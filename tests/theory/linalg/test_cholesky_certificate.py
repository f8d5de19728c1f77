"""Largest eigenvalues of many matrices, proven: never below those of a dense decomposition, and near them."""

import math

import pytest
import torch
from draws import gaussian
from oracles import constant
from theory.example_layers import ROUNDING, random_layer

import howsmooth as hs
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.at_input.row_certificate import RowGramMatrices, query_term_norms, row_norms_squared, rows_upper
from howsmooth.theory.linalg import eigenvalue_bounds
from howsmooth.theory.linalg.eigenvalue_bounds import ABOVE, CholeskyCertificate, deflated_eigenvalues

NOTHING_LOST = torch.zeros(6, dtype=torch.float64)


def unit_columns(W):
    return W / W.norm(dim=0).clamp_min(1e-300)


def wide(rng):
    return unit_columns(gaussian(rng, 5, 12))


def tall(rng):
    return unit_columns(gaussian(rng, 12, 5))


def singular(rng):
    return unit_columns(gaussian(rng, 12, 3) @ gaussian(rng, 3, 12))


def nearly_singular(rng):
    W = unit_columns(gaussian(rng, 12, 12))
    W[:, 1] = W[:, 0] + 1e-9 * W[:, 1]
    return W


def with_empty_columns(rng):
    W = unit_columns(gaussian(rng, 12, 12))
    W[:, ::3] = 0.0
    return W


def identity(_rng):
    return torch.eye(12, dtype=torch.float64)


SHAPES = [wide, tall, singular, nearly_singular, with_empty_columns, identity]


def spectra(rng, m):
    """Matrices with one large eigenvalue, with equal ones, with few, with all that decay."""
    ranks = [1, 2, m, m, m, m]
    decays = [1.0, 1.0, 1.0, 0.9, 0.3, 1e-3]
    factors = [
        gaussian(rng, m, r) * d ** torch.arange(r, dtype=torch.float64) for r, d in zip(ranks, decays, strict=True)
    ]
    factors[2] = torch.linalg.qr(factors[2]).Q
    return torch.stack([f @ f.mT for f in factors])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1e-200, 1e-30, 1.0, 1e30, 1e140])
def test_a_factor_proves_what_a_decomposition_finds(rng, shape, size):
    W = shape(rng)
    R = size * spectra(rng, W.shape[1])
    exact = torch.linalg.eigvalsh(W @ (R / size) @ W.mT)[:, -1] * size
    whole = R.diagonal(dim1=1, dim2=2).sum(-1)
    found = CholeskyCertificate.of(W).eigenvalues(R, NOTHING_LOST)
    assert bool((found >= exact * (1 - 1e-13)).all())
    # what regularising takes is a share of R itself
    assert bool((found <= exact * ABOVE[0] * 1.02 + 1e-8 * whole).all())


def test_what_no_guess_reaches_is_tried_again_and_keeps_its_trace_in_the_end(rng, monkeypatch):
    R, metric = spectra(rng, 12), CholeskyCertificate.of(identity(rng))
    exact, trace = torch.linalg.eigvalsh(R)[:, -1], R.diagonal(dim1=1, dim2=2).sum(-1)
    for share, above in ((1 / 1.2, ABOVE[2]), (1 / 3, ABOVE[3]), (0.01, None), (0.0, None), (math.nan, None)):
        monkeypatch.setattr(CholeskyCertificate, "ritz_values", lambda self, R, share=share: share * exact)
        found = metric.eigenvalues(R.clone(), NOTHING_LOST)
        expected = trace if above is None else share * above * exact
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_numbers_out_of_range_are_never_small(rng):
    metric = CholeskyCertificate.of(identity(rng))
    R = spectra(rng, 12)
    R[0, 3, 4] = R[0, 4, 3] = math.nan
    R[1, 5, 5] = math.inf
    R[2] = 1e308 * torch.ones(12, 12)
    found = metric.eigenvalues(R, NOTHING_LOST)
    exact = torch.linalg.eigvalsh(R[3:])[:, -1]
    assert not bool((found[:3] < 1e308).any())
    assert bool((found[3:] >= exact).all() & (found[3:] < 1.05 * exact).all())


@pytest.mark.parametrize("columns", [1, 3, 12])
def test_a_space_and_a_trace_bound_the_largest_eigenvalue(rng, columns):
    S = spectra(rng, 12)
    exact, trace = torch.linalg.eigvalsh(S)[:, -1], S.diagonal(dim1=1, dim2=2).sum(-1)
    for steps in (0, 1, 3):
        space = gaussian(rng, 12, columns)
        found = deflated_eigenvalues(lambda x: S @ x, space, trace=trace, error=NOTHING_LOST, steps=steps)
        assert bool((found >= exact * (1 - 1e-13)).all())
        assert bool((found <= 2 * trace).all())
        if columns == 12:
            assert bool((found <= exact * (1 + 1e-9)).all())


def dense_rows(seen):
    r"""The rows of the first and the third term, and the blocks of the second, from their definition."""
    W = outputs(seen)
    rows, second = 0.0, 0.0
    for view, w in zip(seen, W, strict=True):
        y, g = (view.y - view.y.mean(0)) @ w.mT, view.q @ view.head.K
        apart = view.P[:, :, None] * (y - (view.P @ y)[:, None])
        rows = rows + torch.einsum("ij,ab->iajb", view.P, w @ view.head.V) + torch.einsum("ija,id->iajd", apart, g)
        second = second + apart.mT @ (view.k - view.k.mean(0)) @ view.head.Q
    return torch.linalg.matrix_norm(rows.flatten(2), 2), torch.linalg.matrix_norm(second, 2)


def cancelling(rng):
    f = random_layer(rng, heads=4, d=6)
    return hs.Attention(
        query=f.query[:2].repeat(2, 1, 1),
        key=f.key[:2].repeat(2, 1, 1),
        value=f.value[:2].repeat(2, 1, 1),
        output=torch.cat([f.output[:2], -f.output[:2]]),
    )


def of_many_sizes(rng):
    f = random_layer(rng, heads=4, d=6)
    sizes = torch.tensor([1e-30, 1e-8, 1.0, 1e5], dtype=torch.float64)[:, None, None]
    return hs.Attention(query=f.query, key=f.key, value=f.value, output=sizes * f.output)


@pytest.mark.parametrize("layer", [random_layer, cancelling, of_many_sizes])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])  # the last two saturate rows
def test_rows_and_blocks_of_layers_are_bounded_by_their_definition(rng, layer, scale):
    f = layer(rng)
    X = scale * gaussian(rng, 7, f.d)
    seen = heads_at_input(f, X)
    rows, second = dense_rows(seen)
    size = RowGramMatrices.of(seen).sizes()
    found = row_norms_squared(seen)
    assert bool((found + 1e-13 * size >= rows.square()).all())  # the definition is rounded too, where heads cancel
    assert bool((found <= 1.05 * rows.square() + 1e-8 * size).all())
    assert bool((query_term_norms(seen) * (1 + 1e-9) + 1e-12 * size.sqrt() >= second).all())
    assert constant(f, X).item() <= rows_upper(seen) * ROUNDING


@pytest.mark.parametrize("make", [tall, with_empty_columns])
def test_the_bound_of_the_inverse_has_its_norm_and_its_rounding(rng, make, monkeypatch):
    unit, W = 1e-7, make(rng)  # with a coarse unit every allowance shows
    monkeypatch.setattr(eigenvalue_bounds, "UNIT", unit)
    monkeypatch.setattr(eigenvalue_bounds, "norm_upper", lambda x: 3 * torch.linalg.matrix_norm(x, 2).item())
    found, m = CholeskyCertificate.of(W), W.shape[1]
    M = torch.linalg.inv(W.mT @ W + 128 * unit * m**2 * (m + 32) * torch.eye(m).double())
    torch.testing.assert_close(found.M, M)
    size = (W.square().sum(0) * M.diagonal()).sum().item()
    stretch = 3 * torch.linalg.matrix_norm(W @ M @ W.mT, 2).item() ** 0.5 + unit * m * math.sqrt(m * size)
    assert found.norm_bound == pytest.approx(stretch**2 + unit * m * (m + 32) * size, rel=1e-9)
