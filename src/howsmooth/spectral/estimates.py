"""What a spectral solver returns: the value, its error bar, and the evidence for both."""

import enum
import functools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ContradictionError
from howsmooth.markup import frame, paragraph, shaded, strict_json, table
from howsmooth.proof_files import lower_claim, write_proof
from howsmooth.rounding import PROOF_ROOM
from howsmooth.spectral.operators import of_all_tokens
from howsmooth.validation import require_sequences, tokens_for
from howsmooth.wording import at_least, at_most, number, percent, rounded

# The number of words in a line of plain text.
MAX_WORDS = 8


class Status(enum.StrEnum):
    """Why a solver stopped, from the best news to the worst; the value is the sentence shown to the user."""

    ZERO = "The operator is zero."
    INVARIANT = "The Krylov space fills the whole space: the value is exact."
    CONVERGED = "The tolerance was met."
    OPEN = "No narrower bracket is known in this metric: the lower end is attained, the upper end is a comparison."
    MAX_STEPS = "`max_steps` was reached first. Raise it, or loosen `rtol`."
    INCONSISTENT = "Products with the operator contradict each other. Use float64, or remove randomness from the map."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NormEstimate:
    r"""The largest singular value of one operator, or of a batch of them, between two bounds.

    Attributes:
        lower: Attained: :math:`|J v|` for the stored unit ``direction`` v.
        upper: Holds with probability ``confidence`` over the random start, for each batch element.
        confidence: See ``upper``.
        direction: The unit perturbation that moves the output most.
        response: The unit direction in which the output moves.
        residual: :math:`|J v - \theta u|` for the Ritz triplet that ``direction`` comes from, while
            :math:`J^\top u = \theta v` holds: some singular value is that near, not necessarily the largest.
        random_gain: How much the random start was amplified: one sample of what :func:`howsmooth.typical_gain`
            estimates, without an error bar and so printed with one digit; none where the start was not random.
        leading: How many singular values exceed half of the largest, for each batch element in turn: so many at least.
        products: How many products with the operator or its transpose were taken, all together.
        step_counts: How many Krylov (or power) steps were taken, for each batch element in turn.
        statuses: Why the solver stopped, likewise.
    """

    lower: Float[Tensor, "*batch"]
    upper: Float[Tensor, "*batch"]
    confidence: float
    direction: Float[Tensor, "..."]
    response: Float[Tensor, "..."]
    residual: Float[Tensor, "*batch"]
    products: int
    step_counts: tuple[int, ...]
    statuses: tuple[Status, ...]
    random_gain: Float[Tensor, "*batch"] | None = None
    leading: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        holds = self.lower <= self.upper
        if not bool(holds.all()):
            lower, upper = (float(end[~holds].flatten()[0]) for end in (self.lower, self.upper))
            raise ContradictionError.between(lower, upper, "a bracket of the largest singular value")

    @property
    def steps(self) -> int:
        """How many steps were taken; for a batch, the most that any element took."""
        return max(self.step_counts)

    @property
    def status(self) -> Status:
        """Why the solver stopped; for a batch, the gravest of the reasons."""
        return gravest(self.statuses)

    @property
    def token_sensitivity(self) -> Float[Tensor, "*batch n"]:
        """The share of the direction that each token holds, so which tokens to move."""
        return _shares(self.direction, self.lower.ndim)

    @property
    def token_response(self) -> Float[Tensor, "*batch n"]:
        """The share of the response that each token holds, so which tokens move."""
        return _shares(self.response, self.lower.ndim)

    def show_tokens(self, words: Sequence[str]) -> "ShownTokens":
        """Return the words of the input, shaded in a notebook by their share of the worst perturbation.

        Args:
            words: One for each token, in their order.
        """
        if self.lower.ndim:
            raise AssumptionError("tokens are shown for one input; choose one of the batch, as in estimate[0].")
        shares = self.token_sensitivity.tolist()
        if len(words) != len(shares):
            raise AssumptionError(
                f"words must be one for each of the {len(shares)} tokens, got {len(words)}.", field="words"
            )
        return ShownTokens(words=tuple(map(str, words)), shares=tuple(shares))

    def __len__(self) -> int:
        if not self.lower.ndim:
            raise TypeError("an estimate of a single operator has no length.")
        return self.lower.shape[0]

    def __getitem__(self, index: int | tuple[int, ...]) -> "NormEstimate":
        """Return the estimate of one entry along the first batch axis, or along several."""
        if isinstance(index, tuple):
            return functools.reduce(NormEstimate.__getitem__, index, self)
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a batch of {size}.")
        stride = len(self.statuses) // size
        part = slice(index % size * stride, (index % size + 1) * stride)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen: dict[str, Any] = {name: x[index] for name, x in values.items() if isinstance(x, Tensor)}
        chosen |= {name: values[name][part] for name in ("step_counts", "statuses", "leading")}
        return replace(self, **chosen)

    def __iter__(self) -> Iterator["NormEstimate"]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"NormEstimate: {self._summary()}"

    def _summary(self) -> str:
        low, high = bracket_digits(float(self.lower.min()), float(self.upper.max()))
        steps = f"{self.steps} step{'s' if self.steps > 1 else ''}"
        many, worth = self.lower.numel(), f"({100 * self.confidence:.10g} %), {steps}"
        text = f"{low} ≤ Lip ≤ {high} {worth}"
        if many == 1 and self.random_gain is not None:
            text += f"; a random direction: about {number(float(self.random_gain), 1)}"
        if many > 1:
            # the spread of many constants is no error bar
            widest = float((self.upper / self.lower).nan_to_num(1.0).max())
            text = f"{many} inputs, Lip from {low} to {high}, each within a factor of {at_most(widest)} {worth}"
        return text if self.status == Status.CONVERGED else f"{text}. {self.status}"

    def __rich__(self) -> str:
        return self._summary()

    def _repr_html_(self) -> str:
        head = ("Lip ≥", f"Lip ≤ ({100 * self.confidence:.10g} %)", "a random direction", "status")
        rows = (
            (
                *bracket_digits(float(row.lower), float(row.upper)),
                "" if row.random_gain is None else f"about {number(float(row.random_gain), 1)}",
                row.status,
            )
            for row in self._flat()
        )
        return table(head, rows) + paragraph(f"{self.steps} steps, {self.products} products")

    def _flat(self) -> Iterator["NormEstimate"]:
        if self.lower.ndim:
            for part in self:
                yield from part._flat()
        else:
            yield self

    def to_json(self) -> str:
        """Return everything but the vectors as one JSON object; of these, the share of each token."""
        return strict_json(
            {
                "lower": self.lower.tolist(),
                "upper": self.upper.tolist(),
                "confidence": self.confidence,
                "residual": self.residual.tolist(),
                "random_gain": None if self.random_gain is None else self.random_gain.tolist(),
                "leading": list(self.leading),
                "steps": self.steps,
                "products": self.products,
                "status": self.status.name.lower(),
                "token_sensitivity": self.token_sensitivity.tolist(),
                "token_response": self.token_response.tolist(),
            }
        )

    def save(self, path: str | os.PathLike[str], f: Any, X: Float[Tensor, "n d"]) -> None:
        """Write a proof file: the direction of the lower end; the upper end is measured again by whoever checks it.

        Args:
            path: A ``.json`` file.
            f: The attention layer that was measured, in the metric ``total``.
            X: The tokens.
        """
        X = tokens_for(X, f)
        require_sequences(X)
        if self.lower.ndim or X.ndim != 2 or self.direction.shape != X.shape:
            raise AssumptionError("a proof file is about one input, (n, d), and directions of its shape.", field="X")
        lower = lower_claim(f, X, self.direction, float(self.lower), None)
        upper = float(self.upper) * (1 + PROOF_ROOM)
        claim = {"kind": "local upper", "value": upper, "confidence": self.confidence, "tokens": lower["tokens"]}
        write_proof(path, f, [lower, claim])

    def to_frame(self) -> Any:
        """Return the two ends at each input as a DataFrame of pandas."""
        return frame({"lower": float(part.lower), "upper": float(part.upper)} for part in self._flat())


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownTokens:
    """The words of an input and the share of the worst perturbation that each holds.

    Attributes:
        words: One for each token.
        shares: Their shares, which add up to one.
    """

    words: tuple[str, ...]
    shares: tuple[float, ...]

    def __repr__(self) -> str:
        """Name the words that hold most, the largest share first."""
        order = sorted(range(len(self.words)), key=lambda i: -self.shares[i])[:MAX_WORDS]
        return "ShownTokens: " + ", ".join(f"{self.words[i]!r} ({i}) {percent(self.shares[i])}" for i in order)

    def _repr_html_(self) -> str:
        return shaded(self.words, self.shares)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SingularValues:
    r"""The largest singular values of an operator, each between two bounds, with their vectors.

    Attributes:
        values: The singular values of the operator on the span of ``right``, the largest first: lower bounds.
        upper: Upper bounds, each holding with probability ``confidence``.
        right: Orthonormal vectors :math:`v_i`, stacked after the batch axes.
        left: Orthonormal vectors :math:`u_i` with :math:`J v_i = \sigma_i u_i`, likewise.
        confidence: See ``upper``.
        products: How many products with the operator or its transpose were taken.
        statuses: Why the solver stopped, for each batch element in turn.
    """

    values: Float[Tensor, "*batch k"]
    upper: Float[Tensor, "*batch k"]
    right: Float[Tensor, "..."]
    left: Float[Tensor, "..."]
    confidence: float
    products: int
    statuses: tuple[Status, ...]

    @property
    def status(self) -> Status:
        """Why the solver stopped; for a batch, the gravest of the reasons."""
        return gravest(self.statuses)

    def __repr__(self) -> str:
        single = self.values.ndim == 1
        values = ", ".join(at_least(x, 6) for x in self.values.tolist()) if single else str(self.values.tolist())[1:-1]
        return f"SingularValues: [{values}] ({100 * self.confidence:.10g} %), {self.products} products"

    def _repr_html_(self) -> str:
        head = ("number", "σ ≥", f"σ ≤ ({100 * self.confidence:.10g} %)")
        ends = zip(self.values.flatten().tolist(), self.upper.flatten().tolist(), strict=True)
        rows = ((i % self.values.shape[-1], *bracket_digits(low, high)) for i, (low, high) in enumerate(ends))
        return table(head, rows) + paragraph(f"{self.products} products")

    def to_json(self) -> str:
        """Return everything but the vectors as one JSON object."""
        return strict_json(
            {
                "values": self.values.tolist(),
                "upper": self.upper.tolist(),
                "confidence": self.confidence,
                "products": self.products,
                "status": self.status.name.lower(),
            }
        )


def gravest(statuses: Iterable[Status]) -> Status:
    """Return the status that the reader should worry most about."""
    return max(statuses, key=list(Status).index)


def _shares(vectors: Tensor, batch_axes: int) -> Tensor:
    squares = vectors.square()
    squares = of_all_tokens(squares.flatten(batch_axes + 1).sum(-1) if vectors.ndim > batch_axes + 1 else squares)
    sums = squares.sum(-1, keepdim=True)  # one, but for metrics in which directions are longer
    return squares / torch.where(sums > 0, sums, 1.0)


def bracket_digits(lower: float, upper: float) -> tuple[str, str]:
    """Write a bracket with just the digits that tell its ends apart, rounded outwards.

    >>> bracket_digits(5.31274, 5.31671)
    ('5.3127', '5.3168')
    """
    if not (0 < lower < math.inf and upper < math.inf):
        return at_least(lower), at_most(upper)
    width = (upper - lower) / upper
    digits = 5 if width <= 0 else min(12, max(5, 1 - math.floor(math.log10(width))))
    places = digits - 1 - math.floor(math.log10(upper))
    low, high = rounded(lower, places, ROUND_FLOOR), rounded(upper, places, ROUND_CEILING)
    return f"{low:.{max(places, 0)}f}", f"{high:.{max(places, 0)}f}"
