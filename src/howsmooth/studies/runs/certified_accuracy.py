"""Certified accuracy: what is proven and found of every word and sentence, and of a whole test set."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.markup import frame, paragraph, table
from howsmooth.studies.json_values import to_json
from howsmooth.studies.records import grouped
from howsmooth.studies.runs.result_table import fitted
from howsmooth.wording import at_least, at_most, count, number

if TYPE_CHECKING:
    from howsmooth.studies.kinds.certified_radii import CertificateRecord

# A word is fragile where so many times the smallest attacked radius of its sentence is enough.
FRAGILE = 1.25
# What the columns of words mean, where they are shown.
MEANINGS = {
    "certified": "Certified: proven, no shorter move of this word alone changes the class.",
    "attacked": "Attacked: a move as long as this does.",
    "nearest": "Nearest: how far the embedding of the nearest other word is.",
    "norm": "Norm: the size of what moves, before it moves.",
    "linear": "Linear: how far the first order alone would let it move, neither proven nor found.",
    "fragile": "Fragile: what attacks change most easily.",
    "loosest stage": "Loosest stage: what takes most of the margin in the proof, and at which token.",
}
# What the shares of a test set are, and where the answer takes ε.
ACCURACIES = (
    "Certified: of so many sentences it is proven that no word moved by at most ε changes the class. Under attack: so "
    "many keep it in every attack that was tried; the truth lies between. The answer takes the largest of these ε at "
    "which half of what is classified well, or more, is certified; the smallest if there is none."
)
# Columns that leave a narrow terminal, the first ones first.
EXPENDABLE = ("seconds", "linear", "loosest stage", "norm", "sentence")
# So many sentences are shown word by word, and so many of the most fragile words of a test set.
FEW = 3
MOST_FRAGILE = 5


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
    norm: float | None = None  # the size of what moves
    nearest: float | None = None  # how far the embedding of the nearest other word is
    nearest_word: str = ""  # which word that is
    fragile: bool = False  # whether a perturbation hardly larger than the smallest of all words is enough

    @property
    def cells(self) -> dict[str, str]:
        """What a table says of it."""
        return {
            "token": ", ".join(map(str, self.places)),
            "word": self.spelled,
            "certified": at_least(self.certified, 3),
            "attacked": "none found" if self.attacked is None else at_most(self.attacked, 3),
            "nearest": "—" if self.nearest is None else f"{number(self.nearest)} {self.nearest_word}",
            "norm": "—" if self.norm is None else number(self.norm),
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
    words: tuple[WordRadius, ...]  # what is known of each word; none of a sentence that is misclassified
    expected: str = ""  # the class that it should be of, if that is known

    @property
    def right(self) -> bool:
        """Whether it is classified as it is labelled, if it is."""
        return self.expected in ("", self.predicted)

    @property
    def alone(self) -> tuple[WordRadius, ...]:
        """The words that move by themselves; words that move together are another question."""
        return tuple(word for word in self.words if len(word.places) == 1) or self.words[-1:]

    @property
    def certified(self) -> float:
        """No word that moves by at most this changes the prediction; zero if it is wrong already."""
        return min((word.certified for word in self.alone), default=0.0)

    @property
    def attacked(self) -> float | None:
        """How far a word moves that changes the prediction; none if none was found."""
        return min((word.attacked for word in self.alone if word.attacked is not None), default=None)

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
        if not self.right:
            return f"{said}, not {self.expected!r}: misclassified, so not certified."
        words, least = self.alone, at_least(self.certified, 3)
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
        if not rows:
            return
        shown = fitted(rows, list(rows[0]), list(EXPENDABLE), console, options)
        yield shown
        yield " ".join(MEANINGS[name] for name in [str(column.header) for column in shown.columns] if name in MEANINGS)
        yield f"Radii in {self.norm} of {self.place}; margin {at_least(self.margin, 3)}."

    def to_json(self) -> str:
        """Return one JSON object."""
        return to_json(asdict(self) | {"sentence": self.sentence})


def summarise_certificates(records: "Iterable[CertificateRecord]") -> list[CertifiedSentence]:
    """Sum up records, one result for each sentence, metric and place."""
    names = ("model", "sentence", "metric", "at", "layer", "expected")
    groups = grouped(records, lambda r: tuple(getattr(r.ask, name) for name in names))
    results = []
    for (model, text, metric, at, layer, expected), found in groups.items():
        shared = {name: getattr(found[0].answer, name) for name in ("predicted", "margin", "table_seconds")}
        place: dict[str, Any] = {"model": model, "text": text, "metric": metric, "at": at, "layer": layer}
        words = _words([r for r in found if r.answer.places])
        results.append(CertifiedSentence(**place, **shared, words=words, expected=expected))
    return results


def _words(records: "list[CertificateRecord]") -> tuple[WordRadius, ...]:
    # words that move together are no fragile word
    sizes = [r.answer.attacked for r in records if r.answer.attacked is not None and len(r.ask.word) == 1]
    limit = FRAGILE * min(sizes) if len(sizes) > 1 else 0.0
    found = []
    for answer in (r.answer for r in records):
        same = ("places", "spelled", "certified", "attacked", "linear", "slack", "norm", "nearest", "nearest_word")
        shared = {name: getattr(answer, name) for name in same}
        fragile = len(answer.places) == 1 and answer.attacked is not None and answer.attacked <= limit
        found.append(WordRadius(**shared, seconds=answer.word_seconds, fragile=fragile))
    return tuple(sorted(found, key=lambda word: (len(word.places) > 1, word.places)))


def _quoted(word: WordRadius) -> str:
    return f"{word.spelled!r}" if len(word.places) == 1 else f"{word.spelled!r} together"


@dataclass(frozen=True, kw_only=True)
class AccuracyAt:
    """How many sentences of a test set keep their class while a word moves."""

    eps: float  # how far it moves
    certified: int  # of how many sentences this is proven
    attacked: int  # in how many no attack found a word that changes it, moved as far: an upper end


@dataclass(frozen=True, kw_only=True)
class CertifiedAccuracy:
    """What is certified of a test set, in one metric and at one place.

    Attributes:
        sentences: What is certified of each sentence, in the order in which they were asked for.
    """

    sentences: tuple[CertifiedSentence, ...]

    @property
    def labelled(self) -> bool:
        """Whether the sentences have labels; those that have none count as they are classified."""
        return any(each.expected for each in self.sentences)

    @property
    def clean(self) -> int:
        """How many sentences are classified as they are labelled."""
        return sum(each.right for each in self.sentences)

    def at(self, eps: float) -> AccuracyAt:
        """Count the sentences that keep their class while one word moves by at most ``eps``."""
        right = [each for each in self.sentences if each.right]
        return AccuracyAt(
            eps=eps,
            certified=sum(each.certified >= eps for each in right),
            attacked=sum(each.attacked is None or each.attacked > eps for each in right),
        )

    @property
    def curve(self) -> list[AccuracyAt]:
        """Counts at radii 1, 2, 5, 10, …, from where all is proven to where nothing that was found is left."""
        right = [each for each in self.sentences if each.right]
        sizes = [size for each in right for size in (each.certified, each.attacked) if size]
        if not sizes:
            return []
        steps = [float(f"{digit}e{power}") for power in range(-300, 300) for digit in (1, 2, 5)]
        low = max(step for step in steps if step <= min(sizes))
        return [self.at(step) for step in steps if low <= step < 2.5 * max(sizes)]

    @property
    def headline(self) -> AccuracyAt | None:
        """The largest radius of the curve at which half of what is classified well is certified, or the smallest."""
        curve = self.curve
        half = [at for at in curve if 2 * at.certified >= self.clean]
        return half[-1] if half else curve[0] if curve else None

    @property
    def fragile(self) -> list[tuple[CertifiedSentence, WordRadius]]:
        """The words that move least where an attack changes the prediction, with their sentences."""
        found = [(each, word) for each in self.sentences for word in each.alone if word.attacked is not None]
        return sorted(found, key=lambda pair: pair[1].attacked or 0.0)[:MOST_FRAGILE]

    @property
    def sentence(self) -> str:
        """Clean, certified and attacked accuracy."""
        first, at, total = self.sentences[0], self.headline, len(self.sentences)
        said = []
        if at is not None:
            shares = f"certified {self._share(at.certified)} and under attack {self._share(at.attacked)}"
            said.append(f"{shares} at ε = {number(at.eps)}")
        elif self.clean:
            said.append("nothing is certified and no attack succeeds")
        if self.labelled:
            said.insert(0, f"clean accuracy {self._share(self.clean)}")
        moving = "words that move together" if all(len(word.places) > 1 for word in self._words) else "one word moves"
        where = f"{first.model} on {count(total, 'sentence')}, {moving}, {first.norm} of {first.place}"
        wrong = f"; {total - self.clean} misclassified and not certified" if self.clean < total else ""
        answer = f"{', '.join(said)}: {where}{wrong}."
        return answer[0].upper() + answer[1:]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The curve, as a table says it."""
        return [
            {
                "ε": number(at.eps),
                "certified": f"{self._share(at.certified)} ({at.certified})",
                "under attack": f"{self._share(at.attacked)} ({at.attacked})",
            }
            for at in self.curve
        ]

    @property
    def fragile_rows(self) -> list[dict[str, str]]:
        """The most fragile words, as a table says them."""
        names = ("word", "certified", "attacked", "nearest", "norm")
        return [{name: word.cells[name] for name in names} | {"sentence": each.text} for each, word in self.fragile]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render the answer, the curve, the most fragile words, and a few sentences word by word."""
        yield self.sentence
        for rows, legend in ((self.rows, ACCURACIES), (self.fragile_rows, "")):
            if rows:
                yield fitted(rows, list(rows[0]), list(EXPENDABLE), console, options)
                yield from [legend] if legend else []
        seconds = sum(each.table_seconds + sum(word.seconds for word in each.words) for each in self.sentences)
        yield f"{count(len(self._words), 'radius', 'radii')} in {number(seconds)} s."
        if len(self.sentences) <= FEW:
            yield from self.sentences

    def _repr_html_(self) -> str:
        return paragraph(self.sentence) + "".join(
            table(list(rows[0]), [tuple(row.values()) for row in rows]) + (paragraph(legend) if legend else "")
            for rows, legend in ((self.rows, ACCURACIES), (self.fragile_rows, ""))
            if rows
        )

    def to_json(self) -> str:
        """Return one JSON object."""
        summary = {"sentence": self.sentence, "total": len(self.sentences), "clean": self.clean}
        return to_json(summary | {"curve": [asdict(at) for at in self.curve]} | asdict(self))

    def to_frame(self) -> Any:
        """Return one row for every sentence as a DataFrame of pandas."""
        names = ("text", "expected", "predicted", "margin", "certified", "attacked")
        return frame([{name: getattr(each, name) for name in names} for each in self.sentences])

    @property
    def _words(self) -> list[WordRadius]:
        return [word for each in self.sentences for word in each.alone]

    def _share(self, many: int) -> str:
        return f"{100 * many / len(self.sentences):.1f} %"


def certified_sets(sentences: Iterable[CertifiedSentence]) -> list[CertifiedAccuracy]:
    """Return test sets: sentences of one model, metric and place."""
    groups = grouped(sentences, lambda each: (each.model, each.metric, each.at, each.layer))
    return [CertifiedAccuracy(sentences=tuple(some)) for some in groups.values()]


def summarise(records: "Iterable[CertificateRecord]") -> Sequence[CertifiedAccuracy | CertifiedSentence]:
    """Sum up records: a result for each test set, and a sentence for itself where it is the only one."""
    sets = certified_sets(summarise_certificates(records))
    return [found if len(found.sentences) > 1 else found.sentences[0] for found in sets]
