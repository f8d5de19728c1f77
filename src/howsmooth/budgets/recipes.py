r"""Recipes: which scheme for which matrix, so that all together cost least.

A recipe is chosen as if costs added up: the sum of the costs that its errors have alone, plus a price for each bit, is
least for the best option of each matrix by itself. The price is bisected, and what size remains is filled greedily.

Why not with interactions, which inner products have, too: few draws make the cross terms of hundreds of matrices
noise, and a choice among very many recipes finds those whose noise cancels. On SmolLM2 such recipes were worse than
these, on fresh draws, even with cross terms shrunk. What a recipe costs is told with interactions. Rules of thumb
choose in the same way, by costs of their own.

Few draws are noisy, and errors of two bits cost more together than second order says. Both make recipes by estimates
spread too far, so some between these and the uniform rule are run at the windows of the budget, and the best is taken.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.budgets.effects import Effect, layer_of
from howsmooth.budgets.places import Error
from howsmooth.budgets.schemes import COMPUTED, UNROUNDED_BITS
from howsmooth.errors import AssumptionError, nearest

KEEP = "keep"
# Bisections of the price of a bit.
BISECTIONS = 40
# How many layers at each end a rule of thumb spares, and how many bits more a number there has.
ENDS, MORE_BITS = 2, 2
GOLDEN = (5**0.5 - 1) / 2
# How far candidates go from the estimates to the uniform rule.
SHRINKAGES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A scheme for each matrix, and what they cost together.

    Attributes:
        schemes: The scheme by the name of the matrix, or head of the cache; ``keep`` where it stays as it is.
        bits: The mean bits of a number.
        size: The share of the size that the same matrices have with 16 bits.
        predicted: What the draws say that were used to choose it; a choice makes it too low.
        fresh: What other draws say, with an interval for the windows it is measured at; none if there were none.
        measured: What it costs truly, by one run of the model at each window; none if it was not run.
    """

    schemes: Mapping[str, str]
    bits: float
    size: float
    predicted: Effect
    fresh: Effect | None = None
    measured: float | None = None

    @property
    def rounded(self) -> dict[str, str]:
        """The matrices that are rounded, with their schemes."""
        return {name: scheme for name, scheme in self.schemes.items() if scheme != KEEP}


@dataclass(frozen=True, kw_only=True, eq=False)
class RecipeChoice:
    """Every option of every matrix: how large it is, and what it costs."""

    names: tuple[str, ...]  # the matrices
    options: tuple[str, ...]  # the names of the schemes; the last is to keep the matrix
    costs: Float[Tensor, "matrices options"]  # the cost of each option alone, zero for what is kept
    bits: Float[Tensor, "matrices options"]  # the bits of each option, for all numbers of a matrix
    squares: Float[Tensor, "matrices options"]  # |δ|², zero for what is kept
    # inner products, zero for what is kept, divided so that squares of their sums are costs
    values: Float[Tensor, "draws matrices options"]

    @classmethod
    def of(
        cls, errors: Sequence[Error], values: Float[Tensor, "windows passes errors"], positions: int
    ) -> "RecipeChoice":
        """Arrange inner products by matrix and scheme; an option that a matrix does not have is infinitely large.

        What is computed anew has no size, so that no recipe chooses its scheme.
        """
        kept = [i for i, error in enumerate(errors) if error.place not in COMPUTED]
        if not kept:
            raise no_size(dict.fromkeys(error.scheme for error in errors))
        errors, values = [errors[i] for i in kept], values[..., kept]
        names = tuple(dict.fromkeys(error.name for error in errors))
        options = (*dict.fromkeys(error.scheme for error in errors), KEEP)
        draws = values.double().flatten(0, 1)
        draws = draws / (2 * positions * len(draws)) ** 0.5
        table = torch.zeros(len(draws), len(names), len(options), dtype=torch.float64)
        bits = torch.full((len(names), len(options)), torch.inf, dtype=torch.float64)
        squares = torch.zeros_like(bits)
        numbers = {error.name: error.numbers for error in errors}
        bits[:, -1] = UNROUNDED_BITS * torch.tensor([numbers[name] for name in names], dtype=torch.float64)
        for i, error in enumerate(errors):
            at = names.index(error.name), options.index(error.scheme)
            table[:, *at], bits[at], squares[at] = draws[:, i], error.bits * error.numbers, error.squared
        costs = table.square().sum(0)
        return cls(names=names, options=options, costs=costs, bits=bits, squares=squares, values=table)

    def by_rule(self, rule: str, *, bits: float) -> Tensor:
        """Return what a rule of thumb chooses within so many bits: what makes the sum of its costs least."""
        if rule not in RULES:
            raise AssumptionError(f"there is no rule {rule!r}{nearest(rule, RULES)}", field="rule")
        return replace(self, costs=RULES[rule](self)).within(bits=bits)

    def candidates(self, *, bits: float) -> list[Tensor]:
        """Return choices within so many bits, by geometric means of estimated costs and those of the uniform rule."""
        uniform = by_bits(self)
        return [replace(self, costs=self.costs ** (1 - t) * uniform**t).within(bits=bits) for t in SHRINKAGES]

    def within(self, *, bits: float | None = None, kl: float | None = None) -> Tensor:
        """Return the cheapest options that take at most so many bits, or the smallest that cost at most so much."""
        if bits is not None and float(self.bits.amin(1).sum()) > bits:
            least = float(self.bits.amin(1).sum() / self.bits[:, -1].sum())
            raise AssumptionError(
                f"size must be at least {least:.3f}, which is every matrix under its smallest scheme; add a smaller "
                "scheme, or ask for more.",
                field="size",
            )

        def fits(chosen: Tensor) -> bool:
            return self.total_bits(chosen) <= bits if bits is not None else self.cost(chosen) <= (kl or 0.0)

        low, high = 1e-30, 1e6  # prices: no rounding pays, every rounding pays
        best = self.bits.argmin(1) if bits is not None else torch.full((len(self.names),), len(self.options) - 1)
        for _step in range(BISECTIONS):
            price = (low * high) ** 0.5
            chosen = (self.costs + price * self.bits).argmin(1)
            if fits(chosen):
                best = chosen
            # a higher price gives smaller recipes, which cost more
            low, high = (low, price) if fits(chosen) == (bits is not None) else (price, high)
        return self._filled(best, bits) if bits is not None else best

    def _filled(self, chosen: Tensor, bits: float) -> Tensor:
        """Spend what is left where it gains most for each bit."""
        chosen, every = chosen.clone(), torch.arange(len(self.names))
        while True:
            gain = self.costs[every, chosen][:, None] - self.costs
            more = self.bits - self.bits[every, chosen][:, None]
            allowed = (more > 0) & (more <= bits - self.total_bits(chosen)) & (gain > 0)
            if not bool(allowed.any()):
                return chosen
            best = int(torch.where(allowed, gain / more, -torch.inf).argmax())
            chosen[best // len(self.options)] = best % len(self.options)

    def total_bits(self, chosen: Tensor) -> float:
        """Return how many bits a choice takes."""
        return float(self.bits[torch.arange(len(self.names)), chosen].sum())

    def cost(self, chosen: Tensor) -> float:
        """Return what a choice costs, interactions included."""
        return float(self.values[:, torch.arange(len(self.names)), chosen].sum(1).square().sum())

    def named(self, chosen: Tensor) -> dict[str, str]:
        """Return a choice by the names of matrices."""
        return {name: self.options[int(i)] for name, i in zip(self.names, chosen, strict=True)}

    def rounded(self, chosen: Tensor) -> dict[str, str]:
        """Return the schemes of a choice, without what is kept."""
        return {name: scheme for name, scheme in self.named(chosen).items() if scheme != KEEP}


def no_size(schemes: Iterable[str]) -> AssumptionError:
    """Return the error for recipes of schemes that round nothing but what is computed."""
    return AssumptionError(
        "a recipe gives a scheme to each matrix and cache, but only computed values, which take no space, are rounded "
        f"here ({', '.join(schemes)}); add a scheme such as int4:g64.",
        field="schemes",
    )


def by_bits(choice: RecipeChoice) -> Float[Tensor, "matrices options"]:
    """Return the cost of a rule that sees bits alone: a number of b bits costs 4⁻ᵇ, wherever it is.

    Between two schemes, some matrices have the finer one. The golden ratio breaks ties between them, which spreads
    these evenly over depth.
    """
    numbers = choice.bits[:, -1:] / UNROUNDED_BITS
    turns = (torch.arange(len(numbers), dtype=torch.float64)[:, None] * GOLDEN) % 1
    return numbers * 4.0 ** -(choice.bits / numbers) * (1 + 1e-6 * turns)


def by_depth(choice: RecipeChoice) -> Float[Tensor, "matrices options"]:
    """Return the cost of the rule that the first and last two layers need more bits, two more for each number."""
    layers = [layer_of(name) for name in choice.names]
    last = max((layer for layer in layers if layer is not None), default=0)
    spared = torch.tensor([layer is not None and min(layer, last - layer) < ENDS for layer in layers])
    return by_bits(choice) * torch.where(spared, 4.0**MORE_BITS, 1.0)[:, None]


# What rules of thumb minimise, by their names.
RULES: Mapping[str, Callable[[RecipeChoice], Tensor]] = {
    "uniform": by_bits,
    "first and last layers": by_depth,
    "weight error": lambda choice: choice.squares,
}
