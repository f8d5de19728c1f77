"""A monitor as a callback of the transformers library's Trainer."""

from typing import Any

from torch import nn
from transformers.trainer_callback import TrainerCallback

from howsmooth.training.monitor import Monitor


class HuggingFace(TrainerCallback):
    """Let a Trainer call a monitor behind every optimiser step: ``Trainer(…, callbacks=[HuggingFace(monitor)])``.

    The Trainer does not show its callbacks the batch: a hook on the model keeps the last one that went in. Numbers go
    to the monitor's sinks; with ``log=True`` to the Trainer's own logs, too.
    """

    def __init__(self, monitor: Monitor, *, log: bool = True) -> None:
        """Watch with a monitor.

        Args:
            monitor: The monitor of the model that is trained.
            log: Whether to put the numbers into the Trainer's log history.
        """
        self.monitor, self._log = monitor, log
        self._batch: dict[str, Any] | None = None
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to keep batches."""
        model: nn.Module = kwargs["model"]
        self._hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look, if it is time to."""
        if self._batch is None:
            return
        look = self.monitor.step(self._batch)
        if look is not None and self._log:
            from howsmooth.training.sinks import scalars

            state.log_history.append(scalars(look) | {"step": state.global_step})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hook away."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._batch = None

    def _keep(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if module.training:
            self._batch = dict(named) if named else {"inputs": positional[0]}
