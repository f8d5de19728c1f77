"""Where the parts of a layer are, for families that are not known: found in one run, by what is added to what."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.names import head_number
from howsmooth.models.tracing import Event, Place

# How many units in the last place a sum may be off that was added up in another order.
UNITS = 16
Found = tuple[Place, ...] | str

NO_SUM = (
    "no module of this model was seen to read, or to put out, the sum of the residual stream and what its attention "
    "puts out, so that its output projection is not known; use map='block', which is measured as a whole."
)
NO_FORM = "{name!r} needs a family that is read in closed form, which this model's is not; use map='block'."
NO_BLOCK = "this model keeps attention and MLP apart, so that no module is a block; use map='attention'."
NO_PROJECTION = (
    "the output projection of this model's attention is no module of its own, so that its heads cannot be told apart; "
    "use map='attention'."
)
NOT_IN_FRONT = "this model normalises behind attention, not in front of it; use map='residual', or 'attention'."
NO_RESIDUAL = "the residual sum of a layer that is differentiated by autograd is not measured; use map='block'."
NO_HEADS = (
    "which columns of the output projection belong to which head could not be seen in this model; use map='heads' for "
    "all of them."
)


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """Where the parts of a layer are, each as places or the reason why it is not known.

    Attributes:
        attention: What attention puts out, with its output projection.
        heads: What the output projection reads.
        normed: The same as attention, where a norm stands in front.
        residual: The residual sum, normed if the norm comes behind.
        block: Nothing but a reason, where there is no block.
        projection: The path of the output projection.
        head_count: How many heads the projection reads, one after the other.
    """

    attention: Found = NO_SUM
    heads: Found = NO_SUM
    normed: Found = NO_SUM
    residual: Found = NO_SUM
    block: Found = ()
    projection: str = ""
    head_count: int | str = NO_HEADS

    def places(self, name: str) -> tuple[Place, ...]:
        """Return where a part is heard.

        Raises:
            AssumptionError: If it is not known, or the layer has no such head.
        """
        found = self.heads if name.startswith("head:") else getattr(self, name, NO_FORM.format(name=name))
        if not isinstance(found, str) and name.startswith("head:"):
            found = self._refuse_head(head_number(name)) or found
        if isinstance(found, str):
            raise AssumptionError(found, field="map")
        return found

    def _refuse_head(self, h: int) -> str:
        if isinstance(self.head_count, str):
            return self.head_count
        return "" if 0 <= h < self.head_count else f"this layer has the heads 0 to {self.head_count - 1}, got head:{h}."


def anatomy_of(events: Sequence[Event], *, reads: str, block: str, shape: tuple[int, ...]) -> Anatomy | None:
    """Find the parts of a layer in a run; none if its attention did not run.

    Args:
        events: All calls of the run.
        reads: The path of the innermost attention module.
        block: The path of its block; the same, where there is none.
        shape: How many sequences were run, and of how many tokens if that is known.
    """
    own = next((event for event in events if event.path == reads), None)
    if own is None:
        return None
    scope = _scope(events, own, block)
    around = next((event for event in scope if event.path == block), own)
    whole = _strange(around, shape) if block != reads else NO_BLOCK
    if reason := _strange(own, shape) or _several(own):
        return Anatomy(attention=reason, heads=reason, normed=reason, residual=reason, block=whole or ())
    streams = [around.tokens, own.tokens]
    found = _find_sum(scope, own, streams)
    if found is None:
        return Anatomy(block=whole or ())
    return Anatomy(
        attention=(found.output.place,),
        heads=_heads(found.output),
        normed=_normed(streams, found) if not whole else NO_BLOCK,
        residual=NO_BLOCK if whole else _residual(scope, found, around),
        block=whole or (),
        projection="" if found.output.projection is None else found.output.projection.path,
    )


class Form(NamedTuple):
    """What attention puts out, at some point of its way to the residual sum.

    Attributes:
        place: Where the output of attention itself is heard: behind the projection.
        value: The tensor at this point; norms and scalings may have come in between.
        heard: Where that is heard.
        projection: The call of the output projection, if it is a module.
    """

    place: Place
    value: Tensor
    heard: Place
    projection: Event | None


class Sum(NamedTuple):
    """The residual sum: what is added to which stream, and where it is heard; nowhere if the MLP is added at once."""

    output: Form
    stream: Place
    heard: tuple[Place, Tensor, int] | None


def _scope(events: Sequence[Event], own: Event, block: str) -> list[Event]:
    """Return the calls within the block; without one, those up to the next call of a module of the same kind."""
    around = next((event for event in events if event.path == block), None)
    if around is not None and block != own.path:
        return _counted(e for e in events if around.begin <= e.begin and e.end <= around.end)
    kin = [e.begin for e in events if type(e.call.module) is type(own.call.module) and e.begin > own.end]
    return _counted(event for event in events if own.begin <= event.begin < min(kin, default=10**9))


def _counted(events: Iterable[Event]) -> list[Event]:
    """Count the calls of each module from the first of these on: layers may share modules."""
    turns: Counter[str] = Counter()
    counted = []
    for event in events:
        counted.append(dataclasses.replace(event, turn=turns[event.path]))
        turns[event.path] += 1
    return counted


def _strange(event: Event, shape: tuple[int, ...]) -> str:
    """Say why what a module reads is no batch of sequences, if so."""
    try:
        X = event.call.tokens
    except UnsupportedModelError as error:
        return str(error)
    if X.ndim == 3 and X.shape[: len(shape)] == shape:
        return ""
    wanted = ("sequences", "tokens")[: len(shape)]
    return (
        f"a {type(event.call.module).__name__} of this model reads a tensor of the shape {tuple(X.shape)} for "
        f"{' and '.join(f'{n} {name}' for n, name in zip(shape, wanted, strict=True))}; we need the axes (sequences, "
        "tokens, features)."
    )


def _several(own: Event) -> str:
    X, others = own.call.tokens, (*own.call.positional, *own.call.named.values())
    sequences = [x for x in others if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3 and x is not X]
    if any(x.shape[0] == X.shape[0] and x.shape[2] == X.shape[2] for x in sequences):
        return "this model's attention is given several sequences, not one on which all depends; use map='block'."
    return ""


def _find_sum(scope: Sequence[Event], own: Event, streams: list[tuple[Place, Tensor]]) -> Sum | None:
    seen = _seen(scope, own.end)
    forms = list(_forms(scope, own))
    for form in forms:
        for place, stream in streams:
            for where, tensor, when in seen:
                if _is_step(tensor, stream, form.value):
                    return Sum(form, place, (where, tensor, when))
    # some add attention and MLP to the stream in one go
    outputs = [x for event in scope for x in event.writes]
    for form in forms:
        for place, stream in streams:
            if stream.numel() != form.value.numel():
                continue
            if _goes_on(stream + form.value.reshape(stream.shape), seen, outputs):
                return Sum(form, place, None)
    return None


def _seen(scope: Iterable[Event], after: int) -> list[tuple[Place, Tensor, int]]:
    """Return all that modules read or put out from some moment on, and when."""
    read = [(place, x, e.begin) for e in scope if e.begin >= after for place, x in e.places("reads")]
    written = [(place, x, e.end) for e in scope if e.end >= after for place, x in e.places("writes")]
    return sorted(read + written, key=lambda item: item[2])


def _forms(scope: Sequence[Event], own: Event) -> Iterable[Form]:
    """Yield what attention may be putting out: what its module does, what simple modules make of that, parts inside."""
    if not own.writes:
        return
    inside = [e for e in scope if own.begin < e.begin and e.end < own.end and _is_linear(e.call.module) and e.writes]
    last = next((e for e in reversed(inside) if _same(e.writes[0], own.writes[0])), None)
    place = Place(path=own.path, side="writes")
    forms = [Form(place, own.writes[0], place, last)]
    for event in sorted(scope, key=lambda e: e.begin):
        if event.begin < own.end or any(event.call.module.children()) or not (event.reads and event.writes):
            continue
        source = next((form for form in reversed(forms) if _same(form.value, event.reads[0])), None)
        if source is None or (_is_linear(event.call.module) and source.projection is not None):
            continue
        heard = Place(path=event.path, turn=event.turn, side="writes")
        if _is_linear(event.call.module):
            forms.append(Form(heard, event.writes[0], heard, event))
        else:
            forms.append(source._replace(value=event.writes[0], heard=heard))
    yield from forms
    for event in reversed(inside):  # some modules add the residual themselves
        heard = Place(path=event.path, turn=event.turn, side="writes")
        yield Form(heard, event.writes[0], heard, event)


def _heads(output: Form) -> Found:
    projection = output.projection
    if projection is None:
        return NO_PROJECTION
    return (Place(path=projection.path, turn=projection.turn, side="reads"),)


def _normed(streams: list[tuple[Place, Tensor]], found: Sum) -> Found:
    (_block, stream), (_own, X) = streams
    if not _same(stream, X):
        return (found.output.place,)
    return NOT_IN_FRONT


def _residual(scope: Sequence[Event], found: Sum, around: Event) -> Found:
    if found.heard is None:
        return (found.stream, found.output.heard)
    place, total, when = found.heard
    later = _seen(scope, when)
    outputs = [x for event in scope if event.begin >= when for x in event.writes]
    if _ends(total, around) or _goes_on(total, later, outputs):
        return (place,)
    norms = [e for e in scope if e.begin >= when and e.reads and e.writes and _same(e.reads[0], total)]
    for event in norms:
        if not any(event.call.module.children()) and (
            _ends(event.writes[0], around) or _goes_on(event.writes[0], later, outputs)
        ):
            return (Place(path=event.path, turn=event.turn, side="writes"),)
    return "what this model makes of the residual sum behind attention could not be seen; use map='block'."


def _ends(x: Tensor, around: Event) -> bool:
    return bool(around.writes) and _same(x, around.writes[0])


def _goes_on(total: Tensor, seen: Iterable[tuple[Place, Tensor, int]], outputs: Sequence[Tensor]) -> bool:
    """Tell whether something is added to a stream later."""
    steps = [x for x in outputs if x.numel() == total.numel()]
    return any(_is_step(tensor, total, x) for _place, tensor, _when in seen for x in steps)


def _is_step(total: Tensor, stream: Tensor, step: Tensor) -> bool:
    """Tell whether a sum is the stream and a positive multiple of the step, as far as rounding lets one tell."""
    if not total.numel() == stream.numel() == step.numel():
        return False
    total, stream, step = (x.reshape(-1) for x in (total, stream, step))
    moved = total - stream
    size = step @ step
    factor = (moved @ step) / size if size > 0 else size
    if not factor > 0:
        return False
    slack = UNITS * torch.finfo(total.dtype).eps * (total.abs() + stream.abs() + (factor * step).abs())
    told = (factor * step).abs() > 100 * slack  # a step that rounding hides proves nothing
    return bool(((moved - factor * step).abs() <= slack).all()) and bool(told.double().mean() > 0.5)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.reshape(-1), b.reshape(-1))


def _is_linear(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)
