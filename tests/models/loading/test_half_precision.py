"""Weights in half precision are measured in float32, and say so."""

import pytest
import torch
from models.small_models import CONFIGS, each, randomised
from models.unknown_models import UNKNOWN
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.spectral.autograd import linearise

HALVES = [torch.bfloat16, torch.float16]
PARTS = ("attention", "residual", "block")


def model_in(family, dtype, rng):
    config = (CONFIGS | UNKNOWN)[family]()
    config.use_cache = False
    return randomised(config, rng).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", each(["bert", "llama", "roformer", "stablelm"]))
def test_a_model_in_half_precision_has_the_constants_of_its_weights_in_float32(family, dtype, rng):
    model = model_in(family, dtype, rng)
    tokens = torch.randint(3, 50, (2, 6), generator=rng)
    half = hs.load(model)
    exact = hs.load(model, dtype=torch.float64)
    assert next(half.module.parameters()).dtype == torch.float32
    assert next(model.parameters()).dtype == dtype  # it belongs to the caller
    pair = [found.activations(tokens) for found in (half, exact)]
    for name in PARTS:
        (f, X), (g, Y) = (found.at(1, name) for found in pair)
        J, K, E = linearise(f, X), linearise(g, Y), torch.randn(X.shape, generator=rng)
        for ours, truth in ((J.jvp(E), K.jvp(E.double())), (J.vjp(E), K.vjp(E.double()))):
            assert float((ours - truth).norm() / truth.norm()) < 1e-5  # half precision would leave three digits
    one, two = (hs.local_lipschitz(*found.at(1)).lower for found in pair)
    assert_close(one.double(), two, rtol=1e-3, atol=0)  # the measurement's own rtol


@pytest.mark.parametrize(("dtype", "worth"), [(torch.bfloat16, "0.4 %"), (torch.float16, "0.05 %")], ids=str)
def test_a_note_says_so_and_what_rounding_activations_is_worth(dtype, worth, rng):
    name = str(dtype).removeprefix("torch.")
    model = model_in("bert", dtype, rng)
    (note,) = hs.load(model).notes
    assert f"its weights are {name}, and are measured as they are in float32" in note
    assert f"by up to {worth}" in note
    (note,) = hs.load(model, dtype=torch.float64).notes
    assert "in float64" in note


def test_half_precision_that_is_asked_for_rounds_the_weights_alone(rng):
    model = model_in("bert", torch.float64, rng)
    rounded = hs.load(model, dtype=torch.bfloat16)
    (note,) = rounded.notes
    assert "were rounded to bfloat16, as asked for" in note
    weight = rounded.layers[0].attention.value_bias
    assert weight.dtype == torch.float32
    own = model.encoder.layer[0].attention.self.value.bias.detach()
    assert_close(weight.flatten(), own.bfloat16().float(), rtol=0, atol=0)
    assert own.dtype == torch.float64


def test_other_models_have_no_such_note(rng):
    assert hs.load(model_in("bert", torch.float32, rng)).notes == ()


def test_a_model_keeps_its_numbers_when_others_are_asked_for(rng):
    model = model_in("bert", torch.float32, rng)
    assert hs.load(model, dtype=torch.float64).layers[0].attention.dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32


def test_a_folder_in_half_precision_is_measured_in_float32(tmp_path, rng):
    model_in("bert", torch.bfloat16, rng).save_pretrained(tmp_path)
    loaded = hs.load(str(tmp_path))
    assert loaded.layers[0].attention.dtype == torch.float32
    assert "bfloat16" in loaded.notes[0]


@pytest.mark.parametrize("asked", [None, torch.float8_e4m3fn])
def test_less_than_half_precision_is_refused(asked, rng):
    model = model_in("bert", torch.float32, rng)
    if asked is None:
        model.encoder.layer[0].attention.self.query.weight.data = torch.zeros(24, 24, dtype=torch.float8_e4m3fn)
    with pytest.raises(hs.errors.UnsupportedModelError, match="come with scales of their own") as caught:
        hs.load(model, dtype=asked)
    assert caught.value.field == ("model" if asked is None else "dtype")
