"""Every figure of the paper as a study: which tasks it takes, at the paper's sizes and at a tenth of them."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from howsmooth.errors import AssumptionError
from howsmooth.models.text import Text, read_text
from howsmooth.studies.tasks import Matrix, Task

# Models that come in packages, and random ones as the paper's control: which layers of each.
MODELS = {"minilm": (0, 2, 5), "smollm2": (0, 15, 29), "random:bert": (0, 6), "random:gpt2": (0, 6)}
ALICE = "alice"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the studies are.

    Attributes:
        lengths: The lengths of windows.
        windows: How many windows of each length.
        nested: The lengths of windows that begin at the same places.
        adversarial: The lengths of inputs that are built from the weights.
        heads: Which heads they are built from.
        worst: The lengths of the worst case.
        radii: Its radii.
        climbs: The lengths at which a search climbs, and how many trials it gets.
        regimes: The lengths on the way to measures.
        splitting: The length of windows whose splitting is looked at, and how many there are.
        atoms: How many atoms the worst measures may have.
    """

    lengths: tuple[int, ...]
    windows: int
    nested: tuple[int, ...]
    adversarial: tuple[int, ...]
    heads: tuple[int, ...]
    worst: tuple[int, ...]
    radii: tuple[float, ...]
    climbs: tuple[tuple[int, ...], int]
    regimes: tuple[int, ...]
    splitting: tuple[int, int]
    atoms: tuple[int, ...]


FULL = Sizes(
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
)
QUICK = Sizes(
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
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the paper, or a check that its readers ask for.

    Attributes:
        title: What it shows.
        protocol: What the paper did, and what differs here.
        tasks: What there is to find out, for some models at some sizes.
    """

    title: str
    protocol: str
    tasks: Callable[[Sizes, Sequence[str]], Iterator[Task]]

    def list(self, sizes: Sizes, models: Sequence[str]) -> list[Task]:
        """Return all of its tasks."""
        return [*self.tasks(sizes, models)]


def real(sizes: Sizes, models: Sequence[str]) -> Iterator[Task]:
    """Measure windows of a real text, and record what the released scripts compute beside it."""
    text = read_text()
    for model in models:
        for layer in MODELS.get(model, (0, 6)):
            for n in sizes.lengths:
                for window in range(sizes.windows):
                    yield _on_text(text, model, layer, n, window, released=True)


def adversarial(sizes: Sizes, models: Sequence[str]) -> Iterator[Task]:
    """Measure the paper's two points and our tied pairs: on the head they are built from, and on the whole layer."""
    for model in models:
        if model in ("smollm2", "random:bert"):
            continue  # rotary scores are no form ⟨Ax, y⟩; one random model is enough
        layer, radius = (2, 12.0) if model == "minilm" else (6, 10.0)
        for head in sizes.heads:
            for points in ("two_point", "tied_pair"):
                for n in sizes.adversarial:
                    for part in (f"head:{head}", "attention"):
                        yield Task(
                            kind="extremal",
                            model=model,
                            layer=layer,
                            map=part,
                            points=points,
                            head=head,
                            length=n,
                            radius=radius,
                        )


def worst(sizes: Sizes, _models: Sequence[str]) -> Iterator[Task]:
    """Bound the worst case on one pretrained head, against the length and against the radius."""
    head = {"model": "minilm", "layer": 2, "map": "head:0", "biases": False}
    for n in sizes.worst:
        yield Task(kind="bounds", length=n, radius=12.0, **head)  # type: ignore[arg-type]
    for radius in sizes.radii:
        yield Task(kind="bounds", length=64, radius=radius, **head)  # type: ignore[arg-type]
    lengths, trials = sizes.climbs
    for n in lengths:
        yield Task(kind="ascent", length=n, radius=12.0, climb=trials, **head)  # type: ignore[arg-type]


def regimes(sizes: Sizes, _models: Sequence[str]) -> Iterator[Task]:
    """Follow the worst constant of explicit heads from few tokens to measures."""
    for A, radius in ((_number(-1.0), 1.5), (_number(-1.0), 2.0), (_number(-2.0), 1.5), (_identity(-1.0), 2.0)):
        for n in sizes.regimes:
            yield Task(kind="regime", A=A, V=_identity(1.0) if len(A) == 2 else _number(1.0), length=n, radius=radius)


def splitting(sizes: Sizes, _models: Sequence[str]) -> Iterator[Task]:
    """Look how often windows of a real text split, head by head and layer by layer."""
    text = read_text()
    n, windows = sizes.splitting
    for layer in range(6):
        for part in ("attention", *(f"head:{head}" for head in range(0, 12, 3))):
            for window in range(windows):
                yield _on_text(text, "minilm", layer, n, window, kind="splitting", part=part)


def measures(sizes: Sizes, _models: Sequence[str]) -> Iterator[Task]:
    """Search for the worst measures on the line: few atoms, very unbalanced."""
    for A, radius in ((-1.0, 2.0), (8.0, 2.0), (1.0, 4.0)):
        for atoms in sizes.atoms:
            yield Task(kind="measure", A=_number(A), V=_number(1.0), length=atoms, radius=radius, climb=100)


def robustness(sizes: Sizes, models: Sequence[str]) -> Iterator[Task]:
    """Let windows grow at the same places of a text, so that more tokens is all that changes."""
    text = read_text()
    for model in models:
        for layer in MODELS.get(model, (0, 6)):
            for n in sizes.nested:
                for window in range(sizes.windows):
                    yield _on_text(text, model, layer, n, window, stride=sizes.nested[-1])


FIGURES = {
    "real": Figure(
        title="Real data: the constant against the length and the radius",
        protocol=(
            "The paper: bert-base-uncased, gpt2 and random GPT-2 on Alice and AG_NEWS, ten windows for each length, "
            "the quantity ‖Jᵀf(X)‖^½. Here: MiniLM and SmolLM2 (4-bit weights) on Alice, random BERT and GPT-2, the "
            "constant itself, and the released quantity beside it; others with --model."
        ),
        tasks=real,
    ),
    "adversarial": Figure(
        title="Adversarial data: inputs built from one head",
        protocol=(
            "The paper: two points on an eigenvector of A, n = 2, 7, …, 97. Here the same points, and tied pairs, "
            "built from the head without its biases and measured with them, on the head alone and on the whole layer."
        ),
        tasks=adversarial,
    ),
    "worst": Figure(
        title="Worst case: bounds, witnesses and ascent",
        protocol="The paper's bounds and ours for head 0 of layer 2 of MiniLM without its biases; not in the paper.",
        tasks=worst,
    ),
    "regimes": Figure(
        title="From few tokens to measures",
        protocol="Explicit heads on the line and in the plane; the paper states the two regimes and draws neither.",
        tasks=regimes,
    ),
    "splitting": Figure(
        title="Mass splitting: on the line, and on real text",
        protocol="The first version maps the line, A = −1, by search; here from the formula, and on MiniLM on Alice.",
        tasks=splitting,
    ),
    "measures": Figure(
        title="Worst measures by ascent",
        protocol="The first version climbs on the constant of measures on the line; here with explicit starts too.",
        tasks=measures,
    ),
    "robustness": Figure(
        title="What more tokens do to robustness",
        protocol="Windows that begin at the same places and grow; not in the paper.",
        tasks=robustness,
    ),
}
# Figures that are drawn from the tasks of others.
ALSO = {"bounds": "real", "transition": "regimes"}
ALSO_TITLES = {
    "bounds": "Certificates: what the formula says, and what is measured",
    "transition": "The transition between the two regimes",
}


def chosen_figures(names: Iterable[str]) -> dict[str, Figure]:
    """Return the figures with these names; all of them if there are none.

    Raises:
        AssumptionError: If there is no figure of a name.
    """
    known = {name: FIGURES[ALSO.get(name, name)] for name in (*FIGURES, *ALSO)}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
            raise AssumptionError(f"there is no figure {name!r}; {hint}")
    return {name: known[name] for name in (tuple(names) or known)}


def title_and_protocol(name: str) -> tuple[str, str]:
    """Say what a figure shows; what the paper did for it, and what differs here."""
    figure = FIGURES[ALSO.get(name, name)]
    return ALSO_TITLES.get(name, figure.title), figure.protocol


def _on_text(
    text: Text,
    model: str,
    layer: int,
    length: int,
    window: int,
    *,
    kind: str = "local",
    part: str = "attention",
    released: bool = False,
    stride: int = 0,
) -> Task:
    return Task(
        kind=kind,
        model=model,
        layer=layer,
        map=part,
        text=text.name,
        digest=text.digest,
        length=length,
        window=window,
        released=released,
        stride=stride,
    )


def _number(a: float) -> Matrix:
    return ((a,),)


def _identity(a: float) -> Matrix:
    return ((a, 0.0), (0.0, a))
