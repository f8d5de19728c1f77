"""A training whose learning rate grows until it diverges: who notices first, the loss or the constant?"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from howsmooth.studies.sentiment.learning import Task, endless
from howsmooth.training.monitor import Monitor

# Where the rate begins to grow.
FIRST_RATE = 1e-4
# The loss shows it once its mean over so many steps exceeds what knowing nothing costs by so much.
SMOOTH, SHOWN = 10, 1.5
NOTHING_KNOWN = 0.6931


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """What happened.

    Attributes:
        alarm_step: The first alarm of the monitor; none if it stayed silent.
        alarms: How many there were.
        loss_step: Where the loss shows it; none if it does not.
        trace: The step, the loss, the constants of the two layers (none where not measured), in turn.
    """

    alarm_step: int | None
    alarms: int
    loss_step: int | None
    trace: tuple[tuple[float, ...], ...]


def diverge(model: Any, task: Task, *, last_rate: float, steps: int, every: int) -> Divergence:
    """Let the learning rate grow exponentially, and watch."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=FIRST_RATE)
    monitor = Monitor(model, every=every, budget=1.0, sequences=2)
    losses: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alarms are what is looked for
        for step, (tokens, labels) in enumerate(endless(task.train), start=1):
            for group in optimiser.param_groups:
                group["lr"] = FIRST_RATE * (last_rate / FIRST_RATE) ** (step / steps)
            loss = nn.functional.cross_entropy(model(input_ids=tokens).logits, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
            monitor.step(tokens)
            if step == steps or not loss.isfinite():
                break
    return Divergence(
        alarm_step=next((alarm.reading.step for alarm in monitor.alarms), None),
        alarms=len(monitor.alarms),
        loss_step=shown(losses),
        trace=tuple(
            (look.step, losses[look.step - 1], *(reading.lower for reading in look.readings)) for look in monitor.looks
        ),
    )


def shown(losses: Sequence[float]) -> int | None:
    """Return the step at which the loss shows that training diverges: its running mean is well above knowing nothing.

    Example:
        >>> shown([0.7] * 20 + [3.0] * 20)
        22
    """
    for step in range(SMOOTH, len(losses) + 1):
        mean = sum(losses[step - SMOOTH : step]) / SMOOTH
        if not mean < SHOWN * NOTHING_KNOWN:
            return step
    return None
