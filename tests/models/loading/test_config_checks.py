"""What a config.json may ask for: sizes are checked before anything is built, and each refusal is one sentence."""

import functools
import json
import shutil
import time

import pytest
import torch
import transformers
from models.loading.test_folders import KNOWN
from models.small_models import CONFIGS, PICTURES, each

import howsmooth as hs
from howsmooth.files import gigabytes
from howsmooth.models.loading.config_checks import parameter_count

pytestmark = pytest.mark.clock("what is refused is refused within seconds")

WIDTH = {"gpt2": "n_embd", "distilbert": "dim"}
HEADS = {"gpt2": "n_head", "distilbert": "n_heads"}
DEPTH = {"gpt2": "n_layer", "distilbert": "n_layers"}
FAMILIES = ["bert", "distilbert", "gpt2", "llama", "qwen3"]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Small models as their library saves them, each of them once."""

    @functools.cache
    def save(family):
        path = tmp_path_factory.mktemp(family)
        transformers.AutoModel.from_config(CONFIGS[family]()).save_pretrained(path)
        return path

    return save


@pytest.fixture
def folder(family, saved, tmp_path):
    return shutil.copytree(saved(family), tmp_path, dirs_exist_ok=True)


def change(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refusal(source):
    """What a model is refused with: one line, about the model, within seconds."""
    begin = time.monotonic()
    with pytest.raises(hs.errors.HowsmoothError) as caught:
        hs.load(source)
    assert time.monotonic() - begin < 30  # most of it imports, in the first test; building would take hours
    assert caught.value.field == "model"
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("layers", [10**7, 10**30, 0, -1])
def test_a_number_of_layers_that_no_model_has_is_refused(folder, family, layers):
    change(folder, **{DEPTH.get(family, "num_hidden_layers"): layers})
    words = refusal(str(folder))
    assert f"= {layers}; it must be a whole number, 1 to 2,000" in words


def test_wider_layers_than_the_weights_are_refused(folder, family):
    change(folder, **{WIDTH.get(family, "hidden_size"): 48})
    assert "its weights are not of the shapes" in refusal(str(folder))


def test_weights_beyond_the_memory_are_refused_by_the_size_of_their_files(folder, monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1000")
    monkeypatch.setattr("howsmooth.files.LIMITS", (tmp_path / "memory.max",))
    assert "GiB of memory" in refusal(str(folder))


@pytest.mark.parametrize("width", ["eight", 1e30, 24.0, True, [24, "x"], float("nan")])
def test_a_size_that_is_no_whole_number_is_refused(folder, family, width):
    change(folder, **{WIDTH.get(family, "hidden_size"): width})
    assert "must be a whole number" in refusal(str(folder))


@pytest.mark.parametrize("heads", [5, 48, 10**7])
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"qwen3"}))  # whose heads have a width of their own
def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers(folder, family, heads):
    change(folder, **{HEADS.get(family, "num_attention_heads"): heads})
    words = refusal(str(folder))
    assert str(heads) in words
    assert "24" in words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "cannot be read"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "cannot be read"),
        ('{"hidden_size": ' + "9" * 3000 + "}", "9; it must be a whole number, 1 to"),
        (" " * (2**24 + 1), "at most 16,777,216 bytes"),
        ("[1, 2]", "one object, got list"),
        ("{", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
    ids=["deep", "digits", "fewer digits", "long", "list", "cut", "bytes"],
)
def test_a_config_that_would_break_a_reader_is_refused(tmp_path, content, words):
    (tmp_path / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert words in refusal(str(tmp_path))


def test_a_config_without_an_end_is_not_read(tmp_path):
    (tmp_path / "config.json").symlink_to("/dev/zero")
    assert "a device" in refusal(str(tmp_path))


@pytest.mark.parametrize("name", each(sorted(CONFIGS)))
def test_parameters_are_counted_before_a_model_is_built(name):
    config = CONFIGS[name]()
    if name != "albert":  # whose layers share their weights
        config.num_hidden_layers = 5
        if getattr(config, "layer_types", None):
            config.layer_types = ["full_attention"] * 5
        if name == "gpt_neo":
            config.attention_layers = ["global"] * 5
    built = transformers.AutoModel.from_config(config)
    assert parameter_count(config) == sum(parameter.numel() for parameter in built.parameters())


def test_an_encoder_and_a_decoder_of_different_depth_are_counted_both():
    widths = {"d_model": 32, "encoder_ffn_dim": 24, "decoder_ffn_dim": 16, "vocab_size": 50}
    config = transformers.BartConfig(**widths, encoder_layers=3, decoder_layers=5)
    built = transformers.AutoModel.from_config(config)
    assert parameter_count(config) == sum(parameter.numel() for parameter in built.parameters())


def test_a_random_model_beyond_the_memory_is_refused_before_it_is_built(monkeypatch, tmp_path):
    # 80 GB in its family's default shape, and a machine that says it has 1 GiB
    (tmp_path / "memory.max").write_text(str(2**30))
    monkeypatch.setattr("howsmooth.files.LIMITS", (tmp_path / "memory.max",))
    words = refusal("random:gpt_neox")
    assert "20," in words  # billions of parameters
    assert f"{gigabytes(2**30)} are free" in words


@pytest.mark.parametrize("name", ["bert", "albert", "llama"])
def test_a_flag_does_not_make_an_encoder_and_a_decoder(name, saved, tmp_path):
    shutil.copytree(saved(name), tmp_path, dirs_exist_ok=True)
    plain = hs.load(str(tmp_path))
    change(tmp_path, is_encoder_decoder=True)
    flagged = hs.load(str(tmp_path))
    assert plain.notes == ()
    assert "is_encoder_decoder" in flagged.notes[0]
    assert flagged.digest == plain.digest
    tokens = torch.tensor([[5, 6, 7, 8]])
    (f, X), (g, Y) = (model.activations(tokens).at(1) for model in (plain, flagged))
    torch.testing.assert_close(X, Y)
    torch.testing.assert_close(f(X), g(Y))


@pytest.mark.parametrize("device", ["cuda:99", "no-such-device", "xpu"])
def test_a_device_that_is_not_here_is_refused(device):
    with pytest.raises(hs.errors.DeviceError, match="cannot be used here") as caught:
        hs.load(transformers.AutoModel.from_config(CONFIGS["bert"]()), device=device)
    assert caught.value.field == "device"


def test_numbers_that_are_not_real_are_refused():
    with pytest.raises(hs.errors.DtypeError, match="floating-point") as caught:
        hs.load(transformers.AutoModel.from_config(CONFIGS["bert"]()), dtype=torch.int8)
    assert caught.value.field == "dtype"


# The other families: in the tests of folders, which load them anyway.
@pytest.mark.parametrize("name", each(sorted({*CONFIGS} - PICTURES - {*KNOWN})))
def test_a_folder_without_a_vocabulary_has_no_tokenizer(name, saved):
    # the loader would make up one to which every word is unknown
    assert hs.load(str(saved(name))).tokenizer is None
