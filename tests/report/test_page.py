"""The page of a run: what it says, what it holds, and that nothing a model or a text brings in can break out."""

import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from measured import grid, heads, measurement, record

import howsmooth as hs
from howsmooth.report import drawings
from howsmooth.report.answer import answer_rows, sentences
from howsmooth.report.drawings import chart_named, measurement_drawings, prefixes
from howsmooth.report.embedding import apart, asset, columns, in_script, runtime
from howsmooth.report.facts import worst_inputs
from howsmooth.report.ladder_chart import rungs
from howsmooth.report.page import render, write_report
from howsmooth.report.scales import linear, straightened
from howsmooth.report.themes import VARIABLES, themed
from howsmooth.studies.context import kept_ladder
from howsmooth.studies.provenance import commands_for, grids, keep_command, keep_figures, kept_commands, kept_figures
from howsmooth.studies.reading import Run, read_run
from howsmooth.studies.records import Failure
from howsmooth.studies.store import Store
from howsmooth.studies.tasks import Task

HOSTILE = "</script><script>alert(1)</script><!-- \" ' & {{ 7*7 }} \u2028"


def run_of(*measurements, failures=(), figures=None, commands=("howsmooth measure m",)):
    records = tuple(r for m in measurements for r in (*m.records, *m.heads))
    return Run(records=records, failures=failures, measurements=measurements, figures=figures or {}, commands=commands)


class Page(HTMLParser):
    """What a browser would see of a page: its elements, and its text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.data, self._inside = [], [], "", None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs)) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.words.append(data)
        elif self._inside[1].get("id") == "report-data":
            self.data += data

    def all(self, tag, **attributes):
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in attributes.items())]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def whole():
    found = measurement(grid(layers=3, local_upper=99.0), heads=heads(layers=3))
    return found, Page(render(run_of(found)))


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "small"
    hs.measure("minilm", layers=[1, 4], lengths=[8, 16], sequences=2, per_head=True, out=folder)
    return folder


def test_the_answer_names_the_least_smooth_and_the_smoothest_layer_and_the_range_of_exponents():
    rows = answer_rows(run_of(measurement(grid(layers=3))))
    first, second = sentences(rows, run_of())
    assert "The least smooth is layer 2" in first
    assert "the smoothest is layer 0" in first
    assert [row.mark for row in rows] == ["smoothest", "", "least smooth"]
    assert "n to the power 0.30 [0.30, 0.30]" in second or "0.30" in second
    ratios = [1234.0 / row.layer.constant for row in rows]
    assert f"{float(f'{min(ratios):.2g}'):,.0f} to {float(f'{max(ratios):.2g}'):,.0f} times" in second


def test_the_answer_tells_models_and_maps_apart_only_where_there_are_several():
    one, other = measurement(grid(layers=1)), dataclasses.replace(measurement(grid(layers=1)), map="residual")
    assert answer_rows(run_of(one))[0].label == "layer 0"
    assert [row.label for row in answer_rows(run_of(one, other))] == ["layer 0 (attention)", "layer 0 (residual)"]
    third = dataclasses.replace(one, model="x")
    assert answer_rows(run_of(one, third))[1].label == "layer 0 of x"


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (lambda: grid(layers=1), "In layer 0, a small perturbation"),
        (lambda: grid(lengths=(8,)), "Nothing is said about growth"),
        (lambda: grid(lower=0.0), "0 times as far"),
    ],
)
def test_the_answer_is_two_sentences_whatever_was_measured(records, said):
    rows = answer_rows(run_of(measurement(records())))
    both = sentences(rows, run_of())
    assert said in " ".join(both)
    assert all(sentence.endswith(".") for sentence in both)


def test_a_run_without_text_says_what_it_holds():
    page = Page(render(run_of(figures={})))
    assert "no measurement on a text" in page.text


def test_the_table_holds_a_row_for_each_layer_with_its_numbers(whole):
    found, page = whole
    rows = page.all("tr", **{"data-map": "attention", "data-model": "m"})
    assert [row["data-layer"] for row in rows] == ["0", "1", "2"]
    for layer in found.layers:
        for cell in layer.cells[1:3]:
            assert cell in page.text


def test_every_chart_has_a_caption_a_description_and_its_numbers(whole):
    found, page = whole
    names = [
        "constant_against_length",
        "constant_against_radius",
        "layers_by_length",
        "heads_by_layer",
        "bounds_ladder",
    ]
    assert [figure["data-chart"] for figure in page.all("figure")] == names
    assert all(len(div["aria-label"]) > 40 for div in page.all("div", role="img"))
    data = json.loads(page.data)
    assert list(data["charts"]) == names
    assert len(page.all("details")) == len(names) + 1
    for drawing in measurement_drawings(found):
        assert drawing.caption in page.text
        assert drawing.numbers.rows
        assert {len(cells) for _layer, cells in drawing.numbers.rows} == {len(drawing.numbers.head)}


def test_the_numbers_behind_the_length_chart_are_those_of_the_records(whole):
    found, _page = whole
    drawing = measurement_drawings(found)[0]
    for layer, cells in drawing.numbers.rows:
        records = found.at(layer=layer, length=int(cells[1]))
        assert cells[2] == str(len(records))
        assert cells[3] == f"{min(r.lower for r in records):.4g}"
        assert cells[5] == f"{max(r.upper for r in records):.4g}"


def test_rungs_stand_in_order_with_the_measurement_among_them():
    layer = measurement(grid(local_upper=50.0)).layers[0]
    names = [row["name"] for row in rungs(dataclasses.replace(layer, local_upper=50.0))]
    assert names == ["measured (mean)", "certificate (mean)", "sharp bound"]


def test_whatever_strings_hold_they_stay_text_on_the_page():
    records = [
        dataclasses.replace(r, task=dataclasses.replace(r.task, model=HOSTILE, text=HOSTILE)) for r in grid(layers=1)
    ]
    found = measurement(records, tokens=tuple(f"{HOSTILE}{i}" for i in range(16)))
    found = dataclasses.replace(found, model=HOSTILE, text=HOSTILE, notes=(HOSTILE,), openings={(4, 0): (HOSTILE, "b")})
    failure = Failure(task=Task(model=HOSTILE, length=3), error=HOSTILE)
    hostile = Page(render(run_of(found, failures=(failure,), commands=(f"howsmooth measure {HOSTILE}",))))
    plain = Page(render(run_of(measurement(grid(layers=1)))))
    assert len(hostile.all("script")) == len(plain.all("script")) == 3
    assert len(hostile.all("img")) == 0
    assert "<" not in hostile.data
    assert "alert(1)" in hostile.text
    assert "49" not in {word for word in hostile.text.split() if "7*7" in word}
    begins = json.loads(hostile.data)["charts"]["constant_against_length"]["data"]["data 0"]
    assert any("alert(1)" in str(row) for row in begins["rows"])


def test_json_in_a_script_reads_back_and_holds_nothing_that_ends_it():
    value = {"a": [HOSTILE, 0.1234567891, float("inf"), float("nan"), None, 3], "b": ("x",)}
    text = str(in_script(value))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": [HOSTILE, 0.123457, None, None, None, 3], "b": ["x"]}


def test_data_leave_the_specification_and_come_back_as_columns():
    spec = {"layer": [{"data": {"values": [{"a": 1}, {"b": 2}]}, "mark": "point"}], "data": {"values": []}}
    bare, data = apart(spec)
    assert bare == {"layer": [{"mark": "point", "data": {"name": "data 0"}}], "data": {"name": "data 1"}}
    assert columns(data["data 0"]) == {"fields": ["a", "b"], "rows": [[1, None], [None, 2]]}


def test_axes_become_linear_and_nothing_else_changes():
    (drawing, *_rest) = measurement_drawings(measurement(grid(local_upper=30.0)))
    straight = linear(drawing.spec)
    assert '"type": "log"' in json.dumps(drawing.spec["spec"])
    axes = [c for layer in straight["spec"]["layer"] for n, c in layer["encoding"].items() if n in ("x", "y")]
    assert all(axis["scale"]["type"] == "linear" and axis["scale"]["domain"][0] == 0 for axis in axes)
    assert straight["data"] == drawing.spec["data"]
    assert [layer["mark"] for layer in straight["spec"]["layer"]] == [
        layer["mark"] for layer in drawing.spec["spec"]["layer"]
    ]


def test_colours_become_variables_of_the_page():
    for drawing in measurement_drawings(measurement(grid(local_upper=30.0, released=0.5), heads=heads())):
        spec, _data = apart(drawing.spec)
        spec.pop("config")
        text = json.dumps(themed(spec))
        assert not any(colour in text for colour in VARIABLES)
    # light, dark by the system, dark by choice, paper
    assert all(asset("report.css").count(variable[4:-1] + ":") == 4 for variable in VARIABLES.values())


def test_a_large_measurement_makes_a_page_below_five_megabytes_and_its_tables_hold_all(monkeypatch):
    records = grid(layers=6, lengths=(8, 16), windows=100)
    short = tuple(dataclasses.replace(r, sensitivity=(), response=()) for r in records if r.task.window)
    found = measurement([*(r for r in records if not r.task.window), *short], tokens=("word",) * 16)
    found = dataclasses.replace(found, openings={(r.task.length, r.task.window): ("words",) * 8 for r in records})
    most = drawings.MOST_DOTS
    monkeypatch.setattr(drawings, "MOST_DOTS", 800)
    text = render(run_of(found))
    page = Page(text)
    assert "Dots are drawn for 792 of 1200 windows" in page.text
    assert measurement_drawings(found)[0].numbers.rows[0][1][2] == "100"
    assert len(runtime()) + most / 792 * (len(text.encode()) - len(runtime())) < 5_000_000


def test_names_of_charts_differ_where_measurements_do():
    one = measurement(grid(layers=1))
    two = dataclasses.replace(one, map="head:3")
    assert prefixes([one]) == [""]
    assert prefixes([one, two, one]) == ["m-attention.", "m-head-3.", "m-attention~2."]
    names = [drawing.name for prefix in prefixes([one, two, one]) for drawing in measurement_drawings(one, prefix)]
    assert len(names) == len(set(names))


def test_an_unknown_figure_or_layer_is_refused_with_those_there_are():
    run = run_of(measurement(grid()))
    with pytest.raises(hs.errors.AssumptionError, match="no figure 'x'; it has constant_against_length, "):
        chart_named(run, "x")
    with pytest.raises(hs.errors.AssumptionError, match="layer 9 was not measured; the run has 0, 1"):
        chart_named(run, "bounds_ladder", layer=9)
    with pytest.raises(hs.errors.AssumptionError, match="layers_by_length shows all layers, got --layer 1"):
        chart_named(run, "layers_by_length", layer=1)
    with pytest.raises(hs.errors.AssumptionError, match="no axes that can be linear"):
        straightened(chart_named(run, "bounds_ladder"))
    title = chart_named(run, "bounds_ladder", layer=0).to_dict()["title"]
    assert title.startswith("Layer 0: the sharp bound is")


def test_the_same_records_give_the_same_bytes_wherever_they_lie(small_run, tmp_path):
    first = write_report(small_run).read_bytes()
    shutil.copytree(small_run, tmp_path / "elsewhere")
    assert write_report(tmp_path / "elsewhere", tmp_path / "o.html").read_bytes() == first
    assert str(small_run).encode() not in first
    assert len(first) < 2_000_000


def test_a_run_is_read_back_with_its_bounds_words_and_command(small_run):
    run = read_run(small_run)
    (found,) = run.measurements
    assert run.commands == (
        "howsmooth measure minilm --layers 1,4 --lengths 8,16 --sequences 2 --map attention --rtol 0.001 "
        "--confidence 0.999 --seed 0 --per-head",
    )
    for layer in found.layers:
        assert {bound.name for bound in layer.ladder.rungs} == {"sharp_lower", "sharp_upper"}
        low, high = layer.ladder.rungs
        assert layer.most < low.value < high.value == layer.sharp_upper
    assert found.openings[16, 1] != found.openings[16, 0]
    assert len(found.openings[8, 0]) == 8
    assert "records" in repr(run)
    assert "<table>" in run._repr_html_()


def test_the_page_says_how_to_build_a_worst_input_where_the_theory_has_one(small_run):
    page = Page(render(read_run(small_run)))
    hints = [hint["data-layer"] for hint in page.all("p", **{"class": "hint of-layer"})]
    assert hints == ["1", "4"]
    assert "howsmooth worst-case --model minilm --layer 4 --map attention --n 16 --radius" in page.text
    assert not worst_inputs(measurement(grid()))


def test_the_command_of_a_measurement_measures_the_same(small_run):
    (found,) = read_run(small_run).measurements
    (command,) = commands_for(found)
    words = command.split()
    options = dict(zip(words[3:-1:2], words[4::2], strict=True))
    again = hs.measure(
        words[2],
        layers=[int(i) for i in options["--layers"].split(",")],
        lengths=[int(i) for i in options["--lengths"].split(",")],
        sequences=int(options["--sequences"]),
        map=options["--map"],
        seed=int(options["--seed"]),
    )
    assert [r.task.key for r in again.records] == [r.task.key for r in found.records]


def test_a_run_that_was_added_to_says_each_part():
    records = [*grid(layers=3, windows=2), *(record(1, 6, w) for w in range(3)), *(record(2, 6, w) for w in range(3))]
    found = measurement(records, tokens=())
    parts = [(g.layers, g.lengths, g.windows) for g in grids(found)]
    assert parts == [((0, 1, 2), (4, 8, 16), 2), ((1, 2), (6,), 3)]
    first, second = commands_for(found)
    assert "--layers 0,1,2 --lengths 4,8,16 --sequences 2" in first
    assert "--layers 1,2 --lengths 6 --sequences 3" in second
    assert "at 2 windows of n = 16 tokens" in found.title


def test_commands_and_figures_are_kept_once_and_together():
    task = Task(kind="regime", length=3)
    with Store(None) as store:
        keep_command(store, ["howsmooth", "paper", "a b"])
        keep_command(store, ["howsmooth", "paper", "a b"])
        keep_figures(store, {"regimes": [task]})
        keep_figures(store, {"worst": []})
        assert kept_commands(store) == ["howsmooth paper 'a b'"]
        assert kept_figures(store) == {"regimes": [task.key], "worst": []}
        assert not kept_ladder(store, "m", "attention", 0, 8, 1.0).rungs


def test_records_of_other_kinds_are_drawn_by_the_figure_of_their_kind(tmp_path):
    rows = [record(0, 7, 0)]
    with Store(tmp_path) as store:
        for points in ("two_point", "tied_pair"):
            for n in (7, 12):
                task = Task(kind="extremal", model="m", map="head:0", points=points, length=n, radius=3.0)
                store.add([dataclasses.replace(rows[0], task=task, lower=n**0.5)])
    run = read_run(tmp_path)
    assert list(run.figures) == ["adversarial"]
    page = Page(render(run))
    assert page.all("figure")[0]["data-chart"] == "adversarial-single_head"


def test_a_failed_task_and_a_half_done_run_are_told_first():
    found = dataclasses.replace(measurement(grid()), complete=False, notes=("the weights are 4-bit",))
    failure = Failure(task=Task(model="m", layer=3, length=8), error="out of memory")
    page = Page(render(run_of(found, failures=(failure,) * 7)))
    assert re.search("the weights are 4-bit.*not everything.*layer 3, 8 tokens: out of memory.*2 more", page.text)
    assert page.text.index("Before you trust it") < page.text.index("What was run")
