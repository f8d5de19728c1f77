"""Monitor: the constants of a model while it is trained, measured within a share of the training time."""

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, NonFiniteError, SmoothnessWarning
from howsmooth.maps.derivative import AttentionJacobian, attention_entropy
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models.activations import Activations
from howsmooth.models.load import read_anew
from howsmooth.models.loading.adapters import unwrapped
from howsmooth.models.map_names import MapName
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.solver_settings import check_solver
from howsmooth.spectral.solvers import bracket_norm
from howsmooth.spectral.typical import mean_gain, typical_gain_of
from howsmooth.training.hooks import mode_restored, read_batch, read_layers
from howsmooth.training.readings import Alarm, AlarmRule, LayerReading, Look, as_sink
from howsmooth.validation import Seed, generator_from, plain_mode

_LOG = logging.getLogger("howsmooth")
# Random directions for the typical gain, and how many tokens an alarm names.
SAMPLES, NAMED = 4, 4
MOST_STEPS = 60
# A constant is compared with those of so many looks before.
LOOKS = 10


class Monitor:
    """Every layer's constant at chosen steps of training, between two bounds, with alarms.

    Call :meth:`step` once for every training step, after the optimiser's; every ``every`` steps it measures a few
    sequences of the current batch. If its time budget is short, it measures fewer sequences, then fewer layers (in
    rotation), and lists those it skipped.

    Why no warm start: the upper end of a bracket counts the random share of the start alone, so that the last step's
    vectors save no product (9 to 14 steps on MiniLM at 5 %, either way).

    Attributes:
        looks: The results so far.
        steps: The number of training steps.
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
        seed: Seed = 0,
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
            sinks: Where looks go: :class:`howsmooth.training.RunLog`, :class:`howsmooth.training.TensorBoard`, anything
                with a ``log(dict)``.
            seed: Seeds the random starts: a whole number, or a torch.Generator to draw from.
        """
        _check(every=every, budget=budget, sequences=sequences, limit=limit, window=window)
        check_solver(rtol=rtol, confidence=confidence)
        for name in maps:
            MapName.parse(name)
        self._sinks = [as_sink(sink) for sink in sinks]
        self._model = unwrapped(model)
        self._transformer = read_layers(model)
        count = len(self._transformer.layers)
        chosen = tuple(range(count)) if layers is None else tuple(layers)
        if strays := [layer for layer in chosen if layer not in range(count)]:
            raise AssumptionError(f"the model has the layers 0 to {count - 1}, got {strays[0]}.", field="layers")
        self._places = [(layer, name) for layer in chosen for name in maps]
        self._every, self._sequences, self._rtol, self._confidence = every, sequences, rtol, confidence
        self._generator = generator_from(seed)
        self._alarm_rule = AlarmRule(window=LOOKS * every if window is None else window, limit=limit)
        self._budget = TimeBudget(budget)
        self._next_place = 0
        self.steps = 0
        self.looks: list[Look] = []

    def __repr__(self) -> str:
        return f"Monitor({self.steps} steps, {len(self.looks)} looks, {len(self.alarms)} alarms)"

    @property
    def overhead(self) -> float:
        """The time of the monitor, as a share of the training time without it."""
        return self._budget.overhead

    @property
    def alarms(self) -> list[Alarm]:
        """Every alarm so far."""
        return [alarm for look in self.looks for alarm in look.alarms if isinstance(alarm, Alarm)]

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

    @plain_mode()
    def look(self, batch: Any, *, step: int) -> Look:
        """Measure now, as far as the budget allows."""
        begin = time.perf_counter()
        tokens, real = read_batch(batch)
        units = self._budget.affordable()
        sequences = max(1, min(self._sequences, units // len(self._places), len(tokens)))
        places = self._due(min(units, len(self._places)))
        readings = self._readings(step, tokens[:sequences], None if real is None else real[:sequences], places)
        look = Look(
            step=step,
            readings=readings,
            alarms=tuple(alarm for reading in readings for alarm in self._alarm_rule.alarms(reading)),
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

    def _due(self, count: int) -> list[tuple[int, str]]:
        """Return the layers and maps to measure next, in rotation."""
        every = self._places[self._next_place :] + self._places[: self._next_place]
        self._next_place = (self._next_place + count) % len(self._places)
        return every[:count]

    def _readings(
        self, step: int, tokens: Tensor, real: Tensor | None, places: list[tuple[int, str]]
    ) -> tuple[LayerReading, ...]:
        if not places:
            return ()
        try:
            with torch.no_grad(), mode_restored(self._model):
                for module in self._model.modules():
                    module.training = False
                self._transformer = read_anew(self._transformer, self._model)
                there = self._transformer.activations(tokens, padding=real)
                return tuple(self._reading(step, tokens, there, layer, name) for layer, name in places)
        except NonFiniteError:
            return tuple(
                LayerReading(
                    step=step, layer=layer, map=name, lower=math.inf, upper=math.inf, radius=math.inf,
                    sequences=len(tokens), length=tokens.shape[-1],
                )
                for layer, name in places
            )  # fmt: skip

    def _reading(self, step: int, tokens: Tensor, there: Activations, layer: int, name: str) -> LayerReading:
        begin = time.perf_counter()
        f, X = there.at(layer, name)
        op = linearise(f, X)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an open bracket shows in its width
            found = bracket_norm(op, self._rtol, self._confidence, True, MOST_STEPS, self._generator)
            gain = typical_gain_of(op, samples=SAMPLES, seed=self._generator, estimate=found)
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
        return LayerReading(
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
            tokens=_most_sensitive_tokens(found[worst], tokens[worst]),
            seconds=time.perf_counter() - begin,
        )


def _entropy(f: object, op: Any) -> float | None:
    real = f.real if isinstance(f, RealTokens) else None
    J = op.inner if isinstance(f, RealTokens) else op
    return float(attention_entropy(J, real).mean()) if isinstance(J, AttentionJacobian) else None


def _most_sensitive_tokens(estimate: NormEstimate, row: Tensor) -> tuple[int, ...]:
    """Return the tokens that hold most of the worst perturbation; none where inputs are no tokens."""
    shares = estimate.token_sensitivity
    if row.ndim != 1 or row.is_floating_point() or len(shares) != len(row):
        return ()
    return tuple(int(row[place]) for place in shares.argsort(descending=True)[:NAMED])


class TimeBudget:
    """The time spent on measurements, as a share of all time since training began.

    Attributes:
        share: The largest share.
        spent: Seconds spent so far.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.spent = share, 0.0
        self._clock, self._begin = clock, clock()
        self._unit: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begin

    @property
    def overhead(self) -> float:
        """The time spent, as a share of the training time without it."""
        return self.spent / max(self.elapsed - self.spent, 1e-9)

    def affordable(self) -> int:
        """Return how many units of work the budget allows; one if the time of a unit is not known."""
        left = self.share * (self.elapsed - self.spent) - self.spent
        if left <= 0:
            return 0
        return 1 if self._unit is None else int(left / self._unit)

    def spend(self, seconds: float, units: int) -> None:
        """Count the time of some units of work."""
        self.spent += seconds
        if units:
            # a maximum that decays: a unit that took long may do so again
            each = seconds / units
            self._unit = each if self._unit is None else max(each, 0.7 * self._unit + 0.3 * each)


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
