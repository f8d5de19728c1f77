"""``howsmooth swap``: which words to replace by which, so that the output of a model moves most."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import howsmooth as hs
from howsmooth.cli.options import (
    LENGTH,
    ArgumentModel,
    OptionDevice,
    OptionJson,
    OptionSeed,
    OptionThreads,
    checked,
    require_page,
    set_threads,
)
from howsmooth.cli.printing import begin, go_on, print_json, say
from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.names import RANDOM
from howsmooth.models.map_names import MAPS, MapName
from howsmooth.report.drawing.token_text import words
from howsmooth.studies.settings import command
from howsmooth.tokens.swap_settings import BUDGET, ENUMERATION, METHODS, check_search, read_candidates
from howsmooth.wording import at_least, count, number

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.models.inputs.text import HubTokenizer
    from howsmooth.models.transformer import Transformer
    from howsmooth.tokens.swaps import Swap

# How many tokens of a text are taken by default.
TOKENS = 16

OptionText = Annotated[
    str | None, typer.Option("--text", metavar="FILE", help="The beginning of a text; alice is shipped.")
]
OptionSentence = Annotated[str | None, typer.Option("--sentence", help="A sentence, whole.")]
OptionN = Annotated[int, typer.Option(*LENGTH, help="With --text: how many tokens.", min=1)]
OptionEdits = Annotated[int, typer.Option("--edits", help="How many tokens may be replaced.")]
OptionMap = Annotated[str, typer.Option("--map", help=f"Which output: {', '.join(MAPS)}.")]
OptionMethod = Annotated[
    str | None,
    typer.Option("--method", help=f"{', '.join(METHODS)}; by default {ENUMERATION} where it can be done, else gcg."),
]
OptionBudget = Annotated[int | None, typer.Option("--budget", help=f"How many passes to take; {BUDGET} by default.")]
OptionCandidates = Annotated[
    str | None,
    typer.Option("--candidates", metavar="FILE", help='What may come in, JSON: {"king": ["queen"]} or ["queen"].'),
]
OptionAny = Annotated[
    bool, typer.Option("--any-token", help="Also allow tokens that cannot occur alone in text, such as ##ing.")
]


def swap(
    model: ArgumentModel,
    *,
    text: OptionText = None,
    sentence: OptionSentence = None,
    n: OptionN = TOKENS,
    edits: OptionEdits = 1,
    map: OptionMap = "sentence",  # noqa: A002 — what everything else calls it
    layer: Annotated[int, typer.Option("--layer", "--layers", help="Of which layer, for a map of one.", min=0)] = 0,
    method: OptionMethod = None,
    budget: OptionBudget = None,
    candidates: OptionCandidates = None,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Replace words by words.")] = False,
    any_token: OptionAny = False,
    seed: OptionSeed = 0,
    device: OptionDevice = None,
    threads: OptionThreads = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE.html", help="Write a report, one file.", callback=checked(require_page)
        ),
    ] = None,
    as_json: OptionJson = False,
) -> None:
    """Find the words to replace, and by which, that move the output of a model most.

    Example: howsmooth swap minilm --sentence "The king was in the garden." --whole-words
    """
    if (text is None) == (sentence is None):
        raise AssumptionError("give either --sentence or --text, as in --sentence 'The king slept.'", field="sentence")
    if sentence is not None and not sentence.strip():
        raise AssumptionError("--sentence must hold words, got nothing.", field="sentence")
    if model.startswith(RANDOM):
        raise UnsupportedModelError(
            f"{model!r} comes without a tokenizer of words; give a model that reads.", field="model"
        )
    MapName.parse(map)
    check_search(map, layer=layer, edits=edits, method=method, budget=budget)
    content = str(sentence) if text is None else read_text(text).content
    listed = None if candidates is None else read_candidates(candidates)

    begin(f"Reading {model}")
    set_threads(threads)
    transformer = hs.load(model, device=device)
    transformer.check_map(map, layer)
    tokens = read_tokens(transformer, content, whole=text is None, n=n, round_trip=not any_token)
    go_on("Comparing swaps")
    found = hs.swap(
        transformer,
        tokens,
        map=map,
        layer=layer,
        edits=edits,
        method=method,
        budget=budget,
        seed=seed,
        candidates=listed,
        whole_words=whole_words,
        round_trip=not any_token,
    )
    _print(transformer, found, as_json, out)


def read_tokens(transformer: "Transformer", content: str, *, whole: bool, n: int, round_trip: bool) -> "Tensor":
    """Return a sentence as a model reads it, between its special tokens; or the first tokens of a text."""
    import torch

    from howsmooth.models.inputs.text import HubTokenizer, tokens_of

    tokenizer = transformer.tokenizer
    if not isinstance(tokenizer, HubTokenizer):
        raise UnsupportedModelError(
            f"{transformer.name!r} comes without a tokenizer of words, so there is no text to change.", field="model"
        )
    inner = tokens_of(tokenizer, content[: 64 * n] if not whole else content, "the text")
    inner = inner if whole else inner[:n]
    if round_trip and (tokenizer.unknown in inner or tokenizer.encode(tokenizer.decode(inner)) != inner):
        raise AssumptionError(
            f"the tokenizer of {transformer.name!r} cannot give this text back: it reads "
            f"{tokenizer.decode(inner)[:60]!r}; change the text, or add --any-token.",
            field="text",
        )
    before, behind = tokenizer.frame()
    tokens = torch.tensor(before + inner + behind)
    limit = transformer.max_length
    if limit is not None and len(tokens) > limit:
        raise AssumptionError(
            f"{transformer.name!r} has positions for {limit} tokens, and the text has {len(tokens)}; shorten it.",
            field="text",
        )
    return tokens


def marked(tokenizer: "HubTokenizer", tokens: "Tensor", places: tuple[int, ...]) -> str:
    """Return tokens as running text, with brackets around some of them."""
    shown = ""
    for i, (space, word) in enumerate(words(tokenizer.pieces(tokens.tolist()))):
        if int(tokens[i]) not in tokenizer.special:
            shown += f"{' ' if space else ''}{f'[{word}]' if i in places else word}"
    return shown.strip()


def _flip(found: "Swap") -> str:
    """Say whether the predicted class changes, and in how many of the sequences that were tried."""
    if found.classes is None:
        return ""
    before, after = found.classes
    said = f" The class stays {before!r}" if before == after else f" The class changes from {before!r} to {after!r}"
    return f"{said}." if found.flips is None else f"{said}; {found.flips:,} of those that were run change it."


def _print(transformer: "Transformer", found: "Swap", as_json: bool, out: str | None) -> None:
    """Print the words before and after, and what they do; write them as a page, if that was asked for."""
    tokenizer = cast("HubTokenizer", transformer.tokenizer)  # or there would be no text
    before, after = (marked(tokenizer, row, found.positions) for row in (found.tokens, found.swapped))
    old, new = (tokenizer.pieces(row.tolist()) for row in (found.tokens, found.swapped))
    swaps = [{"position": i, "from": old[i], "to": new[i]} for i in found.positions]
    angle = "" if found.cosine is None else f", cosine {number(found.cosine, 4)}"
    of = f"{'the worst of all' if found.proven else 'the best of'} {count(found.tried, 'sequence')}"
    answer = f"The output moves by {at_least(found.displacement, 4)}{angle}: {of} ({found.method}).{_flip(found)}"
    if as_json:
        said = {"model": transformer.name, "before": before, "after": after, "swaps": swaps}
        print_json(found.as_dict() | said)
    else:
        say(answer)
        say(f"  {before}")
        say(f"  {after}")
        where = f"{found.map} of layer {found.layer}" if found.cosine is None else found.map
        cost = count(found.passes, "pass", "passes")
        say(f"{where} of {transformer.name}, {count(len(found.tokens), 'token')}, {cost}.")
    if out is None:
        return
    from howsmooth.report.result_page import write_result

    layer = ["--layer", str(found.layer)] if found.layer else []
    report = write_result(
        Path(out),
        title=f"Which words move {transformer.name} most?",
        lead=(answer,),
        lines=[[(word.strip("[]"), word.startswith("[")) for word in line.split()] for line in (before, after)],
        columns=("position", "word", "replaced by"),
        rows=[list(map(str, each.values())) for each in swaps],
        legend="How far the output moves is its Euclidean norm; the words in between are as they were. "
        + ("Every allowed swap was tried." if found.proven else "Other swaps may move it further."),
        command=command(
            *("swap", transformer.name, "--sentence", marked(tokenizer, found.tokens, ())), "--map", found.map, *layer
        ),
    )
    say(f"The report is {report}.", err=as_json)
