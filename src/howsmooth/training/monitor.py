"""Watch the constants of a model while it is trained, for a share of the time that is kept."""

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, NonFiniteError, SmoothnessWarning
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.entropy import attention_entropy
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models.activations import Activations
from howsmooth.models.load import read_anew
from howsmooth.models.map_names import MapName
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.settings import check_solver
from howsmooth.spectral.solvers import bracket_norm
from howsmooth.spectral.typical import mean_gain, typical_gain_of
from howsmooth.training.alarms import Watch
from howsmooth.training.batches import read_batch
from howsmooth.training.budget import Budget
from howsmooth.training.hooks import borrowed, unwrapped
from howsmooth.training.readings import Alarm, Look, Reading
from howsmooth.training.sinks import sink_of

_LOG = logging.getLogger("howsmooth")
# Random directions for the typical gain, and how many tokens an alarm names.
SAMPLES, NAMED = 4, 4
MOST_STEPS = 60
# A constant is compared with those of so many looks before.
LOOKS = 10


class Monitor:
    """Every layer's constant at chosen steps of training, between two bounds, with alarms.

    Call :meth:`step` once for every training step, behind the optimiser's; every ``every`` steps it looks at a few
    sequences of the batch at hand. What it may cost is a budget: where the budget is short it looks at fewer sequences,
    then at fewer layers (in turn, so that each has its time), and says which it skipped.

    Why no warm start: the upper end of a bracket counts the random share of the start alone, so that the last step's
    vectors save no product (9 to 14 steps on MiniLM at 5 %, either way).

    Attributes:
        looks: What was found so far.
        steps: How many training steps were counted.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 100,
        layers: Iterable[int] | None = None,
        maps: Sequence[str] = ("attention",),
        budget: float = 0.02,
        sequences: int = 4,
        rtol: float = 0.05,
        confidence: float = 0.999,
        limit: float | None = None,
        window: int | None = None,
        sinks: Iterable[object] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        """Begin to count steps.

        Args:
            model: The model that is trained; it is left in the mode it is in, and so is its random state.
            every: How many steps lie between two looks.
            layers: Which attention layers; all by default.
            maps: Which parts of them.
            budget: The largest share of the training time.
            sequences: How many sequences of a batch are measured, at most.
            rtol: The relative width of the brackets.
            confidence: The probability with which the upper end of each holds.
            limit: A constant above it is an alarm.
            window: A constant that doubles within so many steps is an alarm; ten times ``every`` by default.
            sinks: Where looks go: :class:`howsmooth.RunLog`, :class:`howsmooth.TensorBoard`, anything with a
                ``log(dict)``.
            generator: The source of random starts; one of its own by default.

        Raises:
            AssumptionError: If a setting is none, or there is no such layer or map.
        """
        _check(every=every, budget=budget, sequences=sequences, limit=limit, window=window)
        check_solver(rtol=rtol, confidence=confidence)
        for name in maps:
            MapName.parse(name)
        self._sinks = [sink_of(sink) for sink in sinks]
        self._model = unwrapped(model)
        self._transformer = borrowed(model)
        count = len(self._transformer.layers)
        chosen = tuple(range(count)) if layers is None else tuple(layers)
        if strays := [layer for layer in chosen if layer not in range(count)]:
            raise AssumptionError(f"the model has the layers 0 to {count - 1}, got {strays[0]}.", field="layers")
        self._places = [(layer, name) for layer in chosen for name in maps]
        self._every, self._sequences, self._rtol, self._confidence = every, sequences, rtol, confidence
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self._watch = Watch(window=LOOKS * every if window is None else window, limit=limit)
        self._budget = Budget(budget)
        self._turn = 0
        self.steps = 0
        self.looks: list[Look] = []

    @property
    def overhead(self) -> float:
        """What the monitor took, as a share of what training took without it."""
        return self._budget.overhead

    @property
    def alarms(self) -> list[Alarm]:
        """Every alarm so far."""
        return [alarm for look in self.looks for alarm in look.alarms]

    def step(self, batch: Any) -> Look | None:
        """Count a training step; at every ``every``-th, look at the batch.

        Args:
            batch: What the model was trained on: a tensor, a dictionary as the transformers library makes them, or a
                tuple that begins with one.

        Returns:
            What was found, if it was time to look.
        """
        self.steps += 1
        return self.look(batch, step=self.steps) if self.steps % self._every == 0 else None

    def look(self, batch: Any, *, step: int) -> Look:
        """Look now, as far as the budget allows."""
        begin = time.perf_counter()
        tokens, real = read_batch(batch)
        units = self._budget.affordable()
        sequences = max(1, min(self._sequences, units // len(self._places), len(tokens)))
        places = self._next(min(units, len(self._places)))
        readings = self._readings(step, tokens[:sequences], None if real is None else real[:sequences], places)
        look = Look(
            step=step,
            readings=readings,
            alarms=tuple(alarm for reading in readings for alarm in self._watch.look(reading)),
            skipped=tuple(f"{layer}:{name}" for layer, name in self._places if (layer, name) not in places),
            overhead=self.overhead,
        )
        self.looks.append(look)
        if look.skipped:
            _LOG.info("step %d: the budget left out %s", step, ", ".join(look.skipped))
        for sink in self._sinks:
            sink.write(look)
        self._budget.spend(time.perf_counter() - begin, len(places) * sequences)
        for alarm in look.alarms:
            warnings.warn(str(alarm), SmoothnessWarning, stacklevel=3)
        return look

    def _next(self, count: int) -> list[tuple[int, str]]:
        """Return the places whose turn it is."""
        every = self._places[self._turn :] + self._places[: self._turn]
        self._turn = (self._turn + count) % len(self._places)
        return every[:count]

    def _readings(
        self, step: int, tokens: Tensor, real: Tensor | None, places: list[tuple[int, str]]
    ) -> tuple[Reading, ...]:
        if not places:
            return ()
        try:
            with torch.no_grad(), _still(self._model):
                self._transformer = read_anew(self._transformer, self._model)
                there = self._transformer.activations(tokens, padding=real)
                return tuple(self._reading(step, tokens, there, layer, name) for layer, name in places)
        except NonFiniteError:
            return tuple(_lost(step, layer, name, tokens) for layer, name in places)

    def _reading(self, step: int, tokens: Tensor, there: Activations, layer: int, name: str) -> Reading:
        begin = time.perf_counter()
        f, X = there.at(layer, name)
        op = linearise(f, X)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bracket that stays open says so by its width
            found = bracket_norm(op, self._rtol, self._confidence, True, MOST_STEPS, self._generator)
            gain = typical_gain_of(op, samples=SAMPLES, generator=self._generator, estimate=found)
        worst = int(found.lower.argmax())
        real = there.padding
        norms = X.double().square().sum(-1)
        weights = torch.ones_like(norms) if real is None else real.to(norms)
        typical, low, high = mean_gain(
            gain.value.tolist(),
            found.lower.tolist(),
            found.upper.tolist(),
            (weights.sum(-1) * X.shape[-1]).tolist(),
            samples=SAMPLES,
            doubt=1 - gain.confidence,
            bound_doubt=1 - found.confidence,
        )
        return Reading(
            step=step,
            layer=layer,
            map=name,
            lower=float(found.lower.max()),
            upper=float(found.upper.max()),
            typical=typical,
            typical_low=low,
            typical_high=high,
            radius=float(((norms * weights).sum() / weights.sum()).sqrt()),
            entropy=_entropy(f, op),
            sequences=len(X),
            length=int(weights[worst].sum()),
            tokens=_named(found[worst], tokens[worst]),
            seconds=time.perf_counter() - begin,
        )


@contextlib.contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Keep a model in eval mode for a while."""
    training = [(module, module.training) for module in model.modules()]
    try:
        for module, _was in training:
            module.training = False
        yield
    finally:
        for module, was in training:
            module.training = was


def _entropy(f: object, op: Any) -> float | None:
    real = f.real if isinstance(f, RealTokens) else None
    J = op.inner if isinstance(f, RealTokens) else op
    return float(attention_entropy(J, real).mean()) if isinstance(J, AttentionJacobian) else None


def _named(estimate: NormEstimate, row: Tensor) -> tuple[int, ...]:
    """Return the tokens that hold most of the worst perturbation; none where inputs are no tokens."""
    shares = estimate.token_sensitivity
    if row.ndim != 1 or row.is_floating_point() or len(shares) != len(row):
        return ()
    return tuple(int(row[place]) for place in shares.argsort(descending=True)[:NAMED])


def _lost(step: int, layer: int, name: str, tokens: Tensor) -> Reading:
    """Return the reading of a layer that is not finite any more."""
    return Reading(
        step=step,
        layer=layer,
        map=name,
        lower=math.inf,
        upper=math.inf,
        typical=None,
        typical_low=None,
        typical_high=None,
        radius=math.inf,
        entropy=None,
        sequences=len(tokens),
        length=tokens.shape[-1],
        tokens=(),
        seconds=0.0,
    )


def _check(*, every: int, budget: float, sequences: int, limit: float | None, window: int | None) -> None:
    for name, value in (("every", every), ("sequences", sequences), ("window", 1 if window is None else window)):
        if isinstance(value, bool) or not (isinstance(value, int) and value >= 1):
            raise AssumptionError(f"{name} must be a whole number, at least 1, got {value!r}.", field=name)
    if isinstance(budget, bool) or not (isinstance(budget, Real) and 0 < budget <= 1):
        raise AssumptionError(
            f"budget must be a share of the training time, above 0 and at most 1, got {budget!r}; 0.02 is usual.",
            field="budget",
        )
    if limit is not None and not (isinstance(limit, Real) and limit > 0):
        raise AssumptionError(f"limit must be a positive number or None, got {limit!r}.", field="limit")
