"""Norms of derivatives in other metrics: what is attained and what is proven, against dense matrices."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import BATCHED, COMPOSED, JOINT, SINGLE, Case
from draws import gaussian
from maps.mechanisms import KINDS
from oracles import dense_jacobian
from scipy.optimize import minimize

import howsmooth as hs
from howsmooth import metrics
from howsmooth.errors import AssumptionError, DtypeError, NonFiniteError, ShapeError
from howsmooth.linear_operators import Operator, on_tokens
from howsmooth.maps.derivative import attention_rows
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.spectral.lanczos_upper_bound import least_overlap
from howsmooth.spectral.metric_norms import _attained, bracket_in, isometric
from howsmooth.spectral.operators import compressed
from howsmooth.spectral.token_norm import (
    MARGIN_UNITS,
    ROUNDS,
    DenseRows,
    ProductRows,
    RowSearch,
    _bidiagonal,
    _unit,
    _weights,
)


def head(rng, *, n, d, heads=2, k=2, size=1.0, **options):
    def draw(*shape):
        return size * torch.randn(*shape, generator=rng, dtype=torch.float64)

    f = hs.Attention(
        query=draw(heads, k, d), key=draw(heads, k, d), value=draw(heads, k, d), output=draw(heads, d, k), **options
    )
    return f, torch.randn(n, d, generator=rng, dtype=torch.float64)


OTHERS = [
    Case(kind.name, kind.build) for kind in KINDS if kind.name in ("sink", "l2", "sigmoid", "entmax 1.5", "sparsemax")
]


@pytest.mark.parametrize("case", [*SINGLE, *OTHERS], ids=str)
def test_rows_in_closed_form_are_those_of_the_dense_derivative(case, rng):
    f, X = case.build(rng)
    n, d = X.shape
    J = dense_jacobian(f, X).reshape(n, -1, n, d)
    dense, rows = DenseRows(J), attention_rows(f.jacobian(X))
    torch.testing.assert_close(torch.stack([block.clone() for block in rows.blocks()]), J.movedim(1, 2))
    some = torch.tensor([4, 1])
    torch.testing.assert_close(
        torch.stack([block.clone() for block in rows.take(some).blocks()]), J.movedim(1, 2)[some]
    )
    Y, w = torch.randn(2, rows.out, dtype=torch.float64), torch.rand(2, n, dtype=torch.float64) + 0.1
    for weights in (None, w):
        moved, sizes = dense.take(some).step(Y, weights)
        for each in (rows.take(some), ProductRows(f.jacobian(X), some)):
            found, lengths = each.step(Y, weights)
            torch.testing.assert_close(found, moved)
            if weights is not None:
                torch.testing.assert_close(each.weighted(Y, weights), moved)
            # norms come from Gram matrices: what is nearly zero is so to half the digits
            torch.testing.assert_close(lengths, sizes, rtol=1e-6, atol=1e-6 * float(sizes.max()))


@pytest.mark.parametrize("seed", range(40))
def test_the_bracket_between_largest_tokens_is_narrow_and_holds_what_any_perturbation_attains(seed):
    rng = torch.Generator().manual_seed(seed)
    n, d = (int(torch.randint(1, 7, (), generator=rng)) for _axis in range(2))
    f, X = head(rng, n=n, d=d, size=float(3 * torch.rand((), generator=rng)))
    X = X * (30 if seed % 4 == 0 else 1)  # saturated rows too
    found = hs.local_lipschitz(f, X, metric="token", rtol=1e-3, seed=rng)
    assert found.confidence == 0.999
    assert found.upper <= found.lower * 1.01  # rows with several maxima may leave a gap
    J = dense_jacobian(f, X).reshape(n, -1, n, d)
    E = torch.nn.functional.normalize(torch.randn(200, n, d, dtype=torch.float64), dim=-1)
    for _step in range(30):  # from many starts, by the plain alternating iteration
        moved = torch.einsum("iajb,sjb->sia", J, E)
        largest = moved.norm(dim=-1).argmax(-1)
        y = moved[torch.arange(200), largest]
        E = torch.nn.functional.normalize(
            torch.einsum("siajb,sia->sjb", J[largest].unsqueeze(1), y.unsqueeze(1)), dim=-1
        )
    attained = torch.einsum("iajb,sjb->sia", J, E).norm(dim=-1).max()
    assert attained <= found.upper
    assert metrics.token.size(f.jacobian(X).jvp(found.direction)) >= found.lower * (1 - 1e-12)


def test_the_sum_of_block_norms_is_never_smaller(rng):
    f, X = head(rng, n=6, d=4)
    J = dense_jacobian(f, X).reshape(6, -1, 6, 4)
    sums = torch.linalg.matrix_norm(J.transpose(1, 2), 2).sum(-1).max()
    assert hs.local_lipschitz(f, X, metric="token").lower <= sums


def test_any_callable_is_measured_between_largest_tokens(rng):
    f, X = head(rng, n=4, d=3)
    by_autograd = hs.local_lipschitz(lambda X: f(X), X, metric="token", seed=rng)
    exact = hs.local_lipschitz(f, X, metric="token", seed=rng)
    torch.testing.assert_close(by_autograd.lower, exact.lower, rtol=2e-3, atol=0.0)


def test_rows_by_products_end_where_none_is_left(monkeypatch):
    # a second round may find the largest value before any row is left to be bounded
    monkeypatch.setattr("howsmooth.spectral.token_norm.BASIS_PRODUCTS", 1)
    block = torch.diag(torch.linspace(0.5, 1, 48, dtype=torch.float64))
    J = torch.eye(3, dtype=torch.float64)[:, None, :, None] * block[None, :, None, :]
    found = hs.local_lipschitz(Linear(J), torch.zeros(3, 48, dtype=torch.float64), metric="token", seed=0)
    assert found.lower <= 1 + 1e-12
    assert 1 <= found.upper <= 1.01


def test_a_batch_is_measured_one_by_one(rng):
    f, _X = head(rng, n=4, d=3)
    X = torch.randn(3, 4, 3, generator=rng, dtype=torch.float64)
    found = hs.local_lipschitz(f, X, metric="token")
    alone = torch.stack([hs.local_lipschitz(f, x, metric="token").lower for x in X])
    torch.testing.assert_close(found.lower, alone, rtol=2e-3, atol=0.0)
    assert (found.upper <= 1.01 * found.lower).all()


@pytest.mark.parametrize("products", [2048, 0])
@pytest.mark.parametrize("metric", ["entries", "sum"])
def test_row_and_column_sums_are_exact(metric, products, rng, monkeypatch):
    # by products, or where these would be too many, by the blocks of attention
    monkeypatch.setattr("howsmooth.spectral.metric_norms.BASIS_PRODUCTS", products)
    plain, _X = head(rng, n=4, d=3)
    X = torch.randn(12, 4, 3, generator=rng, dtype=torch.float64)
    largest = set()
    for turn in range(3):  # the largest row is seldom at another coordinate than that of the largest output weights
        f = dataclasses.replace(plain, output=plain.output.roll(turn, -2))
        J = torch.stack([dense_jacobian(f, x) for x in X]).abs()
        truth, places = J.sum(2 if metric == "entries" else 1).max(-1)
        largest.update((places % 3).tolist())
        found = hs.local_lipschitz(f, X, metric=metric)
        torch.testing.assert_close(found.lower, truth)
        torch.testing.assert_close(found.upper, truth)
        assert (found.lower <= truth).all()
        assert (truth <= found.upper).all()
    assert largest == {0, 1, 2}


@pytest.mark.parametrize("wanted", ["total", "token"])
def test_from_sums_the_norm_is_that_of_the_largest_column(wanted, rng):
    pair = metrics.Metrics(input=metrics.sum, output=metrics.NAMED[wanted])
    for _map in range(4):
        f, X = head(rng, n=4, d=3)
        columns = dense_jacobian(f, X).mT.reshape(12, 4, 3)
        found = hs.local_lipschitz(f, X, metric=pair)
        torch.testing.assert_close(found.lower, pair.output.size(columns).max())
        torch.testing.assert_close(found.upper, found.lower)


@pytest.mark.parametrize("metric", ["entries", "sum"])
def test_upper_ends_are_those_of_the_entries_and_their_rounding_whatever_products_attain(metric, rng, monkeypatch):
    monkeypatch.setattr("howsmooth.spectral.metric_norms.BASIS_PRODUCTS", 0)

    class Shrunk(DenseOperator):
        """An operator whose products are smaller than its rows."""

        def _push(self, E):
            return 0.7 * super()._push(E)

        def token_rows(self):
            return SimpleNamespace(blocks=lambda: self.J.movedim(1, 2))

    J = torch.randn(3, 8, 3, 4, generator=rng)
    op = Shrunk(J=J, **on_tokens(torch.zeros(3, 4)) | {"codomain": (3, 8)})
    found = bracket_in(op, metrics.as_metrics(metric), hs.spectral_norm, 1e-3, 0.999, rng)
    sums = J.double().abs().reshape(24, 12).sum(1 if metric == "entries" else 0)
    room = MARGIN_UNITS * 8 * torch.finfo(J.dtype).eps
    assert sums.max() * (1 + room) <= found.upper.double() <= sums.max() * (1 + 2 * room)
    torch.testing.assert_close(found.lower.double(), 0.7 * sums.max(), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("products", [2048, 0])
@pytest.mark.parametrize(("given", "wanted"), [("entries", "entries"), ("token", "entries"), ("sum", "sum")])
def test_a_row_or_column_that_is_no_number_is_refused_wherever_it_is(given, wanted, products, place, rng, monkeypatch):
    monkeypatch.setattr("howsmooth.spectral.metric_norms.BASIS_PRODUCTS", products)
    pair = metrics.Metrics(input=metrics.NAMED[given], output=metrics.NAMED[wanted])

    J = torch.randn(2, 2, 2, 3, generator=rng, dtype=torch.float64)

    def lost(x):
        return math.nan if int(x.count_nonzero()) == 1 and bool(x.flatten()[place] != 0) else 0.0

    class Overflowing(DenseOperator):
        """An operator whose product with one vector of the basis is no number, as where a sum overflows."""

        def _push(self, E):
            return super()._push(E) + lost(E)

        def _pull(self, G):
            return super()._pull(G) + lost(G)

        def token_rows(self):
            rows = self.J.clone()
            rows.view(4, 6)[place, place] = math.nan
            return SimpleNamespace(blocks=lambda: rows.movedim(1, 2))

    op = Overflowing(J=J, **on_tokens(torch.zeros(2, 3, dtype=torch.float64), 2))
    with pytest.raises(NonFiniteError):
        bracket_in(op, pair, hs.spectral_norm, 1e-3, 0.999, rng)


def test_what_is_attained_is_refused_where_it_is_no_number_though_the_upper_end_is_one(rng):
    class Broken(DenseOperator):
        """An operator of which rows alone can be computed."""

        def _push(self, E):
            return super()._push(E) * math.nan

    J = torch.randn(2, 2, 2, 3, generator=rng, dtype=torch.float64)
    op = Broken(J=J, **on_tokens(torch.zeros(2, 3, dtype=torch.float64), 2))
    with pytest.raises(NonFiniteError):
        bracket_in(op, metrics.as_metrics("entries"), hs.spectral_norm, 1e-3, 0.999, rng)


def test_a_perturbation_that_is_no_number_is_refused_and_does_not_attain_zero(rng):
    J = torch.randn(2, 2, 2, 3, generator=rng, dtype=torch.float64)
    X, upper = torch.zeros(2, 3, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    op = DenseOperator(J=J, **on_tokens(X, 2))
    with pytest.raises(NonFiniteError):
        _attained(op, X / 0, upper, metrics.total, metrics.token, products=1)


def test_a_token_that_nothing_moves_is_never_the_largest(rng):
    J = torch.randn(3, 2, 3, 2, generator=rng, dtype=torch.float64)
    J[1] = 0
    pair = metrics.Metrics(input=metrics.total, output=metrics.token)
    found = hs.local_lipschitz(Linear(J), torch.zeros(3, 2, dtype=torch.float64), metric=pair, seed=rng)
    truth = torch.linalg.matrix_norm(J.reshape(3, 2, 6), 2).max()
    torch.testing.assert_close(found.lower, truth, rtol=1e-3, atol=0.0)
    assert truth <= found.upper


@pytest.mark.parametrize("given", ["entries", "sum", "total"])
@pytest.mark.parametrize("wanted", ["entries", "sum", "total", "token"])
def test_what_is_climbed_to_comes_near_the_largest_value_where_no_proof_is_affordable(given, wanted, rng, monkeypatch):
    if given == wanted == "total":
        return
    for limit in ("BASIS_PRODUCTS", "BLOCK_NUMBERS"):
        monkeypatch.setattr(f"howsmooth.spectral.metric_norms.{limit}", 0)
    pair = metrics.Metrics(input=metrics.NAMED[given], output=metrics.NAMED[wanted])
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 12).reshape(-1, 3, 4)
    corners = {"entries": signs, "sum": torch.eye(12, dtype=torch.float64).reshape(-1, 3, 4)}
    for _map in range(4):
        f, X = head(rng, n=3, d=4, size=2.0)
        J = f.jacobian(X)
        found = hs.local_lipschitz(f, X, metric=pair, seed=rng)
        dense = dense_jacobian(f, X)
        if given == "total":  # each functional by itself; those of sums are signs
            rows = signs.flatten(1) @ dense if wanted == "sum" else dense.reshape(3, 4, 12)
            by = torch.linalg.vector_norm(rows, dim=-1) if wanted != "token" else torch.linalg.matrix_norm(rows, 2)
            truth = by.max()
        else:  # at a corner of the ball of perturbations
            truth = pair.output.size((corners[given].flatten(1) @ dense.mT).reshape(-1, 3, 4)).max()
        # between cubes and tokens every block has local maxima of its own
        near = 0.85 if (given, wanted) == ("entries", "token") else 0.97
        assert near * truth <= found.lower <= truth * (1 + 1e-12)
        assert truth <= found.upper
        torch.testing.assert_close(pair.output.size(J.jvp(found.direction)), found.lower, rtol=1e-9, atol=0.0)


def isometries(X, Y, rng):
    M = torch.randn(3, 3, generator=rng, dtype=torch.float64)
    M = M @ M.mT + 0.1 * torch.eye(3)
    root = torch.linalg.cholesky(M).mT  # on column vectors
    out, inner = X.norm(dim=-1), Y.norm(dim=-1)
    per_token = torch.diag(1 / inner.repeat_interleave(3)), torch.diag(out.repeat_interleave(3))
    eye = torch.eye(len(X), dtype=torch.float64)
    yield metrics.relative, per_token
    yield metrics.condition, (torch.eye(12) / Y.norm(), torch.eye(12) * X.norm())
    yield metrics.weighted(M), (torch.kron(eye, root), torch.linalg.inv(torch.kron(eye, root)))


@pytest.mark.parametrize("which", range(3))
def test_isometric_metrics_are_singular_values_after_the_isometry(which, rng):
    f, X = head(rng, n=4, d=3)
    metric, (left, right) = list(isometries(X, f(X), rng))[which]
    truth = torch.linalg.matrix_norm(left.double() @ dense_jacobian(f, X) @ right.double(), 2)
    found = hs.local_lipschitz(f, X, metric=metric, seed=rng)
    assert found.lower <= truth * (1 + 1e-12)
    assert truth <= found.upper
    at = metrics.as_metrics(metric).at(X, f(X))
    torch.testing.assert_close(at.input.size(found.direction), torch.tensor(1.0, dtype=torch.float64))
    moved = at.output.size(f.jacobian(X).jvp(found.direction))
    torch.testing.assert_close(moved, found.lower.double(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("kind", ["weighted", "relative"])
@pytest.mark.parametrize("case", [*SINGLE, *JOINT, *OTHERS, *COMPOSED[:3]], ids=str)
def test_isometries_of_any_operator_are_matrices_on_both_sides(case, kind, rng):
    f, X = case.build(rng)
    J, Y = f.jacobian(X), f(X)
    d, out = J.domain[-1], J.codomain[-1]

    def sides(of, size):
        if kind == "relative":
            return metrics.relative.at(of), torch.diag((1 / of.norm(dim=-1)).repeat_interleave(size))
        root = torch.randn(size, size, generator=rng, dtype=torch.float64)
        metric = metrics.weighted(root @ root.mT + 0.1 * torch.eye(size))
        return metric, torch.kron(torch.eye(len(of), dtype=torch.float64), metric.factor.mT)

    (given, right), (wanted, left) = sides(X, d), sides(Y, out)
    after = isometric(J, given, wanted)
    truth = left @ dense_jacobian(f, X) @ torch.linalg.inv(right)
    E, G = torch.randn_like(X), torch.randn_like(Y)
    torch.testing.assert_close(after.jvp(E).flatten(), truth @ E.flatten())
    torch.testing.assert_close(after.vjp(G).flatten(), truth.mT @ G.flatten())
    # what restricts coordinates has the same norm, and its isometry leads back to vectors that attain it
    core, embed = compressed(after)
    small = torch.randn(*core.domain, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(after.jvp(embed(small)).norm(), core.jvp(small).norm())
    found = hs.spectral.spectral_norm(after, seed=rng)
    assert found.lower <= torch.linalg.matrix_norm(truth, 2) * (1 + 1e-12)
    assert torch.linalg.matrix_norm(truth, 2) <= found.upper


def test_matrices_of_a_metric_become_part_of_projections_and_narrow_heads_stay_narrow(rng):
    f, X = head(rng, n=5, d=12, heads=1, k=2)
    J, weighted = f.jacobian(X), metrics.covariance(torch.randn(40, 12, generator=rng, dtype=torch.float64))
    assert type(isometric(J, weighted, weighted)) is type(J)
    for metric in (weighted, metrics.relative.at(X)):
        core, _embed = compressed(isometric(J, metric, metrics.total))
        assert core.domain == (5, 6)  # the span of one query, key and value projection
    # an operator that can be restricted, and takes no matrices in, stays whole between them
    padded = RealTokens(map=f, real=torch.tensor([True, True, False, True, True])).jacobian(X)
    after = isometric(padded, weighted, metrics.total)
    E = torch.randn(5, 12, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(after.constrain(E), E * padded.real[:, None])
    core, embed = compressed(after)
    small = torch.randn(*core.domain, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(padded.jvp(weighted.original(embed(small))).norm(), core.jvp(small).norm())


@pytest.mark.parametrize("case", BATCHED[:3], ids=str)
def test_a_batch_in_a_relative_metric_can_be_taken_apart(case, rng):
    f, X = case.build(rng)
    at = metrics.as_metrics("relative").at(X, f(X))
    after, E = isometric(f.jacobian(X), at.input, at.output), torch.randn_like(X)
    last = math.prod(case.batch) - 1
    some = torch.tensor([last, 0])
    torch.testing.assert_close(after.take(some).jvp(E.flatten(0, -3)[some]), after.jvp(E).flatten(0, -3)[some])
    found = hs.local_lipschitz(f, X, metric="relative", seed=rng)
    truth = [
        torch.linalg.matrix_norm(
            torch.stack([after.jvp(e.view(X.shape)) for e in torch.eye(X.numel(), dtype=X.dtype)], -1)
            .flatten(0, -4).flatten(1, 2)[place][:, place * 42 : (place + 1) * 42], 2)
        for place in range(last + 1)
    ]  # fmt: skip
    assert (found.lower.flatten() <= torch.stack(truth) * (1 + 1e-12)).all()
    assert (torch.stack(truth) <= found.upper.flatten()).all()


@pytest.mark.parametrize("which", range(3))
def test_typical_gains_are_mean_squares_after_the_isometry(which, rng):
    f, X = head(rng, n=4, d=3)
    metric, (left, right) = list(isometries(X, f(X), rng))[which]
    J = left.double() @ dense_jacobian(f, X) @ right.double()
    found = hs.typical_gain(f, X, metric=metric, samples=12)  # as many as dimensions: exact
    torch.testing.assert_close(found.value, J.norm() / math.sqrt(12))
    with pytest.raises(AssumptionError, match=r"Euclidean metric .* or in token, got entries"):
        hs.typical_gain(f, X, metric="entries")


def test_gains_of_tokens_that_move_by_unit_vectors_have_intervals(rng):
    f, X = head(rng, n=3, d=12)
    J = dense_jacobian(f, X)
    to_total = metrics.Metrics(input=metrics.token, output=metrics.total)
    truth = J.norm() / math.sqrt(12)  # unit vectors have the covariance I/d
    largest = hs.local_lipschitz(f, X, metric=to_total, seed=rng).upper
    for seed in range(4):
        found = hs.typical_gain(f, X, metric=to_total, samples=50, confidence=0.9, seed=seed)
        assert found.low <= truth <= found.high
        assert found.high - found.low < 0.5 * largest
    for metric in ("token", metrics.Metrics(input=metrics.total, output=metrics.token)):
        draws = metrics.as_metrics(metric).input.draw(X.expand(4_000, *X.shape), rng)
        sizes = metrics.token.size((draws.flatten(1) @ J.mT).unflatten(1, (3, -1)))
        found = hs.typical_gain(f, X, metric=metric, samples=50, seed=0)
        assert found.low <= sizes.square().mean().sqrt() <= found.high
    line = hs.typical_gain(lambda X: 2 * X, X[:, :1], metric="token", samples=2, seed=0)  # spheres of two points
    assert (float(line.low), float(line.value)) == (0.0, 2.0)
    assert float(line.high) == pytest.approx(2.0, rel=0.1)


def test_the_condition_number_is_the_norm_times_the_size_of_the_input_over_that_of_the_output(rng):
    f, X = head(rng, n=4, d=3)
    worst = hs.local_lipschitz(f, X, rtol=1e-6, seed=rng).lower
    found = hs.local_lipschitz(f, X, metric="condition", rtol=1e-6, seed=rng).lower
    torch.testing.assert_close(found, worst * X.norm() / f(X).norm(), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("metric", ["token", "relative", "condition", "entries", "sum"])
def test_an_output_that_is_a_vector_is_one_token_in_every_metric(rng, metric):
    W, X = gaussian(rng, 4, 6), gaussian(rng, 3, 5, 6)

    def pooled(X):
        return (X.tanh() @ W.mT).mean(-2)

    together = hs.local_lipschitz(pooled, X, metric=metric, seed=rng)
    for one, x in zip(together, X, strict=True):
        alone = hs.local_lipschitz(pooled, x, metric=metric, seed=rng)
        as_tokens = hs.local_lipschitz(lambda X: pooled(X).unsqueeze(-2), x, metric=metric, seed=rng)
        for found in (one, alone):
            assert found.lower <= as_tokens.upper * (1 + 1e-9)
            assert found.upper >= as_tokens.lower * (1 - 1e-9)


def test_metrics_that_need_tokens_refuse_other_shapes(rng):
    with pytest.raises(ShapeError, match=r"'token' needs tokens .* got inputs \(6,\) and outputs \(6,\)"):
        hs.local_lipschitz(torch.tanh, gaussian(rng, 6), metric="token")
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    with pytest.raises(AssumptionError, match=r"needs tokens and outputs that are tensors, got AttentionJacobian"):
        hs.local_lipschitz(f.jacobian, gaussian(rng, 5, 6), metric="condition")


def test_the_condition_number_of_a_padded_sequence_is_that_of_its_real_tokens(rng):
    f, X = head(rng, n=5, d=3)
    real = torch.tensor([True, True, False, True, False])
    masked = dataclasses.replace(f, positions=dataclasses.replace(f.positions, padding=real))
    padded = hs.local_lipschitz(RealTokens(map=masked, real=real), X, metric="condition", rtol=1e-6, seed=rng)
    alone = hs.local_lipschitz(f, X[real], metric="condition", rtol=1e-6, seed=rng)
    torch.testing.assert_close(padded.lower, alone.lower, rtol=1e-5, atol=0.0)


PAIRS = [(a, b) for a in ("total", "token", "entries", "sum") for b in ("total", "token", "entries", "sum")]


@pytest.mark.parametrize(("given", "wanted"), PAIRS)
def test_between_any_two_metrics_the_bracket_holds_and_its_lower_end_is_attained(given, wanted, rng):
    f, X = head(rng, n=3, d=2, heads=1)
    pair = metrics.Metrics(input=metrics.NAMED[given], output=metrics.NAMED[wanted])
    found = hs.local_lipschitz(f, X, metric=pair, seed=rng)
    J = f.jacobian(X)
    attained = pair.output.size(J.jvp(found.direction)) / pair.input.size(found.direction)
    assert attained >= found.lower * (1 - 1e-9)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 6).reshape(-1, 3, 2)
    noise = torch.randn(500, 3, 2, generator=rng, dtype=torch.float64)
    for E in torch.cat((corners, noise, torch.eye(6, dtype=torch.float64).reshape(6, 3, 2))):
        assert pair.output.size(J.jvp(E)) <= pair.input.size(E) * found.upper * (1 + 1e-12)


@pytest.mark.parametrize("name", [*metrics.NAMED, "weighted"])
def test_the_steepest_step_is_the_dual_norm_and_projections_stay_inside(name, rng):
    X, G, E, F = (torch.randn(4, 3, generator=rng, dtype=torch.float64) for _each in range(4))
    metric = metrics.weighted(torch.diag(torch.tensor([1.0, 4.0, 9.0]))) if name == "weighted" else metrics.NAMED[name]
    metric = metric.at(X)
    step = metric.steepest(G)
    one = torch.tensor(1.0, dtype=torch.float64)
    torch.testing.assert_close(metric.size(step), one)
    torch.testing.assert_close((G * step).sum(), metric.dual_size(G))
    torch.testing.assert_close((metric.support(F) * F).sum(), metric.size(F))
    torch.testing.assert_close(metric.dual_size(metric.support(F)), one)
    assert (G * E).sum() <= metric.dual_size(G) * metric.size(E) * (1 + 1e-12)
    assert metric.size(metric.nearest(E, 0.1)) <= 0.1 * (1 + 1e-12)
    torch.testing.assert_close(metric.nearest(1e-3 * E / metric.size(E), 0.1), 1e-3 * E / metric.size(E))
    low, high = metric.euclidean_ratios((4, 3))
    assert E.norm() <= low * metric.size(E) * (1 + 1e-12)
    assert metric.size(E) <= high * E.norm() * (1 + 1e-12)
    torch.testing.assert_close(metric.size(metric.draw(X, rng)), one)


@pytest.mark.parametrize("metric", [metrics.entries, metrics.sum, metrics.token, metrics.total])
def test_projections_are_the_nearest_points(metric, rng):
    E = torch.randn(3, 2, generator=rng, dtype=torch.float64)
    nearest = metric.nearest(E, 0.7)
    for _draw in range(300):
        other = metric.draw(E, rng) * 0.7 * float(torch.rand((), generator=rng))
        assert (E - nearest).norm() <= (E - other).norm() * (1 + 1e-12)


def test_noise_shaped_as_the_tokens_has_size_one(rng):
    spread = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    X = torch.randn(4000, 3, generator=rng, dtype=torch.float64) * spread
    metric = metrics.covariance(X, ridge=1e-9)
    sizes = metric.size((torch.eye(3, dtype=torch.float64) * spread).unsqueeze(1))
    torch.testing.assert_close(sizes, torch.ones(3, dtype=torch.float64), rtol=0.1, atol=0.0)  # an estimate


@pytest.mark.untyped
def test_what_is_no_metric_is_refused(rng):
    f, X = head(rng, n=3, d=2)
    with pytest.raises(AssumptionError, match=r"no metric 'tokens'.*token"):
        hs.local_lipschitz(f, X, metric="tokens")
    with pytest.raises(DtypeError, match="metric must be one of"):
        metrics.as_metrics(3)
    with pytest.raises(AssumptionError, match="not zero"):
        hs.local_lipschitz(f, torch.zeros_like(X), metric="relative")
    with pytest.raises(AssumptionError, match="positive definite"):
        metrics.weighted(-torch.eye(2))
    with pytest.raises(AssumptionError, match=r"metric\.at\(X\)"):
        metrics.relative.size(X)
    # theorems go by names: no other metric may have the name of one
    for name in ("total", "token"):
        with pytest.raises(AssumptionError, match=f"'{name}' is that of hs.metrics.{name}; give another name"):
            metrics.as_metrics(metrics.weighted(torch.eye(2), name=name))
    with pytest.raises(AssumptionError, match="give another name"):
        hs.Metrics(input=metrics.total, output=dataclasses.replace(metrics.entries, name="total"))
    assert hs.Metrics(input=metrics.relative.at(X), output=metrics.total).name == "relative → total"


def test_an_operator_that_is_zero_has_norm_zero_in_every_metric(rng):
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=torch.zeros(2, 2, dtype=torch.float64))
    for name in ("total", "token", "entries", "sum"):
        found = hs.local_lipschitz(f, torch.randn(3, 2, generator=rng, dtype=torch.float64), metric=name)
        assert float(found.lower) == float(found.upper) == 0.0
        assert (found.response == 0).all()


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e6, 1e20])
def test_values_of_any_scale_are_bracketed(scale, rng):
    f, X = head(rng, n=4, d=3)
    tiny = hs.Attention(query=f.query, key=f.key, value=f.value * scale, output=f.output)
    found = hs.local_lipschitz(tiny, X, metric="token", seed=rng)
    truth = hs.local_lipschitz(f, X, metric="token", seed=rng)
    assert math.isclose(float(found.lower), scale * float(truth.lower), rel_tol=2e-3)
    assert found.lower <= scale * truth.upper


@pytest.mark.slow
def test_over_a_thousand_random_maps_the_bracket_between_largest_tokens_contains_the_truth():
    rng = torch.Generator().manual_seed(0)
    signs = {n: torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * n) for n in range(2, 7)}
    for number in range(1000):
        n, d = (int(torch.randint(2, 7, (), generator=rng)) for _axis in range(2))
        line = number % 2 == 0  # tokens on the line: the ball is a cube, whose corners decide
        d = 1 if line else d
        J = torch.randn(n, d, n, d, generator=rng, dtype=torch.float64)
        # some blocks dominate, as those of saturated rows do
        J = J * 10.0 ** (6 * torch.rand(n, 1, n, 1, generator=rng, dtype=torch.float64) - 3)
        found = hs.spectral.local_lipschitz(Linear(J), torch.zeros(n, d, dtype=torch.float64), metric="token")
        if line:
            truth = torch.einsum("iajb,sj->sia", J, signs[n]).abs().max()
            assert found.lower <= truth * (1 + 1e-12)
            assert truth <= found.upper
        assert found.upper <= torch.linalg.matrix_norm(J.transpose(1, 2), 2).sum(-1).max() * 1.001
        assert found.upper <= 1.3 * found.lower


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DenseOperator(Operator):
    """A linear operator by its matrix."""

    J: torch.Tensor

    def _push(self, E):
        return torch.einsum("iajb,...jb->...ia", self.J, E)

    def _pull(self, G):
        return torch.einsum("iajb,...ia->...jb", self.J, G)


class Linear:
    """A linear map of tokens, by its matrix."""

    def __init__(self, J):
        self.J = J

    def __call__(self, X):
        return self.jacobian(X).jvp(X)

    def jacobian(self, X):
        return DenseOperator(J=self.J, **on_tokens(X))


@pytest.mark.parametrize("seed", range(6))
def test_a_convex_solver_and_a_scan_of_directions_agree_with_both_ends(seed):
    # one output token in the plane: the norm is the largest sum of |J_j^T y| over unit y, an angle; the upper end is
    # the smallest largest eigenvalue over weights, a convex problem
    rng = torch.Generator().manual_seed(seed)
    n, d = 2 + seed % 3, 1 + seed % 3
    J = torch.randn(1, 2, n, d, generator=rng, dtype=torch.float64)
    J = J * 10.0 ** (2 * torch.rand(1, 1, n, 1, generator=rng, dtype=torch.float64) - 1)
    X = torch.zeros(n, d, dtype=torch.float64)
    op = DenseOperator(J=J, **on_tokens(X) | {"codomain": (1, 2)})
    found = {
        worth: bracket_in(
            op, metrics.as_metrics("token"), hs.spectral.spectral_norm, 1e-3, worth, torch.Generator().manual_seed(0)
        )
        for worth in (0.999, 1)
    }
    angles = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    Y = torch.stack((angles.cos(), angles.sin()), dim=-1)
    truth = float(torch.einsum("ajb,ya->yjb", J[0], Y).norm(dim=-1).sum(-1).max())
    blocks = J[0].movedim(1, 0).numpy()
    grams = np.einsum("jab,jcb->jac", blocks, blocks)

    def largest(z):
        w = np.exp(z - z.max())
        return np.linalg.eigvalsh((grams / (w / w.sum())[:, None, None]).sum(0))[-1]

    starts = [np.log(np.linalg.norm(np.einsum("jab,a->jb", blocks, y), axis=-1) + 1e-9) for y in Y[::4000].numpy()]
    convex = math.sqrt(min(minimize(largest, z, method="Nelder-Mead", tol=1e-10).fun for z in starts))
    for worth, bracket in found.items():
        assert bracket.confidence == worth
        assert bracket.lower <= truth * (1 + 1e-7)
        assert truth <= bracket.upper
        assert bracket.upper >= convex * (1 - 1e-9)  # weights cannot do better
        assert bracket.upper <= convex * (1 + 0.02)


def test_a_proof_is_asked_for_with_confidence_one_and_refused_where_there_is_none(rng):
    f, X = head(rng, n=4, d=3)
    likely, proven = (hs.local_lipschitz(f, X, metric="token", confidence=c, seed=rng) for c in (0.999, 1))
    assert proven.confidence == 1
    torch.testing.assert_close(proven.upper, likely.upper, rtol=2e-3, atol=0.0)
    assert hs.bounds.local_upper(f, X, metric="token").value >= proven.lower
    assert hs.local_lipschitz(f, X, metric="sum", confidence=1).confidence == 1
    with pytest.raises(AssumptionError, match="strictly between 0 and 1"):
        hs.local_lipschitz(f, X, confidence=1)
    mixed = hs.Metrics(input=metrics.token, output=metrics.total)
    with pytest.raises(AssumptionError, match="strictly between 0 and 1"):
        hs.local_lipschitz(f, X, metric=mixed, confidence=1)
    with pytest.raises(AssumptionError, match="local_upper is proven in the metrics total and token, got 'sum'"):
        hs.bounds.local_upper(f, X, metric="sum")


@pytest.mark.parametrize("name", ["total", "token", "entries", "sum"])
def test_the_dual_of_the_dual_is_the_size(name, rng):
    # the size of F is its largest product with functionals of dual size one, which steepest steps attain
    metric = metrics.NAMED[name]
    F = torch.randn(3, 2, generator=rng, dtype=torch.float64)
    others = torch.randn(500, 3, 2, generator=rng, dtype=torch.float64)
    products = (others * F).sum((-2, -1)) / metric.dual_size(others)
    assert products.max() <= metric.size(F) * (1 + 1e-12)
    torch.testing.assert_close((metric.support(F) * F).sum() / metric.dual_size(metric.support(F)), metric.size(F))


def search(J, *, confidence=0.999, rtol=1e-3, rows=DenseRows):
    m, out, n, d = J.shape
    op = DenseOperator(J=J, **on_tokens(torch.zeros(n, d, dtype=J.dtype)) | {"codomain": (m, out)})
    taken = DenseRows(J) if rows is DenseRows else ProductRows(op, torch.arange(m))
    return RowSearch(taken, op, rtol, confidence, torch.Generator().manual_seed(0))


def weighted_roots(J, w):
    """Return the roots of the largest eigenvalues of all sums of blocks over weights, in float64."""
    M = torch.einsum("iajb,icjb,ij->iac", J.double(), J.double(), 1 / w.double())
    return torch.linalg.eigvalsh(M)[:, -1].sqrt()


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.1])
@pytest.mark.parametrize("out", [1, 2, 24, 80])
def test_eigenvalues_are_below_their_bounds_under_any_weights_however_good_the_goal_is(out, share, rng):
    J = torch.randn(6, out, 4, 30, generator=rng, dtype=torch.float64)
    J = J * torch.linspace(0.5, 1, out, dtype=torch.float64)[:, None, None]
    rows, every = search(J), torch.arange(6)
    rows.sizes = torch.rand(6, 4, generator=rng, dtype=torch.float64) + 0.01
    truth = weighted_roots(J, _weights(rows.sizes))
    rows.values = share * truth  # what was attained decides where the search for bounds may end
    upper, tops = rows._largest_eigenvalues(every)
    assert (truth <= upper).all()
    assert (upper <= 1.7 * truth.max()).all()
    torch.testing.assert_close(tops.norm(dim=-1), torch.ones(6, dtype=torch.float64))


def test_all_rows_share_the_doubt(rng):
    rows = search(torch.randn(5, 7, 3, 2, generator=rng, dtype=torch.float64), confidence=0.99)
    assert rows.delta == least_overlap(7, 1 - 0.01 / (5 * ROUNDS))


def test_the_largest_row_decides_wherever_it_is(rng):
    J = torch.zeros(3, 2, 3, 2, dtype=torch.float64)
    for row, size in enumerate((1.0, 3.0, 2.0)):
        J[row, :, row] = size * torch.eye(2)
    for rows in (DenseRows, ProductRows):
        upper, E, _products = search(J, rows=rows).bracket()
        assert 3 <= upper <= 3.01
        assert torch.einsum("iajb,jb->ia", J, E).norm(dim=-1).max() == pytest.approx(3)


def test_the_largest_upper_end_of_all_rows_is_returned(rng):
    class Stubborn(RowSearch):
        """A search whose second row stays above what is attained."""

        def _largest_eigenvalues(self, some):
            return torch.tensor([1.0, 50.0, 2.0], dtype=torch.float64)[some], self.Y[some]

    rows = search(torch.randn(3, 2, 3, 2, generator=rng, dtype=torch.float64))
    upper, _E, _products = Stubborn(rows.rows, rows.op, 1e-3, 0.999, rng).bracket()
    assert upper == 50


def test_products_with_rows_are_counted(rng):
    rows, calls = search(torch.randn(3, 4, 3, 2, generator=rng, dtype=torch.float64), rows=ProductRows), []

    class Counted(DenseOperator):
        def _push(self, E):
            calls.append("jvp")
            return super()._push(E)

        def _pull(self, G):
            calls.append("vjp")
            return super()._pull(G)

    op = Counted(J=rows.op.J, **on_tokens(torch.zeros(3, 2, dtype=torch.float64)) | {"codomain": (3, 4)})
    rows.op, rows.rows = op, ProductRows(op, torch.arange(3))
    _upper, _E, products = rows.bracket()
    assert products == len(calls)


@pytest.mark.parametrize("seed", range(4))
def test_proven_ends_allow_for_rounding_in_single_precision(seed):
    rng = torch.Generator().manual_seed(seed)
    J = torch.randn(40, 6, 5, 4, generator=rng)
    rows = search(J, confidence=1)
    rows.sizes = torch.rand(40, 5, generator=rng) + 0.01
    upper, _tops = rows._all_eigenvalues(torch.arange(40), _weights(rows.sizes))
    assert (weighted_roots(J, _weights(rows.sizes)) <= upper).all()
    for each in J.unsqueeze(1):  # maps with one output token
        X = torch.zeros(5, 4)
        op = DenseOperator(J=each, **on_tokens(X) | {"codomain": (1, 6)})
        found = bracket_in(op, metrics.as_metrics("entries"), hs.spectral.spectral_norm, 1e-3, 0.999, rng)
        truth = each.double().abs().sum((-2, -1)).max()
        assert found.lower.double() <= truth <= found.upper.double()


def test_a_tridiagonal_matrix_is_the_product_of_its_bidiagonal_factors(rng):
    alphas, betas = (0.1 + np.random.default_rng(0).random((3, 6)) for _each in range(2))
    diagonal = alphas**2
    diagonal[:, 1:] += betas[:, :-1] ** 2
    for found, truth in zip(_bidiagonal(diagonal, alphas * betas), (alphas, betas), strict=True):
        np.testing.assert_allclose(found, truth)
    zero, _betas = _bidiagonal(np.zeros((2, 3)), np.zeros((2, 3)))
    assert (zero > 0).all()
    assert (_unit(torch.zeros(2, 3)) == 0).all()


def test_ratios_to_the_euclidean_norm_are_attained_at_the_longest_and_the_shortest_token(rng):
    X = torch.diag(torch.tensor([2.0, 0.5, 8.0], dtype=torch.float64))
    metric = metrics.relative.at(X)
    low, high = metric.euclidean_ratios((3, 3))
    assert (low, high) == (8.0, 2.0)
    for token, ratio in ((1, high), (2, 1 / low)):
        E = torch.zeros(3, 3, dtype=torch.float64)
        E[token, 0] = 1.0
        assert float(metric.size(E)) == ratio
