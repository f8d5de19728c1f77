"""A kind of question is one file: a toy that is written by this test goes through everything that kinds go through."""

import csv
import importlib
import json
import sqlite3
import sys
import textwrap

import distributed
import pytest
from asked import answered, untimed
from msgspec.structs import replace
from pyarrow import parquet

from howsmooth.cli import commands
from howsmooth.errors import AssumptionError, FieldError, StudyError
from howsmooth.report import charts
from howsmooth.studies import kinds
from howsmooth.studies.plans.study import parts, read_study
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store, write_table
from howsmooth.studies.sweep.sweep import units
from howsmooth.studies.sweep.workers import expected_seconds

TOY = '''
    """How far a stone falls."""

    import math
    from dataclasses import dataclass
    from typing import Annotated

    from howsmooth.errors import AssumptionError
    from howsmooth.studies.asks import Answer, Ask
    from howsmooth.studies.json_values import described, to_json
    from howsmooth.studies.kinds import Kind, RunCommand
    from howsmooth.studies.settings import CommandSettings, Compute, Solver


    class ToyAsk(Ask, frozen=True, kw_only=True, tag="toy"):
        """How far a stone falls."""

        tower: str = "pisa"
        axis: Annotated[float, described(plural="axes")] = 9.81
        seconds_of_fall: float
        solver: Solver = Solver()

        def __post_init__(self):
            if self.axis <= 0:
                raise AssumptionError(f"axis must be positive, got {self.axis}.", field="axis")

        @property
        def label(self):
            return f"a stone from {self.tower}"

        @property
        def cost(self):
            return 2.0

        @property
        def batch(self):
            return self.tower

        @property
        def cell(self):
            return self.axis


    class ToyAnswer(Answer, frozen=True, kw_only=True):
        """How far."""

        metres: float
        speed: float | None = None
        landed: bool = False
        path: tuple[float, ...] = ()


    def run(batch, cell, resources):
        """Let all stones of a cell fall together."""
        if cell[0].tower == "babel":
            raise AssumptionError("no stone was left upon another.")
        return [_fallen(ask) for ask in cell]


    def _fallen(ask):
        t = ask.seconds_of_fall
        metres = ask.axis * (t * t) / 2
        speed = math.inf if t > 1e6 else ask.axis * t
        return ToyAnswer(metres=metres, speed=speed, landed=metres > 56, path=(0.0, metres / 4, metres))


    class Dropping(CommandSettings, frozen=True, kw_only=True):
        """What is dropped."""

        NAME = "drop"
        model: str = "pisa"
        falls: Annotated[tuple[float, ...], described("How many seconds stones fall.")] = (1.0, 2.0)
        where: Compute = Compute()

        def check(self):
            if min(self.falls) <= 0:
                raise AssumptionError("stones must fall for a while.", field="falls")

        @property
        def question(self):
            return self


    def planned_drops(dropping, resources):
        from howsmooth.studies.plans.at_text import PlannedAsks

        asks = tuple(ToyAsk(tower=dropping.model, seconds_of_fall=t) for t in dropping.falls)
        return PlannedAsks(asks=asks, command=dropping.command, remarks=("Mind your head.",))


    @dataclass(frozen=True)
    class Drop:
        metres: float

        @property
        def sentence(self):
            return f"A stone fell {self.metres:.4g} metres."

        def __rich__(self):
            return self.sentence

        def to_json(self):
            return to_json({"metres": self.metres})


    def summarise_drops(records):
        return [Drop(max(record.answer.metres for record in records))]


    KINDS = (
        Kind(
            ask=ToyAsk,
            answer=ToyAnswer,
            run=run,
            summarise=summarise_drops,
            command=RunCommand(
                settings=Dropping, plan=planned_drops, help="Drop stones from a tower.", results="drops", done="dropped"
            ),
        ),
    )
'''
CHART = '''
    """How far stones fall."""

    from howsmooth.report.charts import ChartKind
    from howsmooth.report.drawing.palette import BLUE
    from howsmooth.report.drawing.panels import Style, points, series_panels
    from howsmooth.report.drawing.tables import Numbers


    def draw(section):
        pairs = [(r.ask.seconds_of_fall, r.answer.metres) for r in section.of_kind("toy")]
        rows = points(pairs, series="stone", panel="a tower")
        return series_panels(rows, {"stone": Style(colour=BLUE)}, title="Stones fall further", across="seconds")


    def table(section):
        return Numbers(head=("metres",), rows=[(None, (str(r.answer.metres),)) for r in section.of_kind("toy")])


    CHARTS = (
        ChartKind(
            name="falls", sections=("toy",), rank=1, about="How far.", wanted=bool, draw=draw, table=table
        ),
    )
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the one file, and let its folder be one of kinds."""
    path = tmp_path_factory.mktemp("kinds")
    (path / "toy.py").write_text(textwrap.dedent(TOY), encoding="utf-8")
    known(str(path))
    yield str(path)
    kinds.__path__.remove(str(path))
    sys.modules.pop("howsmooth.studies.kinds.toy", None)


def known(path):
    """Make a folder one of those that kinds lie in; workers do it too."""
    from howsmooth.studies import kinds

    kinds.__path__.append(path)


@pytest.fixture(scope="module")
def toy(folder):
    return importlib.import_module("howsmooth.studies.kinds.toy")


@pytest.fixture
def stones(toy):
    def make(count=4, **others):
        return [toy.ToyAsk(seconds_of_fall=1.0 + i, **others) for i in range(count)]

    return make


def test_it_is_a_kind_because_its_file_is_there(toy):
    assert "toy" in kinds.kind_names()
    kind = kinds.kind_named("toy")
    assert (kind.ask, kind.answer, kind.about) == (toy.ToyAsk, toy.ToyAnswer, "How far a stone falls.")


def test_its_asks_have_keys_and_come_back_from_json(stones):
    for ask in stones():
        assert kinds.read_ask(ask.to_json()) == ask
        assert kinds.read_ask(ask.to_json()).key == ask.key
    assert len({ask.key for ask in stones(6)}) == 6
    with pytest.raises(FieldError, match="axis must be positive") as refusal:
        kinds.read_ask('{"kind": "toy", "seconds_of_fall": 1, "axis": -1}')
    assert refusal.value.field == "axis"


def test_its_batches_and_cells_are_those_that_it_declares(stones):
    asks = [*stones(), *stones(axis=1.62), *stones(2, tower="etna")]
    found = units(asks, frozenset())
    assert [(len(unit.batch), len(unit.cell), unit.cost) for unit in found] == [(8, 4, 8.0), (8, 4, 8.0), (2, 2, 4.0)]


def test_it_is_swept_and_read_back_typed(stones, toy, tmp_path):
    asks = [*stones(), *stones(1, tower="babel")]
    with Store(tmp_path) as store:
        tally = answered(asks, store)
    assert (tally.done, tally.failed, tally.last) == (4, 1, "a stone from babel")
    found = read_run(tmp_path)
    assert {record.ask for record in found.records} == set(stones())
    for record in found.records:
        t = record.ask.seconds_of_fall
        assert type(record.answer) is toy.ToyAnswer
        assert record.answer == toy.ToyAnswer(
            metres=9.81 * t**2 / 2, speed=9.81 * t, landed=t > 3, path=(0.0, 9.81 * t**2 / 8, 9.81 * t**2 / 2)
        )
    (failure,) = found.failures
    assert "no stone was left upon another" in failure.error


def test_a_speed_without_end_is_none(toy, tmp_path):
    with Store(tmp_path) as store:
        answered([toy.ToyAsk(seconds_of_fall=1e7), toy.ToyAsk(seconds_of_fall=1e200, axis=1.0)], store)
        (record,), (failure,) = store.records(), store.failures()
    assert record.answer.speed is None
    # metres must be a number: an answer that could not be read back is not kept
    assert "metres must be a number, got nothing" in failure.error


def test_killed_half_way_nothing_is_done_twice(stones, tmp_path):
    asks = [ask for axis in (1.0, 2.0, 3.0, 4.0) for ask in stones(3, axis=axis)]
    seen = []

    def stop(tally):
        seen.append(tally)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with Store(tmp_path) as store, pytest.raises(KeyboardInterrupt):
        answered(asks, store, progress=stop)
    with Store(tmp_path) as store:
        half = store.records()
        assert len(half) == 6
        rest = []
        assert answered(asks, store, progress=rest.append).done == 12
        assert [tally.left for tally in rest] == [3, 0]
        assert all(record in store.records() for record in half), "their seconds too"


@pytest.mark.clock("pieces are timed")
def test_its_costs_are_foreseen(stones):
    assert 0 < expected_seconds(stones(), Resources()) < 1


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
def test_it_is_exported(to, stones, tmp_path):
    with Store(tmp_path) as store:
        answered(stones(), store)
        stored = store.records()
    assert write_table(str(tmp_path), tmp_path / f"table.{to}", to) == 4
    rows = sorted(read(tmp_path / f"table.{to}"), key=lambda row: row["key"])
    for row, record in zip(rows, stored, strict=True):
        assert (row["key"], row["kind"], row["tower"]) == (record.ask.key, "toy", "pisa")
        assert float(row["seconds_of_fall"]) == record.ask.seconds_of_fall
        assert float(row["metres"]) == record.answer.metres
        assert str(row["landed"]) == str(record.answer.landed)
        assert row["with_torch"] == record.machine.torch
        assert float(row["rtol"]) == 1e-3
        assert "path" not in row


def read(path):
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return parquet.read_table(path).to_pylist()


def test_it_has_a_view(stones, tmp_path):
    with Store(tmp_path) as store:
        answered(stones(), store)
    database = sqlite3.connect(tmp_path / FILE)
    found = database.execute(
        "SELECT seconds_of_fall, tower, axis, seed, metres, landed FROM toy ORDER BY seconds_of_fall"
    ).fetchall()
    database.close()
    assert found == [(t, "pisa", 9.81, 0, 9.81 * t**2 / 2, int(t > 3)) for t in (1.0, 2.0, 3.0, 4.0)]


def study(tmp_path, *lines):
    (tmp_path / "study.toml").write_text("\n".join(['kind = "toy"', *lines]), encoding="utf-8")
    return read_study(tmp_path / "study.toml")


def test_study_files_ask_it_with_lists_as_axes(toy, tmp_path):
    found = study(tmp_path, "name = 'stones'", "axes = [1.62, 9.81]", "seconds_of_falls = [1, 2.5]", "seed = 7")
    (part,) = parts(found, Resources(), "howsmooth sweep study.toml")
    expected = {(axis, t) for axis in (1.62, 9.81) for t in (1.0, 2.5)}
    assert {(ask.axis, ask.seconds_of_fall) for ask in part.asks} == expected
    assert {ask.solver.seed for ask in part.asks} == {7}
    with Store(tmp_path) as store:
        part.begin(store)
        answered(part.asks[:3], store)
    run = read_run(tmp_path)
    assert (len(run.records), run.planned, run.commands) == (3, 4, ("howsmooth sweep study.toml",))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["seconds_of_fall = 1", "ax = 3"], "line 3: there is no key 'ax'; did you mean axis or axes"),
        (["seconds_of_fall = 'long'"], "line 2: 'seconds_of_fall' must be a number, got 'long'"),
        (["seconds_of_fall = 1", "axes = []"], "line 3: 'axes' is empty"),
        (["seconds_of_fall = 1", "axes = [9.81, -1]"], "line 3: axis must be positive, got -1.0"),
        (["seconds_of_fall = 1", "rtol = 7"], "line 3: rtol must be less than 1"),
        (["tower = 'etna'"], "'seconds_of_fall' is missing"),
        (["seconds_of_fall = 1", "lengths = [8]"], "line 3: there is no key 'lengths'"),
    ],
    ids=lambda value: str(value),
)
def test_a_mistake_in_a_study_of_it_is_told_with_its_line(lines, words, toy, tmp_path):
    with pytest.raises(StudyError) as refusal:
        parts(study(tmp_path, *lines), Resources())
    assert words in str(refusal.value)
    assert "study.toml" in str(refusal.value)


def test_workers_answer_it_once_they_have_the_file(stones, folder, cluster, tmp_path):
    asks = [*stones(), *stones(3, tower="etna"), *stones(1, tower="babel")]
    with Store(tmp_path / "alone") as store:
        answered(asks, store)
        alone = untimed(store.records())
    with distributed.Client(cluster, set_as_default=False) as client:
        client.run(known, folder)
    with Store(tmp_path / "cluster") as store:
        tally = answered(asks, store, scheduler=cluster)
        assert (tally.done, tally.failed) == (7, 1)
        assert untimed(store.records()) == alone


def test_a_record_of_it_is_refused_in_one_line_where_its_file_is_not(stones, folder, tmp_path):
    with Store(tmp_path) as store:
        answered(stones(1), store)
    kinds.__path__.remove(folder)
    try:
        with pytest.raises(OSError, match="no kind 'toy' of question"):
            read_run(tmp_path)
    finally:
        kinds.__path__.append(folder)


def test_a_field_that_is_added_to_it_changes_no_key(toy, stones):
    class Later(toy.ToyAsk, frozen=True, kw_only=True, tag="toy"):
        wind: float = 0.0

    (ask,) = stones(1)
    assert Later(seconds_of_fall=1.0).key == ask.key
    assert replace(Later(seconds_of_fall=1.0), wind=3.0).key != ask.key


@pytest.fixture
def drop(folder, tmp_path, monkeypatch, capsys):
    """Return the command that the one file declares, known to the command line by a line, with a chart in a second."""
    charts_folder = tmp_path / "charts"
    charts_folder.mkdir()
    (charts_folder / "falls.py").write_text(textwrap.dedent(CHART), encoding="utf-8")
    monkeypatch.setattr(charts, "__path__", [*charts.__path__, str(charts_folder)])
    monkeypatch.setitem(commands.FILES, "drop", "run_commands")
    monkeypatch.chdir(tmp_path)
    charts.charts.cache_clear()

    def call(*words):
        with pytest.raises(SystemExit) as end:
            commands.load("drop")(list(words), prog_name="drop")
        return end.value.code, *capsys.readouterr()

    yield call
    charts.charts.cache_clear()
    sys.modules.pop("howsmooth.report.charts.falls", None)


def test_a_command_that_fills_a_run_is_declared_beside_its_kind(drop, tmp_path):
    """Four files: the kind, its chart, a line in the list of commands, and the glossary if it needs words."""
    code, out, err = drop("--falls", "1,3", "--out", "run")
    assert (code, err) == (0, "Mind your head.\n")
    assert "A stone fell 44.15 metres." in out
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "A stone fell 44.15 metres." in page
    assert "Stones fall further" in page
    (command,) = read_run(tmp_path / "run").commands
    assert command == "howsmooth drop pisa --falls 1.0,3.0"
    code, out, _err = drop("--falls", "1,3", "--out", "run", "--json")
    assert (code, json.loads(out)) == (0, {"run": "run", "drops": [{"metres": 9.81 * 9 / 2}]})
    assert "Drop stones from a tower." in drop("--help")[1]
    with pytest.raises(AssumptionError, match="fall for a while"):
        commands.load("drop")(["--falls", "0"], standalone_mode=False)
