"""Names and files that can stand for nothing: told before torch is imported."""

import subprocess
import sys

import pytest

from howsmooth.errors import AssumptionError, FileError, UnsupportedModelError
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.names import check_model_name, not_found
from howsmooth.models.map_names import MapName


def test_names_and_texts_are_checked_without_torch():
    code = """
import sys
import howsmooth.models.loading.names, howsmooth.models.families.registry
from howsmooth.models.loading.names import check_model
from howsmooth.models.loading.names import check_model_name, not_found
from howsmooth.models.map_names import MapName
from howsmooth.models.inputs.text import read_text
check_model_name("minilm"), check_model_name("somebody/something"), MapName.parse("head:3"), read_text("alice")
check_model("random:bert")
assert not {"torch", "transformers", "numpy", "huggingface_hub"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "name", ["minilm", "random:gpt2", "gpt2", "bert-base-uncased", "HuggingFaceTB/SmolLM2-135M", "a/b.c_d-e1"]
)
def test_names_that_may_stand_for_a_model_pass(name):
    check_model_name(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("random:brt", "did you mean bert"),
        ("random:", "known are albert"),
        ("minilmm", "did you mean minilm?"),
        ("", "must not be empty"),
        (" ", "must not be empty"),
        ("./nowhere/at/all", "nor a folder here"),
        ("a/b/c", "nor a folder here"),
        ("/nowhere", "nor a folder here"),
        ("~/model", "nor a folder here"),
        ("no spaces", "nor a folder here"),
        ("line\nbreak", "nor a folder here"),
        ("nul\x00", "nor a folder here"),
        ("x" * 5000, "nor a folder here"),
        ("nowhere.gguf", "nor a folder here"),
        ("owner/../name", "nor a folder here"),
        ("owner/-name", "nor a folder here"),
    ],
)
def test_names_that_stand_for_nothing_are_refused(name, words):
    with pytest.raises(UnsupportedModelError) as caught:
        check_model_name(name)
    assert words in str(caught.value)
    assert caught.value.field == "model"
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_is_refused_only_if_it_holds_no_configuration(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"no config\.json"):
        check_model_name(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    check_model_name(str(tmp_path))


def test_of_files_only_gguf_may_hold_a_model(tmp_path):
    for name in ("notes.txt", "model.gguf"):
        (tmp_path / name).write_text("not a model")
    check_model_name(str(tmp_path / "model.gguf"))
    with pytest.raises(UnsupportedModelError, match="a file that holds no model"):
        check_model_name(str(tmp_path / "notes.txt"))


WHOLE = ["model", "network", "sentence", "logits", "to:0", "from:11", "layers:2-4", "layers:3-3"]


@pytest.mark.parametrize(
    "name", ["attention", "heads", "head:0", "head:11", "normed", "residual", "mlp", "block", *WHOLE]
)
def test_maps_of_a_layer_and_of_many_pass(name):
    MapName.parse(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("atention", "must be one of"),
        ("head:x", "by its number"),
        ("to:", "by their numbers"),
        ("from:1.5", "by their numbers"),
        ("layers:4-2", "holds no layer"),
    ],
)
def test_what_is_no_map_is_refused(name, words):
    with pytest.raises(AssumptionError, match=words) as caught:
        MapName.parse(name)
    assert caught.value.field == "map"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"\xff\xfe", "must be UTF-8"), (b"Alice\x00", "NUL"), (None, "not there")],
)
def test_what_is_no_text_is_refused(tmp_path, content, words):
    file = tmp_path / "note.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FileError, match=words) as caught:
        read_text(file)
    assert caught.value.field == "text"


@pytest.mark.parametrize(("path", "what"), [("/dev/zero", "a device or a pipe"), ("/", "a folder")])
def test_a_text_must_be_a_file(path, what):
    with pytest.raises(FileError, match=what):
        read_text(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nope", "; known are minilm, "),  # its letters are in random:mpnet, too
        ("rewiews", "; did you mean reviews?"),
        ("bertt", "; did you mean random:bert"),
    ],
)
def test_only_names_that_are_near_are_suggested(name, words):
    assert words in not_found(name)
