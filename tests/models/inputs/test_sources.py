"""Files that inputs come from: token ids, sentences, pictures; what they hold, and what they are refused for."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import howsmooth as hs
from howsmooth.models.inputs.sources import read_pictures, read_sentences, read_source, read_token_ids


def refusal(read, path):
    with pytest.raises(hs.errors.FileError) as found:
        read(path)
    assert len(str(found.value).splitlines()) == 1
    return found.value


def test_one_row_of_numbers_is_to_be_cut_and_more_are_whole(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(5, dtype=np.uint16))
    np.save(tmp_path / "more.npy", np.arange(6).reshape(2, 3))
    (tmp_path / "lists.jsonl").write_text("[1, 2]\n\n[3]\n", encoding="utf-8")
    one, more, lists = (read_token_ids(tmp_path / name) for name in ("one.npy", "more.npy", "lists.jsonl"))
    assert (one.rows, one.whole) == (((0, 1, 2, 3, 4),), False)
    assert (more.rows, more.whole) == (((0, 1, 2), (3, 4, 5)), True)
    assert (lists.rows, lists.whole) == (((1, 2), (3,)), True)


def test_the_digest_tells_what_a_file_holds_and_not_where_it_is(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, 2, 3]]))
    (tmp_path / "b.jsonl").write_text("[1, 2, 3]\n", encoding="utf-8")
    np.save(tmp_path / "cut.npy", np.array([1, 2, 3]))
    assert read_token_ids(tmp_path / "a.npy").digest == read_token_ids(tmp_path / "b.jsonl").digest
    assert read_token_ids(tmp_path / "a.npy").digest != read_token_ids(tmp_path / "cut.npy").digest


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ids.txt", b"1 2 3", "from .npy and .jsonl files"),
        ("ids.npy", b"no array", "no array of numpy"),
        ("ids.npy", np.array([1.5]), "whole numbers"),
        ("ids.npy", np.zeros((2, 2, 2), dtype=int), "whole numbers"),
        ("ids.npy", np.zeros(0, dtype=int), "no token ids"),
        ("ids.npy", np.array([{}]), "no array of numpy without pickles"),
        ("ids.jsonl", b"[1]\n[2, true]\n", "line 2: we need a list of whole numbers"),
        ("ids.jsonl", b"[1]\nrabbit\n", "line 2: a line must be JSON by itself, got 'rabbit'"),
        ("ids.jsonl", b"[1]\n[]\n", "line 2"),
        ("ids.jsonl", b"\n", "no token ids"),
        ("ids.jsonl", b"\xff", "must be UTF-8"),
    ],
    ids=str,
)
def test_token_ids_that_are_none_are_refused(name, content, words, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        np.save(tmp_path / name, content)
    error = refusal(read_token_ids, tmp_path / name)
    assert words in str(error)
    assert error.field == "token_ids"


def test_a_line_is_a_sentence_or_an_object_with_one(tmp_path):
    lines = ['"Down, down."', '{"text": "Would the fall", "label": 1}', "", '{"sentence": "never come?"}']
    (tmp_path / "said.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = read_sentences(tmp_path / "said.jsonl")
    assert found.lines == ("Down, down.", "Would the fall", "never come?")
    assert found.labels == (None, 1, None)
    assert "fall" not in repr(found)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3", "a string that is not empty"),
        ('" "', "a string that is not empty"),
        ('{"words": "x"}', "got 'words' besides; remove what is not used"),
        ('{"text": "x", "lable": 1}', "got 'lable' besides"),
        ('{"text": "x", "sentence": "y"}', "got 'sentence' besides"),
        ('{"label": 1}', "an object with 'text' or 'sentence'"),
        ('{"text": "x", "label": [1]}', "'label' must be the name or the number of a class, got [1]"),
        ('{"text": "x", "label": true}', "'label' must be the name or the number of a class, got true"),
        ("Down, down.", "JSON by itself"),
    ],
)
def test_a_line_without_a_sentence_is_refused_with_its_number(line, words, tmp_path):
    (tmp_path / "said.jsonl").write_text(f"{json.dumps('good')}\n{line}\n", encoding="utf-8")
    error = refusal(read_sentences, tmp_path / "said.jsonl")
    assert "line 2" in str(error)
    assert words in str(error)
    assert error.field == "sentences"


def test_an_empty_file_has_no_sentence(tmp_path):
    (tmp_path / "said.jsonl").write_text("\n", encoding="utf-8")
    assert "holds no sentence" in str(refusal(read_sentences, tmp_path / "said.jsonl"))


def test_pictures_are_those_of_a_folder_by_name(tmp_path):
    for name in ("b.png", "a.JPG"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture", encoding="utf-8")
    found = read_pictures(tmp_path)
    assert found.files == ("a.JPG", "b.png")
    assert found.open(0).mode == "RGB"
    Image.new("RGB", (4, 4), "red").save(tmp_path / "b.png")
    assert read_pictures(tmp_path).digest != found.digest


def test_what_is_no_picture_is_refused(tmp_path):
    assert "no picture" in str(refusal(read_pictures, tmp_path))
    assert "is not there" in str(refusal(read_pictures, tmp_path / "nowhere"))
    (tmp_path / "a.png").write_bytes(b"words")
    assert "cannot be read" in str(refusal(lambda path: read_pictures(path).open(0), tmp_path))


@pytest.mark.parametrize("kind", ["token_ids", "sentences"])
def test_a_file_that_is_not_there_is_refused_by_its_setting(kind, tmp_path):
    error = refusal(lambda path: read_source(kind, str(path)), tmp_path / "nowhere.jsonl")
    assert error.field == kind
    assert "not there" in str(error)


def test_sources_are_read_without_torch():
    code = "import sys; from howsmooth.models.inputs import sources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
