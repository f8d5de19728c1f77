"""Ranges of linear and quadratic functions on a box, against all corners."""

import itertools

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import gaussian

from howsmooth.maps.affine import Affine
from howsmooth.rounding import RANGE_SHARE
from howsmooth.verification import box_symbols
from howsmooth.verification.box_symbols import BoxSymbols, _weights


def corners(size):
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=size)), dtype=torch.float64)


def form_with(rng, symbols, free, rank=None):
    r = symbols.coordinates + free
    if rank is not None:
        factor = gaussian(rng, r, rank)
        return factor @ factor.mT
    H = gaussian(rng, r, r)
    return H + H.mT


def values(symbols, H, xi, free):
    m = xi.shape[1] - free
    blocks = xi[:, :m].unflatten(1, (symbols.generators.shape[0], -1))
    y = torch.einsum("bcs,kbs->kbc", symbols.generators, blocks).flatten(1)
    full = torch.cat([y, xi[:, m:]], 1)
    return torch.einsum("kr,rs,ks->k", full, H, full)


@pytest.mark.parametrize("free", [0, 2])
@pytest.mark.parametrize("rank", [None, 1, 3, 9])  # nine are more than all coordinates: the form is definite
def test_no_corner_exceeds_the_range_of_a_form(rng, free, rank):
    symbols = BoxSymbols(gaussian(rng, 2, 3, 4))
    for _draw in range(8):
        H = form_with(rng, symbols, free, rank) * (-1) ** _draw
        found = values(symbols, H, corners(8 + free), free)
        below, above = symbols.quadratic_range(H[None])
        assert -below.item() <= found.min().item()
        assert found.max().item() <= above.item()
        # inside the box a form may be zero, so that both ends are on their side of it
        assert below.item() >= 0
        assert above.item() >= 0


def test_the_range_of_a_product_with_itself_is_attained(rng):
    symbols = BoxSymbols(gaussian(rng, 1, 5, 7))
    f = gaussian(rng, 5)
    _below, above = symbols.quadratic_range((f[:, None] * f)[None])
    assert above.item() == pytest.approx(symbols.linear_range(f).item() ** 2, rel=5e-3)


def test_forms_in_many_directions_are_far_below_the_sum_of_their_entries(rng):
    symbols = BoxSymbols(gaussian(rng, 1, 40, 200))
    H = form_with(rng, symbols, 0)
    entries = symbols.generators[0].mT @ H @ symbols.generators[0]
    below, above = symbols.quadratic_range(H[None])
    assert max(below.item(), above.item()) < 0.4 * entries.abs().sum().item()


def test_the_range_of_a_linear_function_is_attained_at_a_corner(rng):
    symbols = BoxSymbols(gaussian(rng, 2, 2, 3))
    f = gaussian(rng, 6)
    f[4:] = torch.tensor([0.5, -3.0])
    blocks = torch.einsum("bcs,kbs->kbc", symbols.generators, corners(6).unflatten(1, (2, 3))).flatten(1)
    largest = (blocks @ f[:4]).max() + 3.5
    # but for what is added for rounding errors
    assert_close(symbols.linear_range(f), largest * (1 + RANGE_SHARE), rtol=1e-14, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_rounding_may_take_is_added_on_both_sides(sign, monkeypatch):
    monkeypatch.setattr("howsmooth.verification.box_symbols.RANGE_SHARE", 0.25)
    symbols = BoxSymbols(torch.tensor([[[2.0]]], dtype=torch.float64))
    ends = symbols.quadratic_range(torch.tensor([[[sign * 3.0]]], dtype=torch.float64))
    below, above = ends[::sign]
    assert above.item() == pytest.approx(1.25 * 12)
    assert below.item() == 0


@pytest.mark.parametrize("entry", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_has_no_range(rng, entry):
    symbols = BoxSymbols(gaussian(rng, 2, 3, 4))
    H = form_with(rng, symbols, 1)
    H[0, 0] = entry
    for found in symbols.quadratic_range(torch.stack((H, H))):
        assert (found == torch.inf).all()


def test_blocks_without_inputs_and_rows_of_zeros_have_ranges_too(rng):
    symbols = BoxSymbols(torch.stack((torch.zeros(3, 4).double(), gaussian(rng, 3, 4))))
    alone = BoxSymbols(symbols.generators[1:])
    H = form_with(rng, symbols, 0)
    assert_close(symbols.quadratic_range(H[None]), alone.quadratic_range(H[None, 3:, 3:]), rtol=1e-2, atol=0)
    # rounding may leave the square of a row norm below zero
    assert (_weights(torch.tensor([[-1e-20, 4.0], [0.0, 0.0]]).double()) > 0).all()


@pytest.mark.parametrize("shared", [False, True])
def test_tokens_are_what_their_coordinates_say(rng, shared):
    weight = gaussian(rng, 4, 2, 1, 6)
    weight[0] = 0  # a class token
    weight[1, :, :, 2:] = weight[2, :, :, :4] = 0
    # the last token shares no input, or one with each of the others and none with both
    weight[3, :, :, [0, 5] if shared else [0, 1, 4, 5]] = 0
    widths = gaussian(rng, 6).abs()
    symbols, derivative = BoxSymbols.of(Affine(weight=weight, bias=gaussian(rng, 4, 2)), widths)
    assert len(symbols.generators) == (1 if shared else 3)
    f = gaussian(rng, 4, 2)
    pulled = torch.einsum("nd,ndr->r", f, derivative)
    on_inputs = torch.einsum("nd,ndm->m", f, weight[:, :, 0] * widths)
    assert_close(symbols.pixels(pulled), on_inputs if shared else on_inputs[[0, 1, 4, 5, 2, 3]])


@pytest.mark.parametrize("size", [1e-100, 1e-20, 1e20, 1e100])
def test_ranges_scale_with_their_forms(rng, size):
    symbols = BoxSymbols(gaussian(rng, 2, 3, 4))
    H = form_with(rng, symbols, 1)[None]
    for small, large in zip(symbols.quadratic_range(H), symbols.quadratic_range(size * H), strict=True):
        assert_close(large, size * small, rtol=1e-6, atol=0)


def test_a_form_of_zeros_has_no_range(rng):
    symbols = BoxSymbols(gaussian(rng, 2, 3, 4))
    below, above = symbols.quadratic_range(torch.zeros(1, 7, 7, dtype=torch.float64))
    assert below.item() <= 1e-100
    assert above.item() <= 1e-100


@pytest.mark.parametrize("free", [0, 3])
def test_kept_products_of_generators_change_no_range(rng, monkeypatch, free):
    generators = gaussian(rng, 2, 5, 7)
    H = torch.stack([form_with(rng, BoxSymbols(generators), free) for _ in range(3)])
    kept = BoxSymbols(generators)
    assert kept._pairs is not None
    found = kept.quadratic_range(H)
    monkeypatch.setattr(box_symbols, "PAIRS", 0)
    direct = BoxSymbols(generators)
    assert direct._pairs is None
    assert_close(found, direct.quadratic_range(H))
    # both against the definition
    D, w = gaussian(rng, 3, 2, 5, 5), gaussian(rng, 3, 2, 7).abs()
    D = D + D.mT
    for symbols in (kept, direct):
        assert_close(symbols._diagonal(D), torch.einsum("bcs,fbcd,bds->fbs", generators, D, generators))
        assert_close(symbols._weighted_gram(w), torch.einsum("bcs,fbs,bds->fbcd", generators, w, generators))
