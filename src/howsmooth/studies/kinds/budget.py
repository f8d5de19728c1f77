"""What errors inside a model cost at windows of a text, and recipes: what is asked, how it is found, and its sum."""

import contextlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace
from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.errors import AssumptionError
from howsmooth.models.loading.names import check_model
from howsmooth.studies.asks import Answer, AtText
from howsmooth.studies.json_values import described, to_json
from howsmooth.studies.kinds import Kind, RunCommand
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.result_table import fitted
from howsmooth.studies.settings import ALICE, CommandSettings, Compute, ModelReading, Solver, Windows
from howsmooth.wording import number, percent

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.budgets.effects import Effect
    from howsmooth.budgets.error_budget import Budget
    from howsmooth.budgets.places import Places
    from howsmooth.budgets.recipes import Recipe
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources

PASSES, LENGTH, WINDOWS = 32, 128, 4
# A pass costs about so much of a measurement of one layer.
PASS_COST = 2.0
# How many errors a table lists.
SHOWN = 12
# How the files of exporters end.
ENDINGS = {"llm-compressor": "yaml", "gguf": "txt", "transformers": "json", "vllm": "txt", "json": "json"}


class Budgeting(CommandSettings, frozen=True, kw_only=True):
    """What is to be rounded, as the command line says it: an option for each field."""

    NAME = "budget"
    scheme: Annotated[
        tuple[str, ...],
        described(
            "How numbers are rounded: int2…int8 (:tensor, :channel, :g64, :asym), nf4, fp8, e5m2, bf16, fp16, "
            "prune:0.5, prune:2:4, gguf:Q4_0, against:MODEL, mine.py:function; with kv:, kv-channel:, "
            "residual:, kernel: or embeddings: in front, these in place of weights. int4:g64 if nothing is said.",
            metavar="int4:g64,…",
        ),
    ] = ()
    against: Annotated[
        tuple[str, ...],
        described("Another checkpoint of the same shape, whose weights are the errors.", metavar="MODEL,…"),
    ] = ()
    text: Annotated[str, described("A text in UTF-8; Alice in Wonderland by default.", metavar="FILE")] = ALICE
    length: Annotated[int, described("How many tokens a window has.")] = LENGTH
    sequences: Annotated[int, described("How many windows.")] = WINDOWS
    passes: Annotated[int, described("Backward passes at each window.")] = PASSES
    size: Annotated[
        tuple[float, ...], described("Choose the cheapest recipe of this share of 16 bits.", metavar="0.3,…")
    ] = ()
    kl: Annotated[tuple[float, ...], described("Choose the smallest recipe of this cost.", metavar="0.02,…")] = ()
    verify: Annotated[
        int, described("Run the model with each of so many worst errors, and of as many others, to compare.")
    ] = 0
    seed: Annotated[int, described("The seed of everything random.")] = 0
    where: Compute = Compute()
    reading: ModelReading = ModelReading()

    def check(self) -> None:
        """Refuse names and numbers that lead nowhere, before any model is loaded."""
        if self.passes < 2:
            raise AssumptionError(f"passes must be at least 2, got {self.passes}.", field="passes")
        if self.verify < 0:
            raise AssumptionError(f"verify must be at least 0, got {self.verify}.", field="verify")
        for name, values in (("size", self.size), ("kl", self.kl)):
            if any(value <= 0 for value in values):
                raise AssumptionError(f"{name} must be positive, got {min(values)}.", field=name)
        Solver(seed=self.seed)
        super().check()
        from howsmooth.budgets.schemes import scheme

        for label in self.schemes:
            scheme(label)
            if "against:" in label:
                check_model(label.partition("against:")[2])

    @property
    def schemes(self) -> tuple[str, ...]:
        """Every scheme once, those of other checkpoints last."""
        others = tuple(f"against:{model}" for model in self.against)
        return tuple(dict.fromkeys((*self.scheme, *others))) or ("int4:g64",)

    @property
    def windows(self) -> Windows:
        """Which windows of the text."""
        return Windows(text=self.text, lengths=(self.length,), sequences=self.sequences)


class BudgetAsk(AtText, frozen=True, kw_only=True, tag="budget"):
    """What rounding costs at a window of a text: inner products of sampled gradients with every error of a scheme."""

    layer: int = 0
    map: str = "model"
    scheme: str  # the scheme that makes the errors
    passes: int = PASSES  # how many backward passes
    solver: Solver = Solver()  # the seed

    @property
    def label(self) -> str:
        """The model, the scheme and the window."""
        return f"{self.model} {self.scheme}, window {self.window.index}"

    @property
    def cost(self) -> float:
        """Every pass takes about as long as a forward pass of the model."""
        return super().cost * self.passes * PASS_COST

    @property
    def batch(self) -> Hashable:
        """All schemes at a window have the same passes."""
        return self.model, self.window, self.passes, self.solver.seed

    @property
    def rank(self) -> tuple[Any, ...]:
        """By scheme."""
        return (self.scheme,)


class BudgetAnswer(Answer, frozen=True, kw_only=True):
    """Inner products of sampled gradients with errors; their squares make costs."""

    cost: str  # what costs count, such as ``nats a token``
    names: tuple[str, ...]  # what the errors are in
    numbers: tuple[int, ...]  # how many numbers each rounds
    bits: tuple[float, ...]  # how many bits a number takes, rounded
    products: tuple[tuple[float, ...], ...]  # inner products, for each pass and error
    positions: int  # how many positions the output has


class AtWindows(AtText, frozen=True, kw_only=True):
    """A question about a whole budget: schemes, and windows from the first on."""

    layer: int = 0
    map: str = "model"
    schemes: tuple[str, ...]  # the schemes
    windows: int = WINDOWS  # at how many windows, from the first on
    passes: int = PASSES  # how many backward passes at each
    solver: Solver = Solver()  # the seed

    @property
    def cost(self) -> float:
        """Passes at every window."""
        return super().cost * self.passes * PASS_COST * self.windows

    @property
    def batch(self) -> Hashable:
        """Questions about the same schemes share their draws."""
        return self.kind, self.model, self.schemes, self.window, self.windows, self.passes, self.solver.seed


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


def run(_batch: Sequence[BudgetAsk], cell: Sequence[BudgetAsk], resources: "Resources") -> list[Answer]:
    """Go backward from one window for all schemes at once."""
    from howsmooth.budgets.error_budget import COSTS
    from howsmooth.budgets.passes import inner_products

    first, window = cell[0], cell[0].window.index
    places = _places(first, tuple(ask.scheme for ask in cell), range(window, window + 1), resources)
    found = inner_products(places, passes=first.passes, seed=first.solver.seed, first=window)
    columns = grouped(range(len(found.errors)), lambda i: found.errors[i].scheme)
    answers: list[Answer] = []
    for here in (columns.get(ask.scheme, []) for ask in cell):
        errors = {name: tuple(getattr(found.errors[i], name) for i in here) for name in ("name", "numbers", "bits")}
        answer = BudgetAnswer(
            cost=COSTS[places.subject.kind],
            names=errors["name"],
            numbers=errors["numbers"],
            bits=errors["bits"],
            products=tuple(tuple(row) for row in found.values[0][:, here].tolist()),
            positions=found.positions,
        )
        answers.append(answer)
    return answers


def run_verified(_batch: Sequence[VerifyAsk], cell: Sequence[VerifyAsk], resources: "Resources") -> list[Answer]:
    """Run the model with single errors in it."""
    return [_verified(ask, resources) for ask in cell]


def _verified(ask: VerifyAsk, resources: "Resources") -> VerifyAnswer:
    budget = _drawn(ask, _places(ask, ask.schemes, range(ask.windows), resources), ask.solver.seed)
    found = budget.verify(ask.count)
    return VerifyAnswer(
        cost=budget.cost,
        names=tuple(each.predicted.name for each in found),
        predicted=tuple(each.predicted.kl for each in found),
        low=tuple(each.predicted.low for each in found),
        high=tuple(each.predicted.high for each in found),
        measured=tuple(each.measured for each in found),
        at_half=tuple(each.at_half for each in found),
    )


def run_recipe(_batch: Sequence[RecipeAsk], cell: Sequence[RecipeAsk], resources: "Resources") -> list[Answer]:
    """Choose recipes by the draws of a budget; judge them on fresh draws and at held-out windows."""
    from howsmooth.budgets.error_budget import FRESH

    first, seed = cell[0], cell[0].solver.seed
    places = _places(first, first.schemes, range(first.windows), resources)
    budget, fresh = (_drawn(first, places, draw) for draw in (seed, seed + FRESH))
    held_out = _tokens(first, range(first.windows, 2 * first.windows), resources)
    answers: list[Answer] = []
    for ask in cell:
        found: Any = budget.recipe(size=ask.size, kl=ask.kl, fresh=fresh.products, held_out=held_out)
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
        )
        answers.append(answer)
    return answers


def _drawn(ask: AtWindows, places: "Places", seed: int) -> "Budget":
    from howsmooth.budgets.error_budget import COSTS, Budget
    from howsmooth.budgets.passes import inner_products

    products = inner_products(places, passes=ask.passes, seed=seed)
    return Budget(model=ask.model, products=products, cost=COSTS[places.subject.kind], places=places, seed=seed)


def _tokens(ask: AtText, windows: range, resources: "Resources") -> "Tensor":
    transformer = resources.transformer(ask.model, ask.where, ask.reading)
    inputs = resources.inputs(transformer, resources.source(ask.window), special_tokens=False)
    return inputs.at(list(windows), length=ask.window.length, stride=ask.window.stride)


def _places(ask: AtText, schemes: Sequence[str], windows: range, resources: "Resources") -> "Places":
    from howsmooth.budgets.places import Places
    from howsmooth.budgets.schemes import scheme
    from howsmooth.budgets.subject import Subject

    transformer = resources.transformer(ask.model, ask.where, ask.reading)
    subject = Subject.of(transformer, _tokens(ask, windows, resources))
    return Places(subject=subject, schemes=[scheme(label) for label in schemes])


def planned_budget(budgeting: Budgeting, resources: "Resources") -> "PlannedAsks":
    """Check everything that is asked for against the model and the text; one ask a window and scheme, and recipes."""
    from howsmooth.budgets.subject import Subject
    from howsmooth.studies.plans.at_text import model_and_text

    # backward passes need all weights at once: only who asks for blocks one by one is told so
    where = replace(budgeting.where, streamed=bool(budgeting.where.streamed))
    base = model_and_text(replace(budgeting, where=where), budgeting.windows, resources)
    schemes, solver = budgeting.schemes, Solver(seed=budgeting.seed)
    shared: dict[str, Any] = {"passes": budgeting.passes, "solver": solver}
    asks: list[Any] = [ask for label in schemes for ask in base.each(BudgetAsk, [0], "model", scheme=label, **shared)]
    first = asks[0]
    Subject.of(base.transformer, _tokens(first, range(1), resources))  # refuses models without an output
    wanted: list[dict[str, Any]] = [{"size": size} for size in budgeting.size] + [{"kl": kl} for kl in budgeting.kl]
    if wanted:
        _tokens(first, range(2 * budgeting.sequences), resources)  # as many windows are held out
    shared |= {name: getattr(first, name) for name in ("model", "window", "where", "reading")}
    shared |= {"windows": budgeting.sequences}
    asks += [RecipeAsk(schemes=schemes, **shared, **target) for target in wanted]
    if budgeting.verify:
        asks += [VerifyAsk(schemes=(label,), count=budgeting.verify, **shared) for label in schemes]
    return base.planned(asks, budgeting.command, remarks=(*base.remarks, *base.transformer.notes))


def budgets(records: "Iterable[Record[BudgetAsk, BudgetAnswer]]") -> "list[Budget]":
    """Return the budgets of records, one for each model, text, length and seed: all schemes over all windows."""
    import torch

    from howsmooth.budgets.error_budget import Budget
    from howsmooth.budgets.passes import Products
    from howsmooth.budgets.places import Error

    def question(r: "Record[BudgetAsk, BudgetAnswer]") -> tuple[Any, ...]:
        return r.ask.model, r.ask.window.digest, r.ask.window.length, r.ask.passes, r.ask.solver.seed

    found = []
    for (model, *_others, seed), some in grouped(records, question).items():
        by_scheme = grouped(some, lambda r: r.ask.scheme)
        schemes = {name: {r.ask.window.index: r.answer for r in each} for name, each in by_scheme.items()}
        # a run that was stopped may have windows of some schemes alone
        windows = sorted(set.intersection(*(set(answers) for answers in schemes.values())))
        if not windows:
            continue
        errors, tables = [], []
        # the coarsest first, whatever the order of records
        for label, answers in sorted(schemes.items(), key=lambda item: (min(item[1][windows[0]].bits), item[0])):
            first = answers[windows[0]]
            errors += [
                Error(name=name, scheme=label, numbers=numbers, bits=bits)
                for name, numbers, bits in zip(first.names, first.numbers, first.bits, strict=True)
            ]
            tables.append(torch.tensor([answers[w].products for w in windows], dtype=torch.float64))
        products = Products(errors=tuple(errors), values=torch.cat(tables, -1), positions=first.positions)
        found.append(Budget(model=model, products=products, cost=first.cost, seed=seed))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetSummary:
    """What one scheme costs: everywhere, and matrix by matrix."""

    budget: "Budget"  # all schemes
    scheme: str

    @property
    def effects(self) -> "list[Effect]":
        """What each error costs alone, the largest first."""
        return sorted((each for each in self.budget.effects if each.scheme == self.scheme), key=lambda each: -each.kl)

    @property
    def sentence(self) -> str:
        """What everything costs, where half of it sits, and what it leaves to keep these."""
        from howsmooth.budgets.effects import half_of_cost

        whole, worst = self.budget.together(scheme=self.scheme), half_of_cost(self.effects)
        every = self.budget.names(self.scheme)
        said = (
            f"{self.budget.model}: {self.scheme} everywhere costs {number(whole.kl)} {self.budget.cost} "
            f"({number(whole.low)} to {number(whole.high)}); half of it sits in {len(worst)} of {len(every)}"
        )
        kept = {each.name for each in worst}
        errors = {error.name: error for error in self.budget.products.errors if error.scheme == self.scheme}
        if len(kept) == len(every):
            return f"{said}."
        rest = self.budget.together([name for name in every if name not in kept], self.scheme)
        numbers = sum(error.numbers for error in errors.values())
        more = sum((16 - errors[name].bits) * errors[name].numbers for name in kept) / (16 * numbers)
        leaves = f"keeping these in 16 bits takes {percent(more)} of the full size more and leaves {number(rest.kl)}"
        if rest.kl > whole.kl:  # errors have signs: what is kept may have made up for others
            leaves += f" ({number(rest.low)} to {number(rest.high)}): errors offset each other here"
        return f"{said}; {leaves}."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render the answer, and the errors that cost most."""
        yield self.sentence
        total = sum(each.kl for each in self.effects) or 1.0
        rows = [
            {
                "costs most": each.name,
                "alone": number(each.kl),
                "from": number(each.low),
                "to": number(each.high),
                "share": percent(each.kl / total),
            }
            for each in self.effects[:SHOWN]
        ]
        yield fitted(rows, list(rows[0]), ["from", "to"], console, options)

    def to_json(self) -> str:
        """Return one JSON object."""
        whole, keys = self.budget.together(scheme=self.scheme), ("name", "kl", "low", "high", "window_error")
        effects = [{key: getattr(each, key) for key in keys} for each in self.effects]
        together = {key: getattr(whole, key) for key in keys[1:4]}
        about = {"model": self.budget.model, "scheme": self.scheme, "cost": self.budget.cost}
        return to_json(about | {"together": together, "effects": effects, "sentence": self.sentence})


@dataclass(frozen=True, kw_only=True)
class RecipeSummary:
    """A recipe that was asked for."""

    ask: RecipeAsk  # what was asked for
    answer: RecipeAnswer  # the recipe

    @property
    def sentence(self) -> str:
        """What the recipe takes and costs."""
        found = self.answer
        kept = sum(scheme == "keep" for scheme in found.chosen)
        parts = [f"{found.chosen.count(scheme)} {scheme}" for scheme in self.ask.schemes if scheme in found.chosen]
        parts += [f"{kept} kept"] if kept else []
        return (
            f"{self.ask.model}, {self.ask.asked}: {', '.join(parts)}; {number(found.bits)} bits a number, "
            f"{percent(found.share)} of 16; predicted {number(found.predicted)} {found.cost}, on fresh draws "
            f"{number(found.fresh)} ({number(found.fresh_low)} to {number(found.fresh_high)}), measured on held-out "
            f"text {number(found.measured)}."
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
        from howsmooth.budgets.error_budget import agrees_with_half

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
        return f"{said}; second order ends here: {', '.join(self.beyond)}." if self.beyond else f"{said}."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render the sentence, and a row for each error."""
        yield self.sentence
        a = self.answer
        numbers = zip(a.names, a.predicted, a.low, a.high, a.measured, a.at_half, strict=True)
        columns = ("run truly", "predicted", "from", "to", "measured", "from half of it")
        rows = [dict(zip(columns, (name, *map(number, values)), strict=True)) for name, *values in numbers]
        yield fitted(rows, list(columns), ["from", "to"], console, options)

    def to_json(self) -> str:
        """Return one JSON object."""
        about = {"verified": self.ask.schemes[0], "rank_correlation": self.rank_correlation}
        return to_json(about | {"errors": self.answer, "second_order_ends": self.beyond, "sentence": self.sentence})


def summarise_verified(records: Iterable[Any]) -> list[VerifySummary]:
    """Return what was run truly, scheme by scheme."""
    return [VerifySummary(ask=r.ask, answer=r.answer) for r in records]


def summarise_budgets(records: Iterable[Any]) -> list[Any]:
    """Sum up records: one result for each budget and scheme, and one for each recipe."""
    records = list(records)
    found = budgets(r for r in records if r.ask.kind == "budget")
    schemes = [BudgetSummary(budget=each, scheme=label) for each in found for label in each.schemes]
    verified = summarise_verified(r for r in records if r.ask.kind == "verified")
    return [*schemes, *verified, *summarise_recipes(r for r in records if r.ask.kind == "recipe")]


def summarise_recipes(records: Iterable[Any]) -> list[RecipeSummary]:
    """Return every recipe, the smallest first."""
    return [RecipeSummary(ask=r.ask, answer=r.answer) for r in sorted(records, key=lambda r: r.answer.share)]


def recipe_files(records: Iterable[Any]) -> dict[str, str]:
    """Return every recipe as every tool reads it that can express it, by the name of a file."""
    from howsmooth.budgets.recipes import EXPORTS

    files: dict[str, str] = {}
    for each in summarise_recipes(r for r in records if r.ask.kind == "recipe"):
        for tool, write in EXPORTS.items():
            name = f"recipe-{each.ask.asked.replace(' ', '-')}{'' if tool == 'json' else f'.{tool}'}.{ENDINGS[tool]}"
            with contextlib.suppress(AssumptionError):
                files[name] = write(each.recipe())
    return files


KINDS = (
    Kind(
        ask=BudgetAsk,
        answer=BudgetAnswer,
        run=run,
        summarise=summarise_budgets,
        command=RunCommand(
            settings=Budgeting,
            plan=planned_budget,
            help="""Tell where a model tolerates an error: what rounding each matrix, or head of the cache, costs.

            The cost is the KL divergence of the output in nats a token, to second order, from a few backward passes.
            Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

            Example: howsmooth budget smollm2 --scheme int4:g64,int8 --size 0.3 --passes 8 --length 64
            """,
            results="budgets",
            done="rounded",
            files=recipe_files,
        ),
    ),
    Kind(ask=RecipeAsk, answer=RecipeAnswer, run=run_recipe, summarise=summarise_recipes),
    Kind(ask=VerifyAsk, answer=VerifyAnswer, run=run_verified, summarise=summarise_verified),
)
