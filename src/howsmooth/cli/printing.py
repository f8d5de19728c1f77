"""What goes to standard output and standard error: JSON, lines, rich tables, and how far an ascent is."""

import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from howsmooth.markup import strict_json
from howsmooth.wording import at_least, duration, visible

if TYPE_CHECKING:
    from rich.console import Console


LONGEST = 600


def print_json(data: Any) -> None:
    """Print one JSON value; a number without end becomes null, since JSON has no infinity."""
    typer.echo(strict_json(data))


def say(text: str, *, err: bool = False) -> None:
    """Print a line; what a terminal would obey in place of showing it is written by its number."""
    typer.echo(visible(text), err=err)


@functools.cache
def _console_class() -> Any:
    """Return a rich console that obeys nothing of what it is given to show."""
    from rich.console import Console

    class VisibleConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

    return VisibleConsole


def visible_console(**options: Any) -> "Console":
    """Return a console for results that show themselves: names in them are no markup and no commands."""
    return _console_class()(highlight=False, markup=False, **options)


def one_line(text: str) -> str:
    r"""Bring a message to one line, without the middle of what is too long to read.

    Example:
        >>> one_line("two\nlines")
        'two lines'
    """
    line = visible(" ".join(text.splitlines()))
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}"


# The options of the command that runs, by the keywords under which the library knows them.
options_by_keyword: dict[str, str] = {}


def in_options(text: str, options: Mapping[str, str] = options_by_keyword) -> str:
    """Write the keywords in a message of the library as options of the command line.

    A keyword is recognised by its ``=``, by an underscore, or where it begins the message; words inside quotation marks
    are the user's own and stay.

    Example:
        >>> options = {"tokenizer": "--tokenizer", "per_head": "--per-head", "family": "--family", "seed": "--seed"}
        >>> in_options("give another with tokenizer=, as in family='bert'; leave per_head out.", options)
        'give another with --tokenizer, as in --family bert; leave --per-head out.'
        >>> in_options("seed must be at least 0, got -1.", options)
        '--seed must be at least 0, got -1.'
    """
    if not options:
        return text
    known = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    keyword = re.compile(rf"(?<![\w'\"/.-])({known})=(True\b|'[^']*'|\"[^\"]*\"|[\w.,:-]*\w)?")

    def written(found: re.Match[str]) -> str:
        value = (found[2] or "").removesuffix("True")
        quotes = "'\"" if " " not in value else ""
        return " ".join(filter(None, (options[found[1]], value.strip(quotes))))

    text = keyword.sub(written, text)
    text = re.sub(rf"(?<![\w'\"/.-])({known})(?![\w'\"=])", lambda m: options[m[1]] if "_" in m[1] else m[1], text)
    return re.sub(rf"^({known})(?= must\b)", lambda m: options[m[1]], text)


# How many seconds lie between two lines about the same work.
EVERY = 30.0
# What the command that runs is at, and since when; nothing while a bar or a line says so in more detail.
_stage: dict[str, Any] = {"said": "", "began": 0.0}


def begin(what: str) -> None:
    """Say at once what begins, on standard error; every half minute says so again."""
    _tell(f"{what} …")
    go_on(what)


def _tell(line: str) -> None:
    """Print a line about the work; a program that reads what this one prints, in the same process, wants answers."""
    if sys.stderr is sys.__stderr__:
        say(line, err=True)


def go_on(what: str = "") -> None:
    """Change what is said every half minute; nothing, if nothing is given."""
    _stage.update(said=what, began=time.monotonic())


@contextmanager
def saying_stages() -> Iterator[None]:
    """Repeat every half minute what :func:`begin` said last, while a command runs."""
    over = threading.Event()

    def talk() -> None:
        while not over.wait(EVERY):
            if _stage["said"]:
                _tell(f"howsmooth: {_stage['said']}, {duration(time.monotonic() - _stage['began'])} so far")

    go_on()
    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    try:
        yield
    finally:
        over.set()
        go_on()


AscentProgress = Callable[[int, float], None]


@contextmanager
def ascent_bar(wanted: bool, steps: int) -> Iterator[AscentProgress | None]:
    """Show the best value of a search so far, and how long the rest takes: in a bar, or every half minute in a line."""
    if not wanted:
        yield None
        return
    if not sys.stderr.isatty():
        began = time.monotonic()

        def note(step: int, best: float) -> None:
            left = duration((time.monotonic() - began) / step * (steps - step))
            _stage["said"] = f"Ascent, Lip ≥ {at_least(best)} after {step} of {steps} steps, at most {left} left"

        yield note
        return
    from rich import progress
    from rich.console import Console

    clocks = (progress.TimeElapsedColumn(), progress.TextColumn("left:"), progress.TimeRemainingColumn())
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *clocks)
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ascent", total=steps)

        def show(step: int, best: float) -> None:
            bar.update(task, completed=step, description=f"ascent, step {step}: Lip ≥ {at_least(best)}")

        yield show
