import json
import math

import pytest
import torch
from draws import gaussian, number
from safetensors import safe_open
from theory.bounds_by_name import LOWERS_WITH_N, LOWERS_WITHOUT_N, WITH_N, WITHOUT_N, bound
from theory.example_layers import LAYERS, form, rotation, with_mask
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import ContradictionError
from howsmooth.theory.results import Bound, BoundsTable, Bracket, Side, lower_bound, safe_digits, upper_bound

EPS = torch.finfo(torch.float64).eps
EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "side", "text"),
    [
        (2.0, Side.UPPER, "2"),
        (2.00001, Side.UPPER, "2.0001"),
        (2.00009, Side.LOWER, "2"),
        (123456.0, Side.LOWER, "123,450"),
        (123456.0, Side.UPPER, "123,460"),
        (0.0012345678, Side.UPPER, "0.0012346"),
        (0.0, Side.UPPER, "0"),
        (3.67231e12, Side.UPPER, "3.6724·10¹²"),
        (9.99999e9, Side.LOWER, "9.9999·10⁹"),
    ],
)
def test_digits_round_to_the_safe_side(value, side, text):
    assert safe_digits(value, 0.0, side) == text


def test_a_bound_beyond_the_largest_float_is_a_power_of_ten():
    bound = hs.bounds.mean_field_upper(hs.Attention.single_head(A=EYE, V=EYE), radius=math.sqrt(1000))
    assert bound.value == math.inf
    assert bound.log_value == pytest.approx(2000 + math.log(3001))
    assert bound.digits == "10⁸⁷³"
    assert json.loads(bound.to_json())["value"] is None


def test_bounds_say_what_they_are():
    assert repr(upper_bound(0.0, "name", "somewhere", "a theorem")) == "Bound: Lip ≤ 1 on somewhere (a theorem)"
    assert "≥ 1 on" in repr(lower_bound(0.0, "name", "somewhere", "a theorem"))


def test_a_ladder_goes_from_the_lowest_lower_bound_to_the_highest_upper_one():
    ladder = hs.bounds.table(hs.Attention.single_head(A=-EYE, V=EYE), n=20, radius=2.0)
    sides = [bound.side for bound in ladder.bounds]
    assert sides == sorted(sides, key=[Side.LOWER, Side.UPPER].index)
    for side in Side:
        logs = [bound.log_value for bound in ladder.bounds if bound.side is side]
        assert logs == sorted(logs)
    assert ladder.lower.value < ladder.upper.value
    assert ladder.lower.name == "sharp_lower"
    assert not ladder.refused
    assert len(repr(ladder).splitlines()) == len(ladder.bounds)
    assert json.loads(ladder.to_json())["bounds"][0]["side"] == "lower"


def test_a_ladder_says_what_does_not_apply():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    ladder = hs.bounds.table(hs.Attention.single_head(A=turn, V=EYE, causal=True), n=20, radius=2.0)
    assert [(refusal.name, "sharp_lower" in refusal.reason) for refusal in ladder.refused] == [("discrete_lower", True)]
    assert "masked_mean_field_upper" in [bound.name for bound in ladder.bounds]


def test_a_witness_is_saved_whole(tmp_path):
    witness = hs.inputs.tied_pair(hs.Attention.single_head(A=-EYE, V=EYE), 5, 1.0)
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
    assert BoundsTable.from_json(ladder.to_json()) == ladder


@pytest.mark.slow
def test_a_table_that_looks_at_fewer_heads_is_no_higher(rng):
    layer = hs.Attention.random(heads=3, d=6, dtype=torch.float64, seed=rng)
    whole, quick = (hs.bounds.table(layer, n=9, radius=3.0, heads=heads) for heads in (None, 1))
    assert quick.lower.value <= whole.lower.value * (1 + 1e-12)
    assert quick.upper == whole.upper
    assert hs.bounds.sharp_lower(layer, n=9, radius=3.0, heads=3) == hs.bounds.sharp_lower(layer, n=9, radius=3.0)


def test_results_show_themselves():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    witness, ladder = hs.inputs.tied_pair(f, 5, 1.0), hs.bounds.table(f, n=5, radius=1.0)
    assert "tied pair" in repr(witness)
    assert "Lip" in witness._repr_html_()
    assert "<table>" in ladder._repr_html_()
    assert "sharp_upper" in repr(ladder)


@pytest.mark.parametrize("name", WITH_N + WITHOUT_N + LOWERS_WITH_N + LOWERS_WITHOUT_N)
def test_a_bound_carries_its_side_its_name_and_its_theorem(name):
    f = with_mask(form(-torch.eye(2).double()), name.startswith("masked"))
    b = bound(name, f, n=10, radius=1.1)
    assert b.side.name.lower() == name.rsplit("_", 1)[1]
    assert b.name == name
    assert b.source
    assert b.domain
    assert b.confidence == 1.0
    assert isinstance(b.value, float)
    assert_close(number(b.log_value), number(math.log(b.value)))
    assert json.loads(b.to_json())["value"] == b.value


@pytest.mark.parametrize("radius", [1e-6, 1.0, 40.0, 1e4])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_table_is_sorted_and_brackets_the_constant(rng, radius, causal):
    f = with_mask(form(gaussian(rng, 3, 3), gaussian(rng, 3, 3)), causal)
    ladder = hs.bounds.table(f, n=40, radius=radius)
    sides = [b.side.name for b in ladder.bounds]
    assert sides == sorted(sides)  # LOWER before UPPER
    for side in ("LOWER", "UPPER"):
        logs = [b.log_value for b in ladder.bounds if b.side.name == side]
        assert logs == sorted(logs)
    assert ladder.lower.log_value <= ladder.upper.log_value
    names = [b.name for b in ladder.bounds] + [r.name for r in ladder.refused]
    assert len(set(names)) == len(names)
    assert {*WITH_N, "sharp_lower"} <= {b.name for b in ladder.bounds}
    assert all(r.reason for r in ladder.refused)
    assert "sharp_upper" in repr(ladder)
    assert json.loads(ladder.to_json())["bounds"]


def test_the_table_holds_what_the_functions_say_and_names_what_they_refuse(rng):
    f = form(rotation(4), gaussian(rng, 4, 4))  # no real eigenvalue
    ladder = hs.bounds.table(f, n=20, radius=0.9)
    for rung in ladder.bounds:
        assert_close(number(rung.value), number(bound(rung.name, f, n=20, radius=0.9).value))
    assert "discrete_lower" in {r.name for r in ladder.refused}


@pytest.mark.slow
def test_the_table_of_a_layer_has_an_upper_end(rng):
    for kind in ("mixed heads", "query bias", "causal rotary"):
        f = LAYERS[kind](rng)
        assert math.isfinite(hs.bounds.table(f, n=5, radius=2.0).upper.value)


def test_results_are_written_down(rng, tmp_path):
    from safetensors.torch import load_file

    f = form(-torch.eye(2).double())
    bracket = hs.bracket(f, n=6, radius=3.0)
    data = json.loads(bracket.to_json())
    assert data["ratio"] == bracket.ratio
    assert data["lower"]["value"] == bracket.lower.value
    bracket.lower.save(tmp_path / "witness.safetensors")
    loaded = load_file(tmp_path / "witness.safetensors")
    assert_close(loaded["tokens"], bracket.lower.tokens)
    attained = f.jacobian(loaded["tokens"]).jvp(loaded["direction"]).norm()
    assert_close(attained, bracket.lower.measured.lower)


def witness_of(value: float, dtype: torch.dtype = torch.float64) -> hs.Witness:
    """A stored input whose constant is ``value``."""
    measured = hs.spectral_norm(hs.maps.Dense(torch.full((1, 1), value, dtype=dtype)))
    return hs.Witness(tokens=torch.zeros(1, 1, dtype=dtype), measured=measured, name="ascent", domain="a ball")


def test_a_bracket_whose_input_exceeds_its_theorem_is_a_bug_to_report():
    upper = upper_bound(math.log(2.7071), "sharp_upper", "a ball", "a theorem")
    with pytest.raises(ContradictionError, match=r"the bracket on a ball .* at least 5\.0565.*bug of howsmooth"):
        Bracket(lower=witness_of(5.0565), upper=upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_that_are_equal_but_for_rounding_become_equal(dtype):
    lower = witness_of(3.0, dtype)
    below = upper_bound(math.log(3.0 * (1 - 4 * torch.finfo(dtype).eps)), "sharp_upper", "a ball", "a theorem")
    assert below.value < lower.value
    bracket = Bracket(lower=lower, upper=below)
    assert bracket.upper.value == lower.value
    assert bracket.ratio >= 1 - 1e-15


def test_upper_bounds_are_widened_by_the_rounding_of_their_logarithm_and_lower_ones_are_not():
    for log_value in (-50.0, 3.0, 600.0):
        upper, lower = upper_bound(log_value, "x", "", ""), lower_bound(log_value, "x", "", "")
        assert lower.value == math.exp(log_value)
        assert upper.value == pytest.approx(math.exp(log_value) * (1 + 2 * EPS * abs(log_value)), rel=1e-16)
        assert upper.value >= math.exp(log_value) * (1 + 1.5 * EPS * abs(log_value))
    for log_value, value in ((-math.inf, 0.0), (math.inf, math.inf), (2000.0, math.inf)):
        again = Bound.from_dict(json.loads(upper_bound(log_value, "x", "", "").to_json()))
        assert (again.value, again.log_value) == (value, log_value)


def test_the_ratio_of_a_bracket_is_upper_over_lower_and_infinite_where_nothing_is_attained():
    f = form(-EYE)
    for n, radius in ((3, 0.5), (40, 2.0)):
        found = hs.bracket(f, n=n, radius=radius)
        assert found.ratio == pytest.approx(found.upper.value / found.lower.value)
    still = hs.bracket(form(EYE, 0 * EYE), n=3, radius=1.0)
    assert still.ratio == math.inf
