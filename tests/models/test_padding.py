"""At padded inputs every map has the constants of the sentence alone."""

import pytest
import torch
from models.small_models import TEXT, build, each, inputs
from oracles import dense_by_rows
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.spectral.autograd import linearise

LENGTH, REAL = 7, 4


def padded_and_alone(family, rng):
    """One sentence of four tokens: in a batch with a longer one, and by itself."""
    transformer = build(family)
    tokens = inputs(family, rng, length=LENGTH)
    padding = torch.arange(LENGTH) < torch.tensor([[LENGTH], [REAL]])
    return transformer.activations(tokens, padding=padding), transformer.activations(tokens[1:, :REAL])


def measured(f, X, rng):
    # of hundreds of brackets none may miss
    return hs.local_lipschitz(f, X, rtol=1e-6, confidence=1 - 1e-9, seed=rng).lower


def same_operator(padded, alone, rng):
    """Both products of a map at padded inputs are those of the sentence alone, and nothing comes from the padding.

    Random directions tell operators apart in all their singular values, by two products each.
    """
    (f, X), (g, Y) = padded, alone
    J, K = linearise(f, X), linearise(g, Y)
    E, G = (torch.randn(*J.batch, *shape, dtype=X.dtype, generator=rng) for shape in (J.domain, J.codomain))
    moved, pulled = J.jvp(E)[1:], J.vjp(G)[1:]
    # some modules take angles or softmaxes in float32
    assert_close(moved[..., :REAL, :], K.jvp(E[1:, ..., :REAL, :]), rtol=1e-5, atol=1e-6)
    assert_close(pulled[..., :REAL, :], K.vjp(G[1:, ..., :REAL, :]), rtol=1e-5, atol=1e-6)
    assert moved[..., REAL:, :].abs().max() == pulled[..., REAL:, :].abs().max() == 0


def parts(found):
    part = found.layers[1]
    # ModernBERT's first layer has no norm; others have theirs behind
    return ["attention", "heads", "head:1", "residual", *(["normed"] if part.pre_norm is not None else [])]


@pytest.mark.parametrize("family", each(TEXT))
def test_a_padded_sentence_has_the_constants_it_has_alone(family, rng):
    padded, alone = padded_and_alone(family, rng)
    for name in (*parts(padded), "block"):
        same_operator(padded.at(1, name), alone.at(1, name), rng)
    same_operator(padded.per_head(1), alone.per_head(1), rng)
    # and the solver finds the same constants: the measurement's own rtol
    f, X = padded.at(1)
    assert_close(measured(f, X, rng)[1:], measured(*alone.at(1), rng), rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["head:1", "normed", "block"])
@pytest.mark.parametrize("family", ["gemma2", "gpt2", "modernbert", "t5"])
def test_a_padded_sentence_has_the_constant_of_every_part_that_it_has_alone(family, name, rng):
    padded, alone = padded_and_alone(family, rng)
    f, X = padded.at(1, name)
    assert_close(measured(f, X, rng)[1:], measured(*alone.at(1, name), rng), rtol=1e-5, atol=0)
    together = measured(*padded.per_head(1), rng)
    assert_close(together[1:], measured(*alone.per_head(1), rng), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["attention", "residual", "block"])
def test_noise_lives_on_real_tokens(name, rng):
    padded, alone = padded_and_alone("bert", rng)
    f, X = padded.at(1, name)
    g, Y = alone.at(1, name)
    exact = dense_by_rows(g, Y).norm() / (REAL * 24) ** 0.5
    found = hs.typical_gain(f, X, samples=100, seed=rng)
    assert found.low[1] <= exact <= found.high[1]


def test_padded_tokens_neither_move_nor_answer(rng):
    padded, _alone = padded_and_alone("gpt2", rng)
    for name in ("attention", "residual", "block"):
        f, X = padded.at(1, name)
        estimate = hs.local_lipschitz(f, X, seed=rng)
        assert estimate.token_sensitivity[1, REAL:].abs().max() == 0
        assert estimate.token_response[1, REAL:].abs().max() == 0


def test_a_batch_without_padding_is_measured_as_it_is(rng):
    transformer = build("bert")
    tokens = inputs("bert", rng)
    found = transformer.activations(tokens, padding=torch.ones_like(tokens, dtype=torch.bool))
    assert isinstance(found.at(0)[0], hs.Attention)
    assert isinstance(found.per_head(0)[0], hs.Attention)


def test_a_sentence_without_a_real_token_is_refused(rng):
    transformer = build("bert")
    padding = torch.tensor([[True] * 9, [False] * 9])
    with pytest.raises(hs.errors.AssumptionError, match="every sequence a real token") as caught:
        transformer.activations(inputs("bert", rng), padding=padding)
    assert caught.value.field == "padding"


def test_what_is_padding_must_fit_the_tokens():
    f = build("bert").layers[0].attention
    with pytest.raises(hs.errors.ShapeError, match="each of 5 tokens, got 4") as caught:
        RealTokens(map=f, real=torch.tensor([True] * 4)).jacobian(torch.zeros(5, 24, dtype=torch.float64))
    assert caught.value.field == "real"
