"""A small classifier trained for a given time by one method: how right it is, how rough, and what adversaries get."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Annotated

from howsmooth.errors import AssumptionError, FileError, nearest
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.asks import Ask as AnyAsk
from howsmooth.studies.asks import one_by_one
from howsmooth.studies.json_values import NOT_IN_KEY, ROUND_DOWN, finite

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources

METHODS = ("plain", "penalty", "Frobenius", "spectral normalisation", "weight decay", "diverging")


class Ask(AnyAsk, frozen=True, kw_only=True, tag="training"):
    """What comes of training.

    Attributes:
        reviews: Where the sentences are.
        digest: Which sentences they are.
        method: What keeps the network smooth; ``diverging`` watches a learning rate that grows.
        strength: How strongly: the factor of a penalty, the decay, or the learning rate that a growing one ends at.
        time_limit: How long it is trained, in seconds of the processor.
        updates: How many steps a diverging training takes.
        seed: Of weights and batches.
        sentences: At how many held-out sentences it is measured and attacked.
        swaps: How many swaps of a word are tried at each.
    """

    reviews: Annotated[str, NOT_IN_KEY] = ""
    digest: str
    method: str = "plain"
    strength: float = 0.0
    time_limit: float = 10.0
    updates: int = 400
    seed: int = 0
    sentences: int = 32
    swaps: int = 100

    def __post_init__(self) -> None:
        """Refuse a method that is none."""
        if self.method not in METHODS:
            raise AssumptionError(f"there is no method {self.method!r}{nearest(self.method, METHODS)}", field="method")

    @property
    def label(self) -> str:
        """The method and its strength."""
        return f"{self.method} {self.strength:g}" if self.strength else self.method

    @property
    def cost(self) -> float:
        """The time that it is given, in the unit of other kinds."""
        return 1e5 * self.time_limit

    @property
    def alone(self) -> bool:
        """Beside others it would be given their time."""
        return True

    @property
    def cell(self) -> Hashable:
        """Each by itself."""
        return self.method, self.strength, self.seed


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        accuracy: The share of held-out sentences that is told right.
        network: The constant from what enters the first block to the scores.
        attention: That of the attention layers.
        attained: How far ``pgd`` moves the scores, for each unit of eps.
        flipped: The share of right answers that ``pgd`` turns over.
        swapped: The share that a swap of one word turns over.
        steps: How many training steps there was time for.
        alarm_step: Where the monitor's first alarm was, in a training that diverges.
        alarms: How many alarms there were.
        loss_step: Where its loss shows it.
        trace: Its steps with the loss and the constants of its layers; none where there was no number.
    """

    accuracy: float | None = None
    network: float | None = None
    attention: float | None = None
    attained: Annotated[float | None, ROUND_DOWN] = None
    flipped: float | None = None
    swapped: float | None = None
    steps: int = 0
    alarm_step: int | None = None
    alarms: int = 0
    loss_step: int | None = None
    trace: tuple[tuple[float | None, ...], ...] = ()


def _trained(ask: Ask, resources: "Resources") -> Answer:
    from howsmooth.studies.resources import seeded
    from howsmooth.studies.sentiment.evaluation import evaluate
    from howsmooth.studies.sentiment.learning import diverge, network, task_of, train
    from howsmooth.studies.sentiment.reviews import find_reviews, read_reviews

    reviews = read_reviews(str(find_reviews(ask.reviews)))
    if reviews.digest != ask.digest:
        raise FileError(f"the reviews in {ask.reviews!r} are not those that were planned with; run the command again.")
    task = resources.once(task_of, reviews, ask.seed)
    model = network(task.words, ask.seed)
    if ask.method == "diverging":
        found = diverge(model, task, last_rate=ask.strength, steps=ask.updates, every=5)
        trace = tuple(tuple(finite(x) for x in row) for row in found.trace)
        return Answer(
            steps=len(trace) * 5,
            alarm_step=found.alarm_step,
            alarms=found.alarms,
            loss_step=found.loss_step,
            trace=trace,
        )
    steps = train(model, task, method=ask.method, strength=ask.strength, seconds=ask.time_limit)
    verdict = evaluate(model, task, sentences=ask.sentences, swaps=ask.swaps, generator=seeded([ask]))
    return Answer(steps=steps, **vars(verdict))


run = one_by_one(_trained)
