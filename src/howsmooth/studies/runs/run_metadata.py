"""What a run keeps beside its records, so that it can be read without its models: weights, notes, bounds, words."""

import contextlib
import json
from collections.abc import Callable, Iterable

import torch

from howsmooth.errors import AssumptionError, FileError
from howsmooth.maps.attention import Attention
from howsmooth.models.inputs.model_inputs import Inputs
from howsmooth.models.map_names import MapName
from howsmooth.models.transformer import Transformer
from howsmooth.studies.asks import AtText
from howsmooth.studies.json_values import fingerprint, from_json, to_json
from howsmooth.studies.kinds.text import TextAsk
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.store import Store
from howsmooth.studies.runs.summary import NO_BOUNDS, LayerSummary
from howsmooth.studies.sweep.workers import side_by_side
from howsmooth.theory.bounds import table
from howsmooth.theory.results import BoundsTable, NotApplicable
from howsmooth.theory.tables import VERSION

# How many heads a worst input is looked for at: the ladder is quick, and the best heads win almost always.
PROMISING = 1
# How many tokens say which window is meant.
OPENING = 8


def keep_model(store: Store, transformer: Transformer, notes: tuple[str, ...] = ()) -> None:
    """Keep what is known about a model before any work, and notes on what it reads."""
    stamp = None if transformer.stream is None else transformer.stream.files.stamp
    name = f"files of {transformer.name}"
    if stamp is not None and store.fact(name) == stamp:
        pass  # nobody has written to them since: reading all of them takes as long as the disk
    elif not store.agree(f"weights of {transformer.name}", transformer.digest):
        raise FileError(
            f"the run in {str(store.folder)!r} was begun with other weights of {transformer.name!r}; give another "
            "folder with out=.",
            field="out",
        )
    if stamp is not None:
        store.keep(name, stamp)
    store.keep(f"notes on {transformer.name}", to_json(transformer.notes + notes))


def kept_notes(store: Store, model: str) -> tuple[str, ...]:
    """Return what a reader has to know about a model."""
    return from_json(store.fact(f"notes on {model}") or "[]", tuple[str, ...])


def keep_ladders(
    store: Store, measurement: Measurement, transformer: Transformer, progress: Callable[[int], None] | None = None
) -> None:
    """Keep every bound for the layers of a measurement, unless they are kept already: about a second for each.

    Bounds of another version of the theorems are computed anew and replaced. Layers are shared out over the threads of
    torch. Before a layer is done, ``progress`` is called with its number.
    """
    ask = measurement.records[0].ask
    layers = sorted(measurement.layers, key=lambda found: found.layer)
    missing = [x for x in layers if kept_ladder(store, ask, x.layer, x.length, x.ball) is NO_BOUNDS]
    # blocks that come from their files come one after the other
    count = 1 if transformer.stream is not None else min(torch.get_num_threads(), len(missing))

    def found(layer: LayerSummary) -> BoundsTable:
        return _ladder(transformer, measurement.map, measurement.metric, layer.layer, layer.length, layer.ball)

    with contextlib.closing(side_by_side(found, missing, count=count)) as ladders:
        for layer in missing:
            if progress is not None:
                progress(layer.layer)
            versioned = {"version": VERSION} | json.loads(next(ladders).to_json())
            store.keep(_ladder_name(ask, layer.layer, layer.length, layer.ball), to_json(versioned))


def kept_ladder(
    store: Store, ask: TextAsk, layer: int, n: int, radius: float, *, outdated: bool = False
) -> BoundsTable:
    """Return the bounds that a run keeps for n tokens in a ball, by the theorems as they are now.

    Those of another version, or of a time without versions, count as none but for ``outdated=True``. An ask tells the
    map, and the weights by the name of the model: a run holds those of one model under each, see :func:`keep_model`.
    """
    kept = store.fact(_ladder_name(ask, layer, n, radius))
    if kept is None or (json.loads(kept).get("version") != VERSION and not outdated):
        return NO_BOUNDS
    return BoundsTable.from_json(kept)


def _ladder_name(ask: TextAsk, layer: int, n: int, radius: float) -> str:
    name = f"bounds of {ask.model}, {ask.map}, layer {layer}, n = {n}, R = {radius:.12g}"
    # the same weights make another map where a family multiplies scores by another factor
    family = f", read as {ask.reading.family}" if ask.reading.family else ""
    return name + ("" if ask.metric == "total" else f", {ask.metric}") + family


def _ladder(transformer: Transformer, part: str, metric: str, layer: int, n: int, radius: float) -> BoundsTable:
    """Compute every bound for a part of a layer; or why there is none."""
    refused = "the theorems are about attention alone."
    alone = transformer.layers[layer].attention is not None and part != "block"
    f = transformer.layer(layer).map(part) if alone and not MapName.parse(part).spans_layers else None
    try:
        found = table(f, n=n, radius=radius, heads=PROMISING, metric=metric) if isinstance(f, Attention) else None
    except AssumptionError as error:
        found, refused = None, str(error)
    return BoundsTable(bounds=(), refused=(NotApplicable(name="all", reason=refused),)) if found is None else found


def keep_words(store: Store, asks: Iterable[AtText], inputs: Inputs) -> None:
    """Keep how every window begins, and the whole of the first one of the longest length; of pictures their names."""
    windows = {(ask.window.length, ask.window.index): ask for ask in asks}
    longest = first_of_the_longest(windows.values())
    words = {
        (length, index): inputs.words(index, length=length, stride=ask.window.stride)
        for (length, index), ask in windows.items()
    }
    noted = {opening_key(ask): words[place][:OPENING] for place, ask in windows.items()}
    whole = words[longest.window.length, longest.window.index]
    # a picture has one word, its name, for all of its tokens
    kept = {window_key(longest): whole} if len(whole) == longest.window.length else {}
    if any(store.window(key) not in ((), tuple(words)) for key, words in noted.items()):
        raise FileError(
            f"the run in {str(store.folder)!r} was begun with another tokenizer of the same name; give another folder "
            "with out=.",
            field="out",
        )
    store.note_windows(noted | kept)


def first_of_the_longest(asks: Iterable[AtText]) -> AtText:
    """Return the ask whose tokens are kept whole."""
    return min(asks, key=lambda ask: (-ask.window.length, ask.window.index, ask.layer))


def window_key(ask: AtText) -> str:
    """Name a window of a text as a model sees it."""
    return fingerprint([ask.model, ask.window])


def opening_key(ask: AtText) -> str:
    """Name the first few tokens of a window."""
    return f"opening of {window_key(ask)}"
