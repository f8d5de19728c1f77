"""Networks as Taylor models: what every level bounds as forms, and coordinates as functions of tokens."""

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network

import howsmooth as hs
from howsmooth.maps.activations import ACTIVATIONS, Pointwise
from howsmooth.verification.activation_expansion import ActivationExpansion
from howsmooth.verification.attention_expansion import AttentionExpansion
from howsmooth.verification.network_expansion import expand
from howsmooth.verification.norm_expansion import NormExpansion
from howsmooth.verification.relu_relaxation import ReLURelaxation

LEVELS = (0, 1, 2)


@pytest.fixture
def bent(rng):
    """The model of tokens that attention has bent, and another attention."""
    f = network(rng, layers=2)
    model, _enters = entered(f, 0.2, [f.maps[1].map], gaussian(rng, 6))
    return model, f.maps[3].map


def ranges(stage):
    """What a stage bounds of what enters it beyond the linear part, kind by kind."""
    kinds = {
        AttentionExpansion: ("alpha2", "q2"),
        NormExpansion: ("U2", "w2"),
        ReLURelaxation: ("lower", "upper"),
        ActivationExpansion: ("remainder",),
    }
    return [getattr(stage, name) for name in kinds[type(stage)]]


def test_attention_has_forms_for_scores_from_level_one_on_and_for_all_projections_at_level_two(bent):
    model, attention = bent
    found = [ranges(expand(attention, model, level).stages[-1]) for level in LEVELS]
    ways = ((False, False), (True, False), (True, True))
    for one, (forms, all_forms) in zip(found, ways, strict=True):
        assert_close(one, ranges(AttentionExpansion(attention, model, forms=forms, all_forms=all_forms)))
    assert not torch.allclose(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.allclose(found[1][1], found[2][1])


@pytest.mark.parametrize("kind", ["norm", "relu", "gelu"])
def test_norms_and_units_have_forms_from_level_one_on(bent, kind, rng):
    model, _attention = bent
    norm = hs.maps.LayerNorm(gain=1 + 0.3 * gaussian(rng, 4), eps=0.3)
    f = norm if kind == "norm" else Pointwise(activation=kind, dtype=torch.float64)
    make = {
        "norm": lambda forms: NormExpansion(norm, model, forms=forms),
        "relu": lambda forms: ReLURelaxation(model, forms=forms),
        "gelu": lambda forms: ActivationExpansion(ACTIVATIONS["gelu"], model, forms=forms),
    }[kind]
    found = [ranges(expand(f, model, level).stages[-1]) for level in LEVELS]
    for one, forms in zip(found, (False, True, True), strict=True):
        assert_close(one, ranges(make(forms)))
    assert not all(torch.allclose(x, y) for x, y in zip(found[0], found[1], strict=True))


def test_coordinates_are_the_numbers_of_all_tokens(bent, rng):
    model, _attention = bent
    Z = gaussian(rng, *model.centre.shape)
    assert_close(torch.einsum("fnd,nd->f", model.coordinates(), Z), Z.flatten())
