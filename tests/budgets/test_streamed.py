"""Budgets of models whose weights stay in their files: the same numbers as in memory, and one part there at a time."""

import dataclasses

import pytest
import torch
import transformers
from models.small_models import CONFIGS
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import UnsupportedModelError
from howsmooth.models.families.registry import PICTURES
from howsmooth.models.parts.ends import LANGUAGE_FAMILIES
from howsmooth.models.streaming import BlockStream

TOKENS = torch.arange(14).reshape(2, 7) * 3 + 3
EVERYWHERE = ["int4:g8", "residual:int8", "kernel:bf16"]
# The transformers library reads two towers, pairs of encoders and decoders and joined experts in ways of its own.
FAMILIES = sorted(CONFIGS.keys() - {*PICTURES, "clip_text_model", "bart", "t5", "mixtral"})


def saved(folder, family, kind=None, seed=0, **settings):
    """Save a small model with random weights, its language head included if the family has one."""
    config = CONFIGS[family]()
    config.tie_word_embeddings = False
    config.update(settings)
    if kind is None:
        kind = transformers.AutoModelForCausalLM if family in LANGUAGE_FAMILIES else transformers.AutoModel
    torch.manual_seed(seed)
    module = kind.from_config(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.save_pretrained(folder, max_shard_size="16KB")  # several files with an index
    return folder


def both(folder):
    return hs.load(folder, streamed=False), hs.load(folder, streamed=True)


def compare(plain, streamed, schemes):
    here, there = (hs.budget(model, TOKENS, schemes=schemes, passes=2, seed=1) for model in (streamed, plain))
    assert here.cost == there.cost
    for ours, theirs in zip(here.products.errors, there.products.errors, strict=True):
        assert_close(dataclasses.astuple(ours)[2:5], dataclasses.astuple(theirs)[2:5], rtol=1e-6, atol=0)
        assert ours.key == theirs.key
    size = there.products.values.abs().amax().item()
    assert_close(here.products.values, there.products.values, rtol=1e-5, atol=1e-6 * size)
    recipe = {error.name: schemes[0] for error in there.products.errors if error.scheme == schemes[0]}
    ours, theirs = (found.outcome(recipe) for found in (here, there))
    assert_close(ours.costs, theirs.costs, rtol=1e-4, atol=1e-9)
    return here, there


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, tmp_path):
    compare(*both(saved(tmp_path, family)), EVERYWHERE)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_tied_heads_and_caches(family, tmp_path):
    folder = saved(tmp_path, family, tie_word_embeddings=True)
    compare(*both(folder), ["int4:g8", "kv:int4", "kv-channel:int4"])
    with pytest.raises(UnsupportedModelError, match="without the module of its output head"):
        hs.budget(hs.load(folder, streamed=True), TOKENS, schemes=["embeddings:int8"])


def test_heads_of_words_and_classes_come_and_go_too(tmp_path):
    compare(*both(saved(tmp_path / "words", "llama")), ["embeddings:int4:g8"])
    classes = saved(tmp_path / "classes", "bert", transformers.AutoModelForSequenceClassification, num_labels=3)
    here, _there = compare(*both(classes), ["int4:g8", "embeddings:int8"])
    assert here.cost == "nats an input"


def test_one_part_is_there_at_a_time_and_read_once_for_all_passes(tmp_path, monkeypatch):
    _plain, streamed = both(saved(tmp_path, "llama"))
    bring, there = BlockStream._bring, []

    def watched(stream, path):
        found = bring(stream, path)
        filled = {name for name, W in stream.whole.named_parameters() if stream.comes(name) and not W.is_meta}
        assert all(name.startswith(f"{path}.") for name in filled)
        there.append(path)
        return found

    monkeypatch.setattr(BlockStream, "_bring", watched)
    for passes in (2, 20):
        before = streamed.stream.reads
        found = hs.budget(streamed, TOKENS, schemes=["int4:g8"], passes=passes)
        # at each of two windows the table, two blocks and the head, and backwards both blocks
        assert streamed.stream.reads - before == 2 * 6
    assert set(there) == {"model.embed_tokens", "model.layers.0", "model.layers.1", "lm_head"}
    recipe = found.recipe(size=0.6)
    assert recipe.measured == pytest.approx(float(found.measured(recipe.rounded)))
    # weights are again those of the files
    assert float(found.measured({})) == 0


def test_recipes_checks_and_checkpoints_are_those_of_the_model_in_memory(tmp_path):
    plain, streamed = both(saved(tmp_path / "one", "gpt2"))
    saved(tmp_path / "other", "gpt2")
    schemes = ["int8", "int3:g8", f"against:{tmp_path / 'other'}"]
    here, there = compare(plain, streamed, schemes[::-1][:1])
    assert float(here.together().kl) == 0  # the same weights
    here, there = compare(plain, streamed, schemes[:2])
    ours, theirs = (found.recipe(size=0.4, fresh=found.products) for found in (here, there))
    assert (ours.schemes, ours.size) == (theirs.schemes, theirs.size)
    assert ours.measured == pytest.approx(theirs.measured, rel=1e-4)
    for one, other in zip(here.verify(2, "int3:g8", worst=True), there.verify(2, "int3:g8", worst=True), strict=True):
        assert one.measured == pytest.approx(other.measured, rel=1e-4)
        assert one.predicted.name == other.predicted.name
        assert one.worst is None  # every product would read the whole file


def test_the_checkpoint_to_compare_with_may_be_streamed(tmp_path, monkeypatch):
    plain = hs.load(saved(tmp_path / "one", "llama"), streamed=False)
    folder = saved(tmp_path / "other", "llama", seed=1)
    expected = hs.budget(plain, TOKENS, schemes=[f"against:{folder}"], passes=2)
    assert expected.together().kl > 0
    monkeypatch.setattr("howsmooth.models.load.load", lambda name, load=hs.load: load(name, streamed=True))
    found = hs.budget(plain, TOKENS, schemes=[f"against:{folder}/"], passes=2)
    assert_close(found.products.values, expected.products.values)


def test_matrices_of_no_linear_module_are_refused(tmp_path):
    streamed = hs.load(saved(tmp_path, "llama"), streamed=True)
    block = streamed.module.layers[0]
    block.mlp.experts = torch.nn.Parameter(torch.empty(2, 3, 4, device="meta"))
    with pytest.raises(UnsupportedModelError, match=r"'model.layers.0.mlp.experts' belongs to no linear module.*False"):
        hs.budget(streamed, TOKENS, schemes=["int8"])
