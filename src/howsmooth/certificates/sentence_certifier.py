"""A classifier at one sentence: one table, and from it the radius of any words."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.flip_attack import FlipSearch, smallest_flips
from howsmooth.certificates.image_norms import UnitBall
from howsmooth.certificates.propagation import pick_early
from howsmooth.certificates.radius_search import Rivals, best_proof
from howsmooth.certificates.remainder_table import RemainderTable, Slack
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.protocols import Map
from howsmooth.validation import Seed, generator_from, require_sequences, tokens_for
from howsmooth.wording import at_least, at_most

# Flips are searched for up to this multiple of the length of an embedding: beyond it the perturbation is all there is.
LARGEST_FLIP = 3.0


@dataclass(frozen=True, kw_only=True)
class Radius:
    """How far some tokens may move.

    Attributes:
        tokens: The tokens that move, together in one norm.
        certified: No perturbation of at most this size changes the prediction: proven (Theorem 11).
        attacked: The size of a perturbation that does: found. Infinite where none was.
        linear: Where the first order alone would use the margin up; neither proven nor found.
        slack: The stage and the token whose remainder takes most of the margin at the certified radius; none where
            nothing is certified, or no stage has a remainder.
        seconds: How long this took, without the table that all words share; of attacks that run at once, a share.
    """

    tokens: tuple[int, ...]
    certified: float
    attacked: float
    linear: float
    slack: Slack | None
    seconds: float

    def __str__(self) -> str:
        """Return both ends, rounded outwards."""
        return f"{at_least(self.certified, 3)} ≤ radius ≤ {at_most(self.attacked, 3)}"


class SentenceCertifier:
    """A classifier at the embeddings of one sentence, in float64, with the table that all radii share.

    Attributes:
        classifier: From embeddings to logits.
        embeddings: The embeddings of the sentence.
        predicted: The predicted class.
        rivals: The other classes, and the margin over each.
        seconds: How long the table took; zero until the first radius needs it.
    """

    def __init__(
        self, classifier: Map, X: Float[Tensor, "..."], *, rivals: Sequence[int] | None = None, label: int | None = None
    ) -> None:
        """Run the classifier once.

        Args:
            classifier: From embeddings (n, d) to logits (1, classes): a chain of our maps.
            X: The embeddings of one sentence.
            rivals: The other classes that must not overtake; all of them by default.
            label: The expected class; whichever is predicted by default.

        Raises:
            AssumptionError: If the classifier has one class only, or predicts another class than the label.
            ShapeError: If there is not one sentence.
        """
        X = tokens_for(X, classifier)
        require_sequences(X)
        if X.ndim != 2:
            raise ShapeError(f"a certificate is about one sentence (n, d), got {tuple(X.shape)}.", field="X")
        self.classifier = pick_early(classifier.to(torch.float64, "cpu"))
        self.embeddings = X.detach().to("cpu", torch.float64)
        logits = _logits(self.classifier, self.embeddings)
        self.predicted = int(logits.argmax())
        if label is not None and (isinstance(label, bool) or label not in range(len(logits))):
            raise AssumptionError(
                f"label must be one of the classes 0 to {len(logits) - 1}, got {label!r}.", field="label"
            )
        if label is not None and label != self.predicted:
            raise AssumptionError(
                f"the sentence is predicted to be of class {self.predicted}, not {label}: there is nothing to certify.",
                field="label",
            )
        self.rivals, self.seconds = Rivals.of(logits, rivals), 0.0

    @functools.cached_property
    def table(self) -> RemainderTable:
        """How much of every remainder arrives later on.

        Raises:
            AssumptionError: If the classifier holds a map without a known remainder.
        """
        # Made for the first radius, not before: words and norms are checked before the long work.
        began = time.perf_counter()
        found = RemainderTable(self.classifier, self.embeddings)
        self.seconds = time.perf_counter() - began
        return found

    def radius(self, tokens: Sequence[int], *, p: float, seed: Seed = 0) -> Radius:
        """Prove how far some tokens may move together, and search for a perturbation that changes the prediction.

        Raises:
            AssumptionError: If ``p`` is not 1, 2 or infinity, or the classifier holds a map without a known remainder.
            ShapeError: If a token is not there, or none is named.
        """
        (found,) = self.radii([tokens], p=p, seeds=[seed])
        return found

    def radii(self, groups: Sequence[Sequence[int]], *, p: float, seeds: Sequence[Seed]) -> list[Radius]:
        """Prove how far each of several groups of tokens may move, and attack all of them at once, as :meth:`radius`.

        Searches of many groups share passes of the network.
        """
        ball, moving = UnitBall(p), [self._checked(tokens) for tokens in groups]
        table, began = self.table, time.perf_counter()
        proven: list[tuple[float, float, Slack | None]] = []
        searches, ends = [], [began]
        for tokens, seed in zip(moving, seeds, strict=True):
            # Radii of the words of a sentence are of one order of magnitude.
            near = proven[-1][0] if proven else None
            proof, certified, linear = best_proof(table, self.rivals, tokens, ball, near)
            proven.append((certified, linear, proof.slack(certified) if certified > 0 else None))
            # The attack begins where the proof ends: a flip below would refute it.
            far = LARGEST_FLIP * float(torch.linalg.vector_norm(self.embeddings[tokens], ball.p).clamp_min(1e-6))
            between = (min(max(certified, 1e-3 * far), far), far)
            searches.append(FlipSearch(tokens=tokens, between=between, generator=generator_from(seed)))
            ends.append(time.perf_counter())
        flips = smallest_flips(self.classifier, self.embeddings, self.rivals.functionals, searches, p=ball.p)
        share = (time.perf_counter() - ends[-1]) / len(groups)
        return [
            Radius(
                tokens=tuple(tokens),
                certified=certified,
                attacked=attacked,
                linear=linear,
                slack=slack,
                seconds=end - begin + share,
            )
            for tokens, (certified, linear, slack), (attacked, _margin), begin, end in zip(
                groups, proven, flips, ends, ends[1:], strict=False
            )
        ]

    def _checked(self, tokens: Sequence[int]) -> Tensor:
        if not tokens or len(set(tokens)) < len(tokens):
            raise ShapeError(f"name tokens that move together once each, and at least one, got {tokens}.", field="word")
        n = len(self.embeddings)
        if any(not 0 <= i < n for i in tokens):
            raise ShapeError(f"the sentence has the tokens 0 to {n - 1}, got {[tokens]}.", field="word")
        return torch.tensor(list(tokens))


def _logits(f: Map, X: Float[Tensor, "n d"]) -> Float[Tensor, " classes"]:
    logits = f(X)
    if logits.shape[0] != 1 or logits.shape[1] < 2:
        raise AssumptionError(
            f"a certificate needs one row of logits for at least two classes, got {tuple(logits.shape)}.",
            field="classifier",
        )
    return logits[0]
