"""The experiment on training methods: what is read, what is trained, what is judged."""

import io
import json
import random
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from howsmooth.errors import FileError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks" / "experiments"))

import training_methods  # noqa: E402
from learning import METHODS, FromEmbeddings, _frobenius, network, shown, task_of  # noqa: E402
from reviews import INNER, PACKAGE, SNIPPETS, encode, find_reviews, read_reviews, vocabulary  # noqa: E402


def lines(count=240):
    draw = random.Random(0)
    rows = []
    for i in range(count):
        label = i % 2
        noise = draw.choices(["the", "film", "a", "plot", "and", "of"], k=5)
        rows.append(f"{i}\t{2.5 if label else -1.5}\t{' '.join(noise)} {'great' if label else 'awful'} .")
    return "\n".join(rows)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    path.write_text(lines(), encoding="latin-1")
    return path


def packed(name, content):
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        info = tarfile.TarInfo(f"some-folder/{name}")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return found.getvalue()


def test_a_text_and_the_package_around_it_hold_the_same_reviews(reviews, tmp_path):
    package = tmp_path / PACKAGE
    package.write_bytes(packed(INNER, packed(SNIPPETS, lines().encode("latin-1"))))
    assert read_reviews(str(package)) == read_reviews(str(reviews))
    assert len(read_reviews(str(reviews)).rows) == 240


def test_reviews_that_are_missing_or_none_are_refused_with_the_command_that_gets_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"pip download --no-deps --no-binary :all: vaderSentiment==3.3.2"):
        find_reviews()
    with pytest.raises(FileError, match=r"'there.tsv' is no file"):
        find_reviews("there.tsv")
    (tmp_path / "poem.txt").write_text("no tabs here")
    with pytest.raises(FileError, match="holds no reviews"):
        read_reviews("poem.txt")
    (tmp_path / "few.txt").write_text(lines(10))
    with pytest.raises(FileError, match="holds 10 rated sentences"):
        read_reviews("few.txt")
    (tmp_path / PACKAGE).write_bytes(b"damaged")
    with pytest.raises(FileError, match="holds no reviews"):
        read_reviews(PACKAGE)


def test_words_that_are_not_known_have_a_number_of_their_own():
    numbers = vocabulary(["A good film.", "a bad film"], 3)
    assert encode("Film a unheard", numbers)[1:-1] == [numbers["film"], numbers["a"], numbers["[UNK]"]]


def test_no_sentence_is_both_learned_and_held_out(reviews):
    task = task_of(read_reviews(str(reviews)), 0)
    counts = [sum(len(y) for _x, y in part) for part in (task.train, task.test)]
    assert counts == [192, 48]
    assert all(x.shape[0] == y.shape[0] for x, y in task.train)


@pytest.mark.slow
@pytest.mark.untyped  # as readers run it
def test_the_script_trains_by_every_method_and_watches_a_rate_that_breaks_it(reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_methods, "SENTENCES", 4)
    monkeypatch.setattr(training_methods, "SWAPS", 2)
    monkeypatch.setattr(training_methods, "LAST_RATES", (30.0,))
    options = ["--reviews", str(reviews), "--seconds", "0.2", "--updates", "60", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["training_methods.py", *options])
    training_methods.main()
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {row["method"] for row in found["methods"]} == set(METHODS)
    for row in found["methods"]:
        assert row["steps"] >= 1
        assert 0 <= row["accuracy"] <= 1
        assert min(row["network"], row["attention"], row["attained"]) > 0
        assert 0 <= row["flipped"] <= 1
    (broken,) = found["watched"]
    assert broken["alarm_step"] is not None
    assert broken["alarms"] >= 1
    assert all(len(row) >= 2 for row in broken["trace"])
    assert "With a learning rate that grows to 30 the monitor gives its first alarm" in capsys.readouterr().out
    assert {path.name for path in tmp_path.glob("*.svg")} == {"training_methods.svg", "constants_over_steps.svg"}


def test_the_frobenius_norm_by_projections_is_right_in_the_mean(reviews):
    task = task_of(read_reviews(str(reviews)), 0)
    model = network(task.words, 0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    extra = FromEmbeddings(model)
    term = _frobenius(extra)
    X = torch.randn(1, 3, 64, requires_grad=True)
    extra.eval()
    J = torch.autograd.functional.jacobian(lambda x: extra(x)[0], X)
    found = torch.stack([term(X).detach() for _draw in range(200)])
    assert abs(float(found.mean()) / float(J.square().sum()) - 1) < 0.15


def test_the_step_at_which_the_loss_shows_it():
    assert shown([0.7] * 50) is None
    assert shown([float("nan")] * 10) == 10
