"""Certificates of words of sentences: checked against the model, and listed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from howsmooth.certificates.reading import class_head, classified, label_number, read_sentence
from howsmooth.certificates.sentence import inner_places, word_places
from howsmooth.errors import AssumptionError
from howsmooth.models.transformer import Transformer
from howsmooth.studies.kinds.certificate import Ask
from howsmooth.studies.plans.certifying import Certifying
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.facts import keep_model
from howsmooth.studies.runs.plans import plan_of
from howsmooth.studies.runs.store import Store


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedCertificates:
    """Everything that certificates need, checked; what is left is work.

    Attributes:
        transformer: The model.
        asks: One for each sentence and word.
        wrong: What is said of sentences of which another class wins than the label.
        command: What to type to ask for them again.
    """

    transformer: Transformer
    asks: tuple[Ask, ...]
    wrong: tuple[str, ...]
    command: str

    def begin(self, store: Store) -> None:
        """Keep what is known about the model and the plan before any work."""
        keep_model(store, self.transformer)
        store.keep_plan(plan_of(self.asks, command=self.command))


def planned_certificates(certifying: Certifying, resources: Resources) -> PlannedCertificates:
    """Check everything that is asked for against the model, and list the asks.

    Raises:
        HowsmoothError: If anything cannot be had, or no sentence is of the class that it should be; before any long
            work.
    """
    model = resources.transformer(certifying.model, reading=certifying.reading)
    class_head(model)
    if certifying.at == "attention":
        model.layer(certifying.layer)
    right, wrong = by_their_labels(model, certifying.labelled)
    asks = tuple(
        _ask(certifying, sentence, places)
        for sentence in right
        for places in _moving(certifying, model, read_sentence(model, sentence))
    )
    return PlannedCertificates(transformer=model, asks=asks, wrong=tuple(wrong), command=certifying.command)


def by_their_labels(
    model: Transformer, labelled: Sequence[tuple[str, str | int | None]]
) -> tuple[list[str], list[str]]:
    """Return the sentences that a classifier takes for what they are labelled as, or that have no label, each once.

    Returns:
        These sentences, and what is to be said of the others.

    Raises:
        AssumptionError: If it has no such class, or all of them are misclassified.
    """
    for _sentence, label in labelled:
        if label is not None:
            label_number(model, label)
    said = [(sentence, _misclassified(model, sentence, label)) for sentence, label in labelled]
    right, wrong = [sentence for sentence, error in said if not error], [error for _sentence, error in said if error]
    if not right:
        raise AssumptionError(" ".join(wrong), field="label")
    return list(dict.fromkeys(right)), wrong


def _moving(certifying: Certifying, model: Transformer, tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Return which tokens move: each word by itself, or all of them together."""
    groups = [places for word in certifying.words for places in word_places(model, tokens, word)]
    if not certifying.words:
        groups = [(place,) for place in inner_places(model, tokens)]
    groups = list(dict.fromkeys(groups))
    if not certifying.together:
        return groups
    return [tuple(sorted({place for group in groups for place in group}))]


def _ask(certifying: Certifying, sentence: str, places: tuple[int, ...]) -> Ask:
    return Ask(
        model=certifying.model,
        sentence=sentence,
        word=places,
        p=certifying.p,
        at=certifying.at,
        layer=certifying.layer,
        seed=certifying.seed,
        reading=certifying.reading,
    )


def _misclassified(model: Transformer, sentence: str, label: str | int | None) -> str:
    """Say that another class wins than the label, if there is one and it does."""
    if label is None:
        return ""
    f, X = classified(model, torch.tensor(read_sentence(model, sentence)))
    labels, predicted = class_head(model).labels, int(f(X)[0].argmax())
    if predicted == label_number(model, label):
        return ""
    name = labels[label_number(model, label)]
    return f"{sentence[:60]!r} is told to be {labels[predicted]!r}, not {name!r}: misclassified, so not certified."
