"""Comparisons and swaps as pages of their own."""

import pytest
from measured import grid, measurement

import howsmooth as hs
from howsmooth.report.result_page import write_comparison, write_result


def test_a_comparison_is_a_page_with_its_answer_its_chart_and_its_table(tmp_path):
    found = hs.compare(measurement(grid()), measurement(grid()))
    page = write_comparison(found, "howsmooth compare a b", tmp_path / "page.html").read_text()
    for said in (*found.lead, found.legend, "howsmooth compare a b", "Dark or light"):
        assert said in page
    assert page.count('<tr><th scope="row">') == len(found.rows)
    assert "vegaEmbed(target" in page


def test_words_that_stand_out_are_marked_and_nothing_breaks_out(tmp_path):
    parts = {"title": "t", "lead": ["<b>"], "columns": ["c"], "rows": [["<i>"]], "legend": "", "command": "x"}
    page = write_result(tmp_path / "p.html", lines=[[("one", False), ("two", True)]], **parts).read_text()
    assert "<mark>two</mark>" in page
    assert "<b>" not in page
    with pytest.raises(hs.errors.FileError, match="cannot be written"):
        write_result(tmp_path / "no" / "p.html", **parts)
