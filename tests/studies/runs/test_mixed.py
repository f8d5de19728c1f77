"""Tables of runs that are mixed or unfinished: every row says how long its windows are and how many there were."""

import io
import re

import pytest
from measured import grid, measurement, record
from rich.console import Console

import howsmooth as hs
from howsmooth.cli.answers import print_answer
from howsmooth.report.page import render
from howsmooth.report.sentences import sentence
from howsmooth.studies.runs.run import read_run


def table(found, width):
    """Return the rows of the table in a terminal of some width, by the names of its columns."""
    screen = Console(width=width, file=io.StringIO())
    screen.print(found)
    # every cell one word
    text = screen.file.getvalue().replace(" – ", "–").replace(", ", ",").replace("typical 95 %", "interval")
    lines = [line.split() for line in text.splitlines()]
    at = next(i for i, line in enumerate(lines) if line[:1] == ["layer"])
    return [dict(zip(lines[at], row, strict=False)) for row in lines[at + 1 : at + 1 + len(found.layers)]]


@pytest.mark.parametrize("width", [40, 60])
def test_where_rows_differ_each_says_its_windows_however_narrow_the_terminal(width):
    found = measurement([*grid(layers=1, windows=3), *grid(layers=2, lengths=(8, 16), windows=1)[2:]])
    assert found.title == "m on t: 'attention' at n = 16 tokens"
    assert [layer.cells["windows"] for layer in found.layers] == ["3", "1"]
    assert all("windows" in row for row in table(found, width))


def test_where_layers_have_no_length_in_common_each_row_says_its_own():
    found = measurement([*grid(layers=1, lengths=(4, 8)), *(record(1, 32, w) for w in range(3))])
    assert found.title == "m on t: 'attention' at the longest windows of each layer"
    assert [layer.cells["n"] for layer in found.layers] == ["8", "32"]
    assert [row["n"] for row in table(found, 40)] == ["8", "32"]


def test_where_all_rows_are_alike_the_title_says_it_once():
    found = measurement(grid())
    assert found.title == "m on t: 'attention' at 3 windows of n = 16 tokens"
    assert not {"n", "windows"} & set(found.columns)


def test_means_of_different_counts_say_of_how_many(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    print_answer(measurement([*grid(layers=2, lengths=(4, 8), windows=3), record(0, 4, 3)]))
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Worst by number of tokens (mean, and in brackets of how many)")
    assert [line.split()[2::2] for line in lines[at + 2 : at + 4]] == [["(4)", "(3)"], ["(3)", "(3)"]]
    print_answer(measurement(grid(layers=2, lengths=(4, 8), windows=3)))
    assert "Worst by number of tokens (mean of 3)" in capsys.readouterr().out


SAID = [record(i, n, w, source="sentences", whole=True) for i in (0, 1) for w, n in enumerate((4, 9, 4))]


def test_sentences_have_a_row_each_with_their_length(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    found = measurement(SAID, openings={(9, 1): ("the", "cat", "##s")})
    print_answer(found)
    lines = capsys.readouterr().out.splitlines()
    assert "m on t: 'attention' at 3 sentences of n = 4 to 9 tokens" in lines
    at = lines.index("Worst by sentence")
    head, *rows = (line.split() for line in lines[at + 1 : at + 5])
    assert head == ["sentence", "n", "layer", "0", "layer", "1", "begins"]
    assert [row[:2] for row in rows] == [["0", "4"], ["1", "9"], ["2", "4"]]
    assert rows[1][-2:] == ["the", "cats"]
    assert float(rows[1][3]) == pytest.approx(found.at(layer=1, length=9)[0].answer.lower, rel=1e-3)
    assert not any(line.startswith("Worst by number") for line in lines)


def test_the_sentence_about_sentences_says_how_many_and_how_long():
    assert sentence(measurement(SAID)).startswith("Over 3 sentences of 4 to 9 tokens the worst small perturbation")


@pytest.mark.slow
def test_the_report_tells_of_every_sentence(tiny, tmp_path):
    (tmp_path / "said.jsonl").write_text('"down the hole"\n"who are you, said the caterpillar"\n', encoding="utf-8")
    hs.measure(tiny, sentences=tmp_path / "said.jsonl", layers=[0], out=tmp_path / "run")
    page = render(read_run(tmp_path / "run"))
    assert re.search(r"Over 2 sentences of 3 to \d+ tokens", page)
    assert "down the hole" in page
    assert "who are you" in page


@pytest.mark.slow
def test_what_two_commands_asked_for_is_said_to_be_of_two(tiny, small, tmp_path):
    first = hs.measure(tiny, out=tmp_path, **small)
    more = hs.measure(tiny, out=tmp_path, **small | {"lengths": [5], "sequences": 3})
    assert more.lengths == (5,)  # what is summed up is what was asked for
    (both,) = read_run(tmp_path).measurements
    assert both.lengths == (4, 5, 6)
    assert any("2 commands asked for these records" in remark for remark in both.remarks)
    assert not any("commands" in remark for remark in (*first.remarks, *more.remarks))
    assert "2 commands asked for these records" in render(read_run(tmp_path))
