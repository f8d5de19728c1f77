"""True costs of single errors beside their estimates, and beside the worst error of the same size."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.studies.asks import Answer, one_by_one
from howsmooth.studies.json_values import to_json
from howsmooth.studies.kinds import Kind
from howsmooth.studies.runs.result_table import fitted
from howsmooth.studies.with_errors import AtWindows, budget_of, places_of
from howsmooth.wording import at_least, number

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources


class VerifyAsk(AtWindows, frozen=True, kw_only=True, tag="verified"):
    """What single errors cost in truth, beside their estimates: the worst ones and as many others."""

    count: int  # how many of each

    @property
    def label(self) -> str:
        """The model and the number of errors."""
        return f"{self.model} {self.schemes[0]} verified"

    @property
    def rank(self) -> tuple[Any, ...]:
        """By scheme."""
        return (self.schemes[0],)


class VerifyAnswer(Answer, frozen=True, kw_only=True):
    """Estimates and true costs."""

    cost: str  # what costs count
    names: tuple[str, ...]  # what is rounded, the worst first, then the others
    predicted: tuple[float, ...]  # the estimate of each
    low: tuple[float, ...]  # the lower end of its interval
    high: tuple[float, ...]  # the upper end
    measured: tuple[float, ...]  # the true cost
    at_half: tuple[float, ...]  # four times the true cost of half of the error
    # what an error of the same size was found to cost to second order, at the first window; none for what is no matrix
    worst: tuple[float | None, ...] = ()


def _verified(ask: VerifyAsk, resources: "Resources") -> VerifyAnswer:
    budget = budget_of(ask, places_of(ask, ask.schemes, range(ask.windows), resources), ask.solver.seed)
    found = budget.verify(ask.count, worst=True)
    return VerifyAnswer(
        cost=budget.cost,
        names=tuple(each.predicted.name for each in found),
        predicted=tuple(each.predicted.kl for each in found),
        low=tuple(each.predicted.low for each in found),
        high=tuple(each.predicted.high for each in found),
        measured=tuple(each.measured for each in found),
        at_half=tuple(each.at_half for each in found),
        worst=tuple(None if each.worst is None else each.worst.low for each in found),
    )


@dataclass(frozen=True, kw_only=True)
class VerifySummary:
    """Estimates beside true costs."""

    ask: VerifyAsk
    answer: VerifyAnswer

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's rank correlation of estimates and true costs; none where all of either are the same."""
        from scipy.stats import spearmanr

        columns = self.answer.predicted, self.answer.measured
        return None if any(len(set(x)) < 2 for x in columns) else float(spearmanr(*columns).statistic)

    @property
    def beyond(self) -> list[str]:
        """The errors that second order does not describe: their whole and their half disagree by more than 20 %."""
        from howsmooth.budgets.outcomes import agrees_with_half

        found = zip(self.answer.names, self.answer.measured, self.answer.at_half, strict=True)
        return [name for name, whole, half in found if not agrees_with_half(whole, half)]

    @property
    def sentence(self) -> str:
        """How well the estimates rank, how many are inside of their intervals, and where second order ends."""
        found = self.answer
        inside = sum(low <= x <= high for low, x, high in zip(found.low, found.measured, found.high, strict=True))
        rank = "" if self.rank_correlation is None else f"rank correlation {self.rank_correlation:.3f}; "
        said = (
            f"{self.ask.model}, {self.ask.schemes[0]}: {len(found.names)} errors run truly, {rank}{inside} inside of "
            "their intervals"
        )
        if found.worst and found.worst[0] is not None:
            said += (
                f"; the error of {found.names[0]} costs {number(found.measured[0])}, the worst of its size would cost "
                f"at least {at_least(found.worst[0], 3)} to second order"
            )
        return f"{said}; second order ends here: {', '.join(self.beyond)}." if self.beyond else f"{said}."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render the sentence, and a row for each error."""
        yield self.sentence
        a = self.answer
        worst = ["" if x is None else number(x) for x in a.worst] or [""] * len(a.names)
        numbers = zip(a.names, a.predicted, a.low, a.high, a.measured, a.at_half, strict=True)
        columns = ("run truly", "predicted", "from", "to", "measured", "by half")
        rows = [dict(zip(columns, (name, *map(number, values)), strict=True)) for name, *values in numbers]
        rows = [row | {"worst": most} for row, most in zip(rows, worst, strict=True)]
        yield fitted(rows, list(rows[0]), ["from", "to"], console, options)

    def to_json(self) -> str:
        """Return one JSON object."""
        about = {"verified": self.ask.schemes[0], "rank_correlation": self.rank_correlation}
        return to_json(about | {"errors": self.answer, "second_order_ends": self.beyond, "sentence": self.sentence})


def summarise_verified(records: Iterable[Any]) -> list[VerifySummary]:
    """Return what was run truly, scheme by scheme."""
    return [VerifySummary(ask=r.ask, answer=r.answer) for r in records]


KINDS = (Kind(ask=VerifyAsk, answer=VerifyAnswer, run=one_by_one(_verified), summarise=summarise_verified),)
