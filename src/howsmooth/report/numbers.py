"""What charts show, as tables: for readers who do not see them, and for those who want the digits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from howsmooth.report.ladder_chart import rungs
from howsmooth.report.wording import ends
from howsmooth.studies.measurement import Measurement, mean_constant
from howsmooth.studies.records import Record

# A row of a table of numbers: the layer it is about, if it is about one, and its cells.
NumberRow = tuple[int | None, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a chart shows, as a table."""

    head: tuple[str, ...]
    rows: tuple[NumberRow, ...]


def _by_length(m: Measurement) -> Numbers:
    head = ("layer", "tokens", "windows", "smallest", "mean", "largest (upper end)", "certificate (mean)")
    rows = []
    for layer, n, found in _cells(m):
        certificates = [r.local_upper for r in found if r.local_upper]
        certificate = f"{geometric_mean(certificates):.4g}" if certificates else "—"
        low, high = ends(found)
        cells = (str(layer), str(n), str(len(found)), low, f"{mean_constant(found):.4g}", high, certificate)
        rows.append((layer, cells))
    return Numbers(head=head, rows=tuple(rows))


def _by_radius(m: Measurement) -> Numbers:
    rows = []
    for layer, n, found in _cells(m):
        radii = [r.radius or 0.0 for r in found]
        cells = (f"{min(radii):.4g}", f"{fmean(radii):.4g}", f"{max(radii):.4g}", f"{mean_constant(found):.4g}")
        rows.append((layer, (str(layer), str(n), *cells)))
    return Numbers(
        head=("layer", "tokens", "smallest radius", "mean radius", "largest radius", "mean constant"), rows=tuple(rows)
    )


def _grid_of_lengths(m: Measurement) -> Numbers:
    rows = []
    for layer in m.layers:
        found = (m.at(layer=layer.layer, length=n) for n in m.lengths)
        cells = (f"{mean_constant(here):.4g}" if here else "—" for here in found)
        rows.append((layer.layer, (str(layer.layer), *cells)))
    return Numbers(head=("layer", *(f"n = {n}" for n in m.lengths)), rows=tuple(rows))


def _grid_of_heads(m: Measurement) -> Numbers:
    longest = max(r.task.length for r in m.heads)
    last = [r for r in m.heads if r.task.length == longest]
    heads = sorted({r.task.map for r in last}, key=lambda part: int(part.partition(":")[2]))
    rows = []
    for layer in sorted({r.task.layer for r in last}):
        found = ([r for r in last if r.task.layer == layer and r.task.map == head] for head in heads)
        cells = (f"{mean_constant(here):.4g}" if here else "—" for here in found)
        rows.append((layer, (str(layer), *cells)))
    return Numbers(head=("layer", *(head.replace(":", " ") for head in heads)), rows=tuple(rows))


def _ladder(m: Measurement) -> Numbers:
    rows: list[NumberRow] = []
    for layer in m.layers:
        for row in rungs(layer):
            rows.append((layer.layer, (str(layer.layer), row["name"], row["number"], row["kind"], row["worth"])))
        for refusal in layer.ladder.refused:
            what = "—" if refusal.name == "all" else refusal.name.replace("_", " ")
            rows.append((layer.layer, (str(layer.layer), what, "does not apply", "—", refusal.reason)))
    return Numbers(head=("layer", "what", "value", "kind", "where, and why"), rows=tuple(rows))


def study_table(records: Sequence[Record]) -> Numbers:
    """Return the records of a study in groups that differ in their windows alone."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in records:
        t = r.task
        head = "explicit head" if not t.model else f"{t.model}, layer {t.layer}, {t.map}"
        what = t.points.replace("_", " ") or t.kind
        place = f"A = {t.A[0][0]:g}{' I' if len(t.A) > 1 else ''}" if t.A else ""
        groups.setdefault((head, what, place, str(t.length), f"{t.radius:g}" if t.radius else "—"), []).append(r)
    rows: list[NumberRow] = []
    for key in sorted(groups, key=lambda key: (key[:3], int(key[3]), key[4])):
        found = groups[key]
        layer = found[0].task.layer if found[0].task.model and found[0].task.text else None
        rows.append((layer, (*key, str(len(found)), *ends(found))))
    return Numbers(
        head=("where", "what", "form", "tokens", "radius", "records", "smallest", "largest (upper end)"),
        rows=tuple(rows),
    )


# The table behind each chart of a measurement.
TABLES: dict[str, Callable[[Measurement], Numbers]] = {
    "constant_against_length": _by_length,
    "constant_against_radius": _by_radius,
    "layers_by_length": _grid_of_lengths,
    "heads_by_layer": _grid_of_heads,
    "bounds_ladder": _ladder,
}


def _cells(m: Measurement) -> Iterable[tuple[int, int, tuple[Record, ...]]]:
    for layer in m.layers:
        for n in m.lengths:
            if found := m.at(layer=layer.layer, length=n):
                yield layer.layer, n, found
