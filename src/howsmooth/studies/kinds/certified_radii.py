"""How far words of sentences may move: what is asked, and how it is proven and attacked."""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from howsmooth.certificates.settings import PLACES, check_place, norm_in
from howsmooth.errors import AssumptionError, DtypeError, FileError, HowsmoothError, StudyError
from howsmooth.models.inputs.sources import Sentences, held, one_sentence, read_source
from howsmooth.models.loading.names import check_model
from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.json_values import NOT_IN_KEY, ROUND_DOWN, ROUND_UP, described, finite
from howsmooth.studies.kinds import Kind, RunCommand
from howsmooth.studies.records import Record
from howsmooth.studies.runs.certified_accuracy import (
    CertifiedAccuracy,
    certified_sets,
    summarise,
    summarise_certificates,
)
from howsmooth.studies.settings import CommandSettings, Compute, ModelReading, Solver
from howsmooth.wording import count

if TYPE_CHECKING:
    from torch import nn

    from howsmooth.certificates.sentence_certifier import SentenceCertifier
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.sweep.sweep import Progress

Places = tuple[int, ...]
# So many misclassified sentences are told one by one.
MANY = 5


class Certifying(CommandSettings, frozen=True, kw_only=True):
    """What is to be certified, as the command line says it: an option for each field."""

    NAME = "certify"
    model: str = "reviews"
    sentence: Annotated[str, described("A sentence.", metavar="SENTENCE")] = ""
    file: Annotated[
        str,
        described(
            'A test set: .jsonl with {"text": …, "label": …} or a string on each line, .csv with the columns text and '
            "label, or a sentence on each line.",
            metavar="FILE",
            option="sentences",
        ),
    ] = ""
    word: Annotated[
        str,
        described(
            "Which words move: as written, or the numbers of tokens, from 0 on; all by default.", metavar="3,film"
        ),
    ] = ""
    together: Annotated[bool, described("Move all of these words at once, in one norm.")] = False
    metric: Annotated[str, described("How perturbations are measured: total, entries or sum.", metavar="NAME")] = (
        "total"
    )
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
        """Refuse names and numbers that lead nowhere, before anything is loaded."""
        if bool(self.sentence.strip()) == bool(self.file):
            raise AssumptionError(
                'give either sentence=, as in sentence="a gripping film", or file=, a file of sentences.',
                field="sentence",
            )
        norm_in(self.metric)
        check_place(self.at, self.layer)
        Solver(seed=self.seed)
        self.where.check()
        if self.label and any(label is not None for label in self.read.labels):  # and refuses a missing file
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
    def read(self) -> Sentences:
        """The sentences as they are given, with labels where a file has some."""
        if not self.file:
            return one_sentence(self.sentence.strip())
        found = read_source("sentences", self.file)
        assert isinstance(found, Sentences)
        return found

    @property
    def labelled(self) -> "tuple[Labelled, ...]":
        """The sentences in their order, each once, with the class that each should be of, if that is given."""
        read = self.read
        found: dict[tuple[str, str | int | None], Labelled] = {}
        for text, own, place in zip(read.lines, read.labels, read.places, strict=True):
            label = self.label or None if own is None else own
            found.setdefault((text.strip(), label), Labelled(text=text.strip(), label=label, place=place))
        without = [each for each in found.values() if each.label is None]
        if 0 < len(without) < len(found):
            raise FileError(
                f"{without[0].place}: there is no label, and other sentences have one; give one to each, or to none.",
                field="file",
            )
        return tuple(found.values())

    @property
    def each(self) -> tuple[str, ...]:
        """The sentences, each once."""
        return tuple(dict.fromkeys(each.text for each in self.labelled))

    @property
    def words(self) -> tuple[str, ...]:
        """The words that move, one by one."""
        return tuple(dict.fromkeys(word.strip() for word in self.word.split(",") if word.strip()))

    @property
    def question(self) -> Any:
        """The sentences themselves, wherever they come from."""
        return [self, self.each]


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A sentence of a test set."""

    text: str
    label: str | int | None  # the class that it should be of, by its name or number
    place: str  # where it stands: the file and the line


class CertificateAsk(Ask, frozen=True, kw_only=True, tag="certificate"):
    """How far a word may move before a classifier could change its mind, proven, and how far is too far, found."""

    model: str  # a name or folder of a classifier that ``hs.load`` understands
    sentence: str
    # which of its tokens move, together in one norm; nothing for all words, special tokens left out
    word: Annotated[Places, described(plural="words")] = ()
    metric: str = "total"  # how perturbations are measured: total, entries or sum
    # where they are: at the embeddings, or at what enters a layer
    at: Annotated[str, described(plural="places")] = PLACES[0]
    layer: int = 0
    seed: int = 0  # where attacks start
    reading: ModelReading = ModelReading()  # how the model is read, where its folder does not say
    # the class that the sentence should be of; nothing if that is not known
    expected: Annotated[str, described(plural="expected_classes")] = ""

    def __post_init__(self) -> None:
        """Refuse what no certificate is about."""
        norm_in(self.metric)
        check_place(self.at, self.layer)
        if not self.sentence.strip():
            raise AssumptionError("a sentence must hold words, got nothing.", field="sentence")

    @property
    def label(self) -> str:
        """The model, the sentence and which words move."""
        moving = f"token {', '.join(map(str, self.word))}" if self.word else "all words"
        return f"{self.model}, {self.sentence[:40]!r}, {moving}"

    @property
    def cost(self) -> float:
        """Tables grow with the square of the length, and all words of a sentence share one."""
        return float(len(self.sentence.split()) ** 2)

    @property
    def batch(self) -> Hashable:
        """All words of a sentence share its table."""
        return replace(self, word=(), metric="total", seed=0)

    @property
    def cell(self) -> Hashable:
        """Attacks of all words of a sentence run at once."""
        return self.metric, self.seed

    @property
    def rank(self) -> tuple[Any, ...]:
        """Word by word."""
        return self.word, self.metric, self.seed


class CertificateAnswer(Answer, frozen=True, kw_only=True):
    """What is proven and what is found; no places and no radius for a sentence that is misclassified."""

    spelled: str  # the words that move
    places: Places  # which tokens of the sentence they are
    certified: Annotated[float, ROUND_DOWN]  # no perturbation of at most this size changes the prediction
    attacked: Annotated[float | None, ROUND_UP] = None  # the size of one that does; none if none was found
    linear: float | None = None  # where the first order alone would use the margin up; none if it never does
    slack: str = ""  # the sub-layer and the token whose remainder takes most of the margin
    predicted: str = ""  # the class that wins
    margin: Annotated[float, ROUND_DOWN] = 0.0  # by how much it wins over the next
    tokens: int = 0  # how many tokens the sentence has
    table_seconds: float = 0.0  # how long the table took that all words of the sentence share
    word_seconds: float = 0.0  # how long this word took
    norm: float | None = None  # the size of what moves: of the embedding, or of the input of a layer
    nearest: float | None = None  # how far the embedding of the nearest other word is; none where several words move
    nearest_word: str = ""  # which word that is


CertificateRecord = Record[CertificateAsk, CertificateAnswer]


def run(batch: Sequence[CertificateAsk], cell: Sequence[CertificateAsk], resources: "Resources") -> list[Answer]:
    """Certify the words of one sentence."""
    import torch

    from howsmooth.certificates.provable_modules import require_same_on_ball
    from howsmooth.certificates.sentences import class_head, module_at, ordinary_positions
    from howsmooth.studies.resources import seeded

    first = cell[0]
    transformer = resources.transformer(first.model, reading=first.reading)
    certifier, numbers = resources.latest(_certifier, transformer, first.sentence, first.at, first.layer)
    predicted = class_head(transformer).labels[certifier.predicted]
    shared: dict[str, Any] = {
        "predicted": predicted,
        "margin": float(certifier.rivals.margins.min()),
        "tokens": len(numbers),
    }
    if first.expected not in ("", predicted):
        return [CertificateAnswer(spelled="", places=(), certified=0.0, **shared) for _ask in cell]
    every, p = tuple(ordinary_positions(transformer, numbers)), norm_in(first.metric)
    groups = [ask.word or every for ask in cell]
    radii = certifier.radii(groups, p=p, seeds=[seeded([ask]) for ask in cell])
    module = module_at(transformer, torch.tensor(numbers), at=first.at, layer=first.layer)
    require_same_on_ball(certifier, module, radii, p)
    words, left = transformer.require_tokenizer().pieces(numbers), len(transformer.layers) - first.layer
    return [
        CertificateAnswer(
            spelled=" ".join(words[i] for i in radius.tokens),
            places=radius.tokens,
            certified=radius.certified,
            attacked=finite(radius.attacked),
            linear=finite(radius.linear),
            slack="" if radius.slack is None else radius.slack.in_words(words, layers=left, first=first.layer),
            table_seconds=certifier.seconds,
            word_seconds=radius.seconds,
            norm=float(torch.linalg.vector_norm(certifier.embeddings[list(radius.tokens)], p)),
            **(_nearest(transformer, numbers[radius.tokens[0]], p) if _one_word(first, radius.tokens) else {}),
            **shared,
        )
        for radius in radii
    ]


def _one_word(ask: CertificateAsk, places: Places) -> bool:
    return ask.at == PLACES[0] and len(places) == 1


def _nearest(transformer: "Transformer", token: int, p: float) -> dict[str, Any]:
    """Return how far the nearest embedding of another word is, and which word that is."""
    import torch

    from howsmooth.certificates.sentences import special_tokens
    from howsmooth.models.families.parameters import token_table
    from howsmooth.models.inputs.text import HubTokenizer

    embeddings, tokenizer = token_table(transformer.module), transformer.require_tokenizer()
    if embeddings is None:
        return {}
    # tables are padded: rows behind the vocabulary are no words
    table = embeddings.weight.detach()[: tokenizer.size if isinstance(tokenizer, HubTokenizer) else None].double()
    apart = torch.linalg.vector_norm(table - table[token], p, dim=1)
    apart[[token, *(i for i in special_tokens(tokenizer) if i < len(table))]] = torch.inf
    nearest = int(apart.argmin())
    return {"nearest": finite(float(apart[nearest])), "nearest_word": tokenizer.pieces([nearest])[0]}


def _certifier(transformer: "Transformer", sentence: str, at: str, layer: int) -> "tuple[SentenceCertifier, list[int]]":
    import torch

    from howsmooth.certificates.sentence_certifier import SentenceCertifier
    from howsmooth.certificates.sentences import classifier_at
    from howsmooth.models.inputs.model_inputs import read_sentence

    numbers = read_sentence(transformer, sentence)
    f, X = classifier_at(transformer, torch.tensor(numbers), at=at, layer=layer)
    return SentenceCertifier(f, X), numbers


def planned_certificates(certifying: Certifying, resources: "Resources") -> "PlannedAsks":
    """Check everything that is asked for against the model, and list one ask for each sentence and word."""
    from howsmooth.certificates.provable_modules import require_plain_forward
    from howsmooth.certificates.sentences import class_head
    from howsmooth.models.inputs.model_inputs import read_sentence
    from howsmooth.studies.plans.at_text import PlannedAsks

    model = resources.transformer(certifying.model, reading=certifying.reading)
    class_head(model)
    require_plain_forward(model.with_head or model.module)
    if certifying.at == "attention":
        model.layer(certifying.layer)
    labelled = certifying.labelled
    right, wrong = by_their_labels(model, labelled)
    shared = {name: getattr(certifying, name) for name in ("model", "metric", "at", "layer", "seed", "reading")}
    asks, certifiable = list[CertificateAsk](), set(right)
    for each in labelled:
        about = shared | {"sentence": each.text, "expected": _name(model, each.label)}
        if each in certifiable:
            tokens = read_sentence(model, each.text)
            with _at(each):
                moving = _moving(certifying, model, tokens)
            asks += [CertificateAsk(word=places, **about) for places in moving]
        else:
            asks.append(CertificateAsk(**about))
    repeated = len(certifying.read.lines) - len(labelled)
    remarks = wrong if len(wrong) <= MANY else [f"{count(len(wrong), 'sentence')} misclassified, so not certified."]
    if repeated:
        remarks.append(f"{count(repeated, 'line')} repeated: every sentence counts once.")
    return PlannedAsks(asks=tuple(asks), transformer=model, command=certifying.command, remarks=tuple(remarks))


@contextmanager
def _at(each: Labelled) -> Iterator[None]:
    """Say where a sentence stands that cannot be certified."""
    try:
        yield
    except HowsmoothError as error:
        if each.place:
            error.args = (f"{each.place}: {error}", *error.args[1:])
        raise


def _name(model: "Transformer", label: str | int | None) -> str:
    from howsmooth.certificates.sentences import class_head, label_number

    return "" if label is None else class_head(model).labels[label_number(model, label)]


def by_their_labels(model: "Transformer", labelled: Sequence[Labelled]) -> tuple[list[Labelled], list[str]]:
    """Return the sentences that are classified as they are labelled, or have none; and what to say of the others."""
    import torch

    from howsmooth.certificates.sentences import class_head, classifier_at, label_number
    from howsmooth.models.inputs.model_inputs import read_sentence

    # Labels and lengths first, all of them: running the model takes longer.
    tokens, wanted = [], list[int | None]()
    for each in labelled:
        with _at(each):
            wanted.append(None if each.label is None else label_number(model, each.label))
            tokens.append(read_sentence(model, each.text))
    labels, right, wrong = class_head(model).labels, list[Labelled](), list[str]()
    for each, numbers, expected in zip(labelled, tokens, wanted, strict=True):
        if expected is not None:
            f, X = classifier_at(model, torch.tensor(numbers))
            predicted = int(f(X)[0].argmax())
            if predicted != expected:
                said = f"{each.text[:60]!r} is classified as {labels[predicted]!r}, not {labels[expected]!r}"
                wrong.append(f"{said}: misclassified, so not certified.")
                continue
        right.append(each)
    if not right:
        raise AssumptionError(" ".join(wrong[:MANY]), field="label")
    return right, wrong


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


def certified_accuracy(
    classifier: "Transformer | nn.Module | str",
    sentences: "Sequence[str | Mapping[str, Any]] | str | os.PathLike[str]",
    *,
    labels: Sequence[str | int] | None = None,
    metric: str = "total",
    at: str = PLACES[0],
    layer: int = 0,
    seed: int = 0,
    out: "str | os.PathLike[str] | None" = None,
    progress: "Progress | bool | None" = None,
) -> CertifiedAccuracy:
    r"""Certify every word of every sentence of a test set, and attack it: clean, certified and attacked accuracy.

    .. math:: \frac1N\#\{\text{right, every word's radius}\ge\epsilon\text{: proven}\} \le
              \text{accuracy under }\epsilon \le \frac1N\#\{\text{right, no word's flip found within }\epsilon\}

    Sentences that are misclassified are counted and not certified.

    Args:
        classifier: What :func:`load` takes, or what it returned: a model with a classification head and a tokenizer.
        sentences: Strings, objects with ``text`` and ``label``, or a file of them: ``.jsonl``, ``.csv``, ``.tsv``, or
            one on each line.
        labels: The classes that strings should be of, by their names or numbers.
        metric: How perturbations are measured, as for :func:`certify`.
        at: Where words move.
        layer: Which layer that is.
        seed: Seeds attacks.
        out: The folder that keeps the records; what is there already is not certified again.
        progress: True for a bar; or what is called after each step with how far the work is.

    Raises:
        HowsmoothError: If anything asked for cannot be had; before any long work.
        StudyError: If anything failed.
    """
    from howsmooth.models.load import load
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.progress import shown_by
    from howsmooth.studies.sweep.sweep import sweep
    from howsmooth.studies.sweep.workers import executor

    model = classifier if isinstance(classifier, Transformer) else load(classifier)
    given: Any = sentences
    file = isinstance(sentences, str | os.PathLike)
    if not file and not all(isinstance(each, str | Mapping) for each in given):
        raise DtypeError(
            "sentences must be strings, objects with text and label, or a file of them; hs.certify takes token ids.",
            field="sentences",
        )
    if labels is not None:
        if file or len(labels) != len(given):
            need = "a file has labels of its own" if file else f"there are {count(len(given), 'sentence')}"
            raise AssumptionError(f"{need}, got {count(len(labels), 'label')}.", field="labels")
        given = [{"text": text, "label": label} for text, label in zip(given, labels, strict=True)]
    resources = Resources([model])
    with ExitStack() as stack:
        name = os.fspath(given) if file else stack.enter_context(held("sentences", given))
        settings = Certifying(model=model.name, file=name, metric=metric, at=at, layer=layer, seed=seed)
        norm_in(metric)
        check_place(at, layer)
        Solver(seed=seed)
        made = planned_certificates(settings, resources)
        execute = stack.enter_context(executor(resources=resources))
        store = stack.enter_context(Store(out))
        with shown_by(progress) as shown:
            made.begin(store)
            sweep(made.asks, store, execute=execute, progress=shown)
        found, failures = store.find(ask.key for ask in made.asks), store.failures(made.asks)
    if failures:  # an accuracy of the others would be one of another test set
        first = failures[0]
        raise StudyError(f"{len(failures)} of {len(made.asks)} certificates failed, {first.ask.label}: {first.error}")
    (whole,) = certified_sets(summarise_certificates(found[ask.key] for ask in made.asks if ask.key in found))
    return whole


KINDS = (
    Kind(
        ask=CertificateAsk,
        answer=CertificateAnswer,
        run=run,
        summarise=summarise,
        command=RunCommand(
            settings=Certifying,
            plan=planned_certificates,
            help="""Certify a classifier at sentences: how far each word may move before the prediction could change.

            Example: howsmooth certify reviews --sentence "a gripping film"
            """,
            results="certificates",
            done="certified",
        ),
    ),
)
