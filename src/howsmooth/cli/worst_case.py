"""``howsmooth worst-case``: the input where attention is least smooth, and how near it comes to the proven maximum."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howsmooth.cli.array_files import require_writable, save_witness
from howsmooth.cli.layer import LayerSource
from howsmooth.cli.memory_errors import require_range, require_room, within_reach
from howsmooth.cli.near_text import LENGTH, NearText, answer, as_dict, details
from howsmooth.cli.option_groups import option_groups
from howsmooth.cli.options import OptionJson, OptionSave, OptionSearch, OptionSeed
from howsmooth.cli.printing import ascent_bar, print_json, visible_console
from howsmooth.errors import AssumptionError
from howsmooth.theory.assumptions import require_length, require_radius
from howsmooth.wording import at_least, count, interval, percent

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.heads import MultiHead
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
# What is special about the inputs that the theory builds.
ORIGINS = {
    "equal_tokens": "all tokens at the origin (equal tokens)",
    "two_point": "one token far from all others, along an eigenvector (two point, the paper's)",
    "origin_token": "a token at the origin sees the others at both ends of a diameter (quiet token)",
    "tied_pair": "two tokens tie for the attention of all others (tied pair)",
}


@dataclass(frozen=True, kw_only=True)
class NearOptions:
    """Which inputs near a text are meant, as far as it was said."""

    eps: Annotated[
        float | None, typer.Option("--eps", help="How far every token may move (Euclidean norm).", rich_help_panel=NEAR)
    ] = None
    text: Annotated[
        str | None,
        typer.Option(
            "--text", metavar="FILE", help="A text in UTF-8; Alice in Wonderland by default.", rich_help_panel=NEAR
        ),
    ] = None
    window: Annotated[
        int | None,
        typer.Option("--window", help="Which window of n tokens, from 0; the first by default.", rich_help_panel=NEAR),
    ] = None
    together: Annotated[
        bool, typer.Option("--together", help="--eps bounds all tokens together, not each one.", rich_help_panel=NEAR)
    ] = False
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="DIR",
            help="A folder or hub id with the tokenizer; the model's own by default.",
            rich_help_panel=NEAR,
        ),
    ] = None

    def inputs(self, n: int | None, radius: float | None) -> NearText | None:
        """Return which inputs near a text are meant, or none for those in a ball."""
        named = {name: value for name, value in vars(self).items() if name != "eps"}
        given = {name: value for name, value in named.items() if value is not None and value is not False}
        if self.eps is None:
            for name in given:
                raise AssumptionError(f"--{name} is for inputs near a text; add --eps.", field=name)
            return None
        if radius is not None:
            raise AssumptionError(
                "give --radius for a ball, or --eps for the inputs near a text; got both.", field="eps"
            )
        return NearText(eps=self.eps, n=LENGTH if n is None else n, **given)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search, and where the answer goes."""

    search: OptionSearch = False
    steps: Annotated[int | None, typer.Option("--steps", help=f"Steps of the ascent; {STEPS} if left out.")] = None
    starts: Annotated[int | None, typer.Option("--starts", help=f"Starts of the ascent; {STARTS} if left out.")] = None
    seed: OptionSeed = 0
    as_json: OptionJson = False
    save: OptionSave = None

    def check(self, *, searches: bool) -> None:
        """Refuse options of the ascent where there is none, and numbers that make no sense."""
        for name, many in (("steps", self.steps), ("starts", self.starts)):
            if many is not None and not searches:
                raise AssumptionError(f"--{name} is for the ascent; add --search, or leave --{name} out.", field=name)
            if many is not None and many < 1:
                raise AssumptionError(f"--{name} must be at least 1, got {many}.", field=name)

    def begin(self, source: LayerSource, n: int) -> None:
        """Refuse what cannot be held or kept, before anything is read."""
        require_room(n)
        if self.save is not None:
            require_writable(self.save, source.paths)

    @property
    def ascent(self) -> dict[str, Any]:
        """How the ascent is done."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        return {"steps": self.steps or STEPS, "starts": self.starts or STARTS, "generator": generator}


@option_groups
def worst_case(
    *,
    source: LayerSource,
    n: OptionN = None,
    radius: OptionRadius = None,
    near: NearOptions,
    how: SearchOptions,
) -> None:
    """Find n tokens in a ball where attention is least smooth, and how near they come to the proven maximum.

    Of a layer of a model, or of weights: FILE, or FILE:KEY. Rows are outputs, as in torch.nn.Linear. With --eps, find
    the worst input near a window of a text instead, and which words matter.

    Example: howsmooth worst-case --model minilm --layer 4 --map head:3 -n 64 -r 9
    """
    inputs = near.inputs(n, radius)
    how.check(searches=how.search or inputs is not None)
    if inputs is not None:
        _near_text(source, inputs, how)
    else:
        _in_ball(source, *_ball(n, radius), how)


def _ball(n: int | None, radius: float | None) -> tuple[int, float]:
    if n is None or radius is None:
        missing = " and ".join(name for name, value in (("--n", n), ("--radius", radius)) if value is None)
        raise AssumptionError(f"tokens in a ball take --n and --radius, {missing} is missing; near a text take --eps.")
    require_length(n)
    require_radius(radius)
    return n, radius


def _near_text(source: LayerSource, near: NearText, how: SearchOptions) -> None:
    near.check(source)
    how.begin(source, near.n)
    f, X, pieces = near.read(source)
    require_room(near.n, X.shape[-1])

    from howsmooth.search.nearby import worst_nearby

    with ascent_bar(True, how.ascent["steps"]) as progress:
        found = worst_nearby(f, X, eps=near.eps, per_token=not near.together, progress=progress, **how.ascent)
    require_range(found.witness)
    if how.as_json:
        print_json(as_dict(near, found, pieces))
    else:
        _print_lines(answer(found), repr(f), *details(near, found, pieces))
    if how.save is not None:
        save_witness(found.witness, how.save, source.about | near.about, quiet=how.as_json)


def _in_ball(source: LayerSource, n: int, radius: float, how: SearchOptions) -> None:
    source.check()
    how.begin(source, n)
    attention = source.read()
    require_room(n, attention.d)

    import howsmooth as hs
    from howsmooth.domains.domain import in_ball

    ascent = how.ascent
    with within_reach(n, radius):
        bracket = hs.bracket(attention, n=n, radius=radius, generator=ascent["generator"])
        witness, origin = bracket.lower, ORIGINS.get(bracket.lower.name, bracket.lower.label)
        if how.search:
            witness, origin = _climb(attention, witness, radius, ascent)
        require_range(witness)
        if how.as_json:
            result = {"witness": witness.as_dict(), "upper": bracket.upper.as_dict()}
            share = _share(witness, bracket.upper)
            print_json(result | {"share": share, "n": n, "radius": radius, "causal": attention.positions.causal})
        else:
            _print_witness(repr(attention), witness, bracket.upper, f"{in_ball(n, radius)}; {origin}")
    if how.save is not None:
        save_witness(witness, how.save, source.about, quiet=how.as_json)


def _climb(attention: "MultiHead", known: "Witness", radius: float, ascent: dict[str, Any]) -> "tuple[Witness, str]":
    """Search from the inputs of the theory and from random ones; return the worst input and where it comes from."""
    import howsmooth as hs

    n, domain = known.tokens.shape[-2], hs.domains.Ball(radius)
    with ascent_bar(True, ascent["steps"]) as progress:
        found = hs.maximise(attention, n=n, domain=domain, progress=progress, **ascent)
    taken = len(found.trace) - 1
    begin = f"{known.label} ({at_least(known.value)}) and {count(ascent['starts'], 'random input')}"
    climbed = f"{count(taken, 'step')} of ascent from {begin}"
    if found.value > known.value:
        return found, climbed
    return known, f"{ORIGINS.get(known.name, known.label)}; {climbed} found nothing worse"


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
