"""The card of a model: a fixed protocol, every number with what it is worth, and files that others read."""

import dataclasses
import io
import json
import re

import pytest
import yaml
from rich.console import Console
from sentences import save_classifier

from howsmooth.errors import AssumptionError, FileError
from howsmooth.studies import card_measurement
from howsmooth.studies.card_measurement import card
from howsmooth.studies.cards import Card, compare_cards, read_card, write_card
from howsmooth.wording import at_least, at_most, exponent

__all__ = ["save_classifier"]

pytestmark = pytest.mark.slow  # to make the card that most of them look at takes seconds

SMALL = dataclasses.replace(
    card_measurement.PROTOCOLS["protocol-1"],
    name="small",
    lengths=(4, 6, 8),
    windows=2,
    whole_length=4,
    passes=2,
    budget_windows=1,
    budget_length=6,
    sentences=("funny film",),
)


@pytest.fixture(scope="module")
def made():
    from howsmooth.models.load import load

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(card_measurement.PROTOCOLS, "small", SMALL)
        patch.setattr(card_measurement, "EVERY", 0.0)
        said = []
        made = card(load("reviews"), protocol="small", progress=said.append)
    return made, said


@pytest.fixture(scope="module")
def found(made):
    return made[0]


def test_how_long_it_takes_is_said_before_and_what_is_left_during(made):
    _found, (first, *others) = made
    assert first.startswith("reviews: small takes about")
    parts = [re.fullmatch(r"reviews: (.*), about \d+ (?:second|minute)s? left", line) for line in others]
    names = [part[1] for part in parts]
    assert names[0] == "attention layers at 2 windows of 4, 6, 8 tokens"
    # three layers at two windows of three lengths: a line after each layer and length
    assert names[1:9] == [f"attention layers, {left} measurements to go" for left in range(16, 0, -2)]
    assert names[9:] == [
        "bounds of the layers for any input",
        "the weakest head",
        "the whole model",
        "attention weights",
        "error budgets",
        "certificates",
    ]


def test_every_number_has_ends_and_words(found):
    assert {
        "worst layer",
        "whole worst",
        "whole typical",
        "growth exponent",
        "cost int8",
        "certified radius",
        "θ",
    } <= set(found.numbers)
    assert len(found.layers) == 3
    for each in (*found.numbers.values(), *(x for row in found.layers for x in row.values())):
        assert each.what
        assert each.evidence in {"bracket", "interval", "range", "proven", "computed"}
        if each.low is not None and each.high is not None:
            assert each.low <= each.value * (1 + 1e-12)
            assert each.value <= each.high * (1 + 1e-12)
    worst = [row["worst"].value for row in found.layers]
    assert found.numbers["worst layer"].value == max(worst)
    assert worst[int(found.numbers["weakest layer"].value)] == max(worst)
    assert all(row["worst"].high <= row["any input"].value for row in found.layers)
    bound, worst = found.numbers["any input"].value, found.numbers["worst layer"].high
    assert found.numbers["bound ratio"].value == pytest.approx(bound / worst)
    assert found.numbers["bracket ratio"].value >= 1


def test_the_answer_comes_first_and_a_narrow_terminal_loses_columns(found):
    shown = repr(found).splitlines()
    assert shown[1].startswith("Through all of reviews the worst perturbation grows")
    assert "Rounding all matrices costs, in nats an input: int8" in repr(found)
    said = " ".join(found.lead)
    for name in ("whole typical", "whole relative", "weakest head", "sink", "θ"):
        assert str(found.numbers[name]).split(" [")[0] in said
    assert f"to the power {exponent(found.numbers['growth exponent'].value)} (median of layers)" in said
    assert f"may move by {found.numbers['certified radius']} (median" in said
    assert f"known up to a factor of {at_most(found.numbers['bracket ratio'].value, 4)}" in said
    assert f"{at_most(found.numbers['bound ratio'].value, 3)} times what is found" in said


def test_a_card_comes_back_from_its_file_and_others_read_theirs(found, tmp_path):
    folder = write_card(found, tmp_path / "card")
    again = read_card(folder)
    assert again == found
    assert read_card(folder / "howsmooth.json").to_json() == found.to_json()
    markdown = (folder / "smoothness.md").read_text(encoding="utf-8")
    index = yaml.safe_load(markdown.split("---")[1])["model-index"]
    metrics = index[0]["results"][0]["metrics"]
    assert {each["name"]: each["value"] for each in metrics}["worst layer"] == found.numbers["worst layer"].value
    results = yaml.safe_load((folder / ".eval_results" / "howsmooth.yaml").read_text(encoding="utf-8"))
    assert results[0]["dataset"] == {"id": "howsmooth/small", "task_id": "weakest_layer"}
    hub = pytest.importorskip("huggingface_hub._eval_results")
    assert len(hub.parse_eval_result_entries(results)) == len(results)


def test_cards_stand_side_by_side_and_other_protocols_are_told(found, tmp_path):
    first, second = (write_card(found, tmp_path / name) for name in ("a", "b"))
    both = compare_cards([first, second])
    assert both.columns == ["number", "reviews", "reviews (2)"]
    assert both.remarks == ()
    other = dataclasses.replace(found, protocol=dataclasses.replace(SMALL, name="other"), version="9.9")
    write_card(other, second)
    assert [note.split(";")[0] for note in compare_cards([first, second]).remarks] == [
        "these cards were made with other protocols",
        "these cards were made with other versions of howsmooth",
    ]


def test_side_by_side_names_and_digits_stay_on_a_narrow_terminal(found, tmp_path):
    paths = [write_card(found, tmp_path / name) for name in "abc"]
    console = Console(width=72, file=io.StringIO(), record=True)
    console.print(compare_cards(paths))
    shown = console.export_text()
    assert "…" not in shown
    assert all(word in shown for name in found.numbers for word in name.split())
    assert shown.split("worst layer:")[0].count(at_least(found.numbers["whole worst"].low, 3)) >= 3


def test_what_a_model_has_no_place_for_is_left_out_with_the_reason(save_classifier, monkeypatch):
    monkeypatch.setitem(card_measurement.PROTOCOLS, "small", SMALL)
    made = card(save_classifier(labels=1), protocol="small")
    assert "certified radius" not in made.numbers
    assert any(note.startswith("without certificates:") and "one class" in note for note in made.notes)


def test_of_what_is_no_classifier_no_certificates_are_missed(tiny, monkeypatch):
    monkeypatch.setitem(card_measurement.PROTOCOLS, "small", SMALL)
    made = card(tiny, protocol="small")
    assert "certified radius" not in made.numbers
    assert not any("certificates" in note for note in made.notes)


def test_bad_cards_and_protocols_are_refused(tmp_path, found):
    with pytest.raises(AssumptionError, match="no 'protocol-2'; did you mean protocol-1"):
        card("reviews", protocol="protocol-2")
    with pytest.raises(FileError, match="holds no card"):
        read_card(tmp_path)
    for text in ("{}", "[1]", json.dumps(json.loads(found.to_json()) | {"numbers": {"x": {}}})):
        with pytest.raises(FileError, match="no card of howsmooth"):
            Card.from_json(text)
    with pytest.raises(AssumptionError, match="at least two"):
        compare_cards([tmp_path])
