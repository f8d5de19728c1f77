"""``howsmooth compare``: two runs side by side, without any model."""

import json

import pytest
from measured import changed, grid, heads

import howsmooth as hs
from howsmooth.studies.records import RunPlan
from howsmooth.studies.runs.store import Store


@pytest.fixture
def two(tmp_path):
    """Keep two runs whose first layer differs, and whose second does not."""
    for name, factor in (("one", 1.0), ("two", 1.25)):
        records = [
            changed(r, lower=r.answer.lower * factor, upper=1.001 * r.answer.lower * factor) if r.ask.layer == 0 else r
            for r in grid()
        ]
        with Store(tmp_path / name) as store:
            store.add([*records, *heads()])
            store.keep_plan(
                RunPlan(
                    kind="text",
                    keys=tuple(r.ask.key for r in records),
                    beside=tuple(r.ask.key for r in heads()),
                    command="howsmooth measure m",
                )
            )
    return "one", "two"


@pytest.mark.slow
def test_it_answers_in_its_first_line_and_says_what_the_numbers_are_worth(two, howsmooth):
    done = howsmooth("compare", *two)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("3 differences of 6 are real: layer 0 at ")
    assert "two over one\n" in done.out
    assert done.out.count(" larger") == 3
    assert done.out.count(" within error bars") == 3
    assert "Bonferroni" in done.out


def test_as_json_it_is_what_python_returns_and_nothing_else(two, howsmooth):
    done = howsmooth("compare", *two, "--json", "--confidence", "0.9", "--per-head", "--map", "attention")
    assert (done.code, done.err) == (0, "")
    assert done.out == hs.compare(*two, confidence=0.9, per_head=True).to_json() + "\n"
    assert {row["map"] for row in json.loads(done.out)["rows"]} == {"attention", "head:0", "head:1", "head:2"}


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_it_draws_one_chart(form, two, howsmooth, tmp_path):
    done = howsmooth("compare", *two, "--figure", "ratios.svg", *form)
    assert done.code == 0
    assert "Drawn in ratios.svg." in (done.err if form else done.out)
    assert (tmp_path / "ratios.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one", "nowhere"], "'nowhere' holds no run"),
        (["one", "two", "--figure", "ratios.bmp"], "a figure ends in"),
        (["one", "two", "--confidence", "95"], "between 0 and 1, got 95"),
        (["one", "two", "--map", "block"], "they share attention"),
        (["one", "other"], "nothing in common: 'one' holds attention of m on t (layers 0, 1 at n = 4, 8, 16); 'other'"),
        (["one"], "RUN2"),
    ],
)
def test_a_mistake_ends_in_one_sentence(arguments, said, two, howsmooth, tmp_path):
    with Store(tmp_path / "other") as store:
        store.add(grid(lengths=(5,)))
    done = howsmooth("compare", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
