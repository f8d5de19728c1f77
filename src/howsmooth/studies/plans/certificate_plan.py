"""What ``howsmooth certify`` can be asked for, declared once for the command line and the record, and its asks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from howsmooth.certificates.settings import PLACES, check_place, norm_named
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.sources import read_sentences
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.hub import check_model
from howsmooth.studies.json_values import NOT_IN_KEY, JsonValue, described
from howsmooth.studies.settings import Compute, ModelReading, Solver, command, default_folder, options_of

if TYPE_CHECKING:
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources

MODEL = "reviews"


class Certifying(JsonValue, frozen=True, kw_only=True):
    """What is to be certified, as the command line says it: an option for each field."""

    model: str = MODEL
    text: Annotated[str, described("A sentence.", metavar="SENTENCE")] = ""
    file: Annotated[
        str,
        described(
            'Sentences: one on each line; or .jsonl, a string or {"text": …, "label": …} a line.', metavar="FILE"
        ),
    ] = ""
    word: Annotated[
        str,
        described(
            "Which words move: as written, or the numbers of tokens, from 0 on; all by default.", metavar="3,film"
        ),
    ] = ""
    together: Annotated[bool, described("Move all of these words at once, in one norm.")] = False
    p: Annotated[str, described("How perturbations are measured: 1, 2 or inf.", metavar="P")] = "2"
    at: Annotated[
        str,
        described("Where words move: embeddings, before any norm; or attention, what enters a layer.", metavar="PLACE"),
    ] = PLACES[0]
    layer: Annotated[int, described("With at='attention': which layer.")] = 0
    label: Annotated[str, described("Expected class; misclassified sentences are reported and skipped.")] = ""
    seed: Annotated[int, described("The seed of everything random.")] = 0
    threads: Annotated[int | None, described("How many threads a product uses."), NOT_IN_KEY] = None
    reading: ModelReading = ModelReading()

    def check(self) -> None:
        """Refuse names and numbers that lead nowhere, before anything is loaded.

        Raises:
            HowsmoothError: If there is no such model, place, norm or file, or nothing to certify.
        """
        if bool(self.text.strip()) == bool(self.file):
            raise AssumptionError(
                'give either text=, as in text="a gripping film", or file=, a file of sentences.', field="text"
            )
        norm_named(self.p)
        check_place(self.at, self.layer)
        Solver(seed=self.seed)
        self.where.check()
        if any(label is not None for _sentence, label in self._read) and self.label:  # and refuses a missing file
            raise AssumptionError(
                f"{self.file!r} has labels of its own, and label={self.label} is given besides; leave out one.",
                field="label",
            )
        check_model(self.model)
        self.reading.check()

    @property
    def where(self) -> Compute:
        """Certificates are computed on the CPU in float64."""
        return Compute(threads=self.threads)

    @property
    def labelled(self) -> tuple[tuple[str, str | int | None], ...]:
        """The sentences, each once, with the class that each should be of, if that is given."""
        return tuple((sentence, self.label or None if own is None else own) for sentence, own in self._read)

    @property
    def _read(self) -> tuple[tuple[str, str | int | None], ...]:
        """The sentences as they are given, with labels where a file has some."""
        if not self.file:
            return ((self.text.strip(), None),)
        if self.file.endswith(".jsonl"):
            found = read_sentences(self.file)
            return tuple(dict.fromkeys(zip(map(str.strip, found.lines), found.labels, strict=True)))
        lines = (line.strip() for line in read_text(self.file).content.splitlines())
        return tuple(dict.fromkeys((line, None) for line in lines if line))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences, each once."""
        return tuple(dict.fromkeys(sentence for sentence, _label in self.labelled))

    @property
    def words(self) -> tuple[str, ...]:
        """The words that move, one by one."""
        return tuple(dict.fromkeys(word.strip() for word in self.word.split(",") if word.strip()))

    @property
    def command(self) -> str:
        """What to type to certify the same."""
        return command("certify", self.model, *options_of(replace(self, model=MODEL)))

    @property
    def folder(self) -> Path:
        """Where records go unless told otherwise: the same question, the same folder."""
        return default_folder(self.model, "certify", [self, self.sentences])


def planned_certificates(certifying: Certifying, resources: "Resources") -> "PlannedAsks":
    """Check everything that is asked for against the model, and list one ask for each sentence and word.

    Raises:
        HowsmoothError: If anything cannot be had, or all sentences are misclassified; before any long work.
    """
    from howsmooth.certificates.sentences import class_head, read_sentence
    from howsmooth.studies.kinds.certificate import Ask
    from howsmooth.studies.plans.at_text import PlannedAsks

    model = resources.transformer(certifying.model, reading=certifying.reading)
    class_head(model)
    if certifying.at == "attention":
        model.layer(certifying.layer)
    right, wrong = by_their_labels(model, certifying.labelled)
    shared = {name: getattr(certifying, name) for name in ("model", "p", "at", "layer", "seed", "reading")}
    asks = tuple(
        Ask(sentence=sentence, word=places, **shared)
        for sentence in right
        for places in _moving(certifying, model, read_sentence(model, sentence))
    )
    return PlannedAsks(asks=asks, transformer=model, command=certifying.command, remarks=tuple(wrong))


def by_their_labels(
    model: "Transformer", labelled: Sequence[tuple[str, str | int | None]]
) -> tuple[list[str], list[str]]:
    """Return the sentences that are classified as they are labelled, or have no label, each once.

    Returns:
        These sentences, and what to report of the others.

    Raises:
        AssumptionError: If there is no such class, or all of them are misclassified.
    """
    from howsmooth.certificates.sentences import label_number

    for _sentence, label in labelled:
        if label is not None:
            label_number(model, label)
    said = [(sentence, _misclassified(model, sentence, label)) for sentence, label in labelled]
    right, wrong = [sentence for sentence, error in said if not error], [error for _sentence, error in said if error]
    if not right:
        raise AssumptionError(" ".join(wrong), field="label")
    return list(dict.fromkeys(right)), wrong


def _moving(certifying: Certifying, model: "Transformer", tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Return which tokens move: each word by itself, or all of them together."""
    from howsmooth.certificates.sentences import ordinary_positions, word_positions

    groups = [places for word in certifying.words for places in word_positions(model, tokens, word)]
    if not certifying.words:
        groups = [(place,) for place in ordinary_positions(model, tokens)]
    groups = list(dict.fromkeys(groups))
    if not certifying.together:
        return groups
    return [tuple(sorted({place for group in groups for place in group}))]


def _misclassified(model: "Transformer", sentence: str, label: str | int | None) -> str:
    """Say that another class wins than the label, if there is one and it does."""
    import torch

    from howsmooth.certificates.sentences import class_head, classifier_at, label_number, read_sentence

    if label is None:
        return ""
    f, X = classifier_at(model, torch.tensor(read_sentence(model, sentence)))
    labels, predicted = class_head(model).labels, int(f(X)[0].argmax())
    if predicted == label_number(model, label):
        return ""
    name = labels[label_number(model, label)]
    return f"{sentence[:60]!r} is told to be {labels[predicted]!r}, not {name!r}: misclassified, so not certified."
