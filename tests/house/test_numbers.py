"""Every number in prose has an account, and agrees with the run that gave it."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "docs" / "_ext"), str(ROOT / "tools")]

import make_numbers  # noqa: E402
import prose_numbers  # noqa: E402
from prose_numbers import Page, Token, printed, tokens  # noqa: E402

NUMBERS = {
    "runs": {
        "demo": {
            "command": "howsmooth measure",
            "numbers": {"worst": [4.2, 30.37]},
            "outputs": {"answer": "Lip 30.4\n"},
        }
    },
    "recorded": {"speed": {"command": "bench", "date": "2026-01-01", "numbers": ["3.3", "8"]}},
}


@pytest.mark.parametrize("path", make_numbers.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_numbers_of_a_page_are_those_of_the_file(path):
    assert Page(path.read_text(encoding="utf-8"), prose_numbers.load()).problems == []


def test_every_key_of_the_file_has_a_run_and_every_record_a_section():
    numbers = prose_numbers.load()
    sections = set()
    for path in make_numbers.PAGES:
        sections |= set(Page(path.read_text(encoding="utf-8"), numbers).recorded)
    assert set(numbers["runs"]) == set(make_numbers.RUNS)
    assert set(numbers["recorded"]) == sections


def test_a_notebook_shows_what_it_showed_when_it_was_executed():
    known = prose_numbers.load()["notebooks"]
    assert {path.stem: known[path.stem]["digest"] for path in make_numbers.NOTEBOOKS} == {
        path.stem: make_numbers.digest(path) for path in make_numbers.NOTEBOOKS
    }


def problems(text):
    return Page(text, NUMBERS).problems


def test_a_number_that_differs_from_its_run_is_a_problem_and_is_written_as_the_run_gave_it():
    page = Page("It grows 31-fold.\n<!-- numbers: demo.worst.1 -->\n", NUMBERS)
    assert page.problems == ["line 1: 31 should be 30"]
    assert page.written == "It grows 30-fold.\n<!-- numbers: demo.worst.1 -->\n"
    assert problems(page.written) == []


def test_a_number_without_an_account_is_a_problem():
    assert problems("It grows 31-fold.\n") == ["line 1: no account of 31"]
    assert problems("It grows 31-fold.\n<!-- numbers: demo.low -->\n") == [
        "line 1: docs/numbers.json has no 'demo.low'"
    ]
    assert problems("From 4.2 to 30 and 7.1.\n<!-- numbers: demo.worst -->\n") == [
        "line 1: 3 numbers (4.2, 30, 7.1), and an account of 2"
    ]


def test_a_reason_stands_for_one_number_or_for_a_paragraph():
    assert problems("It took 31 tries and 12 days.\n<!-- numbers: example -->\n") == []
    assert problems("With 64 of them it grows 30-fold.\n<!-- numbers: setting demo.worst.1 -->\n") == []
    assert problems("With 64 of them.\n<!-- numbers: whatever -->\n") == ["line 1: docs/numbers.json has no 'whatever'"]


def test_the_output_of_a_command_is_what_it_printed():
    shown = "<!-- output: demo.answer -->\n```\nLip 31.4\n```\n"
    page = Page(shown, NUMBERS)
    assert page.problems == ["line 2: this is not what 'howsmooth measure' printed"]
    assert problems(page.written) == []
    assert problems("```\nLip 31.4\n```\n") == ["line 1: no account of this output"]
    assert problems("```python\nlip = 31.4\n```\n") == []


def test_a_recorded_section_keeps_the_numbers_that_were_recorded():
    assert problems("## Speed\n\n<!-- recorded: speed -->\n\nIt is 3.3 times faster, 8 times there.\n") == []
    (problem,) = problems("## Speed\n\n<!-- recorded: speed -->\n\nIt is 3.4 times faster, 8 times there.\n\n## Next\n")
    assert "3.4 (recorded: 3.3)" in problem


def quoted(text):
    return [token.text for token in tokens(text, 0, len(text))]


def test_settings_formulas_code_and_links_quote_nothing():
    text = "At n = 64, R = 13 and layers 0, 2 and 14, `f(12)` and $x^{12}$ of [it](page12.md) have 12 heads, 99.9 %.\n"
    assert quoted(text) == []
    assert quoted("one of 7 words; Theorem 12; Python 3.11\n") == []
    assert quoted("at layer 4, 33 is attained, at n = 16 and 9,220 too\n") == ["33", "9,220"]


def test_numbers_of_two_digits_or_with_a_unit_are_quoted_and_so_are_their_neighbours():
    assert quoted("7 to 18 times, n^0.44, a factor of 3, 5 % and −0.01; 10³³ of 410,000\n") == [
        *("7", "18", "0.44", "3", "5", "−0.01", "10³³", "410,000")
    ]
    assert quoted("| layer | 12 |\n|---|---|\n| 0 | 4.35 → **7** |\n") == ["0", "4.35", "7"]


def test_factors_in_words_are_quoted_too():
    assert quoted("four to six times as far, by a factor of a thousand, and three words\n") == [
        "four",
        "six",
        "thousand",
    ]
    assert problems("It grows thirty times.\n<!-- numbers: demo.worst.1 -->\n") == []
    assert problems("It grows twenty times.\n<!-- numbers: demo.worst.1 -->\n") == ["line 1: twenty should be 30"]


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        (30.37, "31", "30"),
        (30.37, "31.2", "30.4"),
        (258775.7, "410,000", "260,000"),
        (8246.6, "25,741", "8,247"),
        (9.2, "13", "9.2"),
        (13.2, "9", "13"),
        (4.35, "7", "4"),
        (-0.012, "0.03", "−0.01"),
        (0.0041, "0.03", "0.0041"),
        (1416.2, "1503", "1416"),
        (2954.0, "3.1e+03", "3.0e+03"),
        (0.0, "1.5", "0.0"),
    ],
)
def test_a_number_is_written_with_the_precision_of_the_text(value, like, text):
    assert printed(value, Token(0, len(like), like)) == text
    assert printed(value, Token(0, len(text), text)) == text


def test_a_power_of_ten_is_written_by_its_exponent():
    assert printed(29.0, Token(0, 4, "10³³", power=True)) == "10²⁹"


def test_numbers_of_other_sources_cannot_be_released(monkeypatch, tmp_path):
    now = {"sources": make_numbers.sources()}
    kept = {"runs": dict.fromkeys(make_numbers.RUNS, now), "notebooks": {"first_steps": now}, "recorded": {}}
    monkeypatch.setattr(prose_numbers, "FILE", tmp_path / "numbers.json")
    monkeypatch.setattr(sys, "argv", ["make_numbers.py", "--check-release"])
    prose_numbers.FILE.write_text(json.dumps(kept), encoding="utf-8")
    make_numbers.main()
    kept["runs"]["demo"] = {"sources": "others"}
    prose_numbers.FILE.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"older than the sources \(demo\): run make numbers"):
        make_numbers.main()


def test_a_release_is_checked_before_it_is_made():
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert workflow.index("make release-check") < workflow.index("gh release create")
    assert re.search(r"^release-check:.*\n(?:\t.*\n)*\t.*--check-release", makefile, re.MULTILINE)
