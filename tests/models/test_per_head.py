"""All heads of a layer in one Krylov iteration, and the room of a text for windows."""

import pytest
import torch
from models.small_models import TEXT, build, each
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.inputs.text import Text, WordNumbers, read_text


def tokens(rng):
    return torch.randint(3, 50, (2, 7), generator=rng)


@pytest.mark.parametrize("family", each(TEXT))
def test_heads_in_a_batch_are_the_heads_one_by_one(family, rng):
    transformer = build(family)
    for padding in (None, torch.arange(7) < torch.tensor([7, 5])[:, None]):
        found = transformer.activations(tokens(rng), padding=padding)
        f, X = found.per_head(1)
        together = f(X)
        for h in range(transformer.layers[1].closed_form.layout.heads):
            g, Y = found.at(1, f"head:{h}")
            assert_close(together[:, h], g(Y))


@pytest.mark.parametrize("family", each(["bert", "gemma2", "gpt2", "llama", "mpnet", "vit"], quick=("gpt2",)))
def test_heads_in_a_batch_have_the_constants_of_the_heads_one_by_one(family, rng):
    transformer = build(family)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=rng)
    found = transformer.activations(images if family == "vit" else tokens(rng))
    together = hs.local_lipschitz(*found.per_head(1), rtol=1e-9, max_steps=200, seed=rng)
    assert together.lower.shape == (2, 4)
    for h in range(4):
        alone = hs.local_lipschitz(*found.at(1, f"head:{h}"), rtol=1e-9, max_steps=200, seed=rng)
        # both stop within rtol of the truth, from different starts
        assert_close(together.lower[:, h], alone.lower, rtol=1e-8, atol=0)


def test_heads_of_a_layer_that_is_not_there_are_refused(rng):
    found = build("bert").activations(tokens(rng))
    with pytest.raises(hs.errors.AssumptionError, match="0 to 1, got 2") as caught:
        found.per_head(2)
    assert caught.value.field == "layer"


@pytest.mark.parametrize("stride", [None, 3, 9, 100])
@pytest.mark.parametrize("length", [1, 4, 7, 40])
@pytest.mark.parametrize("words", [1, 7, 39, 40, 41, 100])
def test_the_room_of_a_text_is_the_most_windows_that_can_be_cut(length, stride, words):
    module = build("bert")
    transformer = hs.Transformer(name="small", module=module.module, layers=module.layers, tokenizer=WordNumbers(50))
    text = Text(name="note", content=" ".join(f"w{i}" for i in range(words)))
    room = transformer.room(text, length=length, stride=stride)
    if room:
        assert len(transformer.windows(text, length=length, count=room, stride=stride)) == room
    with pytest.raises(hs.errors.AssumptionError, match=f"enough for {room} windows") as caught:
        transformer.windows(text, length=length, count=room + 1, stride=stride)
    assert caught.value.field == "sequences"


def test_special_tokens_take_room():
    minilm = hs.load("minilm")
    book = read_text()
    plain = minilm.room(book, length=100)
    framed = minilm.room(book, length=100, special_tokens=True)
    whole = len(minilm.tokenizer.encode(book.content))
    assert (plain, framed) == (whole // 100, whole // 98)
    with pytest.raises(hs.errors.AssumptionError, match="positions for 512 tokens") as caught:
        minilm.room(book, length=513)
    assert caught.value.field == "length"


def test_a_stride_that_goes_nowhere_is_refused():
    model = build("bert")
    transformer = hs.Transformer(name="small", module=model.module, layers=model.layers, tokenizer=WordNumbers(50))
    with pytest.raises(hs.errors.AssumptionError, match="stride must be at least 1") as caught:
        transformer.windows(read_text(), length=4, count=2, stride=0)
    assert caught.value.field == "stride"
