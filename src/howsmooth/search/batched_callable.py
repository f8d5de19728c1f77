"""Any callable as a map on batches of inputs, whether it takes single inputs or batches."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError
from howsmooth.spectral.autograd import evaluate
from howsmooth.spectral.operators import Differentiable, require_map


class BatchedCallable(nn.Module):
    """A callable that takes inputs ``(n, d)`` and batches of them alike, whatever the one inside takes.

    A module, so that a module inside it is found: it is measured in eval mode, as every module is.
    """

    def __init__(self, f: Callable[[Tensor], Any], *, together: bool) -> None:
        """Wrap ``f``; ``together`` if it takes ``(batch, n, d)``, and not if it takes one input at a time."""
        super().__init__()
        self.f, self.together = f, together

    def forward(self, X: Float[Tensor, "*batch n d"]) -> Any:
        """Apply it to every input."""
        rows = X.reshape(-1, *X.shape[-2:])
        moved = [self.f(rows)] if self.together else [self.f(row) for row in rows]
        for value in moved:
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise DtypeError(
                    f"the callable must return one tensor, got {kind}; wrap it, e.g. lambda X: f(X)[0].", field="f"
                )
        stacked = moved[0] if self.together else torch.stack(moved)
        return stacked.reshape(*X.shape[:-2], *stacked.shape[1:])


def on_batches(f: Any, like: Float[Tensor, "n d"]) -> Any:
    """Return ``f`` as a map on batches; maps that know their derivative are so already.

    Args:
        f: A map, a module or any callable on tensors.
        like: An input, to try it on.

    Raises:
        DtypeError: If it is nothing that can be called, or does not return a tensor.
        AssumptionError: If it fails on inputs of this shape, with its error message.
    """
    if isinstance(f, Differentiable):
        return f
    require_map(f)
    messages = []
    for together in (True, False):
        wrapped = BatchedCallable(f, together=together)
        try:
            if _treats_each_alone(wrapped, like):
                return wrapped
        except HowsmoothError:
            raise
        except Exception as error:  # whatever the code of others raises
            messages.append(f"{type(error).__name__}: {error}")
    reason = f"; it said {messages[-1]}" if messages else ", or not the same on the same input twice"
    raise AssumptionError(f"the callable does not work on inputs of the shape {tuple(like.shape)}{reason}", field="f")


def _treats_each_alone(f: BatchedCallable, X: Tensor) -> bool:
    """Tell whether the output of an input does not depend on the others in its batch."""
    twice, other = torch.stack((X, X)), torch.stack((X, X.flip(0) / 2))
    outputs = []
    for batch in (twice, other):
        _inputs, value = evaluate(f, batch)
        outputs.append(value.detach())
    (first, second), (third, _other) = outputs
    return torch.allclose(first, second, equal_nan=True) and torch.allclose(first, third, equal_nan=True)
