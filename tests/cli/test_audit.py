"""``howsmooth audit``, and kinds of attention on the command line, as a new user would call them."""

import json
import math

import numpy as np
import pytest

LAYERS = """
import torch
from torch import nn


def twice():
    return lambda X: 2 * X


def module():
    layer = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(2 * torch.eye(3))
    return layer


def nothing():
    return 3


def broken():
    raise ValueError("no layer today")


number = 5
"""


@pytest.fixture
def layers(tmp_path):
    path = tmp_path / "layers.py"
    path.write_text(LAYERS, encoding="utf-8")
    return str(path)


QUICK = ("-n", "2", "--radius", "1", "--steps", "2", "--starts", "1")


def test_a_claim_that_fails_is_a_finding_and_its_input_is_kept(howsmooth, layers, tmp_path):
    done = howsmooth("audit", f"{layers}:module", "--claimed", "1.5", *QUICK)
    assert done.code == 1, done.err
    assert done.out.startswith("refuted: 1.9999 at")
    assert (tmp_path / "module-refuted.safetensors").is_file()


def test_a_claim_is_audited_in_its_metric(howsmooth, layers):
    done = howsmooth("audit", f"{layers}:twice", "--claimed", "2.5", "--d", "3", "--metric", "token", "--json", *QUICK)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["metric"] == "token"
    assert found["largest"] == pytest.approx(2.0, rel=1e-3)
    done = howsmooth("audit", f"{layers}:twice", "--claimed", "2.5", "--d", "3", "--metric", "relative", *QUICK)
    assert done.code == 2
    assert "in one metric: total, token, entries, sum or hs.metrics.weighted" in done.err


def test_a_claim_that_holds_is_not_refuted_and_nothing_is_kept(howsmooth, layers, tmp_path):
    done = howsmooth("audit", f"{layers}:twice", "--claimed", "2.5", "--d", "3", *QUICK)
    assert done.code == 0, done.err
    assert done.out.startswith("not refuted: largest found")
    assert not list(tmp_path.glob("*.safetensors"))


def test_json_is_all_there_is(howsmooth, layers):
    done = howsmooth("audit", f"{layers}:module", "--claimed", "1", "--json", *QUICK)
    found = json.loads(done.out)
    assert (done.code, found["refuted"], found["n"]) == (1, True, 2)


@pytest.mark.parametrize(
    ("code", "more", "message"),
    [
        ("{}:nothing", ("--d", "3"), "must give a map, a module or a callable on tensors, got int"),
        ("{}:number", (), "got int"),
        ("{}:broken", (), "no layer today"),
        ("{}:twcie", (), "did you mean twice?"),
        ("{}", (), "name code as FILE.py:NAME"),
        ("absent.py:layer", (), "there is no file 'absent.py'"),
        ("layer.txt:layer", (), "code is a .py file"),
        ("{}:twice", (), "dimension of a token"),
        ("{}:twice", ("--d", "0"), "--d must be at least 1"),
        ("{}:twice", ("--claimed", "0"), "--claimed must be positive"),
        ("{}:twice", ("--claimed", "nan"), "--claimed must be positive"),
        ("{}:twice", ("--claimed", "much"), "Invalid value for '--claimed'"),
        ("{}:twice", ("--steps", "-1"), "--steps must be at least 0"),
        ("{}:twice", ("--save", "kept.txt"), "--save writes a .safetensors file"),
        ("{}:module", ("--d", "5"), "does not work on inputs of the shape (2, 5)"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(howsmooth, layers, code, more, message):
    done = howsmooth("audit", code.format(layers), "--claimed", "1", *QUICK, *more)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not done.out


def test_a_file_that_is_no_python_is_told(howsmooth, tmp_path):
    (tmp_path / "bad.py").write_text("def (", encoding="utf-8")
    done = howsmooth("audit", "bad.py:layer", "--claimed", "1", *QUICK)
    assert (done.code, "is no Python" in done.err) == (2, True)


@pytest.fixture
def head(tmp_path):
    path = tmp_path / "head.npz"
    np.savez(path, A=-np.eye(1), V=np.eye(1))
    return str(path)


def test_every_kind_of_attention_can_be_split(howsmooth, head, tmp_path):
    atoms = tmp_path / "atoms.json"
    atoms.write_text('{"points": [[-5.3], [-0.5]], "weights": [0.5, 0.5]}', encoding="utf-8")
    done = howsmooth("split", "--kind", "l2", head, "--measure", str(atoms))
    assert done.code == 0, done.err
    assert done.out.startswith("The measure does not split")
    done = howsmooth("split", "--kind", "sigmoid", "--map-1d", "A=-1")
    assert done.out == "18.3 % of the pairs in [−6, 6]² split (A = −1, V = 1, sigmoid)\n"


def test_bounds_of_another_kind_are_printed(howsmooth, head):
    done = howsmooth("bounds", "--kind", "l2-tied", head, "-n", "4", "-r", "2")
    assert done.code == 0, done.err
    assert "Kim's bound" in done.out
    assert "≤ Lip ≤" in done.out


def test_a_value_bias_widens_the_bound_of_the_softmax_that_is_off_by_one(howsmooth, tmp_path):
    one, path = np.ones((1, 1, 1)), str(tmp_path / "biased.npz")
    np.savez(path, query=one, key=one, value=one, value_bias=np.full((1, 1), 10.0))
    done = howsmooth("bounds", "--kind", "off-by-one", path, "-n", "1", "-r", "1")
    assert done.code == 0, done.err
    assert done.out.startswith("5.0565 ≤ Lip ≤ 10.39 on 1 token")  # attained at x = 1; without the bias it was 2.7072


@pytest.mark.parametrize("command", ["split", "bounds", "worst-case", "regimes"])
def test_a_kind_that_is_not_known_is_refused(howsmooth, head, command):
    done = howsmooth(command, "--kind", "l3", head)
    assert (done.code, done.out) == (2, "")
    assert "no kind of attention called 'l3'; did you mean l2" in done.err


@pytest.mark.parametrize("kind", [("linear",), ("sigmoid", "--count", "4")])
def test_regimes_of_another_kind_are_searched(howsmooth, head, kind):
    done = howsmooth("regimes", "--kind", *kind, head, "--radius", "1", "--lengths", "3")
    assert done.code == 0, done.err
    first, row = done.out.splitlines()
    assert first.startswith("At n = 3 the largest constant found is ")
    assert row.startswith("n = 3   ")
    assert "≤ Lip ≤" in row


def test_regimes_say_how_the_largest_constant_grows(howsmooth, head):
    asked = ("regimes", head, "--radius", "2", "--lengths", "4,16")
    few, many = (row["found"] for row in json.loads(howsmooth(*asked, "--json").out)["rows"])
    last = howsmooth(*asked).out.splitlines()[-1]
    assert last == f"From n = 4 to 16 the largest found grows like n^{math.log(many / few, 4):.2f}."
    late = howsmooth("regimes", head, "--radius", "2", "--lengths", "3,4,16").out.splitlines()[-1]
    assert late.endswith(f", from 4 on like n^{math.log(many / few, 4):.2f}.")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--kind", "sigmoid"), "counts tokens; give --count"),
        (("--kind", "sparsemax"), "counts tokens; give --count"),
        (("--kind", "l2", "--count", "4"), "does not count tokens; leave --count out"),
        (("--count", "4"), "does not count tokens; leave --count out"),
        (("--kind", "sigmoid", "--count", "0"), "--count must be positive and finite"),
        (("--kind", "l2", "--causal"), "does not cover a causal mask"),
    ],
)
def test_regimes_say_what_they_need_of_a_kind(howsmooth, head, more, message):
    done = howsmooth("regimes", head, "--radius", "1", "--lengths", "3", *more)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
