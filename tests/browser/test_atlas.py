"""The atlas in a browser: points and rows lead to cards, columns sort, and a phone needs no scrolling sideways."""

import sys
from pathlib import Path

import pytest

from browser.pages import DESKTOP, PHONE

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

import atlas


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    return atlas.write_atlas(tmp_path_factory.mktemp("atlas") / "atlas.html")


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)])
def test_every_card_is_a_point_and_a_row(open_report, page_file, scheme, size):
    report = open_report(page_file, scheme=scheme, size=size)
    count = len(atlas.entries())
    assert report.find("#table tbody tr").count() == count
    assert report.find("#chart svg .mark-symbol.role-mark path").count() == count
    assert report.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    drawing = report.find("#chart").bounding_box()
    assert report.find("#chart svg").bounding_box()["width"] <= drawing["width"] + 1


def test_columns_sort_filters_leave_out_and_a_point_opens_its_card(open_report, page_file):
    report = open_report(page_file)
    report.find("#table thead th:nth-child(3) button").click()
    depths = [int(text) for text in report.find("#table tbody td:nth-child(3)").all_inner_texts()]
    assert depths == sorted(depths, reverse=True)
    report.find("#kind").select_option("random twin")
    twins = sum(entry.kind == "random twin" for entry in atlas.entries())
    assert report.find("#table tbody tr").count() == twins
    assert report.find("#card").is_hidden()
    report.find("#chart svg .mark-symbol.role-mark path").first.click(force=True)
    assert "twin" in report.find("#card h3").inner_text()
    report.find("#kind").select_option("")
    report.find(
        "#table tbody button",
    ).filter(has_text="SCEPTR_tiny").first.click()
    assert report.find("#card h3").inner_text().startswith("SCEPTR_tiny")
    assert report.find("#card tbody tr").count() == 3
