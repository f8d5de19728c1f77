"""The tokens of a window as running text, coloured by their share of the worst perturbation."""

import unicodedata
from collections.abc import Iterator, Sequence

import altair as alt

from howsmooth.errors import AssumptionError
from howsmooth.report.charts import INK, Chart, Rows
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.records import Record

COLUMNS, COLUMN_WIDTH, LINE_HEIGHT, FONT_SIZE = 90, 7.6, 21, 12
# How vocabularies write a space before a word and a newline (bytes, SentencePiece), and a word that goes on (BERT).
BYTE_MARKS, WRITTEN, GOES_ON = ("Ġ", "Ċ"), {"▁": " ", "<0x0A>": "\n"}, "##"
# Byte vocabularies show a byte that is no printable Latin-1 character as the next one from 256 on.
PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
HIDDEN = tuple(byte for byte in range(256) if byte not in PRINTABLE)
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(HIDDEN)}
SIGNS = {"\n": "⏎", "\t": "⇥"}
# What joins letters or keeps them apart has no shape, but gives one.
JOINERS = "\u200c\u200d"
SHADES = ["#ffffff", "#9ecae1", "#08519c"]
DARK, MOST = 0.5, 5


def sensitive_tokens(measurement: Measurement, layer: int) -> Chart:
    """Draw the first window of the longest length as text, a token the darker the more the worst perturbation moves it.

    Raises:
        AssumptionError: If that window was not measured at the layer.
    """
    record = window_record(measurement, layer)
    if record is None:
        raise AssumptionError(
            f"the first of the longest windows was not measured at layer {layer}, or its tokens are not kept; "
            "measure it first, or choose another layer."
        )
    rows = _placed(measurement.tokens, record.sensitivity)
    most = sorted(record.sensitivity, reverse=True)[:MOST]
    title = alt.TitleParams(
        f"layer {layer}: which tokens to move (window 0, {len(rows)} tokens)",
        subtitle=f"{len(most)} tokens hold {sum(most):.0%} of the worst perturbation",
    )
    width = max(COLUMNS, *(row["end"] for row in rows)) * COLUMN_WIDTH
    return _text_chart(rows).properties(width=width, height=(rows[-1]["line"] + 1) * LINE_HEIGHT, title=title)


def window_record(measurement: Measurement, layer: int) -> Record | None:
    """Return the record of a layer that the kept tokens belong to, if there is one."""
    tokens = len(measurement.tokens)
    records = measurement.at(layer=layer, length=tokens)
    return next((r for r in records if r.task.window == 0 and len(r.sensitivity) == tokens), None)


def _text_chart(rows: Rows) -> alt.LayerChart:
    largest = max(row["share"] for row in rows) or 1.0
    right, lines = max(COLUMNS, *(row["end"] for row in rows)), rows[-1]["line"] + 1
    across, down = alt.Scale(domain=[0, right], nice=False), alt.Scale(domain=[lines, 0], nice=False)
    # The square root shows the many small shares too, which a linear scale leaves white.
    colour = alt.Color(
        "share:Q",
        title="share of the worst perturbation",
        scale=alt.Scale(type="sqrt", interpolate="rgb", range=SHADES, domain=[0, largest]),
        legend=alt.Legend(format=".2~%", orient="bottom", gradientLength=240, tickCount=4, titleLimit=300),
    )
    base = alt.Chart(alt.Data(values=rows)).encode(tooltip=["text:N", alt.Tooltip("share:Q", format=".2%")])
    boxes = base.mark_rect(stroke="white", strokeWidth=1).encode(
        x=alt.X("start:Q", axis=None, scale=across),
        x2="end:Q",
        y=alt.Y("line:Q", axis=None, scale=down),
        y2="below:Q",
        color=colour,
    )
    words = base.mark_text(font="monospace", fontSize=FONT_SIZE).encode(
        x=alt.X("middle:Q", axis=None, scale=across),
        y=alt.Y("centre:Q", axis=None, scale=down),
        text="text:N",
        color=alt.condition(f"datum.share > {DARK * largest}", alt.value("white"), alt.value(INK)),
    )
    return alt.LayerChart(layer=[boxes, words])


def _placed(tokens: Sequence[str], shares: Sequence[float]) -> Rows:
    """Return one row for each token: where it stands, in columns and lines of monospace text."""
    rows: Rows = []
    column = line = 0
    for (space, text), share in zip(words(tokens), shares, strict=True):
        column += space if column else 0
        if column and column + _columns(text) > COLUMNS:
            line, column = line + 1, 0
        end = column + _columns(text)
        place = {"start": column, "end": end, "middle": (column + end) / 2}
        rows.append({"text": text, "share": share, "line": line, "centre": line + 0.45, "below": line + 0.9, **place})
        column = end
    return rows


def running_text(tokens: Sequence[str]) -> str:
    """Return tokens as a reader wants them."""
    return "".join(f" {word}" if space else word for space, word in words(tokens)).strip()


def words(tokens: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yield whether a space comes before each token, and the token as a reader wants it."""
    in_bytes = any(mark in token for token in tokens for mark in BYTE_MARKS)
    pieces = [_decoded(token) if in_bytes else token for token in tokens]
    for mark, meaning in WRITTEN.items():
        pieces = [piece.replace(mark, meaning) for piece in pieces]
    marked = any(piece.startswith(" ") for piece in pieces)
    for piece in pieces:
        yield piece.startswith(" ") if marked else not piece.startswith(GOES_ON), _readable(piece)


def _decoded(token: str) -> str:
    if not all(c in BYTES for c in token):
        return token
    return bytes(BYTES[c] for c in token).decode(errors="replace")


def _readable(piece: str) -> str:
    text = "".join(map(_visible, piece.removeprefix(GOES_ON) or piece))
    return text.strip() or "␣"


def _visible(character: str) -> str:
    """Show what has no shape of its own, and what turns the direction of writing, by a sign or by its number."""
    if character in SIGNS or character in JOINERS or not unicodedata.category(character).startswith("C"):
        return SIGNS.get(character, character)
    return f"⟨U+{ord(character):04X}⟩"


def _columns(text: str) -> int:
    """Count the columns of monospace text: two for a wide character, none for one that joins or combines."""
    widths = {"W": 2, "F": 2}
    plain = (c for c in text if unicodedata.category(c) not in ("Mn", "Me", "Cf"))
    return sum(widths.get(unicodedata.east_asian_width(c), 1) for c in plain) or 1
