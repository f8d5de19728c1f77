"""How far words may move before a classifier could change its mind, proven; and how far is too far, found."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.flips import smallest_flip
from howsmooth.certificates.radius import Proof, Rivals
from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.table import Table
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.values import Map

NORMS = (1.0, 2.0, math.inf)


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
        """Say both ends."""
        return f"{self.certified:.3g} ≤ radius ≤ {self.attacked:.3g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    r"""What is proven of a classifier at one sentence.

    Attributes:
        radii: One for each word that was asked for.
        predicted: The class that wins.
        rivals: The other classes, and by how much it wins over each.
        p: How perturbations are measured, :math:`|e|_p`.
        seconds: How long all of it took.
        classifier: From embeddings to logits, in float64.
        embeddings: Where the certificate stands.
    """

    radii: tuple[Radius, ...]
    predicted: int
    rivals: Rivals
    p: float
    seconds: float
    classifier: Map
    embeddings: Float[Tensor, "n d"]

    def verify(self, *, samples: int = 1, seed: int = 1) -> float:
        """Attack inside every certified ball, and return the smallest margin that was seen.

        Args:
            samples: How many searches to start in every ball.
            seed: Where they come from.

        Raises:
            AssumptionError: If a prediction changes inside: the certificate would be wrong.
        """
        generator = torch.Generator().manual_seed(seed)
        least = float(self.rivals.margins.min())
        for radius in (found for found in self.radii if found.certified > 0):
            for _ in range(samples):
                flip, margin = smallest_flip(
                    self.classifier,
                    self.embeddings,
                    self.rivals.functionals,
                    torch.tensor(radius.tokens),
                    p=self.p,
                    between=(radius.certified / 10, radius.certified),
                    within=radius.certified,
                    generator=generator,
                )
                least = min(least, margin)
                if flip <= radius.certified:
                    raise AssumptionError(f"a perturbation of {flip:.6g} changes the prediction: {radius}.")
        return least


def certify_map(
    classifier: Map,
    X: Float[Tensor, "..."],
    *,
    groups: Sequence[Sequence[int]] | None = None,
    p: float = 2,
    rivals: Sequence[int] | None = None,
    seed: int = 0,
) -> Certificate:
    r"""Prove how far words may move before the prediction could change.

    The margin over class k while the embedding of a word moves by :math:`|e|_p\le\epsilon` is at least

    .. math:: m_k - |\nabla_em_k|_{p'}\,\epsilon - \sum_{l,j,c}|\nabla m_k\cdot B_{ljc}|\,b_{ljc}(\epsilon),

    exact first order, and remainders b of every stage l at every token j, which follow one from another
    (:class:`~howsmooth.certificates.table.Table`).

    Args:
        classifier: From embeddings (n, d) to logits (1, classes): a chain of our maps.
        X: The embeddings of one sentence.
        groups: Which tokens move together; every token alone by default.
        p: How perturbations are measured: 1, 2 or ∞.
        rivals: Which other classes must not overtake; all of them by default.
        seed: Where attacks start.

    Raises:
        AssumptionError: If the classifier holds a map without a known remainder, or has one class only.
        ShapeError: If there is not one sentence, or a token is not there.
    """
    began = time.perf_counter()
    if X.ndim != 2:
        raise ShapeError(f"a certificate is about one sentence (n, d), got {tuple(X.shape)}.", field="X")
    if float(p) not in NORMS:
        raise AssumptionError(f"p must be 1, 2 or infinity, got {p}.", field="p")
    groups = [(i,) for i in range(len(X))] if groups is None else groups
    if any(not 0 <= i < len(X) for group in groups for i in group):
        raise ShapeError(f"the sentence has the tokens 0 to {len(X) - 1}, got {groups}.", field="word")
    f, X, ball = classifier.to(torch.float64, "cpu"), X.detach().to("cpu", torch.float64), Ball(float(p))
    logits = f(X)
    if logits.shape[0] != 1 or logits.shape[1] < 2:
        raise AssumptionError(
            f"a certificate needs one row of logits for at least two classes, got {tuple(logits.shape)}.",
            field="classifier",
        )
    others = Rivals.of(logits[0], rivals)
    table, generator = Table(f, X), torch.Generator().manual_seed(seed)
    radii = tuple(_radius(table, others, tuple(group), ball, f, generator) for group in groups)
    return Certificate(
        radii=radii,
        predicted=int(logits[0].argmax()),
        rivals=others,
        p=float(p),
        seconds=time.perf_counter() - began,
        classifier=f,
        embeddings=X,
    )


def _radius(
    table: Table, rivals: Rivals, group: tuple[int, ...], ball: Ball, f: Map, generator: torch.Generator
) -> Radius:
    began = time.perf_counter()
    tokens = torch.tensor(group)
    proof = Proof(table, rivals, tokens, ball)
    certified = proof.radius()
    # beyond its own length an embedding is hardly there any more: behind a norm, what is added is all that is left
    far = 3 * float(torch.linalg.vector_norm(table.X[tokens], ball.p).clamp_min(1e-6))
    attacked, _margin = smallest_flip(
        f,
        table.X,
        rivals.functionals,
        tokens,
        p=ball.p,
        between=(min(max(certified, 1e-3 * far), far), far),
        generator=generator,
    )
    return Radius(
        tokens=group,
        certified=certified,
        attacked=attacked,
        linear=proof.linear,
        slack=proof.slack(certified) if certified > 0 else "",
        seconds=time.perf_counter() - began,
    )
