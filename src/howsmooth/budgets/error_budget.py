"""The budget of a model: what every error costs, alone and together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.budgets.effects import GROUPS, Effect, effect, elsewhere
from howsmooth.budgets.outcomes import Outcome, Verified, outcome, true_costs
from howsmooth.budgets.passes import Products, inner_products
from howsmooth.budgets.places import Places
from howsmooth.budgets.recipes import Recipe, RecipeChoice
from howsmooth.budgets.schemes import UNROUNDED_BITS, Scheme, scheme
from howsmooth.budgets.subject import Subject
from howsmooth.budgets.worst_errors import worst_cost
from howsmooth.errors import AssumptionError, nearest
from howsmooth.markup import frame, strict_json
from howsmooth.models.inputs.text import Text
from howsmooth.models.transformer import Transformer
from howsmooth.validation import plain_mode

PASSES = 32
FRESH = 1  # added to the seed for passes that no choice has seen


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Budget:
    """What errors inside a model cost at its output, to second order.

    Attributes:
        model: The name of the model.
        products: Inner products of sampled gradients with every error.
        cost: What ``kl`` counts: ``nats a token``, ``nats an input``, ``1 − cosine`` or ``half squared displacement``.
        places: The model with its windows, to run it again; none if the budget was read from a run.
        seed: The seed of the draws.
    """

    model: str
    products: Products
    cost: str
    places: Places | None = None
    seed: int = 0

    @property
    def schemes(self) -> tuple[str, ...]:
        """The names of the schemes."""
        return tuple(dict.fromkeys(error.scheme for error in self.products.errors))

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What each error costs alone, in the order in which the model meets them."""
        values, positions = self.products.values, self.products.positions
        return tuple(
            effect(error.name, error.scheme, values[..., i], positions) for i, error in enumerate(self.products.errors)
        )

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json({"model": self.model, "cost": self.cost, "effects": list(map(asdict, self.effects))})

    def to_frame(self) -> Any:
        """Return one row for every error as a DataFrame of pandas."""
        return frame(map(asdict, self.effects))

    def names(self, scheme: str) -> tuple[str, ...]:
        """Return what a scheme rounds."""
        return tuple(error.name for error in self.products.errors if error.scheme == scheme)

    def together(self, names: Iterable[str] | Mapping[str, str] | None = None, scheme: str | None = None) -> Effect:
        """Return what errors cost together, interactions included.

        Args:
            names: What is rounded; everything by default. A mapping has the scheme of each.
            scheme: The scheme that rounds them; may be left out if there is one alone.

        Raises:
            AssumptionError: If there is no such error.
        """
        if isinstance(names, Mapping):
            chosen = dict(names)
            label = "a recipe"
        else:
            label = self._one_scheme(scheme)
            chosen = dict.fromkeys(self.names(label) if names is None else names, label)
        columns = self.columns(chosen)
        values = self.products.values[..., columns].sum(-1)
        return effect(f"{len(columns)} together", label, values, self.products.positions)

    def grouped(self, by: str, scheme: str | None = None) -> tuple[Effect, ...]:
        """Return what the errors of each group cost together, interactions included.

        Args:
            by: ``layer``, ``kind`` (of matrix) or ``head`` (keys and values of a head of the cache); errors that have
                none of these are left out.
            scheme: The scheme; may be left out if there is one alone.

        Raises:
            AssumptionError: If there is no such grouping or scheme, or no error has a group.
        """
        label = self._one_scheme(scheme)
        if by not in GROUPS:
            raise AssumptionError(f"there is no grouping {by!r}{nearest(by, GROUPS)}", field="by")
        groups: dict[str, list[str]] = {}
        for name in self.names(label):
            if (group := GROUPS[by](name)) is not None:
                groups.setdefault(str(group), []).append(name)
        if not groups:
            raise AssumptionError(f"what {label!r} rounds has no {by}; take a scheme such as kv:int4.", field="by")
        return tuple(replace(self.together(names, label), name=group) for group, names in groups.items())

    def columns(self, recipe: Mapping[str, str]) -> list[int]:
        """Return where the errors of a recipe stand in the table of inner products.

        Raises:
            AssumptionError: If one is not there.
        """
        places = {error.key: i for i, error in enumerate(self.products.errors)}
        for name, label in recipe.items():
            if (name, label) not in places:
                known = self.names(self._one_scheme(label))
                raise AssumptionError(f"{label!r} rounds nothing called {name!r}{nearest(name, known)}", field="names")
        return [places[key] for key in recipe.items()]

    def _one_scheme(self, scheme: str | None) -> str:
        if scheme is None and len(self.schemes) == 1:
            return self.schemes[0]
        if scheme not in self.schemes:
            raise AssumptionError(f"scheme must be one of {', '.join(self.schemes)}, got {scheme!r}.", field="scheme")
        return scheme

    def recipe(
        self,
        *,
        size: float | None = None,
        kl: float | None = None,
        rule: str | None = None,
        fresh: Products | None = None,
        held_out: Tensor | None = None,
    ) -> Recipe:
        """Choose a scheme for each matrix: the cheapest of a size, or the smallest of a cost.

        A choice by estimates makes its own estimate too low. With the model at hand, the recipe of a size is the best
        of five between these and the uniform rule, by runs at the windows of the budget; it is judged on fresh draws,
        as many as there were, and by a run of the model with all errors in it.

        Args:
            size: The share of the size that the matrices have with 16 bits each: 0.25 for four bits in the mean.
            kl: The most that all errors together may cost.
            rule: A rule of thumb that chooses in place of the estimates, to compare at the same size: ``uniform``,
                ``first and last layers`` or ``weight error``.
            fresh: Inner products of other draws to judge it by; drawn anew by default.
            held_out: Other windows of the same text that the true cost is measured at, and that the interval of
                ``fresh`` is for, unless one window alone was drawn at; those of the budget by default.

        Raises:
            AssumptionError: If not one of size and kl is given, or no recipe is so small.
        """
        if (size is None) == (kl is None) or (size or kl or 0.0) <= 0:
            raise AssumptionError(f"give one of size and kl, a positive number; got {size} and {kl}.", field="size")
        if rule is not None and size is None:
            raise AssumptionError("a rule of thumb knows no costs; give size.", field="size")
        products = self.products
        choice = RecipeChoice.of(products.errors, products.values, products.positions)
        whole = float(choice.bits[:, -1].sum())
        bits = None if size is None else size * whole
        if rule is not None and bits is not None:
            chosen = choice.by_rule(rule, bits=bits)
        elif bits is not None and self.places is not None:
            chosen = min(choice.candidates(bits=bits), key=lambda some: float(self.measured(choice.rounded(some))))
        else:
            chosen = choice.within(bits=bits, kl=kl)
        schemes, share, rounded = choice.named(chosen), choice.total_bits(chosen) / whole, choice.rounded(chosen)
        if fresh is None and self.places is not None:
            fresh = inner_products(self.places, passes=products.values.shape[1], seed=self.seed + FRESH)
        judge = None if fresh is None else replace(self, products=fresh).together(rounded)
        if judge is not None and judge.window_error is not None and held_out is not None:
            low, high = elsewhere(judge, windows=len(products.values), others=len(held_out))
            judge = replace(judge, low=low, high=high)
        measured = None if self.places is None else float(self.measured(rounded, tokens=held_out))
        return Recipe(
            schemes=schemes,
            bits=share * UNROUNDED_BITS,
            size=share,
            predicted=self.together(rounded),
            fresh=judge,
            measured=measured,
        )

    @plain_mode()
    def measured(self, *recipes: Mapping[str, str], tokens: Tensor | None = None, factor: float = 1.0) -> Tensor:
        """Run the model with errors in it: the true cost of each recipe, its mean over windows and positions.

        Args:
            recipes: The scheme by the name of what it rounds.
            tokens: Other windows, held out; those of the budget by default.
            factor: How much of each error is put in: half of it tells whether second order still holds.

        Raises:
            AssumptionError: If the budget was read from a run, without the model.
        """
        return true_costs(self._places(tokens), recipes, factor=factor).mean((1, 2))

    def by_token(
        self, recipe: Mapping[str, str], *, tokens: Tensor | None = None
    ) -> Float[Tensor, "windows positions"]:
        """Run the model with errors in it: the true cost at every position, so that one sees which tokens suffer.

        Args:
            recipe: The scheme by the name of what it rounds.
            tokens: Other windows; those of the budget by default.

        Raises:
            AssumptionError: If the budget was read from a run, without the model.
        """
        return self.outcome(recipe, tokens=tokens).costs

    @plain_mode()
    def outcome(self, recipe: Mapping[str, str], *, tokens: Tensor | None = None) -> Outcome:
        """Run the model with errors in it: costs and margins at every position, and where another word or class wins.

        Args:
            recipe: The scheme by the name of what it rounds.
            tokens: Other windows; those of the budget by default.

        Raises:
            AssumptionError: If the budget was read from a run, without the model.
        """
        self.columns(recipe)  # refuses names that are not there
        return outcome(self._places(tokens), recipe)

    def verify(self, count: int, scheme: str | None = None, *, worst: bool = False) -> tuple[Verified, ...]:
        """Run the model with single errors in it: the worst ones, and as many random ones of the others.

        Args:
            count: How many of each.
            scheme: The scheme; may be left out if there is one alone.
            worst: Also bracket what the worst error of the size of each would cost: some twenty passes for each.

        Raises:
            AssumptionError: If the budget was read from a run, without the model.
        """
        label = self._one_scheme(scheme)
        ranked = sorted((each for each in self.effects if each.scheme == label), key=lambda each: -each.kl)
        others = ranked[count:]
        drawn = torch.randperm(len(others), generator=torch.Generator().manual_seed(self.seed))[:count]
        chosen = ranked[:count] + [others[i] for i in drawn.tolist()]
        recipes = [{each.name: label} for each in chosen]
        whole, half = (self.measured(*recipes, factor=factor).tolist() for factor in (1.0, 0.5))
        subject, squares = self._places().subject, {error.key: error.squared for error in self.products.errors}
        most = [  # what has no effect, such as an unused pooler, has no worst error
            worst_cost(subject, e.name, squares[e.name, label], seed=self.seed) if worst and e.kl > 0 else None
            for e in chosen
        ]
        return tuple(
            Verified(predicted=each, measured=one, at_half=4 * other, worst=limit)
            for each, one, other, limit in zip(chosen, whole, half, most, strict=True)
        )

    def _places(self, tokens: Tensor | None = None) -> Places:
        if self.places is None:
            raise AssumptionError("this budget was read from a run, without the model; compute it anew.")
        if tokens is None:
            return self.places
        subject = Subject.of(self.places.subject.transformer, tokens)
        return Places(subject=subject, schemes=self.places.schemes)

    def __repr__(self) -> str:
        """Return the model, the schemes and what each costs everywhere."""
        costs = ", ".join(f"{label}: {self.together(scheme=label).kl:.3g}" for label in self.schemes)
        return f"Budget({self.model}, {costs} {self.cost})"


@plain_mode()
def budget(
    model: Transformer | nn.Module | str,
    tokens: Int[Tensor, "b n"] | Text | str,
    *,
    schemes: Sequence[str | Scheme],
    passes: int = PASSES,
    seed: int = 0,
) -> Budget:
    """Return what errors inside a model cost at its output, each alone and any of them together.

    The cost of an error δ is ½⟨δ, Fδ⟩ with the Fisher metric F of the output; random backward passes estimate it for
    all errors at once (:ref:`Error budgets <error-budgets>`).

    Args:
        model: A model, a module, or what :func:`~howsmooth.load` takes.
        tokens: Windows of token ids; or a text, or its file, which is cut into four windows of 128 tokens.
        schemes: Names of schemes (:func:`~howsmooth.budgets.scheme`), such as ``int4:g64``, ``fp8``, ``kv:int4``.
        passes: How many backward passes at each window; the relative error is about √(2/(passes · windows)).
        seed: The seed of the draws.

    Raises:
        HowsmoothError: If there is no such model, text or scheme, or the model cannot be differentiated.

    Example:
        >>> import howsmooth as hs
        >>> found = hs.budget("reviews", "alice", schemes=["int4:g64"], passes=4)
        >>> len(found.effects)
        20
    """
    found = [each if isinstance(each, Scheme) else scheme(each) for each in check_schemes(schemes)]
    if passes < 1:
        raise AssumptionError(f"passes must be at least 1, got {passes}.", field="passes")
    subject = Subject.of(model, tokens)
    places = Places(subject=subject, schemes=found)
    products = inner_products(places, passes=passes, seed=seed)
    return Budget(model=subject.transformer.name, products=products, cost=subject.unit, places=places, seed=seed)


def check_schemes(schemes: Sequence[str | Scheme]) -> Sequence[str | Scheme]:
    """Refuse what is no list of schemes."""
    if isinstance(schemes, str) or not schemes:
        raise AssumptionError(f'schemes must be a list such as ["int4:g64"], got {schemes!r}.', field="schemes")
    return schemes
