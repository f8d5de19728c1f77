"""How far words may move before a classifier could change its mind, proven; and how far is too far, found."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.flips import Classifier, smallest_flip, sphere
from howsmooth.certificates.radius import Rivals
from howsmooth.certificates.scene import Radius, Scene, check_tokens, checked_norm
from howsmooth.errors import AssumptionError
from howsmooth.maps.protocols import Map
from howsmooth.markup import table
from howsmooth.models.autograd.module_calls import ModuleClassifier
from howsmooth.models.module_comparison import rounding
from howsmooth.wording import at_least, at_most, number

# So many samples go through the classifier at once.
TOGETHER = 256


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
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
        labels: What the classes are called, where the model says.
        module: The same classifier as the user's own module runs it; none for a chain of maps.
    """

    radii: tuple[Radius, ...]
    predicted: int
    rivals: Rivals
    p: float
    seconds: float
    classifier: Map
    embeddings: Float[Tensor, "n d"]
    labels: tuple[str, ...] = ()
    module: ModuleClassifier | None = None

    def __repr__(self) -> str:
        """Say what wins, and how far every word may move: proven, and found to be too far."""
        lines = [f"token {_named(radius)}: {radius}" for radius in self.radii]
        return "\n".join([f"Certificate: {self.summary}", *lines])

    @property
    def summary(self) -> str:
        """One sentence."""
        name = repr(self.labels[self.predicted]) if self.labels else f"class {self.predicted}"
        margin = at_least(float(self.rivals.margins.min()), 3)
        return f"{name} wins by {margin}; how far embeddings may move, in the {number(self.p)}-norm:"

    def _repr_html_(self) -> str:
        rows = [(_named(at), at_least(at.certified, 3), at_most(at.attacked, 3)) for at in self.radii]
        return table(["token", "proven", "too far"], rows, caption=self.summary)

    def verify(self, *, samples: int = 100, seed: int = 1) -> float:
        """Attack inside every certified ball, and return the smallest margin that was seen.

        Every ball is searched along gradients from several starts, and sampled at random on its surface. It is the
        module that is attacked, where there is one, and not the maps that were read from its weights; margins that its
        rounding alone could lose are not held against it.

        Args:
            samples: How many points to sample in every ball.
            seed: Where searches and samples come from.

        Raises:
            AssumptionError: If a prediction changes inside: the certificate would be wrong.
        """
        generator, rounding_error = torch.Generator().manual_seed(seed), self._rounding_error()
        least = float(self.rivals.margins.min())
        for radius in (found for found in self.radii if found.certified > 0):
            tokens = torch.tensor(radius.tokens)
            _flip, margin = smallest_flip(
                self._attacked,
                self.embeddings,
                self.rivals.functionals,
                tokens,
                p=self.p,
                between=(radius.certified / 10, radius.certified),
                within=radius.certified,
                generator=generator,
            )
            margin = min([margin, *self._sampled(radius, samples, generator)])
            least = min(least, margin)
            if not margin > -rounding_error:
                raise AssumptionError(f"a perturbation inside the ball changes the prediction: {radius}.")
        return least

    @property
    def _attacked(self) -> Classifier:
        return self.classifier if self.module is None else self.module

    def _rounding_error(self) -> float:
        """Return by how much rounding in the module may change a margin: the difference of two logits."""
        if self.module is None:
            return 0.0
        with torch.no_grad():
            _off, allowed = rounding(self.classifier, self.embeddings, self.module(self.embeddings))
        return 2**0.5 * float(allowed)

    def _sampled(self, radius: Radius, samples: int, generator: torch.Generator) -> list[float]:
        """Return the smallest margin of every batch of samples on the surface of a ball."""
        found, tokens = [], torch.tensor(radius.tokens)
        for start in range(0, samples, TOGETHER):
            shape = (min(TOGETHER, samples - start), len(tokens), self.embeddings.shape[-1])
            Z = self.embeddings.repeat(shape[0], 1, 1)
            Z[:, tokens] += radius.certified * sphere(shape, self.p, generator)
            with torch.no_grad():
                found.append(float((self._attacked(Z)[:, 0] @ self.rivals.functionals.mT).min()))
        return found


def _named(radius: Radius) -> str:
    return ", ".join(map(str, radius.tokens))


def certify_map(
    classifier: Map,
    X: Float[Tensor, "..."],
    *,
    groups: Sequence[Sequence[int]] | None = None,
    p: float = 2,
    rivals: Sequence[int] | None = None,
    label: int | None = None,
    labels: tuple[str, ...] = (),
    seed: int = 0,
    module: ModuleClassifier | None = None,
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
        label: The class that should win; whichever does by default.
        labels: What the classes are called.
        seed: Where attacks start.
        module: The classifier as its module runs, for :meth:`Certificate.verify`.

    Raises:
        AssumptionError: If the classifier holds a map without a known remainder, has one class only, or predicts
            another class than the label.
        ShapeError: If there is not one sentence, or a token is not there.
    """
    began, p = time.perf_counter(), checked_norm(p)
    if X.ndim == 2:
        groups = [(i,) for i in range(len(X))] if groups is None else groups
        check_tokens(groups, len(X))
    scene = Scene(classifier, X, rivals=rivals, label=label)
    generator = torch.Generator().manual_seed(seed)
    return Certificate(
        radii=tuple(scene.radius(group, p=p, generator=generator) for group in groups or ()),
        predicted=scene.predicted,
        rivals=scene.rivals,
        p=p,
        seconds=time.perf_counter() - began,
        classifier=scene.classifier,
        embeddings=scene.embeddings,
        labels=labels,
        module=module,
    )
