"""How numbers are written wherever a report says them."""

from collections.abc import Sequence

from howsmooth.studies.records import Record


def exponent_digits(exponent: float) -> str:
    """Write an exponent with two digits behind the point and a true minus."""
    # adding zero turns -0.0 into 0.0
    return f"{round(exponent, 2) + 0.0:.2f}".replace("-", "−")


def error_bar(record: Record) -> str:
    """Write both ends of one constant, and with which probability the upper one holds."""
    upper = "" if record.upper is None else f" – {record.upper:.5g} ({100 * record.task.confidence:g} %)"
    return f"{record.lower:.5g}{upper}"


def ends(records: Sequence[Record]) -> tuple[str, str]:
    """Write the smallest lower end and the largest upper end of some constants."""
    return f"{min(r.lower for r in records):.4g}", f"{max(r.upper or r.lower for r in records):.4g}"
