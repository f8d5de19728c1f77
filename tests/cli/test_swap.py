"""``howsmooth swap``, as a new user would call it."""

import json

import pytest

SENTENCE = "The king was in the garden."


@pytest.fixture
def synonyms(tmp_path):
    path = tmp_path / "synonyms.json"
    path.write_text('{"king": ["queen", "prince"], "garden": ["park"]}', encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_the_answer_comes_first_and_changes_are_marked(howsmooth, synonyms):
    done = howsmooth("swap", "minilm", "--sentence", SENTENCE, "--candidates", synonyms, "--budget", "20")
    assert done.code == 0, done.err
    first, before, after, last = done.out.splitlines()
    assert first.startswith("The output moves by 0.")
    assert ", cosine 0." in first
    assert "[king]" in before or "[garden]" in before
    assert "[queen]" in after or "[prince]" in after or "[park]" in after
    assert last.startswith("sentence of minilm, 9 tokens, ")


@pytest.mark.slow
def test_json_is_all_there_is(howsmooth, synonyms):
    arguments = ("--map", "attention", "--candidates", synonyms, "--json")
    done = howsmooth("swap", "minilm", "--text", "alice", "-n", "8", *arguments)
    assert done.code == 2  # no king in the first eight tokens
    done = howsmooth("swap", "minilm", "--sentence", SENTENCE, *arguments)
    found = json.loads(done.out)
    assert found["proven"]
    assert found["tried"] == 3
    assert found["swaps"][0]["from"] in ("king", "garden")
    assert found["cosine"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["minilm"], "either --sentence or --text"),
        (["minilm", "--sentence", " "], "must hold words"),
        (["minilm", "--sentence", SENTENCE, "--text", "alice"], "either --sentence or --text"),
        (["minilm", "--text", "nowhere.txt"], "not there"),
        (["minilm", "--sentence", SENTENCE, "--edits", "8"], "the 7 tokens that may be replaced, got 8"),
        (["minilm", "--sentence", SENTENCE, "--edits", "0"], "at least 1"),
        (["minilm", "--sentence", SENTENCE, "--budget", "0"], "at least 1"),
        (["minilm", "--sentence", SENTENCE, "--method", "gcgs"], "did you mean gcg"),
        (["minilm", "--sentence", SENTENCE, "--method", "enumeration"], "of layer 0"),
        (["minilm", "--sentence", SENTENCE, "--map", "sentense"], "map must be one of"),
        (["minilm", "--sentence", SENTENCE, "--map", "logits"], "no map 'logits'"),
        (["minilm", "--sentence", SENTENCE, "--map", "block", "--layer", "9"], "layers 0 to 5, got 9"),
        (["minilm", "--sentence", SENTENCE, "--candidates", "nothing.json"], "not there"),
        (["minilm", "--sentence", SENTENCE, "--candidates", "EMPTY"], "holds no candidate"),
        (["minilm", "--sentence", SENTENCE, "--candidates", "WRONG"], "lists of words"),
        (["minilm", "--sentence", SENTENCE, "--candidates", "BROKEN"], "must be JSON"),
        (["minilm", "--sentence", SENTENCE, "--candidates", "MANY"], "no token may be swapped"),
        (["minilm", "--sentence", "The king 🜁 was"], "cannot give this text back"),
        (["minlm", "--sentence", SENTENCE], "did you mean minilm"),
        (["random:bert", "--sentence", SENTENCE], "without a tokenizer of words"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_sentence_and_exit_code_two(howsmooth, arguments, words, tmp_path):
    files = {"EMPTY": '{"king": []}', "WRONG": '{"king": "queen"}', "BROKEN": "{", "MANY": '["crown prince"]'}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = howsmooth("swap", *(str(tmp_path / part) if part in files else part for part in arguments))
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not done.out


def test_on_a_classifier_the_class_before_and_after_is_told(howsmooth, tmp_path):
    (tmp_path / "words.json").write_text('{"gripping": ["dull"]}', encoding="utf-8")
    options = (
        "--sentence",
        "a gripping film",
        "--map",
        "classes",
        "--candidates",
        "words.json",
        "--method",
        "exhaustive",
    )
    done = howsmooth("swap", "reviews", *options)
    assert done.code == 0, done.err
    assert "The class changes from 'good' to 'bad'; " in done.out
    assert json.loads(howsmooth("swap", "reviews", *options, "--json").out)["flipped"]
