"""Probe: what every attention head does while a model is trained, read from its calls of fused attention."""

import contextlib
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from numbers import Real
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howsmooth.attention_calls import calls_observed
from howsmooth.errors import AssumptionError, SmoothnessWarning
from howsmooth.markup import finite
from howsmooth.models.loading.adapters import unwrapped
from howsmooth.scaled_dot_product import Settings, accumulated, arrange, tiles
from howsmooth.training.hooks import NAMES, real_tokens
from howsmooth.training.readings import FACTOR, HeadAlarm, HeadReading, Look, as_sink

# Scores that a mask hides: finite, so that weight zero times score is zero.
HIDDEN = -1e30
# A logit that doubles is no alarm below this: a softmax of such scores is far from saturated.
SMALL_LOGIT = 5.0
# A logit that doubles within so many looks is an alarm.
LOOKS = 10


def probe(
    model: nn.Module,
    *,
    every: int = 50,
    limit: float = 100.0,
    window: int | None = None,
    sinks: Iterable[object] = (),
) -> "Probe":
    """Watch every attention head of a model: ``with hs.probe(model, every=50) as probe: train()``.

    At every ``every``-th forward pass each call of ``torch.nn.functional.scaled_dot_product_attention`` (models of the
    transformers library: ``attn_implementation="sdpa"`` or ``"howsmooth"``) is read once more, tile by tile and
    without the matrix of weights: the largest logit, the entropy, the weight on the first token, the sensitivity of the
    softmax, norms of queries and keys, the share of rows with a weight above ½. Padded tokens are left out; masks,
    windows and packed sequences are those of the call.

    Args:
        model: The model; values and gradients stay as they are.
        every: How many forward passes lie between two looks. Passes in the other mode (evaluation while training)
            are not counted.
        limit: A largest logit above it is an alarm.
        window: A largest logit above 5 that doubles within so many passes is an alarm; ten times ``every`` by default.
        sinks: Where looks go, as for :class:`howsmooth.Monitor`: anything with a ``log(dict)``.

    Raises:
        AssumptionError: If a setting is none.
    """
    return Probe(model, every=every, limit=limit, window=window, sinks=sinks)


class Probe:
    """What :func:`probe` returns: a context manager that keeps what it read.

    Attributes:
        looks: The results so far.
        steps: The number of forward passes.
    """

    def __init__(
        self, model: nn.Module, *, every: int, limit: float, window: int | None, sinks: Iterable[object]
    ) -> None:
        """Prepare; nothing is recorded before the ``with`` block."""
        _check(every=every, limit=limit, window=window)
        self._model, self._every, self._limit = unwrapped(model), every, float(limit)
        self._window = LOOKS * every if window is None else window
        self._sinks = [as_sink(sink) for sink in sinks]
        self._resources, self._blocks = contextlib.ExitStack(), 0  # blocks may be nested: callbacks open one, too
        self._opened = False
        self._pass = contextlib.ExitStack()
        self._layers: list[list[HeadReading]] = []
        self._real: Tensor | None = None
        self._training, self._unseen, self._spent, self._begin = True, False, 0.0, 0.0
        self.steps = 0
        self.looks: list[Look] = []

    def __enter__(self) -> "Probe":
        self._blocks, self._opened = self._blocks + 1, True
        if self._blocks > 1:
            return self
        self._training, self._begin = self._model.training, time.perf_counter()
        before = self._model.register_forward_pre_hook(self._before, with_kwargs=True)
        after = self._model.register_forward_hook(self._after, always_call=True)
        self._resources.callback(before.remove)
        self._resources.callback(after.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks -= 1
        if self._blocks == 0:
            self._resources.close()

    @property
    def alarms(self) -> list[HeadAlarm]:
        """Every alarm so far."""
        return [alarm for look in self.looks for alarm in look.alarms if isinstance(alarm, HeadAlarm)]

    def __repr__(self) -> str:
        return f"Probe({self.steps} steps, {len(self.looks)} looks, {len(self.alarms)} alarms)"

    @property
    def overhead(self) -> float:
        """The time of the probe, as a share of the time without it."""
        return self._spent / max(time.perf_counter() - self._begin - self._spent, 1e-9)

    def step(self, _batch: object = None) -> Look | None:
        """Return what the last forward pass showed, once; what the callbacks of Trainers call.

        Raises:
            AssumptionError: If no ``with`` block was ever opened: nothing is recorded outside of it.
        """
        self._require_block()
        found = self.looks[-1] if self._unseen else None
        self._unseen = False
        return found

    def frame(self) -> dict[str, list[float]]:
        """Return one column for each number, as ``pandas.DataFrame`` and ``polars.DataFrame`` take them."""
        self._require_block()
        rows = [vars(head) for look in self.looks for head in look.heads]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def summary(self) -> dict[str, Any]:
        """Return the last reading of every head and all alarms, as JSON takes them, thresholds included."""
        self._require_block()
        return finite(
            {
                "steps": self.steps,
                "looks": len(self.looks),
                "thresholds": {"limit": self._limit, "factor": FACTOR, "window": self._window, "above": SMALL_LOGIT},
                "heads": [dict(vars(head)) for look in self.looks[-1:] for head in look.heads],
                "alarms": [{"text": str(a), "step": a.reading.step, "layer": a.reading.layer, "head": a.reading.head}
                           for a in self.alarms],
            }
        )  # fmt: skip

    def _require_block(self) -> None:
        if not self._opened:
            raise AssumptionError(
                "the probe records within its `with` block, and none was opened: train within "
                "`with hs.probe(model) as probe:`."
            )

    def _before(self, _model: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._model.training != self._training:
            return
        self.steps += 1
        if self.steps % self._every:
            return
        tokens = next((x for x in (*positional, *(named.get(name) for name in NAMES)) if isinstance(x, Tensor)), None)
        self._real = None if tokens is None else real_tokens(named.get("attention_mask"), tokens)
        self._layers = []
        self._pass.enter_context(calls_observed(self._observe))

    def _after(self, *_call: Any) -> None:
        if not self.steps or self.steps % self._every or self._model.training != self._training:
            return
        self._pass.close()
        heads = tuple(head for layer in self._layers for head in layer)
        if not heads:
            raise AssumptionError(
                "the model made no call of torch.nn.functional.scaled_dot_product_attention, so there is nothing to "
                "probe; load it with attn_implementation='sdpa' or 'howsmooth', not 'eager' or a compiled graph.",
                field="model",
            )
        look = Look(step=self.steps, heads=heads, alarms=tuple(self._alarms(heads)), overhead=self.overhead)
        self.looks.append(look)
        self._unseen = True
        for sink in self._sinks:
            sink.write(look)
        for alarm in look.alarms:
            warnings.warn(str(alarm), SmoothnessWarning, stacklevel=3)

    @torch.no_grad()
    def _observe(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        begin = time.perf_counter()
        found = head_statistics(
            query, key, value, attn_mask, self._real, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        columns = {name: numbers.tolist() for name, numbers in found.items()}
        self._layers.append(
            [
                HeadReading(step=self.steps, layer=len(self._layers), head=head, **dict(zip(columns, row, strict=True)))
                for head, row in enumerate(zip(*columns.values(), strict=True))
            ]
        )
        self._spent += time.perf_counter() - begin

    def _alarms(self, heads: tuple[HeadReading, ...]) -> Iterator[HeadAlarm]:
        recent = [look for look in self.looks if self.steps - look.step <= self._window]
        alarmed = {(a.reading.layer, a.reading.head): a.reading.step for a in self.alarms}
        for place, head in enumerate(heads):
            # after an alarm, later readings are compared with that one
            since = alarmed.get((head.layer, head.head), 0)
            before = [look.heads[place] for look in recent if look.step >= since and place < len(look.heads)]
            least = min(before, key=lambda r: r.largest_logit, default=None)
            if not math.isfinite(head.largest_logit):
                yield HeadAlarm(reading=head)
            elif least is not None and head.largest_logit >= max(FACTOR * least.largest_logit, SMALL_LOGIT):
                yield HeadAlarm(reading=head, since=least)
            elif head.largest_logit > self._limit and not any(r.largest_logit > self._limit for r in before):
                yield HeadAlarm(reading=head, limit=self._limit)


def _check(*, every: int, limit: float, window: int | None) -> None:
    for name, value in (("every", every), ("window", 1 if window is None else window)):
        if isinstance(value, bool) or not (isinstance(value, int) and value >= 1):
            raise AssumptionError(f"{name} must be a whole number, at least 1, got {value!r}.", field=name)
    if isinstance(limit, bool) or not (isinstance(limit, Real) and limit > 0):
        raise AssumptionError(f"limit must be a positive number, got {limit!r}.", field="limit")


def head_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    real: Bool[Tensor, "batch n"] | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Float[Tensor, " heads"]]:
    """Return the numbers of :class:`~howsmooth.training.readings.HeadReading` for every head of one call of attention.

    Heads are the third axis from the end. The arguments are those of :func:`howsmooth.sdpa`, and which are ``real``.
    """
    inputs, settings = arrange(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    q, k, _v, *masks = inputs
    logits, peaks, entropies, first = _row_statistics(q, k, masks[0] if masks else None, settings)
    heads = q.shape[-4:-2] if enable_gqa else q.shape[-3:-2]
    counted = (logits > HIDDEN / 2) | logits.isnan()  # rows that see something
    keys = torch.ones(k.shape[:-1], dtype=torch.bool, device=k.device)
    if real is not None and real.shape == (q.shape[0], q.shape[-2]):
        by_row = real.view(len(real), *(1,) * (q.ndim - 3), -1)
        counted, keys = counted & by_row, keys & by_row if k.shape[-2] == q.shape[-2] else keys
    at_most_one = torch.maximum(4 * peaks * (1 - peaks), torch.where(peaks < 0.5, 1 - peaks.square(), 0.0))
    query_norms, key_norms = (torch.linalg.vector_norm(x, dim=-1, dtype=accumulated(x.dtype)) for x in (q, k))

    def mean(x: Tensor, where: Tensor = counted) -> Tensor:
        x, where = (_by_head(y, len(heads)) for y in (x, where))
        return torch.where(where, x, 0.0).sum(-1) / where.sum(-1).clamp(min=1)

    def largest(x: Tensor, where: Tensor = counted) -> Tensor:
        x, where = (_by_head(y, len(heads)) for y in (x, where))
        return torch.where(where, x, -math.inf).amax(-1)

    return {
        "largest_logit": largest(logits),
        "entropy": mean(entropies),
        "first_token": mean(first),
        "sensitivity": mean(at_most_one),
        "largest_query": largest(query_norms),
        "mean_query": mean(query_norms),
        "largest_key": largest(key_norms, keys),
        "mean_key": mean(key_norms, keys),
        "peaked": mean((peaks > 0.5).to(peaks)),
    }


def _by_head(x: Tensor, axes: int) -> Tensor:
    """Return all rows of each head; heads may be two axes, groups and their members."""
    x = x.flatten(-1 - axes, -2).flatten(0, -3) if x.ndim > axes + 1 else x.flatten(0, -2).unsqueeze(0)
    return x.movedim(-2, 0).flatten(1)


def _row_statistics(q: Tensor, k: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    """Return the largest logit, the largest weight, the entropy and the weight on first tokens of every row."""
    starts = _first_tokens(mask, q.shape[-2], k.shape[-2])
    found = q.new_empty(4, *q.shape[:-1], dtype=accumulated(q.dtype))
    for tile in tiles(q.shape[:-2], q.shape[-2], k.shape[-2], causal=settings.causal):
        S = torch.bmm(tile.restrict(q, "rows") * settings.scale, tile.restrict(k, "columns").mT)
        if (hidden := tile.hidden(settings, q.device)) is not None:
            S.masked_fill_(hidden, HIDDEN)
        if mask is not None:
            part = tile.restrict(mask, "scores")
            S = S.masked_fill_(~part, HIDDEN) if part.dtype == torch.bool else S.add_(part).clamp_(min=HIDDEN)
        logits, P = S.amax(-1), torch.softmax(S, -1)
        peaks = P.amax(-1)
        # log-sum-exp less the mean score
        entropies = logits - peaks.log() - torch.linalg.vecdot(P, S)
        if starts is None:
            first = P[..., 0]
        else:
            of_tile = tile.restrict(starts, "scores").to(P.dtype)
            first = torch.matmul(P, of_tile.mT).squeeze(-1)
        region = found[(slice(None), *tile.batch, tile.rows)]
        region.copy_(torch.stack((logits, peaks, entropies, first)).view(region.shape))
    return found


def _first_tokens(mask: Tensor | None, n_q: int, n_k: int) -> Bool[Tensor, "*batch 1 n_k"] | None:
    """Return which keys begin a sequence: the first that a row may see is its own; none if only the first of all does.

    Packed sequences have a first token each, and padding on the left comes before the first one.
    """
    if mask is None:
        return None
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    first = allowed.to(torch.uint8).argmax(-1).expand(*mask.shape[:-2], n_q)
    places = torch.arange(n_k, device=mask.device)
    if n_q != n_k:
        return (places == first[..., :1]).unsqueeze(-2)
    return ((places == first) & allowed.expand(*mask.shape[:-2], n_q, n_k).any(-1)).unsqueeze(-2)
