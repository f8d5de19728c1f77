"""How far a sweep is: lines where there is no terminal, a bar in a notebook, and nothing that nobody asked for."""

import builtins
import re
import time

import pytest

import howsmooth as hs
from howsmooth.studies.sweep import progress as watching
from howsmooth.studies.sweep.sweep import Tally


def tally(done, *, failed=0, total=10, last="m layer 3, 8 tokens"):
    share = (done + failed) / total
    return Tally(done=done, failed=failed, left=total - done - failed, share=share, last=last)


@pytest.fixture
def quick(monkeypatch):
    """Talk every few milliseconds."""
    monkeypatch.setattr(watching, "EVERY", 0.02)


def said(capsys, wanted, tries=3000):
    """Wait for a line that fits."""
    heard = ""
    for _try in range(tries):
        heard += capsys.readouterr().err
        if found := re.search(wanted, heard):
            return found
        time.sleep(0.02)
    return pytest.fail(f"no line like {wanted!r} in {heard!r}")


def test_off_a_terminal_a_line_says_how_far_it_is_what_was_last_and_how_long_it_takes(quick, capsys):
    with watching.watching() as show:
        said(capsys, r"^howsmooth: at the first piece of work, \d+ seconds? so far\n")
        show(tally(0, last=""))
        said(capsys, r"howsmooth: 0 of 10 done, \d+ seconds? so far\n")
        show(tally(2))
        show(tally(4, failed=1))
        said(
            capsys,
            r"howsmooth: 5 of 10 done, 1 failed, \d+ seconds? so far, about \d+ seconds? left; last m layer 3, 8 tok",
        )
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # when it is over it is over


def test_lines_come_while_one_long_piece_of_work_goes_on(quick, capsys):
    with watching.watching():
        said(capsys, r"(howsmooth: at the first piece of work.*\n){3}")


def test_a_line_comes_every_thirty_seconds():
    assert watching.EVERY == 30


def test_the_time_left_does_not_count_what_an_earlier_run_did():
    clock = watching._Clock()
    clock.note(tally(8))
    assert clock.left is None
    time.sleep(0.05)
    clock.note(tally(9))
    assert 0.04 < clock.left < 60  # and not a ninth of it


def test_the_time_left_counts_down_until_a_piece_takes_longer_than_all_was_said_to(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = watching._Clock()
    clock.note(tally(0))
    now += 10
    clock.note(tally(5))  # half of ten
    left = []
    for seconds in (0, 3, 5, 6, 20):
        now = 110.0 + seconds
        left.append(clock.left)
    assert left == [10, 7, 5, 6, 20]


@pytest.mark.slow
def test_a_short_run_off_a_terminal_says_nothing(tiny, small, capsys):
    hs.measure(tiny, progress=True, **small | {"layers": [0]})
    assert capsys.readouterr().err == ""


class ZMQInteractiveShell:
    """What a notebook calls its shell."""


@pytest.fixture
def notebook(monkeypatch):
    """Let this process look like the kernel of a notebook without widgets."""
    shell = ZMQInteractiveShell()
    monkeypatch.setattr("rich.console.get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)


@pytest.mark.slow
def test_in_a_notebook_one_bar_is_drawn_and_filled(notebook, tiny, small, capsys):
    hs.measure(tiny, progress=True, **small | {"layers": [0]})
    *_before, last = capsys.readouterr().err.rstrip().split("\r")
    assert last.startswith("100 %")
    assert "4 of 4 done" in last


@pytest.mark.slow
def test_a_bar_comes_only_when_it_is_asked_for(notebook, tiny, small, capsys):
    steps, few = [], small | {"layers": [0]}
    hs.measure(tiny, **few)
    hs.measure(tiny, progress=False, **few)
    hs.measure(tiny, progress=steps.append, **few)
    assert capsys.readouterr().err == ""
    assert len(steps) == 2
