"""A run read back: what it holds, what was planned, and what its layers say; without any model."""

import json
import shutil

import pytest
from asked import answered, bounded, filler, radii
from measured import LADDER, measurement, record
from msgspec.structs import replace

import howsmooth as hs
from howsmooth.studies.plans.study import keep_bounds, parts, read_study
from howsmooth.studies.records import Failure, RunPlan
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.measurement import as_row
from howsmooth.studies.runs.run import OUTDATED_BOUNDS, read_run
from howsmooth.studies.runs.run_metadata import kept_ladder
from howsmooth.studies.runs.store import Store
from howsmooth.studies.runs.summary import NO_BOUNDS
from howsmooth.studies.settings import ModelReading
from howsmooth.theory.tables import VERSION


@pytest.fixture(scope="module")
def swept(save_model, beginning, tmp_path_factory):
    """A run of a small model that is gone meanwhile."""
    folder = tmp_path_factory.mktemp("swept")
    model = save_model(folder / "model")
    (folder / "study.toml").write_text(
        f'models = ["{model}"]\ntext = "{beginning}"\nlayers = [0]\nlengths = [6, 8]\nsequences = 2\nreleased = true\n'
        'maps = ["attention", "residual", "head:1"]\nseeds = [0, 1]\n',
        encoding="utf-8",
    )
    held = Resources()
    made = parts(read_study(folder / "study.toml"), held, "howsmooth sweep study.toml")
    with Store(folder / "run") as store:
        for part in made:
            part.begin(store)
        answered([ask for part in made for ask in part.asks], store, resources=held)
        keep_bounds(store, made)
    shutil.rmtree(model)
    return folder / "run"


@pytest.mark.slow
def test_there_is_one_measurement_for_each_map_and_seed_though_the_model_is_gone(swept):
    run = read_run(swept)
    assert len(run.records) == run.planned == 2 * 2 * 3 * 2
    assert run.failures == ()
    assert sorted(m.map for m in run.measurements) == sorted(2 * ["attention", "residual", "head:1"])
    assert sorted(m.records[0].ask.solver.seed for m in run.measurements) == [0, 0, 0, 1, 1, 1]
    for found in run.measurements:
        assert found.complete
        assert found.heads == ()
        assert len(found.records) == found.planned == 4
        assert {r.ask.map for r in found.records} == {found.map}
        assert found.tokens[:2] == ("alice", "'")
        assert all((layer.any_input is not None) == (found.map != "residual") for layer in found.layers)
        assert found.commands == run.commands == ("howsmooth sweep study.toml",)
    assert "24 records" in repr(run)


@pytest.mark.slow
def test_what_is_printed_is_strict_json_with_every_record(swept):
    for found in read_run(swept).measurements:
        said = json.loads(found.to_json(), parse_constant=pytest.fail)
        assert said["records"] == [json.loads(json.dumps(as_row(r))) for r in found.records]
        assert (said["planned"], said["complete"], said["heads"]) == (4, True, [])
        assert [layer["constant"] for layer in said["layers"]] == [layer.constant for layer in found.layers]
        assert all(row["released"] is not None for row in said["records"])


NAME = "bounds of m, attention, layer 0, n = 4, R = 9"
NOW = {"version": VERSION}


@pytest.mark.parametrize("version", [{}, {"version": VERSION + 1}, {"version": None}], ids=str)
def test_bounds_of_another_version_are_not_shown_and_it_is_said(version, tmp_path):
    kept = json.loads(LADDER.to_json())
    (none,) = made(tmp_path, [record(0, 4, w) for w in range(2)]).measurements
    assert (none.layers[0].any_input, none.notes) == (None, ())
    with Store(tmp_path) as store:
        store.keep(NAME, json.dumps(version | kept))
    (old,) = read_run(tmp_path).measurements
    assert old.layers[0].any_input is None
    assert old.notes == (OUTDATED_BOUNDS,)
    assert OUTDATED_BOUNDS in str(old.remarks)
    with Store(tmp_path) as store:
        store.keep(NAME, json.dumps(NOW | kept))
    (new,) = read_run(tmp_path).measurements
    assert new.layers[0].any_input == LADDER.upper
    assert new.notes == ()


def test_bounds_of_an_earlier_version_for_the_mean_norm_are_not_shown_beside_longer_tokens(tmp_path):
    found = [record(0, 4, w) for w in range(2)]
    made(tmp_path, found)
    mean = sum(r.answer.mean_radius for r in found) / 2
    with Store(tmp_path) as store:
        store.keep(f"bounds of m, attention, layer 0, n = 4, R = {mean:.12g}", LADDER.to_json())
    (old,) = read_run(tmp_path).measurements
    assert old.layers[0].any_input is None
    assert old.notes == (OUTDATED_BOUNDS,)


def test_a_version_that_knew_no_bounds_has_none_to_speak_of(tmp_path):
    made(tmp_path, [record(0, 4, w) for w in range(2)])
    with Store(tmp_path) as store:
        store.keep(NAME, json.dumps({"bounds": [], "refused": [{"name": "all", "reason": "not attention."}]}))
    assert read_run(tmp_path).measurements[0].notes == ()


@pytest.mark.parametrize(
    "other",
    [
        {"model": "other"},
        {"part": "head:1"},
        {"layer": 1},
        {"n": 5},
        {"radius": 9.01},
        {"metric": "token"},
        {"family": "granite"},
    ],
    ids=str,
)
def test_bounds_are_those_of_one_model_map_layer_length_ball_metric_and_family(other):
    def asked(model="m", part="attention", metric="total", family=""):
        ask = record(0, 4, 0, model=model, part=part).ask
        return replace(ask, metric=metric, reading=ModelReading(family=family))

    place = {"layer": 0, "n": 4, "radius": 9.0}
    with Store(None) as store:
        store.keep(NAME, json.dumps(NOW | json.loads(LADDER.to_json())))
        assert kept_ladder(store, asked(), **place) == LADDER
        here = {name: other.get(name, value) for name, value in place.items()}
        ask = asked(**{name: value for name, value in other.items() if name not in place})
        assert kept_ladder(store, ask, **here) is NO_BOUNDS


def test_typical_gains_of_an_earlier_version_have_no_interval_and_one_digit(tmp_path):
    unknown = {"typical": 0.2345, "typical_low": None, "typical_high": None, "probes": 0, "dimensions": 0}
    (old,) = made(tmp_path, [record(0, 4, w, **unknown) for w in range(2)]).measurements
    assert str(old.layers[0].typical) == "≈ 0.2"
    assert (old.layers[0].typical.low, old.layers[0].typical.high) == (None, None)
    assert "interval" not in old.legend


def test_the_worst_is_a_geometric_mean_and_is_called_one(tmp_path):
    (found,) = made(tmp_path, [record(0, 4, w, lower=x, upper=x) for w, x in enumerate((1.0, 4.0))]).measurements
    assert found.layers[0].constant == pytest.approx(2.0)
    assert "(geometric mean over windows)" in found.legend


def test_the_interval_of_a_mean_over_windows_is_narrower_than_that_of_each():
    (one,) = measurement([record(0, 4, 0)]).layers
    (many,) = measurement([record(0, 4, 0, typical=0.1) for _w in range(20)]).layers
    assert many.typical.high / many.typical.value < one.typical.high / one.typical.value
    assert one.typical.low < one.typical.value < one.typical.high


def made(folder, records, *, planned=None, **others):
    with Store(folder) as store:
        store.add(records)
        keys = tuple(r.ask.key for r in (planned or records))
        store.keep_plan(RunPlan(kind="text", keys=keys, **others))
    return read_run(folder)


def grid(layers, lengths, windows=2):
    return [record(layer, n, w) for layer in layers for n in lengths for w in range(windows)]


def test_an_unfinished_run_is_not_called_complete_and_compares_at_a_common_length_only(tmp_path):
    planned = grid((0, 1), (4, 8, 16))
    done = [r for r in planned if r.ask.layer == 0 or r.ask.length < 16]
    (found,) = made(tmp_path, done, planned=planned).measurements
    assert (found.planned, found.missing, found.complete, found.comparable) == (12, 2, False, True)
    assert [layer.length for layer in found.layers] == [8, 8]
    assert "n = 8 tokens" in found.title
    assert any("2 of 12 records are missing" in remark for remark in found.remarks)
    assert read_run(tmp_path).planned == 12


def test_layers_without_a_common_length_are_not_comparable(tmp_path):
    planned = grid((0, 1), (4, 8))
    done = [r for r in planned if (r.ask.layer, r.ask.length) in {(0, 8), (1, 4)}]
    (found,) = made(tmp_path, done, planned=planned).measurements
    assert not found.comparable
    assert [layer.length for layer in found.layers] == [8, 4]
    assert any("cannot be compared" in remark for remark in found.remarks)


def test_a_run_without_texts_has_records_and_failures_and_no_measurement(tmp_path):
    with Store(tmp_path) as store:
        answered(radii(2), store)
        store.add([bounded(), Failure(ask=filler(4).ask, error="no such thing")])
    run = read_run(tmp_path)
    assert (len(run.records), run.measurements) == (3, ())
    assert [failure.error for failure in run.failures] == ["no such thing"]
    assert "3 records, 1 failed" in repr(run)


def test_figures_of_the_paper_have_the_records_that_were_planned_for_them(tmp_path):
    records = grid((0,), (4, 8))
    with Store(tmp_path) as store:
        store.add(records[:3])
        store.keep_plan(RunPlan(kind="text", keys=tuple(r.ask.key for r in records), figure="real"))
    run = read_run(tmp_path)
    assert run.figures == {"real": tuple(records[:3])}
    assert run.planned == 4


def test_a_doubted_law_is_marked_in_the_table_and_said_below(tmp_path):
    kinked = [record(0, n, w, lower=float(min(n, 16)) * (1 + 0.01 * w)) for n in (4, 8, 16, 32, 64) for w in range(3)]
    (found,) = made(tmp_path, kinked).measurements
    (layer,) = found.layers
    assert layer.growth.doubted
    assert layer.cells["exponent"].endswith("?")
    assert any("no power law" in remark for remark in found.remarks)


@pytest.mark.slow
def test_a_run_is_not_changed_by_reading_it(swept):
    from howsmooth.studies.runs.database import FILE

    before = (swept / FILE).read_bytes()
    hs.read_run(swept)
    assert (swept / FILE).read_bytes() == before
