"""The worst swap, against trying all of them; filters; equal budgets."""

import pytest
import torch
from models.small_models import build
from tokens.tiny import LENGTH, NAMES, tiny

import howsmooth as hs
from howsmooth.errors import AssumptionError, ShapeError, UnsupportedModelError
from howsmooth.tokens.methods import Outputs
from howsmooth.tokens.replacements import replacements
from howsmooth.tokens.swap_settings import METHODS


def run(model, rows, name, layer=0):
    """The output of a map, by running the model."""
    f, X = model.activations(rows).at(layer, name)
    return f(X)


def every_swap(model, tokens):
    allowed = replacements(model, tokens).allowed
    places, coming = allowed.nonzero().mT
    rows = tokens.expand(len(places), -1).clone()
    rows[torch.arange(len(places)), places] = coming
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_enumeration_finds_what_trying_all_swaps_finds(name):
    model, tokens = tiny(name)
    rows = every_swap(model, tokens)
    moved = (run(model, rows, "attention") - run(model, tokens[None], "attention")).flatten(1).norm(dim=1)
    found = hs.swap(model, tokens)
    assert found.proven
    assert found.tried == len(rows) > 200
    assert found.displacement == pytest.approx(float(moved.max()), rel=1e-4)
    assert found.swapped.tolist() == rows[moved.argmax()].tolist()


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma3_text", "deberta-v2"])
@pytest.mark.parametrize(("part", "layer"), [("sentence", 0), ("model", 0), ("attention", 1), ("mlp", 1), ("block", 0)])
def test_the_output_of_tokens_is_that_of_running_the_model(name, part, layer):
    model, tokens = tiny(name)
    if part == "sentence" and name in ("gpt2", "gemma3_text"):
        part = "logits"
    rows = torch.stack((tokens, tokens.flip(0)))
    outputs = Outputs.of(model, tokens, name=part, layer=layer)
    assert outputs.chain is not None
    torch.testing.assert_close(outputs(rows), run(model, rows, part, layer), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [method for method in METHODS if method != "enumeration"])
@pytest.mark.parametrize("edits", [1, 2])
def test_every_method_keeps_to_its_budget_and_its_edits(method, edits):
    model, tokens = tiny("bert")
    found = hs.swap(model, tokens, map="sentence", method=method, edits=edits, budget=50)
    moved = (run(model, found.swapped[None], "sentence") - run(model, tokens[None], "sentence")).norm()
    assert found.displacement == pytest.approx(float(moved), rel=1e-5)
    assert 1 <= len(found.positions) <= edits
    assert found.passes <= 50
    assert list(found.trace) == sorted(found.trace)
    assert found.cosine == pytest.approx(1 - float(moved) ** 2 / 2, abs=1e-5)  # on the sphere
    assert not found.proven


def test_a_search_without_end_finds_the_worst_swap_of_a_whole_model():
    model, tokens = tiny("bert")
    rows = every_swap(model, tokens)
    worst = float((run(model, rows, "sentence") - run(model, tokens[None], "sentence")).flatten(1).norm(dim=1).max())
    found = hs.swap(model, tokens, map="sentence", method="singular", budget=600)
    assert found.displacement == pytest.approx(worst, rel=1e-5)
    found = hs.swap(model, tokens, map="sentence", method="gcg", budget=150)
    assert 0.5 * worst < found.displacement <= worst * (1 + 1e-6)
    place = hs.swap(model, tokens, map="sentence", method="exhaustive")
    assert place.tried == 49 - 1  # all but the padding, and the token itself
    assert place.displacement <= worst * (1 + 1e-6)


def test_two_edits_of_attention_move_further_than_one():
    model, tokens = tiny("llama")
    one, two = hs.swap(model, tokens), hs.swap(model, tokens, edits=2)
    assert two.displacement > one.displacement
    assert not two.proven
    moved = (run(model, two.swapped[None], "attention") - run(model, tokens[None], "attention")).norm()
    assert two.displacement == pytest.approx(float(moved), rel=1e-4)
    assert set(one.positions) < set(two.positions)


def test_only_candidates_come_in():
    model, tokens = tiny("bert")
    found = hs.swap(model, tokens, candidates=[11, 12])
    assert set(found.swapped[list(found.positions)].tolist()) <= {11, 12}
    own = {int(tokens[2]): [21], int(tokens[4]): [22]}
    found = hs.swap(model, tokens, candidates=own, edits=2)
    assert {(int(tokens[i]), int(found.swapped[i])) for i in found.positions} <= {
        (token, other) for token, others in own.items() for other in others
    }


@pytest.mark.slow
def test_words_are_replaced_by_words_that_text_can_spell(minilm):
    tokenizer = minilm.tokenizer
    before, behind = tokenizer.frame()
    tokens = torch.tensor(before + tokenizer.encode("the king was unkindly old.") + behind)
    pieces = tokenizer.pieces(tokens.tolist())
    allowed = replacements(minilm, tokens, whole_words=True, round_trip=True)
    words = [pieces[i] for i in allowed.positions.tolist()]
    assert words == ["the", "king", "was", "old"]
    coming = tokenizer.pieces(allowed.allowed.any(0).nonzero()[:, 0].tolist())
    assert all(piece.isalpha() for piece in coming)
    found = hs.swap(
        minilm, tokens, map="sentence", candidates={"king": ["queen", "crown prince"], "old": ["new"]}, budget=40
    )
    assert tokenizer.pieces(found.swapped[list(found.positions)].tolist()) in (["queen"], ["new"])
    spelled = allowed.spelled
    assert spelled(tokens.tolist())
    assert not spelled([101, 2332, 6, 102])  # [unused5], which text cannot spell


def test_a_model_may_be_its_name_its_folder_or_a_module(tmp_path):
    named = hs.swap("reviews", "a gripping film", map="attention", seed=0)
    model = hs.load("reviews")
    assert hs.swap(model, "a gripping film", map="attention", seed=0).to_json() == named.to_json()
    module, tokens = tiny("bert")[0].module, tiny("bert")[1]
    module.save_pretrained(tmp_path / "model")
    for one in (module, tmp_path / "model", str(tmp_path / "model")):
        assert hs.swap(one, tokens, seed=0).to_json() == hs.swap(tiny("bert")[0], tokens, seed=0).to_json()
    with pytest.raises(UnsupportedModelError, match=r"no model 'minilmm'.*did you mean minilm"):
        hs.swap("minilmm", tokens)


@pytest.mark.untyped
def test_what_cannot_be_swapped_is_refused():
    model, tokens = tiny("bert")
    for arguments, words in (
        ({"method": "gradients"}, "did you mean gradient"),
        ({"map": "model", "method": "enumeration"}, "of layer 0"),
        ({"layer": 1, "method": "enumeration"}, "of layer 0"),
        ({"edits": 0}, "at least 1"),
        ({"edits": LENGTH + 1}, f"the {LENGTH} tokens that may be replaced, got {LENGTH + 1}"),
        ({"budget": 0}, "at least 1"),
        ({"candidates": []}, "no token may be swapped"),
        ({"candidates": [50]}, "tokens 0 to 49, got 50"),
        ({"layer": 2}, "layers 0 to 1, got 2"),
        ({"map": "logits"}, "no map 'logits'"),
    ):
        with pytest.raises(AssumptionError, match=words):
            hs.swap(model, tokens, **arguments)
    with pytest.raises(ShapeError, match="one sequence"):
        hs.swap(model, tokens[None])
    with pytest.raises(UnsupportedModelError, match="without a tokenizer"):
        hs.swap(model, tokens, whole_words=True)
    with pytest.raises(UnsupportedModelError, match="reads no tokens"):
        hs.swap(build("vit"), tokens)
    padded = tokens.clone()
    padded[1] = 1
    with pytest.raises(AssumptionError, match="padding"):
        hs.swap(tiny("roberta")[0], padded)


def test_on_a_classifier_it_is_said_whether_the_class_changes_and_how_many_sequences_change_it():
    model = hs.load("reviews")
    words = ["dull", "boring", "mess", "good", "great", "the", "funny"]
    tokens = torch.tensor([2, *model.tokenizer.encode("a gripping film"), 3])
    places = (1, 2, 3)
    found = hs.swap(model, tokens, map="classes", method="exhaustive", candidates=words, seed=0)
    # every sequence by hand
    rows = torch.cat([tokens[None].repeat(len(words), 1) for _place in places])
    for row, (place, word) in zip(rows, ((p, w) for p in places for w in words), strict=True):
        row[place] = model.tokenizer.encode(word)[0]
    with torch.no_grad():
        f, X = model.activations(torch.cat((tokens[None], rows))).at(0, "classes")
        classes = f(X)[:, 0].argmax(-1)
    labels = model.ends.class_head.labels
    place = found.positions[0]
    tried = classes[1:].view(3, -1)[place - 1]
    assert found.tried == len(words)
    assert found.flips == int((tried != classes[0]).sum()) > 0
    after = tried[words.index(model.tokenizer.pieces([int(found.swapped[place])])[0])]
    assert found.classes == (labels[int(classes[0])], labels[int(after)])
    assert found.as_dict()["flipped"] == found.flipped == (after != classes[0])
    elsewhere = hs.swap(model, tokens, map="attention", candidates=["dull"])
    assert elsewhere.flips is None
    assert elsewhere.classes[0] == found.classes[0]
