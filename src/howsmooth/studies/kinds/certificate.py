"""How far a word may move before a classifier could change its mind, proven, and how far is too far, found."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from howsmooth.certificates.settings import PLACES, check_place, norm_named
from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.asks import Ask as AnyAsk
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP, described, finite
from howsmooth.studies.records import Record
from howsmooth.studies.settings import ModelReading

if TYPE_CHECKING:
    from howsmooth.certificates.sentence_certifier import SentenceCertifier
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.resources import Resources

Places = tuple[int, ...]


class Ask(AnyAsk, frozen=True, kw_only=True, tag="certificate"):
    """How far some words of a sentence may move.

    Attributes:
        model: A name or folder of a classifier that ``hs.load`` understands.
        sentence: The sentence.
        word: Which of its tokens move, together in one norm; nothing for all words, special tokens left out.
        p: How perturbations are measured: 1, 2 or inf.
        at: Where they are: at the embeddings, or at what enters a layer.
        layer: Which layer that is.
        seed: Where attacks start.
        reading: How the model is read, where its folder does not say.
    """

    model: str
    sentence: str
    word: Annotated[Places, described(plural="words")] = ()
    p: Annotated[str, described(plural="norms")] = "2"
    at: Annotated[str, described(plural="places")] = PLACES[0]
    layer: int = 0
    seed: int = 0
    reading: ModelReading = ModelReading()

    def __post_init__(self) -> None:
        """Refuse what no certificate is about."""
        norm_named(self.p)
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
        return replace(self, word=(), p="2", seed=0)

    @property
    def cell(self) -> Hashable:
        """Every word is done by itself."""
        return self.word, self.p, self.seed

    @property
    def rank(self) -> tuple[Any, ...]:
        """Word by word."""
        return self.word, self.p, self.seed


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """What is proven and what is found.

    Attributes:
        spelled: The words that move.
        places: Which tokens of the sentence they are.
        certified: No perturbation of at most this size changes the prediction.
        attacked: The size of one that does; none if none was found.
        linear: Where the first order alone would use the margin up; none if it never does.
        slack: The sub-layer and the token whose remainder takes most of the margin.
        predicted: The class that wins.
        margin: By how much it wins over the next.
        tokens: How many tokens the sentence has.
        table_seconds: How long the table took that all words of the sentence share.
        word_seconds: How long this word took.
    """

    spelled: str
    places: Places
    certified: Annotated[float, ROUND_DOWN]
    attacked: Annotated[float | None, ROUND_UP] = None
    linear: float | None = None
    slack: str = ""
    predicted: str = ""
    margin: Annotated[float, ROUND_DOWN] = 0.0
    tokens: int = 0
    table_seconds: float = 0.0
    word_seconds: float = 0.0


CertificateRecord = Record[Ask, Answer]


def run(batch: Sequence[Ask], cell: Sequence[Ask], resources: "Resources") -> list[AnyAnswer]:
    """Certify one word after the other."""
    transformer = resources.transformer(cell[0].model, reading=cell[0].reading)
    return [_certified(ask, transformer, resources) for ask in cell]


def _certified(ask: Ask, transformer: "Transformer", resources: "Resources") -> Answer:
    from howsmooth.certificates.sentences import class_head, ordinary_positions, tokenizer_of
    from howsmooth.studies.resources import seeded

    certifier, numbers = resources.latest(_certifier, transformer, ask.sentence, ask.at, ask.layer)
    places = ask.word or tuple(ordinary_positions(transformer, numbers))
    radius = certifier.radius(places, p=norm_named(ask.p), generator=seeded([ask]))
    words = tokenizer_of(transformer).pieces(numbers)
    left = len(transformer.layers) - ask.layer
    return Answer(
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
