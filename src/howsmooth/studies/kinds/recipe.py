"""Recipes: which scheme for which matrix at a size or a cost, beside what rules of thumb choose."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import Answer
from howsmooth.studies.json_values import to_json
from howsmooth.studies.kinds import Kind
from howsmooth.studies.with_errors import AtWindows, budget_of, cost_in_words, places_of, windows_of
from howsmooth.wording import number, percent

if TYPE_CHECKING:
    from howsmooth.budgets.recipes import Recipe
    from howsmooth.studies.resources import Resources

# How the files of exporters end.
ENDINGS = {"llm-compressor": "yaml", "gguf": "txt", "transformers": "json", "vllm": "txt", "json": "json"}


class RecipeAsk(AtWindows, frozen=True, kw_only=True, tag="recipe"):
    """Which scheme for which matrix, so that all together cost least: predicted, on fresh draws, and measured.

    As many windows behind those of the budget are held out.
    """

    size: float | None = None  # the share of the size that the matrices have with 16 bits; none if the cost is given
    kl: float | None = None  # the cost; none if the size is given

    @property
    def label(self) -> str:
        """The model and what is asked for."""
        return f"{self.model} recipe, {self.asked}"

    @property
    def asked(self) -> str:
        """What the recipe has to keep to."""
        return f"size {number(self.size)}" if self.size is not None else f"cost {number(self.kl or 0)}"

    @property
    def rank(self) -> tuple[Any, ...]:
        """By size."""
        return (self.size or 0.0, self.kl or 0.0)


class RecipeAnswer(Answer, frozen=True, kw_only=True):
    """A recipe."""

    cost: str  # what costs count
    names: tuple[str, ...]  # what is rounded
    chosen: tuple[str, ...]  # the scheme of each, or ``keep``
    bits: float  # the mean bits of a number
    share: float  # the share of the size with 16 bits
    predicted: float  # the cost by the draws that chose it
    fresh: float  # the cost by other draws
    fresh_low: float  # the lower end of its interval
    fresh_high: float  # the upper end
    measured: float  # the true cost, at windows that are held out
    rules: tuple[str, ...] = ()  # rules of thumb
    by_rules: tuple[float, ...] = ()  # the true cost of the recipe that each of them chooses, of the same size


def run(_batch: Sequence[RecipeAsk], cell: Sequence[RecipeAsk], resources: "Resources") -> list[Answer]:
    """Choose recipes by the draws of a budget; judge them on fresh draws and at held-out windows."""
    from howsmooth.budgets.error_budget import FRESH
    from howsmooth.budgets.recipes import RULES

    first, seed = cell[0], cell[0].solver.seed
    places = places_of(first, first.schemes, range(first.windows), resources)
    budget, fresh = (budget_of(first, places, draw) for draw in (seed, seed + FRESH))
    judged_by: dict[str, Any] = {
        "fresh": fresh.products,
        "held_out": windows_of(first, range(first.windows, 2 * first.windows), resources),
    }
    answers: list[Answer] = []
    for ask in cell:
        found: Any = budget.recipe(size=ask.size, kl=ask.kl, **judged_by)
        others: list[Any] = [budget.recipe(size=found.size, rule=rule, **judged_by) for rule in RULES]
        answer = RecipeAnswer(
            cost=budget.cost,
            names=tuple(found.schemes),
            chosen=tuple(found.schemes.values()),
            bits=found.bits,
            share=found.size,
            predicted=found.predicted.kl,
            fresh=found.fresh.kl,
            fresh_low=found.fresh.low,
            fresh_high=found.fresh.high,
            measured=found.measured,
            rules=tuple(RULES),
            by_rules=tuple(other.measured for other in others),
        )
        answers.append(answer)
    return answers


@dataclass(frozen=True, kw_only=True)
class RecipeSummary:
    """A recipe that was asked for."""

    ask: RecipeAsk  # what was asked for
    answer: RecipeAnswer  # the recipe

    @property
    def sentence(self) -> str:
        """What the recipe takes and costs, and what rules of thumb of the same size cost."""
        found = self.answer
        kept = sum(scheme == "keep" for scheme in found.chosen)
        parts = [f"{found.chosen.count(scheme)} {scheme}" for scheme in self.ask.schemes if scheme in found.chosen]
        parts += [f"{kept} kept"] if kept else []
        pairs = zip(found.rules, found.by_rules, strict=True)
        others = ", ".join(f"{rule} {number(cost)}" for rule, cost in pairs)
        others = others and f"; recipes of this size by rules of thumb: {others}"
        return (
            f"{self.ask.model}, {self.ask.asked}: {', '.join(parts)} cost {cost_in_words(found.measured, found.cost)}, "
            f"measured on held-out text (on fresh draws {number(found.fresh)}, {number(found.fresh_low)} to "
            f"{number(found.fresh_high)}; by the draws that chose {number(found.predicted)}) at {number(found.bits)} "
            f"bits a number, {percent(found.share)} of 16{others}."
        )

    def recipe(self) -> "Recipe":
        """Return the recipe as exporters take it."""
        from howsmooth.budgets.effects import Effect
        from howsmooth.budgets.recipes import Recipe

        found = self.answer
        alone: dict[str, Any] = {"name": "a recipe", "scheme": "a recipe"}
        return Recipe(
            schemes=dict(zip(found.names, found.chosen, strict=True)),
            bits=found.bits,
            size=found.share,
            predicted=Effect(kl=found.predicted, low=found.predicted, high=found.predicted, **alone),
            fresh=Effect(kl=found.fresh, low=found.fresh_low, high=found.fresh_high, **alone),
            measured=found.measured,
        )

    def __rich__(self) -> str:
        """Render the sentence."""
        return self.sentence

    def to_json(self) -> str:
        """Return one JSON object."""
        return to_json({"size": self.ask.size, "kl": self.ask.kl, "recipe": self.answer, "sentence": self.sentence})


def summarise_recipes(records: Iterable[Any]) -> list[RecipeSummary]:
    """Return every recipe, the smallest first."""
    return [RecipeSummary(ask=r.ask, answer=r.answer) for r in sorted(records, key=lambda r: r.answer.share)]


def recipe_files(records: Iterable[Any]) -> dict[str, str]:
    """Return every recipe as every tool reads it that can express it, by the name of a file."""
    from howsmooth.budgets.exports import EXPORTS

    files: dict[str, str] = {}
    for each in summarise_recipes(r for r in records if r.ask.kind == "recipe"):
        for tool, write in EXPORTS.items():
            name = f"recipe-{each.ask.asked.replace(' ', '-')}{'' if tool == 'json' else f'.{tool}'}.{ENDINGS[tool]}"
            with contextlib.suppress(AssumptionError):
                files[name] = write(each.recipe())
    return files


KINDS = (Kind(ask=RecipeAsk, answer=RecipeAnswer, run=run, summarise=summarise_recipes),)
