"""The task that trainings are compared on: what is read, what is trained, what is judged."""

import io
import random
import tarfile
from dataclasses import replace

import pytest
import torch

from howsmooth.errors import AssumptionError, FileError
from howsmooth.studies.kinds import monitor, training
from howsmooth.studies.plans.paper import QUICK, chosen_figures
from howsmooth.studies.resources import Resources
from howsmooth.studies.sentiment.learning import METHODS, FromEmbeddings, _frobenius, network, shown, task_of
from howsmooth.studies.sentiment.reviews import INNER, PACKAGE, SNIPPETS, encode, find_reviews, read_reviews, vocabulary


def lines(count=240):
    draw = random.Random(0)
    rows = []
    for i in range(count):
        label = i % 2
        noise = draw.choices(["the", "film", "a", "plot", "and", "of"], k=5)
        rows.append(f"{i}\t{2.5 if label else -1.5}\t{' '.join(noise)} {'great' if label else 'awful'} .")
    return "\n".join(rows)


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.tsv"
    path.write_text(lines(), encoding="latin-1")
    return path


def asked(path, **others):
    return training.Ask(
        reviews=str(path), digest=read_reviews(str(path)).digest, time_limit=0.4, sentences=4, swaps=2, **others
    )


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
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_is_judged(method, reviews):
    ask = asked(reviews, method=method, strength=0.01)
    (answer,) = training.run([ask], [ask], Resources())
    assert answer.steps >= 1
    assert 0 <= answer.accuracy <= 1
    assert min(answer.network, answer.attention, answer.attained) > 0
    assert 0 <= answer.flipped <= 1


@pytest.mark.slow
def test_a_rate_that_grows_without_end_is_noticed(reviews):
    ask = asked(reviews, method="diverging", strength=30.0, updates=60)
    (answer,) = training.run([ask], [ask], Resources())
    assert answer.alarm_step is not None
    assert answer.alarms >= 1
    assert all(len(row) >= 2 for row in answer.trace)


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


def test_training_is_asked_for_by_its_name_only(reviews):
    assert "training" not in chosen_figures(())
    asks = list(chosen_figures(["training"])["training"].asks(replace(QUICK, reviews=str(reviews)), ()))
    assert {ask.method for ask in asks} == {*METHODS, "diverging"}


def test_what_cannot_be_asked_is_refused(reviews):
    with pytest.raises(AssumptionError, match="there is no method 'plane'; did you mean plain"):
        asked(reviews, method="plane")
    with pytest.raises(AssumptionError, match=r"written while a model is trained: hs\.Monitor"):
        monitor.run([], [], Resources())
    ask = training.Ask(reviews=str(reviews), digest="other")
    with pytest.raises(FileError, match="not those that were planned with"):
        training.run([ask], [ask], Resources())
