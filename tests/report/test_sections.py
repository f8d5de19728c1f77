"""A run in sections."""

import dataclasses

import pytest
from drawn import climbed, inputs, proven, regime
from measured import grid, measurement, record

from howsmooth.report.sections import MEASUREMENT, prefixes, sections
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.plans.paper import FIGURES, keep_figures, title_and_protocol
from howsmooth.studies.records import Record, RunPlan, plan_of
from howsmooth.studies.runs.run import Run, measurements
from howsmooth.studies.runs.store import Store


def run_with(*measured, records=(), plans=()):
    held = (*(r for m in measured for r in (*m.records, *m.heads)), *records)
    return Run(records=held, failures=(), plans=tuple(plans), measurements=measured, commands=())


def figure(name, records):
    return [plan_of(tuple(r.ask for r in records if r.ask.kind == kind), figure=name) for kind in _kinds(records)]


def _kinds(records):
    return dict.fromkeys(r.ask.kind for r in records)


def test_every_measurement_has_its_own_section():
    one, two = measurement(grid(layers=1)), measurement(grid(layers=1, part="head:3"), map="head:3")
    found = sections(run_with(one, two))
    assert [(s.name, s.prefix, s.measurements) for s in found] == [
        (MEASUREMENT, "m-attention.", (one,)),
        (MEASUREMENT, "m-head-3.", (two,)),
    ]


def test_names_of_charts_differ_where_measurements_do():
    one = measurement(grid(layers=1))
    two = dataclasses.replace(one, map="head:3")
    assert prefixes([one]) == [""]
    assert prefixes([one, two, one]) == ["m-attention.", "m-head-3.", "m-attention~2."]


def test_a_figure_of_the_paper_holds_its_records_and_what_is_measured_with_them():
    measured, records = measurement(grid()), [*inputs()]
    plans = [*figure("real", measured.records), *figure("adversarial", records)]
    real, adversarial = sections(run_with(measured, records=records, plans=plans))
    assert (real.name, real.prefix, real.measurements) == ("real", "real-", (measured,))
    assert (real.title, real.protocol) == title_and_protocol("real")
    assert adversarial.records == tuple(records)
    assert adversarial.measurements == ()


def test_a_figure_of_several_kinds_is_one_section():
    records = [proven(8, 1.0), proven(16, 1.0), climbed(8)]
    plans = figure("worst", records)
    assert len(plans) == 2
    (found,) = sections(run_with(records=records, plans=plans))
    assert found.records == tuple(records)


@pytest.mark.parametrize(
    ("made", "name"),
    [(lambda: proven(8, 1.0), "worst"), (lambda: regime(8), "regimes"), (lambda: inputs()[0], "adversarial")],
)
def test_records_that_no_plan_calls_a_figure_have_a_section_by_their_kind(made, name):
    (found,) = sections(run_with(records=[made()]))
    assert (found.name, found.prefix, len(found.records)) == (name, f"{name}-", 1)
    assert found.title == FIGURES[name].title
    # the protocol speaks of the paper's heads, not of these
    assert found.protocol == ""


def test_what_is_swept_over_beside_a_figure_of_the_same_name_has_charts_of_its_own_name():
    records = [proven(8, 1.0), proven(16, 2.0)]
    plan = RunPlan(kind="bounds", keys=(records[0].ask.key,), figure="worst")
    found = sections(run_with(records=records, plans=[plan]))
    assert [(s.prefix, s.records) for s in found] == [("worst-", (records[0],)), ("worst~2-", (records[1],))]


def test_every_model_of_a_figure_is_measured_by_itself(tmp_path):
    records = [*grid(layers=2, model="a"), *grid(layers=3, model="b")]
    with Store(tmp_path) as store:
        keep_figures(store, {"real": [r.ask for r in records]}, ["paper"])
        store.add(records)
        found = measurements(store, store.records(), store.plans())
    assert [(m.model, len(m.layers), m.complete) for m in found] == [("a", 2, True), ("b", 3, True)]
    assert all(isinstance(r, Record) and isinstance(r.ask, TextAsk) for m in found for r in m.records)


def test_a_figure_that_was_asked_for_twice_holds_every_record_once():
    records = [record(0, 4, w) for w in range(2)]
    plans = [*figure("real", records), *figure("real", records[:1])]
    assert run_with(records=records, plans=plans).figures == {"real": tuple(records)}


def test_what_was_asked_for_one_after_the_other_is_drawn_in_that_order():
    records = [proven(n, 1.0) for n in (8, 16, 32)]
    plans = [plan_of(tuple(r.ask for r in (records[2], records[0], records[1])))]
    (found,) = sections(run_with(records=records, plans=plans))
    assert found.records == (records[2], records[0], records[1])
