import json
import math

import pytest
import torch
from safetensors import safe_open

import howsmooth as hs
from howsmooth.theory.results import Ladder, Side, lower_bound, safe_digits, upper_bound

EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "side", "text"),
    [
        (2.0, Side.UPPER, "2.0000"),
        (2.00001, Side.UPPER, "2.0001"),
        (2.00009, Side.LOWER, "2.0000"),
        (123456.0, Side.LOWER, "123450"),
        (123456.0, Side.UPPER, "123460"),
        (0.0012345678, Side.UPPER, "0.0012346"),
        (0.0, Side.UPPER, "0"),
        (3.67231e12, Side.UPPER, "3.6724e12"),
        (9.99999e9, Side.LOWER, "9.9999e9"),
    ],
)
def test_digits_round_to_the_safe_side(value, side, text):
    assert safe_digits(value, 0.0, side) == text


def test_a_bound_beyond_the_largest_float_is_a_power_of_ten():
    bound = hs.bounds.mean_field_upper(hs.Attention.single_head(A=EYE, V=EYE), radius=math.sqrt(1000))
    assert bound.value == math.inf
    assert bound.log_value == pytest.approx(2000 + math.log(3001))
    assert bound.digits == "10^873"
    assert json.loads(bound.to_json())["value"] is None


def test_bounds_say_what_they_are():
    assert repr(upper_bound(0.0, "name", "somewhere", "a theorem")) == "Bound: Lip ≤ 1.0000 on somewhere (a theorem)"
    assert "≥ 1.0000" in repr(lower_bound(0.0, "name", "somewhere", "a theorem"))


def test_a_ladder_goes_from_the_lowest_lower_bound_to_the_highest_upper_one():
    ladder = hs.bounds.table(hs.Attention.single_head(A=-EYE, V=EYE), n=20, radius=2.0)
    sides = [bound.side for bound in ladder.rungs]
    assert sides == sorted(sides, key=[Side.LOWER, Side.UPPER].index)
    for side in Side:
        logs = [bound.log_value for bound in ladder.rungs if bound.side is side]
        assert logs == sorted(logs)
    assert ladder.lower.value < ladder.upper.value
    assert ladder.lower.name == "sharp_lower"
    assert not ladder.refused
    assert len(repr(ladder).splitlines()) == len(ladder.rungs)
    assert json.loads(ladder.to_json())["bounds"][0]["side"] == "lower"


def test_a_ladder_says_what_does_not_apply():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    ladder = hs.bounds.table(hs.Attention.single_head(A=turn, V=EYE, causal=True), n=20, radius=2.0)
    assert [(refusal.name, "sharp_lower" in refusal.reason) for refusal in ladder.refused] == [("discrete_lower", True)]
    assert "masked_mean_field_upper" in [bound.name for bound in ladder.rungs]


def test_a_witness_is_saved_whole(tmp_path):
    witness = hs.extremal.tied_pair(hs.Attention.single_head(A=-EYE, V=EYE), 5, 1.0)
    witness.save(tmp_path / "w.safetensors", about={"model": "m", "layer": "3"})
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("tokens"), witness.tokens)
        assert json.loads(file.metadata()["witness"])["value"] == witness.value
        assert (file.metadata()["model"], file.metadata()["layer"]) == ("m", "3")
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    with pytest.raises(hs.errors.AssumptionError, match="safetensors"):
        witness.save(tmp_path / "w.npz")


@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e6])
def test_a_table_of_bounds_reads_back_whole_though_a_bound_exceed_the_largest_float(radius):
    ladder = hs.bounds.table(hs.Attention.single_head(A=-EYE, V=EYE), n=5, radius=radius)
    assert Ladder.from_json(ladder.to_json()) == ladder


def test_a_table_that_looks_at_fewer_heads_is_no_higher(rng):
    layer = hs.Attention.random(heads=3, d=6, dtype=torch.float64, generator=rng)
    whole, quick = (hs.bounds.table(layer, n=9, radius=3.0, heads=heads) for heads in (None, 1))
    assert quick.lower.value <= whole.lower.value * (1 + 1e-12)
    assert quick.upper == whole.upper
    assert hs.bounds.sharp_lower(layer, n=9, radius=3.0, heads=3) == hs.bounds.sharp_lower(layer, n=9, radius=3.0)


def test_results_show_themselves():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    witness, ladder = hs.extremal.tied_pair(f, 5, 1.0), hs.bounds.table(f, n=5, radius=1.0)
    assert "tied pair" in repr(witness)
    assert "Lip" in witness._repr_html_()
    assert "<table>" in ladder._repr_html_()
    assert "sharp_upper" in repr(ladder)
