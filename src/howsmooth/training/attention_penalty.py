"""The constants of all attention layers of a model as one penalty, from the forward pass that training makes anyway."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.real_tokens import zero_padded_outputs
from howsmooth.spectral.protocols import HALF
from howsmooth.training.hooks import RecordedInputs, read_batch, real_only
from howsmooth.training.penalty import STEPS, PenaltyFunction, constant
from howsmooth.training.recorded_jacobian import RecordedJacobian
from howsmooth.training.warm_starts import WarmStart


def attention_penalty(
    model: nn.Module,
    *,
    layers: Iterable[int] | None = None,
    power: float = 1,
    log: bool = False,
    above: float | None = None,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> "AttentionPenalty":
    """Record the inputs of the attention layers of a Hugging Face model, to penalise the sum of their constants.

    >>> smooth = hs.attention_penalty(model)                               # doctest: +SKIP
    >>> loss = model(**batch).loss + 0.01 * smooth().mean()                # doctest: +SKIP

    Hooks record the input of every attention layer in the forward pass of training; nothing else of that pass is
    repeated. Every layer starts from its last singular vectors. Padding is left out. Tokens keep their graph, so that
    gradients reach the layers below, too.

    Args:
        model: The model; compiled or distributed ones are unwrapped.
        layers: Which attention layers; all by default.
        power: As in :func:`howsmooth.penalty`.
        log: Likewise.
        above: Likewise.
        steps: Likewise.
        generator: Likewise.

    Raises:
        AssumptionError: If there is no such layer, or a setting is none.
        UnsupportedModelError: If the model has no attention.
    """
    function = PenaltyFunction(power=power, log=log, above=above)
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a module, got {type(model).__name__}.", field="model")
    return AttentionPenalty(model, function=function, layers=layers, steps=steps, generator=generator)


class AttentionPenalty:
    """The sum of the penalties of attention layers, one number for each sequence.

    Attributes:
        layers: Which layers.
        states: What is remembered of each, and how exact it is.
        values: The constants of the last call, layer by layer, without their graph.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        function: PenaltyFunction,
        layers: Iterable[int] | None,
        steps: int,
        generator: torch.Generator | None,
    ) -> None:
        """Register the hooks."""
        self._recorded = RecordedInputs(model)
        count = len(self._recorded.transformer.layers)
        self.layers = tuple(range(count)) if layers is None else tuple(layers)
        if strays := [layer for layer in self.layers if not 0 <= layer < count]:
            self._recorded.close()
            raise AssumptionError(f"the model has the layers 0 to {count - 1}, got {strays[0]}.", field="layers")
        self.states = {layer: WarmStart() for layer in self.layers}
        self.values: dict[int, Float[Tensor, " batch"]] = {}
        self._function, self._steps, self._generator = function, steps, generator

    def __call__(self, batch: Any = None) -> Float[Tensor, " batch"]:
        """Return the penalty at what the layers read last; at a batch, if one is given, after a pass of its own."""
        inputs = self._recorded
        if batch is not None:
            tokens, real = read_batch(batch)
            masks = {} if real is None else {"attention_mask": real.long()}
            inputs.transformer.module(tokens, **masks)
        total: Tensor | None = None
        for layer in self.layers:
            sigma = self._constant(layer)
            self.values[layer] = sigma.detach()
            total = self._function(sigma) if total is None else total + self._function(sigma)
        inputs.forget()
        if total is None:
            raise AssumptionError("layers must name at least one layer, got none.", field="layers")
        return total

    def _constant(self, layer: int) -> Tensor:
        inputs, real = self._recorded, self._recorded.real
        part, X, module = inputs.part(layer)
        if any(parameter.dtype in HALF for parameter in module.parameters()):
            raise AssumptionError(
                "the weights are in half precision, in which no constant can be told; keep them in float32 and use "
                "torch.autocast for what may be rounded.",
                field="model",
            )

        def among_real(Y: Tensor) -> Tensor:
            return part(Y) if real is None else zero_padded_outputs(part(real_only(Y, X, real)), real)

        with inputs.paused():
            recorded = RecordedJacobian(among_real, X, owner=module)
            return constant(
                recorded, recorded.pull, state=self.states[layer], steps=self._steps, generator=self._generator
            )

    def close(self) -> None:
        """Remove the hooks."""
        self._recorded.close()

    def __enter__(self) -> "AttentionPenalty":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
