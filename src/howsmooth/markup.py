"""Results as HTML for notebooks, every string escaped, and as JSON that every reader takes."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from howsmooth.errors import AssumptionError
from howsmooth.wording import percent, visible

# Seen on white and on black paper alike, with the text of either over it.
SHADE = "245, 166, 35"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Return an HTML table.

    Example:
        >>> table(["n"], [[8]])
        '<table><tr><th>n</th></tr><tr><td>8</td></tr></table>'
    """
    title = f"<caption>{_escaped(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows)
    return f"<table>{title}<tr>{_cells(head, 'th')}</tr>{body}</table>"


def paragraph(text: str) -> str:
    """Return an HTML paragraph."""
    return f"<p>{_escaped(text)}</p>"


def shaded(words: Sequence[str], shares: Sequence[float]) -> str:
    """Return words as running text, each shaded by its share; a pointer on a word tells the share.

    Shades go with the square root of the share, so that the many small ones can be told apart too.

    >>> shaded(["a"], [1.0])
    '<p><span title="100 %" style="background: rgba(245, 166, 35, 1.00)">a</span></p>'
    """
    most = max(shares, default=0.0) or 1.0
    spans = (
        f'<span title="{percent(share)}" style="background: rgba({SHADE}, {math.sqrt(share / most):.2f})">'
        f"{_escaped(word)}</span>"
        for word, share in zip(words, shares, strict=True)
    )
    return f"<p>{' '.join(spans)}</p>"


def _escaped(text: str) -> str:
    return html.escape(visible(text))


def _cells(values: Iterable[object], tag: str) -> str:
    return "".join(f"<{tag}>{_escaped(str(value))}</{tag}>" for value in values)


def frame(rows: Iterable[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame of pandas."""
    try:
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise AssumptionError(
            "tables for pandas need pandas: pip install pandas; to_json has the same numbers."
        ) from error
    return pd.DataFrame(list(rows))


def finite(value: Any) -> Any:
    """Return plain values with ``None`` in place of every number that is not finite, however deep it lies.

    >>> finite({"value": math.inf, "trace": [1.0, math.nan]})
    {'value': None, 'trace': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def strict_json(value: Any) -> str:
    """Return plain values as JSON."""
    return json.dumps(finite(value), allow_nan=False)
