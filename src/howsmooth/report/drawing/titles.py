"""Titles that are no wider than their chart."""

import textwrap

import altair as alt

# The width of a letter in pixels: of a wide font, so that a line fits whatever font it is shown in.
LETTER = 8.5
# A line of fewer letters is hard to read, however narrow the chart is.
SHORTEST = 45


def titled(text: str, width: float) -> alt.TitleParams:
    """Return a title in lines that fit a width in pixels."""
    lines = textwrap.wrap(text, max(SHORTEST, int(width / LETTER)), break_long_words=False)
    return alt.TitleParams(lines if len(lines) > 1 else text, offset=12)
