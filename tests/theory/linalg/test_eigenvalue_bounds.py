"""Bounds on eigenvalues and norms of many matrices are their statements, with allowances that are there."""

import math

import pytest
import torch
from draws import gaussian, uniform
from theory.example_layers import LAYERS, random_layer

from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.at_input.row_certificate import (
    RowGramMatrices,
    _lengths,
    _trace,
    query_term_norms,
    row_norms_squared,
)
from howsmooth.theory.linalg.eigenvalue_bounds import (
    CholeskyCertificate,
    collatz_wielandt,
    deflated_eigenvalues,
    largest_eigenvalues,
    largest_norms,
    nonnegative_norm,
)
from howsmooth.theory.linalg.matrix_norms import UNIT, norm_upper


def norm(x):
    return torch.linalg.matrix_norm(x, 2).item()


def gram(rng, *shape):
    x = gaussian(rng, *shape)
    return x @ x.mT


@pytest.mark.parametrize("squarings", [0, 1, 2, 3])
@pytest.mark.parametrize("v", [1, 2, 5, 12])
def test_traces_of_powers_bound_the_largest_eigenvalue_as_stated(rng, v, squarings):
    M = gram(rng, 7, v, v) / 3
    power = 2**squarings
    t1 = torch.linalg.eigvalsh(M).pow(power).sum(-1)
    t2 = torch.linalg.eigvalsh(M).pow(2 * power).sum(-1)
    exact = (t1 / v + ((v - 1) * (t2 / v - (t1 / v).square()).clamp_min(0)).sqrt()).pow(1 / power)
    found = largest_eigenvalues(M, squarings=squarings)
    assert bool((found >= exact * (1 + 10 * v * UNIT)).all())
    assert torch.allclose(found, exact, rtol=1e-7)
    # what is not symmetric counts as its symmetric part
    skew = gaussian(rng, v, v)
    assert torch.allclose(largest_eigenvalues(M + skew - skew.mT, squarings=squarings), found, rtol=1e-9)


def test_equal_eigenvalues_have_an_allowance_for_the_scatter_that_rounding_hides():
    found = largest_eigenvalues(torch.eye(4).double()[None] * 3)
    assert 3 * (1 + 1e-9) < found.item() < 3 * (1 + 1e-7)


def test_norms_by_traces_are_roots_of_eigenvalues_of_the_smaller_gram_matrix(rng):
    for shape in ((3, 9), (9, 3)):
        x = 1e-160 * gaussian(rng, 6, *shape)
        y = x.mT if shape[0] > shape[1] else x
        exact = largest_eigenvalues((y * 1e160) @ (y * 1e160).mT).sqrt() * 1e-160
        assert torch.allclose(largest_norms(x), exact, rtol=1e-9, atol=0)
    assert largest_norms(torch.zeros(2, 3, 4).double()).tolist() == [0.0, 0.0]


def deflated(S, U, trace, wrong):
    """The largest eigenvalue of the two by two matrix of the statement."""
    A = U.mT @ S @ U
    B = S @ U - U @ A
    inside = torch.linalg.eigvalsh(A)[-1].item() + wrong
    outside = max(trace - A.trace().item(), 0.0) + U.shape[1] * wrong
    across = B.norm().item() + wrong
    return torch.linalg.eigvalsh(torch.tensor([[inside, across], [across, outside]], dtype=torch.float64))[-1].item()


@pytest.mark.parametrize("lost", [0.0, 0.3])
@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 3])
def test_a_space_and_a_trace_give_the_matrix_of_the_statement(rng, k, steps, lost):
    S, space = gram(rng, 5, 8, 8), gaussian(rng, 8, k)
    S[0] = 0
    S[0, :k, :k] = torch.eye(k)
    trace = S.diagonal(dim1=1, dim2=2).sum(-1) + 0.5
    found = deflated_eigenvalues(
        lambda x: S @ x, space, trace=trace, error=torch.full((5,), lost, dtype=torch.float64), steps=steps
    )
    for s, t, value in zip(S[1:], trace[1:].tolist(), found[1:].tolist(), strict=True):
        x = torch.linalg.matrix_power(s, steps) @ space
        exact = deflated(s, torch.linalg.qr(x).Q, t, k * lost)
        assert value == pytest.approx(exact, rel=1e-8)
        assert value >= exact * (1 - 1e-14) + k * 8 * UNIT * t
    assert found[0].item() >= 1.0


def test_what_is_no_number_has_no_largest_eigenvalue(rng):
    S = gram(rng, 3, 4, 4)
    S[1, 2, 2] = math.nan
    trace = torch.full((3,), 1e3, dtype=torch.float64)
    found = deflated_eigenvalues(lambda x: S @ x, gaussian(rng, 4, 4), trace=trace, error=0 * trace, steps=0)
    assert found.isnan().tolist() == [False, True, False]
    exact = torch.linalg.eigvalsh(S[2])[-1].item()
    assert found[2].item() >= exact


def test_any_positive_vector_bounds_spectral_radii_and_some_steps_bring_it_near(rng):
    M = uniform(rng, 6, 6) + 0.01
    exact = torch.linalg.eigvals(M).abs().max().item()
    for z in (torch.ones(6, 1).double(), uniform(rng, 6, 1) + 0.1):
        found = collatz_wielandt(lambda z: M @ z, z).item()
        assert exact <= found * (1 + 1e-12)
        assert found <= 1.05 * exact
    # the ratios at a given vector, where steps change nothing
    assert (
        collatz_wielandt(lambda z: torch.tensor([[2.0], [3.0]]).double() * z, torch.ones(2, 1).double()).item() == 3.0
    )
    # the smallest of all steps: the first vector is the best, and later ones are kept away from zero
    steep = torch.tensor([[1.0, 1.0], [1e-6, 0.0]]).double()
    assert collatz_wielandt(lambda z: steep @ z, torch.tensor([[1.0], [1e-6]]).double()).item() <= 1 + 2e-6
    # coordinates that vanish after one step, some or all
    for largest in (1.0, 0.0):
        M = torch.diag(torch.tensor([largest, 0.0]).double())
        assert collatz_wielandt(lambda z, M=M: M @ z, torch.ones(2, 1).double()).item() == largest


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_norms_of_positive_matrices_are_bounded_closely_and_widened(rng, size):
    for shape in ((5, 5), (2, 9), (9, 2)):
        N = uniform(rng, *shape) + 0.05
        exact = norm(N) * size
        assert exact * (1 + 10 * UNIT) <= nonnegative_norm(N * size) <= exact * (1 + 1e-6)
    blocks = torch.block_diag(uniform(rng, 3, 3), 2 + uniform(rng, 3, 3)).double()
    assert norm(blocks) <= nonnegative_norm(blocks) <= 1.01 * norm(blocks)
    assert nonnegative_norm(torch.ones(4, 4).double()) >= 4 * (1 + 20 * UNIT)  # found exactly, and widened
    assert nonnegative_norm(torch.zeros(3, 4).double()) == 0.0
    rows = torch.zeros(3, 3).double()
    rows[0] = torch.tensor([1.0, 2.0, 3.0])
    assert nonnegative_norm(rows) == pytest.approx(math.sqrt(14), rel=1e-6)


def test_the_metric_is_a_regularised_inverse_and_its_worth_includes_rounding(rng):
    W = gaussian(rng, 9, 6)
    W = W / W.norm(dim=0)
    m, metric = 6, CholeskyCertificate.of(W)
    sigma = 128 * UNIT * m**2 * (m + 32)
    M = torch.linalg.inv(W.mT @ W + sigma * torch.eye(m).double())
    assert torch.allclose(metric.M, M, rtol=1e-7)
    assert torch.allclose(metric.gram, W.mT @ W)
    size = (W.square().sum(0) * M.diagonal()).sum().item()
    stretch = math.sqrt(norm(W @ M @ W.mT)) + UNIT * m * math.sqrt(m * size)
    exact = stretch**2 + UNIT * m * (m + 32) * size
    assert metric.norm_bound == pytest.approx(exact, rel=4e-13)
    half = torch.linalg.inv(torch.linalg.cholesky(W.mT @ W + sigma * torch.eye(m).double()))
    stated = (norm_upper(half @ W.mT) + UNIT * m * math.sqrt(m * size)) ** 2 + UNIT * m * (m + 32) * size
    assert metric.norm_bound == pytest.approx(stated, rel=3e-15)
    assert metric.norm_bound >= norm(W @ M @ W.mT) + 0.9 * UNIT * m * (m + 32) * size
    # singular columns: the share of rounding stays small, and is there
    W[:, 1] = W[:, 0]
    assert 1.001 <= CholeskyCertificate.of(W).norm_bound <= 1.2


def test_what_is_proven_has_what_was_lost_added_once_and_to_traces_once_for_every_dimension(rng, monkeypatch):
    metric, R = CholeskyCertificate.of(torch.eye(5).double()), gram(rng, 4, 5, 5)
    lost = 0.1 + uniform(rng, 4)
    plain = metric.eigenvalues(R.clone(), 0 * lost)
    assert torch.allclose(metric.eigenvalues(R.clone(), lost), plain + lost, rtol=1e-12)
    monkeypatch.setattr(CholeskyCertificate, "ritz_values", lambda self, R: torch.full((len(R),), math.nan))
    trace = R.diagonal(dim1=1, dim2=2).sum(-1)
    assert torch.allclose(metric.eigenvalues(R.clone(), lost), trace + 6 * lost, rtol=1e-9)
    # a diagonal that was rounded below zero does not make the trace smaller
    R[0] = torch.diag(torch.tensor([1.0, -3.0, 0.0, 0.0, 0.0]).double())
    assert metric.eigenvalues(R.clone(), 0 * lost)[0].item() == pytest.approx(1.0)


def test_guesses_are_nearly_the_largest_eigenvalues_from_below(rng):
    W = gaussian(rng, 14, 12)
    W = W / W.norm(dim=0)
    decay = torch.diag(0.6 ** torch.arange(12).double())
    R = decay @ gram(rng, 6, 12, 12) @ decay
    exact = torch.linalg.eigvalsh(W @ R @ W.mT)[:, -1]
    for size in (1e-200, 1.0, 1e150):
        found = CholeskyCertificate.of(W).ritz_values(R * size) / size
        assert bool((found <= exact * (1 + 1e-9)).all())
        assert bool((found >= 0.999 * exact).all())


def row_gram(seen, i):
    """The gram matrix of row i of the first and the third term, before the output projection, dense."""
    parts = []
    for view in seen:
        o = view.P[i] @ view.y
        g = view.q[i] @ view.head.K
        part = view.P[i][:, None, None] * (view.head.V + (view.y - o)[:, :, None] * g)  # tokens, v, d
        parts.append(part)
    whole = torch.cat(parts, 1)
    return torch.einsum("jad,jbd->ab", whole, whole)


@pytest.mark.parametrize("kind", ["mixed heads", "concatenated heads", "query bias"])
def test_gram_matrices_of_rows_are_those_of_their_definition(rng, kind):
    f = LAYERS[kind](rng)
    seen = heads_at_input(f, gaussian(rng, 5, f.d))
    grams = RowGramMatrices.of(seen)
    W = torch.cat(outputs(seen), 1)
    sizes = _lengths(W)
    m, n = W.shape[1], 5
    R = grams.blocks(torch.arange(n), torch.empty(n, m, m).double())
    assert torch.allclose(grams.W * sizes, W, rtol=0, atol=0)
    for i in range(n):
        exact = sizes[:, None] * row_gram(seen, i) * sizes
        assert torch.allclose(R[i], exact, rtol=1e-9, atol=1e-10)
    assert torch.allclose(grams.blocks(torch.tensor([3, 1]), torch.empty(n, m, m).double()), R[[3, 1]], rtol=1e-12)
    assert grams.cost == pytest.approx(n * m**2 * (n / 2 + m / 3))
    stated = torch.zeros(n).double()
    for h, view in enumerate(seen):
        far = (grams.v[h]).norm(dim=-1).max()
        pull = (view.q @ view.head.K).norm(dim=-1)
        stated += view.P.norm(dim=-1) * (grams.V[h].norm() + 2 * far * pull)
    assert torch.allclose(grams.sizes(), stated.square() * grams.W.square().sum(), rtol=1e-9)


def test_lengths_of_columns_are_powers_of_two_and_leave_columns_of_about_one(rng):
    W = gaussian(rng, 6, 5) * torch.tensor([1e-200, 1e-3, 1.0, 7.0, 1e150], dtype=torch.float64)
    sizes = _lengths(W)
    assert bool((torch.frexp(sizes).mantissa == 0.5).all())
    left = (W / sizes).norm(dim=0)
    assert bool(((left >= 0.5) & (left <= 1)).all())
    assert _lengths(torch.zeros(3, 2).double()).tolist() == [1.0, 1.0]


def test_squares_of_rows_have_the_rounding_of_their_sums(rng):
    f = random_layer(rng, heads=2, d=4)
    seen = heads_at_input(f, gaussian(rng, 5, 4))
    grams = RowGramMatrices.of(seen)
    m = grams.W.shape[1]
    lost = 32 * (5 + 4 + 2 * m) * UNIT * grams.sizes()
    R = grams.blocks(torch.arange(5), torch.empty(5, m, m).double())
    exact = CholeskyCertificate.of(grams.W).eigenvalues(R, lost)
    assert torch.allclose(row_norms_squared(seen), exact, rtol=1e-12)
    # where nothing is left of the sums, their rounding is all that is proven
    cancelled = [seen[0], seen[0]]
    W = outputs(cancelled)
    assert len(W) == 2
    assert bool((row_norms_squared(seen) >= lost).all())
    total = row_norms_squared(seen).sum().sqrt().item()
    assert bool(row_norms_squared(seen, beaten=0.99 * total).isinf().all())
    assert bool(row_norms_squared(seen, beaten=1.01 * total).isfinite().all())


def test_rows_are_looked_at_some_at_a_time_with_the_same_result(rng, monkeypatch):
    seen = heads_at_input(random_layer(rng, heads=2, d=4), gaussian(rng, 7, 4))
    whole = row_norms_squared(seen)
    monkeypatch.setattr("howsmooth.theory.at_input.row_certificate.NUMBERS", 2 * 6**2)
    assert torch.allclose(row_norms_squared(seen), whole, rtol=0.05)
    rows = torch.stack([torch.linalg.eigvalsh(w)[-1] for w in (dense_row(seen, i) for i in range(7))])
    assert bool((row_norms_squared(seen) >= rows).all())


def dense_row(seen, i):
    W = torch.cat(outputs(seen), 1)
    return W @ row_gram(seen, i) @ W.mT


def test_the_trace_of_the_second_term_is_that_of_its_square(rng):
    heads, v, k, n = 3, 2, 4, 5
    C, W, Q = gaussian(rng, n, heads, v, k), gaussian(rng, 7, heads * v), gaussian(rng, heads * k, 6)
    found = _trace(C, W.mT @ W, Q @ Q.mT)
    for i in range(n):
        blocks = sum(W[:, h * v : h * v + v] @ C[i, h] @ Q[h * k : h * k + k] for h in range(heads))
        assert found[i].item() == pytest.approx(blocks.square().sum().item())


@pytest.mark.parametrize("n", [3, 40])
def test_the_second_term_is_close_where_it_is_largest_and_never_below(rng, n):
    f = random_layer(rng, heads=3, d=6, k=4)
    seen = heads_at_input(f, gaussian(rng, n, 6))
    found = query_term_norms(seen)
    blocks = sum(w @ view.covariance() @ view.head.Q for view, w in zip(seen, outputs(seen), strict=True))
    exact = torch.linalg.matrix_norm(blocks, 2)
    assert bool((found >= exact).all())
    assert found.max().item() <= exact.max().item() * 1.01
    assert bool((found <= blocks.flatten(1).norm(dim=-1) * (1 + 1e-6)).all())


def test_heads_that_cancel_leave_the_rounding_of_the_second_term(rng):
    f = random_layer(rng, heads=1, d=6, k=4)
    X = gaussian(rng, 4, 6)
    (view,) = heads_at_input(f, X)
    opposite = type(f)(
        query=f.query.repeat(2, 1, 1),
        key=f.key.repeat(2, 1, 1),
        value=f.value.repeat(2, 1, 1),
        output=torch.cat((f.output, -f.output)),
    )
    found = query_term_norms(heads_at_input(opposite, X))
    C = view.covariance()
    size = (C.square().sum((1, 2)) * f.output.square().sum() * view.head.Q.square().sum()).sqrt()
    assert bool((found >= 1e-7 * size).all())
    assert bool((found <= 1e-4 * size).all())


def test_signs_and_zeros_in_the_corner_make_no_bound_vanish():
    N = torch.tensor([[0.0, 2.0], [1.0, 3.0]]).double()
    for size in (1e-200, 1.0, 1e200):
        assert nonnegative_norm(size * N) == pytest.approx(size * norm(N), rel=1e-6, abs=0)
        found = largest_eigenvalues(-size * torch.eye(3).double()[None]).item()
        assert size <= found <= size * (1 + 1e-6)
        W = torch.tensor([[0.0, 0.0], [-3.0 * size, -1.0], [-4.0 * size, -1e-3]], dtype=torch.float64)
        left = (W / _lengths(W)).norm(dim=0)
        assert bool(((left >= 0.5) & (left <= 1)).all())


def test_powers_of_wide_matrices_stay_in_the_range_of_floats(rng):
    x = gaussian(rng, 400, 400)
    M = x @ x.mT
    assert torch.linalg.eigvalsh(M)[-1].item() <= largest_eigenvalues(M).item() <= 2 * norm(M)
    # one entry alone: the largest eigenvalue is as small as it can be beside the size of the matrix
    M = torch.zeros(1000, 1000).double()
    M[5, 5] = 1e-100
    assert largest_eigenvalues(M).item() == pytest.approx(1e-100, rel=1e-6, abs=0)
