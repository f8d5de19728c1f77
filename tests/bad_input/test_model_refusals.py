import pytest
import torch
import transformers

import howsmooth as hs


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("random:brt", hs.errors.UnsupportedModelError, "did you mean bert"),
        ("./nowhere/at/all", hs.errors.UnsupportedModelError, "neither a folder"),
        (3, hs.errors.DtypeError, "name, a folder or a module"),
        (torch.nn.Linear(2, 2), hs.errors.UnsupportedModelError, "Linear"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_sentence(source, error, words, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error, match=words) as refusal:
        hs.load(source)
    assert len(str(refusal.value).splitlines()) == 1


def test_weights_that_are_not_finite_are_refused():
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    model = transformers.BertModel(transformers.BertConfig(**shape))
    model.encoder.layer[0].attention.self.query.weight.data[0, 0] = torch.nan
    with pytest.raises(hs.errors.NonFiniteError, match=r"query\.weight"):
        hs.load(model)


def test_maps_that_do_not_exist_are_refused():
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    (site,) = hs.load(transformers.BertModel(transformers.BertConfig(**shape))).sites
    for name, words in (
        ("atention", "must be one of"),
        ("head:x", "by its number"),
        ("head:5", "0 to 1"),
        ("normed", "behind"),
    ):
        with pytest.raises(hs.errors.AssumptionError, match=words):
            site.map(name)
