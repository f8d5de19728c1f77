"""Layers of built-in models that are read from their files are those that the whole model has, to the last bit."""

import subprocess
import sys

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import UnsupportedModelError
from howsmooth.maps.attention import Attention
from howsmooth.models.loading import built_in_layers
from howsmooth.models.loading.built_in_layers import built_in_layer

FIELDS = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")


@pytest.mark.parametrize("name", ["minilm", "reviews"])
def test_a_layer_from_its_file_is_that_of_the_whole_model(name):
    whole = hs.load(name)
    for index, expected in enumerate(whole.layers):
        found = built_in_layer(name, index)
        for field in FIELDS:
            ours, theirs = (getattr(layer.closed_form, field) for layer in (found, expected))
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), field
        assert found.closed_form.scale == expected.closed_form.scale
        assert vars(found.closed_form.positions) == vars(expected.closed_form.positions)
        for field in ("index", "attention_path", "projection_path", "block_path", "residual_inside"):
            assert getattr(found, field) == getattr(expected, field)
        assert isinstance(found.map("head:1"), Attention)


@pytest.mark.parametrize(("name", "index"), [("minilm", 6), ("smollm2", 0), ("random:bert", 0), ("no/such", 0)])
def test_the_loader_reads_all_others(name, index):
    assert built_in_layer(name, index) is None


def test_other_weights_under_the_name_are_refused(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 1}')
    (tmp_path / "model.safetensors").write_bytes(b"others")
    monkeypatch.setattr(built_in_layers, "built_in_path", lambda _name: tmp_path)
    with pytest.raises(UnsupportedModelError, match="not those that it stands for"):
        built_in_layer("reviews", 0)


@pytest.mark.slow
def test_bounds_of_a_built_in_layer_do_not_wait_for_transformers():
    code = (
        "import sys; sys.argv = ['howsmooth', 'bounds', 'reviews', '--layer', '1', '-n', '4', '-r', '1', '--json']\n"
        "from howsmooth.cli.app import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(sorted({'torch', 'transformers', 'sympy'} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "['torch']"
