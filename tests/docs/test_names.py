"""The index of the API has one line for every public name, and theorems and functions lead to each other."""

import re
import sys
from pathlib import Path

import pytest

import howsmooth as hs

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

from names import ROOMS, public

pytestmark = pytest.mark.slow


def text(site, page):
    return (site / page).read_text(encoding="utf-8")


def theory(site):
    return sorted((site / "theory").glob("*.html"))


def test_every_public_name_has_one_line_in_the_index(site):
    rows = re.findall(r"<tr.*?</tr>", text(site, "api/index.html"), re.DOTALL)
    described = {
        found[1]: re.sub(r"<.*?>", "", row.split("<td>")[2]).strip()
        for row in rows
        if (found := re.search(r'href="[^"]*#howsmooth\.([\w.]+)"', row))
    }
    assert {name for name in public() if not described.get(name)} == set()


def test_every_room_with_a_public_name_has_a_title():
    homes = {getattr(hs, name).__module__ for name in public() if "." not in name}
    assert {home.split(".")[1] for home in homes} <= set(ROOMS)


@pytest.mark.parametrize("name", hs.bounds.__all__)
def test_a_theorem_links_to_its_function(site, name):
    about_all = {"smallest_upper"}  # the least of the others, no theorem of its own
    assert name in about_all or any(f"#howsmooth.bounds.{name}" in text(site, page) for page in theory(site))


def test_functions_link_back_to_their_theorems(site):
    links = set(re.findall(r'href="\.\./theory/\w+\.html#theorem-(\d+)"', text(site, "api/theory.html")))
    assert {str(n) for n in range(1, 9)} <= links
