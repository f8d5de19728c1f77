"""Blocks alone and together: products, gaps, and what is left of them in an unfinished run."""

import math

import pytest
from drawn import piece, pieces

from howsmooth.studies.runs.composition import compositions, large


def test_the_product_is_that_of_the_blocks_up_to_each_layer_and_the_gap_what_it_is_too_large_by():
    (found,) = compositions(pieces())
    assert [depth.block for depth in found.depths] == pytest.approx([4.0, 10.0, 5.0])
    assert [10**depth.log_product for depth in found.depths] == pytest.approx([4.0, 40.0, 200.0])
    assert [depth.to for depth in found.depths] == pytest.approx([4.0, 6.0, 7.0])
    assert [10**depth.log_gap for depth in found.depths] == pytest.approx([1.0, 40 / 6, 200 / 7])
    assert [depth.onward for depth in found.depths] == pytest.approx([7.0, 9.0, 5.0])
    assert {depth.typical_to.value for depth in found.depths} == {0.5}


def test_means_are_geometric_so_that_the_product_of_means_is_the_mean_of_products():
    (found,) = compositions([*pieces((1.0, 2.0, 3.0)), *pieces((4.0, 8.0, 27.0), w=1)])
    assert found.windows == 2
    assert 10 ** found.depths[-1].log_product == pytest.approx(math.sqrt(6.0 * 864.0))


def test_models_and_lengths_are_told_apart_the_shortest_first():
    records = [*pieces(length=32), *pieces(length=8), *pieces(model="other")]
    assert [(c.model, c.length) for c in compositions(records)] == [("minilm", 8), ("minilm", 32), ("other", 16)]


def test_products_beyond_every_float_are_written():
    (found,) = compositions(pieces((1e200,) * 3))
    assert found.depths[-1].log_product == pytest.approx(600)
    assert found.depths[-1].cells["product"] == "1·10⁶⁰⁰"
    assert "multiply to 1·10⁶⁰⁰" in found.sentence
    assert large(-1e4) == "1·10⁻¹⁰⁰⁰⁰"


def test_an_unfinished_model_is_known_up_to_the_first_layer_that_lacks_something():
    records = [record for record in pieces() if record.ask.map != "to:1"]
    (found,) = compositions(records)
    assert [depth.layer for depth in found.depths] == [0]
    assert compositions([piece(1, "block", lower=2.0)]) == []


def test_a_block_that_moves_nothing_makes_the_product_zero():
    (found,) = compositions(pieces((4.0, 0.0, 5.0), together=(4.0, 0.0, 0.0)))
    assert found.depths[-1].cells["product"] == "0"


def test_it_shows_itself():
    (found,) = compositions(pieces())
    lines = repr(found).splitlines()
    assert lines[0] == "minilm as a whole on alice, 1 window of 16 tokens"
    assert lines[1].split()[:3] == ["layer", "block", "product"]
    assert lines[-1].split()[:4] == ["2", "5", "200", "7"]
    assert found._repr_html_().count("<tr>") == 4
    assert found.sentence == (
        "At 16 tokens the constants of the 3 blocks of minilm multiply to 200; through the whole model the worst "
        "perturbation grows 7-fold."
    )
