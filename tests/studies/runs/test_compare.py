"""Two runs side by side: which windows are pairs, which differences are real, and what is refused."""

import dataclasses
import io
import json
import math
import re

import pytest
from measured import changed, grid, heads, measurement, record, run_of
from msgspec.structs import replace
from rich.console import Console

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.studies.runs.comparison import Verdict, bracketed, paired_ratio
from howsmooth.studies.runs.store import Store


def scaled(records, factor, *, bar=1.001):
    """Return records whose constants are so many times larger."""
    return [
        changed(r, lower=factor * r.answer.lower, upper=None if bar is None else bar * factor * r.answer.lower)
        for r in records
    ]


def scattered(records):
    """Return records whose constants differ more from window to window than models do."""
    return [r for one in records for r in scaled([one], 1.5**one.ask.window.index)]


def at_other_windows(records, **how):
    return [replace(r, ask=replace(r.ask, window=replace(r.ask.window, **how))) for r in records]


BEFORE = scattered(grid())


def test_of_the_same_windows_a_difference_is_found_that_is_smaller_than_their_scatter():
    found = hs.compare(measurement(BEFORE), measurement(scaled(BEFORE, 1.05)))
    assert found.paired
    assert [(row.layer, row.length) for row in found.rows] == [(k, n) for k in (0, 1) for n in (4, 8, 16)]
    assert {row.verdict for row in found.rows} == {Verdict.LARGER}
    for row in found.rows:
        assert row.ratio.value == pytest.approx(1.05)
        assert 1 < row.ratio.within[0] < 1.05 < row.ratio.within[1]
        assert row.windows == (3, 3)
    smaller = hs.compare(measurement(scaled(BEFORE, 1.05)), measurement(BEFORE))
    assert {row.verdict for row in smaller.rows} == {Verdict.SMALLER}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"digest": "another"}, "the texts differ"),
        ({"stride": 3}, "the text is cut in two ways"),
        ({"special_tokens": True}, "the text is cut in two ways"),
    ],
)
def test_windows_of_other_texts_are_no_pairs_and_the_result_says_so(how, why):
    found = hs.compare(measurement(BEFORE), measurement(at_other_windows(scaled(BEFORE, 1.05), **how)))
    assert not found.paired
    assert found.real == ()
    (note,) = found.notes
    assert note.startswith(f"{why}, so windows are no pairs")
    assert "independent samples" in found.legend


def test_the_place_of_a_text_tells_no_windows_apart():
    assert hs.compare(measurement(BEFORE), measurement(at_other_windows(BEFORE, text="elsewhere"))).paired


def test_windows_of_other_tokens_are_no_pairs():
    openings = {(n, w): ("a", "b") for n in (4, 8, 16) for w in range(3)}
    one = measurement(BEFORE, openings=openings)
    assert hs.compare(one, one).paired
    assert hs.compare(one, measurement(BEFORE)).paired  # nothing is known of the other
    other = measurement(BEFORE, openings=openings | {(8, 1): ("a", "c")})
    assert "the tokens differ" in hs.compare(one, other).notes[0]


def test_sentences_are_pairs_whatever_their_lengths_and_tokens():
    """Of two tokenizers one may need more tokens for the same sentence."""
    found = []
    for factor, more in ((1.0, 0), (1.05, 2)):
        records = scaled([record(0, 4 + w + more, w, lower=2.0**w) for w in range(3)], factor)
        whole = at_other_windows(records, whole=True, source="sentences")
        found.append(measurement(whole, openings={(4 + w + more, w): (str(more),) for w in range(3)}))
    compared = hs.compare(*found)
    (row,) = compared.rows
    assert (row.length, row.windows, row.paired, row.verdict) == (None, (3, 3), True, Verdict.LARGER)
    assert row.place == "layer 0"
    assert compared.columns[:2] == ["layer", "windows"]
    with pytest.raises(AssumptionError, match="at whole sequences"):
        hs.compare(found[0], measurement(BEFORE))


def test_a_difference_within_the_error_bars_is_never_real_though_all_windows_agree():
    found = hs.compare(measurement(BEFORE), measurement(scaled(BEFORE, 1.0005)))
    assert {row.verdict for row in found.rows} == {Verdict.ALIKE}
    assert {row.verdict for row in hs.compare(measurement(BEFORE), measurement(BEFORE)).rows} == {Verdict.ALIKE}


def test_without_upper_ends_no_difference_is_real():
    found = hs.compare(measurement(BEFORE), measurement(scaled(BEFORE, 50.0, bar=None)))
    assert found.real == ()
    assert all(row.ratio.near[1] == math.inf for row in found.rows)


def test_intervals_are_wider_the_more_of_them_there_are():
    after = scattered(scaled(grid(), 1.2))
    after = [one for r in after for one in scaled([r], 1 + 0.1 * r.ask.window.index)]
    found = hs.compare(measurement(BEFORE), measurement(after), confidence=0.9)
    for row in found.rows:
        pairs = [
            [(r.answer.lower, r.answer.upper) for r in some if (r.ask.layer, r.ask.length) == (row.layer, row.length)]
            for some in (BEFORE, after)
        ]
        assert row.ratio.within == pytest.approx(paired_ratio(*pairs, confidence=1 - 0.1 / 6).within)
    one = [[r for r in some if (r.ask.layer, r.ask.length) == (0, 4)] for some in (BEFORE, after)]
    alone = hs.compare(*map(measurement, one), confidence=0.9).rows[0].ratio
    assert alone.within[0] > found.rows[0].ratio.within[0]


def test_windows_that_one_run_alone_has_are_left_out():
    after = [r for r in scaled(BEFORE, 2.0) if r.ask.window.index > 0 and r.ask.layer == 0]
    found = hs.compare(measurement(BEFORE), measurement(after, planned=7))
    assert [(row.layer, row.windows) for row in found.rows] == [(0, (2, 2))] * 3
    assert found.notes == (
        "3 places of the first run alone: layers 1 at n = 4, 8, 16",
        "the second run is unfinished",
    )


def test_one_window_and_constants_of_zero_are_told_and_take_nothing_from_the_others():
    before = [*grid(layers=1, lengths=(8,)), record(1, 8, 0), *(record(2, 8, w) for w in range(2))]
    after = [changed(r, lower=0.0, upper=0.0) if r.ask.layer == 2 else r for r in scaled(before, 2.0)]
    found = hs.compare(measurement(before), measurement(after))
    assert [row.verdict for row in found.rows] == [Verdict.LARGER, Verdict.ONE, Verdict.ZERO]
    assert [row.ratio is None for row in found.rows] == [False, False, True]
    alone = hs.compare(measurement(before[:3]), measurement(after[:3]))
    assert found.rows[0] == alone.rows[0]


def test_single_heads_are_compared_if_that_is_wanted():
    one, two = measurement(BEFORE, heads=heads()), measurement(BEFORE, heads=scaled(heads(), 2.0))
    assert {row.map for row in hs.compare(one, two).rows} == {"attention"}
    found = [row for row in hs.compare(one, two, per_head=True).rows if row.map != "attention"]
    assert [row.map for row in found] == ["head:0", "head:1", "head:2"] * 2
    assert all(row.ratio.value == pytest.approx(2.0) for row in found)


def test_runs_are_matched_by_model_and_text_as_far_as_there_is_no_choice():
    residual = [replace(r, ask=replace(r.ask, map="residual")) for r in BEFORE]
    run = run_of(measurement(BEFORE), measurement(residual, map="residual"))
    other = run_of(
        measurement(scaled(grid(model="q"), 2.0)),
        measurement(scaled(residual, 3.0), map="residual"),
    )
    found = hs.compare(run, other)
    assert [row.map for row in found.rows] == ["attention"] * 6 + ["residual"] * 6
    assert found.rows[-1].ratio.value == pytest.approx(3.0)
    assert {row.models for row in found.rows} == {("m", "q"), ("m", "m")}
    assert {row.map for row in hs.compare(run, other, map="residual").rows} == {"residual"}
    two_texts = run_of(measurement(at_other_windows(BEFORE, digest="another"), text="u"), measurement(BEFORE))
    assert hs.compare(two_texts, measurement(BEFORE)).paired


def test_where_there_is_a_choice_it_is_asked_for():
    several = run_of(measurement(grid(model="a")), measurement(grid(model="b")))
    with pytest.raises(
        AssumptionError, match=r"not clear which measurements of 'attention' to compare: .* holds .* a "
    ):
        hs.compare(several, measurement(grid(model="c")))
    assert hs.compare(several, measurement(grid(model="b"))).rows


def test_runs_that_share_nothing_are_refused_with_what_each_holds():
    residual = [replace(r, ask=replace(r.ask, map="residual")) for r in grid(layers=4)]
    with pytest.raises(AssumptionError) as refused:
        hs.compare(measurement(BEFORE), measurement(residual, map="residual", text="u"))
    assert str(refused.value) == (
        "the runs have nothing in common: 'm on t' holds attention of m on t (layers 0, 1 at n = 4, 8, 16); 'm on u' "
        "holds residual of m on u (layers 0–3 at n = 4, 8, 16). Measure the same part, layers and lengths in both."
    )
    for others in (grid(lengths=(5,)), [r for r in grid(layers=5) if r.ask.layer > 1]):
        with pytest.raises(AssumptionError, match="nothing in common"):
            hs.compare(measurement(BEFORE), measurement(others))
    with pytest.raises(AssumptionError, match="no measurement at a text"):
        hs.compare(measurement(BEFORE), run_of())
    later = [replace(r, ask=replace(r.ask, window=replace(r.ask.window, index=9))) for r in grid(windows=1)]
    with pytest.raises(AssumptionError, match="nothing in common"):
        hs.compare(measurement(BEFORE), measurement(later))


@pytest.mark.untyped
def test_what_makes_no_sense_is_refused():
    one = measurement(BEFORE)
    with pytest.raises(AssumptionError, match="they share attention") as refused:
        hs.compare(one, one, map="block")
    assert refused.value.field == "map"
    for confidence in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(AssumptionError, match="between 0 and 1"):
            hs.compare(one, one, confidence=confidence)
    with pytest.raises(DtypeError, match="second must be a folder, a run or a measurement, got int"):
        hs.compare(one, 3)


def test_a_folder_is_read_as_the_run_that_it_holds(tmp_path):
    for name, records in (("one", BEFORE), ("two", scaled(BEFORE, 1.3))):
        with Store(tmp_path / name) as store:
            store.add(records)
    found = hs.compare(tmp_path / "one", tmp_path / "two")
    assert found.title == f"{tmp_path / 'two'} over {tmp_path / 'one'}"
    assert found.rows == hs.compare(hs.read_run(tmp_path / "one"), hs.read_run(tmp_path / "two")).rows
    assert [row.ratio for row in found.rows] == [
        row.ratio for row in hs.compare(measurement(BEFORE), measurement(scaled(BEFORE, 1.3))).rows
    ]


@pytest.fixture
def mixed():
    """Layer 0 is larger, layer 1 is not told apart."""
    after = [r for one in BEFORE for r in scaled([one], 1.5 if one.ask.layer == 0 else 1.0)]
    return hs.compare(measurement(BEFORE), measurement(after))


def test_a_comparison_shows_itself(mixed):
    first, said, suffered, head, *rows = repr(mixed).splitlines()
    assert suffered == "Less smooth in the second: layer 0 (1.5 times); not told apart: layer 1 (1 times)."
    assert first == "m on t over m on t"
    assert re.fullmatch(
        r"3 differences of 6 are real: layer 0 at \d+ tokens differs most, 1.5 times the first \[.*\].", said
    )
    assert head.split()[:3] == ["layer", "n", "windows"]
    assert len(rows) == 6
    assert sum(row.endswith("larger") for row in rows) == 3
    page = mixed._repr_html_()
    assert page.count("<tr>") == 7
    assert said in page
    for width in (60, 80, 200):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(mixed)
        shown = console.export_text()
        assert max(map(len, shown.splitlines())) <= width
        assert "1.5" in shown
        assert "larger" in shown


def test_a_comparison_where_nothing_differs_says_so():
    found = hs.compare(measurement(BEFORE), measurement(BEFORE))
    assert found.sentence == "No difference is real: of 6 ratios, none is told apart from 1."


def test_a_comparison_is_one_json_object_without_infinity(mixed):
    data = json.loads(mixed.to_json(), parse_constant=pytest.fail)
    assert [row["real"] for row in data["rows"]] == [True] * 3 + [False] * 3
    assert data["rows"][0]["ratio"] == pytest.approx(1.5)
    assert data["rows"][0]["low"] < 1.5 < data["rows"][0]["high"]
    opened = hs.compare(measurement(BEFORE), measurement(scaled(BEFORE, 2.0, bar=None)))
    assert json.loads(opened.to_json(), parse_constant=pytest.fail)["rows"][0]["high"] is None


def test_an_interval_is_rounded_outwards_and_never_onto_1():
    assert bracketed((0.99996, 1.00004)) == "[0.999, 1.001]"
    assert bracketed((1.00002, 1.5)) == "[1.00002, 1.5]"
    assert bracketed((0.5, 0.99996)) == "[0.5, 0.99996]"
    assert bracketed(None) == "—"


def test_a_comparison_is_frozen(mixed):
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed.confidence = 0.5
