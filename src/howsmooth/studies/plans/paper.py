"""Every figure of the paper as a study: what it asks, at the paper's sizes and at a tenth of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from howsmooth.errors import AssumptionError, nearest
from howsmooth.models.inputs.text import read_text
from howsmooth.studies.asks import Ask, AtText, Matrix
from howsmooth.studies.kinds.text import SplittingAsk, TextAsk, WholeAsk
from howsmooth.studies.kinds.tokens_in_ball import AscentAsk, BoundsAsk, ExtremalAsk, MeasuresAsk, RegimesAsk
from howsmooth.studies.plans.at_text import block_spans
from howsmooth.studies.records import grouped, plan_of
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.run import measurements
from howsmooth.studies.runs.run_metadata import keep_ladders, keep_model
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import Solver, Windows, command

# Models that come in packages, and random ones as the paper's control: which layers of each.
MODELS = {"minilm": (0, 2, 5), "smollm2": (0, 15, 29), "random:bert": (0, 6), "random:gpt2": (0, 6)}
# How many layers each of them has.
DEPTHS = {"minilm": 6, "smollm2": 30, "random:bert": 12, "random:gpt2": 12}
# Inputs that are built from the weights.
POINTS: tuple[Literal["two_point", "tied_pair"], ...] = ("two_point", "tied_pair")

T = TypeVar("T", bound=AtText)


@dataclass(frozen=True, kw_only=True)
class StudySizes:
    """How large the studies are."""

    lengths: tuple[int, ...]  # the lengths of windows
    windows: int  # how many windows of each length
    nested: tuple[int, ...]  # the lengths of windows that begin at the same places
    adversarial: tuple[int, ...]  # the lengths of inputs that are built from the weights
    heads: tuple[int, ...]  # which heads they are built from
    worst: tuple[int, ...]  # the lengths of the worst case
    radii: tuple[float, ...]
    climbs: tuple[tuple[int, ...], int]  # the lengths at which a search climbs, and how many trials it gets
    regimes: tuple[int, ...]  # the lengths on the way to measures
    splitting: tuple[int, int]  # the length of windows whose splitting is looked at, and how many there are
    atoms: tuple[int, ...]  # how many atoms the worst measures may have
    whole: tuple[tuple[int, ...], int]  # the lengths of windows for whole models, and how many there are of each


FULL = StudySizes(
    lengths=tuple(range(2, 99, 4)),
    windows=10,
    nested=(8, 16, 32, 64, 128, 256),
    adversarial=tuple(range(7, 98, 5)),
    heads=(0, 3, 6, 9),
    worst=(4, 8, 16, 32, 64, 128, 256, 512, 1024),
    radii=(0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0),
    climbs=((4, 8, 16, 32, 64), 100),
    regimes=(3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000),
    splitting=(64, 10),
    atoms=(2, 3, 4, 6),
    whole=((8, 16, 32, 64, 128, 256), 4),
)
QUICK = StudySizes(
    lengths=(8, 16, 32, 64, 128),
    windows=4,
    nested=(8, 16, 32, 64, 128),
    adversarial=(7, 12, 22, 42, 97),
    heads=(0, 6),
    worst=(4, 16, 64, 256, 1024),
    radii=(0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0),
    climbs=((4, 16), 30),
    regimes=(3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
    splitting=(32, 3),
    atoms=(2, 3, 4),
    whole=((8, 32, 128), 1),
)


Asks = Callable[[StudySizes, Sequence[str]], Iterator[Ask]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the paper, or a check that its readers ask for."""

    title: str  # what it shows
    protocol: str  # what the paper did, and what differs here
    asks: Asks  # what there is to find out, for some models at some sizes


FIGURES: dict[str, Figure] = {}


def figure(name: str, title: str, protocol: str) -> Callable[[Asks], Asks]:
    """Declare what a figure asks."""

    def declare(asks: Asks) -> Asks:
        FIGURES[name] = Figure(title=title, protocol=protocol, asks=asks)
        return asks

    return declare


@figure(
    "real",
    "Real data: the constant against the length and the radius",
    "The paper: bert-base-uncased, gpt2 and random GPT-2 on Alice and AG_NEWS, ten windows for each length, "
    "the quantity ‖Jᵀf(X)‖^½. Here: MiniLM and SmolLM2 (4-bit weights) on Alice, random BERT and GPT-2, the "
    "constant itself, and the released quantity beside it; other models can be named.",
)
def _real(sizes: StudySizes, models: Sequence[str]) -> Iterator[Ask]:
    windows = Windows(lengths=sizes.lengths, sequences=sizes.windows)
    for model in models:
        for layer in MODELS.get(model, (0, 6)):
            yield from _on_alice(TextAsk, windows, model=model, layer=layer, released=True, certificate=True)


@figure(
    "adversarial",
    "Adversarial data: inputs built from one head",
    "The paper: two points on an eigenvector of A, n = 2, 7, …, 97. Here the same points, and tied pairs, "
    "built from the head without its biases and measured with them, on the head alone and on the whole layer.",
)
def _adversarial(sizes: StudySizes, models: Sequence[str]) -> Iterator[Ask]:
    for model in models:
        if model in ("smollm2", "random:bert"):
            continue  # rotary scores are no form ⟨Ax, y⟩; one random model is enough
        layer, radius = (2, 12.0) if model == "minilm" else (6, 10.0)
        for head in sizes.heads:
            for points in POINTS:
                for n in sizes.adversarial:
                    for part in (f"head:{head}", "attention"):
                        yield ExtremalAsk(
                            model=model, layer=layer, map=part, points=points, head=head, length=n, radius=radius
                        )


@figure(
    "worst",
    "Worst case: bounds, witnesses and ascent",
    "The paper's bounds and ours for head 0 of layer 2 of MiniLM without its biases; not in the paper.",
)
def _worst(sizes: StudySizes, _models: Sequence[str]) -> Iterator[Ask]:
    head: dict[str, Any] = {"model": "minilm", "layer": 2, "map": "head:0", "biases": False}
    for n in sizes.worst:
        yield BoundsAsk(length=n, radius=12.0, **head)
    for radius in sizes.radii:
        yield BoundsAsk(length=64, radius=radius, **head)
    lengths, steps = sizes.climbs
    for n in lengths:
        yield AscentAsk(length=n, radius=12.0, climb=steps, **head)


@figure(
    "regimes",
    "From few tokens to measures",
    "Explicit heads on the line and in the plane; the paper states the two regimes and draws neither.",
)
def _regimes(sizes: StudySizes, _models: Sequence[str]) -> Iterator[Ask]:
    for a, dimension, radius in ((-1.0, 1, 1.5), (-1.0, 1, 2.0), (-2.0, 1, 1.5), (-1.0, 2, 2.0)):
        for n in sizes.regimes:
            yield RegimesAsk(A=_scaled(a, dimension), V=_scaled(1.0, dimension), length=n, radius=radius)


@figure(
    "splitting",
    "Mass splitting: on the line, and on real text",
    "The first version maps the line, A = −1, by search; here from the formula, and on MiniLM on Alice.",
)
def _splitting(sizes: StudySizes, _models: Sequence[str]) -> Iterator[Ask]:
    n, count = sizes.splitting
    for layer in range(6):
        for part in ("attention", *(f"head:{head}" for head in range(0, 12, 3))):
            windows = Windows(lengths=(n,), sequences=count)
            yield from _on_alice(SplittingAsk, windows, model="minilm", layer=layer, map=part)


@figure(
    "measures",
    "Worst measures by ascent",
    "The first version climbs on the constant of measures on the line; here with explicit starts too.",
)
def _measures(sizes: StudySizes, _models: Sequence[str]) -> Iterator[Ask]:
    for A, radius in ((-1.0, 2.0), (8.0, 2.0), (1.0, 4.0)):
        for atoms in sizes.atoms:
            yield MeasuresAsk(A=_scaled(A), V=_scaled(1.0), length=atoms, radius=radius)


@figure(
    "whole",
    "Whole models: layers do not multiply",
    "Not in the paper, which is about single layers: blocks alone, the product of their constants, the blocks "
    "up to each layer, and those from each layer on.",
)
def _whole(sizes: StudySizes, models: Sequence[str]) -> Iterator[Ask]:
    lengths, count = sizes.whole
    for model in models:
        blocks = DEPTHS.get(model)
        if blocks is None:
            continue  # measure --whole has other models: their depth is known when they are loaded
        windows = Windows(lengths=lengths, sequences=count)
        for layer, part, size, solver in block_spans(blocks, Solver()):
            yield from _on_alice(WholeAsk, windows, model=model, layer=layer, map=part, blocks=size, solver=solver)


@figure(
    "robustness",
    "What more tokens do to robustness",
    "Windows that begin at the same places and grow; not in the paper.",
)
def _robustness(sizes: StudySizes, models: Sequence[str]) -> Iterator[Ask]:
    windows = Windows(lengths=sizes.nested, sequences=sizes.windows, stride=sizes.nested[-1])
    for model in models:
        for layer in MODELS.get(model, (0, 6)):
            yield from _on_alice(TextAsk, windows, model=model, layer=layer)


# Figures that are drawn from the asks of others.
ALSO = {"bounds": "real", "transition": "regimes"}
ALSO_TITLES = {
    "bounds": "Certificates: what the formula says, and what is measured",
    "transition": "The transition between the two regimes",
}


def known_figures() -> dict[str, Figure]:
    """Return every figure by its name."""
    return {name: FIGURES[ALSO.get(name, name)] for name in (*FIGURES, *ALSO)}


def chosen_figures(names: Iterable[str]) -> dict[str, Figure]:
    """Return the figures with these names; if there are none, all of them."""
    known = known_figures()
    for name in names:
        if name not in known:
            raise AssumptionError(f"there is no figure {name!r}{nearest(name, known)}", field="figures")
    return {name: known[name] for name in (tuple(names) or known)}


def title_and_protocol(name: str) -> tuple[str, str]:
    """Say what a figure shows; what the paper did for it, and what differs here."""
    figure = FIGURES[ALSO.get(name, name)]
    return ALSO_TITLES.get(name, figure.title), figure.protocol


def _on_alice(kind: type[T], windows: Windows, **others: Any) -> Iterator[T]:
    for window in windows.each(read_text().digest):
        yield kind(window=window, **others)


def _scaled(a: float, dimension: int = 1) -> Matrix:
    """Return a multiple of the identity."""
    return tuple(tuple(a if i == j else 0.0 for j in range(dimension)) for i in range(dimension))


def keep_figures(store: Store, asks: Mapping[str, Sequence[Ask]], words: Sequence[str]) -> None:
    """Remember what each figure asks for: one plan for each kind, and for each model that is measured at a text."""
    for figure, found in asks.items():
        # a plan at a text makes one measurement
        plans = grouped(found, lambda ask: (ask.kind, ask.group if isinstance(ask, TextAsk) else None))
        for asked in plans.values():
            store.keep_plan(plan_of(tuple(asked), figure=figure, command=command(*words)))


def keep_models(store: Store, resources: Resources) -> None:
    """Keep what is known about the models and layers that were measured at a text."""
    records, plans = store.records(), store.plans()
    for model in sorted({record.ask.model for record in records if isinstance(record.ask, AtText)}):
        keep_model(store, resources.transformer(model))
    for measurement in measurements(store, records, plans):
        if measurement.records[0].ask.window.stride == 0:
            keep_ladders(store, measurement, resources.transformer(measurement.model))
