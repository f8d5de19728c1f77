"""What of two runs is to be compared with what, and what to say where that is nothing, or not clear."""

from collections.abc import Callable, Hashable, Iterable, Sequence

from msgspec.structs import replace

from howsmooth.errors import AssumptionError
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.settings import Window

# A part of a layer at a length; at none for sequences that are measured whole, each with its own.
Place = tuple[str, int, int | None]
# So many measurements are named one by one.
NAMED = 3


def shared_maps(
    left: Sequence[Measurement], right: Sequence[Measurement], wanted: str | None, names: tuple[str, str]
) -> list[str]:
    """Return the parts of layers that both runs hold; or the one that is wanted, if both do.

    Raises:
        AssumptionError: If they do not.
    """
    shared = sorted({m.map for m in left} & {m.map for m in right})
    if not shared:
        raise AssumptionError(nothing_shared(names, left, right), field="second")
    if wanted is None:
        return shared
    if wanted not in shared:
        raise AssumptionError(f"the runs do not both hold {wanted!r}; they share {', '.join(shared)}.", field="map")
    return [wanted]


def matched(
    left: list[Measurement], right: list[Measurement], part: str, names: tuple[str, str]
) -> list[tuple[Measurement, Measurement]]:
    """Find what is to be compared with what: those that agree in most, as long as there is no choice.

    Raises:
        AssumptionError: If there is.
    """
    found = []
    agree: tuple[Callable[[Measurement], Hashable], ...] = (
        lambda m: (m.model, cut(m)),
        cut,
        lambda m: m.model,
        lambda _m: None,
    )
    for tell in agree:
        for key in dict.fromkeys(tell(m) for m in left):
            ours, theirs = ([m for m in some if tell(m) == key] for some in (left, right))
            if len(ours) == len(theirs) == 1:
                found.append((ours[0], theirs[0]))
                left, right = (
                    [m for m in some if m is not taken] for some, taken in ((left, ours[0]), (right, theirs[0]))
                )
    if left and right:
        raise AssumptionError(
            f"it is not clear which measurements of {part!r} to compare: {_holds(names[0], left)}; "
            f"{_holds(names[1], right)}. Compare two of them in Python: "
            "hs.compare(hs.read_run(RUN1).measurements[0], hs.read_run(RUN2).measurements[0]).",
            field="second",
        )
    return found


def cut(measurement: Measurement) -> Window:
    """Return what tells the windows of one measurement from those of another: the text, and how it is cut."""
    return replace(measurement.records[0].ask.window, text="", length=1, index=0)


def by_place(measurement: Measurement, per_head: bool) -> dict[Place, dict[int, TextRecord]]:
    """Return the windows of each part of a layer and length by their numbers; single heads only if they are wanted."""
    found: dict[Place, dict[int, TextRecord]] = {}
    for record in (*measurement.records, *(measurement.heads if per_head else ())):
        ask = record.ask
        length = None if ask.window.whole else ask.length
        found.setdefault((ask.map, ask.layer, length), {})[ask.window.index] = record
    return found


def nothing_shared(names: tuple[str, str], left: Sequence[Measurement], right: Sequence[Measurement]) -> str:
    """Refuse two runs that share nothing: say what each holds."""
    held = f"{_holds(names[0], left)}; {_holds(names[1], right)}"
    return f"the runs have nothing in common: {held}. Measure the same part, layers and lengths in both."


def _holds(name: str, measurements: Sequence[Measurement]) -> str:
    told = [f"{m.map} of {m.model} on {m.text} ({places_in_words(by_place(m, False))})" for m in measurements[:NAMED]]
    told += [f"{len(measurements) - NAMED} more"] if len(measurements) > NAMED else []
    return f"{name!r} holds {', '.join(told) or 'no measurement at a text'}"


def places_in_words(places: Iterable[Place]) -> str:
    """Say which layers and lengths some places are."""
    found = list(places)
    layers = sorted({layer for _map, layer, _n in found})
    lengths = sorted({n for _map, _layer, n in found if n is not None})
    where = f"n = {_listed(lengths)}" if lengths else "whole sequences"
    return f"layers {_listed(layers)} at {where}"


def _listed(numbers: Sequence[int]) -> str:
    whole = list(range(numbers[0], numbers[-1] + 1))
    if len(numbers) > 2 and list(numbers) == whole:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))
