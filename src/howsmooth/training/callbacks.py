"""Monitors and probes for training loops of libraries: ``hs.training.callbacks.HuggingFace`` and ``.Lightning``."""

import contextlib
import importlib
import sys
from typing import Any

from torch import nn
from transformers.trainer_callback import TrainerCallback

from howsmooth.errors import AssumptionError
from howsmooth.training.head_probe import Probe
from howsmooth.training.monitor import Monitor
from howsmooth.training.readings import scalars

__all__ = ["HuggingFace", "Lightning"]

# One library under two names; whichever the caller has imported a Trainer from has to recognise the callback.
HOMES = ("lightning.pytorch", "pytorch_lightning")


class HuggingFace(TrainerCallback):
    """Let a Trainer call a monitor behind every optimiser step: ``Trainer(…, callbacks=[HuggingFace(monitor)])``.

    The Trainer does not show its callbacks the batch: a hook on the model keeps the last one that went in. Numbers go
    to the monitor's sinks; with ``log=True`` to the Trainer's own logs, too. A probe is opened and closed with the
    training: it needs no ``with`` block.
    """

    def __init__(self, monitor: Monitor | Probe, *, log: bool = True) -> None:
        """Watch with a monitor.

        Args:
            monitor: The monitor, or the probe, of the model that is trained.
            log: Whether to put the numbers into the Trainer's log history.
        """
        self.monitor, self._log = monitor, log
        self._batch: dict[str, Any] | None = None
        self._resources = contextlib.ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to keep batches, or to probe."""
        model: nn.Module = kwargs["model"]
        self._resources.callback(model.register_forward_pre_hook(self._keep, with_kwargs=True).remove)
        if isinstance(self.monitor, Probe):
            self._resources.enter_context(self.monitor)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look, if it is time to."""
        if self._batch is None:
            return
        look = self.monitor.step(self._batch)
        if look is not None and self._log:
            state.log_history.append(scalars(look) | {"step": state.global_step})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hooks away."""
        self._resources.close()
        self._batch = None

    def _keep(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if module.training:
            self._batch = dict(named) if named else {"inputs": positional[0]}


def Lightning(monitor: Monitor | Probe, *, log: bool = True) -> Any:
    """Return a callback that lets a Trainer call a monitor behind every batch: ``Trainer(callbacks=[Lightning(m)])``.

    Args:
        monitor: The monitor, or the probe, of the model inside of the module that is trained.
        log: Whether to send the numbers to the Trainer's loggers, too.
    """
    base = _callback()

    class LightningMonitor(base):  # type: ignore[misc, valid-type]
        """Look behind every optimiser step."""

        def __init__(self) -> None:
            super().__init__()
            self.monitor = monitor
            self._seen, self._resources = 0, contextlib.ExitStack()

        def on_train_start(self, trainer: Any, module: Any) -> None:
            """Begin to probe."""
            if isinstance(monitor, Probe):
                self._resources.enter_context(monitor)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            """Take hooks away."""
            self._resources.close()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """Look, if a step was made and it is time to."""
            if trainer.global_step == self._seen:
                return  # gradients are still being gathered
            self._seen = trainer.global_step
            look = monitor.step(batch)
            if look is not None and log:
                for logger in trainer.loggers:
                    logger.log_metrics(scalars(look), step=trainer.global_step)

    return LightningMonitor()


def _callback() -> Any:
    # the one that is in use first: the other one's Trainer does not know its callbacks
    for name in sorted(HOMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise AssumptionError(
        "hs.training.callbacks.Lightning needs lightning: pip install 'howsmooth[training]'.", field="callbacks"
    )
