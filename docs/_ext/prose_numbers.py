"""Numbers in prose: every one is accounted for, and what a run gave is written as the run gave it.

Pages are read on the site and as they stand in the repository, so a page holds the text of its numbers, and a comment
behind each paragraph, list or table says in order where they come from::

    The worst perturbation of layer 4 grows 30-fold, a random one shrinks to 0.62.
    <!-- numbers: demo.worst.4 demo.typical.4 -->

A word of such an account is a key into ``docs/numbers.json``, which ``make numbers`` writes (a key of several numbers
stands for all of them, in order), or one of the ``REASONS`` why no run gives the number; a reason by itself speaks for
the whole paragraph. ``<!-- output: KEY -->`` stands in front of a block that shows what a command printed, and
``<!-- recorded: KEY -->`` under the heading of a section that was measured once and that ``make numbers`` does not
measure again: the file holds its numbers with command and date, and the site says so.

The precision of a number is that of the text: 30 is written for 30.37, and 30.4 where 31.2 stood.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FILE = Path(__file__).parents[1] / "numbers.json"
REASONS = {
    "setting": "chosen: it stands in the command, the code or the data",
    "example": "made up to illustrate",
    "literature": "taken from elsewhere",
    "mathematics": "follows from a formula on the page",
    "goal": "what was aimed at",
    "earlier": "given by an earlier version, or by a trial that was not kept; it cannot be measured again",
    "written": "written into the page by the tool that it names",
    "figure": "read off the figure beside it, whose script is named",
}

COMMENT = re.compile(r"^[ \t]*<!-- (numbers|output|recorded|numbers on this page): (.*?) -->[ \t]*\n?", re.M | re.S)
NUMERAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
# Numbers that are not quoted: code, formulas, targets of links, releases, and those that say what was asked for.
SERIES = rf"{NUMERAL}(?:(?:, | and | to | or | … |, …, |–| – | → |, and ){NUMERAL})*"
ASIDE = re.compile(
    r"`[^`]*`|(?<!\\)\$[^$]+\$|\]\([^)]*\)|<[^>]*>|https?://\S+|\b\d+\.\d+\.\d+\b|10\^(?=\d)|^\s*\d+\. "
    rf"|\b(?i:layers|windows|heads|theorems|blocks|steps|lines) {SERIES}"
    rf"|\b(?i:layer|window|head|theorem|seed|block|step|line|python|torch|version) {NUMERAL}"
    rf"|(?<!\w)[A-Za-zεαδλτ] ?[=<>≤≥] ?{NUMERAL}(?:(?: … |, …, | → ){NUMERAL})?"
    rf"|(?<![\w.,]){NUMERAL}(?: (?:to|or) {NUMERAL})?[ -](?:tokens?|heads?|windows?|layers?|blocks?|bits?|bit|atoms?)\b"
    r"|(?<![\w.,])99\.9 %|(?<![\w.,])95 %",
    re.M,
)
TOKEN = re.compile(rf"10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|(?<![\w.,/])(?P<plain>(?<![\w)])[−-]?{NUMERAL})(?![\w])")
BETWEEN = re.compile(r"(?: %)?(?:,|\s+to|\s+and|\s+or|\s…|\s?–|\s→|\s+against|\s/)*\s*\*{0,2}")
UNIT = re.compile(r"\*{0,2}(?:\s*|-)(?:%|times\b|-?fold\b|s\b|ms\b|µs\b|min\b|GB\b|MB\b|GiB\b)")
FACTOR = re.compile(r"factors? of \*{0,2}$")
SMALL = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WORDS = {word: number for number, word in enumerate(SMALL, start=2)}
WORDS |= {"fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100, "thousand": 1000}
IN_WORDS = re.compile(
    r"factors?\s+of\s+(?:a\s+)?({0})(?:\s+to\s+({0}))?\b|\b({0})(?:\s+to\s+({0}))?\s+times\b".format("|".join(WORDS))
)


@dataclass(frozen=True)
class Token:
    """A number as it stands on a page, and where."""

    start: int
    end: int
    text: str
    power: bool = False


def load() -> dict[str, Any]:
    """Read what ``make numbers`` wrote."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def tokens(text: str, start: int, end: int) -> list[Token]:
    """Return the numbers that a paragraph quotes.

    In tables these are all but those of the head, elsewhere those of two digits or with a decimal point, a unit or a
    factor, and those that stand in one row with such a number; and factors in words.
    """
    words = [
        Token(found.start(group), found.end(group), found[group])
        for found in IN_WORDS.finditer(text, start, end)
        for group in range(1, 5)
        if found[group]
    ]
    return sorted((*words, *_numerals(text, start, end)), key=lambda token: token.start)


def _numerals(text: str, start: int, end: int) -> Iterator[Token]:
    prose = ASIDE.sub(lambda found: " " * len(found[0]), _without_table_heads(text[start:end]))
    row: list[Token] = []
    counts = False
    for found in TOKEN.finditer(prose):
        here = Token(start + found.start(), start + found.end(), found[0], found["power"] is not None)
        joined = bool(row) and BETWEEN.fullmatch(prose[row[-1].end - start : found.start()]) is not None
        if row and not joined:
            yield from row if counts else ()
            row, counts = [], False
        row.append(here)
        line = prose[prose.rfind("\n", 0, found.start()) + 1 : found.start()]
        counts |= len(re.sub(r"[^\d.]", "", found[0])) > 1 or UNIT.match(prose, found.end()) is not None
        counts |= line.lstrip().startswith("|") or FACTOR.search(line) is not None
    yield from row if counts else ()


def _without_table_heads(block: str) -> str:
    """Blank the head of a table: its numbers are labels."""
    return re.sub(r"^.*\n(?=\s*\|[\s:|-]+\|\s*$)", lambda found: " " * (len(found[0]) - 1) + "\n", block, flags=re.M)


def printed(value: float, like: Token) -> str:
    """Write a value with the precision of a number that stands on a page."""
    text = like.text
    if like.power:
        return "10" + f"{round(value)}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    if text in WORDS:
        unit = 10 ** math.floor(math.log10(WORDS[text])) if WORDS[text] >= 20 else 1
        return text if round(value / unit) * unit == WORDS[text] else printed(value, Token(0, 2, "10"))
    plain = text.lstrip("−-").replace(",", "")
    if "e" in plain:
        digits = len(plain.split("e")[0].partition(".")[2])
        return f"{value:.{digits}e}"
    if not math.isfinite(value):
        return "∞"
    size = abs(value)
    whole, _, decimals = plain.partition(".")
    places = len(decimals) if decimals else _places(size, whole)
    rounded = round(size, places)
    if rounded == 0 < size:  # smaller than the precision of the text: two digits
        places = 1 - math.floor(math.log10(size))
        rounded = round(size, places)
    comma = "" if len(whole) > 3 and "," not in text else ","
    minus = "" if value >= 0 or rounded == 0 else "−"
    return minus + f"{rounded:{comma}.{max(places, 0)}f}"


def _places(size: float, whole: str) -> int:
    """Return to how many places behind the point a whole number is known: to two digits, or all but its zeros."""
    if size == 0:
        return 0
    places = max(2, len(whole.rstrip("0"))) - 1 - math.floor(math.log10(size))
    if size >= 9.5:
        return min(places, 0)
    return (0 if size >= 0.95 else 1) if len(whole) == 1 else places


def look_up(numbers: dict[str, Any], key: str) -> Any:
    """Return what stands under a key with dots: ``run.name.name``."""
    run, *path = key.split(".")
    found = numbers["runs"][run]["numbers"]
    for name in path:
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def leaves(found: Any) -> list[float]:
    """Return all numbers below a key, in order."""
    if isinstance(found, dict):
        found = list(found.values())
    return [x for inner in found for x in leaves(inner)] if isinstance(found, list) else [found]


class Page:
    """One page, read from top to bottom: what it should say, and what is wrong with it."""

    def __init__(self, text: str, numbers: dict[str, Any]) -> None:
        self.text, self.numbers = text, numbers
        self.problems: list[str] = []
        self.recorded: dict[str, list[str]] = {}
        self._changes: list[tuple[int, int, str]] = []
        self._section: str | None = None
        self._everywhere: str | None = None
        self._read()
        for key, found in self.recorded.items():
            known = numbers["recorded"].get(key, {"numbers": []})["numbers"]
            if found != known:
                odd = [f"{a} (recorded: {b})" for a, b in zip(found, known, strict=False) if a != b]
                what = odd[0] if odd else f"{len(found)} numbers (recorded: {len(known)})"
                self.problems.append(f"section {key!r} has {what}; record it again: tools/make_numbers.py --record")

    @property
    def written(self) -> str:
        """The page with every number as the file has it."""
        text = self.text
        for start, end, new in sorted(self._changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _read(self) -> None:
        place, block, formula = 0, None, False
        while place < len(self.text):
            end = self.text.find("\n", place) + 1 or len(self.text)
            line = self.text[place:end]
            comment = COMMENT.match(self.text, place)
            fence = re.match(r"\s*(`{3,})([\w{}-]*)", line)
            if comment or fence or not line.strip() or line.startswith("#") or line.strip() == "$$" or formula:
                self._close(block, place, comment)
                block = None
            elif block is None:
                block = place
            if comment:
                end = comment.end()
                self._marker(comment[1], comment[2], place)
            elif fence:
                end = self._fence(place, end, fence[1], fence[2])
            elif line.startswith("#"):
                self._section = None
            elif line.strip() == "$$":
                formula = not formula
            place = end
        self._close(block, place, None)

    def _marker(self, kind: str, word: str, place: int) -> None:
        if kind == "recorded":
            self._section = word
            self.recorded.setdefault(word, [])
        if kind == "numbers on this page":
            self._everywhere = word
            if word not in REASONS:
                self._complain(place, f"{word!r} is none of the reasons {', '.join(REASONS)}")

    def _close(self, start: int | None, end: int, comment: re.Match[str] | None) -> None:
        """Account for the numbers of a paragraph that ends here."""
        if start is None:
            return
        found = tokens(self.text, start, end)
        if comment and comment[1] == "numbers":
            self._account(start, found, comment[2].split())
        elif self._section is not None:
            self.recorded[self._section] += [token.text for token in found]
        elif found and self._everywhere is None:
            quoted = ", ".join(token.text for token in found)
            self._complain(start, f"no account of {quoted}")

    def _account(self, start: int, found: list[Token], words: list[str]) -> None:
        if len(words) == 1 and words[0] in REASONS:
            return
        values: list[float | None] = []
        for word in words:
            name, _, times = word.partition("*")
            if name in REASONS:
                values += [None] * int(times or 1)
                continue
            try:
                values += leaves(look_up(self.numbers, name))
            except (LookupError, ValueError, TypeError):
                self._complain(start, f"docs/numbers.json has no {name!r}")
                return
        if len(values) != len(found):
            quoted = ", ".join(token.text for token in found)
            self._complain(start, f"{len(found)} numbers ({quoted}), and an account of {len(values)}")
            return
        for token, value in zip(found, values, strict=True):
            if value is not None and printed(value, token) != token.text:
                self._complain(token.start, f"{token.text} should be {printed(value, token)}")
                self._changes.append((token.start, token.end, printed(value, token)))

    def _fence(self, place: int, end: int, ticks: str, language: str) -> int:
        """Pass over a block of code; what a command printed is what it printed."""
        close = re.compile(rf"^\s*{ticks}`*\s*$", re.M).search(self.text, end)
        inside = close.start() if close else len(self.text)
        before = COMMENT.search(self.text[:place][self.text.rfind("\n\n", 0, place) + 1 :])
        key = before[2] if before and before[1] == "output" else None
        shown = self.text[end:inside]
        if key in REASONS or (language not in ("", "text") and key is None):
            pass
        elif key is None:
            if re.search(r"\b\d\d|\d\.\d", shown):
                self._complain(place, "no account of this output")
        else:
            run, _, name = key.partition(".")
            printed_text = self.numbers["runs"].get(run, {}).get("outputs", {}).get(name)
            if printed_text is None:
                self._complain(place, f"docs/numbers.json has no output {key!r}")
            elif printed_text.strip("\n") != shown.strip("\n"):
                self._complain(place, f"this is not what {self.numbers['runs'][run]['command']!r} printed")
                self._changes.append((end, inside, printed_text.strip("\n") + "\n"))
        return close.end() + 1 if close else len(self.text)

    def _complain(self, place: int, what: str) -> None:
        self.problems.append(f"line {self.text.count(chr(10), 0, place) + 1}: {what}")


def write(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write numbers as the file has them, and say of sections that were recorded when and how."""
    numbers = load()
    app.env.note_dependency(str(FILE))
    found = Page(source[0], numbers)

    def origin(comment: re.Match[str]) -> str:
        if comment[1] != "recorded":
            return ""
        record = numbers["recorded"][comment[2]]
        command = record["command"]
        said = f"`{command}`" if command.startswith(("howsmooth", "python")) else command
        return f"*Recorded on {record['date']}:* {said}.\n\n"

    source[0] = COMMENT.sub(origin, found.written)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", write, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
