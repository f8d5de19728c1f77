"""``howsmooth budget``: the answer first, records that are kept, recipes for other tools, and what it refuses."""

import json

import pytest
from small import beginning, folder_model, module, save_model, tokenizer

from howsmooth.studies.runs.run import read_run

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

SIZES = ("--length", "4", "--sequences", "2", "--passes", "3", "--out", "run")


@pytest.fixture
def budget(howsmooth, folder_model, beginning):
    return lambda *options: howsmooth("budget", folder_model, "--text", beginning, *SIZES, *options)


@pytest.mark.slow
def test_a_budget_is_told_kept_drawn_and_its_recipes_are_written(budget, howsmooth, tmp_path):
    options = ("--scheme", "int3,int8", "--size", "0.4")
    done = budget(*options)
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "int3 everywhere costs" in said
    assert "half of it sits in" in said
    assert "measured on held-out text" in said
    run = read_run(tmp_path / "run")
    assert len(run.records) == 2 * 2 + 1
    assert json.loads((tmp_path / "run" / "recipe-size-0.4.json").read_text(encoding="utf-8"))["size"] <= 0.4
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Half of what int3 costs sits in" in page
    assert "Size and cost of recipes" in page
    again = json.loads(budget(*options, "--json").out)["budgets"]
    assert [found.get("scheme") for found in again] == ["int3", "int8", None]
    assert len(read_run(tmp_path / "run").records) == 5
    # another scheme needs no pass of those that are there
    assert len(json.loads(budget("--scheme", "int3,bf16", "--json").out)["budgets"]) == 2
    assert len(read_run(tmp_path / "run").records) == 7
    assert "int8 everywhere costs" in " ".join(howsmooth("show", "run").out.split())
    assert howsmooth("figure", "run", "frontier", "--out", "frontier.svg").code == 0


@pytest.mark.slow
def test_estimates_are_verified_and_another_checkpoint_is_compared(budget, folder_model):
    done = budget("--verify", "2", "--against", folder_model, "--scheme", "int3")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "4 errors run truly, rank correlation" in said
    assert "from half of it" in said
    found = json.loads(budget("--verify", "2", "--against", folder_model, "--scheme", "int3", "--json").out)["budgets"]
    schemes, same = found[:2], found[3]
    assert {each["scheme"] for each in schemes} == {"int3", f"against:{folder_model}"}
    assert same["rank_correlation"] is None  # no difference from itself
    assert max(same["errors"]["measured"]) == 0
    real = found[2]["errors"]
    assert len(real["names"]) == 4
    assert real["predicted"][0] == max(real["predicted"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheme", "int9"), "there is no scheme 'int9'"),
        (("--passes", "1"), "--passes must be at least 2, got 1"),
        (("--size", "0"), "--size must be positive, got 0.0"),
        (("--verify", "-1"), "--verify must be at least 0, got -1"),
        (("--against", "no/such/folder"), "no/such/folder"),
        (("--length", "4000"), "4000"),
    ],
)
def test_what_leads_nowhere_is_refused_in_one_line(options, words, budget):
    done = budget(*options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1
