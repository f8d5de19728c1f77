"""A classifier at one sentence: one table, and from it the radius of any words."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.flips import smallest_flip
from howsmooth.certificates.radius import Rivals
from howsmooth.certificates.refining import farthest
from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.table import Table
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.protocols import Map
from howsmooth.wording import at_least, at_most

NORMS = (1.0, 2.0, math.inf)
# Beyond so many times its own length an embedding is hardly there any more: what is added is all that is left.
FAR = 3.0


@dataclass(frozen=True, kw_only=True)
class Radius:
    """How far some tokens may move.

    Attributes:
        tokens: Which tokens move, together in one norm.
        certified: No perturbation of at most this size changes the prediction: proven.
        attacked: The size of a perturbation that does: found. Infinite where none was.
        linear: Where the first order alone would use the margin up; neither proven nor found.
        slack: The stage and the token whose remainder takes most of the margin at the certified radius.
        seconds: How long this took, without the table that all words share.
    """

    tokens: tuple[int, ...]
    certified: float
    attacked: float
    linear: float
    slack: str
    seconds: float

    def __str__(self) -> str:
        """Say both ends, rounded outwards."""
        return f"{at_least(self.certified, 3)} ≤ radius ≤ {at_most(self.attacked, 3)}"


class Scene:
    """A classifier at the embeddings of one sentence, in float64, with the table that all radii share.

    Attributes:
        classifier: From embeddings to logits.
        embeddings: Where certificates stand.
        predicted: The class that wins.
        rivals: The other classes, and by how much it wins over each.
        table: What every remainder does later on.
        seconds: How long the table took.
    """

    def __init__(
        self, classifier: Map, X: Float[Tensor, "..."], *, rivals: Sequence[int] | None = None, label: int | None = None
    ) -> None:
        """Run the classifier once and build the table.

        Args:
            classifier: From embeddings (n, d) to logits (1, classes): a chain of our maps.
            X: The embeddings of one sentence.
            rivals: Which other classes must not overtake; all of them by default.
            label: The class that should win; whichever does by default.

        Raises:
            AssumptionError: If the classifier holds a map without a known remainder, has one class only, or predicts
                another class than the label.
            ShapeError: If there is not one sentence.
        """
        if X.ndim != 2:
            raise ShapeError(f"a certificate is about one sentence (n, d), got {tuple(X.shape)}.", field="X")
        began = time.perf_counter()
        self.classifier = classifier.to(torch.float64, "cpu")
        self.embeddings = X.detach().to("cpu", torch.float64)
        logits = _logits(self.classifier, self.embeddings)
        self.predicted = int(logits.argmax())
        if label is not None and label != self.predicted:
            raise AssumptionError(
                f"the sentence is predicted to be of class {self.predicted}, not {label}: there is nothing to certify.",
                field="label",
            )
        self.rivals = Rivals.of(logits, rivals)
        self.table = Table(self.classifier, self.embeddings)
        self.seconds = time.perf_counter() - began

    def radius(self, tokens: Sequence[int], *, p: float, generator: torch.Generator) -> Radius:
        """Prove how far some tokens may move together, and look for how far is too far.

        Raises:
            AssumptionError: If ``p`` is not 1, 2 or infinity.
            ShapeError: If a token is not there, or none is named.
        """
        check_tokens([tokens], len(self.embeddings))
        began, ball, moving = time.perf_counter(), Ball(checked_norm(p)), torch.tensor(list(tokens))
        proof, certified, linear = farthest(self.table, self.rivals, moving, ball)
        far = FAR * float(torch.linalg.vector_norm(self.embeddings[moving], ball.p).clamp_min(1e-6))
        attacked, _margin = smallest_flip(
            self.classifier,
            self.embeddings,
            self.rivals.functionals,
            moving,
            p=ball.p,
            between=(min(max(certified, 1e-3 * far), far), far),
            generator=generator,
        )
        return Radius(
            tokens=tuple(tokens),
            certified=certified,
            attacked=attacked,
            linear=linear,
            slack=proof.slack(certified) if certified > 0 else "",
            seconds=time.perf_counter() - began,
        )


def checked_norm(p: float) -> float:
    """Return p as a float.

    Raises:
        AssumptionError: If ``p`` is not 1, 2 or infinity.
    """
    if float(p) not in NORMS:
        raise AssumptionError(f"p must be 1, 2 or infinity, got {p}.", field="p")
    return float(p)


def check_tokens(groups: Sequence[Sequence[int]], n: int) -> None:
    """Refuse tokens that are not there.

    Raises:
        ShapeError: If there are none, one is named twice, or one is not there.
    """
    for group in groups:
        if not group or len(set(group)) < len(group):
            raise ShapeError(f"name tokens that move together once each, and at least one, got {group}.", field="word")
    if any(not 0 <= i < n for group in groups for i in group):
        raise ShapeError(f"the sentence has the tokens 0 to {n - 1}, got {groups}.", field="word")


def _logits(f: Map, X: Float[Tensor, "n d"]) -> Float[Tensor, " classes"]:
    logits = f(X)
    if logits.shape[0] != 1 or logits.shape[1] < 2:
        raise AssumptionError(
            f"a certificate needs one row of logits for at least two classes, got {tuple(logits.shape)}.",
            field="classifier",
        )
    return logits[0]
