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
    np.savez("I4.npz", A=eye)
    np.savez("I5.npz", A=eye, V=np.eye(5))
    np.savez("several.npz", score_matrix=eye, value_matrix=eye)
    np.savez("none.npz")
    shapes = {"vector": ones(4), "number": np.array(1.0), "wide": ones((4, 5)), "three_axes": ones((2, 2, 4))}
    numbers = {"nan": np.where(eye == 1, np.nan, eye), "inf": np.where(eye == 1, -np.inf, eye), "bool": eye == 1}
    other = {"complex": eye * 1j, "text": np.array([["a", "b"], ["c", "d"]]), "empty": ones((0, 0))}
    for name, A in (shapes | numbers | other).items():
        np.savez(f"{name}.npz", A=A)
    np.savez("V_nan.npz", A=eye, V=numbers["nan"])
    np.savez("V_vector.npz", A=eye, V=ones(4))
    np.savez("objects.npz", A=np.array([[{}]], dtype=object), V=eye)
    save_file({"A": torch.eye(2, dtype=torch.complex64)}, "complex.safetensors")
    save_file({"A": torch.full((2, 2), torch.nan)}, "nan.safetensors")
    save_file({"A": torch.ones(0, 2)}, "empty.safetensors")
    save_file({"layer.0.query": torch.eye(4), "layer.0.key": torch.eye(4)}, "model.safetensors")
    save_file({"A": torch.eye(4)}, "head.safetensors")
    for name in ("I4.npz", "head.safetensors"):
        with open(name, "rb") as file:
            whole = file.read()
        with open(f"cut_{name}", "wb") as file:
            file.write(whole[:-9])
    for ending in ("npz", "safetensors"):
        with open(f"garbage.{ending}", "wb") as file:
            file.write(b"not what the ending promises")
        with open(f"zero_bytes.{ending}", "wb"):
            pass
    for name, arrays in LAYERS.items():
        np.savez(f"{name}.npz", **arrays)
    with open("weights.pt", "wb") as file:
        file.write(b"0")
    os.mkdir("folder.npz")
    os.mkfifo("pipe.npz")
    os.mkdir("taken.safetensors")


def heads(query, key, value, **more):
    return {"query": query, "key": key, "value": value, **more}


EYE, ROWS, STACKED = np.eye(4), np.ones((8, 4)), np.ones((2, 2, 4))
# Layers that are wrong in one way.
LAYERS = {
    "stack": heads(ROWS, ROWS, ROWS),
    "query_vector": heads(np.ones(4), EYE, EYE),
    "key_axes": heads(EYE, np.ones((1, 1, 4, 4)), EYE),
    "wide_output": heads(ROWS, ROWS, ROWS, output=np.ones((4, 5))),
    "wide_key": heads(EYE, np.eye(5), EYE),
    "wide_value": heads(EYE, EYE, np.ones((4, 5))),
    "groups": heads(np.ones((3, 2, 4)), STACKED, STACKED),
    "three_heads": heads(*[np.ones((3, 2, 4))] * 3),
    "output_heads": heads(STACKED, STACKED, STACKED, output=np.ones((3, 2, 4))),
    "bias_entries": heads(ROWS, ROWS, ROWS, query_bias=np.ones(3)),
    "bias_axes": heads(ROWS, ROWS, ROWS, key_bias=np.ones((1, 1, 4, 4))),
    "bias_shape": heads(ROWS, ROWS, ROWS, value_bias=np.ones(4)),
    "bias_nan": heads(ROWS, ROWS, ROWS, value_bias=np.full(8, np.nan)),
    "output_bias": heads(ROWS, ROWS, ROWS, output_bias=np.ones(4)),
    "A_key_bias": {"A": EYE, "key_bias": np.ones(4)},
    "A_query": {"A": EYE, "query": EYE},
    "V": {"V": EYE},
    "query_key": {"query": EYE, "key": EYE},
}
REFUSALS = {
    # files
    "missing.npz": "'missing.npz' is not there",
    f"{'x' * 5000}.npz": "File name too long",
    "folder.npz": "is a folder",
    "pipe.npz": "is a device or a pipe",
    "weights.pt": "is a file that holds no model",
    "cut_I4.npz": "cannot be read",
    "cut_head.safetensors": "cannot be read",
    "garbage.npz": "cannot be read",
    "garbage.safetensors": "cannot be read",
    "zero_bytes.npz": "cannot be read",
    "zero_bytes.safetensors": "cannot be read",
    "objects.npz": "never loaded",
    "none.npz": "got none of them",
    "several.npz": "query, key and value; got score_matrix, value_matrix",
    "model.safetensors": "got layer.0.key, layer.0.query",
    # numbers
    "nan.npz": "4 of its 16 entries in 'nan.npz' are NaN or infinite",
    "inf.npz": "NaN or infinite",
    "nan.safetensors": "NaN or infinite",
    "V_nan.npz": "V must be finite",
    "complex.npz": "A must hold real numbers, but is complex128",
    "complex.safetensors": "A must hold real numbers",
    "bool.npz": "must hold real numbers, but is bool",
    "text.npz": "must hold real numbers",
    "empty.npz": "must not be empty",
    "empty.safetensors": "must not be empty",
    # shapes
    "vector.npz": "A must be a square matrix, (d, d), got the shape (4,)",
    "number.npz": "A must be a square matrix",
    "three_axes.npz": "A must be a square matrix",
    "wide.npz": "got the shape (4, 5)",
    "I5.npz": "V must be a matrix with as many columns as A, (v, 4), got the shape (5, 5)",
    "V_vector.npz": "V must be a matrix",
    "query_vector.npz": "query must have 2 or 3 axes",
    "key_axes.npz": "key must have 2 or 3 axes",
    "stack.npz --heads 3": "query must split into 3 heads, but has 8 rows",
    "wide_output.npz --heads 2": "output must split into 2 heads, but has 5 columns",
    "wide_key.npz": "key must have the shape",
    "wide_value.npz": "value must have the shape",
    "groups.npz": "multiple of the key/value groups",
    "three_heads.npz --heads 2": "query must have 2 heads along its first axis",
    "output_heads.npz": "output must have 2 heads",
    "bias_entries.npz --heads 2": "query_bias must split into 2 heads, but has 3 entries",
    "bias_axes.npz --heads 2": "key_bias must have 1 or 2 axes, got the shape (1, 1, 4, 4)",
    "bias_shape.npz --heads 2": "value_bias must have the shape",
    "bias_nan.npz --heads 2": "value_bias must be finite",
    "output_bias.npz": "output_bias is added by the output projection; give output too",
    # options
    "A_key_bias.npz": "a layer is either A and V, one head, or query, key and value; got A, key",
    "": "give a model and its --layer, as in minilm --layer 4, or a file of weights with arrays called A",
    "V.npz": "give a model and its --layer",
    "query_key.npz": "got query, key",
    "A_query.npz": "got A, query together",
    "I4.npz --heads 2": "A is one head",
    "stack.npz --heads 0": "--heads must be at least 1, got 0",
    "I4.npz --scale inf": "scale must be finite",
    "I4.npz --n 0": "n must be a whole number, at least 1, got 0",
    "I4.npz --n -3": "got -3",
    "I4.npz --radius 0": "radius must be positive and finite, got 0",
    "I4.npz --radius -1": "radius must be positive",
    "I4.npz --radius inf": "radius must be positive and finite, got inf",
    "I4.npz --radius nan": "radius must be positive and finite, got nan",
    # where to save
    "I4.npz --save nowhere/witness.safetensors": "there is no folder 'nowhere'",
    "I4.npz --save witness.npz": "--save writes a .safetensors file, got 'witness.npz'",
    "I4.npz --save witness": "--save writes a .safetensors file",
    "I4.npz --save taken.safetensors": "cannot be written over",
    "I4.npz --save I4.npz/witness.safetensors": "there is no folder",
    "I4.npz --save /proc/witness.safetensors": "nothing can be saved to '/proc'",
    "head.safetensors --save head.safetensors": "would write over the weights",
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
    np.savez("I4.npz", A=np.eye(4))
    result = howsmooth("worst-case", *DOMAIN, "I4.npz", *arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert message in result.err


@pytest.mark.parametrize(
    "arguments", [["--n", "1.5", "--radius", "1"], ["--n", "3"], ["--radius", "1"], ["--n", "3", "--radius", "x"]]
)
@pytest.mark.parametrize("command", ["bounds", "worst-case"])
def test_a_wrong_call_exits_with_two_and_shows_no_traceback(command, arguments, howsmooth):
    result = howsmooth(command, "A.npz", *arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err


def test_several_lengths_where_one_is_meant_are_told(howsmooth):
    assert "'-n': it must be one whole number." in howsmooth("bounds", "A.npz", "-n", "4,16", "-r", "1").err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission_are_refused(howsmooth, tmp_path):
    np.savez("A.npz", A=np.eye(4))
    os.chmod("A.npz", 0)
    assert "cannot be read" in howsmooth("bounds", *DOMAIN, "A.npz").err
    os.chmod("A.npz", 0o600)
    os.mkdir("locked", mode=0o500)
    result = howsmooth("bounds", *DOMAIN, "A.npz", "--save", "locked/w.safetensors")
    assert "nothing can be saved to 'locked'" in result.err


def test_a_name_with_a_line_break_still_gives_one_line(howsmooth):
    result = howsmooth("bounds", *DOMAIN, "a\nb.npz")
    assert result.code == 2
    assert result.err.count("\n") == 1
    np.savez("ab.npz", **{"x\ny": np.eye(2), "z": np.eye(2)})
    assert howsmooth("bounds", *DOMAIN, "ab.npz").err.count("\n") == 1


def test_a_long_list_of_names_is_cut(howsmooth):
    save_file({f"layer.{i}.weight": torch.eye(2) for i in range(300)}, "model.safetensors")
    result = howsmooth("bounds", *DOMAIN, "model.safetensors")
    assert "and 288 more" in result.err
    assert len(result.err) < 500
