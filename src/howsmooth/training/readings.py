"""What a monitor finds at one step: readings of layers, and alarms."""

from dataclasses import dataclass

from howsmooth.wording import at_least, at_most, count, number


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """One layer at one step, at some sequences of the batch.

    Attributes:
        step: The training step.
        layer: Which attention layer.
        map: Which part of it.
        lower: The largest local constant among the sequences: attained.
        upper: What none of them exceeds, at the confidence that was asked for.
        typical: What random noise is multiplied by, root mean square over the sequences; none if it was not measured.
        typical_low: The lower end of its interval at 95 %, over random directions at these sequences.
        typical_high: The upper end.
        radius: The root mean square norm of the tokens that enter.
        entropy: How widely attention looks, in nats; none where its weights are not known.
        sequences: How many sequences were measured.
        length: How many tokens the least smooth of them has.
        tokens: Its tokens that hold most of the worst perturbation, as numbers, the first the most sensitive.
        seconds: What it took.
    """

    step: int
    layer: int
    map: str
    lower: float
    upper: float
    typical: float | None
    typical_low: float | None
    typical_high: float | None
    radius: float
    entropy: float | None
    sequences: int
    length: int
    tokens: tuple[int, ...]
    seconds: float

    @property
    def numbers(self) -> dict[str, float]:
        """Everything that a curve can be drawn of, by name."""
        found = {
            "constant": self.lower,
            "constant_upper": self.upper,
            "typical_gain": self.typical,
            "typical_gain_low": self.typical_low,
            "typical_gain_high": self.typical_high,
            "radius": self.radius,
            "entropy": self.entropy,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A constant that doubled, left its limit, or is no number any more.

    Attributes:
        reading: Where; its constant is infinite where there is none.
        since: The earlier reading that it is compared with; none if there is none.
        limit: The limit that it left; none if it left none.
    """

    reading: LayerReading
    since: LayerReading | None = None
    limit: float | None = None

    def __str__(self) -> str:
        """Say what happened, with layer, tokens and step."""
        r = self.reading
        place = f"layer {r.layer} ({r.map}) at step {r.step}"
        if r.lower == float("inf"):
            return f"{place}: weights or activations are not finite any more."
        tokens = ", ".join(map(str, r.tokens))
        where = f"; {count(r.length, 'token')}, most sensitive: {tokens}" if tokens else f"; {count(r.length, 'token')}"
        if self.since is not None:
            times, before = at_least(r.lower / self.since.upper, 2), at_most(self.since.upper, 3)
            return (
                f"{place}: the constant is {at_least(r.lower, 3)}, at least {times} times the {before} "
                f"of step {self.since.step}{where}."
            )
        limit = number(self.limit or 0.0)
        return f"{place}: the constant is {at_least(r.lower, 3)}, above the limit of {limit}{where}."


@dataclass(frozen=True, kw_only=True)
class Look:
    """Everything that came of one step.

    Attributes:
        step: The training step.
        readings: What was measured.
        alarms: What went wrong.
        skipped: Layers and maps that the budget left out, as in ``3:attention``.
        overhead: The share of the time since training began that the monitor took.
    """

    step: int
    readings: tuple[LayerReading, ...]
    alarms: tuple[Alarm, ...]
    skipped: tuple[str, ...]
    overhead: float
