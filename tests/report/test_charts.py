import pytest
import torch

import howsmooth as hs
from howsmooth.report.charts import regimes_chart, splitting_chart
from howsmooth.report.saving import save_chart

ONE = torch.ones(1, 1, dtype=torch.float64)
STARTS = {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG", ".html": b"<!doctype html>"}


@pytest.mark.parametrize("ending", STARTS)
def test_one_chart_is_written_in_every_format_without_a_network(tmp_path, ending):
    target = tmp_path / f"chart{ending}"
    save_chart(splitting_chart(hs.splitting_map(A=-1.0, step=1.0)), target)
    content = target.read_bytes()
    assert content.lstrip().startswith(STARTS[ending])
    assert b"cdn.jsdelivr" not in content
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_the_regimes_are_drawn_with_their_crossing():
    found = hs.regimes(hs.Attention.single_head(A=-ONE, V=ONE), 1.5, [3, 30, 300, 3000])
    text = regimes_chart(found).to_json()
    assert f"n* ≈ {found.crossing:,.0f}" in text
    assert '"worst found"' in text


def test_a_map_without_splitting_pairs_is_drawn_too(tmp_path):
    save_chart(splitting_chart(hs.splitting_map(A=1.0, step=1.0)), tmp_path / "none.svg")
    assert (tmp_path / "none.svg").stat().st_size > 0


def test_names_that_no_figure_can_have_are_refused(tmp_path):
    chart = splitting_chart(hs.splitting_map(A=-1.0, step=2.0))
    with pytest.raises(hs.errors.AssumptionError, match="ending"):
        save_chart(chart, tmp_path / "chart.bmp")
    with pytest.raises(hs.errors.FileError, match="no folder"):
        save_chart(chart, tmp_path / "nowhere" / "chart.svg")
