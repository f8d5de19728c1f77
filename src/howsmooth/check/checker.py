"""``check_proof``: every claim of a file, checked against what it is about and what was asked."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from howsmooth.check.attention import check_lower
from howsmooth.check.boxes import check_graph_verdict, check_verdict
from howsmooth.check.certificates import Network, check_certificate
from howsmooth.check.counterexamples import check_counterexample
from howsmooth.check.graph import Graph
from howsmooth.check.outcomes import CannotCheck, CheckOutcome, Refuted, listed, numbers
from howsmooth.check.questions import OTHER, asked_of, require_case, require_excluded
from howsmooth.check.replay import check_local_upper
from howsmooth.check.upper_bounds import check_upper
from howsmooth.check.weights import is_array_file, opened, read_sentence, subject_of
from howsmooth.errors import AssumptionError

FORMAT = "howsmooth proof 2"
# What remains assumed of every claim.
REAL = "real arithmetic: the claim is about the function that the weights define, not about its rounded execution"
SINGLE = (
    "float32: from the embeddings on the deployed network adds up products in any order, and its exponentials, error "
    "functions and hyperbolic tangents are off by at most four units"
)
FLOATS = "floats: IEEE 754 double precision, and matrix products that add up in any order"
START = "chance: the upper end holds with the stated probability over the random start of this check"
ALONE = "reading: onnxruntime does not run the file here, so that the checker alone has read it"
CHECKS = {"upper": check_upper, "lower": check_lower, "local upper": check_local_upper}
ON_BOXES = ("verdict", "counterexample")
# A module in float64 and its weights in balls put out the same, up to what code always computes in float32.
MODULE_SHARE = 1e-5


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of all claims of a file.

    Attributes:
        deployed: Whether margins also cover a forward pass in single precision.
        question: The property of verdicts and counterexamples.
        sentence: The embeddings, logits and tokens of the sentence of certificates.
        networks: What was computed at the embeddings of one claim, for others.
    """

    deployed: bool = False
    question: Any = None
    sentence: tuple[np.ndarray, np.ndarray, list[str]] | None = None
    networks: dict[bytes, Network] = field(default_factory=dict)


def check_proof(
    path: str | os.PathLike[str],
    model: Any,
    *,
    deployed: str | None = None,
    property: Any = None,  # noqa: A002
    sentence: str | None = None,
) -> list[CheckOutcome]:
    """Check every claim of a proof file in ball arithmetic.

    Args:
        path: The file.
        model: What it is about: the name of a model, a file of weights, a network in an ONNX file, or a map.
        deployed: ``"float32"`` if the margins of certificates must also cover the rounding errors of a forward pass in
            single precision, from the embeddings on.
        property: What verdicts and counterexamples must be about: a file in VNN-LIB, or a property.
        sentence: What certificates must be about: a sentence, as the model reads it.

    Returns:
        For each claim an outcome, which is *checked*, *replayed*, *refuted* at a stage, or *cannot check*.
    """
    if deployed not in (None, "float32"):
        return [CheckOutcome("cannot check", str(path), f"deployed must be 'float32', or not given, got {deployed!r}")]
    try:
        claims, about = _read(path)
        model = opened(model, about)
        subject = subject_of(model, about)
        read = None if sentence is None else read_sentence(model, sentence)
    except CannotCheck as reason:
        return [CheckOutcome("cannot check", str(path), str(reason))]
    asked = _Asked(deployed is not None, property, read)
    found = [_checked(subject, claim, asked) for claim in claims]
    if not is_array_file(model) or isinstance(subject, Graph):
        return found
    settings = f"settings, which arrays do not hold, are as the file says: {subject[0].settings}"
    return [replace(each, assumed=(*each.assumed, settings)) if each.assumed else each for each in found]


def save_checked(
    path: str | os.PathLike[str], save: Callable[[Path], None], model: Any, **asked: Any
) -> list[CheckOutcome]:
    """Write a proof file and check it as anyone would; only a file whose claims are all checked stays.

    Args:
        path: A ``.json`` file.
        save: Writes the file at the path that it is given, as ``.save`` of results does.
        model: What the file is about, as for :func:`check_proof`.
        **asked: What else :func:`check_proof` takes.

    Raises:
        AssumptionError: If a claim is not checked; or whatever ``save`` raises.
    """
    target = Path(path).resolve()  # a link stays, and what it leads to is written
    if target.exists() and not target.is_file():
        raise AssumptionError(f"a proof is saved as a file, which {os.fspath(path)!r} is not.", field="path")
    partial = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        save(partial)
        outcomes = check_proof(partial, model, **asked)
        if wrong := [outcome for outcome in outcomes if outcome.status not in ("checked", "replayed")]:
            raise AssumptionError(f"the proof was {wrong[0].status}: {wrong[0].why}.", field="path")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return outcomes


def _read(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
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
    return listed(found, "claims"), about


def _checked(subject: Any, claim: dict[str, Any], asked: _Asked) -> CheckOutcome:
    """Return the outcome of one claim, with what it is about in words and in full."""
    found, words = _outcome(subject, claim, asked), tuple[str, ...]()
    with suppress(CannotCheck, LookupError, ValueError, TypeError):  # the outcome says what is wrong with its numbers
        words = _about(claim, asked)
    if claim.get("kind") not in (*ON_BOXES, "certificate"):
        return found
    names = (
        "lower",
        "upper",
        "input",
        "unsafe",
        "A",
        "b",
        "tokens",
        "moved",
        "radius",
        "predicted",
        "rivals",
    )
    question = {name: claim[name] for name in names if name in claim}
    if "unsafe" in question and isinstance(claim["unsafe"], list):
        sets = (each for each in claim["unsafe"] if isinstance(each, dict))
        question["unsafe"] = [{name: each.get(name) for name in ("A", "b", "row")} for each in sets]
    return replace(found, asked=words, question=question)


def _outcome(subject: Any, claim: dict[str, Any], asked: _Asked) -> CheckOutcome:
    kind, said, ran = claim.get("kind"), in_words(claim), True
    try:
        with np.errstate(all="ignore"):  # what is no number fails every comparison
            if asked.deployed and kind != "certificate":
                raise CannotCheck("what is deployed in float32 is known of certificates alone")
            if asked.question is not None and kind not in ON_BOXES:
                raise CannotCheck(f"{OTHER}: a property is about outputs on a box")
            if asked.sentence is not None and kind != "certificate":
                raise CannotCheck(f"{OTHER}: a sentence is that of a certificate")
            if isinstance(subject, Graph) and kind not in ON_BOXES:
                raise CannotCheck("of an ONNX file, verdicts and counterexamples are known")
            if kind == "certificate":
                _certificate(subject, claim, asked)
            elif kind == "counterexample":
                y = check_counterexample(subject, claim)
                if asked.question is not None:
                    require_case(claim, asked.question, y)
            elif kind == "verdict":
                if asked.question is not None:
                    require_excluded(claim, asked.question)
                if isinstance(subject, Graph):
                    ran = check_graph_verdict(subject, claim)
                else:
                    check_verdict(subject, claim)
            elif not isinstance(kind, str) or kind not in CHECKS:
                raise CannotCheck(f"claims of the kind {kind!r} are not known here")
            elif [step.kind for step in subject] != ["attention"]:
                raise CannotCheck("the claim is about one attention layer")
            else:
                CHECKS[kind](subject[0], claim)
    except Refuted as reason:
        return CheckOutcome("refuted", said, str(reason), reason.stage)
    except CannotCheck as reason:
        return CheckOutcome("cannot check", said, str(reason))
    except Exception as error:  # whatever a strange file is stumbled over
        return CheckOutcome("cannot check", said, f"{type(error).__name__}: {error}")
    if kind == "local upper":
        return CheckOutcome("replayed", said, assumed=(REAL, START))
    return CheckOutcome(
        "checked", said, assumed=(SINGLE if asked.deployed else REAL, FLOATS, *(() if ran else (ALONE,)))
    )


def _certificate(steps: list[Any], claim: dict[str, Any], asked: _Asked) -> None:
    """Check a certificate, and that it is about the sentence and about what the module computes there."""
    X = numbers(claim, "tokens")
    if asked.sentence is not None and (
        X.shape != asked.sentence[0].shape or X.tobytes() != asked.sentence[0].tobytes()
    ):
        raise CannotCheck(f"{OTHER}: its tokens are not the embeddings of this sentence")
    check_certificate(steps, claim, asked.networks, asked.deployed)
    if asked.sentence is not None:
        logits, found = asked.sentence[1], asked.networks[X.tobytes()].tokens[-1].reshape(-1)
        if (
            logits.shape != found.shape
            or not (np.abs(logits - found.mid) <= found.rad + MODULE_SHARE * np.abs(logits).max()).all()
        ):
            raise CannotCheck(f"the module itself computes other logits than its weights: {logits.round(4).tolist()}")


def _about(claim: dict[str, Any], asked: _Asked) -> tuple[str, ...]:
    """Return what a claim is about, and with what it was compared."""
    if claim.get("kind") in ON_BOXES:
        with_what = "compared with the property" if asked.question is not None else "compared with no property"
        return *asked_of(claim), with_what
    if claim.get("kind") != "certificate":
        return ()
    X, moved = numbers(claim, "tokens"), claim["moved"]
    tokens = f"{len(X)} tokens of width {X.shape[1]}, the longest of norm {np.linalg.norm(X, axis=1).max():.6g}"
    if asked.sentence is None:
        return f"{tokens}; moved: {', '.join(map(str, moved))}", "compared with no sentence"
    words = ", ".join(f"{k} {asked.sentence[2][k]!r}" for k in moved)
    return f"{tokens}; moved: {words}", "compared with the sentence"


def in_words(claim: dict[str, Any]) -> str:
    """Return a claim in words."""
    value, kind = claim.get("value"), claim.get("kind")
    if kind == "certificate":
        rivals, moved = claim.get("rivals"), claim.get("moved")
        return f"class {claim.get('predicted')} wins over {rivals} while tokens {moved} move by {claim.get('radius')}"
    if kind in ON_BOXES:
        return ("no" if kind == "verdict" else "an") + " input of the box has an unsafe output"
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
