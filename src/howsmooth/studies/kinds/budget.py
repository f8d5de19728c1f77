"""What errors inside a model cost at windows of a text: what is asked, how it is found, and its sum."""

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
from howsmooth.studies.kinds.recipe import RecipeAsk, recipe_files, summarise_recipes
from howsmooth.studies.kinds.verified import VerifyAsk, summarise_verified
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.result_table import fitted
from howsmooth.studies.settings import ALICE, LENGTH, CommandSettings, Compute, ModelReading, Solver, Windows
from howsmooth.studies.with_errors import COSINE, PASS_COST, PASSES, WINDOWS, cost_in_words, places_of, windows_of
from howsmooth.wording import number, percent, visible

if TYPE_CHECKING:
    from howsmooth.budgets.effects import Effect
    from howsmooth.budgets.error_budget import Budget
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources

# How many errors a table lists, and how many tokens; how many tokens before one show where it is.
SHOWN, TOKENS, CONTEXT = 12, 5, 6
# What errors are in, by where they enter.
HEADS = "keys and values of heads"
NOUNS = {"embeddings": "tables", "kv": HEADS, "kv-channel": HEADS, "residual": "blocks", "kernel": "modules"}


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
    length: Annotated[int, described("How many tokens a window has.", option="lengths")] = LENGTH
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
        from howsmooth.budgets.recipes import no_size
        from howsmooth.budgets.schemes import COMPUTED, scheme

        places = [scheme(label).place for label in self.schemes]
        if (self.size or self.kl) and {*places} <= {*COMPUTED}:
            raise no_size(self.schemes)
        for label in self.schemes:
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
    """What rounding costs at windows of a text: every error of a scheme alone, and all of them together."""

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
    def alone(self) -> bool:
        """Errors are put into the weights of the model while it runs, which no other thread may read then."""
        return True

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
    squares: tuple[float, ...]  # |δ|² of each error
    # the true cost of all errors together at each position, and how far the best word or class is ahead of all others
    # there, without and with them; embeddings have no such margin
    truth: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    tokens: tuple[str, ...]  # the tokens of the window


def run(_batch: Sequence[BudgetAsk], cell: Sequence[BudgetAsk], resources: "Resources") -> list[Answer]:
    """Go backward from one window for all schemes at once; then run the model with all errors of each in it."""
    from howsmooth.budgets.outcomes import outcome
    from howsmooth.budgets.passes import inner_products

    first, window = cell[0], cell[0].window.index
    places = places_of(first, tuple(ask.scheme for ask in cell), range(window, window + 1), resources)
    found = inner_products(places, passes=first.passes, seed=first.solver.seed, first=window)
    columns = grouped(range(len(found.errors)), lambda i: found.errors[i].scheme)
    inputs = resources.inputs(
        places.subject.transformer, resources.source(first.window), special_tokens=first.window.special_tokens
    )
    tokens = tuple(inputs.words(window, length=first.window.length, stride=first.window.stride))
    answers: list[Answer] = []
    for ask in cell:
        errors = [found.errors[i] for i in columns[ask.scheme]]
        together = outcome(places, {error.name: ask.scheme for error in errors})
        margins = [() if part is None else tuple(part[0].tolist()) for part in (together.before, together.after)]
        answer = BudgetAnswer(
            cost=places.subject.unit,
            names=tuple(error.name for error in errors),
            numbers=tuple(error.numbers for error in errors),
            bits=tuple(error.bits for error in errors),
            squares=tuple(error.squared for error in errors),
            products=tuple(tuple(row) for row in found.values[0][:, columns[ask.scheme]].tolist()),
            positions=found.positions,
            truth=tuple(together.costs[0].tolist()),
            before=margins[0],
            after=margins[1],
            tokens=tokens,
        )
        answers.append(answer)
    return answers


def planned_budget(budgeting: Budgeting, resources: "Resources") -> "PlannedAsks":
    """Check everything that is asked for against the model and the text; one ask a window and scheme, and recipes."""
    from howsmooth.budgets.subject import output_kind
    from howsmooth.studies.plans.at_text import model_and_text

    base = model_and_text(budgeting, budgeting.windows, resources)
    if output_kind(base.transformer) != "words":  # encoders know inputs that begin and end with special tokens
        base = model_and_text(budgeting, replace(budgeting.windows, special_tokens=True), resources)
    schemes, solver = budgeting.schemes, Solver(seed=budgeting.seed)
    shared: dict[str, Any] = {"passes": budgeting.passes, "solver": solver}
    asks: list[Any] = [ask for label in schemes for ask in base.each(BudgetAsk, [0], "model", scheme=label, **shared)]
    first = asks[0]
    places_of(first, schemes, range(1), resources).check_checkpoints()
    wanted: list[dict[str, Any]] = [{"size": size} for size in budgeting.size] + [{"kl": kl} for kl in budgeting.kl]
    if wanted:
        windows_of(first, range(2 * budgeting.sequences), resources)  # as many windows are held out
    shared |= {name: getattr(first, name) for name in ("model", "window", "where", "reading")}
    shared |= {"windows": budgeting.sequences}
    asks += [RecipeAsk(schemes=schemes, **shared, **target) for target in wanted]
    if budgeting.verify:
        asks += [VerifyAsk(schemes=(label,), count=budgeting.verify, **shared) for label in schemes]
    return base.planned(asks, budgeting.command, remarks=(*base.remarks, *base.transformer.notes))


@dataclass(frozen=True, kw_only=True)
class Suffering:
    """What all errors of a scheme together do at one position, by a run of the model."""

    cost: float
    context: str  # the token, and some before it


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetSummary:
    """What one scheme costs: everywhere, matrix by matrix, and token by token."""

    budget: "Budget"  # all schemes
    scheme: str
    answers: Sequence[BudgetAnswer]  # those of the scheme, window by window

    @property
    def effects(self) -> "list[Effect]":
        """What each error costs alone, the largest first."""
        return sorted((each for each in self.budget.effects if each.scheme == self.scheme), key=lambda each: -each.kl)

    @property
    def noun(self) -> str:
        """What the errors are in."""
        return NOUNS.get(self.scheme.partition(":")[0], "matrices")

    @property
    def measured(self) -> float:
        """The true cost of all errors together."""
        costs = [cost for answer in self.answers for cost in answer.truth]
        return sum(costs) / len(costs)

    @property
    def positions(self) -> list[Suffering]:
        """Every position with its true cost; none where the output has one row for a whole input."""
        found = []
        for answer in self.answers:
            if len(answer.truth) == len(answer.tokens):
                for t, cost in enumerate(answer.truth):
                    before = answer.tokens[max(0, t - CONTEXT + 1) : t + 1]
                    found.append(Suffering(cost=cost, context=_as_text(before)))
        return found

    @property
    def suffering(self) -> list[Suffering]:
        """Every position with its true cost, the largest first."""
        return sorted(self.positions, key=lambda each: -each.cost)

    @property
    def sentence(self) -> str:
        """What everything costs, where half of it sits, what it leaves to keep these, and which tokens suffer."""
        return f"{self._everywhere} {self._outputs}" if self.measured else self._everywhere

    @property
    def _everywhere(self) -> str:
        from howsmooth.budgets.effects import half_of_cost
        from howsmooth.budgets.recipes import KEEP
        from howsmooth.budgets.schemes import UNROUNDED_BITS

        whole, worst = self.budget.together(scheme=self.scheme), half_of_cost(self.effects)
        every = self.budget.names(self.scheme)
        spread = "" if whole.window_error is None else f", ± {number(whole.window_error)} over windows"
        said = (
            f"{self.budget.model}: {self.scheme} everywhere costs {cost_in_words(whole.kl, self.budget.cost)} "
            f"({number(whole.low)} to {number(whole.high)}{spread}; run truly {number(self.measured)}); one by one, "
            f"half of the cost sits in {len(worst)} of {len(every)} {self.noun}"
        )
        if whole.kl == 0 and self.measured == 0:
            return f"{self.budget.model}: {self.scheme} everywhere changes nothing."
        if len(worst) == len(every) or whole.kl == 0:
            return f"{said}."
        kept, finer = {each.name for each in worst}, self._finer
        recipe = {name: finer if name in kept else self.scheme for name in every}
        rest = self.budget.together({name: label for name, label in recipe.items() if label != KEEP})
        errors = {error.key: error for error in self.budget.products.errors}
        coarse = [errors[name, self.scheme] for name in every]
        fine = {name: UNROUNDED_BITS if finer == KEEP else errors[name, finer].bits for name in kept}
        more = sum((fine[error.name] - error.bits) * error.numbers for error in coarse if error.name in kept)
        share = percent(more / (UNROUNDED_BITS * sum(error.numbers for error in coarse)))
        to = "16 bits" if finer == KEEP else finer
        leaves = f"keeping these in {to} takes {share} of the full size more and leaves {number(rest.kl)}"
        if rest.kl > whole.kl:  # errors have signs: what is kept may have made up for others
            leaves += f" ({number(rest.low)} to {number(rest.high)}): errors offset each other here"
        return f"{said}; {leaves}."

    @property
    def _finer(self) -> str:
        """The finest scheme that rounds the same places at a lower cost; to keep them, if there is none."""
        from howsmooth.budgets.recipes import KEEP

        names, budget = self.budget.names(self.scheme), self.budget
        bits = {error.scheme: error.bits for error in budget.products.errors if error.name == names[0]}
        finer = [other for other in bits if bits[other] > bits[self.scheme] and {*names} <= {*budget.names(other)}]
        most = budget.together(scheme=self.scheme).kl
        better = [other for other in finer if budget.together(scheme=other).kl < most]
        return max(better, key=lambda other: bits[other], default=KEEP)

    @property
    def groups(self) -> "dict[str, list[Effect]]":
        """What layers, kinds of matrix and heads of the cache cost together, the largest first."""
        from howsmooth.budgets.effects import GROUPS

        found = {}
        for by in GROUPS:
            with contextlib.suppress(AssumptionError):  # weights have no heads
                found[by] = sorted(self.budget.grouped(by, self.scheme), key=lambda each: -each.kl)
        return found

    @property
    def _outputs(self) -> str:
        """What becomes of words, labels and embeddings."""
        before = [margin for answer in self.answers for margin in answer.before]
        after = [margin for answer in self.answers for margin in answer.after]
        if not after:
            # one less a cosine may be below zero by rounding
            moved = [max(2 * cost, 0.0) ** 0.5 for answer in self.answers for cost in answer.truth]
            mean, most = number(sum(moved) / len(moved)), number(max(moved))
            said = f"move by {mean} in the mean, at most {most}"
            if self.budget.cost == COSINE:
                return f"Embeddings, of length one, {said}; {COSINE} is half the square of that."
            return f"Embeddings {said}."
        flips = sum(margin < 0 for margin in after)
        ranked = self.suffering
        if not ranked:
            means = [number(sum(margins) / len(margins)) for margins in (before, after)]
            labels = f"{flips} of {len(after)} labels flip" if flips else f"none of {len(after)} labels flips"
            return f"Margins go from {means[0]} to {means[1]} in the mean; {labels}."
        changes = f"The most likely token changes at {percent(flips / len(after))} of positions"
        return f"{changes}; {tenth_in_words([each.cost for each in ranked])} of the cost."

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
        for by, groups in self.groups.items():
            if len(groups) > 1:
                costs = ", ".join(f"{each.name} {number(each.kl)}" for each in groups[:TOKENS])
                yield f"Each {by} together: {costs}{', …' if len(groups) > TOKENS else '.'}"
        tokens = [{"tokens that suffer most": f"…{s.context}", "cost": number(s.cost)} for s in self.suffering[:TOKENS]]
        if tokens:
            yield fitted(tokens, list(tokens[0]), [], console, options)

    def to_json(self) -> str:
        """Return one JSON object."""
        whole, keys = self.budget.together(scheme=self.scheme), ("name", "kl", "low", "high", "window_error")
        effects = [{key: getattr(each, key) for key in keys} for each in self.effects]
        groups = {
            by: [{key: getattr(each, key) for key in keys[:4]} for each in some] for by, some in self.groups.items()
        }
        together = {key: getattr(whole, key) for key in keys[1:4]}
        about = {"model": self.budget.model, "scheme": self.scheme, "cost": self.budget.cost}
        tokens = [{"context": each.context, "kl": each.cost} for each in self.suffering]
        margins = [{"before": answer.before, "after": answer.after} for answer in self.answers]
        truly = {"groups": groups, "measured": self.measured, "tokens": tokens, "margins": margins}
        return to_json(about | {"together": together, "effects": effects, "sentence": self.sentence} | truly)


def tenth_in_words(costs: Sequence[float]) -> str:
    """Say what share of the cost a tenth of the positions bears, or the one that suffers most of less than ten.

    >>> tenth_in_words([3.0, 1.0]), tenth_in_words([9.0] + 29 * [1.0])
    ('1 of them bears 75 %', '3 of them bear 28.9 %')
    """
    few = max(1, len(costs) // 10)
    share = sum(sorted(costs, reverse=True)[:few]) / (sum(costs) or 1.0)
    return f"{number(few)} of them {'bears' if few == 1 else 'bear'} {percent(share)}"


def _as_text(pieces: Sequence[str]) -> str:
    """Join tokens as they are read: a mark in front of a word is a space, ## in front of a part joins it."""
    joined = "".join(piece.removeprefix("##") if piece.startswith("##") else f" {piece}" for piece in pieces)
    if any(mark in joined for mark in "Ġ▁"):
        joined = "".join(pieces).replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎")
    return visible(joined.strip())


def schemes_in(records: "Iterable[Record[BudgetAsk, BudgetAnswer]]") -> list[BudgetSummary]:
    """Return what each scheme costs, the coarsest first; every model, text, length and seed has a budget."""
    import torch

    from howsmooth.budgets.error_budget import Budget
    from howsmooth.budgets.passes import Products
    from howsmooth.budgets.places import Error
    from howsmooth.budgets.schemes import place_of

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
        errors, tables, kept = [], [], {}
        # the coarsest first, whatever the order of records
        for label, answers in sorted(schemes.items(), key=lambda item: (min(item[1][windows[0]].bits), item[0])):
            kept[label] = [answers[window] for window in windows]
            first = kept[label][0]
            errors += [
                Error(name=name, scheme=label, numbers=numbers, bits=bits, squared=squared, place=place_of(label))
                for name, numbers, bits, squared in zip(
                    first.names, first.numbers, first.bits, first.squares, strict=True
                )
            ]
            tables.append(torch.tensor([answer.products for answer in kept[label]], dtype=torch.float64))
        products = Products(errors=tuple(errors), values=torch.cat(tables, -1), positions=first.positions)
        budget = Budget(model=model, products=products, cost=first.cost, seed=seed)
        found += [BudgetSummary(budget=budget, scheme=label, answers=some) for label, some in kept.items()]
    return found


def summarise_budgets(records: Iterable[Any]) -> list[Any]:
    """Sum up records: one result for each recipe, which answer first, for each budget and scheme, and what was run."""
    records = list(records)
    recipes = summarise_recipes(r for r in records if r.ask.kind == "recipe")
    schemes = schemes_in(r for r in records if r.ask.kind == "budget")
    return [*recipes, *schemes, *summarise_verified(r for r in records if r.ask.kind == "verified")]


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

            Example: howsmooth budget smollm2 --scheme int4:g64,int8 --size 0.3 --passes 8 --lengths 64
            """,
            results="budgets",
            done="rounded",
            files=recipe_files,
        ),
    ),
)
