r"""Certificates of a classifier, checked: the chain of remainders of Theorem 11, stage by stage.

The tokens that enter a stage move by :math:`\delta = Ge + H(e,e) + \sum_cT_c\xi_c` with :math:`|e|\le\epsilon` and
:math:`|\xi_c|\le b_c`: G and H come from the words themselves, H with second orders only (docs, :ref:`second-order`),
and :math:`T_c` from the remainders of stages before, with the bounds b of the file. A stage bounds its own remainder
by norms of linear functions of such sums, its *images*; these bounds must not exceed the numbers of the file.

Formulas are evaluated in floats that are not negative and raised by ``up`` above their rounding errors.
"""

from typing import Any

import numpy as np

from howsmooth.check.balls import Array, BallArray, at_tokens, ball, length, norms_upper, up
from howsmooth.check.float32 import rounding_errors
from howsmooth.check.outcomes import CannotCheck, Refuted, listed, number, numbers
from howsmooth.check.remainders import (
    STAGES,
    AttentionRemainder,
    Images,
    NormRemainder,
    PooledTokens,
    Sizes,
    quadratic_norms,
)


class Network:
    """A classifier at the embeddings of a sentence, with the norms of all that remainders do later on."""

    def __init__(self, steps: list[Any], X: Array, deployed: bool = False) -> None:
        self.steps, self.deployed, self.tokens = steps, deployed, [ball(X)]
        self.stages = []
        for step in steps:
            if step.settings.get("residual", 1) != 1:
                raise CannotCheck("residual connections around several steps are not known here")
            x = self.tokens[-1]
            self.stages.append(STAGES[step.kind](step, x))
            value = self.stages[-1].value
            self.tokens.append(x + value if step.settings.get("residual") else value)
        self.norms: list[dict[str, Array]] = [{} for _step in steps]  # of images of unit remainders before each step
        self.outputs: list[BallArray] = []
        for place, stage in enumerate(self.stages):
            sources = [] if isinstance(stage, PooledTokens) else stage.directions()
            if deployed:  # rounding errors of a forward pass have all directions
                n, d = self.tokens[place + 1].shape
                sources.append(at_tokens(ball(np.tile(np.eye(d), (n, 1, 1)))))
            for columns in sources:
                self._propagate(place + 1, columns)

    def _propagate(self, place: int, columns: BallArray) -> None:
        for later in range(place, len(self.stages)):
            columns, images = self.step(later, columns)
            for name, image in images.items():
                found = norms_upper(image.moved(1, -2))
                known = self.norms[later].get(name)
                self.norms[later][name] = found if known is None else np.concatenate([known, found])
        self.outputs.append(columns)

    def step(self, place: int, E: BallArray) -> tuple[BallArray, Images]:
        """Return what leaves a step for changes that enter, and their images."""
        images = self.stages[place].images(E)
        leaving = self.stages[place].leaving(images)
        if self.deployed:
            images = images | {"tokens": E}
        return (leaving + E if self.steps[place].settings.get("residual") else leaving), images

    def check(self, claim: dict[str, Any]) -> None:
        """Check that a class stays ahead while words move; see :func:`check_certificate`."""
        eps, stages, order = number(claim, "radius"), listed(claim, "stages"), claim.get("order")
        (rows, classes), words = self.tokens[-1].shape, _places(claim, "moved", len(self.tokens[0].mid))
        (predicted,) = _places({"predicted": [claim.get("predicted")]}, "predicted", classes)
        rivals = _places(claim, "rivals", classes)
        if not eps > 0 or predicted in rivals or rows != 1 or type(order) is not int or order not in (1, 2):
            raise CannotCheck("a certificate has a radius, an order, one row of logits, and rivals of the class")
        if not isinstance(self.stages[0], NormRemainder) or self.steps[0].settings.get("residual"):
            raise CannotCheck("the first step must be a norm")
        count = sum(not isinstance(stage, PooledTokens) for stage in self.stages)
        if len(stages) != count:
            raise Refuted(0, f"there are {count} stages, and the file has {len(stages)}")
        left, b = iter(enumerate(stages)), np.zeros(0)
        for place, stage in enumerate(self.stages):
            if place == 0:
                G, H, found = stage.turned(words, eps, order)
                moves = np.zeros(stage.n)
                moves[words] = eps
                whole = {"u": (stage.inverse * moves).upper, "tokens": moves}
            else:
                sizes, G, H = self._advance(place, G, H, b, eps)
                whole = sizes.whole
                found = np.zeros(0) if isinstance(stage, PooledTokens) else stage.remainders(sizes)
            if not isinstance(stage, PooledTokens):
                b = np.concatenate([b, _claimed(*next(left), found, self.deployed)])
            if self.deployed:
                T = up(length(self.tokens[place]).upper + whole["tokens"])
                errors = rounding_errors(stage, self.steps[place], T, whole)
                if not np.isfinite(errors).all():
                    raise Refuted(place, "the rounding errors of a forward pass have no bound")
                b = np.concatenate([b, errors])
        for rival in rivals:
            functional = np.zeros((classes, 1))
            functional[predicted], functional[rival] = 1, -1
            margin = (self.tokens[-1] @ functional).reshape(-1)
            taken = norms_upper((G @ functional).moved(0, -1)[0]) * eps
            if H is not None:
                taken = taken + quadratic_norms(H @ functional)[0] * eps**2
            arriving = np.concatenate([norms_upper((x @ functional)[:, :, 0]) for x in self.outputs])
            left_over = float((margin - up(taken + b @ arriving)).lower[0])
            if not left_over > 0:
                raise Refuted(count, f"the margin over class {rival} may be used up: {left_over} is left")

    def _advance(
        self, place: int, G: BallArray, H: BallArray | None, b: Array, eps: float
    ) -> tuple[Sizes, BallArray, BallArray | None]:
        """Return the sizes of all images of a step, and what leaves it, to first and to second order."""
        stage = self.stages[place]
        G, words = self.step(place, G)
        first = {name: up(norms_upper(x.moved(0, -2)) * eps) for name, x in words.items()}
        rest = {name: b @ norms.reshape(len(b), -1) for name, norms in self.norms[place].items()}
        if H is not None:
            H, forms = self.step(place, H)
            if isinstance(stage, AttentionRemainder):
                forms = stage.with_products(forms, words)
            rest = {name: x + quadratic_norms(forms[name]).ravel() * eps**2 for name, x in rest.items()}
            if not isinstance(stage, PooledTokens):
                second = stage.second_order(words)
                H = H + second
        rest = {name: up(x).reshape(first[name].shape) for name, x in rest.items()}
        whole = {name: up(x + rest[name]) for name, x in first.items()}
        return Sizes(first, rest, whole, words, eps, 1 if H is None else 2), G, H


def _claimed(k: int, stage: dict[str, Any], found: Array, deployed: bool) -> Array:
    """Return the remainders of a stage that a file claims, if they are at least those found.

    Files know nothing of rounding errors: what is found with them may be larger, and the margin decides.
    """
    claimed = numbers(stage, "remainders")
    if found.shape != claimed.shape:
        raise Refuted(k, f"the stage has {found.shape} remainders, and the file {claimed.shape}")
    if deployed:
        return np.maximum(found, claimed)
    if not (found <= claimed).all():
        raise Refuted(k, f"remainders are not proven to be that small, by {float(np.max(found - claimed))}")
    return claimed


def _places(claim: dict[str, Any], name: str, count: int) -> list[int]:
    """Return a list of different whole numbers from 0 on, below ``count``."""
    found = claim.get(name)
    if not isinstance(found, list) or not found or not all(type(k) is int and 0 <= k < count for k in found):
        raise CannotCheck(f"{name} must be whole numbers from 0 to {count - 1}")
    if len(set(found)) < len(found):
        raise CannotCheck(f"{name} must be different numbers")
    return found


def check_certificate(
    steps: list[Any], claim: dict[str, Any], networks: dict[bytes, Network], deployed: bool = False
) -> None:
    """Check that one class stays ahead of others while the embeddings of some words move, together by a radius.

    Args:
        steps: The classifier, from embeddings to logits.
        claim: The claim.
        networks: What was computed at the embeddings of other claims.
        deployed: Whether the margin also covers the rounding errors of a forward pass in single precision.

    Raises:
        Refuted: With the stage whose remainders are larger than claimed, or whose sum uses the margin up.
        CannotCheck: If there is a step that is not known here.
    """
    X = numbers(claim, "tokens")
    if X.ndim != 2 or any(step.kind not in STAGES for step in steps):
        raise CannotCheck("a certificate is about embeddings, one row for each token, and known steps")
    if X.tobytes() not in networks:
        networks[X.tobytes()] = Network(steps, X, deployed)
    networks[X.tobytes()].check(claim)
