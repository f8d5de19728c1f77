"""What enters a model gives its tokens back, for every family."""

import dataclasses

import pytest
import torch
from models.small_models import CONFIGS, build, inputs, randomised
from tokens.tiny import NAMES, tiny
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnsupportedModelError
from howsmooth.models.inputs.text import read_text
from howsmooth.models.parts.ends import STAGES, lexicon


@pytest.mark.parametrize("name", NAMES)
def test_tokens_come_back_from_every_stage(name):
    model, tokens = tiny(name)
    found = model.activations(tokens[None])
    _f, summed = found.at(0, "network")
    entering = {"embeddings": model.embed(tokens), "block": found.blocks[0][0], "attention": found.attention[0][0]}
    assert_close(entering["embeddings"], summed[0], rtol=0, atol=0)
    assert_close(lexicon(model, len(tokens))(tokens), summed[0])
    for stage in STAGES:
        back = hs.tokens.invert(model, entering[stage], at=stage)
        assert back.tokens.tolist() == tokens.tolist()
        assert float(back.distances.max()) < 1e-4 * float(back.margins.min())
        assert not back.ties.any()


def test_positions_are_counted_from_behind_the_padding_as_the_model_does(rng):
    model, tokens = build("roberta"), inputs("roberta", rng)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[:, 7:] = False
    tokens[:, 7:] = 1  # RoBERTa's padding
    _f, X = model.activations(tokens, padding=real).at(0, "network")
    assert_close(model.embed(tokens, padding=real), X, rtol=0, atol=0)
    assert hs.tokens.invert(model, X[:, :7]).tokens.tolist() == tokens[:, :7].tolist()


def test_equal_embeddings_tie(rng):
    model = hs.load(randomised(CONFIGS["bert"](), rng))
    table = model.module.get_input_embeddings().weight.data
    table[7] = table[11]
    found = hs.tokens.invert(model, model.embed(torch.tensor([[11, 12]])))
    assert found.ties.tolist() == [[1, 0]]
    assert found.tokens.tolist()[0][0] in (7, 11)
    assert float(found.margins[0, 0]) == 0
    assert float(found.margins[0, 1]) > 0
    assert "1 ties" in repr(found)


def test_the_distance_and_the_margin_are_those_of_a_search_by_hand(rng):
    model, tokens = build("gpt2"), inputs("gpt2", rng)
    X = model.embed(tokens)
    X = X + torch.randn(X.shape, dtype=X.dtype, generator=rng)
    known = lexicon(model, X.shape[-2])
    every = torch.cdist(X.transpose(0, 1), known.words + known.places[:, None]).transpose(0, 1)
    nearest = every.sort(dim=-1)
    found = hs.tokens.invert(model, X)
    assert found.tokens.tolist() == nearest.indices[..., 0].tolist()
    assert_close(found.distances, nearest.values[..., 0])
    assert_close(found.margins, nearest.values[..., 1] - nearest.values[..., 0])


def test_a_page_of_real_text_comes_back(minilm):
    tokens = minilm.windows(read_text(), length=32, count=2, special_tokens=True)
    found = hs.tokens.invert(minilm, minilm.embed(tokens))
    assert found.tokens.tolist() == tokens.tolist()
    assert float(found.distances.max()) < 1e-4 < float(found.margins.min())


@pytest.mark.untyped
def test_what_cannot_be_inverted_is_refused(rng):
    model, tokens = build("albert"), inputs("albert", rng)
    X = model.embed(tokens)
    with pytest.raises(AssumptionError, match="embeddings, block, attention"):
        hs.tokens.invert(model, X, at="norm")
    with pytest.raises(ShapeError, match="dimension 24, got 12"):
        hs.tokens.invert(model, X, at="block")
    with pytest.raises(ShapeError, match="shape"):
        hs.tokens.invert(model, X[0, 0])
    with pytest.raises(DtypeError, match="whole numbers"):
        model.embed(X)
    with pytest.raises(AssumptionError, match="0 to 49, got 50"):
        model.embed(tokens * 0 + 50)
    with pytest.raises(AssumptionError, match="positions for 40"):
        model.embed(torch.zeros(1, 41, dtype=torch.long))
    with pytest.raises(AssumptionError, match="positions for 40"):
        hs.tokens.invert(model, X.new_zeros(1, 41, 12))
    with pytest.raises(UnsupportedModelError, match="reads no tokens"):
        lexicon(build("vit"), 3)
    stranger = dataclasses.replace(model, ends=type(model.ends)())
    with pytest.raises(UnsupportedModelError, match="not known"):
        stranger.embed(tokens)
