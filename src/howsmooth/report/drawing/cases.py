"""Explicit heads in a ball: how records of them are told apart."""

from collections.abc import Sequence

from howsmooth.studies.asks import AboutHead, Matrix
from howsmooth.studies.records import Record
from howsmooth.wording import number


def cases(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each head and radius by what to call them, shorter ones first."""
    groups: dict[tuple[str, int, str, int, Matrix, float], list[Record]] = {}
    for r in sorted(records, key=lambda r: r.ask.length):
        ask: AboutHead = r.ask
        groups.setdefault((ask.model, ask.layer, ask.map, len(ask.A), ask.A, ask.radius), []).append(r)
    return {_called(found[0].ask): found for _key, found in sorted(groups.items())}


def _called(ask: AboutHead) -> str:
    head = f"{ask.model}, layer {ask.layer}, {ask.map}" if ask.model else f"A = {_written(ask.A)}"
    return f"{head}, R = {number(ask.radius)}"


def _written(A: Matrix) -> str:
    """Write a multiple of the identity as such, and of any other matrix its size."""
    d = len(A)
    a = A[0][0] if A else 0.0
    multiple = all(value == (a if i == j else 0.0) for i, row in enumerate(A) for j, value in enumerate(row))
    return number(a) if d == 1 else f"{number(a)}·I ({d}×{d})" if multiple else f"{d}×{d}"
