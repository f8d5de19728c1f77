"""``howsmooth report`` and ``howsmooth figure``: what they write, and what they refuse before writing anything."""

import pytest
from measured import grid, heads

from howsmooth.studies.records import RunPlan
from howsmooth.studies.runs.store import Store


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    with Store(folder) as store:
        store.add(grid(local_upper=30.0))
    return folder


@pytest.mark.slow
def test_the_report_goes_beside_the_records_or_where_it_is_sent(howsmooth, run, tmp_path):
    done = howsmooth("report", str(run))
    assert done.code == 0
    assert done.out == f"The report is {run / 'report.html'}.\n"
    there = howsmooth("report", str(run), "-o", str(tmp_path / "mine.html"))
    assert there.code == 0
    assert (tmp_path / "mine.html").read_bytes() == (run / "report.html").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "pdf", "png", "html"])
def test_a_figure_is_drawn_in_every_format(howsmooth, run, tmp_path, ending):
    target = tmp_path / f"growth.{ending}"
    done = howsmooth("figure", str(run), "constant_against_length", "-o", str(target))
    assert done.code == 0
    assert target.stat().st_size > 1000


@pytest.mark.slow
def test_a_figure_of_one_layer_and_with_linear_axes(howsmooth, run, tmp_path):
    log, straight = tmp_path / "log.svg", tmp_path / "linear.svg"
    assert howsmooth("figure", str(run), "constant_against_length", "-o", str(log)).code == 0
    assert howsmooth("figure", str(run), "constant_against_length", "--linear", "-o", str(straight)).code == 0
    assert log.read_text(encoding="utf-8") != straight.read_text(encoding="utf-8")
    ladder = tmp_path / "ladder.svg"
    assert howsmooth("figure", str(run), "bounds_ladder", "--layer", "0", "-o", str(ladder)).code == 0
    assert "Layer 0" in ladder.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "nowhere"), "'nowhere' holds no run"),
        (("report", "RUN", "-o", "no/such/folder.html"), "there is no folder 'no/such'"),
        (("figure", "nowhere", "layers_by_length", "-o", "x.svg"), "'nowhere' holds no run"),
        (("figure", "RUN", "heads", "-o", "x.svg"), "bounds_ladder"),
        (("figure", "RUN", "constant", "-o", "x.svg"), "constant_against_length"),
        (("figure", "RUN", "layers_by_length", "-o", "x.doc"), "a figure ends in .html, .svg, .pdf, .png"),
        (("figure", "RUN", "layers_by_length", "-o", "no/x.svg"), "there is no folder 'no'"),
        (("figure", "RUN", "bounds_ladder", "--layer", "7", "-o", "x.svg"), "layer 7 was not measured"),
        (("figure", "RUN", "layers_by_length"), "Missing option"),
    ],
)
def test_a_mistake_gets_one_sentence_and_nothing_is_written(howsmooth, run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    done = howsmooth(*(str(run) if word == "RUN" else word for word in arguments))
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to_is_refused(howsmooth, run, tmp_path):
    (tmp_path / "report.html").mkdir()
    done = howsmooth("report", str(run), "-o", str(tmp_path / "report.html"))
    assert done.code == 2
    assert "cannot be written" in done.err


@pytest.mark.slow
def test_heads_have_a_figure_where_they_were_measured(howsmooth, tmp_path):
    layers, single = grid(), heads()
    with Store(tmp_path / "r") as store:
        store.add([*layers, *single])
        store.keep_plan(RunPlan(kind="text", keys=keys(layers), beside=keys(single)))
    done = howsmooth("figure", str(tmp_path / "r"), "heads", "-o", str(tmp_path / "x.svg"))
    assert done.code == 0, done.err
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")


def keys(records):
    return tuple(record.ask.key for record in records)
