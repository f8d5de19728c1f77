"""``howsmooth worst-case --eps``: the worst input near a text, and which words matter."""

import json
import re

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file
from small import beginning, folder_model, module, save_model, tokenizer

import howsmooth as hs
from howsmooth.models.inputs.text import read_text

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

QUICK = ("--steps", "2", "--starts", "1", "-n", "4")


@pytest.fixture
def near(howsmooth, folder_model, beginning):
    def run(*arguments):
        place = (folder_model, "--layer", "1", "--text", beginning, "--window", "3", "--eps", "0.1")
        return howsmooth("worst-case", *place, *QUICK, *arguments)

    return run


def window(folder_model, beginning):
    """What enters the layer at the window, and the layer."""
    model = hs.load(folder_model)
    tokens = model.windows(read_text(beginning), length=4, count=4)[3:]
    f, X = model.activations(tokens).at(1)
    return f, X[0], model.tokenizer.pieces(tokens[0].tolist())


@pytest.mark.slow
def test_it_says_the_constant_at_the_text_the_worst_near_it_and_what_is_proven(near):
    done = near()
    assert (done.code, done.err) == (0, "")
    first, _map, *rest = done.out.splitlines()
    numbers = re.fullmatch(
        r"Lip is (\S+)(?: – \S+)? at the text, and ≥ (\S+) at the worst input near it \(at least (\S+) times that\); "
        r"no input so near exceeds (\S+)",
        first,
    ).groups()
    there, worst, times, most = (float(number.replace(",", "")) for number in numbers)
    assert there < worst < most
    assert 1 <= times <= worst / there * 1.001
    begins = ["Text: window 3 of", "Near: every token may move by 0.1", "Moved furthest: ", "Moved alone, worth most: "]
    assert all(line.startswith(begin) for line, begin in zip(rest, begins, strict=False))


@pytest.mark.slow
def test_as_json_it_agrees_with_the_map_at_the_window_word_by_word(near, folder_model, beginning):
    done = near("--json")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out, parse_constant=pytest.fail)
    f, X, pieces = window(folder_model, beginning)
    there = hs.local_lipschitz(f, X)
    assert data["at_text"]["lower"] == pytest.approx(float(there.lower), rel=2e-3)
    proven = hs.bounds.neighbourhood_upper(f, X, eps=0.1, metric="token")
    assert data["upper"]["value"] == pytest.approx(proven.value, rel=1e-3)
    assert data["at_text"]["lower"] <= data["witness"]["value"] <= data["upper"]["value"]
    assert [row["word"] for row in data["words"]] == [piece.removeprefix("##") for piece in pieces]
    assert all(row["moved"] <= 0.1 * (1 + 1e-5) for row in data["words"])
    assert (data["n"], data["window"], data["eps"], data["within"]) == (4, 3, 0.1, "token")


@pytest.mark.slow
def test_all_tokens_together_may_move_as_far_as_one(near):
    rows = json.loads(near("--json", "--within", "total").out)["words"]
    assert sum(row["moved"] ** 2 for row in rows) <= 0.1**2 * (1 + 1e-5)


@pytest.mark.slow
def test_the_input_is_kept_with_what_it_is_near_to(near, folder_model, beginning):
    done = near("--save", "near.safetensors", "--json")
    assert "near.safetensors" in done.err
    f, X, _pieces = window(folder_model, beginning)
    tokens = load_file("near.safetensors")["tokens"]
    assert float((tokens - X).norm(dim=-1).max()) <= 0.1 * (1 + 1e-5)
    value = json.loads(done.out)["witness"]["value"]
    assert float(hs.local_lipschitz(f, tokens).upper) >= value * (1 - 1e-6)
    with safe_open("near.safetensors", framework="pt") as file:
        about = file.metadata()
    assert (about["window"], about["eps"], about["within"], about["layer"]) == ("3", "0.1", "token", "1")


@pytest.mark.slow
def test_alice_and_sixteen_tokens_are_the_default(howsmooth, folder_model):
    place = (folder_model, "--layer", "0", "--eps", "0.5", "--within", "total")
    done = howsmooth("worst-case", *place, *QUICK[:4])
    assert "Text: window 0 of alice, 16 tokens: " in done.out
    assert "all tokens together may move by 0.5" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--eps 0.1 I.npz", "a model reads; give a model and its --layer"),
        ("--eps 0.1 minilm", "a model reads; give a model and its --layer"),
        ("--eps 0 minilm --layer 1", "--eps must be positive and finite, got 0"),
        ("--eps nan minilm --layer 1", "--eps must be positive and finite, got nan"),
        ("--eps 1 minilm --layer 1 --window -1", "--window counts from 0, got -1"),
        ("--eps 1 minilm --layer 1 -n 0", "n must be a whole number, at least 1, got 0"),
        ("--eps 1 minilm --layer 1 --text nowhere.txt", "'nowhere.txt' is not there"),
        ("--eps 1 minilm --layer 1 -r 3", "got both"),
        ("--eps 1 minilm --layer 1 --map residual", "theorems are about attention alone"),
        ("--eps 1 minilm --layer 1 --steps 0", "--steps must be at least 1"),
        ("--eps 1 minilm --layer 1 --save near.txt", "--save writes a .safetensors file"),
        ("--text a.txt I.npz -n 3 -r 1", "--text is for inputs near a text; add --eps"),
        ("--eps 1 minilm --layer 1 --family brt", "there is no family 'brt'; did you mean bert"),
        ("--eps 1 minilm --layer 1 --tokenizer no/where/near", "no tokenizer 'no/where/near'"),
        ("--tokenizer minilm I.npz -n 3 -r 1", "--tokenizer is for inputs near a text; add --eps"),
        ("--within total I.npz -n 3 -r 1", "--within is for inputs near a text; add --eps"),
        ("I.npz -n 3", "--radius is missing"),
        ("I.npz", "-n and --radius is missing"),
    ],
)
def test_a_mistake_ends_in_one_sentence_before_anything_is_loaded(arguments, said, howsmooth, monkeypatch):
    monkeypatch.setattr("howsmooth.models.load.load", None)
    np.savez("I.npz", A=np.eye(3))
    done = howsmooth("worst-case", *arguments.split())
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"), [(("--layer", "2"), "has the layers 0 to 1, got 2"), (("--window", "9000"), "Give a longer")]
)
def test_what_the_model_does_not_have_is_refused(arguments, said, near):
    done = near(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.slow
def test_a_folder_that_says_neither_its_family_nor_its_tokenizer_is_read_when_told(
    near, howsmooth, module, folder_model, tmp_path, beginning
):
    bare = tmp_path / "bare"
    module().save_pretrained(bare)
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    place = (str(bare), "--layer", "1", "--text", beginning, "--window", "3", "--eps", "0.1")
    told = ("--family", "bert", "--tokenizer", folder_model, "--save", "worst.safetensors")
    done = howsmooth("worst-case", *place, *QUICK, *told)
    assert done.code == 0
    assert done.out.splitlines()[0] == near().out.splitlines()[0]
    with safe_open("worst.safetensors", "pt") as kept:
        about = kept.metadata()
    assert (about["family"], about["tokenizer"]) == ("bert", folder_model)
    for more, code in ((), 2), (("--family", "bert"), 0):
        assert howsmooth("bounds", *place[:3], "-n", "3", "-r", "1", *more).code == code


@pytest.mark.slow
def test_a_family_by_autograd_has_no_theorem_and_says_so(howsmooth, module, tokenizer, tmp_path, beginning):
    module("roformer").save_pretrained(tmp_path / "unknown")
    tokenizer.save_pretrained(tmp_path / "unknown")
    place = (str(tmp_path / "unknown"), "--layer", "0", "--text", beginning, "--eps", "0.1")
    done = howsmooth("worst-case", *place, *QUICK)
    assert done.code == 0
    assert "Nothing is proven: the theorem is about attention in closed form." in done.out
