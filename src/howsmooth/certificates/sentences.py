"""A model and a sentence: its tokens and words, its classifier as a chain of maps, and the input of that."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.provable_modules import require_plain_forward, require_same_steps
from howsmooth.certificates.settings import PLACES, check_place
from howsmooth.errors import AssumptionError, ShapeError, nearest
from howsmooth.maps.composition import Chain
from howsmooth.models.autograd.module_calls import ModuleClassifier, module_classifier
from howsmooth.models.inputs.text import HubTokenizer, Tokenizer
from howsmooth.models.module_comparison import reason, rounding
from howsmooth.models.parts.ends import ClassHead
from howsmooth.models.transformer import Transformer
from howsmooth.validation import token_ids
from howsmooth.wording import number


def class_head(model: Transformer) -> ClassHead:
    """Return the classifier of a model.

    Raises:
        AssumptionError: If it has none, or one class only.
    """
    head = model.ends.class_head
    if isinstance(head, str):
        raise AssumptionError(
            f"{model.name!r} has no classifier: {head}; give a model ...ForSequenceClassification, as `reviews` is.",
            field="model",
        )
    if len(head.labels) < 2:
        raise AssumptionError(
            f"the classifier of {model.name!r} has one class, so that no other can overtake; we need two or more.",
            field="model",
        )
    return head


def label_number(model: Transformer, label: str | int) -> int:
    """Return the number of a class that is given by its name or its number.

    Raises:
        AssumptionError: If the model has no such class.
    """
    labels = class_head(model).labels
    if isinstance(label, str) and label in labels:
        return labels.index(label)
    if str(label).isdecimal() and int(label) < len(labels):
        return int(label)
    raise AssumptionError(f"{model.name!r} has no class {label!r}{nearest(str(label), labels)}", field="label")


def ordinary_positions(model: Transformer, tokens: Sequence[int]) -> list[int]:
    """Return the positions of all tokens that are not special."""
    special = special_tokens(model.require_tokenizer())
    return [i for i, token in enumerate(tokens) if token not in special]


def word_positions(model: Transformer, tokens: Sequence[int], word: str) -> list[tuple[int, ...]]:
    """Return the positions of the tokens of a word, once for each occurrence.

    Args:
        model: The model.
        tokens: The sentence.
        word: The index of a token, from 0 on; or a word as it is written.

    Raises:
        AssumptionError: If it does not occur.
    """
    tokenizer = model.require_tokenizer()
    if word.lstrip("-").isdecimal():
        if not 0 <= int(word) < len(tokens):
            raise AssumptionError(f"the sentence has the tokens 0 to {len(tokens) - 1}, got {word}.", field="word")
        return [(int(word),)]
    found: dict[tuple[int, ...], None] = {}
    # Many tokenizers write a word in the middle of a sentence with the space before it.
    for form in (tokenizer.encode(word), tokenizer.encode(f" {word}")):
        if form and tokenizer.unknown not in form:
            starts = (i for i in range(len(tokens) - len(form) + 1) if list(tokens[i : i + len(form)]) == form)
            found |= {tuple(range(i, i + len(form))): None for i in starts}
    if not found:
        words = tokenizer.pieces(tokens)
        there = ", ".join(f"{i} {words[i]}" for i in ordinary_positions(model, tokens))
        raise AssumptionError(f"the sentence has no word {word!r}; its tokens are {there}.", field="word")
    return sorted(found)


def special_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Return all tokens that are no words."""
    # A word that the tokenizer does not know is a word too.
    unknown = set() if tokenizer.unknown is None else {tokenizer.unknown}
    if isinstance(tokenizer, HubTokenizer):
        return tokenizer.special - unknown
    before, behind = tokenizer.frame()
    return frozenset(before + behind) - unknown


def classifier_at(
    model: Transformer, tokens: Tensor, *, at: str = PLACES[0], layer: int = 0
) -> tuple[Chain, Float[Tensor, "n d"]]:
    """Return a classifier as a chain of maps, and its input at a sentence.

    Args:
        model: A model with a classification head.
        tokens: The ids of the tokens of one sentence.
        at: Where it begins: at the sum of the embeddings, or at the input of the attention of a layer.
        layer: Which layer, if at attention.

    Raises:
        AssumptionError: If the model has no classifier or no such layer, or is not read in closed form; or there are
            more tokens than positions; or its module has other logits at the sentence, hooks, or branches.
        DtypeError: If the ids are not whole numbers.
        ShapeError: If there is not one sentence.
    """
    head = class_head(model)
    check_place(at, layer)
    tokens = token_ids(tokens)
    if tokens.numel() != tokens.shape[-1]:
        raise ShapeError(f"a certificate is about one sentence of tokens, got {tuple(tokens.shape)}.", field="tokens")
    n = tokens.numel()
    model.require_positions(n, f"and the sentence has {n}; shorten it", field="text")
    name = "classes" if at == PLACES[0] else f"from:{model.layer(layer).index}"
    f, X = model.activations(tokens.reshape(1, -1)).at(0 if at == PLACES[0] else layer, name)
    if not isinstance(f, Chain):
        raise AssumptionError(
            "certificates need every layer in closed form, and this model has a layer that is differentiated by "
            "autograd; `howsmooth models` lists the families that are read.",
            field="model",
        )
    f = f if at == PLACES[0] else Chain(*f.maps, *head.maps(X, tokens.reshape(1, -1), None))
    module = module_at(model, tokens, at=at, layer=layer)
    _require_logits(model, f, X[0], module)
    require_plain_forward(module.module)
    require_same_steps(module, X[0], type(module.module).__name__)
    return f, X[0]


def module_at(model: Transformer, tokens: Tensor, *, at: str = PLACES[0], layer: int = 0) -> ModuleClassifier:
    """Return the classifier of :func:`classifier_at` as its module runs it."""
    return module_classifier(model, tokens.reshape(-1), None if at == PLACES[0] else layer)


def _require_logits(model: Transformer, f: Chain, X: Tensor, module: ModuleClassifier) -> None:
    """Refuse maps with other logits at a sentence than the module, or another predicted class."""
    with torch.no_grad():
        exact, theirs = f.to(torch.float64, "cpu"), module(X).cpu()
        ours = exact(X.to("cpu", torch.float64))
        off, allowed = rounding(exact, X.to("cpu", torch.float64), theirs)
    said = f"the module has the logits {_listed(theirs)} at this sentence, and its weights say {_listed(ours)}"
    if not bool((off <= allowed).all()):
        raise AssumptionError(
            f"{said}: {reason(module.module)}; a certificate needs a classifier that is all in its weights.",
            field="model",
        )
    if int(ours.argmax()) != int(theirs.argmax()):
        raise AssumptionError(
            f"{said}: the two best classes of {model.name!r} are nearer than rounding, so that none of them wins.",
            field="tokens",
        )


def _listed(logits: Tensor) -> str:
    return "(" + ", ".join(number(float(x), 4) for x in logits.flatten()) + ")"
