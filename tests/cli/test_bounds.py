"""``howsmooth bounds`` and ``howsmooth worst-case``: what they answer."""

import json
import math
import os
import re
import resource
import shlex

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file

import howsmooth as hs
from howsmooth.cli.layer_bounds import bounds
from howsmooth.cli.printing import print_json
from howsmooth.cli.worst_case import worst_case
from howsmooth.theory.results import label_of
from howsmooth.wording import at_least

DOMAIN = ["--n", "4", "--radius", "2"]


@pytest.mark.slow
def test_bounds_answers_in_its_first_line_and_lists_all_bounds(howsmooth, head, matrices):
    result = howsmooth("bounds", *head, "--n", "16", "--radius", "2.5")
    assert (result.code, result.err) == (0, "")
    first, second, *rest = result.out.splitlines()
    low, high, ratio = re.fullmatch(
        r"(\S+) ≤ Lip ≤ (\S+) on 16 tokens in the ball of radius 2.5 \(ratio (\S+)\)", first
    ).groups()
    assert 1 <= float(high) / float(low) < float(ratio) + 0.01
    attention = hs.Attention.single_head(**matrices)
    assert second == repr(attention)
    table = hs.bounds.table(attention, n=16, radius=2.5)
    assert all(any(line.startswith(bound.label) for line in rest) for bound in table.bounds)
    assert all(any(line.startswith(label_of(refused.name)) for line in rest) for refused in table.refused)
    assert not any("sharp" in line.split("≤")[0] for line in rest)


@pytest.mark.slow
def test_the_rows_go_up_the_measured_value_stands_among_them_and_none_is_wider_than_the_terminal(howsmooth, head):
    lines = howsmooth("bounds", *head, "--n", "16", "--radius", "2").out.splitlines()
    rows = [match.groups() for line in lines if (match := re.match(r"\w.*? +([≥≤]) (\S+)  +(\w.*)", line))]
    assert len(rows) >= 4
    for side in "≥≤":
        values = [value for sign, value, _worth in rows if sign == side]
        numbers = [float(value.replace(",", "")) for value in values]
        assert numbers == sorted(numbers)
    measured = [worth.startswith("measured at a stored input") for _sign, _value, worth in rows]
    assert sum(measured) == 1
    assert rows[measured.index(True) + 1][0] == "≤" or not measured[-1]
    assert all(len(line.rstrip()) <= 80 for line in lines[1:])


@pytest.mark.slow
def test_bounds_as_json_is_json_and_nothing_else(howsmooth, head):
    result = howsmooth("bounds", *head, "--n", "4", "--radius", "2", "--causal", "--json")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out, parse_constant=pytest.fail)
    assert set(data) == {"bracket", "bounds", "refused", "n", "radius", "causal", "metric"}
    assert (data["n"], data["radius"], data["causal"]) == (4, 2.0, True)
    assert data["bracket"]["lower"]["value"] <= data["bracket"]["upper"]["value"]
    uppers = [bound["log_value"] for bound in data["bounds"] if bound["side"] == "upper"]
    assert math.isclose(min(uppers), data["bracket"]["upper"]["log_value"])
    assert howsmooth("bounds", *head, "--n", "4", "--radius", "2", "--causal", "--json").out == result.out


# scores of 10¹⁸ leave no digits behind the point, and the solver says so
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
@pytest.mark.parametrize("radius", ["1e-200", "1e9", "1e200"])
def test_numbers_beyond_a_float_never_reach_json(command, radius, howsmooth, head):
    result = howsmooth(command, *head, "--n", "3", "--radius", radius, "--json")
    assert "Traceback" not in result.err
    if result.code == 0:
        json.loads(result.out, parse_constant=pytest.fail)
    else:
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


def test_what_is_not_finite_becomes_null(capsys):
    print_json({"list": [math.inf, 1.0], "nested": {"nan": math.nan}, "text": "inf"})
    assert capsys.readouterr().out == '{"list": [null, 1.0], "nested": {"nan": null}, "text": "inf"}\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "n", "causal"),
    [
        ("bounds", "1", []),
        ("bounds", "2", ["--causal"]),
        ("bounds", "3", []),
        ("worst-case", "1", ["--causal"]),
        ("worst-case", "2", []),
        ("worst-case", "3", ["--causal"]),
    ],
)
def test_short_sequences_have_an_answer(command, n, causal, howsmooth, head):
    result = howsmooth(command, *head, "--n", n, "--radius", "1", *causal)
    assert (result.code, result.err) == (0, "")
    assert "Lip" in result.out.splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
@pytest.mark.parametrize("zero", ["A", "V", "both"])
def test_zero_matrices_have_an_answer(command, zero, howsmooth, matrices):
    np.savez("w.npz", **{name: x.numpy() * (zero not in (name, "both")) for name, x in matrices.items()})
    result = howsmooth(command, "w.npz", *DOMAIN, *(["--json"] if zero == "A" else []))
    assert (result.code, result.err) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_whole_layer_has_an_answer(command, howsmooth, layer):
    names = ("query", "key", "value", "output")
    np.savez("layer.npz", **{name: getattr(layer, name).numpy() for name in names})
    result = howsmooth(command, "layer.npz", *DOMAIN)
    assert (result.code, result.err) == (0, "")
    assert "heads=2" in result.out


def test_worst_case_says_how_near_the_proven_maximum_it_comes(howsmooth, head):
    result = howsmooth("worst-case", *head, "--n", "16", "--radius", "2")
    assert (result.code, result.err) == (0, "")
    first, *rest = result.out.splitlines()
    value, percent, most = re.fullmatch(r"Lip ≥ (\S+), at least (\S+) % of the proven maximum (\S+)", first).groups()
    # both ends are rounded away from each other, each in its last digit
    assert -0.01 < 100 * float(value) / float(most) - float(percent) < 0.2
    assert any(line.startswith("Input: ") for line in rest)
    assert any(line.startswith("Most sensitive: token") for line in rest)
    assert any(line.startswith("Most moved: ") for line in rest)


def test_both_commands_answer_in_the_metric_that_is_asked_for(howsmooth, head, matrices):
    attention = hs.Attention.single_head(**matrices)
    proven = hs.bounds.token_upper(attention, radius=2.0).value
    bounds, worst = (
        json.loads(howsmooth(command, *head, *DOMAIN, "--metric", "token", "--json").out)
        for command in ("bounds", "worst-case")
    )
    assert bounds["metric"] == worst["metric"] == "token"
    assert bounds["bracket"]["upper"]["value"] == pytest.approx(proven)
    assert 0 < worst["witness"]["value"] <= proven
    assert "on 4 tokens in the ball of radius 2" in howsmooth("bounds", *head, *DOMAIN, "--metric", "token").out
    for command in ("bounds", "worst-case"):
        refused = howsmooth(command, *head, *DOMAIN, "--metric", "sum")
        assert refused.code != 0
        assert "theorems on balls are about the metrics total, token" in refused.err
        assert "did you mean token" in howsmooth(command, *head, *DOMAIN, "--metric", "tokn").err


@pytest.mark.slow
def test_an_ascent_never_does_worse_and_repeats_with_its_seed(howsmooth, head):
    search = ["--search", "--steps", "3", "--starts", "1", "--seed", "3"]
    plain = json.loads(howsmooth("worst-case", *head, *DOMAIN, "--json").out)
    found = howsmooth("worst-case", *head, *DOMAIN, *search, "--json")
    assert (found.code, found.err) == (0, "")
    assert plain["witness"]["value"] <= json.loads(found.out)["witness"]["value"]
    assert 0 < json.loads(found.out)["share"] <= 1
    spoken = howsmooth("worst-case", *head, *DOMAIN, *search).out
    assert f"Lip ≥ {at_least(json.loads(found.out)['witness']['value'])}, " in spoken  # the same again
    assert "3 steps of ascent from" in spoken


@pytest.mark.slow
def test_bounds_can_search_too(howsmooth, head):
    plain, found = (
        json.loads(howsmooth("bounds", *head, *DOMAIN, "--json", *search).out)["bracket"]["lower"]["value"]
        for search in ([], ["--search"])
    )
    assert plain <= found * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_the_saved_input_attains_the_value(command, howsmooth, head, matrices):
    result = howsmooth(command, *head, *DOMAIN, "--save", "w.safetensors", "--json")
    assert "w.safetensors" in result.err
    data = json.loads(result.out)
    witness = data["witness"] if command == "worst-case" else data["bracket"]["lower"]
    measured = hs.local_lipschitz(hs.Attention.single_head(**matrices), load_file("w.safetensors")["tokens"])
    assert float(measured.upper) >= witness["value"] * (1 - 1e-6)
    with safe_open("w.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["witness"]) == witness
    assert sorted(os.listdir()) == ["head.safetensors", "w.safetensors"]


@pytest.mark.slow
def test_where_the_input_is_saved_is_said_last(howsmooth, head):
    spoken = howsmooth("worst-case", *head, "-n", "2", "-r", "1", "--save", "w.safetensors")
    assert spoken.out.splitlines()[-1].endswith("to w.safetensors.")


@pytest.mark.slow
def test_a_disk_that_is_full_costs_the_file_but_not_the_answer(howsmooth, head):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        result = howsmooth("bounds", *head, *DOMAIN, "--save", "w.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.code == 2
    assert "≤ Lip ≤" in result.out
    assert result.err.count("\n") == 1
    assert "'w.safetensors' could not be written" in result.err
    assert os.listdir() == ["head.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [bounds, worst_case], ids=["bounds", "worst-case"])
def test_the_example_of_the_help_runs(command, howsmooth):
    (example,) = re.findall(r"Example: howsmooth (.*)", command.__doc__)
    result = howsmooth(*shlex.split(example))
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_the_help_shows_the_example_on_one_line(command, howsmooth):
    result = howsmooth(command, "--help")
    assert result.code == 0
    assert re.search(rf" Example: howsmooth {command} .*\d *\n", result.out)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_layer_of_a_model_stands_in_place_of_files(command, howsmooth):
    result = howsmooth(command, "minilm", "--layer", "2", "--map", "head:1", "-n", "9", "-r", "3", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    bound = found["upper"] if command == "worst-case" else found["bracket"]["upper"]
    head = hs.load("minilm").layers[2].map("head:1")
    assert bound["value"] == pytest.approx(hs.bounds.smallest_upper(head, n=9, radius=3.0).value, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("minilm",), "'minilm' is a model; say which of its layers with --layer"),
        (("--layer", "2"), "--layer is that of a model; name the model first"),
        (("A.npz", "--layer", "2"), "--layer is that of a model; name the model first"),
        (("minilm", "--layer", "2", "--causal", "--scale", "2"), "its own weights; leave out --scale and --causal"),
        (("minlm", "--layer", "2"), "did you mean minilm"),
        pytest.param(("minilm", "--layer", "6"), "has the layers 0 to 5, got 6", marks=pytest.mark.slow),
        (("--family", "bert"), "--family is that of a model; name a model and its --layer"),
        (("minilm", "--layer", "2", "--family", "brt"), "there is no family 'brt'; did you mean bert"),
        (("minilm", "--layer", "2", "--map", "residual"), "theorems are about attention alone"),
        (("minilm", "--layer", "2", "--map", "hats"), "map must be one of"),
    ],
)
def test_a_layer_that_is_not_there_is_refused_in_one_sentence(arguments, said, howsmooth):
    result = howsmooth("bounds", *arguments, "-n", "9", "-r", "3")
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1
