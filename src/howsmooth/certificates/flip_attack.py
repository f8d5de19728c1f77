"""The smallest perturbation that an attack finds to change a prediction: an upper end for radii."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.composition import linearised
from howsmooth.maps.protocols import Map
from howsmooth.models.autograd.module_calls import ModuleClassifier

Classifier = Map | ModuleClassifier
STARTS, STEPS = 8, 60
# How many shorter perturbations are tried between the best one and the origin.
SHARES = 50
# Searches run at once as long as their sentences have at most this many numbers.
NUMBERS = 2**20
MEMORY = 2**30


def smallest_flip(
    f: Classifier,
    X: Float[Tensor, "n d"],
    functionals: Float[Tensor, "rivals classes"],
    tokens: Tensor,
    *,
    p: float,
    between: tuple[float, float],
    within: float = math.inf,
    generator: torch.Generator,
) -> tuple[float, float]:
    """Search for the smallest perturbation of some tokens after which another class is predicted.

    Args:
        f: The classifier, from embeddings to logits.
        X: The embeddings.
        functionals: The margins, as functionals of the logits.
        tokens: The tokens that move.
        p: The norm of perturbations.
        between: The radii of the starts, which are spread over the orders of magnitude between these two.
        within: The largest radius to try.
        generator: Draws the starts.

    Returns:
        The size of the smallest perturbation that was found, infinite if there is none, and the smallest margin seen.
    """
    search = FlipSearch(tokens=tokens, between=between, generator=generator, within=within)
    (found,) = smallest_flips(f, X, functionals, [search], p=p)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class FlipSearch:
    """One search of :func:`smallest_flip`, among others that run at once."""

    tokens: Tensor
    between: tuple[float, float]
    generator: torch.Generator
    within: float = math.inf

    def steps(self, X: Float[Tensor, "n d"], p: float) -> Generator[Tensor, tuple[Tensor, Tensor], tuple[float, float]]:
        """Yield perturbations, for which margins and gradients are sent back; return what :func:`smallest_flip` does.

        Steps go down the gradient of the smallest margin on a sphere that shrinks after a success and grows after a
        failure, so that the search settles where the prediction changes.
        """
        shape = (STARTS, len(self.tokens), X.shape[-1])
        E = torch.randn(shape, generator=self.generator, dtype=X.dtype)
        low, high = (math.log10(end) for end in self.between)
        radius = torch.logspace(low, high, STARTS, dtype=X.dtype).clamp_max(self.within)
        best, smallest_margin, found = math.inf, math.inf, E[0]
        for step in range(STEPS):
            E = E * (radius / _size(E, p))[:, None, None]
            margins, gradient = yield E
            smallest_margin = min(smallest_margin, float(margins.min()))
            sizes = _size(E, p)
            flipped = margins <= 0
            if bool(flipped.any()) and float(sizes[flipped].min()) < best:
                first = int(torch.where(flipped, sizes, math.inf).argmin())
                best, found = float(sizes[first]), E[first]
            # Large steps first, small ones to settle; the radius follows at a third of the pace.
            rate = 0.5 * (1 - step / STEPS) + 0.02
            radius = torch.where(flipped, sizes * (1 - 0.3 * rate), sizes * (1 + 0.3 * rate)).clamp_max(self.within)
            E = E - (rate * E.flatten(1).norm(dim=1))[:, None, None] * unit_directions(gradient)
        if best == math.inf:
            return best, smallest_margin
        # A norm sees only the direction of x + e, so that s(x + e) − x has the same effect behind it as e.
        shares = torch.linspace(0, 1, SHARES + 1, dtype=X.dtype)[1:, None, None]
        shorter = shares * (X[self.tokens] + found) - X[self.tokens]
        margins, _gradient = yield shorter
        return min([best, *_size(shorter, p)[margins <= 0].tolist()]), smallest_margin


def smallest_flips(
    f: Classifier, X: Float[Tensor, "n d"], functionals: Tensor, searches: Sequence[FlipSearch], *, p: float
) -> list[tuple[float, float]]:
    """Run several searches at once: one pass of the network for a step of all of them."""
    found: dict[int, tuple[float, float]] = {}
    at_once = max(1, NUMBERS // (STARTS * X.numel()))
    for k in {len(search.tokens) for search in searches}:
        alike = [i for i, search in enumerate(searches) if len(search.tokens) == k]
        for begin in range(0, len(alike), at_once):
            found |= _run(f, X, functionals, {i: searches[i] for i in alike[begin : begin + at_once]}, p)
    return [found[i] for i in range(len(searches))]


def _run(
    f: Classifier, X: Tensor, functionals: Tensor, searches: dict[int, FlipSearch], p: float
) -> dict[int, tuple[float, float]]:
    """Run searches of equally many tokens, step by step."""
    running = {i: search.steps(X, p) for i, search in searches.items()}
    asked, found = {i: next(steps) for i, steps in running.items()}, {}
    while asked:
        tokens = torch.cat([searches[i].tokens.expand(len(E), -1) for i, E in asked.items()])
        margins, gradient = descent_direction(f, X, torch.cat(list(asked.values())), tokens, functionals)
        sizes = [len(E) for E in asked.values()]
        for i, *answer in zip(list(asked), margins.split(sizes), gradient.split(sizes), strict=True):
            try:
                asked[i] = running[i].send((answer[0], answer[1]))
            except StopIteration as end:
                found[i] = end.value
                del asked[i]
    return found


def random_sphere(shape: tuple[int, int, int], p: float, generator: torch.Generator) -> Float[Tensor, "samples k d"]:
    """Return perturbations of size one in random directions; half of them near the corners of balls that have some."""
    E = torch.randn(shape, generator=generator, dtype=torch.float64)
    if p == 1.0:
        # One coordinate dominates.
        E[::2] = E[::2] ** 15
    elif p == math.inf:
        E[::2] = E[::2].sign()
    return E / _size(E, p)[:, None, None]


def descent_direction(
    f: Classifier, X: Tensor, E: Tensor, tokens: Tensor, functionals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the smallest margin at every perturbation, and its gradient; each may move tokens of its own."""
    Z, each = X.repeat(len(E), 1, 1), torch.arange(len(E))[:, None]
    Z[each, tokens] += E
    logits, jacobian = f.value_and_jacobian(Z) if isinstance(f, ModuleClassifier) else linearised(f, Z, MEMORY)
    margins, rival = (logits[:, 0] @ functionals.mT).min(-1)
    gradient = jacobian.vjp(functionals[rival][:, None])[each, tokens]
    # A gradient that is not finite gives no direction; weights that are trained leave no graph.
    return margins.detach(), gradient.detach().nan_to_num(0.0, 0.0, 0.0)


def unit_directions(G: Float[Tensor, "starts k d"]) -> Float[Tensor, "starts k d"]:
    """Return directions of length one; zero where there is none."""
    return G / G.flatten(1).norm(dim=1).clamp_min(1e-300)[:, None, None]


def _size(E: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(E.flatten(1), p, dim=1)
