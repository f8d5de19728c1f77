"""``check_proof``: every claim of a file, checked against the weights that it is about."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from howsmooth.check.attention import check_lower
from howsmooth.check.boxes import check_verdict
from howsmooth.check.certificates import Network, check_certificate
from howsmooth.check.counterexamples import check_counterexample
from howsmooth.check.outcomes import CannotCheck, CheckOutcome, Refuted, listed
from howsmooth.check.replay import check_local_upper
from howsmooth.check.upper_bounds import check_upper
from howsmooth.check.weights import is_array_file, steps_with

FORMAT = "howsmooth proof 1"
# What remains assumed of every claim.
REAL = "real arithmetic: the claim is about the function that the weights define, not about its rounded execution"
SINGLE = (
    "float32: from the embeddings on the deployed network adds up products in any order, and its exponentials, error "
    "functions and hyperbolic tangents are off by at most four units"
)
FLOATS = "floats: IEEE 754 double precision, and matrix products that add up in any order"
START = "chance: the upper end holds with the stated probability over the random start of this check"
CHECKS = {"upper": check_upper, "lower": check_lower, "local upper": check_local_upper}


def check_proof(path: str | os.PathLike[str], model: Any, *, deployed: str | None = None) -> list[CheckOutcome]:
    """Check every claim of a proof file in ball arithmetic.

    Args:
        path: The file.
        model: What it is about: the name of a model, a file of weights, or a map.
        deployed: ``"float32"`` if the margins of certificates must also cover the rounding errors of a forward pass in
            single precision, from the embeddings on.

    Returns:
        For each claim an outcome, which is *checked*, *replayed*, *refuted* at a stage, or *cannot check*.
    """
    if deployed not in (None, "float32"):
        return [CheckOutcome("cannot check", str(path), f"deployed must be 'float32', or not given, got {deployed!r}")]
    try:
        claims, steps = _read(path, model)
    except CannotCheck as reason:
        return [CheckOutcome("cannot check", str(path), str(reason))]
    networks: dict[bytes, Network] = {}  # of one sentence for all of its words
    found = [_checked(steps, claim, networks, deployed is not None) for claim in claims]
    if not is_array_file(model):
        return found
    settings = f"settings, which arrays do not hold, are as the file says: {steps[0].settings}"
    return [replace(each, assumed=(*each.assumed, settings)) if each.assumed else each for each in found]


def _read(path: str | os.PathLike[str], model: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotCheck(f"it cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CannotCheck("it is no JSON, so no proof file; .save of a result writes one") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CannotCheck(f"its format is not {FORMAT!r}")
    about = found.get("map")
    if not isinstance(about, dict) or not isinstance(about.get("sha256"), str):
        raise CannotCheck("it does not say which weights it is about")
    return listed(found, "claims"), steps_with(model, about)


def _checked(
    steps: list[Any], claim: dict[str, Any], networks: dict[bytes, Network], deployed: bool = False
) -> CheckOutcome:
    kind, said = claim.get("kind"), in_words(claim)
    try:
        with np.errstate(all="ignore"):  # what is no number fails every comparison
            if kind == "certificate":
                check_certificate(steps, claim, networks, deployed)
            elif deployed:
                raise CannotCheck("what is deployed in float32 is known of certificates alone")
            elif kind == "counterexample":
                check_counterexample(steps, claim)
            elif kind == "verdict":
                check_verdict(steps, claim)
            elif not isinstance(kind, str) or kind not in CHECKS:
                raise CannotCheck(f"claims of the kind {kind!r} are not known here")
            elif [step.kind for step in steps] != ["attention"]:
                raise CannotCheck("the claim is about one attention layer")
            else:
                CHECKS[kind](steps[0], claim)
    except Refuted as reason:
        return CheckOutcome("refuted", said, str(reason), reason.stage)
    except CannotCheck as reason:
        return CheckOutcome("cannot check", said, str(reason))
    except (LookupError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        return CheckOutcome("cannot check", said, f"{type(error).__name__}: {error}")
    if kind == "local upper":
        return CheckOutcome("replayed", said, assumed=(REAL, START))
    return CheckOutcome("checked", said, assumed=(SINGLE if deployed else REAL, FLOATS))


def in_words(claim: dict[str, Any]) -> str:
    """Return a claim in words."""
    value, kind = claim.get("value"), claim.get("kind")
    if kind == "certificate":
        rivals, moved = claim.get("rivals"), claim.get("moved")
        return f"class {claim.get('predicted')} wins over {rivals} while tokens {moved} move by {claim.get('radius')}"
    if kind == "counterexample":
        return "an input of the box has an unsafe output"
    if kind == "verdict":
        return "no input of the box has an unsafe output"
    tokens = claim.get("tokens")
    n = claim.get("n", len(tokens) if isinstance(tokens, list) else None)
    ball = "" if claim.get("radius") is None else f" in the ball of radius {claim['radius']}"
    many = "every number of" if n is None else n
    where = f"{many} tokens{ball}" if ball else f"the {n} given tokens"
    if kind == "local upper":
        return f"Lip ≤ {value} at {where}, with confidence {claim.get('confidence')}"
    side = "≥" if kind == "lower" else "≤"
    metric = ", largest token" if claim.get("metric") == "token" else ""
    return f"Lip {side} {value} on {where}{metric}" + (f" ({claim['theorem']})" if "theorem" in claim else "")
