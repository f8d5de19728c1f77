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


def heads(query, key, value):
    return f"--weight query={query}.npy --weight key={key}.npy --weight value={value}.npy"


STACK = heads("rows8", "rows8", "rows8")
REFUSALS = {
    # files
    "missing.npz": "there is no file 'missing.npz'",
    "missing.npz:A": "there is no file 'missing.npz'",
    "--weight A=missing": "there is no file 'missing'",
    "--weight A=": "there is no file ''",
    f"{'x' * 5000}.npy": "there is no file",
    "folder.npz": "is a folder",
    "pipe.npz": "is not a regular file",
    "--weight A=weights.pt": "must end in one of .npz, .npy, .safetensors",
    "cut_I4.npy": "cannot be read",
    "cut_several.npz:score_matrix": "cannot be read",
    "cut_model.safetensors:layer.0.query": "cannot be read",
    "garbage.npy": "cannot be read",
    "garbage.npz": "cannot be read",
    "garbage.safetensors": "cannot be read",
    "zero_bytes.npy": "cannot be read",
    "zero_bytes.npz": "cannot be read",
    "zero_bytes.safetensors": "cannot be read",
    "objects.npy": "never loaded",
    "objects.npz": "never loaded",
    "none.npz": "holds no arrays",
    # keys
    "several.npz": "Name the one for A, as in 'several.npz:score_matrix', or each, as in --weight query=",
    "several.npz:score_matrx": "has no array 'score_matrx'; it holds 'score_matrix', 'value_matrix': did you mean",
    "several.npz:SCORE_MATRIX": "did you mean 'score_matrix'?",
    "several.npz:qqq": "choose one of them",
    "several.npz:": "has no array ''",
    "model.safetensors": "'layer.0.key', 'layer.0.query'",
    "model.safetensors:layer.0.qeury": "did you mean 'layer.0.query'?",
    "I4.npy:A": "leave :A out",
    # numbers
    "nan.npy": "4 of its 16 entries in 'nan.npy' are NaN or infinite",
    "inf.npy": "NaN or infinite",
    "nan.safetensors": "NaN or infinite",
    "I4.npy --weight V=nan.npy": "V must be finite",
    "complex.npy": "A must hold real numbers, but is complex128",
    "complex.safetensors": "A must hold real numbers",
    "bool.npy": "must hold real numbers, but is bool",
    "text.npy": "must hold real numbers",
    "empty.npy": "must not be empty",
    "empty.safetensors": "must not be empty",
    # shapes
    "vector.npy": "A must be a square matrix, (d, d), got the shape (4,)",
    "number.npy": "A must be a square matrix",
    "heads2.npy": "A must be a square matrix",
    "wide.npy": "got the shape (4, 5)",
    "I4.npy --weight V=I5.npy": "V must be a matrix with as many columns as A, (v, 4), got the shape (5, 5)",
    "I4.npy --weight V=vector.npy": "V must be a matrix",
    heads("vector", "I4", "I4"): "query must have 2 or 3 axes",
    heads("I4", "four_axes", "I4"): "key must have 2 or 3 axes",
    f"{STACK} --heads 3": "query must split into 3 heads, but has 8 rows",
    f"{STACK} --heads 2 --weight output=wide.npy": "output must split into 2 heads, but has 5 columns",
    heads("I4", "I5", "I4"): "key must have the shape",
    heads("I4", "I4", "wide"): "value must have the shape",
    heads("heads3", "heads2", "heads2"): "multiple of the key/value groups",
    f"{heads('heads3', 'heads3', 'heads3')} --heads 2": "query must have 2 heads along its first axis",
    f"{heads('heads2', 'heads2', 'heads2')} --weight output=heads3.npy": "output must have 2 heads",
    f"{STACK} --heads 2 --weight query_bias=three.npy": "query_bias must split into 2 heads, but has 3 entries",
    f"{STACK} --heads 2 --weight key_bias=four_axes.npy": "key_bias must have 1 or 2 axes, got the shape (1, 1, 4, 4)",
    f"{STACK} --heads 2 --weight value_bias=vector.npy": "value_bias must have the shape",
    f"{STACK} --heads 2 --weight value_bias=nan.npy": "value_bias must be finite",
    f"{STACK} --weight query_bias=several.npz": "name the one for query_bias",
    f"{STACK} --weight output_bias=vector.npy": "output_bias is added by the output projection; give output too",
    # options
    "I4.npy --weight key_bias=vector.npy": "a layer is either A and V, one head, or query, key and value; got A, key",
    "": "give a model and its --layer, as in minilm --layer 4, or a file of weights with A, or query, key",
    "--weight V=I4.npy": "give a model and its --layer",
    "--weight query=I4.npy --weight key=I4.npy": "got query, key",
    "I4.npy --weight query=I4.npy": "got A, query together",
    "I4.npy --weight output=I4.npy": "got A, output together",
    "I4.npy --heads 2": "A is one head",
    f"{STACK} --heads 0": "--heads must be at least 1, got 0",
    "--weight B=I4.npy": "a layer has no array 'B'",
    "--weight I4.npy": "--weight takes NAME=FILE[:KEY], as in A=head.npz, got 'I4.npy'",
    "I4.npy --scale inf": "scale must be finite",
    "I4.npy --n 0": "n must be a whole number, at least 1, got 0",
    "I4.npy --n -3": "got -3",
    "I4.npy --radius 0": "radius must be positive and finite, got 0",
    "I4.npy --radius -1": "radius must be positive",
    "I4.npy --radius inf": "radius must be positive and finite, got inf",
    "I4.npy --radius nan": "radius must be positive and finite, got nan",
    # where to save
    "I4.npy --save nowhere/witness.safetensors": "there is no folder 'nowhere'",
    "I4.npy --save witness.npz": "--save writes a .safetensors file, got 'witness.npz'",
    "I4.npy --save witness": "--save writes a .safetensors file",
    "I4.npy --save taken.safetensors": "cannot be written over",
    "I4.npy --save I4.npy/witness.safetensors": "there is no folder",
    "I4.npy --save /proc/witness.safetensors": "nothing can be saved to '/proc'",
    "model.safetensors:layer.0.query --save model.safetensors": "would write over the weights",
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
    result = howsmooth("worst-case", *DOMAIN, "I4.npy", *arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert message in result.err


@pytest.mark.parametrize(
    "arguments", [["--n", "1.5", "--radius", "1"], ["--n", "3"], ["--radius", "1"], ["--n", "3", "--radius", "x"]]
)
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_wrong_call_exits_with_two_and_shows_no_traceback(command, arguments, howsmooth):
    result = howsmooth(command, "A.npy", *arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err


def test_several_lengths_where_one_is_meant_are_told(howsmooth):
    assert "'-n': it must be one whole number." in howsmooth("bounds", "A.npy", "-n", "4,16", "-r", "1").err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission_are_refused(howsmooth, tmp_path):
    np.save("A.npy", np.eye(4))
    os.chmod("A.npy", 0)
    assert "may not be read" in howsmooth("bounds", *DOMAIN, "A.npy").err
    os.chmod("A.npy", 0o600)
    os.mkdir("locked", mode=0o500)
    result = howsmooth("bounds", *DOMAIN, "A.npy", "--save", "locked/w.safetensors")
    assert "nothing can be saved to 'locked'" in result.err


def test_a_name_with_a_line_break_still_gives_one_line(howsmooth):
    result = howsmooth("bounds", *DOMAIN, "a\nb.npy")
    assert result.code == 2
    assert result.err.count("\n") == 1
    np.savez("ab.npz", **{"x\ny": np.eye(2), "z": np.eye(2)})
    assert howsmooth("bounds", *DOMAIN, "ab.npz").err.count("\n") == 1


def test_a_long_list_of_names_is_cut(howsmooth):
    save_file({f"layer.{i}.weight": torch.eye(2) for i in range(300)}, "model.safetensors")
    result = howsmooth("bounds", *DOMAIN, "model.safetensors:layer.77.wieght")
    assert "and 288 more: did you mean 'layer.77.weight'?" in result.err
    assert len(result.err) < 500
