"""Charts as files."""

import re
import subprocess
import sys

import altair as alt
import pytest
from drawn import WHOLE

import howsmooth as hs
from howsmooth.report.charts.mass_splitting import splitting_chart
from howsmooth.report.drawing.scales import labelled, log_scale
from howsmooth.report.figures import draw
from howsmooth.report.saving import PADDING, checked_target, save_chart

STARTS = {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG", ".html": b"<!doctype html>"}


@pytest.mark.parametrize("ending", STARTS)
def test_one_chart_is_written_in_every_format_without_a_network(tmp_path, ending):
    target = tmp_path / f"chart{ending}"
    save_chart(splitting_chart(hs.search.splitting_map(A=-1.0, step=1.0)), target)
    content = target.read_bytes()
    assert content.lstrip().startswith(STARTS[ending])
    assert b"cdn.jsdelivr" not in content
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_names_that_no_figure_can_have_are_refused(tmp_path):
    chart = splitting_chart(hs.search.splitting_map(A=-1.0, step=2.0))
    with pytest.raises(hs.errors.AssumptionError, match="ending") as refused:
        save_chart(chart, tmp_path / "chart.bmp")
    assert refused.value.field == "path"
    with pytest.raises(hs.errors.FileError, match="no folder"):
        checked_target(tmp_path / "nowhere" / "chart.svg")


def test_a_name_is_refused_before_anything_that_draws_is_imported():
    program = "import sys; import howsmooth.report.saving; print({'altair', 'vl_convert', 'torch'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


def test_there_is_room_at_the_sides_for_wider_letters(tmp_path):
    chart = draw(WHOLE["measurement"], "layers")
    save_chart(chart, tmp_path / "roomy.svg")
    chart.properties(padding=0).save(tmp_path / "tight.svg")
    roomy, tight = (_width(tmp_path / name) for name in ("roomy.svg", "tight.svg"))
    assert roomy - tight >= PADDING["left"] + PADDING["right"]


def test_the_title_of_an_upright_axis_is_clear_of_labels_in_wider_letters(tmp_path):
    up = alt.Y("y:Q", title="constant", scale=log_scale([1e5, 1e7]), axis=labelled([1e6]))
    save_chart(alt.Chart(alt.Data(values=[{"x": 1, "y": 1e6}])).mark_point().encode(x="x:Q", y=up), tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text(encoding="utf-8")
    assert ">1,000,000<" in text
    (title,) = re.findall(r"translate\((-[0-9.]+),[-0-9.]+\) rotate\(-90\)", text)
    # the tick and its gap, and digits and commas as wide as in DejaVu Sans, among the widest of usual fonts
    assert -float(title) >= 7 + 12 * (7 * 0.636 + 2 * 0.318)


def _width(path):
    return float(re.search(r'<svg[^>]* width="([0-9.]+)"', path.read_text()).group(1))
