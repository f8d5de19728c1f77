r"""Upper bounds on a ball, checked: every norm by a Cholesky factor, every formula in balls of arb.

Of a head, with :math:`A = sK^\top Q`, :math:`b = s|K^\top b_q|` and :math:`c = \|A\|R^2`, the theorems say
:math:`\mathrm{Lip}\le\|WV\|\,g`, with g from ``FACTORS``. Heads add up, or are concatenated,
:math:`\|[W_1\cdots W_H]\|(\sum_h\|V_h\|^2g_h^2)^{1/2}`, or stand together under scales
(docs, :ref:`several-heads` and :ref:`heads-together`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from howsmooth.check.balls import Array, BallArray, ball, concatenated, length, norm_at_most, semidefinite, square_below
from howsmooth.check.outcomes import CannotCheck, Refuted, listed, number, numbers


@dataclass(frozen=True, eq=False)
class CheckedHead:
    r"""One head of softmax attention without positions: its matrices, in balls.

    Attributes:
        A: :math:`sK^\top Q`.
        bias: :math:`sK^\top b_q`; none if that is zero.
        V: Values.
        W: This head's part of the output projection; for concatenated heads, its place in the output.
    """

    A: BallArray
    bias: BallArray | None
    V: BallArray
    W: BallArray

    @property
    def WV(self) -> BallArray:
        """Values behind the output projection."""
        return self.W @ self.V


def heads_of(step: Any) -> list[CheckedHead]:
    """Return the heads of an attention step; keys and values may be shared by several."""
    x, s = step.arrays, step.settings["scale"]
    count, k, _d = x["query"].shape
    groups, v = x["value"].shape[:2]
    output = x.get("output", np.eye(count * v).reshape(count * v, count, v).transpose(1, 0, 2))
    query_bias, found = x.get("query_bias", np.zeros((count, k))), []
    for h in range(count):
        g = h // (count // groups)
        scaled = ball(x["key"][g]).T * s
        bias = scaled @ query_bias[h][:, None] if query_bias[h].any() else None
        found.append(CheckedHead(scaled @ x["query"][h], bias, ball(x["value"][g]), ball(output[h])))
    return found


def _sharp(a: arb, b: arb, R: arb, n: int) -> arb:
    return arb(n).sqrt() + R * a * R + (arb(n) / 2).sqrt() * R * (a * R + b)


def _paper(a: arb, b: arb, R: arb, n: int) -> arb:
    return (3 * ((a * R * R) ** 2 * (4 * n + 1) + n)).sqrt()


def _measures(a: arb, b: arb, R: arb, n: int) -> arb:
    c = a * R * R
    return (1 + 3 * c) * (2 * c).exp()


def _sharp_measures(a: arb, b: arb, R: arb, n: int) -> arb:
    c = a * R * R
    return (1 + 2 * c) * c.exp() + c


def _masked_measures(a: arb, b: arb, R: arb, n: int) -> arb:
    c = a * R * R
    return 2 * (1 + 2 * c) * (2 * c).exp() + c


def _largest_token(a: arb, b: arb, R: arb, n: int) -> arb:
    return 1 + R * (2 * a * R + b)


Factor = Callable[[arb, arb, arb, int], arb]
# The factor g of every theorem; whether it allows a query bias; and which masks: none, causal, or either.
FACTORS: dict[str, tuple[Factor, bool, tuple[bool, ...]]] = {
    "sharp_upper": (_sharp, True, (False, True)),
    "discrete_upper": (_paper, False, (False, True)),
    "mean_field_upper": (_measures, False, (False,)),
    "sharp_mean_field_upper": (_sharp_measures, False, (False,)),
    "masked_mean_field_upper": (_masked_measures, False, (True,)),
    "token_upper": (_largest_token, True, (False, True)),
}
# Theorems about every number of tokens.
WITHOUT_LENGTH = ("mean_field_upper", "sharp_mean_field_upper", "masked_mean_field_upper", "token_upper")


def check_upper(step: Any, claim: dict[str, Any]) -> None:
    """Check an upper bound of one attention layer on tokens in a ball.

    Raises:
        Refuted: With the number of the stage that does not hold.
        CannotCheck: If the theorem is not known here, or is not about this map.
    """
    name, way = claim.get("theorem"), claim.get("heads")
    if name not in FACTORS:
        raise CannotCheck(f"the theorem {name!r} is not known here")
    if claim.get("metric") != ("token" if name == "token_upper" else "total"):
        raise CannotCheck(f"{name} is about another metric")
    _factor, biased, masks = FACTORS[name]
    if step.settings["causal"] not in masks:
        raise CannotCheck(f"{name} is about another mask")
    heads = heads_of(step)
    if not biased and any(head.bias is not None for head in heads):
        raise CannotCheck(f"{name} is about attention without query biases")
    R, stages = number(claim, "radius"), listed(claim, "stages")
    n = 1 if name in WITHOUT_LENGTH else claim.get("n")
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n < 2**53 or not R > 0:
        raise CannotCheck("a ball has a positive radius, and sequences at least one token")
    if way in ("apart", "concatenated"):
        found = _one_by_one(name, way, heads, n, R, stages)
    elif way == "together" and name == "sharp_upper":
        found = _together(heads, n, R, stages)
    else:
        raise CannotCheck(f"heads can be apart, concatenated or together, got {way!r}")
    if not found <= arb(number(claim, "value")):
        raise Refuted(len(stages), f"the stages give {found.str(12)}, more than {claim['value']!r}")


def _one_by_one(name: str, way: str, heads: list[CheckedHead], n: int, R: float, stages: list[dict[str, Any]]) -> arb:
    """Return the bound from one stage for every head, and for concatenated ones that of the output projection."""
    total, concatenates = arb(0), way == "concatenated"
    if len(stages) != len(heads) + concatenates:
        raise Refuted(len(stages), f"{len(heads)} heads need {len(heads) + concatenates} stages")
    for k, head in enumerate(heads):
        a = _proven(k, stages[k], "A", head.A)
        b = arb(0) if head.bias is None else arb(float(length(head.bias[:, 0]).upper))
        size = _proven(k, stages[k], "V" if concatenates else "WV", head.V if concatenates else head.WV)
        factor = size * FACTORS[name][0](a, b, arb(R), n)
        total += factor**2 if concatenates else factor
    if not concatenates:
        return total
    output = concatenated([head.W for head in heads], 1)
    return _proven(len(heads), stages[-1], "output", output) * total.sqrt()


def _together(heads: list[CheckedHead], n: int, R: float, stages: list[dict[str, Any]]) -> arb:
    r"""Return :math:`\sqrt n\,c_1 + \lambda^{1/2}` from the stages value, query and key."""
    if [stage.get("term") for stage in stages] != ["value", "query", "key"]:
        raise Refuted(0, "heads together need the stages value, query and key, in this order")
    value, query, key = stages
    c1 = _values(0, value, heads) * _length(_scales(0, value, heads))
    forms = concatenated([head.A * s for head, s in zip(heads, _scales(1, query, heads), strict=True)], 0)
    c2 = _values(1, query, heads) * arb(R) ** 2 * _proven(1, query, "forms", forms)
    tau = number(key, "tau")
    if not tau >= 0 or (tau == 0 and any(head.bias is not None for head in heads)):
        raise Refuted(2, "a query bias needs a positive tau")
    extended = [head.A if tau == 0 else _with_bias(head, tau) for head in heads]
    scaled = [A * s for A, s in zip(extended, _scales(2, key, heads), strict=True)]
    root = (arb(R) ** 2 + arb(tau) ** 2).sqrt()
    c3 = _values(2, key, heads) * arb(R) * root * _key_forms(key, scaled) / arb(2).sqrt()
    m = min(2 * len(heads), n)
    attended = n * c3**2 + 2 * arb(m).sqrt() * c2 * c3 + c2**2
    across = arb(n - m).sqrt() * c2 * c3
    largest = (attended + c2**2) / 2 + (((attended - c2**2) / 2) ** 2 + across**2).sqrt()
    return arb(n).sqrt() * c1 + largest.sqrt()


def _with_bias(head: CheckedHead, tau: float) -> BallArray:
    bias = ball(np.zeros((len(head.A.mid), 1))) if head.bias is None else head.bias
    return concatenated([head.A, bias * ball(np.array(tau)).inverse()], 1)


def _key_forms(stage: dict[str, Any], A: list[BallArray]) -> arb:
    """Return the norm of all combinations of forms: by one stack of them, or by the matrix of both."""
    way = stage.get("stack")
    if way == "under":
        return _proven(2, stage, "forms", concatenated(A, 0))
    if way == "beside":
        return _proven(2, stage, "forms", concatenated(A, 1))
    if way != "joint":
        raise CannotCheck(f"forms are stacked under, beside or joint, got {way!r}")
    bound = number(stage, "forms")
    # the transposes have the same norm, and another matrix
    if not any(_combinations_at_most(side, bound) for side in (A, [x.T for x in A])):
        raise Refuted(2, f"the norm of all combinations is not proven to be at most {bound!r}")
    return arb(bound)


def _combinations_at_most(A: list[BallArray], bound: float) -> bool:
    r"""Tell whether :math:`\sup_{|c|=1}\|\sum_hc_hA_h\|` is proven (docs, :ref:`all-combinations`)."""
    # in units of the largest entry, so that squares stay in the range of floats
    unit = float(2.0 ** -np.floor(np.log2(max(max(float(x.size.max()) for x in A), 1e-300))))
    stacked = concatenated(A, 0) * unit
    heads, rows = len(A), A[0].shape[0]
    gram = stacked @ stacked.T
    # half of the blocks A_h A_gᵀ and A_g A_hᵀ each
    mid, rad = (x.reshape(heads, rows, heads, rows) for x in (gram.mid, gram.rad))
    both = BallArray(mid, rad) + BallArray(mid.transpose(2, 1, 0, 3), rad.transpose(2, 1, 0, 3))
    return semidefinite(-(both * 0.5).reshape(heads * rows, heads * rows), square_below(bound * unit))


def _values(k: int, stage: dict[str, Any], heads: list[CheckedHead]) -> arb:
    """Return the norm of the values side by side under the inverse scales of a stage."""
    inverse = [ball(np.array(s)).inverse() for s in _scales(k, stage, heads)]
    return _proven(k, stage, "values", concatenated([h.WV * t for h, t in zip(heads, inverse, strict=True)], 1))


def _scales(k: int, stage: dict[str, Any], heads: list[CheckedHead]) -> Array:
    s = numbers(stage, "scales")
    if s.shape != (len(heads),) or not (s > 0).all():
        raise Refuted(k, "scales are positive, one for each head")
    return s


def _length(s: Array) -> arb:
    return sum((arb(x) ** 2 for x in s.tolist()), arb(0)).sqrt()


def _proven(k: int, stage: dict[str, Any], name: str, matrix: BallArray) -> arb:
    """Return the bound of a norm that a stage claims, if it is proven."""
    bound = number(stage, name)
    if not norm_at_most(matrix, bound):
        raise Refuted(k, f"the norm of {name} is not proven to be at most {bound!r}")
    return arb(bound)
