"""Measurements whose records are all there: found again without their model, as long as nobody wrote to its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.errors import FileError
from howsmooth.models.loading.names import files_stamp
from howsmooth.studies.json_values import JsonValue, fingerprint, from_json
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.store import Store, open_run

if TYPE_CHECKING:
    from howsmooth.studies.plans.measurement_plan import Measuring, PlannedMeasurement
    from howsmooth.studies.runs.composition import Composition
    from howsmooth.studies.runs.measurement import Measurement


class Kept(JsonValue, frozen=True, kw_only=True):
    """What a run remembers of a command when everything that it asks for is there."""

    files: str  # the stamp of the files of the model
    plans: tuple[str, ...]  # the keys of its plans
    remarks: tuple[str, ...]  # what the user is told before


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A measurement with nothing left to do."""

    measurement: "Measurement"
    compositions: "list[Composition]"
    remarks: tuple[str, ...]  # what the user is told before
    records: int  # how many records it has
    others: int  # how many more the run holds


def keep_finished(store: Store, measuring: "Measuring", made: "PlannedMeasurement") -> None:
    """Remember that everything is there, where the files of the model are known."""
    stamp = _stamp(measuring)
    if stamp is not None:
        kept = Kept(files=stamp, plans=tuple(plan.key for plan in made.plans), remarks=made.subject.remarks)
        store.keep(_name(measuring), kept.to_json())


def finished(folder: Path, measuring: "Measuring") -> Finished | None:
    """Return what a command found before; none where anything is missing, or somebody wrote to files of the model."""
    stamp = _stamp(measuring)
    if stamp is None or not (folder / FILE).is_file():
        return None
    try:
        return _found(folder, measuring, stamp)
    except FileError:  # of a damaged run the command measures anew what is missing, or refuses it in its own words
        return None


def _found(folder: Path, measuring: "Measuring", stamp: str) -> Finished | None:
    with open_run(folder) as store:
        fact = store.fact(_name(measuring))
        kept = None if fact is None else from_json(fact, Kept)
        if kept is None or kept.files != stamp:
            return None
        plans = [plan for plan in store.plans() if plan.key in kept.plans]
        keys = {key for plan in plans for key in (*plan.keys, *plan.beside)}
        every = store.keys()
        if len(plans) != len(kept.plans) or not keys <= every:
            return None

        from howsmooth.studies.runs.composition import compositions
        from howsmooth.studies.runs.run import measurement
        from howsmooth.studies.runs.summary import NO_BOUNDS

        plan, *blocks = plans
        found = measurement(store, [plan], store.find((*plan.keys, *plan.beside)))
        if any(layer.ladder is NO_BOUNDS for layer in found.layers):
            return None
        return Finished(
            measurement=found,
            compositions=compositions(store.find(key for other in blocks for key in other.keys).values()),
            remarks=kept.remarks,
            records=len(keys),
            others=len(every - keys),
        )


def _stamp(measuring: "Measuring") -> str | None:
    """Return what tells that nobody has written to the files of a model, or of a tokenizer apart from it."""
    names = filter(None, (measuring.model, measuring.reading.tokenizer))
    stamps = [files_stamp(name) for name in names]
    return None if None in stamps else fingerprint(stamps)


def _name(measuring: "Measuring") -> str:
    return f"finished: {fingerprint(measuring.question)}"
