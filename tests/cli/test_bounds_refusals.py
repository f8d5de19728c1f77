"""``howsmooth bounds`` and ``howsmooth worst-case`` refuse mistakes in one sentence, with code 2, nothing written."""

import os
import shlex

import jaxtyping
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

DOMAIN = ["--n", "6", "--radius", "2"]


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


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
    np.save("three.npy", ones(3))
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
    f"{STACK} --heads 2 --query-bias three.npy": "query_bias must split into 2 heads, but has 3 entries; see --heads",
    f"{STACK} --heads 2 --key-bias four_axes.npy": "key_bias must have 1 or 2 axes, got the shape (1, 1, 4, 4)",
    f"{STACK} --heads 2 --value-bias vector.npy": "value_bias must have the shape",
    f"{STACK} --heads 2 --value-bias nan.npy": "value_bias must be finite",
    f"{STACK} --query-bias several.npz": "name the one for --query-bias",
    f"{STACK} --output-bias vector.npy": "--output-bias is added by the output projection; give --output too",
    # options
    "--A I4.npy --key-bias vector.npy": "give either --A and --V, or --query, --key and --value; got --A, --key-bias",
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
