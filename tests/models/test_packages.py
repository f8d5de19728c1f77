"""Real weights from ordinary packages, on a real book. A package that is missing fails here, with howsmooth's words."""

import math

import pytest
import torch
from models.families import run

import howsmooth as hs
from howsmooth.models.text import read_text


@pytest.fixture(scope="module")
def minilm():
    return hs.load("minilm")


@pytest.fixture(scope="module")
def smollm2():
    return hs.load("smollm2")


def relative_errors(transformer, tokens, *, padding=None):
    """How far each layer of ours is from the module's own output, relative to its norm."""
    writes = [site.writes for site in transformer.sites]
    found, heard = run(transformer, tokens, writes, padding=padding)
    real = ... if padding is None else padding
    errors = []
    for site, (_read, written) in zip(transformer.sites, heard, strict=True):
        f, X = found.at(site.layer)
        errors.append(float(torch.linalg.vector_norm(f(X)[real] - written[real]) / written[real].norm()))
    return errors


def test_minilm_is_read_exactly_at_every_layer(minilm):
    errors = relative_errors(minilm, minilm.windows(read_text(), length=128, count=3))
    assert len(errors) == 6
    assert max(errors) < 1e-5


def test_minilm_is_read_exactly_with_special_tokens_and_padding(minilm):
    tokens = minilm.windows(read_text(), length=48, count=3, special_tokens=True)
    padding = torch.arange(48) < torch.tensor([48, 30, 5])[:, None]
    assert max(relative_errors(minilm, tokens * padding, padding=padding)) < 1e-5


def test_minilm_is_the_model_that_its_package_says_it_is(minilm):
    attention = minilm.sites[0].attention
    assert (attention.layout.heads, attention.d, attention.dtype) == (12, 384, torch.float32)
    assert (minilm.max_length, minilm.notes) == (512, ())
    assert minilm.digest == hs.load("minilm").digest
    assert minilm.digest != hs.load("minilm", dtype=torch.float64).digest


def test_minilms_sentences_with_one_meaning_are_near_each_other(minilm):
    # it is a sentence encoder: a wrong layer would show here
    def embed(sentence):
        before, behind = minilm.tokenizer.frame()
        tokens = torch.tensor([before + minilm.tokenizer.encode(sentence) + behind])
        with torch.no_grad():
            states = minilm.module(tokens).last_hidden_state
        return torch.nn.functional.normalize(states.mean(1), dim=-1)[0]

    cat, kitten, tax = map(embed, ("A cat sleeps.", "A kitten is asleep.", "Taxes are due in April."))
    assert cat @ kitten > 0.7 > 0.2 > cat @ tax


@pytest.mark.slow
def test_smollm2_is_read_exactly_at_every_layer(smollm2):
    errors = relative_errors(smollm2, smollm2.windows(read_text(), length=128, count=2))
    assert len(errors) == 30
    assert max(errors) < 1e-5


@pytest.mark.slow
def test_smollm2_predicts_alice(smollm2):
    # 28 when loaded right, 235 when the rows of queries and keys are not permuted back
    tokens = smollm2.windows(read_text(), length=512, count=4)
    losses = []
    for window in tokens:
        with torch.no_grad():
            states = smollm2.module(window[None]).last_hidden_state[0]
            logits = states[:-1] @ smollm2.module.embed_tokens.weight.mT
        losses.append(float(torch.nn.functional.cross_entropy(logits, window[1:])))
    assert math.exp(sum(losses) / len(losses)) < 40


@pytest.mark.slow
def test_smollm2_says_that_its_weights_are_4_bit(smollm2):
    attention = smollm2.sites[0].attention
    assert (attention.layout.heads, attention.layout.groups, attention.d) == (9, 3, 576)
    assert "4-bit" in " ".join(smollm2.notes)
