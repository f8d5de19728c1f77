"""Files that are damaged, lie about their size or have none that fits: refused at once, in one sentence."""

import json
import shutil
import subprocess
import time
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import howsmooth as hs
from howsmooth.models.inputs.sources import read_pictures, read_sentences, read_token_ids
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.names import built_in_path
from howsmooth.tokens.swap_settings import read_candidates

pytestmark = pytest.mark.clock("what is refused is refused within seconds")

SPARSE = 10 * 2**30


def sparse(path, start=b""):
    """Write a file that says it has 10 GB, and takes none on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(SPARSE)
    return path


def refusal(read, *given, seconds=5.0):
    began = time.monotonic()
    with pytest.raises(hs.errors.HowsmoothError) as found:
        read(*given)
    assert time.monotonic() - began < seconds
    assert len(str(found.value).splitlines()) == 1
    return str(found.value)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (read_text, "text.txt"),
        (read_sentences, "lines.jsonl"),
        (read_token_ids, "ids.jsonl"),
        (read_token_ids, "ids.npy"),
        (read_candidates, "words.json"),
    ],
)
def test_a_file_beyond_the_memory_is_refused_before_it_is_read(read, name, tmp_path, small_memory):
    said = refusal(read, sparse(tmp_path / name))
    assert "takes at least" in said
    assert "of memory" in said


def test_a_picture_of_gigabytes_is_refused_before_it_is_read(tmp_path):
    sparse(tmp_path / "a.png", b"\x89PNG\r\n\x1a\n")
    assert "a picture has at most 1,073,741,824 bytes" in refusal(read_pictures, tmp_path)


def test_a_picture_of_many_pixels_is_refused_before_they_are_unpacked(tmp_path, monkeypatch, small_memory):
    Image.new("1", (12_000, 12_000)).save(tmp_path / "a.png")  # a few kilobytes, and 144 million pixels
    pictures = read_pictures(tmp_path)
    monkeypatch.setattr("howsmooth.files.available_memory", lambda: 2**30)
    with pytest.warns(Image.DecompressionBombWarning):
        assert "of 12000 × 12000 pixels takes at least" in refusal(pictures.open, 0)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def test_postscript_that_calls_itself_a_picture_reaches_no_other_program(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **_others: started.append(given))
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    assert "cannot be read" in refusal(read_pictures(tmp_path).open, 0)
    assert started == []


def test_every_ending_of_a_picture_has_its_format(tmp_path):
    for ending in ("png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff"):
        Image.new("RGB", (4, 3), (10, 200, 30)).save(tmp_path / f"a.{ending}")
    pictures = read_pictures(tmp_path)
    assert [pictures.open(i).size for i in range(8)] == [(4, 3)] * 8


def header(shape, dtype="<i8"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header((10**12,)) + bytes(8), "no array of numpy"),
        (header((2,), "<m8[s]") + bytes(16), "must hold whole numbers"),
        (header((2,), "<M8[s]") + bytes(16), "must hold whole numbers"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((", "no array of numpy"),
    ],
    ids=["lies", "durations", "dates", "cut"],
)
def test_an_array_that_is_none_of_token_ids_is_refused(content, words, tmp_path):
    (tmp_path / "ids.npy").write_bytes(content)
    assert words in refusal(read_token_ids, tmp_path / "ids.npy")


def test_an_archive_that_calls_itself_an_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "ids.npy", "w") as archive:
        archive.writestr("a.npy", header((1,)) + bytes(8))
    assert "no array of numpy" in refusal(read_token_ids, tmp_path / "ids.npy")


def test_half_of_a_character_in_a_sentence_or_a_candidate_is_refused(tmp_path):
    (tmp_path / "lines.jsonl").write_text('"a film"\n"a \\ud800 film"\n', encoding="utf-8")
    assert "line 2: the sentence holds half of a character" in refusal(read_sentences, tmp_path / "lines.jsonl")
    (tmp_path / "words.json").write_text('["\\ud800"]', encoding="utf-8")
    assert "must be JSON in UTF-8" in refusal(read_candidates, tmp_path / "words.json")


@pytest.fixture
def reviews(tmp_path):
    """A copy of a small classifier, to be damaged."""
    return shutil.copytree(built_in_path("reviews"), tmp_path / "reviews")


def change(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


SPLIT = {"type": "Split", "pattern": {"Regex": "(((a"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer.json", {"model": {"type": "Nonsense"}}),
        ("tokenizer.json", {"version": "9.0"}),
        ("tokenizer.json", {"pre_tokenizer": SPLIT}),
        ("tokenizer_config.json", {"model_max_length": "x"}),
    ],
    ids=["model", "version", "regex", "length"],
)
def test_a_damaged_tokenizer_is_refused_in_one_sentence(file, changes, reviews):
    change(reviews / file, **changes)
    for read in (lambda: hs.load(str(reviews)), lambda: hs.load("reviews", tokenizer=str(reviews))):
        assert f"the tokenizer in {str(reviews)!r} cannot be used" in refusal(read, seconds=60)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json"])
def test_a_file_beside_the_weights_that_is_beyond_the_memory_is_refused(name, reviews, small_memory):
    sparse(reviews / name)
    assert "a file beside the weights of a model" in refusal(hs.load, str(reviews), seconds=60)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 2 * 10**8},
        {"num_labels": 5 * 10**7},
        {"num_local_experts": 10**7},
    ],
    ids=str,
)
def test_a_number_of_which_the_loader_makes_a_list_is_refused(changes, reviews):
    change(reviews / "config.json", **changes)
    (key,) = changes
    assert f"its config.json says {key} = " in refusal(hs.load, str(reviews), seconds=60)


def test_weights_that_are_whole_numbers_are_refused(reviews):
    weights = load_file(reviews / "model.safetensors")
    name = next(name for name in weights if name.endswith("query.weight"))
    weights[name] = (100 * weights[name]).to(torch.int8)
    save_file(weights, reviews / "model.safetensors", metadata={"format": "pt"})
    assert f"whole numbers (I8, first in {name!r})" in refusal(hs.load, str(reviews), seconds=60)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    """A whole little Llama, and where its header ends."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    sizes = {"block_count": 1, "context_length": 32, "embedding_length": 32, "feed_forward_length": 32}
    sizes |= {"head_count": 2, "head_count_kv": 2, "rope_dimension_count": 16, "vocab_size": 40}
    for name, value in (sizes | {"layer_norm_rms_eps": 1e-5, "bos_token_id": 26, "eos_token_id": 27}).items():
        getattr(writer, f"add_{name}")(value)
    words = [chr(97 + i) for i in range(26)] + ["<s>", "</s>", "ab", "cd"] + [f"t{i}" for i in range(10)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([1] * 40)
    writer.add_token_merges(["a b", "c d"])
    square = [
        f"blk.0.{part}" for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    shapes = {"token_embd": (40, 32), "output": (40, 32)} | dict.fromkeys(square, (32, 32))
    shapes |= dict.fromkeys(["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"], (32,))
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.mark.parametrize("harm", ["cut in its header", "cut in its tensors", "another magic", "no bytes"])
def test_a_damaged_gguf_file_is_refused_in_one_sentence(harm, gguf_file, tmp_path):
    path, end = tmp_path / "model.gguf", gguf_file.index(b"blk.0.ffn_norm.weight")
    path.write_bytes(gguf_file)
    whole = hs.load(str(path))
    assert whole.tokenizer.encode("ab") == [28]
    assert whole.notes[0] == "the weights of the GGUF file are dequantised"
    assert not isinstance(whole.ends.language_head, str)
    harmed = {"cut in its header": gguf_file[: end // 2], "cut in its tensors": gguf_file[:-2000], "no bytes": b""}
    path.write_bytes(harmed.get(harm, b"GGML" + gguf_file[4:]))
    assert "holds no model, or is damaged" in refusal(hs.load, str(path), seconds=60)
