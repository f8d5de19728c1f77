"""Spectral norms of many blocks and forms, against singular values."""

import pytest
import torch

from howsmooth.certificates.blocks import block_norms, form_norms


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
