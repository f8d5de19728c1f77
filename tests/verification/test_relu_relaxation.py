"""ReLU layers in a Taylor model: with the right symbols the model is the layer, and ranges are those of their parts."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network

import howsmooth as hs
from howsmooth.verification.network_expansion import expand
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import Forms, TaylorModel


def relaxation(model):
    (found,) = [part for stage in model.stages for part in stage.parts if isinstance(part, ReLURelaxation)]
    return found


@pytest.mark.parametrize("biased", [True, False])
def test_a_relaxed_layer_with_the_right_symbols_is_the_layer(rng, biased):
    f = network(rng, layers=1)
    layer, x, eps = f.maps[2].map, gaussian(rng, 6), 0.4
    layer = layer if biased else dataclasses.replace(layer, up_bias=None, down_bias=None)
    model, _enters = entered(f, eps, [layer], x)
    stage = relaxation(model)
    assert 0 < int(stage.bent.sum()) < stage.bent.numel()
    # a chord through both ends, and a line parallel to it below
    slope, gap, lower, upper = (getattr(stage, name)[stage.bent] for name in ("slope", "gap", "lower", "upper"))
    assert_close(slope * lower + 2 * gap, torch.zeros_like(gap), rtol=0, atol=1e-14)
    assert_close(slope * upper + 2 * gap, upper)
    bias = 0 if layer.up_bias is None else layer.up_bias
    corners = torch.randint(0, 2, (200, 6), generator=rng).double() * 2 - 1
    seen = []
    for xi in corners:
        tokens = f.maps[0]((x + eps * xi)[None])
        y = tokens @ layer.up.mT + bias
        eta = ((torch.relu(y) - stage.slope * y) / stage.gap - 1)[stage.bent]
        assert (eta.abs() <= 1 + 1e-9).all()
        coordinates = torch.einsum("bcs,bs->bc", model.symbols.generators, xi.reshape(2, 3)).flatten()
        assert_close(model.centre + model.derivative @ torch.cat((coordinates, eta)), tokens + layer(tokens))
        seen.append(y)
    # tokens are linear in the box here, so that corners attain both ends
    assert_close(torch.stack(seen).amin(0), stage.lower, rtol=1e-6, atol=1e-6)
    assert_close(torch.stack(seen).amax(0), stage.upper, rtol=1e-6, atol=1e-6)
    assert (stage.beyond_linear == 0).all()


def test_a_unit_at_the_end_of_its_range_is_straight():
    # y = 1 + ξ and −1 + ξ: both touch the kink, neither crosses it
    embedding = hs.maps.Affine(weight=torch.ones(1, 1, 1, 1).double() / (1 + 1e-10), bias=torch.zeros(1, 1).double())
    layer = hs.maps.MLP(
        up=torch.ones(2, 1).double(),
        down=torch.ones(1, 2).double(),
        up_bias=torch.tensor([1.0, -1.0]).double(),
        down_bias=None,
        activation="relu",
    )
    model, _enters = entered(hs.maps.Chain(embedding, embedding), 1.0, [layer], torch.zeros(1).double())
    stage = relaxation(model)
    assert_close(stage.lower, torch.tensor([[0.0, -2.0]]).double())
    assert stage.slope.tolist() == [[1.0, 0.0]]
    assert not stage.bent.any()


@pytest.mark.parametrize(("forms", "larger"), [(False, 1), (True, 1), (True, 1000)])
def test_hidden_units_behind_attention_have_the_range_of_their_functionals(rng, forms, larger, monkeypatch):
    f = network(rng, layers=1)
    layer = f.maps[2].map
    model, _enters = entered(f, 0.15, [f.maps[1].map], gaussian(rng, 6))
    model = expand(hs.maps.Dense(layer.up, layer.up_bias), model, 0)
    plain = TaylorModel.beyond_linear

    def ranges(self, functionals, *, forms):  # bounds by forms may be larger than those by products
        found = plain(self, functionals, forms=forms)
        return dataclasses.replace(found, remainder=found.remainder * (larger if forms else 1))

    monkeypatch.setattr(TaylorModel, "beyond_linear", ranges)
    ways = [model.beyond_linear(model.coordinates(), forms=way) for way in ((False, True) if forms else (False,))]
    linear, centre = model.symbols.linear_range(model.derivative).flatten(), model.centre.flatten()
    coarse = [getattr(ways[0], side) + ways[0].remainder for side in ("below", "above")]
    close = [getattr(ways[-1], side) + ways[-1].remainder for side in ("below", "above")]
    may_bend = (centre - linear - coarse[0] < 0) & (centre + linear + coarse[1] > 0)
    below, above = (torch.where(may_bend, torch.minimum(a, b), a) for a, b in zip(coarse, close, strict=True))
    stage = ReLURelaxation(model, forms=forms)
    assert_close(stage.lower.flatten(), centre - linear - below)
    assert_close(stage.upper.flatten(), centre + linear + above)
    assert_close(stage.beyond_linear.flatten(), torch.maximum(below, above))
    assert_close(stage.bent, (stage.lower < 0) & (stage.upper > 0))
    assert stage.bent.any()


def test_functionals_are_pulled_back_along_the_lines(rng):
    f = network(rng, layers=1)
    model, _enters = entered(f, 0.4, [f.maps[2].map], gaussian(rng, 6))
    stage, layer = relaxation(model), f.maps[2].map
    functionals = gaussian(rng, 2, *model.centre.shape)
    sums = Forms(model.symbols, 2, None, functionals)
    found = model.stages[0].pull_back(functionals, sums)
    lines = torch.einsum("oh,nh,hd->nod", layer.down, stage.slope, layer.up)
    assert_close(found, functionals + torch.einsum("fno,nod->fnd", functionals, lines))
    assert not sums.remainder.any()
