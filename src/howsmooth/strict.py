"""JSON that every reader takes: it has no infinity and no NaN, so a number without end is ``null``."""

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Return plain values with ``None`` in place of every number that is not finite, however deep it lies.

    Example:
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
