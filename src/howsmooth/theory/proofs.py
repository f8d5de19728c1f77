"""Theorems 1, 2, 7, 8 and 14 as claims of a proof file: norms with their scales, tokens with a direction."""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.proof_files import lower_claim, write_proof
from howsmooth.rounding import NORM_ROOM, PROOF_ROOM
from howsmooth.theory.assumptions import require_attention
from howsmooth.theory.ball.largest_token import token_upper
from howsmooth.theory.ball.layer import layer_terms
from howsmooth.theory.ball.softmax import discrete_upper, sharp_upper
from howsmooth.theory.heads import Head, heads_of, output_norm
from howsmooth.theory.linalg.stacked_norms import products_norm
from howsmooth.theory.mean_field import masked_mean_field_upper, mean_field_upper, sharp_mean_field_upper
from howsmooth.theory.results import Bound, Bracket, Side, Witness
from howsmooth.theory.worst_inputs.explicit import origin_token, tied_pair, two_point

# The input that attains a lower bound.
ATTAINED_AT = {"discrete_lower": two_point, "kim_lower": origin_token, "sharp_lower": tied_pair}
# Theorems about every number of tokens, and all upper bounds that files know.
WITHOUT_LENGTH = ("mean_field_upper", "sharp_mean_field_upper", "masked_mean_field_upper", "token_upper")
UPPER: dict[str, Callable[..., Bound]] = {
    "sharp_upper": sharp_upper,
    "discrete_upper": discrete_upper,
    "mean_field_upper": mean_field_upper,
    "sharp_mean_field_upper": sharp_mean_field_upper,
    "masked_mean_field_upper": masked_mean_field_upper,
    "token_upper": token_upper,
}


def save_bounds(path: str | os.PathLike[str], bounds: list[Bound], attention: Attention, n: int, radius: float) -> None:
    """Write some bounds on a ball into one file."""
    require_attention(attention)
    write_proof(path, attention, [claim_of(bound, attention, n, radius) for bound in bounds])


def save_bracket(path: str | os.PathLike[str], bracket: Bracket, attention: Attention, n: int, radius: float) -> None:
    """Write both ends of a bracket into one file."""
    require_attention(attention)
    upper = claim_of(bracket.upper, attention, n, radius)
    write_proof(path, attention, [witness_claim(bracket.lower, attention, radius), upper])


def save_witness(path: str | os.PathLike[str], witness: Witness, attention: Attention, radius: float | None) -> None:
    """Write an input and the direction that it is stretched in."""
    require_attention(attention)
    if witness.weights is not None:
        raise AssumptionError("proof files know sequences of tokens, and no measures.", field="witness")
    write_proof(path, attention, [witness_claim(witness, attention, radius)])


def claim_of(bound: Bound, attention: Attention, n: int, radius: float) -> dict[str, Any]:
    """Return the claim of a bound.

    Raises:
        AssumptionError: If its theorem is none that files know, or the bound is infinite.
    """
    if bound.side is Side.LOWER and bound.name in ATTAINED_AT:
        witness = ATTAINED_AT[bound.name](attention, n, radius)
        if not witness.value >= bound.value * (1 - 1e-6):
            raise AssumptionError(f"the input of {bound.name} attains {witness.value}, less than {bound.value}.")
        return witness_claim(witness, attention, radius)  # at least the bound
    if bound.name not in UPPER:
        raise AssumptionError(f"proof files know the theorems {', '.join((*UPPER, *ATTAINED_AT))}, got {bound.name}.")
    if not math.isfinite(bound.value):
        raise AssumptionError(f"{bound.name} exceeds the range of floats here: there is nothing to save.")
    way, stages = _stages(bound, attention, n, radius)
    return {
        "kind": "upper",
        "theorem": bound.name,
        "metric": "token" if bound.name == "token_upper" else "total",
        "n": None if bound.name in WITHOUT_LENGTH else int(n),
        "radius": float(radius),
        "value": bound.value * (1 + PROOF_ROOM),
        "heads": way,
        "stages": stages,
    }


def witness_claim(witness: Witness, attention: Attention, radius: float | None) -> dict[str, Any]:
    """Return the claim of an input."""
    return lower_claim(attention, witness.tokens, witness.measured.direction, witness.value, radius)


def _stages(bound: Bound, attention: Attention, n: int, radius: float) -> tuple[str, list[dict[str, Any]]]:
    """Return the way of adding up heads that gives the bound, and its norms."""
    heads = heads_of(attention)
    if bound.name == "sharp_upper":
        value, stages = _together(attention, heads, n, radius)
        if value <= bound.value * (1 + PROOF_ROOM / 4):
            return "together", stages
    theorem, length = UPPER[bound.name], {} if bound.name in WITHOUT_LENGTH else {"n": n}
    alone = [theorem(attention.head(h), radius=radius, **length).value for h in range(len(heads))]
    if sum(alone) <= bound.value * (1 + PROOF_ROOM / 4):
        return "apart", [{"A": _room(head.norm_A), "WV": _room(head.norm_WV)} for head in heads]
    norms = [{"A": _room(head.norm_A), "V": _room(head.norm_V)} for head in heads]
    return "concatenated", [*norms, {"output": _room(output_norm(heads))}]


def _together(
    attention: Attention, heads: tuple[Head, ...], n: int, radius: float
) -> tuple[float, list[dict[str, Any]]]:
    """Return the bound of heads side by side under scales, and its norms."""
    found = layer_terms(attention, heads, n, radius)
    if found is None:
        return math.inf, []
    matrices, s1, s2, s3 = found.matrices, found.value_scales, found.query_scales, found.key_scales
    beta = [matrices.values.norm(1 / s) for s in (s1, s2, s3)]
    query, stack = matrices.query_forms[0].norm(s2), matrices.key_forms[found.stack][0].norm(s3)
    joint = products_norm([(s * Q, K) for s, (Q, K) in zip(s3, matrices.key_factors, strict=True)])
    key, way = min((stack, ("under", "beside")[found.stack]), (joint, "joint"))
    terms = (beta[0] * float(s1.norm()), beta[1] * query, beta[2] * key)
    stages: list[dict[str, Any]] = [
        {"term": "value"},
        {"term": "query", "forms": _room(query / radius)},
        {"term": "key", "forms": _room(key), "stack": way, "tau": found.tau},
    ]
    for stage, s, norm in zip(stages, (s1, s2, s3), beta, strict=True):
        stage |= {"scales": s.tolist(), "values": _room(norm)}
    # the first term without scales is no part of a file: it is less only where nothing is gained by them
    return dataclasses.replace(matrices, heads_apart=math.inf).with_single_rows(*terms), stages


def _room(norm: float) -> float:
    return norm * (1 + NORM_ROOM)
