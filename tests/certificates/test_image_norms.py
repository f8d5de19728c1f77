"""Sizes of images of balls, and the roots that remainders lie along: closed forms for every way of bounding them."""

import math

import pytest
import torch
from draws import gaussian

from howsmooth.certificates import image_norms
from howsmooth.certificates.image_norms import (
    SquaredBall,
    UnitBall,
    _unpacked,
    block_norms,
    form_norms,
    packed_pairs,
    square_sum_norms,
)
from howsmooth.certificates.stages import at_every_token, matrix_root


@pytest.mark.parametrize(("p", "dual"), [(1.0, math.inf), (2.0, 2.0), (math.inf, 1.0)])
def test_numbers_are_bounded_by_the_dual_norm_of_their_coefficients(p, dual, rng):
    columns = gaussian(rng, 2, 4, 3)
    expected = [[float(torch.linalg.vector_norm(columns[g, :, k], dual)) for k in range(3)] for g in range(2)]
    assert UnitBall(p).scalar_norms(columns).tolist() == pytest.approx(
        [pytest.approx(row, rel=1e-14) for row in expected]
    )


def test_vectors_are_bounded_by_the_longest_column_the_largest_singular_value_or_a_sum(rng):
    columns = gaussian(rng, 2, 4, 3, 5)
    columns[1, 1:] *= 1e-3  # one long column: a sum is shorter than the ball around the cube
    lengths = columns.norm(dim=-1)
    exact = torch.linalg.matrix_norm(columns.movedim(1, -2), 2)
    torch.testing.assert_close(UnitBall(1.0).vector_norms(columns), lengths.amax(1))
    torch.testing.assert_close(UnitBall(2.0).vector_norms(columns), exact, rtol=1e-2, atol=0)
    cube = UnitBall(math.inf).vector_norms(columns)
    torch.testing.assert_close(cube[0], 2 * exact[0], rtol=1e-2, atol=0)
    assert bool((cube[0] < lengths[0].sum(0)).all())
    torch.testing.assert_close(cube[1], lengths[1].sum(0))
    for p in (1.0, 2.0, math.inf):
        torch.testing.assert_close(UnitBall(p).vector_norms(columns[:, :1]), lengths[:, 0])


def packed(H, ball):
    """Pack symmetric forms (forms, m, r, r) as columns (1, pairs, forms, m)."""
    a, b, times = packed_pairs(H.shape[-1])
    return (H[..., a, b] * times).movedim(-1, 0)[None]


def test_coordinates_of_squares_have_the_length_of_what_is_squared(rng):
    xi = gaussian(rng, 5)
    a, b, times = packed_pairs(5)
    assert float((times * xi[a] * xi[b]).square().sum()) == pytest.approx(float(xi.square().sum() ** 2), rel=1e-12)
    H = gaussian(rng, 2, 3, 5, 5)
    H = H + H.mT
    torch.testing.assert_close(_unpacked(packed(H, SquaredBall())[0].flatten(1).mT), H.flatten(0, 1))


def test_the_square_of_one_direction_is_as_long_as_it_is(rng):
    # |ξᵀH ξ| is one for H = ξξᵀ: a packed column that is shorter by 1e-8 would bound it by less
    for r in (2, 5, 20):
        xi = gaussian(rng, r).abs()
        xi = xi / xi.norm()
        columns = packed((xi[:, None] * xi)[None, None], SquaredBall())
        for found in (SquaredBall().vector_norms(columns), SquaredBall().scalar_norms(columns[..., 0])):
            assert 1 - 1e-14 <= found.item() < 1 + 1e-3  # some products are in single precision


SIGNS = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64)


def single(place, size=1.0):
    H = torch.zeros(4, 4, dtype=torch.float64)
    H[place, place] = size
    return H


def numbers_of(H, p):
    return SquaredBall(p).scalar_norms(packed(H[:, None], SquaredBall())[..., 0])[0].tolist()


def test_quadratic_numbers_are_bounded_by_entries_eigenvalues_or_sums():
    eye, zero = torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    H = torch.stack((-3 * SIGNS, single(2, -5.0), zero, 1e-200 * eye, 1e200 * eye))
    assert numbers_of(H, 1.0) == pytest.approx([3, 5, 0, 1e-200, 1e200], rel=1e-12)
    assert numbers_of(H, 2.0) == pytest.approx([6, 5, 0, 1e-200, 1e200], rel=1e-2)
    # r‖H‖ of a form whose entries have both signs, the sum of a form with one entry
    found = numbers_of(H, math.inf)
    assert found == pytest.approx([24, 5, 0, 4e-200, 4e200], rel=1e-2)
    assert found[1] == pytest.approx(5, rel=1e-12)


def test_quadratic_vectors_are_bounded_by_entries_by_either_matrix_or_by_sums():
    # the coordinates of ξ⊗ξ themselves: as a matrix of one row for each its norm is one
    every = _unpacked(torch.eye(10, dtype=torch.float64))
    ones = torch.zeros(10, 4, 4, dtype=torch.float64)
    ones[0] = torch.eye(4, dtype=torch.float64)
    alone, signs = torch.zeros_like(ones), torch.zeros_like(ones)
    alone[3], signs[1] = single(1, 7.0), SIGNS
    H = torch.stack((every, ones, alone, signs))
    columns = packed(H, SquaredBall())
    assert SquaredBall(1.0).vector_norms(columns)[0].tolist() == pytest.approx([1, 1, 7, 1], rel=1e-12)
    # of the identity the other bound, √‖ΣH²‖, is one, and the matrix has norm 2
    assert SquaredBall(2.0).vector_norms(columns)[0].tolist() == pytest.approx([1, 1, 7, 2], rel=2e-2)
    found = SquaredBall(math.inf).vector_norms(columns)[0].tolist()
    assert found == pytest.approx([4, 4, 7, 8], rel=2e-2)
    assert found[2] == pytest.approx(7, rel=1e-12)


@pytest.mark.parametrize(("r", "m"), [(1, 1), (64, 1), (7, 3), (40, 9)])
def test_no_sum_of_squares_in_single_precision_is_below_the_truth_or_far_above(r, m, rng):
    H = gaussian(rng, 12, m, r, r)
    H = H + H.mT
    H[0], H[1], H[2], H[5] = torch.eye(r, dtype=torch.float64), 0.0, 1e-200 * H[2], -1.0
    H[3, :, -1] = H[3, :, :, -1] = 1e-30  # far below the largest entry
    truth = torch.linalg.eigvalsh((H @ H).sum(1))[:, -1].sqrt()
    truth[2] = 1e-200 * torch.linalg.eigvalsh((1e200 * H[2] @ (1e200 * H[2])).sum(0))[-1].sqrt()
    found = square_sum_norms(packed(H, SquaredBall()))[0]
    assert bool((found >= truth * (1 - 1e-14)).all())
    assert bool((found <= 1.05 * truth).all())
    if m == 1:  # a diagonal form loses nothing, so that all of the allowance is seen
        alone = form_norms(H[0].float()).double().item()
        assert found[0].item() == pytest.approx((1 + r**2 * torch.finfo(torch.float32).eps) * alone, rel=1e-9)
    for wrong in (math.nan, math.inf):
        H[4, 0, 0, 0] = wrong
        assert not square_sum_norms(packed(H, SquaredBall()))[0, 4] < math.inf


def test_what_single_precision_may_take_is_added():
    eye = torch.eye(3, dtype=torch.float64)[None, None]  # whose squares are exact
    exact = float(form_norms(eye[0].float()))
    found = float(square_sum_norms(packed(eye, SquaredBall())))
    assert found == pytest.approx(exact * (1 + 9 * torch.finfo(torch.float32).eps), rel=1e-9, abs=0)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_forms_that_are_unpacked_in_parts_have_the_same_sizes(p, rng, monkeypatch):
    columns = gaussian(rng, 2, 10, 3, 5)
    ball = SquaredBall(p)
    whole = ball.scalar_norms(columns), ball.vector_norms(columns)
    for few in (1, 160):
        monkeypatch.setattr(image_norms, "UNPACKED", few)
        torch.testing.assert_close((ball.scalar_norms(columns), ball.vector_norms(columns)), whole)


@pytest.mark.parametrize("few", [1, 60, 150])
def test_blocks_that_are_squared_in_parts_have_the_same_norms(few, rng, monkeypatch):
    columns, H = gaussian(rng, 2, 5, 4, 3), gaussian(rng, 7, 5, 5)
    whole = block_norms(columns), block_norms(columns.mT.contiguous()), form_norms(H + H.mT)
    monkeypatch.setattr(image_norms, "SQUARED", few)
    found = block_norms(columns), block_norms(columns.mT.contiguous()), form_norms(H + H.mT)
    torch.testing.assert_close(found, whole)


def traced(values):
    """Bound the largest eigenvalue of a Gram matrix by traces of its eighth power, from its eigenvalues."""
    v, y = len(values), [(x / math.hypot(*values)) ** 8 for x in values]
    first, second = sum(y) / v, sum(x * x for x in y) / v
    return (first + math.sqrt((v - 1) * max(second - first**2, 0))) ** 0.125 * math.hypot(*values)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_norms_of_blocks_are_what_two_traces_of_the_eighth_power_say(shape, rng):
    columns = gaussian(rng, 3, *shape)
    values = torch.linalg.svdvals(columns).square()
    expected = [math.sqrt(traced(each)) for each in values.tolist()]
    assert block_norms(columns).tolist() == pytest.approx(expected, rel=1e-10)
    H = gaussian(rng, 4, 5, 5)
    H = H + H.mT
    expected = [math.sqrt(traced(each)) for each in torch.linalg.eigvalsh(H).square().tolist()]
    assert form_norms(H).tolist() == pytest.approx(expected, rel=1e-10)


def test_roundings_that_blocks_may_have_lost_are_given_back():
    # a diagonal block loses nothing, so that all of the allowance is seen
    v, eps = 64, torch.finfo(torch.float64).eps
    found = float(image_norms._largest_eigenvalues(torch.eye(v, dtype=torch.float64)[None])[0])
    spread = math.sqrt((v - 1) * 8 * v * eps)
    assert found == pytest.approx((1 + 32 * v * eps) * (1 + spread) ** 0.125, rel=4 * eps, abs=0)


@pytest.mark.parametrize("scale", [1e-13, 1e-10, 1.0, 1e10, 1e13])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_blocks_that_are_too_small_or_too_large_to_be_squared_are_looked_at_again(scale, dtype, rng):
    # their eighth powers are taken of scaled numbers, but squares of columns are not scaled
    columns = gaussian(rng, 2, 5, 3, 4)
    columns[:, :, 1] *= scale
    columns[:, :, 2] = 0
    columns[0, :, 0] = -columns[0, :, 0].abs()
    columns[0, 0, 0, 0] = 0
    found, truth = block_norms(columns.to(dtype)), torch.linalg.matrix_norm(columns.movedim(1, -2), 2)
    torch.testing.assert_close(found.double(), truth, rtol=2e-2, atol=0)
    assert not bool(found[:, 2].any())


def test_the_root_of_a_projection_has_its_square_and_what_rounding_may_have_taken(rng):
    for W in (
        gaussian(rng, 3, 5),
        -gaussian(rng, 3, 2).abs(),
        1e-200 * gaussian(rng, 2, 4),
        1e150 * gaussian(rng, 2, 4),
    ):
        found, scale = matrix_root(W), W.abs().max()
        torch.testing.assert_close(
            (found / scale) @ (found / scale).mT, (W / scale) @ (W / scale).mT, atol=1e-11, rtol=0
        )
        torch.testing.assert_close(found, found.mT)
    plain = torch.tensor([[0.0, 0.0], [0.0, -2.0]], dtype=torch.float64)
    lost = 2 * math.sqrt(1e-13)
    found = matrix_root(plain)
    assert found[0, 0].item() == pytest.approx(lost, rel=1e-9, abs=0)
    assert found[1, 1].item() == pytest.approx(2 * math.sqrt(1 + 1e-13), rel=1e-15, abs=0)
    assert not bool(matrix_root(torch.zeros(2, 3, dtype=torch.float64)).any())
    assert matrix_root(plain.float()).dtype == torch.float32


def test_columns_of_a_symmetric_matrix_stand_at_every_token():
    B = torch.tensor([[1.0, 2.0], [2.0, 5.0]], dtype=torch.float64)
    found = at_every_token(B, 3)
    expected = torch.einsum("ij,rd->irjd", torch.eye(3, dtype=torch.float64), B)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 5, 4, 7), (2, 9, 2, 3, 4), (2, 6, 6), (1, 2, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_norm_is_below_the_largest_singular_value_or_far_above(shape, dtype, rng):
    columns = torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)
    truth = torch.linalg.matrix_norm(columns.double().movedim(1, -2), 2)
    found = block_norms(columns)
    assert found.shape == truth.shape
    assert found.dtype == dtype
    assert (found >= truth * (1 - 1e-6 * (dtype == torch.float32))).all()
    assert (found <= 1.03 * truth).all()


@pytest.mark.parametrize("size", [0.0, 1e-170, 1e-30, 1e30, 1e170])
def test_blocks_of_any_size_are_bounded_beside_others(size, rng):
    columns = torch.randn(2, 6, 3, 5, generator=rng, dtype=torch.float64)
    columns[1, :, 2] *= size
    truth = torch.linalg.matrix_norm(columns.movedim(1, -2), 2)
    found = block_norms(columns)
    assert (found >= truth).all()
    assert (found <= 1.03 * truth).all()


def test_equal_singular_values_lose_nothing_to_rounding(rng):
    Q, _R = torch.linalg.qr(torch.randn(64, 64, generator=rng, dtype=torch.float64))
    assert float(block_norms(Q[None])) >= 1.0


def test_a_number_that_is_none_stays_none():
    columns = torch.ones(1, 2, 1, 2, dtype=torch.float64)
    columns[0, 0, 0, 0] = torch.nan
    assert not bool(block_norms(columns) < torch.inf)


@pytest.mark.parametrize("r", [1, 2, 7, 64])
def test_no_norm_of_a_form_is_below_its_largest_eigenvalue_or_far_above(r, rng):
    H = torch.randn(50, r, r, generator=rng, dtype=torch.float64)
    H, some = H + H.mT, torch.randn(50, r, 1, generator=rng, dtype=torch.float64)
    Q, _R = torch.linalg.qr(H)
    alike = Q @ torch.diag(torch.ones(r).double() - 2 * (torch.arange(r) % 2)) @ Q.mT
    H = torch.cat((H, some @ some.mT, alike, torch.zeros(1, r, r).double()))
    found, truth = form_norms(H), torch.linalg.eigvalsh(H).abs().amax(-1)
    assert (found >= truth * (1 - 1e-14)).all()
    assert (found <= 1.05 * truth).all()
    assert form_norms(torch.full((1, r, r), torch.nan, dtype=torch.float64)).isnan().all()
