"""``howsmooth lab``: what it writes, what it refuses, and that it is quick."""

import subprocess
import sys

import pytest


def test_the_lab_is_written_where_it_is_sent(howsmooth, tmp_path):
    done = howsmooth("lab")
    assert done.code == 0
    assert done.out == "The lab is lab.html.\n"
    page = (tmp_path / "lab.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert len(page) < 1_000_000
    assert "default-src 'none'" in page
    assert not any(place in page for place in ("@STYLE@", "@THEME@", "@DATA@", "@SCRIPT@"))
    assert howsmooth("lab", "-o", "mine.html").code == 0
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "no/such/lab.html"), "there is no folder 'no/such' for the lab"),
        (("-o", "."), "cannot be written"),
        (("more.html",), "unexpected extra argument"),
    ],
)
def test_a_mistake_gets_one_sentence_and_nothing_is_written(howsmooth, tmp_path, arguments, said):
    done = howsmooth("lab", *arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_neither_torch_nor_charts_are_imported(tmp_path):
    code = (
        "import sys, howsmooth.cli.commands as c; from howsmooth.lab.page import write_lab; write_lab('lab.html'); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'altair', 'jinja2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
