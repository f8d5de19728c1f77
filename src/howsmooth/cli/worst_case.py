"""``howsmooth worst-case``: the input in a ball, or near a text, where attention is least smooth."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

import howsmooth as hs
from howsmooth.cli.array_files import require_writable, save_witness
from howsmooth.cli.layer import LayerSource
from howsmooth.cli.memory_errors import require_range, require_room, within_reach
from howsmooth.cli.options import (
    LENGTH,
    OptionJson,
    OptionMetric,
    OptionSave,
    OptionSearch,
    OptionSeed,
    option_groups,
    set_threads,
)
from howsmooth.cli.printing import ascent_bar, begin, go_on, print_json, visible_console
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.text import ALICE, read_text
from howsmooth.models.loading.names import check_tokenizer
from howsmooth.report.drawing.token_text import running_text, words
from howsmooth.spectral.solver_settings import check_metric
from howsmooth.theory.assumptions import require_length, require_radius
from howsmooth.wording import at_least, count, interval, number, percent

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.heads import MultiHead
    from howsmooth.search.ascent import Nearby
    from howsmooth.theory.results import Bound, Witness

STEPS, STARTS = 100, 4
# How many tokens a window of a text has unless it is given, and how many words are named.
TOKENS, NAMED = 16, 3
OptionN = Annotated[
    int | None,
    typer.Option(*LENGTH, help=f"How many tokens; near a text {TOKENS} if left out.", show_default=False),
]
OptionRadius = Annotated[
    float | None, typer.Option("--radius", "-r", help="The radius of the ball.", show_default=False)
]
# What is special about the inputs that the theory builds.
ORIGINS = {
    "equal_tokens": "all tokens at the origin (equal tokens)",
    "two_point": "one token far from all others, along an eigenvector (two point, the paper's)",
    "origin_token": "a token at the origin sees the others at both ends of a diameter (origin token)",
    "tied_pair": "two tokens tie for the attention of all others (tied pair)",
}


def _near(flag: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, help=text, rich_help_panel="Near a text, in place of a ball", **more)


@dataclass(frozen=True, kw_only=True)
class NearText:
    """Which inputs near a text are searched: none without ``eps``."""

    eps: Annotated[float | None, _near("--eps", "How far tokens may move.")] = None
    text: Annotated[str, _near("--text", "A text in UTF-8; Alice in Wonderland by default.", metavar="FILE")] = ALICE
    sentence: Annotated[str | None, _near("--sentence", "A sentence in place of a text, whole.")] = None
    window: Annotated[int, _near("--window", "Which window of n tokens, counted from 0.")] = 0
    within: Annotated[
        str, _near("--within", "The metric of --eps: token for each token, total for all together, ….", metavar="NAME")
    ] = "token"
    tokenizer: Annotated[
        str,
        _near(
            "--tokenizer",
            "A folder or hub id with the tokenizer; the model's own by default.",
            metavar="DIR",
            show_default=False,
        ),
    ] = ""

    def is_meant(self, radius: float | None) -> bool:
        """Tell whether inputs near a text are meant, and not those in a ball."""
        if self.eps is not None and radius is not None:
            raise AssumptionError(
                "give --radius for a ball, or --eps for the inputs near a text; got both.", field="eps"
            )
        for field in dataclasses.fields(self):
            if self.eps is None and getattr(self, field.name) != field.default:
                raise AssumptionError(f"--{field.name} is for inputs near a text; add --eps.", field=field.name)
        return self.eps is not None

    def check(self, source: LayerSource, n: int) -> None:
        """Refuse what cannot be searched, before anything is loaded."""
        if self.eps is None or not 0 < self.eps < math.inf:
            raise AssumptionError(f"--eps must be positive and finite, got {self.eps}.", field="eps")
        check_metric(self.within)
        if self.window < 0:
            raise AssumptionError(f"--window counts from 0, got {self.window}.", field="window")
        require_length(n)
        if source.layer is None:
            raise AssumptionError("--eps searches near a text, which a model reads; give a model and its --layer.")
        source.check()
        if self.tokenizer:
            check_tokenizer(self.tokenizer)
        if self.sentence is None:
            read_text(self.text)
        elif not self.sentence.strip() or self.text != ALICE or self.window:
            raise AssumptionError(
                "--sentence is one, with words, in place of --text and --window; leave these out.", field="sentence"
            )

    def read(self, source: LayerSource, n: int) -> "tuple[Any, Tensor, list[str]]":
        """Return a map of the model, what enters it at the window, and what the tokens of the window look like."""
        begin(f"Reading {source.model}")
        import torch

        from howsmooth.models.inputs.text import tokens_of
        from howsmooth.search.claims import on_batches

        set_threads(source.threads)
        model, layer = source.model or "", source.layer or 0
        transformer = hs.load(model, tokenizer=self.tokenizer or None, family=source.family or "", device=source.device)
        transformer.layer(layer).check(source.map)
        if self.sentence is None:
            tokens = transformer.windows(read_text(self.text), length=n, count=self.window + 1)[self.window :]
        else:
            tokens = torch.tensor([tokens_of(transformer.require_tokenizer(), self.sentence, self.sentence)])
            transformer.require_positions(tokens.shape[1], f"the sentence has {tokens.shape[1]}", field="sentence")
        f, batch = transformer.activations(tokens).at(layer, source.map)
        assert transformer.tokenizer is not None  # there would be no windows
        pieces = transformer.tokenizer.pieces(tokens[0].tolist())
        if not isinstance(f, hs.Attention):
            # a module that the model called with one window, whose masks and positions may not fit several
            module = f
            f = on_batches(lambda X: module(X) if X.ndim == 3 else module(X[None])[0], batch[0])
        return f, batch[0], pieces

    @property
    def about(self) -> dict[str, str]:
        """What is kept beside the input that was found."""
        tokenizer = {"tokenizer": self.tokenizer} if self.tokenizer else {}
        where = {"text": self.text, "window": str(self.window)}
        where = where if self.sentence is None else {"sentence": self.sentence}
        return where | {"eps": f"{self.eps!r}", "within": self.within} | tokenizer


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search, and where the answer goes."""

    search: OptionSearch = False
    metric: OptionMetric = "total"
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
        return {"steps": self.steps or STEPS, "starts": self.starts or STARTS, "seed": self.seed}


@option_groups
def worst_case(
    *,
    source: LayerSource,
    n: OptionN = None,
    radius: OptionRadius = None,
    near: NearText,
    how: SearchOptions,
) -> None:
    """Find n tokens in a ball where attention is least smooth, and how near they come to the proven maximum.

    Of a layer of a model, or of weights in a file. With --eps, find the worst input near a window of a text instead,
    and which words matter.

    Example: howsmooth worst-case minilm --layer 4 --map head:3 -n 64 -r 9
    """
    near_text = near.is_meant(radius)
    how.check(searches=how.search or near_text)
    if near_text:
        _near_text(source, near, TOKENS if n is None else n, how)
    else:
        if n is None or radius is None:
            missing = " and ".join(name for name, value in (("-n", n), ("--radius", radius)) if value is None)
            raise AssumptionError(
                f"tokens in a ball take -n and --radius, {missing} is missing; near a text take --eps."
            )
        require_length(n)
        require_radius(radius)
        _in_ball(source, n, radius, how)


def _near_text(source: LayerSource, near: NearText, n: int, how: SearchOptions) -> None:
    near.check(source, n)
    if how.metric != "total":
        raise AssumptionError(
            f"near a text the constant is measured in total, got --metric {how.metric}; --within says how --eps is "
            "measured.",
            field="metric",
        )
    how.begin(source, n)
    f, X, pieces = near.read(source, n)
    require_room(n, X.shape[-1])
    go_on("Looking for the worst input near the text")

    from torch import nn

    with ascent_bar(True, how.ascent["steps"]) as progress:
        ascent = how.ascent
        found = hs.search.worst_nearby(f, X, eps=near.eps or 0.0, metric=near.within, progress=progress, **ascent)
    require_range(found.witness)
    if how.as_json:
        print_json(_as_dict(near, found, pieces) | {"n": n})
    else:
        name = "attention by autograd" if isinstance(f, nn.Module) else repr(f)
        there = interval(float(found.there.lower), float(found.there.upper), digits=5)
        times = "" if found.growth is None else f" (at least {at_least(found.growth, 4)} times that)"
        proven = "" if found.upper is None else f"; no input so near exceeds {found.upper.digits}"
        worst = f"≥ {at_least(found.witness.value)} at the worst input near it{times}{proven}"
        _print_lines(f"Lip is {there} at the text, and {worst}", name, *_details(near, found, pieces))
    if how.save is not None:
        save_witness(found.witness, how.save, source.about | near.about, quiet=how.as_json)


def _in_ball(source: LayerSource, n: int, radius: float, how: SearchOptions) -> None:
    source.check()
    how.begin(source, n)
    attention = source.read()
    require_room(n, attention.d)
    go_on("Looking for the worst input, and for the smallest bound")

    ascent = how.ascent
    with within_reach(n, radius):
        bracket = hs.bracket(attention, n=n, radius=radius, metric=how.metric, seed=ascent["seed"])
        witness, origin = bracket.lower, ORIGINS.get(bracket.lower.name, bracket.lower.label)
        if how.search:
            witness, origin = _climb(attention, witness, radius, ascent, how.metric)
        require_range(witness)
        if how.as_json:
            about = {"n": n, "radius": radius, "metric": how.metric, "causal": attention.positions.causal}
            result = {"witness": witness.as_dict(), "upper": bracket.upper.as_dict()}
            share = _share(witness, bracket.upper)
            print_json(result | about | {"share": share})
        else:
            _print_witness(repr(attention), witness, bracket.upper, f"{bracket.upper.domain}; {origin}")
    if how.save is not None:
        save_witness(witness, how.save, source.about, quiet=how.as_json)


def _climb(
    attention: "MultiHead", known: "Witness", radius: float, ascent: dict[str, Any], metric: str
) -> "tuple[Witness, str]":
    """Search from the inputs of the theory and from random ones; return the worst input and where it comes from."""
    n, domain = known.tokens.shape[-2], hs.domains.Ball(radius)
    with ascent_bar(True, ascent["steps"]) as progress:
        found = hs.maximise(attention, n=n, domain=domain, metric=metric, progress=progress, **ascent)
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
    measured, share = witness.measured, _share(witness, upper)
    there = interval(float(measured.lower), float(measured.upper), digits=5)
    answer = f"Lip ≥ {at_least(witness.value)}; the proven maximum is {upper.digits}"
    if share is not None and share >= 1e-3:
        least = percent(math.floor(1000 * share) / 1000)
        answer = f"Lip ≥ {at_least(witness.value)}, at least {least} of the proven maximum {upper.digits}"
    _print_lines(
        answer,
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


def _largest(shares: "Tensor") -> str:
    """Name the tokens whose share is at least half of the largest; of many, the largest and how many they are."""
    order = shares.argsort(descending=True, stable=True).tolist()
    leading = [token for token in order if shares[token] >= shares[order[0]] / 2]
    if len(leading) > 3:
        most = f"token {leading[0]} with {percent(float(shares[leading[0]]))}"
        return f"{most}, and {len(leading) - 1} others with half as much or more"
    return ", ".join(f"token {token} with {percent(float(shares[token]))}" for token in sorted(leading))


def _as_dict(near: NearText, found: "Nearby", pieces: Sequence[str]) -> dict[str, Any]:
    """Return everything but the tensors as plain values, with a row for each word."""
    there, measured = found.there, found.witness.measured
    columns = {
        "word": [word for _space, word in words(pieces)],
        "moved": found.moved,
        "alone": found.alone,
        "sensitivity": measured.token_sensitivity.tolist(),
        "response": measured.token_response.tolist(),
    }
    rows = zip(*columns.values(), strict=True)
    return {
        "at_text": {"lower": float(there.lower), "upper": float(there.upper), "confidence": there.confidence},
        "witness": found.witness.as_dict(),
        "growth": found.growth,
        "upper": None if found.upper is None else found.upper.as_dict(),
        "refused": found.refused or None,
        **dataclasses.asdict(near),
        "words": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def _details(near: NearText, found: "Nearby", pieces: Sequence[str]) -> list[str]:
    """Say what was searched, and which words do it."""
    spelled = [word for _space, word in words(pieces)]
    radius = float(found.centre.double().norm(dim=-1).mean())
    eps, usual = number(near.eps or 0.0), "may move by {} in the Euclidean norm"
    may = {"total": f"all tokens together {usual}", "token": f"every token {usual}"}.get(
        near.within, f"tokens may move by {{}} in the metric {near.within}"
    )
    share = f"{percent((near.eps or 0.0) / radius)} of the mean norm of a token, {number(radius)}"
    measured = found.witness.measured
    said = [
        f"Text: {f'window {near.window} of {near.text}' if near.sentence is None else 'the sentence'}, "
        f"{count(len(pieces), 'token')}: {running_text(pieces)}",
        f"Near: {may.format(eps)}: {share}.",
        f"Moved furthest: {_most(spelled, found.moved, number)}.",
        f"Moved alone, worth most: {_most(spelled, found.alone, at_least)}.",
        f"Most sensitive there: {_most(spelled, measured.token_sensitivity.tolist(), percent)} of the worst direction.",
        f"Most moved there: {_most(spelled, measured.token_response.tolist(), percent)} of the response.",
    ]
    return said + ([f"Nothing is proven: {found.refused}"] if found.upper is None else [])


def _most(words: Sequence[str], values: Sequence[float], written: Callable[[float], str]) -> str:
    """Name the words with the largest values, by their places; or say that all are alike."""
    most, least = max(values), min(values)
    if len(values) > 1 and most - least <= 1e-4 * most:
        return f"all {len(values)} tokens alike, each {written(most)}"
    order = sorted(range(len(values)), key=lambda i: -values[i])
    return ", ".join(f"{words[i]!r} (token {i}) {written(values[i])}" for i in order[:NAMED])
