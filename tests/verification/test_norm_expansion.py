"""Norms in a Taylor model, term by term: each as its module says it, token by token, with numbers alone."""

import math

import pytest
import torch
from torch.testing import assert_close
from verification.small_networks import entered, gaussian, network

import howsmooth as hs
from howsmooth.verification.norm_expansion import NormExpansion
from howsmooth.verification.taylor_model import Forms

NORMS = {
    "layer norm": lambda rng: hs.maps.LayerNorm(gain=1 + 0.3 * gaussian(rng, 4), bias=gaussian(rng, 4), eps=0.3),
    "root mean square": lambda rng: hs.maps.RMSNorm(gain=1 + 0.3 * gaussian(rng, 4), eps=0.1),
}


def behind_attention(rng, eps):
    """The model of tokens that attention has bent."""
    f = network(rng, layers=1)
    model, _enters = entered(f, eps, [f.maps[1].map], gaussian(rng, 6))
    return model


class Token:
    """One token: what its change along and across may be."""

    def __init__(self, norm, model, i, forms):
        x, d = model.centre[i], model.centre.shape[1]
        centring = torch.eye(d, dtype=x.dtype) - (1 / d if norm.centred else 0)
        c = centring @ x
        N = math.sqrt(float(c @ c) + d * norm.eps)
        self.unit, self.constant = c / N, math.sqrt(d * norm.eps) / N
        self.along = self.unit / N
        self.across = (centring - torch.outer(self.unit, self.unit)) / N
        columns = model.derivative[i]
        self.u1, self.w1 = self.along @ columns, self.across @ columns
        self.whole = torch.cat([self.w1, -self.constant * self.u1[None]])

        def beyond(functional):
            at = torch.zeros(1, *model.centre.shape, dtype=x.dtype)
            at[0, i] = functional
            return float(model.beyond_linear(at, forms=forms).size)

        self.U1 = float(model.symbols.linear_range(self.u1))
        self.U2 = beyond(self.along)
        self.w2 = [beyond(row) for row in self.across]
        self.W1 = math.sqrt(float(model.symbols.quadratic_range((self.whole.mT @ self.whole)[None])[1]))
        self.W2 = math.sqrt(sum(w**2 for w in self.w2) + (self.constant * self.U2) ** 2)
        self.U, self.W = self.U1 + self.U2, self.W1 + self.W2

    def left_along(self):
        """½(w² − w₁²), what ρ adds to it, and the fourth order."""
        room = 1 - self.U
        squares = 0.5 * (self.W**2 - self.W1**2)
        return squares + 0.5 * self.W**2 * (1 / room**2 - 1) + 3 / 8 * (self.W / room) ** 4

    def left_across(self):
        room = 1 - self.U
        return max(self.U**2 / room, self.W**2 / (2 * room**3))


@pytest.mark.parametrize("forms", [False, True])
@pytest.mark.parametrize("eps", [0.01, 0.15])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_has_the_orders_and_the_remainder_of_its_formulas(name, eps, forms, rng):
    norm, model = NORMS[name](rng), behind_attention(rng, eps)
    n, d = model.centre.shape
    stage = NormExpansion(norm, model, forms=forms)
    tokens, gain = [Token(norm, model, i, forms) for i in range(n)], math.sqrt(d) * norm.gain
    assert all(0 < token.U < 1 and token.U2 > 0 for token in tokens)
    assert_close(stage.value, norm(model.centre))
    for i, token in enumerate(tokens):
        assert_close(stage.linear[i], gain[:, None] * token.w1)
        assert float(stage.U2[i]) == pytest.approx(token.U2, rel=1e-9)
        assert stage.on_unit[i].item() == pytest.approx(token.left_along(), rel=1e-9)
        assert stage.on_across[i].item() == pytest.approx(token.left_across(), rel=1e-9)
    functionals = gaussian(rng, 2, n, d)
    exact, ranges = (Forms(model.symbols, 2, size, functionals) for size in (model.derivative.shape[-1], None))
    pulled = stage.pull_back(functionals, exact)
    assert_close(stage.pull_back(functionals, ranges), pulled)
    for f, functional in enumerate(functionals):
        form, products, remainder = 0 * exact.matrices[f], 0.0, 0.0
        for i, token in enumerate(tokens):
            scaled = functional[i] * gain
            assert_close(pulled[f, i], scaled @ token.across)
            on_unit, on_w = float(scaled @ token.unit), scaled @ token.w1
            size = float(model.symbols.linear_range(on_w))
            beyond = sum(abs(float(s)) * w for s, w in zip(scaled, token.w2, strict=True))
            form = form - 0.5 * on_unit * token.whole.mT @ token.whole - torch.outer(token.u1, on_w)
            products += 0.5 * abs(on_unit) * token.W1**2 + token.U1 * size
            remainder += abs(on_unit) * token.left_along() + token.U2 * size + token.U * beyond
            remainder += token.left_across() * (size + beyond)
        assert_close(exact.matrices[f] + exact.matrices[f].mT, form + form.mT)
        assert exact.products[f] == 0
        assert float(ranges.products[f]) == pytest.approx(products, rel=1e-9)
        for sums in (exact, ranges):
            assert float(sums.remainder[f]) == pytest.approx(remainder, rel=1e-9)


def test_nothing_is_known_of_a_token_that_may_change_its_sign(rng):
    norm, model = NORMS["layer norm"](rng), behind_attention(rng, 3.0)
    stage = NormExpansion(norm, model, forms=False)
    far = stage.U >= 1
    assert far.any()
    assert (stage.on_unit.isinf() == far).all()
    assert (stage.on_across.isinf() == far).all()
    functionals = gaussian(rng, 1, *model.centre.shape)
    sums = Forms(model.symbols, 1, None, functionals)
    stage.pull_back(functionals, sums)
    assert sums.remainder.isinf().all()
    # 1 itself is not below 1
    stage_at = norm_of_one_number(1.0)
    assert float(stage_at.U) == pytest.approx(1.0, abs=1e-9)
    assert torch.isinf(norm_of_one_number(1.0 + 1e-6).on_unit).all()
    assert not torch.isinf(norm_of_one_number(1.0 - 1e-6).on_unit).any()


def norm_of_one_number(eps):
    """RMSNorm of a token 1 that moves by a radius, without a constant coordinate: u is the change."""
    embedding = hs.maps.Affine(weight=torch.ones(1, 1, 1, 1).double(), bias=torch.zeros(1, 1).double())
    model, _enters = entered(hs.maps.Chain(embedding, embedding), eps, [], torch.ones(1).double())
    return NormExpansion(hs.maps.RMSNorm(gain=torch.ones(1).double(), eps=0.0), model, forms=False)
