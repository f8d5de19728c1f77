"""A token that is copied, and the copy changed: masses add up, and nothing happens where nothing changes."""

import sys
from pathlib import Path

import pytest
import torch
from tokens.tiny import LENGTH, tiny
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "figures"))

from token_splitting import _split, _TextMeasures, token_splitting

P = 2
INDEX = torch.tensor([*range(P + 1), *range(P, LENGTH)])
MASSES = torch.ones(LENGTH + 1, dtype=torch.float64).index_fill(0, torch.tensor([P, P + 1]), 0.5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral", "t5", "bloom", "gpt_neo", "mpnet"])
@pytest.mark.parametrize("part", ["attention", "model"])
def test_a_token_in_two_halves_is_the_same_token(name, part):
    model, tokens = tiny(name)
    text = _TextMeasures.of(model, tokens, part)
    X = text._read(text.known(tokens))
    assert_close(_split(text.chain, INDEX, MASSES)(X[INDEX]), text.chain(X)[INDEX])


def test_a_sentence_in_halves_is_the_same_sentence():
    model, tokens = tiny("bert")
    text = _TextMeasures.of(model, tokens, "sentence")
    X = text._read(text.known(tokens))
    assert_close(_split(text.chain, INDEX, MASSES)(X[INDEX]), text.chain(X))


@pytest.mark.parametrize(("name", "causal"), [("bert", False), ("gpt2", True), ("llama", True)])
def test_ratios_are_those_of_distances_between_measures(name, causal):
    model, tokens = tiny(name)
    found = token_splitting(model, tokens, pairs=4)
    distance = hs.transport.conditional_wasserstein if causal else hs.transport.wasserstein
    f = model.layers[0].attention
    pair = found.pairs[0]
    assert found.masked == causal
    assert (pair.shifted is None) == causal
    changed = tokens.clone()
    changed[pair.position] = pair.token
    mu, nu = (
        hs.transport.DiscreteMeasure.from_sequence(model.activations(row[None]).attention[0][0], causal=causal)
        for row in (tokens, changed)
    )
    apart = distance(mu.push_forward(f), nu.push_forward(f))
    assert pair.moved_by == pytest.approx(float(apart), rel=1e-4)
    assert pair.moved == pytest.approx(float(apart / distance(mu, nu)), rel=1e-4)
    # half of the token goes: by hand, with masses
    parts = mu.split(pair.position, 2)
    points = parts.points.clone()
    points[pair.position + 1] = nu.points[pair.position]
    split = hs.transport.DiscreteMeasure(points, parts.weights, parts.positions)
    if name != "llama":  # with rotary positions attention on measures has no order to turn by
        apart = distance(mu.push_forward(f), split.push_forward(f.on(split)))
        assert pair.doubled_by == pytest.approx(float(apart), rel=1e-4)
        assert pair.doubled == pytest.approx(float(apart / distance(mu, split)), rel=1e-4)
    assert 0 <= found.share <= 1
    assert found.best("moved").moved == max(pair.moved for pair in found.pairs)
    assert found.as_dict()["share"] == found.share
    assert found.edit_share == sum(pair.doubled_by > pair.moved_by for pair in found.pairs) / len(found.pairs)
    assert found.as_dict()["token_edits"] == 1


def test_one_more_token_is_read_at_the_next_position():
    model, tokens = tiny("bert")
    pair = token_splitting(model, tokens, pairs=1).pairs[0]
    p = pair.position
    longer = torch.cat((tokens[: p + 1], torch.tensor([pair.token]), tokens[p + 1 :]))
    mu, nu = (hs.transport.DiscreteMeasure(model.activations(row[None]).attention[0][0]) for row in (tokens, longer))
    f = model.layers[0].attention
    apart = hs.transport.wasserstein(mu.push_forward(f), nu.push_forward(f))
    assert pair.shifted_by == pytest.approx(float(apart), rel=1e-5)
    assert pair.shifted == pytest.approx(float(apart / hs.transport.wasserstein(mu, nu)), rel=1e-5)


def test_what_cannot_be_doubled_is_refused():
    model, tokens = tiny("bert")
    with pytest.raises(AssumptionError, match="begins at the first layer"):
        token_splitting(model, tokens, map="from:1")
    with pytest.raises(AssumptionError, match="at least 1"):
        token_splitting(model, tokens, pairs=0)
    with pytest.raises(AssumptionError, match="DeBERTa"):
        token_splitting(*tiny("deberta-v2"), pairs=1)
