"""A monitor as a callback of Lightning's Trainer."""

import importlib
from typing import Any

from howsmooth.errors import AssumptionError
from howsmooth.training.monitor import Monitor
from howsmooth.training.sinks import scalars

# One library under two names; whichever the caller has imported a Trainer from has to recognise the callback.
HOMES = ("lightning.pytorch", "pytorch_lightning")


def Lightning(monitor: Monitor, *, log: bool = True) -> Any:
    """Return a callback that lets a Trainer call a monitor behind every batch: ``Trainer(callbacks=[Lightning(m)])``.

    Args:
        monitor: The monitor of the model inside of the module that is trained.
        log: Whether to send the numbers to the Trainer's loggers, too.

    Raises:
        AssumptionError: If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    base = _callback()

    class LightningMonitor(base):  # type: ignore[misc, valid-type]
        """Look behind every optimiser step."""

        def __init__(self) -> None:
            super().__init__()
            self.monitor = monitor
            self._seen = 0

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
    import sys

    # the one that is in use first: the other one's Trainer does not know its callbacks
    for name in sorted(HOMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise AssumptionError(
        "hs.training.callbacks.Lightning needs lightning: pip install 'howsmooth[training]'.", field="callbacks"
    )
