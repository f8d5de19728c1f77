"""The classifier that comes with the package."""

import pytest
import torch

import howsmooth as hs
from howsmooth.certificates.sentences import classifier_at
from howsmooth.models.inputs.model_inputs import read_sentence
from howsmooth.models.loading.names import built_in_path


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("a gripping film", "good"),
        ("a gripping , moving film with a fine cast .", "good"),
        ("dull and far too long", "bad"),
        ("the plot is a mess and the jokes are not funny", "bad"),
    ],
)
def test_plain_reviews_are_told_right(sentence, label):
    model = hs.load("reviews")
    f, X = classifier_at(model, torch.tensor(read_sentence(model, sentence)))
    assert model.ends.class_head.labels[int(f(X)[0].argmax())] == label


def test_it_is_small_and_says_where_it_comes_from():
    files = list(built_in_path("reviews").iterdir())
    assert sum(file.stat().st_size for file in files) <= 2 * 2**20
    notice = (built_in_path("reviews") / "NOTICE").read_text(encoding="utf-8")
    assert "vaderSentiment" in notice
    assert "MIT" in notice
    assert any("76 %" in note for note in hs.load("reviews").notes)
    assert "76.4%" in notice
