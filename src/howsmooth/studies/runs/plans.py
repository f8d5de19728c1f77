"""What a run was asked for, kept with its records: so an unfinished run is known to be one."""

from howsmooth.studies.asks import Ask
from howsmooth.studies.values import Value, fingerprint


class Plan(Value, frozen=True, kw_only=True):
    """Some asks that were planned together.

    Attributes:
        kind: The kind of its asks.
        keys: The keys of all of them, done or not.
        beside: The keys of asks that go with them: single heads beside whole layers.
        figure: The figure of the paper that they are for, if they are.
        command: What to type to ask for them again.
        number: The how manieth plan of the run it is.
    """

    kind: str
    keys: tuple[str, ...]
    beside: tuple[str, ...] = ()
    figure: str = ""
    command: str = ""
    number: int = 0

    @property
    def key(self) -> str:
        """What tells plans apart: the same command makes the same plan."""
        return fingerprint([self.kind, self.figure, self.command, sorted(self.keys), sorted(self.beside)])

    @property
    def count(self) -> int:
        """How many asks there are."""
        return len(self.keys) + len(self.beside)


def plan_of(asks: "tuple[Ask, ...]", **others: object) -> Plan:
    """Return the plan of some asks of one kind."""
    return Plan(kind=asks[0].kind, keys=tuple(ask.key for ask in asks), **others)  # type: ignore[arg-type]
