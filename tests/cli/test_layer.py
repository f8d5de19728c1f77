"""One attention layer from files: every kind of file gives the same map, and a damaged one never crashes."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.cli.array_files import read_arrays
from howsmooth.cli.layer import LayerSource
from howsmooth.errors import HowsmoothError


def numpy_of(tensors):
    return {name: x.numpy() for name, x in tensors.items()}


def same_maps(f, g):
    tokens = torch.randn(5, f.d, dtype=f.dtype)
    assert repr(f) == repr(g)
    assert_close(f(tokens), g(tokens))


@pytest.mark.parametrize("name", ["both.npz", "compressed.npz", "layout.npz", "both.safetensors", "./both.npz"])
def test_every_kind_of_file_gives_the_same_map(name, matrices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = numpy_of(matrices)
    np.savez("both.npz", **arrays, more=np.ones(3))
    np.savez_compressed("compressed.npz", **arrays)
    np.savez("layout.npz", A=np.asfortranarray(arrays["A"]), V=arrays["V"].astype(">f8"))
    save_file(matrices, "both.safetensors")
    same_maps(LayerSource(model=name).read(), hs.Attention.single_head(**matrices))


def test_without_values_they_are_the_identity(matrices, tmp_path):
    path = str(tmp_path / "A.npz")
    np.savez(path, A=matrices["A"].numpy())
    expected = hs.Attention.single_head(A=matrices["A"], V=torch.eye(4, dtype=torch.float64), causal=True)
    same_maps(LayerSource(model=path, causal=True).read(), expected)


def test_the_scale_multiplies_the_scores(matrices, tmp_path):
    path = str(tmp_path / "w.safetensors")
    save_file(matrices, path)
    expected = hs.Attention.single_head(A=0.25 * matrices["A"], V=matrices["V"])
    same_maps(LayerSource(model=path, scale=0.25).read(), expected)


@pytest.mark.parametrize(
    "stacked", [(), ("query",), ("key", "value"), ("output",), ("query", "key", "value", "output")]
)
def test_matrices_with_and_without_a_head_axis_give_the_same_map(stacked, layer, tmp_path):
    path = str(tmp_path / "layer.safetensors")
    flat = {name: getattr(layer, name).flatten(0, 1) for name in ("query", "key", "value")}
    flat["output"] = torch.cat(tuple(layer.output), dim=-1)
    save_file({name: (getattr(layer, name) if name in stacked else flat[name]) for name in flat}, path)
    same_maps(LayerSource(model=path, heads=2).read(), layer)


def test_without_an_output_projection_the_heads_are_concatenated(layer, tmp_path):
    path = str(tmp_path / "layer.npz")
    np.savez(path, query=layer.query.numpy(), key=layer.key.numpy(), value=layer.value.numpy())
    expected = hs.Attention(query=layer.query, key=layer.key, value=layer.value)
    same_maps(LayerSource(model=path).read(), expected)


@pytest.fixture
def biased(layer, rng):
    """The layer with a bias everywhere."""
    shapes = {"query_bias": (2, 4), "key_bias": (2, 4), "value_bias": (2, 4), "output_bias": (8,)}
    biases = {name: torch.randn(*shape, dtype=torch.float64, generator=rng) for name, shape in shapes.items()}
    return dataclasses.replace(layer, **biases)


NAMES = ("query", "key", "value", "output")


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("flat", [True, False])
def test_biases_that_lie_beside_their_matrices_are_read_with_them(ending, flat, biased, tmp_path):
    path = str(tmp_path / f"layer.{ending}")
    tensors = {name: getattr(biased, name) for name in (*NAMES, *(f"{name}_bias" for name in NAMES))}
    if flat:
        tensors |= {name: tensors[name].flatten() for name in ("query_bias", "key_bias", "value_bias")}
    if ending == "npz":
        np.savez(path, **numpy_of(tensors))
    else:
        save_file(tensors, path)
    source = LayerSource(model=path)
    source.check()
    same_maps(source.read(), biased)


@pytest.mark.parametrize("flat", [True, False])
def test_groups_share_keys_and_values(flat, rng, tmp_path):
    path = str(tmp_path / "layer.safetensors")
    query, key, value = (torch.randn(heads, 3, 5, generator=rng) for heads in (4, 2, 2))
    shaped = [x.flatten(0, 1) if flat else x for x in (query, key, value)]
    save_file(dict(zip(("query", "key", "value"), shaped, strict=True)), path)
    read = LayerSource(model=path, heads=4).read()
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
    assert LayerSource(model=path).read().dtype == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32], ids=str)
def test_half_precision_and_whole_numbers_of_safetensors_are_widened(dtype, tmp_path):
    path = str(tmp_path / "w.safetensors")
    save_file({"A": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype)}, path)
    A = read_arrays(Path(path), ["A"])["A"]
    assert A.dtype == (torch.float64 if dtype == torch.int32 else torch.float32)
    assert A.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_damaged_file_is_read_or_refused_but_never_crashes(ending, matrices, tmp_path):
    path = tmp_path / f"w.{ending}"
    write = {
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
            read_arrays(path, ["A"])
        except HowsmoothError as error:
            refusals.append(str(error))
    assert len(refusals) >= 60
    assert not any("\n" in message for message in refusals)
