"""What a report says about its making."""

import dataclasses

from measured import grid, heads, measurement, record, run_of

from howsmooth.report.page import facts, gaps, warnings, worst_inputs
from howsmooth.studies.records import Failure, RunPlan
from howsmooth.theory.results import BoundsTable, lower_bound


def test_a_finished_run_has_no_gaps_and_nothing_to_warn_of():
    found = measurement(grid())
    assert gaps(run_of(found)) == []
    assert warnings(run_of(found), [found]) == []


def test_an_unfinished_run_says_how_much_is_missing():
    found = measurement(grid(), planned=20)
    assert gaps(run_of(found)) == ["Unfinished: 2 of 20 records are missing; the same command goes on."]
    several = gaps(run_of(found, measurement(grid(model="x"))))
    assert several == ["m, attention: unfinished: 2 of 20 records are missing; the same command goes on."]


def test_what_is_missing_beside_measurements_is_said_of_the_whole_run():
    plan = RunPlan(kind="regimes", keys=("a", "b"), figure="regimes")
    assert gaps(run_of(plans=(plan,))) == ["Unfinished: 2 of 2 records are missing; the same command goes on."]


def test_layers_without_a_common_length_are_told_first():
    (said,) = gaps(run_of(measurement([record(0, 4, 0), record(1, 8, 0)])))
    assert said.startswith("The layers were not measured at one length in common")


def test_notes_doubts_and_failures_are_warned_of():
    found = measurement(grid(status="max_steps"), notes=("the weights are 4-bit",))
    failure = Failure(ask=record(3, 8, 0).ask, error="out of memory")
    said = warnings(run_of(found, failures=[failure] * 7), [found])
    assert said == [
        "m: the weights are 4-bit.",
        "m: 18 of 18 brackets did not close: their upper ends are loose.",
        "Failed: m layer 3, 8 tokens: out of memory",
        "Failed: 2 more.",
    ]
    # of what the answer does not speak of, the model is enough
    assert warnings(run_of(found), []) == ["m: the weights are 4-bit."]


def test_facts_say_which_windows_of_which_layers_were_measured():
    records = [*grid(layers=3, windows=2), *(record(2, 32, w) for w in range(3))]
    told = dict(facts(run_of(measurement(records, heads=heads()))))
    assert told["m on t, attention"] == (
        "layers 0, 1: 2 windows of 4, 8, 16 tokens; layer 2: 2 windows of 4, 8, 16 tokens, 3 windows of 32 tokens; "
        "every head by itself too; fingerprint of the text d; brackets to 0.001 at 99.9 %"
    )
    assert told["Seeds"] == "0"
    assert told["Records"] == "33 records in 3 s of work, 0 failed"
    assert dict(facts(run_of()))["Versions"] == "—"


def test_a_worst_input_is_offered_where_the_theory_has_one():
    found = measurement(grid())
    assert worst_inputs(found) == {}
    ladder = BoundsTable(bounds=(lower_bound(5.0, "sharp_lower", "tokens in a ball", "a theorem"),))
    layer = dataclasses.replace(found.layers[1], ladder=ladder)
    assert worst_inputs(dataclasses.replace(found, layers=(found.layers[0], layer))) == {
        1: "howsmooth worst-case m --layer 1 --map attention --n 16 --radius 9 --save worst.safetensors"
    }
