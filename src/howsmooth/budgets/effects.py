r"""From inner products to costs: unbiased to second order, with intervals over draws and over windows.

With inner products I of W windows, S passes and T positions in all, an error costs
:math:`\frac1{2TS}\sum_{w,s}I_{ws}^2`. I is a sum of very many independent signs, so I² is close to a multiple of
:math:`\chi^2_1`; the sum is compared with :math:`\chi^2_\nu`, ν by matching two moments over windows (Satterthwaite).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from scipy.stats import chi2
from scipy.stats import t as student
from torch import Tensor

CONFIDENCE = 0.95
LAYER = re.compile(r"(?<![^.])(\d+)(?![^.])")
HEAD = re.compile(r"cache\.(\d+)\.(?:key|value)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What an error, or several together, cost to second order.

    Attributes:
        name: What the error is in: a parameter, heads of the cache, a module; or what errors have in common.
        scheme: The scheme that makes it.
        kl: The cost: KL(p ‖ p_δ) in nats a token; for classifiers an input; for embeddings half the squared
            displacement, which is 1 − cosine on the sphere.
        low: The lower end of the interval over draws, at the given windows.
        high: The upper end.
        window_error: The standard error over windows, as a sample of the text; none for a single window.
    """

    name: str
    scheme: str
    kl: float
    low: float
    high: float
    window_error: float | None = None

    @property
    def layer(self) -> int | None:
        """The first number in its name; none if it has none."""
        return layer_of(self.name)

    @property
    def kind(self) -> str:
        """The name of the matrix without its layer; ``key`` and ``value`` of caches."""
        return kind_of(self.name)


def layer_of(name: str) -> int | None:
    """Return the first number in a name; none if it has none."""
    found = LAYER.search(name)
    return None if found is None else int(found[1])


def kind_of(name: str) -> str:
    """Return a name without its layer and what stands before it, and without the head behind it."""
    found = LAYER.search(name)
    tail = name if found is None else name[found.end() :].lstrip(".")
    return re.sub(r"\.\d+$", "", tail.removesuffix(".weight"))


def head_of(name: str) -> str | None:
    """Return the layer and the head of ``cache.3.key.2``, 3.2; none for what is in no head of a cache."""
    found = HEAD.fullmatch(name)
    return None if found is None else f"{found[1]}.{found[2]}"


# How errors may be grouped, by what their names have in common.
GROUPS = {"layer": layer_of, "kind": kind_of, "head": head_of}


def effect(name: str, scheme: str, values: Float[Tensor, "windows passes"], positions: int) -> Effect:
    """Return what an error costs, given its inner products."""
    windows, passes = values.shape
    each = values.double().square().mean(-1) / (2 * positions)
    kl = float(each.mean())
    low, high = interval(kl, freedom(each, passes))
    error = float(each.std() / math.sqrt(windows)) if windows > 1 else None
    return Effect(name=name, scheme=scheme, kl=kl, low=low, high=high, window_error=error)


def freedom(each: Float[Tensor, " windows"], passes: int) -> float:
    """Return the degrees of freedom of a mean over windows, each a multiple of χ² with as many as there are passes."""
    total = float(each.sum()) ** 2
    # the square of an estimate exceeds that of the truth by a share of 2/S in the mean
    squares = float(each.square().sum()) * passes / (passes + 2)
    most = float(len(each) * passes)
    return most if squares == 0 else min(max(passes * total / squares, float(passes)), most)


def interval(estimate: float, degrees: float) -> tuple[float, float]:
    """Return the interval in which the truth lies with the confidence of 95 %, if its estimate is a scaled χ²."""
    tail = (1 - CONFIDENCE) / 2
    return estimate * degrees / float(chi2.ppf(1 - tail, degrees)), estimate * degrees / float(chi2.ppf(tail, degrees))


def elsewhere(found: Effect, *, windows: int, others: int) -> tuple[float, float]:
    """Return the interval for the mean cost at other windows of the same text, given an estimate at some.

    The logarithm of a mean over windows is compared with Student's t; both the estimate and what it is compared with
    vary with their windows. Draws are part of the variation. One window tells nothing of others.
    """
    if found.window_error is None or found.kl == 0:
        return 0.0, math.inf
    spread = found.window_error / found.kl * math.sqrt(1 + windows / others)
    factor = math.exp(float(student.ppf((1 + CONFIDENCE) / 2, windows - 1)) * spread)
    return found.kl / factor, found.kl * factor


def half_of_cost(effects: Sequence[Effect]) -> list[Effect]:
    """Return the fewest errors whose costs make half of the sum, the largest first."""
    ranked = sorted(effects, key=lambda each: -each.kl)
    total, running = sum(each.kl for each in ranked), 0.0
    for i, each in enumerate(ranked):
        running += each.kl
        if running >= total / 2:
            return ranked[: i + 1]
    return ranked
