"""The front of certificates: a model and a sentence, or a chain of maps and embeddings."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.certificates.certificate import Certificate, certify_map
from howsmooth.errors import AssumptionError
from howsmooth.maps.composition import Chain
from howsmooth.maps.values import Map
from howsmooth.models.base import Transformer, load


def certify(
    classifier: Transformer | nn.Module | Map,
    tokens: Int[Tensor, "..."] | Float[Tensor, "..."],
    *,
    word: int | Sequence[int] | None = None,
    p: float = 2,
    classes: Sequence[int] | None = None,
    seed: int = 0,
) -> Certificate:
    r"""Prove how far words may move before the prediction of a classifier could change.

    Perturbations are those of a word's embedding: the sum of word, position and type embedding, before any norm. See
    :func:`~howsmooth.certificates.certificate.certify_map` for what is proven and how.

    Args:
        classifier: A model with a classification head, or a chain of maps from embeddings to logits.
        tokens: The numbers of the tokens of one sentence, or their embeddings (n, d) for a chain.
        word: Which token moves; several move together in one norm. Every token by itself by default.
        p: How perturbations are measured: :math:`|e|_p` with p = 1, 2 or ∞.
        classes: Which other classes must not overtake; all of them by default.
        seed: Where attacks start.

    Raises:
        AssumptionError: If the model has no classifier, or holds a map without a known remainder.
        ShapeError: If there is not one sentence, or a word is not there.

    Example:
        >>> import torch, howsmooth as hs
        >>> X = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
        >>> f = hs.Chain(hs.Pooling.first(n=2, like=X), hs.Dense(torch.eye(2, dtype=torch.float64)))
        >>> print(hs.certify(f, X, word=0).radii[0].certified <= 2**0.5)
        True
    """
    groups = None if word is None else [(word,) if isinstance(word, int) else tuple(word)]
    if isinstance(classifier, Map) and not isinstance(classifier, nn.Module):
        return certify_map(classifier, tokens, groups=groups, p=p, rivals=classes, seed=seed)
    model = classifier if isinstance(classifier, Transformer) else load(classifier)
    f, X = model.activations(tokens.reshape(1, -1)).at(0, "classes")
    if not isinstance(f, Chain):
        raise AssumptionError(
            "certificates need every layer in closed form, and this model has a layer that is differentiated by "
            "autograd; `howsmooth models` lists the families that are read.",
            field="classifier",
        )
    return certify_map(f, X[0], groups=groups, p=p, rivals=classes, seed=seed)
