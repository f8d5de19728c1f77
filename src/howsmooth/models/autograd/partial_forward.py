"""The output of a model as a function of the hidden states that enter one of its blocks, by running the module."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.models.autograd.hooks import Arguments, ModuleCall, StopForward, first_tensor, hooked, without_cache

if TYPE_CHECKING:  # a transformer runs its module
    from howsmooth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardPass:
    """One forward pass of a model.

    Attributes:
        module: The model.
        tokens: Its input.
        named: Its other arguments.
    """

    module: nn.Module
    tokens: Tensor
    named: Mapping[str, Any]

    def __call__(self) -> Any:
        """Run the model again."""
        with without_cache(self.module):
            return self.module(self.tokens, **self.named)

    def input_of(self, path: str) -> Tensor:
        """Run the model until the part at a path is called, and return the hidden states that enter it."""
        found: list[Tensor] = []

        def keep(call: ModuleCall, _turn: int) -> None:
            found.append(call.tokens.detach())
            raise StopForward

        with hooked(self.module, inputs={path: keep}, prepend=True):
            self()
        return found[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialForward:
    """The output of a model, or of one of its blocks, as a function of the hidden states that enter a block.

    Attributes:
        run: The forward pass that is repeated.
        enters: The block whose hidden states are replaced, and at which of its calls.
        leaves: The block whose output is returned, likewise; none for the last hidden states of the model.
    """

    run: ForwardPass
    enters: tuple[str, int]
    leaves: tuple[str, int] | None = None

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch *out"]:
        """Run the model with other hidden states."""
        entry, entry_turn = self.enters
        outputs: list[Tensor] = []

        def replace(call: ModuleCall, turn: int) -> Arguments | None:
            return call.at(X) if turn == entry_turn else None

        def keep(output: Any, _turn: int) -> None:
            outputs.append(first_tensor(output))

        kept = {} if self.leaves is None else {self.leaves[0]: keep}
        # prepended: other hooks belong to the part
        with hooked(self.run.module, inputs={entry: replace}, outputs=kept, prepend=True):
            result = self.run()
        return first_tensor(result) if self.leaves is None else outputs[self.leaves[1]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleClassifier:
    """The logits of a module as a function of the sum of its embeddings, or of the hidden states before a layer.

    Attributes:
        module: The module, with its head.
        tokens: The sentence that it reads while hidden states are replaced.
        enters: The part whose hidden states those are, and at which of its calls.
        together: Whether it takes several sequences at once; some do not if they have no padding token.
    """

    module: nn.Module
    tokens: Int[Tensor, " n"]
    enters: tuple[str, int]
    together: bool

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 classes"]:
        """Run the module with other hidden states, in its own dtype."""
        like = next(self.module.parameters())
        rows = X.reshape(-1, *X.shape[-2:]).to(like)
        logits = torch.cat([self._logits(part) for part in rows.split(len(rows) if self.together else 1)])
        return logits.to(X).reshape(*X.shape[:-2], 1, -1)

    def _logits(self, rows: Tensor) -> Tensor:
        tokens = self.tokens.to(rows.device).expand(len(rows), -1)
        run = ForwardPass(module=self.module, tokens=tokens, named={})
        return PartialForward(run=run, enters=self.enters)(rows)

    def value_and_jacobian(self, X: Float[Tensor, "*batch n d"]) -> "tuple[Tensor, _Pullback]":
        """Return the logits and their vector-Jacobian products, by autograd."""
        with torch.enable_grad():
            inputs = X.detach().requires_grad_()
            value = self(inputs)
        return value.detach(), _Pullback(inputs, value)


class _Pullback:
    def __init__(self, inputs: Tensor, value: Tensor) -> None:
        self._inputs, self._value = inputs, value

    def vjp(self, G: Tensor) -> Tensor:
        (pulled,) = torch.autograd.grad(self._value, self._inputs, G)
        return pulled


def module_classifier(
    transformer: "Transformer", tokens: Int[Tensor, " n"], layer: int | None = None
) -> ModuleClassifier:
    """Return the classifier of a model as its module computes it.

    Args:
        transformer: The model, which must have a classifier.
        tokens: The sentence.
        layer: The layer at which the function begins; none for the sum of the embeddings.
    """
    module: Any = transformer.with_head
    stem = transformer.ends.stem
    paths = [part.block_path for part in transformer.layers]
    if layer is None and stem is not None and stem.path is not None:
        path, turn = stem.path, 0
    else:
        path, turn = paths[layer or 0], paths[: layer or 0].count(paths[layer or 0])
    trunk = next(name for name, part in module.named_modules() if part is transformer.module)
    together = module.config.get_text_config().pad_token_id is not None
    return ModuleClassifier(module=module, tokens=tokens, enters=(f"{trunk}.{path}", turn), together=together)
