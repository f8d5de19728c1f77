"""``howsmooth bounds`` and ``howsmooth worst-case``: good files are read, bad ones end in one sentence."""

import json
import math
import os
import random
import re
import shlex
import subprocess
import sys

import jaxtyping
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.cli.bounds import bounds, print_json
from howsmooth.cli.matrices import Weights, read_matrix
from howsmooth.cli.worst_case import worst_case
from howsmooth.errors import HowsmoothError

DOMAIN = ["--n", "6", "--radius", "2"]


@pytest.fixture
def matrices(rng):
    """A head of the theory: A = −I bent a little, and a rectangular V."""
    A = -torch.eye(4, dtype=torch.float64) + 0.1 * torch.randn(4, 4, dtype=torch.float64, generator=rng)
    return {"A": A, "V": torch.randn(3, 4, dtype=torch.float64, generator=rng)}


@pytest.fixture
def layer(rng):
    """Two heads of four dimensions on tokens of eight."""
    return hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)


def numpy_of(tensors):
    return {name: x.numpy() for name, x in tensors.items()}


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def same_maps(f, g):
    tokens = torch.randn(5, f.d, dtype=f.dtype)
    assert repr(f) == repr(g)
    assert_close(f(tokens), g(tokens))


# Reading.


@pytest.mark.parametrize(
    ("A", "V"),
    [
        ("both.npz", "both.npz"),
        ("both.npz:A", "both.npz:V"),
        ("compressed.npz", "compressed.npz:V"),
        ("A.npy", "V.npy"),
        ("both.safetensors", "both.safetensors:V"),
        ("alone.npz", "V.npy"),
        ("alone.safetensors", "both.npz"),
        ("odd:name.npz", "odd:name.npz:V"),
        ("./A.npy", os.path.join("folder", "V.npy")),
        ("transposed.npy", "swapped.npy"),
    ],
)
def test_every_kind_of_file_gives_the_same_map(A, V, matrices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = numpy_of(matrices)
    np.savez("both.npz", **arrays, more=np.ones(3))
    np.savez_compressed("compressed.npz", **arrays)
    np.savez("alone.npz", another_name=arrays["A"])
    np.savez("odd:name.npz", **arrays)
    os.mkdir("odd")
    np.save("A.npy", arrays["A"])
    np.save("V.npy", arrays["V"])
    np.save("transposed.npy", np.asfortranarray(arrays["A"]))
    np.save("swapped.npy", arrays["V"].astype(">f8"))
    os.mkdir("folder")
    np.save("folder/V.npy", arrays["V"])
    save_file(matrices, "both.safetensors")
    save_file({"weight": matrices["A"]}, "alone.safetensors")
    same_maps(Weights(A=A, V=V).read(), hs.Attention.single_head(**matrices))


def test_without_values_they_are_the_identity(matrices, tmp_path):
    path = str(tmp_path / "A.npy")
    np.save(path, matrices["A"].numpy())
    expected = hs.Attention.single_head(A=matrices["A"], V=torch.eye(4, dtype=torch.float64), causal=True)
    same_maps(Weights(A=path, causal=True).read(), expected)


def test_the_scale_multiplies_the_scores(matrices, tmp_path):
    path = str(tmp_path / "w.safetensors")
    save_file(matrices, path)
    expected = hs.Attention.single_head(A=0.25 * matrices["A"], V=matrices["V"])
    same_maps(Weights(A=path, V=path, scale=0.25).read(), expected)


@pytest.mark.parametrize(
    "stacked", [(), ("query",), ("key", "value"), ("output",), ("query", "key", "value", "output")]
)
def test_matrices_with_and_without_a_head_axis_give_the_same_map(stacked, layer, tmp_path):
    path = str(tmp_path / "layer.safetensors")
    flat = {name: getattr(layer, name).flatten(0, 1) for name in ("query", "key", "value")}
    flat["output"] = torch.cat(tuple(layer.output), dim=-1)
    save_file({name: (getattr(layer, name) if name in stacked else flat[name]) for name in flat}, path)
    same_maps(Weights(query=path, key=path, value=path, output=path, heads=2).read(), layer)


def test_without_an_output_projection_the_heads_are_concatenated(layer, tmp_path):
    path = str(tmp_path / "layer.npz")
    np.savez(path, query=layer.query.numpy(), key=layer.key.numpy(), value=layer.value.numpy())
    expected = hs.Attention(query=layer.query, key=layer.key, value=layer.value)
    same_maps(Weights(query=path, key=path, value=path).read(), expected)


@pytest.mark.parametrize("flat", [True, False])
def test_groups_share_keys_and_values(flat, rng, tmp_path):
    path = str(tmp_path / "layer.safetensors")
    query, key, value = (torch.randn(heads, 3, 5, generator=rng) for heads in (4, 2, 2))
    shaped = [x.flatten(0, 1) if flat else x for x in (query, key, value)]
    save_file(dict(zip(("query", "key", "value"), shaped, strict=True)), path)
    read = Weights(query=path, key=path, value=path, heads=4, groups=2 if flat else None).read()
    same_maps(read, hs.Attention(query=query, key=key, value=value))


@pytest.mark.parametrize(
    ("A", "V", "expected"),
    [
        ("float32", "float32", torch.float32),
        ("float16", "float16", torch.float32),
        ("float16", "float32", torch.float32),
        ("float32", "float64", torch.float64),
        ("int64", "float32", torch.float64),
        ("uint8", "int16", torch.float64),
        ("longdouble", "float16", torch.float64),
    ],
)
def test_mixed_numbers_are_brought_to_one_dtype_that_loses_nothing(A, V, expected, tmp_path):
    path = str(tmp_path / "w.npz")
    np.savez(path, A=np.eye(3).astype(A), V=np.eye(3).astype(V))
    assert Weights(A=path, V=path).read().dtype == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32], ids=str)
def test_half_precision_and_whole_numbers_of_safetensors_are_widened(dtype, tmp_path):
    path = str(tmp_path / "w.safetensors")
    save_file({"A": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype)}, path)
    A = read_matrix(path, "A")
    assert A.dtype == (torch.float64 if dtype == torch.int32 else torch.float32)
    assert A.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors"])
def test_a_damaged_file_is_read_or_refused_but_never_crashes(ending, matrices, tmp_path):
    path = tmp_path / f"w.{ending}"
    write = {
        "npy": lambda: np.save(path, matrices["A"].numpy()),
        "npz": lambda: np.savez(path, **numpy_of(matrices)),
        "safetensors": lambda: save_file(matrices, path),
    }
    write[ending]()
    good, draw = path.read_bytes(), random.Random(0)
    damaged = [good[: draw.randrange(len(good))] for _ in range(30)] + [draw.randbytes(80) for _ in range(30)]
    for _ in range(150):
        wrong = bytearray(good)
        wrong[draw.randrange(min(len(wrong), draw.choice((140, 10_000))))] = draw.randrange(256)
        damaged.append(bytes(wrong))
    refusals = []
    for data in damaged:
        path.write_bytes(data)
        try:
            read_matrix(str(path), "A")
        except HowsmoothError as error:
            refusals.append(str(error))
    assert len(refusals) >= 60
    assert not any("\n" in message for message in refusals)


# Refusals: one sentence, code 2, nothing written.


def bad_files():
    """Write every file that is wrong in one way, next to good ones, into the current folder."""
    eye, ones = np.eye(4), np.ones
    np.save("I4.npy", eye)
    np.save("I5.npy", np.eye(5))
    np.savez("several.npz", score_matrix=eye, value_matrix=eye)
    np.savez("none.npz")
    np.save("vector.npy", ones(4))
    np.save("number.npy", np.array(1.0))
    np.save("wide.npy", ones((4, 5)))
    np.save("four_axes.npy", ones((1, 1, 4, 4)))
    np.save("empty.npy", ones((0, 0)))
    np.save("nan.npy", np.where(eye == 1, np.nan, eye))
    np.save("inf.npy", np.where(eye == 1, -np.inf, eye))
    np.save("complex.npy", eye * 1j)
    np.save("bool.npy", eye == 1)
    np.save("text.npy", np.array([["a", "b"], ["c", "d"]]))
    np.save("objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    np.savez("objects.npz", A=np.array([[{}]], dtype=object), V=eye)
    save_file({"A": torch.eye(2, dtype=torch.complex64)}, "complex.safetensors")
    save_file({"A": torch.full((2, 2), torch.nan)}, "nan.safetensors")
    save_file({"A": torch.ones(0, 2)}, "empty.safetensors")
    save_file({"layer.0.query": torch.eye(4), "layer.0.key": torch.eye(4)}, "model.safetensors")
    for name in ("I4.npy", "several.npz", "model.safetensors"):
        with open(name, "rb") as file:
            whole = file.read()
        with open(f"cut_{name}", "wb") as file:
            file.write(whole[:-9])
    for ending in ("npy", "npz", "safetensors"):
        with open(f"garbage.{ending}", "wb") as file:
            file.write(b"not what the ending promises")
        with open(f"zero_bytes.{ending}", "wb"):
            pass
    with open("weights.pt", "wb") as file:
        file.write(b"0")
    os.mkdir("folder.npz")
    os.mkfifo("pipe.npz")
    np.save("heads3.npy", ones((3, 2, 4)))
    np.save("heads2.npy", ones((2, 2, 4)))
    np.save("rows8.npy", ones((8, 4)))
    os.mkdir("taken.safetensors")


STACK = "--query rows8.npy --key rows8.npy --value rows8.npy"
REFUSALS = {
    # files
    "--A missing.npz": "there is no file 'missing.npz'",
    "--A missing.npz:A": "there is no file 'missing.npz'",
    "--A missing": "there is no file 'missing'",
    "--A ''": "there is no file ''",
    f"--A {'x' * 5000}.npy": "there is no file",
    "--A folder.npz": "is a folder",
    "--A pipe.npz": "is not a regular file",
    "--A weights.pt": "must end in one of .npz, .npy, .safetensors",
    "--A cut_I4.npy": "cannot be read",
    "--A cut_several.npz:score_matrix": "cannot be read",
    "--A cut_model.safetensors:layer.0.query": "cannot be read",
    "--A garbage.npy": "cannot be read",
    "--A garbage.npz": "cannot be read",
    "--A garbage.safetensors": "cannot be read",
    "--A zero_bytes.npy": "cannot be read",
    "--A zero_bytes.npz": "cannot be read",
    "--A zero_bytes.safetensors": "cannot be read",
    "--A objects.npy": "never loaded",
    "--A objects.npz": "never loaded",
    "--A none.npz": "holds no arrays",
    # keys
    "--A several.npz": "'score_matrix', 'value_matrix': name the one for --A, as in 'several.npz:",
    "--A several.npz:score_matrx": "has no array 'score_matrx'; it holds 'score_matrix', 'value_matrix': did you mean",
    "--A several.npz:SCORE_MATRIX": "did you mean 'score_matrix'?",
    "--A several.npz:qqq": "choose one of them",
    "--A several.npz:": "has no array ''",
    "--A model.safetensors": "'layer.0.key', 'layer.0.query'",
    "--A model.safetensors:layer.0.qeury": "did you mean 'layer.0.query'?",
    "--A I4.npy:A": "leave :A out",
    # numbers
    "--A nan.npy": "4 of its 16 entries in 'nan.npy' are NaN or infinite",
    "--A inf.npy": "NaN or infinite",
    "--A nan.safetensors": "NaN or infinite",
    "--A I4.npy --V nan.npy": "V must be finite",
    "--A complex.npy": "A must hold real numbers, but is complex128",
    "--A complex.safetensors": "A must hold real numbers",
    "--A bool.npy": "must hold real numbers, but is bool",
    "--A text.npy": "must hold real numbers",
    "--A empty.npy": "must not be empty",
    "--A empty.safetensors": "must not be empty",
    # shapes
    "--A vector.npy": "A must be a square matrix, (d, d), got the shape (4,)",
    "--A number.npy": "A must be a square matrix",
    "--A heads2.npy": "A must be a square matrix",
    "--A wide.npy": "got the shape (4, 5)",
    "--A I4.npy --V I5.npy": "V must be a matrix with as many columns as A, (v, 4), got the shape (5, 5)",
    "--A I4.npy --V vector.npy": "V must be a matrix",
    "--query vector.npy --key I4.npy --value I4.npy": "query must have 2 or 3 axes",
    "--query I4.npy --key four_axes.npy --value I4.npy": "key must have 2 or 3 axes",
    f"{STACK} --heads 3": "query must split into 3 heads, but has 8 rows",
    f"{STACK} --heads 4 --groups 3": "key must split into 3 groups",
    f"{STACK} --heads 4 --groups 2": "must have the shape",
    f"{STACK} --heads 2 --output wide.npy": "output must split into 2 heads, but has 5 columns",
    "--query I4.npy --key I5.npy --value I4.npy": "key must have the shape",
    "--query I4.npy --key I4.npy --value wide.npy": "value must have the shape",
    "--query heads3.npy --key heads2.npy --value heads2.npy": "multiple of the key/value groups, got 3 and 2",
    "--query heads3.npy --key heads3.npy --value heads3.npy --heads 2": "query must have 2 heads along its first axis",
    "--query heads2.npy --key heads2.npy --value heads2.npy --output heads3.npy": "output must have 2 heads",
    # options
    "": "give the weights: --A and --V for one head, or --query, --key and --value, or --model and --layer; got none",
    "--V I4.npy": "give the weights",
    "--query I4.npy --key I4.npy": "got --query, --key",
    "--A I4.npy --query I4.npy": "give either --A and --V, or --query",
    "--A I4.npy --output I4.npy": "give either --A and --V",
    "--A I4.npy --heads 2": "A is one head",
    f"{STACK} --heads 0": "--heads must be at least 1, got 0",
    f"{STACK} --groups -1": "--groups must be at least 1, got -1",
    "--A I4.npy --scale inf": "scale must be finite",
    "--A I4.npy --n 0": "n must be a whole number, at least 1, got 0",
    "--A I4.npy --n -3": "got -3",
    "--A I4.npy --radius 0": "radius must be positive and finite, got 0",
    "--A I4.npy --radius -1": "radius must be positive",
    "--A I4.npy --radius inf": "radius must be positive and finite, got inf",
    "--A I4.npy --radius nan": "radius must be positive and finite, got nan",
    # where to save
    "--A I4.npy --save nowhere/witness.safetensors": "there is no folder 'nowhere'",
    "--A I4.npy --save witness.npz": "--save writes a .safetensors file, got 'witness.npz'",
    "--A I4.npy --save witness": "--save writes a .safetensors file",
    "--A I4.npy --save taken.safetensors": "cannot be written over",
    "--A I4.npy --save I4.npy/witness.safetensors": "there is no folder",
    "--A I4.npy --save /proc/witness.safetensors": "nothing can be saved to '/proc'",
    "--A model.safetensors:layer.0.query --save model.safetensors": "would write over the weights",
}


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
@pytest.mark.parametrize("arguments", REFUSALS)
def test_a_mistake_ends_in_one_sentence_before_any_work(command, arguments, howsmooth, tmp_path, monkeypatch):
    monkeypatch.setattr("howsmooth.maps.attention.Attention.jacobian", None)  # nothing may be measured
    jaxtyping.config.update("jaxtyping_disable", True)  # the library's own refusals are meant
    bad_files()
    before = snapshot(tmp_path)
    result = howsmooth(command, *DOMAIN, *shlex.split(arguments))
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("howsmooth: ")
    assert result.err.count("\n") == 1
    assert REFUSALS[arguments] in result.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--steps 5", "--steps is for the ascent; add --search"),
        ("--starts 5", "--starts is for the ascent; add --search"),
        ("--search --steps 0", "--steps must be at least 1, got 0"),
        ("--search --starts -2", "--starts must be at least 1, got -2"),
        ("--seed -1", "--seed must be between"),
        ("--seed 99999999999999999999", "--seed must be between"),
    ],
)
def test_options_of_a_search_are_checked_first(arguments, message, howsmooth):
    np.save("I4.npy", np.eye(4))
    result = howsmooth("worst-case", *DOMAIN, "--A", "I4.npy", *arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert message in result.err


@pytest.mark.parametrize(
    "arguments", [["--n", "1.5", "--radius", "1"], ["--n", "3"], ["--radius", "1"], ["--n", "3", "--radius", "x"]]
)
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_wrong_call_exits_with_two_and_shows_no_traceback(command, arguments, howsmooth):
    result = howsmooth(command, "--A", "A.npy", *arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission_are_refused(howsmooth, tmp_path):
    np.save("A.npy", np.eye(4))
    os.chmod("A.npy", 0)
    assert "may not be read" in howsmooth("bounds", *DOMAIN, "--A", "A.npy").err
    os.chmod("A.npy", 0o600)
    os.mkdir("locked", mode=0o500)
    result = howsmooth("bounds", *DOMAIN, "--A", "A.npy", "--save", "locked/w.safetensors")
    assert "nothing can be saved to 'locked'" in result.err


def test_a_name_with_a_line_break_still_gives_one_line(howsmooth):
    result = howsmooth("bounds", *DOMAIN, "--A", "a\nb.npy")
    assert result.code == 2
    assert result.err.count("\n") == 1
    np.savez("ab.npz", **{"x\ny": np.eye(2), "z": np.eye(2)})
    assert howsmooth("bounds", *DOMAIN, "--A", "ab.npz").err.count("\n") == 1


def test_a_long_list_of_names_is_cut(howsmooth):
    save_file({f"layer.{i}.weight": torch.eye(2) for i in range(300)}, "model.safetensors")
    result = howsmooth("bounds", *DOMAIN, "--A", "model.safetensors:layer.77.wieght")
    assert "and 288 more: did you mean 'layer.77.weight'?" in result.err
    assert len(result.err) < 500


# Answers.


@pytest.fixture
def head(matrices, howsmooth):
    """The arguments that name a good file in the current folder."""
    save_file(matrices, "head.safetensors")
    return ["--A", "head.safetensors", "--V", "head.safetensors"]


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
    assert all(any(line.startswith(bound.name) for line in rest) for bound in table.rungs)
    assert all(any(line.startswith(refused.name) for line in rest) for refused in table.refused)


def test_the_rows_go_up_and_the_measured_value_stands_among_them(howsmooth, head):
    lines = howsmooth("bounds", *head, "--n", "16", "--radius", "2").out.splitlines()
    rows = [match.groups() for line in lines if (match := re.match(r"\w+ +([≥≤]) (\S+)  +(\w.*)", line))]
    assert len(rows) >= 4
    for side in "≥≤":
        values = [value for sign, value, _worth in rows if sign == side]
        numbers = [float(value.replace("10^", "1e")) for value in values]
        assert numbers == sorted(numbers)
    measured = [worth.startswith("measured at a stored input") for _sign, _value, worth in rows]
    assert sum(measured) == 1
    assert rows[measured.index(True) + 1][0] == "≤" or not measured[-1]


def test_no_line_of_the_table_is_wider_than_the_terminal(howsmooth, head):
    lines = howsmooth("bounds", *head, "--n", "16", "--radius", "2").out.splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines[1:])


def test_bounds_as_json_is_json_and_nothing_else(howsmooth, head):
    result = howsmooth("bounds", *head, "--n", "16", "--radius", "2", "--causal", "--json")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out, parse_constant=pytest.fail)
    assert set(data) == {"bracket", "bounds", "refused", "n", "radius", "causal"}
    assert (data["n"], data["radius"], data["causal"]) == (16, 2.0, True)
    assert data["bracket"]["lower"]["value"] <= data["bracket"]["upper"]["value"]
    uppers = [bound["log_value"] for bound in data["bounds"] if bound["side"] == "upper"]
    assert math.isclose(min(uppers), data["bracket"]["upper"]["log_value"])
    assert howsmooth("bounds", *head, "--n", "16", "--radius", "2", "--causal", "--json").out == result.out


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
@pytest.mark.parametrize("radius", ["1e-200", "100", "1e9", "1e200"])
def test_numbers_beyond_a_float_never_reach_json(command, radius, howsmooth, head):
    result = howsmooth(command, *head, "--n", "5", "--radius", radius, "--json")
    assert "Traceback" not in result.err
    if result.code == 0:
        json.loads(result.out, parse_constant=pytest.fail)
    else:
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


def test_what_is_not_finite_becomes_null(capsys):
    print_json({"list": [math.inf, 1.0], "nested": {"nan": math.nan}, "text": "inf"})
    assert capsys.readouterr().out == '{"list": [null, 1.0], "nested": {"nan": null}, "text": "inf"}\n'


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
@pytest.mark.parametrize("n", ["1", "2", "3"])
@pytest.mark.parametrize("causal", [[], ["--causal"]], ids=["", "causal"])
def test_short_sequences_have_an_answer(command, n, causal, howsmooth, head):
    result = howsmooth(command, *head, "--n", n, "--radius", "1", *causal)
    assert (result.code, result.err) == (0, "")
    assert "Lip" in result.out.splitlines()[0]


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
@pytest.mark.parametrize("zero", ["A", "V", "both"])
def test_zero_matrices_have_an_answer(command, zero, howsmooth, matrices):
    np.savez("w.npz", **{name: x.numpy() * (zero not in (name, "both")) for name, x in matrices.items()})
    for form in ([], ["--json"]):
        result = howsmooth(command, "--A", "w.npz", "--V", "w.npz", *DOMAIN, *form)
        assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_whole_layer_has_an_answer(command, howsmooth, layer):
    names = ("query", "key", "value", "output")
    np.savez("layer.npz", **{name: getattr(layer, name).numpy() for name in names})
    result = howsmooth(command, *(part for name in names for part in (f"--{name}", "layer.npz")), *DOMAIN)
    assert (result.code, result.err) == (0, "")
    assert "heads=2" in result.out


def test_worst_case_says_how_near_the_proven_maximum_it_comes(howsmooth, head):
    result = howsmooth("worst-case", *head, "--n", "16", "--radius", "2")
    assert (result.code, result.err) == (0, "")
    first, *rest = result.out.splitlines()
    value, percent, most = re.fullmatch(r"Lip ≥ (\S+), at least (\S+) % of the proven maximum (\S+)", first).groups()
    assert 0 <= 100 * float(value) / float(most) - float(percent) < 0.2
    assert any(line.startswith("Input: ") for line in rest)
    assert any(line.startswith("Most sensitive: token") for line in rest)
    assert any(line.startswith("Most moved: ") for line in rest)


@pytest.mark.slow
def test_an_ascent_never_does_worse_and_repeats_with_its_seed(howsmooth, head):
    search = ["--search", "--steps", "5", "--starts", "2", "--seed", "3"]
    plain = json.loads(howsmooth("worst-case", *head, *DOMAIN, "--json").out)
    found = howsmooth("worst-case", *head, *DOMAIN, *search, "--json")
    assert (found.code, found.err) == (0, "")
    assert plain["witness"]["value"] <= json.loads(found.out)["witness"]["value"]
    assert howsmooth("worst-case", *head, *DOMAIN, *search, "--json").out == found.out
    assert 0 < json.loads(found.out)["share"] <= 1
    assert "5 steps of ascent from" in howsmooth("worst-case", *head, *DOMAIN, *search).out


@pytest.mark.slow
def test_bounds_can_search_too(howsmooth, head):
    plain, found = (
        json.loads(howsmooth("bounds", *head, *DOMAIN, "--json", *search).out)["bracket"]["lower"]["value"]
        for search in ([], ["--search"])
    )
    assert plain <= found * (1 + 1e-12)


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
    spoken = howsmooth(command, *head, *DOMAIN, "--save", "w.safetensors")
    assert spoken.out.splitlines()[-1].endswith("to w.safetensors.")


def test_a_disk_that_is_full_costs_the_file_but_not_the_answer(head, tmp_path, howsmooth):
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300));"
        "from howsmooth.cli.app import main; main()"
    )
    arguments = ["bounds", *head, *DOMAIN, "--save", "w.safetensors"]
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "≤ Lip ≤" in result.stdout
    assert result.stderr.count("\n") == 1
    assert "'w.safetensors' could not be written" in result.stderr
    assert os.listdir() == ["head.safetensors"]


def test_too_many_tokens_for_the_machine_end_in_one_sentence(howsmooth, head):
    result = howsmooth("bounds", *head, "--n", str(10**15), "--radius", "1")
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1


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


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_layer_of_a_model_stands_in_place_of_files(command, howsmooth):
    result = howsmooth(command, "--model", "minilm", "--layer", "2", "--map", "head:1", "-n", "9", "-r", "3", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    bound = found["upper"] if command == "worst-case" else found["bracket"]["upper"]
    head = hs.load("minilm").sites[2].map("head:1")
    assert bound["value"] == pytest.approx(hs.bounds.smallest_upper(head, n=9, radius=3.0).value, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "minilm"), "--model and --layer go together"),
        (("--layer", "2"), "--model and --layer go together"),
        (("--model", "minilm", "--layer", "2", "--causal", "--scale", "2"), "got --scale, --causal too"),
        (("--model", "minilm", "--layer", "6"), "has the layers 0 to 5, got 6"),
        (("--model", "minilm", "--layer", "2", "--map", "residual"), "theorems are about attention alone"),
        (("--model", "minilm", "--layer", "2", "--map", "hats"), "map must be one of"),
    ],
)
def test_a_layer_that_is_not_there_is_refused_in_one_sentence(arguments, said, howsmooth):
    result = howsmooth("bounds", *arguments, "-n", "9", "-r", "3")
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_help_does_not_import_what_is_heavy(command):
    code = (
        "import sys\nfrom howsmooth.cli.app import main\n"
        f"sys.argv = ['howsmooth', '{command}', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_reader_who_leaves_early_sees_no_traceback(head):
    command = f"{sys.executable} -m howsmooth bounds {' '.join(head)} --n 6 --radius 2 | head -c 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr


def test_a_terminal_without_mathematical_signs_sees_no_traceback(head):
    result = subprocess.run(
        [sys.executable, "-m", "howsmooth", "bounds", *head, *DOMAIN],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert result.returncode == 0
    assert b"Lip" in result.stdout
