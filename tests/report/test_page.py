"""The page of a run: what it says, what it holds, and that nothing a model or a text brings in can break out."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from drawn import attacks, certificates, pieces, watched
from measured import LADDER, grid, heads, measurement, record, run_of
from msgspec.structs import replace

import howsmooth as hs
from howsmooth.report import figures
from howsmooth.report.embedding import apart, asset, columns, in_script, templates
from howsmooth.report.figures import drawings, section_of, sections
from howsmooth.report.page import render, write_page, write_report
from howsmooth.studies.kinds.tokens_in_ball import ExtremalAsk, TextAnswer
from howsmooth.studies.records import Failure, Record, plan_of, this_machine
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store
from howsmooth.theory.results import BoundsTable, upper_bound
from howsmooth.wording import visible

HOSTILE = "</script><script>alert(1)</script><!-- \" ' & {{ 7*7 }} \u2028"


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
def kept(tmp_path_factory):
    """A run on a disk."""
    folder = tmp_path_factory.mktemp("runs") / "kept"
    records, single = grid(), heads()
    plan = plan_of(
        tuple(r.ask for r in records), beside=tuple(r.ask.key for r in single), command="howsmooth measure m"
    )
    with Store(folder) as store:
        store.add([*records, *single])
        store.keep_plan(plan)
    return folder


def extremal_records():
    return [
        Record(
            ask=ExtremalAsk(model="m", map="head:0", points=points, length=n, radius=3.0),
            answer=TextAnswer(lower=c * n**0.5, upper=c * n**0.5),
            machine=this_machine(),
        )
        for points, c in (("two_point", 1.0), ("tied_pair", 30.0))
        for n in (7, 12, 22)
    ]


@pytest.mark.slow
def test_the_answer_has_a_sentence_and_two_rows_for_each_layer_with_its_numbers(whole):
    found, page = whole
    assert "At 16 tokens the worst small perturbation of what enters layer 2 grows 7.23-fold" in page.text
    groups = page.all("tbody", **{"data-map": "attention", "data-model": "m"})
    assert [group["data-layer"] for group in groups] == ["0", "1", "2"]
    for layer in found.layers:
        for name in ("typical", "worst", "certificate", "any input", "range"):
            assert layer.cells[name] in page.text


@pytest.mark.slow
def test_heads_of_columns_say_what_they_mean_and_point_at_the_glossary(whole):
    _found, page = whole
    told = [head for head in page.all("th", scope="col") if "aria-describedby" in head]
    assert len(told) == 4
    assert all(head["title"].endswith(".") for head in told)
    ids = {attributes.get("id") for _tag, attributes in page.elements}
    assert {head["aria-describedby"] for head in told} <= ids


@pytest.mark.slow
def test_every_chart_has_a_caption_a_description_and_its_numbers(whole):
    found, page = whole
    drawn = drawings(section_of(found))
    assert len(drawn) >= 5
    names = [drawing.name for drawing in drawn]
    assert {figure["data-chart"] for figure in page.all("figure")} == set(names) == set(json.loads(page.data)["charts"])
    assert all(len(div["aria-label"]) > 40 for div in page.all("div", role="img"))
    assert len(page.all("details")) == len(names) + 1
    for drawing in drawn:
        assert drawing.caption in page.text
        assert drawing.numbers.rows


@pytest.mark.slow
def test_charts_of_one_layer_stand_where_a_layer_is_looked_at(whole):
    found, page = whole
    places = [attributes.get("class") for _tag, attributes in page.elements]
    closer = places.index("closer")
    for drawing in drawings(section_of(found)):
        name = "chart one-layer" if drawing.per_layer else "chart"
        (place,) = [
            i for i, (_tag, attributes) in enumerate(page.elements) if attributes.get("data-chart") == drawing.name
        ]
        assert page.elements[place][1]["class"] == name
        assert (place > closer) == drawing.per_layer


@pytest.mark.slow
def test_rows_choose_layers_and_the_least_smooth_is_chosen_first(whole):
    _found, page = whole
    assert len(page.all("button", **{"class": "choose"})) == 3
    assert page.all("section", **{"class": "closer"})[0]["data-layers"] == "2 1 0"
    assert [option["value"] for option in page.all("option") if "selected" in option] == ["2"]


def test_readers_are_told_of_the_worst_case_bound_and_never_of_a_sharp_one(whole):
    _found, page = whole
    assert "worst-case bound" in page.text
    assert "sharp" not in page.text.lower()


@pytest.mark.slow
def test_the_glossary_holds_what_the_page_uses_and_nothing_else(whole):
    _found, page = whole
    keys = {attributes.get("id", "") for attributes in page.all("dd")}
    assert {"term-worst", "term-typical", "term-growth", "term-certificate", "term-any", "term-tokens"} <= keys
    assert not {"term-regimes", "term-splitting", "term-measures", "term-inputs"} & keys
    bare = Page(render(run_of(measurement(grid(lengths=(8,)), tokens=()))))
    assert not {"term-growth", "term-certificate", "term-tokens"} & {a.get("id") for a in bare.all("dd")}


def test_an_unfinished_run_says_so_before_any_number():
    page = Page(render(run_of(measurement(grid(), planned=99, notes=("the weights are 4-bit",)))))
    order = [
        "Unfinished: 81 of 99 records are missing",
        "So far, at 16 tokens",
        "the weights are 4-bit",
        "What was run",
    ]
    places = [page.text.index(said) for said in order]
    assert places == sorted(places)


def test_layers_without_a_common_length_are_not_ranked():
    page = Page(render(run_of(measurement([record(0, 4, 0), record(1, 8, 0)]))))
    assert "no length in common" in page.text
    assert page.text.count("least smooth") == 1  # that none of them is called so
    assert "smoothest" not in page.text


@pytest.mark.parametrize(
    ("run", "title"),
    [
        (run_of(measurement(grid())), "How smooth is attention in m?"),
        (run_of(measurement(grid(part="mlp"), map="mlp")), "How smooth is mlp in m?"),
        (run_of(records=attacks(layers=1)), "Attacks on m, layer 0"),
        (run_of(records=attacks()), "Attacks on m, layers 0 and 1"),
        (run_of(records=certificates()), "How far may words move before reviews decides otherwise?"),
        (run_of(records=watched()), "How smooth is mine while it is trained?"),
        (run_of(measurement(grid(part="model"), map="model"), records=pieces()), "How smooth is minilm as a whole?"),
        (run_of(), "How smooth is attention?"),
    ],
)
def test_a_page_is_called_by_its_question_and_its_model(run, title):
    page = render(run)
    assert f"<h1>{title}</h1>" in page
    assert f"<title>{title}</title>" in page


def test_of_a_whole_model_its_blocks_come_first_and_no_layer_is_called_the_least_smooth():
    one = measurement(grid(layers=1, lengths=(16,), part="model"), map="model")
    page = Page(render(run_of(one, records=pieces())))
    assert page.text.index("multiply to") < page.text.index("the worst small perturbation")
    assert "least smooth" not in page.text
    assert "layers_by_length" not in page.text


def test_a_doubted_law_is_doubted_everywhere():
    bent = {4: 1.0, 8: 3.0, 16: 3.0}
    found = measurement([record(0, n, w, lower=bent[n] * (1 + 0.001 * w)) for n in bent for w in range(3)])
    page = Page(render(run_of(found)))
    assert "this factor follows no power law." in page.text
    assert not re.search(r"(grows|changes) (fastest )?like n\^\d", page.text)


def test_a_run_of_the_paper_has_a_sentence_for_each_study_and_the_command():
    records = extremal_records()
    plan = plan_of(tuple(r.ask for r in records), figure="adversarial", command="howsmooth paper adversarial")
    page = Page(render(run_of(records=records, plans=(plan,), commands=(plan.command,))))
    assert "tied pairs attain" not in page.text.split("The answer")[0]
    assert "The answer The paper's two points grow like n^0.50" in page.text
    assert "howsmooth paper adversarial" in page.text
    assert page.all("section", **{"class": "study"})[0]["data-name"] == "adversarial"
    assert {a.get("id") for a in page.all("dd")} >= {"term-inputs"}
    assert not page.all("table", id="answer-table")


def test_records_that_no_plan_names_are_drawn_by_their_kind(tmp_path):
    with Store(tmp_path) as store:
        store.add(extremal_records())
    page = Page(render(read_run(tmp_path)))
    assert page.all("figure")[0]["data-chart"].startswith("adversarial-")
    assert "30 times as much" in page.text


def test_a_run_without_records_has_a_page():
    assert "This run holds no records." in Page(render(run_of())).text


def test_a_theorem_without_a_label_breaks_no_page():
    rungs = (*LADDER.bounds, upper_bound(8.0, "brand_new_upper", "tokens in a ball", "a theorem of tomorrow"))
    found = measurement(grid())
    layers = tuple(dataclasses.replace(layer, ladder=BoundsTable(bounds=rungs)) for layer in found.layers)
    page = Page(render(run_of(dataclasses.replace(found, layers=layers))))
    assert "brand new upper" in page.text


def test_a_bound_beyond_all_numbers_breaks_no_page():
    ladder = BoundsTable(bounds=(upper_bound(1e5, "sharp_upper", "tokens in a ball", "a theorem"),))
    found = measurement(grid())
    layers = tuple(dataclasses.replace(layer, ladder=ladder) for layer in found.layers)
    page = Page(render(run_of(dataclasses.replace(found, layers=layers))))
    assert "∞" in page.text
    assert "can exceed" not in page.text
    json.loads(page.data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.slow
def test_whatever_strings_hold_they_stay_text_on_the_page():
    records = [
        replace(r, ask=replace(r.ask, model=HOSTILE, window=replace(r.ask.window, text=HOSTILE)))
        for r in grid(layers=1)
    ]
    found = measurement(records, tokens=tuple(f"{HOSTILE}{i}" for i in range(16)), text=HOSTILE, notes=(HOSTILE,))
    found = dataclasses.replace(found, openings={(4, 0): (HOSTILE, "b")})
    failure = Failure(ask=record(0, 3, 0, model=HOSTILE).ask, error=HOSTILE)
    hostile = Page(render(run_of(found, failures=(failure,), commands=(f"howsmooth measure {HOSTILE}",))))
    plain = Page(render(run_of(measurement(grid(layers=1)))))
    assert len(hostile.all("script")) == len(plain.all("script")) == 4
    assert len(hostile.all("img")) == 0
    assert "<" not in hostile.data
    assert "alert(1)" in hostile.text
    assert hostile.text.count("{{ 7*7 }}") == hostile.text.count("alert(1)")
    begins = json.loads(hostile.data)["charts"]["constant_against_length"]["data"]["data 0"]
    assert any("alert(1)" in str(row) for row in begins["rows"])


def test_json_in_a_script_reads_back_and_holds_nothing_that_ends_it():
    value = {"a": [HOSTILE, 0.1234567891, float("inf"), float("nan"), None, 3], "b": ("x",)}
    text = str(in_script(value))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": [visible(HOSTILE), 0.123457, None, None, None, 3], "b": ["x"]}


def test_data_leave_the_specification_and_come_back_as_columns():
    spec = {"layer": [{"data": {"values": [{"a": 1}, {"b": 2}]}, "mark": "point"}], "data": {"values": []}}
    bare, data = apart(spec)
    assert bare == {"layer": [{"mark": "point", "data": {"name": "data 0"}}], "data": {"name": "data 1"}}
    assert columns(data["data 0"]) == {"fields": ["a", "b"], "rows": [[1, None], [None, 2]]}


def test_every_variable_of_the_stylesheet_has_a_value_in_every_theme():
    style = str(asset("palette.css") + asset("report.css"))
    # light, dark by the system, dark by choice, paper
    for variable in set(re.findall(r"var\((--\w[\w-]*)\)", style)) - {"--at", "--to", "--share"}:
        assert style.count(f"{variable}:") == 4, variable


def many(windows):
    """Return the run of many windows; the shares of tokens are kept for the first one alone."""
    records = grid(layers=6, lengths=(8, 16), windows=windows)
    bare = [replace(r, answer=replace(r.answer, sensitivity=(), response=())) for r in records]
    short = [before if before.ask.window.index == 0 else after for before, after in zip(records, bare, strict=True)]
    openings = {(r.ask.length, r.ask.window.index): ("words",) * 8 for r in records}
    return run_of(measurement(short, tokens=("word",) * 16, openings=openings))


@pytest.mark.slow
def test_a_large_measurement_makes_a_page_below_five_megabytes_and_its_tables_hold_all(monkeypatch):
    most = figures.MOST_DOTS
    few = len(render(many(10)).encode())
    monkeypatch.setattr(figures, "MOST_DOTS", 240)
    text = render(many(30))
    assert "Dots are drawn for 240 of 360 windows" in Page(text).text
    assert "<td>30</td>" in text
    dot = (len(text.encode()) - few) / (240 - 120)
    assert few + most * dot < 5_000_000


@pytest.mark.slow
def test_charts_of_several_measurements_have_names_of_their_own():
    one = measurement(grid(layers=1))
    page = Page(render(run_of(one, dataclasses.replace(one, map="head:3"))))
    names = [figure["data-chart"] for figure in page.all("figure")]
    assert len(names) == len(set(names))
    assert [section["data-map"] for section in page.all("section", **{"class": "measurement"})] == [
        "attention",
        "head:3",
    ]
    assert [group["data-section"] for group in page.all("tbody") if "data-section" in group] == ["0", "1"]


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_wherever_they_lie(kept, tmp_path):
    first = write_report(kept).read_bytes()
    shutil.copytree(kept, tmp_path / "elsewhere")
    assert write_report(tmp_path / "elsewhere", tmp_path / "o.html").read_bytes() == first
    assert str(kept).encode() not in first
    assert len(first) < 2_000_000


@pytest.mark.slow
def test_another_process_with_other_hashes_writes_the_same_bytes(kept, tmp_path, monkeypatch):
    # without the program that draws charts: it takes seconds to put together, and is the same for all pages
    write = (
        "from howsmooth.report import embedding, page; embedding.templates().globals['runtime'] = str; "
        "page.write_report(*__import__('sys').argv[1:])"
    )
    words = [sys.executable, "-c", write, str(kept), str(tmp_path / "other.html")]
    # this process drew its hashes at random, unless it was told otherwise
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed}, timeout=240)
    monkeypatch.setitem(templates().globals, "runtime", str)
    assert (tmp_path / "other.html").read_text(encoding="utf-8") == render(read_run(kept))


@pytest.mark.slow
def test_charts_that_are_drawn_already_make_the_same_page(kept, tmp_path):
    run = read_run(kept)
    drawn = {section: drawings(section) for section in sections(run)}
    assert write_page(run, drawn, tmp_path).read_text(encoding="utf-8") == render(run)


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_refused_in_one_sentence(kept, tmp_path):
    with pytest.raises(hs.errors.FileError, match="there is no folder") as refused:
        write_report(kept, tmp_path / "not there" / "report.html")
    assert refused.value.field == "target"
    with pytest.raises(hs.errors.FileError, match="cannot be written to"):
        write_report(kept, tmp_path)
