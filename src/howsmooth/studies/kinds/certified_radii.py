"""How far words of a sentence may move: what is asked, how it is proven and attacked, and what it sums up to."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace
from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.certificates.settings import PLACES, check_place, norm_in
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.sources import read_sentences
from howsmooth.models.loading.names import check_model
from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.json_values import NOT_IN_KEY, ROUND_DOWN, ROUND_UP, described, finite, to_json
from howsmooth.studies.kinds import Kind, RunCommand
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.result_table import fitted
from howsmooth.studies.settings import CommandSettings, Compute, ModelReading, Solver
from howsmooth.wording import at_least, at_most, number

if TYPE_CHECKING:
    from howsmooth.certificates.sentence_certifier import SentenceCertifier
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources

Places = tuple[int, ...]
# A word is fragile where so many times the smallest attacked radius of its sentence is enough.
FRAGILE = 1.25
# Columns that leave a narrow terminal, the first ones first.
EXPENDABLE = ("seconds", "linear", "loosest stage")


class Certifying(CommandSettings, frozen=True, kw_only=True):
    """What is to be certified, as the command line says it: an option for each field."""

    NAME = "certify"
    model: str = "reviews"
    sentence: Annotated[str, described("A sentence.", metavar="SENTENCE")] = ""
    sentences: Annotated[
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
        if bool(self.sentence.strip()) == bool(self.sentences):
            raise AssumptionError(
                'give either sentence=, as in sentence="a gripping film", or sentences=, a file of them.',
                field="sentence",
            )
        norm_in(self.metric)
        check_place(self.at, self.layer)
        Solver(seed=self.seed)
        self.where.check()
        if any(label is not None for _sentence, label in self._read) and self.label:  # and refuses a missing file
            raise AssumptionError(
                f"{self.sentences!r} has labels of its own, and label={self.label} is given besides; leave out one.",
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
        if not self.sentences:
            return ((self.sentence.strip(), None),)
        found = read_sentences(self.sentences)
        return tuple(dict.fromkeys(zip(map(str.strip, found.lines), found.labels, strict=True)))

    @property
    def each(self) -> tuple[str, ...]:
        """The sentences, each once."""
        return tuple(dict.fromkeys(sentence for sentence, _label in self.labelled))

    @property
    def words(self) -> tuple[str, ...]:
        """The words that move, one by one."""
        return tuple(dict.fromkeys(word.strip() for word in self.word.split(",") if word.strip()))

    @property
    def question(self) -> Any:
        """The sentences themselves, wherever they come from."""
        return [self, self.each]


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
        """Every word is done by itself."""
        return self.word, self.metric, self.seed

    @property
    def rank(self) -> tuple[Any, ...]:
        """Word by word."""
        return self.word, self.metric, self.seed


class CertificateAnswer(Answer, frozen=True, kw_only=True):
    """What is proven and what is found."""

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


CertificateRecord = Record[CertificateAsk, CertificateAnswer]


def run(batch: Sequence[CertificateAsk], cell: Sequence[CertificateAsk], resources: "Resources") -> list[Answer]:
    """Certify one word after the other."""
    transformer = resources.transformer(cell[0].model, reading=cell[0].reading)
    return [_certified(ask, transformer, resources) for ask in cell]


def _certified(ask: CertificateAsk, transformer: "Transformer", resources: "Resources") -> CertificateAnswer:
    from howsmooth.certificates.sentences import class_head, ordinary_positions, tokenizer_of
    from howsmooth.studies.resources import seeded

    certifier, numbers = resources.latest(_certifier, transformer, ask.sentence, ask.at, ask.layer)
    places = ask.word or tuple(ordinary_positions(transformer, numbers))
    radius = certifier.radius(places, p=norm_in(ask.metric), seed=seeded([ask]))
    words = tokenizer_of(transformer).pieces(numbers)
    left = len(transformer.layers) - ask.layer
    return CertificateAnswer(
        spelled=" ".join(words[i] for i in places),
        places=places,
        certified=radius.certified,
        attacked=finite(radius.attacked),
        linear=finite(radius.linear),
        slack="" if radius.slack is None else radius.slack.in_words(words, layers=left, first=ask.layer),
        predicted=class_head(transformer).labels[certifier.predicted],
        margin=float(certifier.rivals.margins.min()),
        tokens=len(numbers),
        table_seconds=certifier.seconds,
        word_seconds=radius.seconds,
    )


def _certifier(transformer: "Transformer", sentence: str, at: str, layer: int) -> "tuple[SentenceCertifier, list[int]]":
    import torch

    from howsmooth.certificates.sentence_certifier import SentenceCertifier
    from howsmooth.certificates.sentences import classifier_at, read_sentence

    numbers = read_sentence(transformer, sentence)
    f, X = classifier_at(transformer, torch.tensor(numbers), at=at, layer=layer)
    return SentenceCertifier(f, X), numbers


def planned_certificates(certifying: Certifying, resources: "Resources") -> "PlannedAsks":
    """Check everything that is asked for against the model, and list one ask for each sentence and word."""
    from howsmooth.certificates.sentences import class_head, read_sentence
    from howsmooth.studies.plans.at_text import PlannedAsks

    model = resources.transformer(certifying.model, reading=certifying.reading)
    class_head(model)
    if certifying.at == "attention":
        model.layer(certifying.layer)
    right, wrong = by_their_labels(model, certifying.labelled)
    shared = {name: getattr(certifying, name) for name in ("model", "metric", "at", "layer", "seed", "reading")}
    asks = tuple(
        CertificateAsk(sentence=sentence, word=places, **shared)
        for sentence in right
        for places in _moving(certifying, model, read_sentence(model, sentence))
    )
    return PlannedAsks(asks=asks, transformer=model, command=certifying.command, remarks=tuple(wrong))


def by_their_labels(
    model: "Transformer", labelled: Sequence[tuple[str, str | int | None]]
) -> tuple[list[str], list[str]]:
    """Return the sentences that are classified as they are labelled, or have none; and what to say of the others."""
    import torch

    from howsmooth.certificates.sentences import class_head, classifier_at, label_number, read_sentence

    wanted = [None if label is None else label_number(model, label) for _sentence, label in labelled]
    labels, right, wrong = class_head(model).labels, list[str](), list[str]()
    for (sentence, _label), expected in zip(labelled, wanted, strict=True):
        if expected is not None:
            f, X = classifier_at(model, torch.tensor(read_sentence(model, sentence)))
            predicted = int(f(X)[0].argmax())
            if predicted != expected:
                said = f"{sentence[:60]!r} is classified as {labels[predicted]!r}, not {labels[expected]!r}"
                wrong.append(f"{said}: misclassified, so not certified.")
                continue
        right.append(sentence)
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


@dataclass(frozen=True, kw_only=True)
class WordRadius:
    """What is known of one word, or of words that move together."""

    places: tuple[int, ...]  # which tokens of the sentence they are
    spelled: str  # how they are written
    certified: float  # no perturbation of at most this size changes the prediction
    attacked: float | None  # the size of one that does; none if none was found
    linear: float | None  # where the first order alone would use the margin up; none if it never does
    slack: str  # the sub-layer and the token that take most of the margin
    seconds: float  # how long it took, without the table that all words share
    fragile: bool = False  # whether a perturbation hardly larger than the smallest of all words is enough

    @property
    def cells(self) -> dict[str, str]:
        """What a table says of it."""
        return {
            "token": ", ".join(map(str, self.places)),
            "word": self.spelled,
            "certified": at_least(self.certified, 3),
            "attacked": "none found" if self.attacked is None else at_most(self.attacked, 3),
            "linear": "—" if self.linear is None else number(self.linear),
            "fragile": "fragile" if self.fragile else "",
            "loosest stage": self.slack,
            "seconds": number(self.seconds, 2),
        }


@dataclass(frozen=True, kw_only=True)
class CertifiedSentence:
    """What is certified of one sentence, in one metric and at one place."""

    model: str  # the classifier
    text: str  # the sentence
    predicted: str  # the class that wins
    margin: float  # by how much it wins over the next
    metric: str  # how perturbations are measured
    at: str
    layer: int
    table_seconds: float  # how long the table took
    words: tuple[WordRadius, ...]  # what is known of each word

    @property
    def place(self) -> str:
        """Where words move, in words."""
        return "embeddings" if self.at == "embeddings" else f"what enters layer {self.layer}"

    @property
    def norm(self) -> str:
        """The norm, as it is written."""
        return {"sum": "ℓ₁", "total": "ℓ₂", "entries": "ℓ∞"}[self.metric]

    @property
    def sentence(self) -> str:
        """What is proven of all words, and which is the most fragile."""
        said = f"{self.text!r} is classified as {self.predicted!r} by {self.model}"
        # words that move together are another question
        words = [word for word in self.words if len(word.places) == 1] or self.words[-1:]
        least = at_least(min(word.certified for word in words), 3)
        if len(words) == 1:
            said += f": moving {_quoted(words[0])} by less than {least} cannot change that"
        else:
            said += f": moving one word by less than {least} cannot change that, whichever it is"
        found = [word for word in words if word.attacked is not None]
        if not found:
            return f"{said}; nothing that does was found."
        worst = min(found, key=lambda word: word.attacked or 0.0)
        return f"{said}; moving {_quoted(worst)} by {at_most(worst.attacked or 0.0, 3)} does."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render one line for each word."""
        rows = [word.cells for word in self.words]
        yield self.sentence
        yield fitted(rows, list(rows[0]), list(EXPENDABLE), console, options)
        took = f"table in {number(self.table_seconds, 2)} s"
        yield f"Radii in {self.norm} of {self.place}; margin {at_least(self.margin, 3)}; {took}."

    def to_json(self) -> str:
        """Return one JSON object."""
        return to_json(asdict(self) | {"sentence": self.sentence})


def summarise_certificates(records: Iterable[CertificateRecord]) -> list[CertifiedSentence]:
    """Sum up records, one result for each sentence, metric and place."""
    groups = grouped(records, lambda r: (r.ask.model, r.ask.sentence, r.ask.metric, r.ask.at, r.ask.layer))
    results = []
    for (model, text, metric, at, layer), found in groups.items():
        shared = {name: getattr(found[0].answer, name) for name in ("predicted", "margin", "table_seconds")}
        place: dict[str, Any] = {"model": model, "text": text, "metric": metric, "at": at, "layer": layer}
        results.append(CertifiedSentence(**place, **shared, words=_words(found)))
    return results


def _words(records: list[CertificateRecord]) -> tuple[WordRadius, ...]:
    # words that move together are no fragile word
    sizes = [r.answer.attacked for r in records if r.answer.attacked is not None and len(r.ask.word) == 1]
    limit = FRAGILE * min(sizes) if len(sizes) > 1 else 0.0
    found = []
    for answer in (r.answer for r in records):
        same = ("places", "spelled", "certified", "attacked", "linear", "slack")
        shared = {name: getattr(answer, name) for name in same}
        fragile = len(answer.places) == 1 and answer.attacked is not None and answer.attacked <= limit
        found.append(WordRadius(**shared, seconds=answer.word_seconds, fragile=fragile))
    return tuple(sorted(found, key=lambda word: (len(word.places) > 1, word.places)))


def _quoted(word: WordRadius) -> str:
    return f"{word.spelled!r}" if len(word.places) == 1 else f"{word.spelled!r} together"


KINDS = (
    Kind(
        ask=CertificateAsk,
        answer=CertificateAnswer,
        run=run,
        summarise=summarise_certificates,
        command=RunCommand(
            settings=Certifying,
            plan=planned_certificates,
            help="""Certify a classifier at a sentence: how far each word may move before the prediction could change.

            Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

            Example: howsmooth certify reviews --sentence "a gripping film"
            """,
            results="certificates",
            done="certified",
        ),
    ),
)
