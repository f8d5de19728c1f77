"""The constants of all attention layers of a model as one penalty, from the forward pass that training makes anyway."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.real_tokens import answering
from howsmooth.spectral.abilities import HALF
from howsmooth.training.batches import read_batch
from howsmooth.training.hooks import Heard, real_only
from howsmooth.training.penalty import STEPS, Shape, constant
from howsmooth.training.recorded import Recorded
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
    """Listen to the attention layers of a Hugging Face model, to penalise the sum of their constants.

    >>> smooth = hs.attention_penalty(model)                               # doctest: +SKIP
    >>> loss = model(**batch).loss + 0.01 * smooth().mean()                # doctest: +SKIP

    Hooks keep what every attention layer reads in the forward pass of training; nothing else of that pass is repeated.
    Every layer starts from its own last vectors. Padding neither moves nor answers. Tokens keep their graph, so that
    layers below learn to send smoother inputs, too.

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
    shape = Shape(power=power, log=log, above=above)
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a module, got {type(model).__name__}.", field="model")
    return AttentionPenalty(model, shape=shape, layers=layers, steps=steps, generator=generator)


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
        shape: Shape,
        layers: Iterable[int] | None,
        steps: int,
        generator: torch.Generator | None,
    ) -> None:
        """Begin to listen."""
        self._heard = Heard(model)
        count = len(self._heard.transformer.layers)
        self.layers = tuple(range(count)) if layers is None else tuple(layers)
        if strays := [layer for layer in self.layers if not 0 <= layer < count]:
            self._heard.close()
            raise AssumptionError(f"the model has the layers 0 to {count - 1}, got {strays[0]}.", field="layers")
        self.states = {layer: WarmStart() for layer in self.layers}
        self.values: dict[int, Float[Tensor, " batch"]] = {}
        self._shape, self._steps, self._generator = shape, steps, generator

    def __call__(self, batch: Any = None) -> Float[Tensor, " batch"]:
        """Return the penalty at what the layers read last; at a batch, if one is given, after a pass of its own."""
        heard = self._heard
        if batch is not None:
            tokens, real = read_batch(batch)
            masks = {} if real is None else {"attention_mask": real.long()}
            heard.transformer.module(tokens, **masks)
        total: Tensor | None = None
        for layer in self.layers:
            sigma = self._constant(layer)
            self.values[layer] = sigma.detach()
            total = self._shape(sigma) if total is None else total + self._shape(sigma)
        heard.forget()
        if total is None:
            raise AssumptionError("layers must name at least one layer, got none.", field="layers")
        return total

    def _constant(self, layer: int) -> Tensor:
        heard, real = self._heard, self._heard.real
        part, X, module = heard.part(layer)
        if any(parameter.dtype in HALF for parameter in module.parameters()):
            raise AssumptionError(
                "the weights are in half precision, in which no constant can be told; keep them in float32 and use "
                "torch.autocast for what may be rounded.",
                field="model",
            )

        def among_real(Y: Tensor) -> Tensor:
            return part(Y) if real is None else answering(part(real_only(Y, X, real)), real)

        with heard.deaf():
            recorded = Recorded(among_real, X, owner=module)
            return constant(
                recorded, recorded.pull, state=self.states[layer], steps=self._steps, generator=self._generator
            )

    def close(self) -> None:
        """Stop listening: take the hooks away."""
        self._heard.close()

    def __enter__(self) -> "AttentionPenalty":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
