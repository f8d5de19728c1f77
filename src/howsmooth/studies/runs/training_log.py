"""What a monitor reads, in the store of a run: ``howsmooth report RUN`` draws it."""

import os
from types import TracebackType

from howsmooth.studies.json_values import finite
from howsmooth.studies.kinds import monitor
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.runs.store import Store
from howsmooth.training.readings import Look


class RunLog:
    """A sink for monitors: every reading is one record of the run, with its alarm."""

    def __init__(self, folder: str | os.PathLike[str], *, training: str = "training") -> None:
        """Open a run, or begin one.

        Args:
            folder: The folder of the run.
            training: What to call this training, where several write to one run. Steps that are there already stay.

        Raises:
            FileError: If the folder cannot be written to, or holds something else.
        """
        self._store, self._training = Store(folder), training

    def write(self, look: Look) -> None:
        """Keep what was read at one step."""
        alarms = {(a.reading.layer, a.reading.map): str(a) for a in look.alarms}
        self._store.add(
            Record(
                ask=monitor.Ask(training=self._training, step=look.step, layer=r.layer, map=r.map),
                answer=monitor.Answer(
                    lower=finite(r.lower),
                    upper=finite(r.upper),
                    typical=r.typical,
                    typical_low=r.typical_low,
                    typical_high=r.typical_high,
                    radius=finite(r.radius),
                    entropy=r.entropy,
                    sequences=r.sequences,
                    length=r.length,
                    alarm=alarms.get((r.layer, r.map), ""),
                    overhead=look.overhead,
                    skipped=len(look.skipped),
                ),
                machine=this_machine(),
                seconds=r.seconds,
            )
            for r in look.readings
        )

    def close(self) -> None:
        """Close the run's file."""
        self._store.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
