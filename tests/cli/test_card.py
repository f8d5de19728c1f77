"""``howsmooth card`` writes its files and says where; ``compare`` puts cards side by side."""

import dataclasses

import pytest
from typer.testing import CliRunner

from howsmooth.cli.commands import app
from howsmooth.studies import card_measurement
from howsmooth.studies.cards import Card, CardNumber


@pytest.fixture
def made(monkeypatch):
    number = CardNumber(value=2.0, low=1.0, high=3.0, evidence="range", what="how much")
    found = Card(
        model="toy",
        digest="0" * 64,
        protocol=card_measurement.PROTOCOLS["protocol-1"],
        version="0",
        numbers={"worst layer": number, "weakest layer": dataclasses.replace(number, value=0.0, low=0.0)},
        layers=({"worst": number, "typical": number},),
    )
    monkeypatch.setattr(card_measurement, "card", lambda _model, **_settings: found)
    return found


def run(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_a_card_is_written_shown_and_compared(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("card", "toy")
    assert done.exit_code == 0
    assert "The card is in cards/toy" in done.stdout
    names = {path.name for path in (tmp_path / "cards" / "toy").rglob("*") if path.is_file()}
    assert names == {"howsmooth.json", "smoothness.md", "howsmooth.yaml", "card.html"}
    page = (tmp_path / "cards" / "toy" / "card.html").read_text(encoding="utf-8")
    assert "How smooth is toy?" in page
    compared = run("compare", "cards/toy", "cards/toy/howsmooth.json", "cards/toy", "--out", "all.html")
    assert compared.exit_code == 0
    assert "3 cards by protocol-1" in compared.stdout
    assert (tmp_path / "all.html").is_file()
