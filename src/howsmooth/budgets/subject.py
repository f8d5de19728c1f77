"""A model at windows of tokens, and the output that errors change: scores of words or classes, or an embedding."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from howsmooth.errors import ShapeError, UnsupportedModelError
from howsmooth.models.autograd.hooks import first_tensor, without_cache
from howsmooth.models.inputs.model_inputs import inputs
from howsmooth.models.inputs.text import Text, read_text
from howsmooth.models.load import load
from howsmooth.models.parts.ends import SentenceEmbedding, has_tied_head
from howsmooth.models.streaming import Change
from howsmooth.models.transformer import Transformer, embedded
from howsmooth.validation import tensor_of, token_ids

# How a text is cut unless windows are given.
LENGTH, WINDOWS = 128, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model at windows of tokens."""

    transformer: Transformer  # the model
    tokens: Tensor  # windows of equal length; pixels for models of pictures

    @classmethod
    def of(cls, model: Transformer | nn.Module | str, tokens: Int[Tensor, "b n"] | Text | str) -> "Subject":
        """Load a model and cut a text, if need be."""
        transformer = model if isinstance(model, Transformer) else load(model)
        if isinstance(tokens, Text | str):
            text = tokens if isinstance(tokens, Text) else read_text(tokens)
            length = min(LENGTH, transformer.max_length or LENGTH)
            framed = output_kind(transformer) != "words"  # encoders know inputs that begin and end with special tokens
            tokens = inputs(text, transformer, special_tokens=framed).at(range(WINDOWS), length=length, stride=0)
        tokens = tensor_of(tokens, "tokens")
        tokens = tokens if tokens.is_floating_point() else token_ids(tokens)  # pictures, or words
        if tokens.ndim < 2 or not len(tokens):
            raise ShapeError(
                f"tokens must be windows (b, n) of equal length, got the shape {tuple(tokens.shape)}; one window is "
                "tokens[None].",
                field="tokens",
            )
        found = cls(transformer=transformer, tokens=tokens)
        found.kind  # noqa: B018 - refuses models without an output
        return found

    @property
    def module(self) -> nn.Module:
        """The module that is run: with its head, if it has one."""
        return self.transformer.with_head or self.transformer.module

    @property
    def blocks(self) -> list[str]:
        """The paths of all blocks in the module."""
        module, layers = self.transformer.module, self.transformer.layers
        prefix = next((f"{path}." for path, part in self.module.named_modules() if path and part is module), "")
        return [f"{prefix}{layer.block_path}" for layer in layers]

    @property
    def kind(self) -> str:
        """What the output is: ``words``, ``classes`` or ``embedding``."""
        return output_kind(self.transformer)

    @property
    def unit(self) -> str:
        """What costs count."""
        embedding = self.transformer.ends.sentence_embedding
        if self.kind == "embedding" and not getattr(embedding, "normalised", True):
            return "half squared displacement"
        return {"words": "nats a token", "classes": "nats an input", "embedding": "1 − cosine"}[self.kind]

    def outputs(
        self, window: int, *, weights: Mapping[str, Tensor | Change] | None = None, **arguments: Any
    ) -> Float[Tensor, "positions outputs"]:
        """Run the model at one window: logits at each position, or one row, scores of classes or an embedding.

        Args:
            window: Which window.
            weights: Parameters that take the place of those of the module, by their names; for those that come from
                their files, what becomes of them.
            arguments: A cache for the module.
        """
        stream = self.transformer.stream
        given = self.tokens[window : window + 1].to(self.transformer.device)
        here = {name: W for name, W in (weights or {}).items() if isinstance(W, Tensor)}
        coming = {name: change for name, change in (weights or {}).items() if not isinstance(change, Tensor)}
        with (
            embedded(self.module, given),
            nullcontext() if arguments else without_cache(self.module),
            nullcontext() if stream is None else stream.running(coming),
        ):
            found = functional_call(self.module, here, (given,), arguments)
            if self.transformer.with_head is not None:
                return (found if isinstance(found, Tensor) else found.logits).flatten(0, -2)
            ends: Any = self.transformer.ends
            if self.kind == "embedding":
                return _embedding(first_tensor(found), ends.sentence_embedding)
            head = ends.language_head if stream is None else stream.tied_head()
            return functools.reduce(lambda X, f: f(X), head, first_tensor(found)[0])

    def cost(self, base: Float[Tensor, "t v"], other: Float[Tensor, "t v"]) -> Float[Tensor, " t"]:
        """Return what a change of the output costs at each position: KL(p ‖ q), or half the squared displacement."""
        if self.kind == "embedding":
            return (other - base).double().square().sum(-1) / 2
        p, q = base.double().log_softmax(-1), other.double().log_softmax(-1)
        return (p.exp() * (p - q)).sum(-1)

    def cotangent(self, output: Float[Tensor, "t v"], generator: torch.Generator) -> Float[Tensor, "t v"]:
        r"""Draw u with :math:`E[uu^\top]` the second derivative of the cost: diag p − ppᵀ at each position, or one.

        With independent signs ξ over positions and classes, :math:`u = \sqrt p\circ\xi - p\langle\sqrt p,\xi\rangle`:
        every class takes part in every draw, which is less noisy than to sample one.
        """
        signs = torch.randint(0, 2, output.shape, generator=generator, dtype=torch.int8)
        xi = signs.to(output.device, output.dtype).mul_(2).sub_(1)
        if self.kind == "embedding":
            return xi
        p = output.softmax(-1)
        root = p.sqrt().mul_(xi)
        return root.sub_(p.mul_(root.sum(-1, keepdim=True)))


def output_kind(transformer: Transformer) -> str:
    """Return what the output of a model is: ``words``, ``classes`` or ``embedding``."""
    named = type(transformer.with_head or transformer.module).__name__.endswith("Classification")
    if named or not isinstance(transformer.ends.class_head, str):
        return "classes"
    tied = transformer.stream is not None and has_tied_head(transformer.module)
    if tied or transformer.with_head is not None or not isinstance(transformer.ends.language_head, str):
        return "words"
    embedding = transformer.ends.sentence_embedding
    if isinstance(embedding, str):
        raise UnsupportedModelError(
            f"{transformer.name!r} has no output to compare: {embedding}, and it has no head for words or classes.",
            field="model",
        )
    return "embedding"


def _embedding(hidden: Float[Tensor, "1 n d"], embedding: SentenceEmbedding) -> Float[Tensor, "1 d"]:
    pooled = {"mean": hidden.mean(1), "first": hidden[:, 0], "last": hidden[:, -1]}[embedding.pooling]
    return nn.functional.normalize(pooled, dim=-1) if embedding.normalised else pooled


@contextmanager
def frozen(module: nn.Module, trained: set[int]) -> Iterator[None]:
    """Take gradients of some parameters alone, given by their ids, within the ``with`` block."""
    before = {parameter: parameter.requires_grad for parameter in module.parameters()}
    try:
        for parameter in before:
            parameter.requires_grad_(id(parameter) in trained)
        yield
    finally:
        for parameter, value in before.items():
            parameter.requires_grad_(value)
            parameter.grad = None if id(parameter) in trained else parameter.grad
