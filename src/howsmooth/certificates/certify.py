"""The front of certificates: a model and a sentence, or a chain of maps and embeddings."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.certificates.certificate import Certificate, certify_map
from howsmooth.certificates.reading import class_head, classified, label_number, read_sentence, running
from howsmooth.certificates.settings import PLACES
from howsmooth.errors import AssumptionError
from howsmooth.maps.protocols import Map
from howsmooth.models.load import load
from howsmooth.models.transformer import Transformer


def certify(
    classifier: Transformer | nn.Module | Map | str,
    tokens: Int[Tensor, "..."] | Float[Tensor, "..."] | str,
    *,
    word: int | Sequence[int] | None = None,
    p: float = 2,
    classes: Sequence[int] | None = None,
    at: str = PLACES[0],
    layer: int = 0,
    label: int | str | None = None,
    seed: int = 0,
) -> Certificate:
    r"""Prove how far words may move before the prediction of a classifier could change.

    Perturbations are those of a word's embedding: the sum of word, position and type embedding, before any norm; or of
    what enters a layer, its attention and its residual connection alike. See
    :func:`~howsmooth.certificates.certificate.certify_map` for what is proven and how.

    Args:
        classifier: A model with a classification head, its name, or a chain of maps from embeddings to logits.
        tokens: The numbers of the tokens of one sentence, or the sentence; for a chain, embeddings (n, d).
        word: Which token moves; several move together in one norm. Every token by itself by default.
        p: How perturbations are measured: :math:`|e|_p` with p = 1, 2 or ∞.
        classes: Which other classes must not overtake; all of them by default.
        at: Where they are: ``embeddings``, or ``attention`` for what enters a layer.
        layer: Which layer that is.
        label: The class that should win, by its number or its name; whichever does by default.
        seed: Where attacks start.

    Raises:
        AssumptionError: If the model has no classifier, or holds a map without a known remainder; if another class
            than the label wins; or if the module has other logits than its weights say, as one with hooks has.
        ShapeError: If there is not one sentence, or a word is not there.

    Example:
        >>> import torch, howsmooth as hs
        >>> X = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
        >>> f = hs.maps.Chain(hs.maps.Pooling.first(n=2, like=X), hs.maps.Dense(torch.eye(2, dtype=torch.float64)))
        >>> print(hs.certify(f, X, word=0).radii[0].certified <= 2**0.5)
        True
    """
    groups = None if word is None else [(word,) if isinstance(word, int) else tuple(word)]
    if isinstance(classifier, Map) and not isinstance(classifier, nn.Module | Transformer):
        if isinstance(tokens, str) or isinstance(label, str) or at != PLACES[0] or layer:
            raise AssumptionError(
                "a chain of maps knows no words, labels or layers: give embeddings and numbers.", field="classifier"
            )
        return certify_map(classifier, tokens, groups=groups, p=p, rivals=classes, label=label, seed=seed)
    model = classifier if isinstance(classifier, Transformer) else load(classifier)
    labels, number = class_head(model).labels, None if label is None else label_number(model, label)
    numbers = torch.tensor(read_sentence(model, tokens)) if isinstance(tokens, str) else tokens
    f, X = classified(model, numbers, at=at, layer=layer)
    module = running(model, numbers, at=at, layer=layer)
    return certify_map(f, X, groups=groups, p=p, rivals=classes, label=number, labels=labels, seed=seed, module=module)
