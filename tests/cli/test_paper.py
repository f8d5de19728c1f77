"""``howsmooth paper``: what it runs, draws and keeps, and what it refuses before any work."""

import json

import pytest

from howsmooth.studies.runs.run import read_run


@pytest.mark.slow
def test_a_figure_is_run_drawn_and_told_and_the_second_time_nothing_is_left_to_do(howsmooth, tmp_path):
    first = howsmooth("paper", "regimes", "transition", "--quick", "--json", "--out", "o")
    assert first.code == 0
    assert [line for line in first.err.splitlines() if " done, " not in line] == []  # it may say how far it is
    told = json.loads(first.out)
    assert told["figures"]["regimes"]["records"] == told["figures"]["transition"]["records"] == 40
    assert all((tmp_path / path).read_text().startswith("<svg") for path in told["figures"]["regimes"]["figures"])
    page = (tmp_path / told["report"]).read_bytes()

    run = read_run(tmp_path / "o")
    assert list(run.figures) == ["regimes", "transition"]
    assert run.figures["regimes"] == run.figures["transition"]
    assert run.commands == ("howsmooth paper regimes transition --quick",)

    second = howsmooth("paper", "regimes", "transition", "--quick", "--out", "o")
    assert second.code == 0
    assert second.out.splitlines()[-1] == "The report is o/report.html."
    assert (tmp_path / "o" / "report.html").read_bytes() == page

    shown = howsmooth("show", "o").out
    assert shown.startswith("regimes: From 3 to 100,000 tokens the worst constant found is multiplied by ")
    assert second.out == f"{shown}Records and figures are in o.\nThe report is o/report.html.\n"
    assert "length radius lower" in howsmooth("show", "o", "--records").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("regime",), "there is no figure 'regime'; did you mean regimes?"),
        (("regimes", "nope"), "'nope' is no figure, and as a model it has no part in regimes; figures are real, "),
        (("no/such/model", "real"), "no/such/model"),
        (("regimes", "--out", "file"), "'file' cannot be a folder"),
    ],
)
def test_a_mistake_is_refused_before_any_work(howsmooth, tmp_path, arguments, said):
    (tmp_path / "file").write_text("x")
    done = howsmooth("paper", "--quick", *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
