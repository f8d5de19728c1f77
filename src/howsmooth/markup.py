"""Results as HTML, for notebooks: every string is escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Return an HTML table.

    Example:
        >>> table(["n"], [[8]])
        '<table><tr><th>n</th></tr><tr><td>8</td></tr></table>'
    """
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows)
    return f"<table>{title}<tr>{_cells(head, 'th')}</tr>{body}</table>"


def paragraph(text: str) -> str:
    """Return an HTML paragraph."""
    return f"<p>{escape(text)}</p>"


def _cells(values: Iterable[object], tag: str) -> str:
    return "".join(f"<{tag}>{escape(str(value))}</{tag}>" for value in values)
