"""``howsmooth worst-case``: the input where attention is least smooth, and how near it comes to the proven maximum."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howsmooth.cli.ascent_bar import ascent_bar
from howsmooth.cli.layer import LayerSource, takes_a_layer
from howsmooth.cli.near_text import LENGTH, NearText, answer, as_dict, details
from howsmooth.cli.options import OptionJson, OptionSave, OptionSearch, OptionSeed
from howsmooth.cli.printing import print_json, visible_console
from howsmooth.cli.reach import require_range, require_room, within_reach
from howsmooth.cli.witnesses import require_writable, save_witness
from howsmooth.errors import AssumptionError
from howsmooth.theory.assumptions import require_length, require_radius
from howsmooth.wording import at_least, count, interval, percent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from howsmooth.maps.heads import Heads
    from howsmooth.theory.results import Bound, Witness

STEPS, STARTS = 100, 4
NEAR = "Near a text, in place of a ball"
OptionN = Annotated[
    int | None,
    typer.Option("--n", "-n", help=f"How many tokens; near a text {LENGTH} if left out.", show_default=False),
]
OptionRadius = Annotated[
    float | None, typer.Option("--radius", "-r", help="The radius of the ball.", show_default=False)
]
OptionEps = Annotated[
    float | None, typer.Option("--eps", help="How far every token may move (Euclidean norm).", rich_help_panel=NEAR)
]
OptionText = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="FILE", help="A text in UTF-8; Alice in Wonderland by default.", rich_help_panel=NEAR
    ),
]
OptionWindow = Annotated[
    int | None,
    typer.Option("--window", help="Which window of n tokens, from 0; the first by default.", rich_help_panel=NEAR),
]
OptionTogether = Annotated[
    bool, typer.Option("--together", help="--eps bounds all tokens together, not each one.", rich_help_panel=NEAR)
]
OptionTokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="DIR",
        help="A folder or hub id with the tokenizer; the model's own by default.",
        rich_help_panel=NEAR,
    ),
]
OptionSteps = Annotated[int | None, typer.Option("--steps", help=f"Steps of the ascent; {STEPS} if left out.")]
OptionStarts = Annotated[int | None, typer.Option("--starts", help=f"Starts of the ascent; {STARTS} if left out.")]
# What is special about the inputs that the theory builds.
ORIGINS = {
    "equal_tokens": "all tokens at the origin (equal tokens)",
    "two_point": "one token far from all others, along an eigenvector (two point, the paper's)",
    "origin_token": "a token at the origin sees the others at both ends of a diameter (quiet token)",
    "tied_pair": "two tokens tie for the attention of all others (tied pair)",
}


@takes_a_layer
def worst_case(
    *,
    source: LayerSource,
    n: OptionN = None,
    radius: OptionRadius = None,
    eps: OptionEps = None,
    text: OptionText = None,
    window: OptionWindow = None,
    together: OptionTogether = False,
    tokenizer: OptionTokenizer = None,
    search: OptionSearch = False,
    steps: OptionSteps = None,
    starts: OptionStarts = None,
    seed: OptionSeed = 0,
    as_json: OptionJson = False,
    save: OptionSave = None,
) -> None:
    """Find n tokens in a ball where attention is least smooth, and how near they come to the proven maximum.

    Of a layer of a model, or of weights: FILE, or FILE:KEY. Rows are outputs, as in torch.nn.Linear. With --eps, find
    the worst input near a window of a text instead, and which words matter.

    Example: howsmooth worst-case --model minilm --layer 4 --map head:3 -n 64 -r 9
    """
    about = {"text": text, "window": window, "together": together or None, "tokenizer": tokenizer}
    near = _near(eps, n, radius, about)
    _check_search(search or near is not None, steps, starts)
    how = _How(steps=steps or STEPS, starts=starts or STARTS, seed=seed, as_json=as_json, save=save)
    if near is not None:
        _near_text(source, near, how)
    else:
        _in_ball(source, *_ball(n, radius), search, how)


@dataclass(frozen=True, kw_only=True)
class _How:
    """How to search, and where the answer goes."""

    steps: int
    starts: int
    seed: int
    as_json: bool
    save: Path | None

    def begin(self, source: LayerSource, n: int) -> None:
        """Refuse what cannot be held or kept, before anything is read."""
        require_room(n)
        if self.save is not None:
            require_writable(self.save, source.paths)

    @property
    def generator(self) -> "torch.Generator":
        import torch

        return torch.Generator().manual_seed(self.seed)


def _near(eps: float | None, n: int | None, radius: float | None, about: "dict[str, Any]") -> NearText | None:
    """Return which inputs near a text are meant, or none for those in a ball."""
    given = {name: value for name, value in about.items() if value is not None}
    if eps is None:
        if given:
            raise AssumptionError(
                f"--{next(iter(given))} is for inputs near a text; add --eps.", field=next(iter(given))
            )
        return None
    if radius is not None:
        raise AssumptionError("give --radius for a ball, or --eps for the inputs near a text; got both.", field="eps")
    return NearText(eps=eps, n=LENGTH if n is None else n, **given)


def _ball(n: int | None, radius: float | None) -> tuple[int, float]:
    if n is None or radius is None:
        missing = " and ".join(name for name, value in (("--n", n), ("--radius", radius)) if value is None)
        raise AssumptionError(f"tokens in a ball take --n and --radius, {missing} is missing; near a text take --eps.")
    require_length(n)
    require_radius(radius)
    return n, radius


def _near_text(source: LayerSource, near: NearText, how: _How) -> None:
    near.check(source)
    how.begin(source, near.n)
    f, X, pieces = near.read(source)
    require_room(near.n, X.shape[-1])

    from howsmooth.search.nearby import worst_nearby

    with ascent_bar(True, how.steps) as progress:
        found = worst_nearby(
            f,
            X,
            eps=near.eps,
            per_token=not near.together,
            steps=how.steps,
            starts=how.starts,
            generator=how.generator,
            progress=progress,
        )
    require_range(found.witness)
    if how.as_json:
        print_json(as_dict(near, found, pieces))
    else:
        _print_lines(answer(found), repr(f), *details(near, found, pieces))
    if how.save is not None:
        save_witness(found.witness, how.save, source.about | near.about, quiet=how.as_json)


def _in_ball(source: LayerSource, n: int, radius: float, search: bool, how: _How) -> None:
    source.check()
    how.begin(source, n)
    attention = source.read()
    require_room(n, attention.d)

    import howsmooth as hs
    from howsmooth.domains.ball import in_ball

    generator = how.generator
    with within_reach(n, radius):
        bracket = hs.bracket(attention, n=n, radius=radius, generator=generator)
        witness, origin = bracket.lower, ORIGINS.get(bracket.lower.name, bracket.lower.label)
        if search:
            witness, origin = _climb(attention, witness, radius, how.steps, how.starts, generator)
        require_range(witness)
        if how.as_json:
            result = {"witness": witness.as_dict(), "upper": bracket.upper.as_dict()}
            share = _share(witness, bracket.upper)
            print_json(result | {"share": share, "n": n, "radius": radius, "causal": attention.positions.causal})
        else:
            _print_witness(repr(attention), witness, bracket.upper, f"{in_ball(n, radius)}; {origin}")
    if how.save is not None:
        save_witness(witness, how.save, source.about, quiet=how.as_json)


def _check_search(search: bool, steps: int | None, starts: int | None) -> None:
    for name, many in (("steps", steps), ("starts", starts)):
        if many is not None and not search:
            raise AssumptionError(f"--{name} is for the ascent; add --search, or leave --{name} out.", field=name)
        if many is not None and many < 1:
            raise AssumptionError(f"--{name} must be at least 1, got {many}.", field=name)


def _climb(
    attention: "Heads", known: "Witness", radius: float, steps: int, starts: int, generator: "torch.Generator"
) -> "tuple[Witness, str]":
    """Search from the inputs of the theory and from random ones; return the worst input and where it comes from."""
    import howsmooth as hs

    with ascent_bar(True, steps) as progress:
        found = hs.maximise(
            attention,
            n=known.tokens.shape[-2],
            domain=hs.Ball(radius),
            starts=starts,
            steps=steps,
            generator=generator,
            progress=progress,
        )
    taken = len(found.trace) - 1
    begin = f"{known.label} ({at_least(known.value)}) and {count(starts, 'random input')}"
    ascent = f"{count(taken, 'step')} of ascent from {begin}"
    if found.value > known.value:
        return found, ascent
    return known, f"{ORIGINS.get(known.name, known.label)}; {ascent} found nothing worse"


def _share(witness: "Witness", upper: "Bound") -> float | None:
    """Return value / upper bound, which is all that a Lipschitz constant can still gain; ``None`` for 0 / 0."""
    return math.exp(min(0.0, math.log(witness.value) - upper.log_value)) if witness.value > 0 else None


def _print_witness(attention: str, witness: "Witness", upper: "Bound", origin: str) -> None:
    measured = witness.measured
    there = interval(float(measured.lower), float(measured.upper), digits=5)
    _print_lines(
        _answer(witness, upper),
        attention,
        f"Input: {origin}.",
        f"Measured there: {there} ({percent(measured.confidence)}).",
        f"Most sensitive: {_largest(measured.token_sensitivity)} of the worst direction.",
        f"Most moved: {_largest(measured.token_response)} of the response.",
    )


def _print_lines(first: str, *others: str) -> None:

    console = visible_console(soft_wrap=True)
    console.print(first, style="bold")
    for line in others:
        console.print(line)


def _answer(witness: "Witness", upper: "Bound") -> str:
    value, share = at_least(witness.value), _share(witness, upper)
    if share is None or share < 1e-3:
        return f"Lip ≥ {value}; the proven maximum is {upper.digits}"
    return f"Lip ≥ {value}, at least {percent(math.floor(1000 * share) / 1000)} of the proven maximum {upper.digits}"


def _largest(shares: "Tensor") -> str:
    """Name the tokens whose share is at least half of the largest; if there are many, how many they are."""
    order = shares.argsort(descending=True, stable=True).tolist()
    leading = [token for token in order if shares[token] >= shares[order[0]] / 2]
    if len(leading) > 3:
        return f"{len(leading)} tokens alike, token {leading[0]} with {percent(float(shares[leading[0]]))}"
    return ", ".join(f"token {token} with {percent(float(shares[token]))}" for token in sorted(leading))
