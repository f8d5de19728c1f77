"""Inversion of embeddings: the nearest token at every position, over the whole vocabulary."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.models.parts.ends import STAGES, entrance, lexicon
from howsmooth.models.transformer import Transformer
from howsmooth.validation import plain_mode, require_finite, require_floating, require_numbers
from howsmooth.wording import at_least, at_most

# Squares of distances that differ by less, relative to the squares that they are made of, differ by rounding alone.
ROUNDING = 1e-12
# So many inputs are compared with the vocabulary at once.
ROWS = 256


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Inversion:
    """The tokens whose inputs are nearest.

    Attributes:
        tokens: The nearest token at each position.
        distances: How far its input is, in the Euclidean norm.
        margins: How much further the second nearest is; zero where several tokens have the same input.
        ties: How many other tokens are as near.
    """

    tokens: Int[Tensor, "*batch n"]
    distances: Float[Tensor, "*batch n"]
    margins: Float[Tensor, "*batch n"]
    ties: Int[Tensor, "*batch n"]

    def __repr__(self) -> str:
        """Say how near they are."""
        largest, margin = at_most(float(self.distances.max()), 3), at_least(float(self.margins.min()), 3)
        return (
            f"Inversion({self.tokens.numel()} tokens, distances up to {largest}, margins from {margin}, "
            f"{int((self.ties > 0).sum())} ties)"
        )


@plain_mode()
@torch.no_grad()
def invert(model: Transformer, X: Float[Tensor, "*batch n d"], *, at: str = "embeddings") -> Inversion:
    r"""Find the tokens whose inputs are nearest: the exact inverse of embedding, position and norm.

    .. math:: v_i = \operatorname{arg\,min}_v\,|x_i - \varphi(w_v + g_i)|

    over the whole vocabulary, at every position i. An input that a text has is given back at distance zero, up to
    rounding. Sums are compared by one product of matrices; behind a norm every position has candidates of its own, and
    costs one pass over the vocabulary.

    Args:
        model: The model.
        X: Inputs at positions 0, 1, 2, …, without padding.
        at: Where they are inputs: ``embeddings``, the sum of the embeddings before any norm, as ``model.embed`` has it
            (:math:`\varphi` is the identity); ``block``, what the first block reads, behind the norm of the embeddings
            and what widens them; ``attention``, what attention of the first layer reads, behind its own norm too.

    Raises:
        AssumptionError: If there is no such place, or there are more tokens than the model has positions for.
        ShapeError: If the inputs are not as wide as those of the model.
        UnsupportedModelError: If it is not known how the model embeds tokens.

    Example:
        ``hs.tokens.invert(model, model.embed(tokens)).tokens`` are ``tokens``.
    """
    require_floating(X, "X")
    require_numbers(X, "X")
    require_finite(X, "X")
    if X.ndim < 2 or X.numel() == 0:
        raise ShapeError(f"X must have the shape (*batch, n, d) with n >= 1, got {tuple(X.shape)}.", field="X")
    maps, limit = entrance(model, at), model.max_length
    if limit is not None and X.shape[-2] > limit:
        raise AssumptionError(f"{model.name!r} has positions for {limit} tokens, got {X.shape[-2]}.", field="X")
    known = lexicon(model, X.shape[-2])
    rows = X.reshape(-1, *X.shape[-2:]).double()
    if maps:
        # the input of every token at a position
        inputs = (functools.reduce(lambda Y, f: f(Y), maps, known.words + place) for place in known.places)
        found = [_nearest(rows[:, i], some) for i, some in enumerate(inputs)]
        parts = (torch.stack(part, dim=-1) for part in zip(*found, strict=True))
    else:  # without a norm in between, positions differ by a shift
        _require_width(rows, known.words)
        shifted = (rows - known.places.double()).flatten(0, 1)
        words = known.words.double()
        parts = (torch.cat(part) for part in zip(*(_nearest(some, words) for some in shifted.split(ROWS)), strict=True))
    tokens, distances, margins, ties = (part.reshape(X.shape[:-1]) for part in parts)
    return Inversion(tokens=tokens, distances=distances, margins=margins, ties=ties)


def _nearest(
    rows: Float[Tensor, "b d"], inputs: Float[Tensor, "v d"]
) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"], Int[Tensor, " b"]]:
    """Return the nearest input of each row, its distance, how much further the second is, and how many are as near."""
    _require_width(rows, inputs)
    inputs = inputs.double()
    sizes = rows.square().sum(-1)[:, None] + inputs.square().sum(-1)
    squares = sizes - 2 * rows @ inputs.mT
    two = squares.topk(min(2, len(inputs)), dim=-1, largest=False)
    first, second = two.indices[:, 0], two.indices[:, -1]
    # the expanded square is off by rounding; the difference itself is not
    near, next_near = ((rows - inputs[index]).norm(dim=-1) for index in (first, second))
    swapped = next_near < near
    tokens = torch.where(swapped, second, first)
    slack = ROUNDING * sizes.amax(-1, keepdim=True)
    ties = (squares <= two.values[:, :1] + slack).sum(-1) - 1
    return tokens, torch.minimum(near, next_near), (next_near - near).abs(), ties


def _require_width(rows: Tensor, inputs: Tensor) -> None:
    if rows.shape[-1] != inputs.shape[-1]:
        raise ShapeError(
            f"inputs there have the dimension {inputs.shape[-1]}, got {rows.shape[-1]}; say where they are inputs with "
            f"at=…: {', '.join(STAGES)}.",
            field="X",
        )
