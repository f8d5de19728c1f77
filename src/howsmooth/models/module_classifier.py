"""A classifier of sentences as its module runs, for what is to be asked of the module and not of our maps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.models.rest import Rest, Run

if TYPE_CHECKING:  # its sites and its frame are named here alone
    from howsmooth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleClassifier:
    """The logits of a module as a function of the sum of its embeddings, or of what enters one of its layers.

    Attributes:
        module: The module, with its head.
        tokens: The sentence that it reads while hidden states are swapped.
        enters: The part whose hidden states those are, and how often it had run before.
        together: Whether it takes several sequences at once; some do not where they know no padding.
    """

    module: nn.Module
    tokens: Int[Tensor, " n"]
    enters: tuple[str, int]
    together: bool

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 classes"]:
        """Run the module with other hidden states, in its own numbers."""
        like = next(self.module.parameters())
        rows = X.reshape(-1, *X.shape[-2:]).to(like)
        logits = torch.cat([self._logits(part) for part in rows.split(len(rows) if self.together else 1)])
        return logits.to(X).reshape(*X.shape[:-2], 1, -1)

    def _logits(self, rows: Tensor) -> Tensor:
        tokens = self.tokens.to(rows.device).expand(len(rows), -1)
        return Rest(run=Run(module=self.module, tokens=tokens, named={}), enters=self.enters)(rows)

    def value_and_jacobian(self, X: Float[Tensor, "*batch n d"]) -> "tuple[Tensor, _Pullback]":
        """Return the logits and what pulls back through them, by autograd."""
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
    """Return the classifier of a model as its module runs.

    Args:
        transformer: The model, which must have a classifier.
        tokens: The sentence.
        layer: The layer at which it begins; none for the sum of the embeddings.
    """
    module: Any = transformer.with_head
    ends = transformer.frame.ends
    paths = [site.block for site in transformer.sites]
    if layer is None and ends is not None and ends.reads is not None:
        path, turn = ends.reads, 0
    else:
        path, turn = paths[layer or 0], paths[: layer or 0].count(paths[layer or 0])
    trunk = next(name for name, part in module.named_modules() if part is transformer.module)
    together = module.config.get_text_config().pad_token_id is not None
    return ModuleClassifier(module=module, tokens=tokens, enters=(f"{trunk}.{path}", turn), together=together)
