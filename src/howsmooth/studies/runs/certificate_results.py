"""What is certified of sentences: every word with what is proven and what is found, and which words are fragile."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.studies.json_values import to_json
from howsmooth.studies.kinds.certificate import CertificateRecord
from howsmooth.studies.runs.result_table import fitted
from howsmooth.wording import at_least, at_most, number

# A word is fragile where so many times the smallest attacked radius of its sentence is enough.
FRAGILE = 1.25
# Columns that leave a narrow terminal, the first ones first.
EXPENDABLE = ("seconds", "linear", "loosest stage")


@dataclass(frozen=True, kw_only=True)
class WordRadius:
    """What is known of one word, or of words that move together.

    Attributes:
        places: Which tokens of the sentence they are.
        spelled: How they are written.
        certified: No perturbation of at most this size changes the prediction.
        attacked: The size of one that does; none if none was found.
        linear: Where the first order alone would use the margin up; none if it never does.
        slack: The sub-layer and the token that take most of the margin.
        seconds: How long it took, without the table that all words share.
        fragile: Whether a perturbation hardly larger than the smallest of all words is enough.
    """

    places: tuple[int, ...]
    spelled: str
    certified: float
    attacked: float | None
    linear: float | None
    slack: str
    seconds: float
    fragile: bool = False

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
    """What is certified of one sentence, in one norm and at one place.

    Attributes:
        model: The classifier.
        text: The sentence.
        predicted: The class that wins.
        margin: By how much it wins over the next.
        p: How perturbations are measured.
        at: Where they are.
        layer: Which layer that is.
        table_seconds: How long the table took.
        words: What is known of each word.
    """

    model: str
    text: str
    predicted: str
    margin: float
    p: str
    at: str
    layer: int
    table_seconds: float
    words: tuple[WordRadius, ...]

    @property
    def place(self) -> str:
        """Where words move, in words."""
        return "embeddings" if self.at == "embeddings" else f"what enters layer {self.layer}"

    @property
    def norm(self) -> str:
        """The norm, as it is written."""
        return {"1": "ℓ₁", "2": "ℓ₂", "inf": "ℓ∞"}[self.p]

    @property
    def sentence(self) -> str:
        """What is proven of all words, and which is the most fragile."""
        said = f"{self.text!r} is told to be {self.predicted!r} by {self.model}"
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
    """Sum up records, one result for each sentence, norm and place."""
    groups: dict[tuple[str, str, str, str, int], list[CertificateRecord]] = {}
    for r in records:
        ask = r.ask
        groups.setdefault((ask.model, ask.sentence, ask.p, ask.at, ask.layer), []).append(r)
    return [
        CertifiedSentence(
            model=model,
            text=text,
            predicted=found[0].answer.predicted,
            margin=found[0].answer.margin,
            p=p,
            at=at,
            layer=layer,
            table_seconds=found[0].answer.table_seconds,
            words=_words(found),
        )
        for (model, text, p, at, layer), found in groups.items()
    ]


def _words(records: list[CertificateRecord]) -> tuple[WordRadius, ...]:
    # words that move together are no fragile word
    sizes = [r.answer.attacked for r in records if r.answer.attacked is not None and len(r.ask.word) == 1]
    limit = FRAGILE * min(sizes) if len(sizes) > 1 else 0.0
    found = [
        WordRadius(
            places=r.answer.places,
            spelled=r.answer.spelled,
            certified=r.answer.certified,
            attacked=r.answer.attacked,
            linear=r.answer.linear,
            slack=r.answer.slack,
            seconds=r.answer.word_seconds,
            fragile=len(r.answer.places) == 1 and r.answer.attacked is not None and r.answer.attacked <= limit,
        )
        for r in records
    ]
    return tuple(sorted(found, key=lambda word: (len(word.places) > 1, word.places)))


def _quoted(word: WordRadius) -> str:
    return f"{word.spelled!r}" if len(word.places) == 1 else f"{word.spelled!r} together"
