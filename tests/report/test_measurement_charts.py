import dataclasses
import json
import math
from itertools import pairwise
from statistics import geometric_mean

import pytest
from measured import LENGTHS, grid, heads, measurement, record

import howsmooth as hs
from howsmooth.report.heat_maps import heads_by_layer, layers_by_length
from howsmooth.report.measurement_charts import constant_against_length, constant_against_radius, figures
from howsmooth.report.saving import save_chart
from howsmooth.report.token_chart import sensitive_tokens

CASES = {
    "everything": lambda: measurement(grid(local_upper=30.0, released=0.5), heads=heads()),
    "one layer": lambda: measurement(grid(layers=1), heads=heads(layers=1, count=1)),
    "one length": lambda: measurement(grid(lengths=(8,)), heads=heads(length=8)),
    "one record": lambda: measurement([record(0, 4, 0, lower=10.0)]),
    "a zero": lambda: measurement([*grid(windows=2), *(record(k, n, 2, lower=0.0) for k in (0, 1) for n in LENGTHS)]),
    "zeros only": lambda: measurement(grid(lower=0.0), heads=[record(0, 16, 0, part="head:0", lower=0.0)]),
}


def rows_of(chart, **wanted):
    """Return the rows that a chart draws, those with the wanted fields."""
    found = [row for values in _data(chart.to_dict()) for row in values]
    return [row for row in found if all(row.get(name) == value for name, value in wanted.items())]


def _data(part):
    if isinstance(part, dict):
        data = part.get("data") or {}
        yield from [data["values"]] if "values" in data else []
        for child in part.values():
            yield from _data(child)
    elif isinstance(part, list):
        for child in part:
            yield from _data(child)


def unique(rows):
    return list({tuple(sorted(row.items())): row for row in rows}.values())


@pytest.mark.parametrize("case", CASES)
def test_every_figure_can_be_written(tmp_path, case):
    charts = figures(CASES[case]())
    for name, chart in charts.items():
        save_chart(chart, tmp_path / f"{name}.svg")
        text = (tmp_path / f"{name}.svg").read_text()
        assert text.startswith("<svg")
        assert "NaN" not in text
        assert "Infinity" not in text


def test_figures_are_named_by_what_the_measurement_holds():
    always = ["constant_against_length", "constant_against_radius", "layers_by_length", "bounds_ladder"]
    assert list(figures(measurement(grid(), heads=heads()))) == [*always, "heads_by_layer", "sensitive_tokens"]
    assert list(figures(measurement(grid(), tokens=()))) == always
    assert figures(dataclasses.replace(measurement(grid()), records=(), layers=(), complete=False)) == {}


def test_every_window_is_a_point():
    found = measurement(grid())
    points = rows_of(constant_against_length(found), kind="attained in a window")
    assert [(p["n"], p["value"]) for p in points] == [(r.task.length, r.lower) for r in found.records]
    points = [row for row in rows_of(constant_against_radius(found)) if "value" in row]
    assert [(p["radius"], p["value"]) for p in points] == [(r.radius, r.lower) for r in found.records]


def test_a_constant_of_zero_is_left_out_but_its_layer_keeps_a_panel(tmp_path):
    found = measurement([*grid(layers=1), *(record(1, n, 0, lower=0.0) for n in LENGTHS)])
    for chart in (constant_against_length(found), constant_against_radius(found)):
        rows = rows_of(chart)
        assert all(row["value"] > 0 for row in rows if "value" in row)
        assert {row["panel"][:7] for row in rows} == {"layer 0", "layer 1"}
        save_chart(chart, tmp_path / "chart.svg")
        assert ">layer 1" in (tmp_path / "chart.svg").read_text()


def test_the_band_contains_the_fit_and_closes_at_the_centre_of_the_lengths():
    exact = grid(layers=1, lengths=(4, 8, 32))
    found = measurement([dataclasses.replace(r, lower=r.lower * (1.3 if r.task.window % 2 else 0.8)) for r in exact])
    law = found.layers[0].growth
    band = rows_of(constant_against_length(found), kind="power law")
    assert law.low < law.exponent < law.high
    assert all(row["low"] <= row["value"] * (1 + 1e-12) for row in band)
    assert all(row["value"] <= row["high"] * (1 + 1e-12) for row in band)
    assert [row["value"] for row in band] == pytest.approx([law.at(row["n"]) for row in band])
    (centre,) = (row for row in band if math.isclose(row["low"], row["high"]))
    assert centre["n"] == pytest.approx(geometric_mean((4, 8, 32)))
    last = band[-1]
    assert last["high"] == pytest.approx(centre["value"] * (last["n"] / centre["n"]) ** law.high)


def test_a_panel_says_the_exponent_its_interval_and_the_sharp_bound():
    found = measurement(grid(layers=1))
    law = found.layers[0].growth
    (panel,) = {row["panel"] for row in rows_of(constant_against_length(found))}
    first, second = panel.split("\n")
    assert first == f"layer 0: n^{law.exponent:.2f} [{law.low:.2f}, {law.high:.2f}]"
    assert second.startswith("sharp bound 1.23e+03")


def test_a_law_that_does_not_fit_is_called_none():
    bent = [dataclasses.replace(r, lower=r.lower * (4 if r.task.length == 8 else 1)) for r in grid(layers=1)]
    (panel,) = {row["panel"] for row in rows_of(constant_against_length(measurement(bent)))}
    assert panel.endswith("no power law")


def test_without_a_second_length_there_is_no_law():
    found = measurement(grid(layers=1, lengths=(8,)))
    assert rows_of(constant_against_length(found), kind="power law") == []
    (panel,) = {row["panel"] for row in rows_of(constant_against_length(found))}
    assert panel.startswith(f"layer 0: {found.layers[0].constant:.3g} at 8 tokens")


@pytest.mark.parametrize(("field", "kind"), [("local_upper", "certificate"), ("released", "released quantity")])
def test_certificates_and_released_quantities_are_geometric_means_and_absent_when_none(field, kind):
    assert rows_of(constant_against_length(measurement(grid())), kind=kind) == []
    records = [dataclasses.replace(r, **{field: 2.0 + r.task.window}) for r in grid(layers=1)]
    rows = rows_of(constant_against_length(measurement(records)), kind=kind)
    assert [row["n"] for row in rows] == list(LENGTHS)
    assert [row["value"] for row in rows] == pytest.approx([geometric_mean([2.0, 3.0, 4.0])] * 3)


def test_the_legend_names_only_what_is_drawn():
    _band, *marks = constant_against_length(measurement(grid())).to_dict()["spec"]["layer"]
    for mark in marks:
        assert mark["encoding"]["color"]["scale"]["domain"] == ["attained in a window", "power law"]


def test_a_cell_holds_the_geometric_mean_of_its_layer_and_length():
    found = measurement(grid())
    for row in unique(rows_of(layers_by_length(found))):
        records = found.at(layer=row["layer"], length=row["column"])
        assert row["value"] == pytest.approx(geometric_mean(r.lower for r in records))
        assert float(row["number"]) == pytest.approx(row["value"], rel=5e-3)


def test_the_title_of_a_heat_map_names_the_least_smooth():
    found = measurement(grid(), heads=heads())
    assert layers_by_length(found).to_dict()["title"].startswith("Layer 1 is the least smooth at 16 tokens")
    assert heads_by_layer(found).to_dict()["title"].startswith("Head 2 of layer 1 is the least smooth at 16 tokens")


def test_large_numbers_in_cells_are_rounded_to_three_digits():
    numbers = [1234.5, 0.0123456, 42.0]
    found = measurement([record(layer, 8, 0, lower=value) for layer, value in enumerate(numbers)])
    assert [row["number"] for row in unique(rows_of(layers_by_length(found)))] == ["1230", "0.0123", "42"]


def test_only_the_longest_length_of_the_heads_is_drawn():
    found = measurement(grid(), heads=[*heads(), *(dataclasses.replace(r, lower=99.0) for r in heads(length=4))])
    cells = unique(rows_of(heads_by_layer(found)))
    assert [(row["layer"], row["column"]) for row in cells] == [(k, h) for k in range(2) for h in range(3)]
    assert cells[-1]["value"] == pytest.approx(geometric_mean([3.0, 4.0]))


def test_tokens_keep_their_order_and_all_appear():
    tokens = tuple(f"word{i}" for i in range(1024))
    found = measurement([record(0, 1024, 0)], tokens=tokens)
    rows = unique(rows_of(sensitive_tokens(found, 0)))
    assert [row["text"] for row in rows] == list(tokens)
    assert [row["share"] for row in rows] == list(found.records[0].sensitivity)
    places = [(row["line"], row["start"]) for row in rows]
    assert places == sorted(set(places))
    assert all(row["end"] <= 90 for row in rows)
    assert all(one["end"] < two["start"] for one, two in pairwise(rows) if one["line"] == two["line"])


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        (("[CLS]", "mov", "##ing", "##", "."), "[CLS] moving## ."),
        (("Ġthe", "Ġmov", "ing", "Ċ", "Ġ", "Ġcaf", "Ã©", "âĢĻ"), "the moving⏎ ␣ café’"),
        (("<s>", "▁the", "▁mov", "ing", "<0x0A>", "▁"), "<s> the moving⏎ ␣"),
        (("a", "b\x00c", "\n", "\t", "文字"), "a b⟨U+0000⟩c ⏎ ⇥ 文字"),
    ],
    ids=["WordPiece", "bytes", "SentencePiece", "words"],
)
def test_pieces_of_every_vocabulary_are_readable(tokens, line):
    found = measurement([record(0, len(tokens), 0)], tokens=tokens)
    rows = unique(rows_of(sensitive_tokens(found, 0)))
    text, column = "", 0
    for row in rows:
        text += " " * (row["start"] - column) + row["text"]
        column = row["end"]
    assert text == line


def test_a_wide_character_takes_two_columns_and_a_combining_one_none():
    rows = unique(rows_of(sensitive_tokens(measurement([record(0, 2, 0)], tokens=("文字", "e\u0301")), 0)))
    assert [row["end"] - row["start"] for row in rows] == [4, 1]


def test_a_token_cannot_end_the_script_it_is_written_into(tmp_path):
    chart = sensitive_tokens(measurement([record(0, 3, 0)], tokens=("</script>", "<!--", "<script>")), 0)
    save_chart(chart, tmp_path / "tokens.html")
    _before, found, rest = (tmp_path / "tokens.html").read_text(encoding="utf-8").partition('id="specification">')
    assert found
    spec, _end, _after = rest.partition("</script>")
    assert "<" not in spec
    assert [row["text"] for row in json.loads(spec)["data"]["values"]] == ["</script>", "<!--", "<script>"]


def test_the_tokens_of_the_layer_with_the_largest_constant_are_shown():
    title = figures(measurement(grid()))["sensitive_tokens"].to_dict()["title"]
    assert title["text"] == "layer 1: which tokens to move (window 0, 16 tokens)"


def test_a_layer_whose_window_was_not_measured_is_refused():
    with pytest.raises(hs.errors.AssumptionError, match="layer 7"):
        sensitive_tokens(measurement(grid()), 7)
