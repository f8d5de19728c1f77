"""Mass that splits: on the line, on text, and attacked; and the worst measures."""

import pytest
from drawn import cut, measure, pairs, panels_of, rows_of, section, title_of

import howsmooth as hs
from howsmooth.report.charts.mass_splitting import splitting_chart
from howsmooth.report.figures import draw
from howsmooth.report.saving import save_chart


@pytest.mark.slow
def test_a_map_without_splitting_pairs_is_drawn_too(tmp_path):
    save_chart(splitting_chart(hs.search.splitting_map(A=1.0, step=1.0)), tmp_path / "none.svg")
    assert (tmp_path / "none.svg").stat().st_size > 0


def test_a_window_above_one_splits():
    records = [cut(0), cut(3, split=5.0), cut(3, "head:10"), cut(3, "head:9")]
    chart = draw(section("splitting", records), "on_text")
    assert panels_of(chart) == ["minilm, attention", "minilm, head 9", "minilm, head 10"]
    rows = rows_of(chart, panel="minilm, attention")
    assert [(row["layer"], row["y"]) for row in rows] == [(0, 0.5), (3, 2.5)]
    assert title_of(chart) == "Splitting one token beats moving all in 1 of 4 cases"


def test_the_attack_is_compared_with_the_derivative():
    chart = draw(section("splitting", [cut(0)]), "split_attack")
    assert pairs(rows_of(chart, series="move all tokens")) == [(2.0, 2.02)]
    assert pairs(rows_of(chart, series="split one token")) == [(1.0, 1.0)]
    assert all(x == y for x, y in pairs(rows_of(chart, series="equal")))
    assert title_of(chart).endswith("within 1 %")


def test_atoms_at_one_place_are_one():
    chart = draw(section("measures", [measure((0.6, 2.0), (0.3, 2.0), (0.1, -2.0))]), "worst_measures")
    assert [(row["place"], row["mass"]) for row in rows_of(chart)] == [(2.0, pytest.approx(0.9)), (-2.0, 0.1)]
    assert {row["row"] for row in rows_of(chart)} == {"3 atoms: 165.8"}
    assert "one place holds at least 90 % of the mass" in title_of(chart)


def test_only_atoms_that_weigh_something_have_a_number():
    chart = draw(section("measures", [measure((0.9, 2.0), (0.1, -1.0), (1e-9, -2.0))]), "worst_measures")
    assert [row["label"] for row in rows_of(chart)] == ["0.9", "0.1", ""]
