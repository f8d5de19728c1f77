"""Certificates of a classifier at one sentence: from a model and a sentence, or a chain of maps and embeddings."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.certificates.flip_attack import Classifier, random_sphere, smallest_flip
from howsmooth.certificates.provable_modules import require_same_on_ball
from howsmooth.certificates.radius_search import Rivals
from howsmooth.certificates.sentence_certifier import Radius, SentenceCertifier
from howsmooth.certificates.sentences import (
    class_head,
    classifier_at,
    label_number,
    module_at,
    word_positions,
)
from howsmooth.certificates.settings import NORMS, PLACES, norm_in
from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.composition import Chain
from howsmooth.maps.mlp import Dense
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.markup import frame, strict_json, table
from howsmooth.metrics import Euclidean, Metric, as_metrics
from howsmooth.models.autograd.module_calls import ModuleClassifier
from howsmooth.models.inputs.model_inputs import read_sentence
from howsmooth.models.load import load
from howsmooth.models.module_comparison import rounding
from howsmooth.models.transformer import Transformer
from howsmooth.validation import Seed, generator_from, plain_mode, tensor_of
from howsmooth.wording import at_least, at_most

# At most this many samples are run at once.
BATCH = 256


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Certificate:
    r"""What Theorem 11 proves of a classifier at one sentence.

    Attributes:
        radii: One for each word or group of words.
        predicted: The predicted class.
        rivals: The other classes, and the margin over each.
        metric: The name of the metric of perturbations.
        seconds: How long all of it took.
        classifier: From embeddings to logits, in float64.
        embeddings: The embeddings of the sentence; in a weighted metric, their coordinates in which it is Euclidean.
        labels: The names of the classes, where the model has them.
        module: The same classifier as the user's own module runs it; none for a chain of maps.
    """

    radii: tuple[Radius, ...]
    predicted: int
    rivals: Rivals
    metric: str
    seconds: float
    classifier: Map
    embeddings: Float[Tensor, "n d"]
    labels: tuple[str, ...] = ()
    module: Classifier | None = None

    def __repr__(self) -> str:
        """Return the predicted class, and both ends of the radius of every word."""
        lines = [f"token {_named(radius)}: {radius}" for radius in self.radii]
        return "\n".join([f"Certificate: {self.summary}", *lines])

    @property
    def summary(self) -> str:
        """One sentence."""
        name = repr(self.labels[self.predicted]) if self.labels else f"class {self.predicted}"
        margin = at_least(float(self.rivals.margins.min()), 3)
        return f"{name} wins by {margin}; how far embeddings may move, in the metric {self.metric}:"

    def _repr_html_(self) -> str:
        rows = [(_named(at), at_least(at.certified, 3), at_most(at.attacked, 3)) for at in self.radii]
        return table(["token", "proven", "too far"], rows, caption=self.summary)

    def to_json(self) -> str:
        """Return the margins and the radius of every word as one JSON object."""
        return strict_json(
            {
                "predicted": self.labels[self.predicted] if self.labels else self.predicted,
                "margins": self.rivals.margins.tolist(),
                "metric": self.metric,
                "seconds": self.seconds,
                "radii": self._rows(),
            }
        )

    def save(self, path: str | os.PathLike[str], *, share: float = 1.0) -> None:
        """Write a proof file: for every word, the chain of remainders from its embedding to the logits.

        Args:
            path: A ``.json`` file.
            share: The share of every certified radius that is claimed. A smaller one leaves a part of the margin to
                the rounding errors of a deployed network.

        Raises:
            AssumptionError: If the metric is not ``total``, or the classifier holds what files do not know.
        """
        from howsmooth.certificates.proofs import save_certificate

        save_certificate(path, self, share)

    def to_frame(self) -> Any:
        """Return the radius of every word as a DataFrame of pandas."""
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        names = ("tokens", "certified", "attacked", "linear", "seconds")
        return [{name: getattr(radius, name) for name in names} for radius in self.radii]

    def verify(self, *, samples: int = 100, seed: Seed = 1) -> float:
        """Attack inside every certified ball, and return the smallest margin that was seen.

        Every ball is searched along gradients from several starts, and sampled at random on its surface. The module is
        attacked, where there is one, and not the maps that were read from its weights; a margin that the module could
        lose by rounding alone does not count as a contradiction.

        Args:
            samples: How many points to sample in every ball.
            seed: Seeds searches and samples.

        Raises:
            AssumptionError: If a prediction changes inside: the certificate would be wrong.
        """
        generator, rounding_error = generator_from(seed), self._rounding_error()
        smallest = float(self.rivals.margins.min())
        # A radius of zero claims nothing.
        for radius in (found for found in self.radii if found.certified > 0):
            _flip, margin = smallest_flip(
                self._attacked,
                self.embeddings,
                self.rivals.functionals,
                torch.tensor(radius.tokens),
                p=self._p,
                between=(radius.certified / 10, radius.certified),
                within=radius.certified,
                generator=generator,
            )
            margin = min([margin, *self._sampled(radius, samples, generator)])
            smallest = min(smallest, margin)
            if not margin > -rounding_error:
                raise AssumptionError(f"a perturbation inside the ball changes the prediction: {radius}.")
        return smallest

    @property
    def _p(self) -> float:
        return NORMS.get(self.metric, 2.0)  # all others are weighted

    @property
    def _attacked(self) -> Classifier:
        return self.classifier if self.module is None else self.module

    def _rounding_error(self) -> float:
        """Bound the change of a margin, the difference of two logits, by rounding in the module."""
        if self.module is None:
            return 0.0
        with torch.no_grad():
            _off, allowed = rounding(self.classifier, self.embeddings, self.module(self.embeddings))
        return 2**0.5 * float(allowed)

    def _sampled(self, radius: Radius, samples: int, generator: torch.Generator) -> list[float]:
        """Return the smallest margin of every batch of samples on the surface of a ball."""
        found, tokens = [], torch.tensor(radius.tokens)
        for start in range(0, samples, BATCH):
            shape = (min(BATCH, samples - start), len(tokens), self.embeddings.shape[-1])
            Z = self.embeddings.repeat(shape[0], 1, 1)
            Z[:, tokens] += radius.certified * random_sphere(shape, self._p, generator)
            with torch.no_grad():
                found.append(float((self._attacked(Z)[:, 0] @ self.rivals.functionals.mT).min()))
        return found


def _in_coordinates(
    f: Map, X: Float[Tensor, "n d"], module: ModuleClassifier | None, metric: Euclidean
) -> tuple[Map, Float[Tensor, "n d"], ModuleClassifier | None, float]:
    r"""Return the classifier and the embeddings :math:`XR` in coordinates in which a weighted metric is the total one.

    The last number is a share of a radius there that is safe in the metric: the computed inverse S of R has
    :math:`|e S^{-1}|\le|eR|/(1-\|SR-1\|)`.
    """
    assert metric.factor is not None
    assert metric.inverse is not None
    R, S, d = metric.factor.cpu(), metric.inverse.cpu(), len(metric.factor)
    if X.ndim != 2 or X.shape[-1] != d:
        raise ShapeError(f"the metric is one of tokens of dimension {d}, got {tuple(X.shape)}.", field="metric")
    # S is a computed inverse: what it misses the true one by shrinks the radius that is safe
    rounding_error = d * torch.finfo(R.dtype).eps * R.norm() * S.norm()
    apart = float((S @ R - torch.eye(d, dtype=R.dtype)).norm() + rounding_error)
    if not apart < 1e-3:
        raise AssumptionError("the form of the metric is nearly singular; give a larger ridge.", field="metric")
    # in coordinates XR the metric is Euclidean, and S leads back to tokens: certificates of the longer chain apply
    moved = None if module is None else replace(module, coordinates=S)
    return _after(S, f.to(torch.float64, "cpu")), X.detach().cpu().double() @ R, moved, 1 - apart


def _after(S: Float[Tensor, "d d"], f: Map) -> Chain:
    r"""Return :math:`z\mapsto f(zS)`, with a number S inside of a norm: only words before a norm may turn."""
    # flat, so that a pooling may move before the maps that act on single tokens
    maps = [f]
    while isinstance(maps[0], Chain):
        maps[:1] = maps[0].maps
    first, *rest = maps
    if isinstance(first, Norm) and torch.equal(S, S[0, 0] * torch.eye(len(S), dtype=S.dtype)):
        return Chain(replace(first, eps=first.eps / float(S[0, 0]) ** 2), *rest)
    return Chain(Dense(S.mT), *maps)


def _places(word: int | Sequence[int]) -> tuple[int, ...]:
    return (int(word),) if isinstance(word, Integral) else tuple(map(int, word))  # type: ignore[arg-type]


def _named(radius: Radius) -> str:
    return ", ".join(map(str, radius.tokens))


@plain_mode()
def certify(
    classifier: Transformer | nn.Module | Map | str,
    tokens: Int[Tensor, "..."] | Float[Tensor, "..."] | Sequence[int] | np.ndarray | str,
    *,
    word: int | str | Sequence[int] | None = None,
    metric: str | Metric = "total",
    classes: Sequence[int] | None = None,
    at: str = PLACES[0],
    layer: int = 0,
    label: int | str | None = None,
    seed: Seed = 0,
) -> Certificate:
    r"""Prove how far words may move before the prediction of a classifier could change.

    Perturbations are those of a word's embedding: the sum of word, position and type embedding, before any norm; or of
    the input of a layer, for its attention and its residual connection alike. While the embedding moves by
    :math:`\|e\|\le\epsilon`, the margin over class k is at least

    .. math:: m_k - \|\nabla_em_k\|_*\,\epsilon - \sum_{l,j,c}|\nabla m_k\cdot B_{ljc}|\,b_{ljc}(\epsilon),

    exact first order, and remainders b of every stage l at every token j, which follow one from another (Theorem 11 and
    :class:`~howsmooth.certificates.remainder_table.RemainderTable`).

    Args:
        classifier: A model with a classification head, its name, or a chain of maps from embeddings to logits.
        tokens: The ids of the tokens of one sentence, or the sentence; for a chain, embeddings (n, d).
        word: The token that moves, by its place; several move together in one norm. Or a word of the sentence: its
            tokens move together, at each place where it stands. Every token by itself by default.
        metric: How perturbations are measured: ``total``, ``entries`` or ``sum``, over all coordinates that move, or a
            metric of :func:`howsmooth.metrics.weighted` or :func:`howsmooth.metrics.covariance`.
        classes: The other classes that must not overtake; all of them by default.
        at: Where words move: ``embeddings``, or ``attention`` for the input of a layer.
        layer: Which layer that is.
        label: The expected class, by its number or its name; whichever is predicted by default.
        seed: Seeds attacks.

    Raises:
        AssumptionError: If the model has no classifier, or holds a map without a known remainder; if no certificate is
            proven in the metric; if another class than the label is predicted; or if the module has other logits than
            its weights say, as one with hooks has.
        ShapeError: If there is not one sentence, or a word is not there.

    Example:
        >>> import torch, howsmooth as hs
        >>> X = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
        >>> f = hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(torch.eye(2, dtype=torch.float64)))
        >>> print(hs.certify(f, X, word=0).radii[0].certified <= 2**0.5)
        True
    """
    given = as_metrics(metric).input
    weighted: Euclidean | None = None
    if isinstance(given, Euclidean) and given.factor is not None and given.scale is None:
        weighted = given
    p = norm_in(given.name) if weighted is None else 2.0
    began, labels = time.perf_counter(), tuple[str, ...]()
    if isinstance(tokens, list | tuple) and any(isinstance(each, str) for each in tokens):
        raise DtypeError("hs.certify takes one sentence; hs.certified_accuracy takes many.", field="tokens")
    tokens = tokens if isinstance(tokens, str) else tensor_of(tokens, "tokens")
    groups = None if word is None or isinstance(word, str) else [_places(word)]
    module: ModuleClassifier | None = None
    if isinstance(classifier, Map) and not isinstance(classifier, nn.Module | Transformer):
        if isinstance(tokens, str) or isinstance(label, str) or isinstance(word, str) or at != PLACES[0] or layer:
            raise AssumptionError(
                "a chain of maps knows no words, labels or layers: give embeddings and numbers.", field="classifier"
            )
        f, X, expected = classifier, tokens, label
    else:
        model = classifier if isinstance(classifier, Transformer) else load(classifier)
        labels, expected = class_head(model).labels, None if label is None else label_number(model, label)
        ids = torch.tensor(read_sentence(model, tokens)) if isinstance(tokens, str) else tokens
        if isinstance(word, str):
            groups = word_positions(model, ids.flatten().tolist(), word)
        f, X = classifier_at(model, ids, at=at, layer=layer)
        module = module_at(model, ids, at=at, layer=layer)
    shrink = 1.0
    if weighted is not None:
        f, X, module, shrink = _in_coordinates(f, X, module, weighted)
    # One table for all words of the sentence.
    certifier = SentenceCertifier(f, X, rivals=classes, label=expected)
    groups = [(i,) for i in range(len(certifier.embeddings))] if groups is None else groups
    generator = generator_from(seed)
    radii = certifier.radii(groups, p=p, seeds=[generator] * len(groups))
    if module is not None:
        require_same_on_ball(certifier, module, radii, p)
    return Certificate(
        radii=tuple(replace(radius, certified=radius.certified * shrink) for radius in radii),
        predicted=certifier.predicted,
        rivals=certifier.rivals,
        metric=given.name,
        seconds=time.perf_counter() - began,
        classifier=certifier.classifier,
        embeddings=certifier.embeddings,
        labels=labels,
        module=module,
    )
