"""The norm of all unit combinations of matrices: near the two norms that are known, above what search finds."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from theory.ball_inputs import ascended, constants, inputs
from theory.example_layers import random_layer

import howsmooth as hs
from howsmooth.theory.ball import layer as heads_together
from howsmooth.theory.linalg import stacked_norms as three_ways
from howsmooth.theory.linalg.stacked_norms import LARGEST, max_unit_combination_norm, products_norm


def flattened(A):
    """The norms of the matrices one under the other, and side by side."""
    return (
        torch.linalg.matrix_norm(A.flatten(0, 1), 2).item(),
        torch.linalg.matrix_norm(A.transpose(0, 1).flatten(1), 2).item(),
    )


def searched(A):
    """The largest value met when two of the three vectors are given and the third is the best one, in turn."""
    best = 0.0
    for start in torch.linalg.svd(A).Vh[:, 0]:
        y = start
        for _step in range(50):
            e = torch.linalg.svd(A @ y, full_matrices=False).Vh[0]
            y = torch.linalg.svd(torch.einsum("hab,a->hb", A, e), full_matrices=False).Vh[0]
        best = max(best, ((A @ y) @ e).norm().item())
    return best


@pytest.mark.parametrize("scale", [1e-150, 1e-20, 1.0, 1e20, 1e150])
@pytest.mark.parametrize("shape", [(1, 4, 6), (2, 5, 3), (5, 4, 7), (9, 6, 6)], ids=str)
def test_the_bound_lies_between_what_search_finds_and_both_norms(rng, shape, scale):
    A = gaussian(rng, *shape) * torch.linspace(0.2, 2, shape[0])[:, None, None]
    found, bound = searched(A), max_unit_combination_norm(scale * A) / scale
    assert found <= bound <= math.hypot(*flattened(A)) / math.sqrt(2) * (1 + 2e-4)
    # many Gaussian matrices: the bound is below both norms, and near what is found
    assert shape[0] < 5 or bound <= 0.97 * min(flattened(A))
    assert bound <= 1.35 * found


@pytest.mark.parametrize("rows", [1, 5, 255, 256, 259, 401])
def test_a_gram_matrix_by_blocks_is_that_of_all_rows(rng, rows):
    x = gaussian(rng, rows, 7)
    found = three_ways._gram(x)
    torch.testing.assert_close(found, x @ x.mT, rtol=0, atol=1e-13)


def mean_of_both(A):
    """The root of the largest eigenvalue of the mean of both unfoldings, dense; the smaller one of both sides."""
    grams = (torch.einsum("hac,gbc->hagb", B, B) for B in (A, A.mT))
    means = (((gram + gram.transpose(0, 2)) / 2).flatten(2).flatten(0, 1) for gram in grams)
    return min(torch.linalg.eigvalsh(S)[-1].item() ** 0.5 for S in means)


@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0, 40.0])
@pytest.mark.parametrize("whole", [1, 8, 20, 30, 1000])
def test_weak_rows_enter_by_their_norms_and_cost_little(rng, whole, decay, monkeypatch):
    heads, d = 4, 12
    turn, back = (torch.linalg.qr(gaussian(rng, d, d)).Q for _side in range(2))
    A = turn @ (gaussian(rng, heads, d, d) * torch.arange(1, d + 1).double()[:, None] ** -decay) @ back
    A = A * torch.tensor([1.0, 1e-3, 0.5, 2.0]).double()[:, None, None]
    exact = mean_of_both(A)
    monkeypatch.setattr("howsmooth.theory.linalg.stacked_norms.WHOLE", whole)
    bound = max_unit_combination_norm(A)
    assert exact <= bound
    if whole == 1000:
        assert bound <= exact * (1 + 2e-4)
    elif decay and whole >= 20:
        assert bound <= 1.02 * exact
    else:  # never worse than what both norms say of all rows
        assert bound <= math.hypot(*flattened(A)) / math.sqrt(2) * 1.1


def test_matrices_that_do_not_meet_cost_no_more_than_the_largest():
    A = torch.zeros(4, 4, 4, dtype=torch.float64)
    for h in range(4):
        A[h, h, h] = h + 1.0
    assert max_unit_combination_norm(A) == pytest.approx(4.0, rel=1e-3)


def test_one_matrix_many_times_costs_the_root_of_their_number(rng):
    A = gaussian(rng, 5, 6)
    one = torch.linalg.matrix_norm(A, 2).item()
    assert max_unit_combination_norm(A.expand(9, -1, -1)) == pytest.approx(3 * one, rel=1e-3)
    assert max_unit_combination_norm(A.expand(9, -1, -1)) >= 3 * one


def test_nothing_is_nothing_and_what_is_too_large_is_infinite(rng):
    assert max_unit_combination_norm(torch.zeros(3, 4, 5).double()) == 0.0
    assert max_unit_combination_norm(torch.full((2, 2, 2), math.inf).double()) == math.inf
    wide = gaussian(rng, 2, LARGEST)
    assert products_norm([(wide, wide)] * 2) < math.inf  # few keys: their span is small


@pytest.mark.parametrize("k", [2, 9])
def test_factors_stand_for_their_products(rng, k):
    factors = [(gaussian(rng, k, 7), gaussian(rng, k, 11)) for _head in range(3)]
    dense = max_unit_combination_norm(torch.stack([K.mT @ Q for Q, K in factors]))
    # the two may take either side of the forms
    assert products_norm(factors) == pytest.approx(dense, rel=0.05)
    assert products_norm(factors) >= searched(torch.stack([K.mT @ Q for Q, K in factors]))


def test_a_factor_that_fails_proves_nothing(rng, monkeypatch):
    monkeypatch.setattr(
        "howsmooth.theory.linalg.stacked_norms._largest", lambda S: 0.9 * torch.linalg.eigvalsh(S)[-1].item()
    )
    assert max_unit_combination_norm(gaussian(rng, 3, 4, 5)) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("biased", [False, True])
def test_layers_are_below_the_closer_bound_which_is_smaller(rng, biased, monkeypatch):
    f = random_layer(rng, heads=4, d=6)
    f = dataclasses.replace(f, query_bias=3 * gaussian(rng, 4, f.layout.k)) if biased else f
    n, radius = 5, 4.0
    upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
    found = constants(f, ascended(f, inputs(rng, f, 6, n, radius), radius))
    assert found.max().item() <= upper
    monkeypatch.setattr(heads_together, "products_norm", lambda _factors: math.inf)
    assert upper < hs.bounds.sharp_upper(f, n=n, radius=radius).value


@pytest.mark.parametrize("whole", [4, 8, 20])
def test_weak_rows_are_completed_by_the_square_of_what_ties_them(rng, whole, monkeypatch):
    heads, d = 4, 8
    A = gaussian(rng, heads, d, 6) * torch.linspace(1, 0.3, d).double()[:, None]
    monkeypatch.setattr(three_ways, "WHOLE", whole)
    strong = max(1, whole // heads)
    basis = torch.linalg.eigh(torch.einsum("hac,hbc->ab", A, A)).eigenvectors.flip(-1)
    gram = torch.einsum("hac,gbc->hagb", basis.mT @ A, basis.mT @ A)
    S = (gram + gram.transpose(0, 2)) / 2
    beta = three_ways._by_norms((basis.mT @ A)[:, strong:])
    inside, outside = (S[:, rows][:, :, :, rows] for rows in (slice(strong), slice(strong, None)))
    tie = S[:, :strong][:, :, :, strong:].flatten(2).flatten(0, 1)
    weak = outside.flatten(2).flatten(0, 1)
    assert torch.linalg.eigvalsh(weak)[-1].item() <= beta * (1 + 1e-12)
    near, eye = inside.flatten(2).flatten(0, 1), torch.eye(len(weak)).double()
    exact = torch.linalg.eigvalsh(torch.cat((torch.cat((near, tie), 1), torch.cat((tie.mT, beta * eye), 1))))[-1].item()
    assert math.sqrt(exact) <= three_ways._on_one_side(A) <= math.sqrt(exact) * 1.01
    # nothing less is proven, whatever iteration finds
    for share, proven in ((0.998, False), (1.001, True)):
        monkeypatch.setattr(three_ways, "_root", lambda *_given, share=share: share * exact)
        assert math.isfinite(three_ways._on_one_side(A)) == proven


def test_weak_rows_are_bounded_by_the_mean_of_two_squares(rng):
    A = gaussian(rng, 3, 4, 5)
    under, beside = flattened(A)
    exact = (under**2 + beside**2) / 2
    found = three_ways._by_norms(A)
    assert exact + 40 * three_ways.UNIT * A.square().sum().item() <= found <= exact * (1 + 1e-9)
    assert three_ways._by_norms(A[:, :0]) == 0.0


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e150])
def test_matrices_whose_largest_entry_is_negative_have_the_same_bound(rng, size):
    A = gaussian(rng, 3, 4, 5).abs()
    A[0, 0, 0] = 0
    assert searched(A) <= max_unit_combination_norm(A)
    assert max_unit_combination_norm(-size * A) == pytest.approx(size * max_unit_combination_norm(A), rel=1e-3, abs=0)


def test_products_that_cancel_keep_the_root_of_the_squares_of_what_they_lost():
    eye = torch.eye(4).double()
    one, other = eye[:2] * 3, eye[2:] * 5
    factors = [(torch.cat((one, 0 * one)), torch.cat((0 * other, other)))] * 2
    lost = 8 * 4 * three_ways.UNIT * 3 * math.sqrt(2) * 5 * math.sqrt(2)
    assert products_norm(factors) == pytest.approx(math.sqrt(2) * lost, rel=1e-9, abs=0)


def test_what_takes_too_long_is_left_out_by_the_number_of_rows_and_heads(rng, monkeypatch):
    factors = [(gaussian(rng, 2, 7), gaussian(rng, 2, 11)) for _head in range(3)]
    for largest, finite in ((9, False), (17, False), (18, True), (21, True)):
        monkeypatch.setattr(three_ways, "LARGEST", largest)
        assert math.isfinite(products_norm(factors)) == finite
    narrow = [(gaussian(rng, 2, 3), gaussian(rng, 2, 11)) for _head in range(3)]
    monkeypatch.setattr(three_ways, "LARGEST", 9)
    assert math.isfinite(products_norm(narrow))


@pytest.mark.parametrize("whole", [8, 1000])  # two strong rows of each head, or all of them
def test_what_rounding_may_take_is_added_for_every_sum_of_products(rng, whole, monkeypatch):
    heads, rows, columns = 4, 5, 6
    A = gaussian(rng, heads, rows, columns)
    monkeypatch.setattr(three_ways, "WHOLE", whole)
    strong = min(rows, whole // heads)
    turned = torch.linalg.eigh(torch.einsum("hac,hbc->ab", A, A)).eigenvectors.flip(-1).mT @ A
    tie = three_ways._blocks(turned[:, :strong], turned[:, strong:]).norm().item()
    monkeypatch.setattr(three_ways, "UNIT", 0.0)
    beta, largest = three_ways._by_norms(turned[:, strong:]), three_ways._on_one_side(A) ** 2
    monkeypatch.setattr(three_ways, "_by_norms", lambda _weak: beta)
    unit, squares, far = 1e-3, A.square().sum().item(), 1 / (largest - beta)
    monkeypatch.setattr(three_ways, "UNIT", unit)
    in_S = (columns + 2) * squares  # of entries that are sums over the columns; |A||A|ᵀ is at most the sum of squares
    in_square = 2 * far * tie * in_S + (heads * (rows - strong) + 4) * far * tie**2  # what S₁₂ has, and its own sums
    in_factor = 2 * (heads * strong + 2) * heads * strong * largest  # of as many rows, with a trace of so many times λ
    turning = 16 * rows * unit
    wanted = math.sqrt(largest + unit * (in_S + in_square + in_factor)) * (1 + turning) + turning * math.sqrt(squares)
    assert three_ways._on_one_side(A) == pytest.approx(wanted, rel=1e-10)
