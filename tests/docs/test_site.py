"""The site builds without a warning, every link in it leads somewhere, and reading it needs no network."""

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

from commands import commands
from names import public

pytestmark = pytest.mark.slow

LOADS = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "object": "data"}
POINTS = {"canonical", "next", "prev", "index", "search", "genindex"}  # links that a browser does not load


class Page(HTMLParser):
    """What a page links to, what it loads, and where it can be entered."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.places = set(), set(), {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        if LOADS.get(tag) in found and found.get("rel") not in POINTS:
            self.loads.add(found[LOADS[tag]])


page = cache(Page)


def pages(site):
    return sorted(site.rglob("*.html"))


def test_the_site_builds_without_a_warning(site):
    assert (site.parent / "warnings.txt").read_text(encoding="utf-8") == ""


def test_every_local_link_and_anchor_leads_somewhere(site):
    broken = []
    for path in pages(site):
        for link in page(path).links | page(path).loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            # a page of source leads back to names under their full paths, some of which have shorter ones
            anywhere = target.suffix != ".html" or "_modules" in path.parts
            known = target.exists() and (anywhere or unquote(parts.fragment) in page(target).places)
            broken += [] if known else [f"{path.relative_to(site)}: {link}"]
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site):
    remote = [(path.name, x) for path in pages(site) for x in page(path).loads if urlsplit(x).netloc]
    styles = [
        (path.name, found)
        for path in site.rglob("*.css")
        for found in re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", path.read_text(encoding="utf-8"))
    ]
    assert remote + styles == []


def test_formulas_are_set_by_a_script_of_the_site(site):
    loads = page(site / "theory" / "ball.html").loads
    assert any("_static/tex-svg.js" in x for x in loads)
    assert (site / "_static" / "tex-svg.js").exists()


def test_every_public_name_is_documented(site):
    places = set().union(*(page(path).places for path in (site / "api").glob("*.html")))
    assert {name for name in public() if f"howsmooth.{name}" not in places} == set()


def test_every_command_and_option_is_in_the_reference(site):
    text = (site / "commands.html").read_text(encoding="utf-8")
    for name, command in commands().items():
        assert f'id="{name}"' in text
        assert all(option in text for parameter in command.params for option in parameter.opts if option[0] == "-")


@pytest.mark.parametrize(
    "chapter", ["Start", "How to", "Theory", "Notation", "Gallery", "Findings", "API", "Architecture", "Changelog"]
)
def test_every_chapter_is_one_click_away(site, chapter):
    assert re.search(rf"toctree-l1.*>{chapter}</a>", (site / "index.html").read_text(encoding="utf-8"))
