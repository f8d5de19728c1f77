"""Whether any combination of replacements for the words of a sentence could change a prediction."""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.certificates.choices import Hull
from howsmooth.certificates.entrance import SAFETY
from howsmooth.certificates.reading import class_head, classified, label_number, read_sentence
from howsmooth.certificates.scene import Scene
from howsmooth.errors import AssumptionError
from howsmooth.models.load import load
from howsmooth.models.parts.embedding import lexicon
from howsmooth.models.transformer import Transformer
from howsmooth.tokens.replacements import Words, replacements

# How many combinations are run, at most, and how many at once.
BUDGET, TOGETHER = 4096, 256
# How finely the share of the way is looked for.
STEPS = 12
# One token for each word that may be replaced: 0 for the word itself, s for its s-th replacement.
Combination = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Synonyms:
    """What is known of all combinations of replacements in one sentence.

    Attributes:
        tokens: The sentence.
        places: Where words may be replaced.
        choices: By which tokens, for each of these places.
        combinations: How many there are, the sentence itself among them.
        proven: How many are covered by the certificate, without running them.
        tried: How many others were run.
        unchanged: How many of those keep the prediction.
        share: How far towards all replacements at once the certificate reaches: 1 proves every combination.
        changed: A combination, as tokens, that changes the prediction; none if none was found.
        predicted: The class that wins.
        labels: What the classes are called.
        seconds: How long all of it took.
    """

    tokens: tuple[int, ...]
    places: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    combinations: int
    proven: int
    tried: int
    unchanged: int
    share: float
    changed: tuple[int, ...] | None
    predicted: int
    labels: tuple[str, ...]
    seconds: float

    @property
    def covered(self) -> int:
        """How many combinations are known not to change the prediction."""
        return self.proven + self.unchanged

    @property
    def certified(self) -> bool:
        """Whether none of them does."""
        return self.covered == self.combinations


def certify_synonyms(
    classifier: Transformer | nn.Module | str,
    tokens: Int[Tensor, " n"] | str,
    candidates: Words,
    *,
    label: int | str | None = None,
    budget: int = BUDGET,
) -> Synonyms:
    """Prove that no combination of replacements changes the prediction, count those that cannot, find one that does.

    Every word moves in the hull of its replacements' embeddings, all words at once, so that one proof covers every
    combination. Where it does not reach so far, all combinations are run if there are few; else the largest part of
    them that is proven is looked for, nearest replacements first, and some others are run.

    Args:
        classifier: A model with a classification head, or its name.
        tokens: The numbers of the tokens of one sentence, or the sentence.
        candidates: What may come in: for each word a list of its own, or one list for every place; as words or as
            numbers of tokens. Words that are not one token are passed over.
        label: The class that should win; whichever does by default.
        budget: How many combinations may be run.

    Raises:
        AssumptionError: If the model has no classifier, another class than the label wins, or nothing may be replaced.
    """
    began = time.perf_counter()
    if budget < 1:
        raise AssumptionError(f"budget must be at least 1, got {budget}.", field="budget")
    model = classifier if isinstance(classifier, Transformer) else load(classifier)
    head, number = class_head(model), None if label is None else label_number(model, label)
    numbers = torch.tensor(read_sentence(model, tokens)) if isinstance(tokens, str) else tokens
    f, X = classified(model, numbers)
    allowed = replacements(model, numbers, candidates=candidates).allowed
    choices = {i: tuple(row.nonzero()[:, 0].tolist()) for i, row in enumerate(allowed) if bool(row.any())}
    scene = Scene(f, X, label=number)
    words = lexicon(model, len(numbers)).words.to("cpu", torch.float64)
    moves = {i: words[list(others)] - words[numbers[i]] for i, others in choices.items()}
    found = _Search(scene, moves, budget)
    found.run()
    changed = None
    if found.changed is not None:
        new = dict(zip(choices, found.changed, strict=True))
        changed = tuple(token if not new.get(i) else choices[i][new[i] - 1] for i, token in enumerate(numbers.tolist()))
    return Synonyms(
        tokens=tuple(numbers.tolist()),
        places=tuple(choices),
        choices=tuple(choices.values()),
        combinations=found.combinations,
        proven=found.proven,
        tried=found.tried,
        unchanged=found.unchanged,
        share=found.share,
        changed=changed,
        predicted=scene.predicted,
        labels=head.labels,
        seconds=time.perf_counter() - began,
    )


class _Search:
    """All combinations of moves at one scene: proven, run, or not known."""

    def __init__(self, scene: Scene, moves: Mapping[int, Float[Tensor, "s d"]], budget: int) -> None:
        self._scene, self._moves, self._budget = scene, moves, budget
        self.combinations = math.prod(1 + len(each) for each in moves.values())
        self.proven = self.tried = self.unchanged = 0
        self.share = 0.0
        self.changed: Combination | None = None

    def run(self) -> None:
        """Prove all at once; or run all; or prove a part, and run some."""
        every = {i: list(range(len(each))) for i, each in self._moves.items()}
        self.share = self._reach(every)
        if self.share == 1.0:
            self.proven = self.combinations
            return
        if self.combinations <= self._budget:
            self._run(itertools.product(*(range(1 + len(each)) for each in self._moves.values())), set())
            return
        kept = self._largest(every)
        self.proven = math.prod(1 + len(some) for some in kept.values())
        self._descend([{0, *(s + 1 for s in some)} for some in kept.values()])

    def margin(self, kept: Mapping[int, Sequence[int]], share: float) -> float:
        """Bound the smallest margin from below while words move a share of the way, wherever between their choices."""
        scene = self._scene
        columns, counts = self._columns(kept)
        if not counts:
            return float(scene.rivals.margins.min())
        rivals, table = scene.rivals, scene.table
        with torch.no_grad():
            hull = Hull(table, columns, counts)
            lost = share * hull.losses(rivals.functionals) + hull.remainders(share) @ table.arriving_at(
                rivals.functionals
            )
            return float((rivals.margins - SAFETY * lost).min())

    def _columns(self, kept: Mapping[int, Sequence[int]]) -> tuple[Float[Tensor, "r n d"], tuple[int, ...]]:
        """Return one column for each move, and how many each word has."""
        X = self._scene.embeddings
        kept = {i: some for i, some in kept.items() if some}
        found = X.new_zeros(sum(map(len, kept.values())), *X.shape)
        place = 0
        for i, some in kept.items():
            found[place : place + len(some), i] = self._moves[i][list(some)]
            place += len(some)
        return found, tuple(map(len, kept.values()))

    def _reach(self, kept: Mapping[int, Sequence[int]]) -> float:
        """Return the largest share of the way that is proven; what is not a number proves nothing."""
        if self.margin(kept, 1.0) > 0:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(STEPS):
            # shares may be small: orders of magnitude first
            middle = (low + high) / 2 if low > 0 else high / 4
            low, high = (middle, high) if self.margin(kept, middle) > 0 else (low, middle)
        return low

    def _largest(self, every: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Return the nearest replacements, as many as can be proven at once."""
        lengths = {i: self._moves[i].norm(dim=-1).tolist() for i in every}
        order = sorted(((lengths[i][s], i, s) for i, some in every.items() for s in some))

        def nearest(count: int) -> dict[int, list[int]]:
            kept: dict[int, list[int]] = {i: [] for i in every}
            for _length, i, s in order[:count]:
                kept[i].append(s)
            return kept

        low, high = 0, len(order)  # none is proven as it stands, all are not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.margin(nearest(middle), 1.0) > 0 else (low, middle)
        return nearest(low)

    def _descend(self, known: Sequence[set[int]]) -> None:
        """Replace the word that lowers the margin most, again and again, as long as the budget lasts."""
        here: Combination = (0,) * len(self._moves)
        seen: set[Combination] = set()
        while self.changed is None:
            # every way to change one more word
            near = [
                (*here[:k], s, *here[k + 1 :])
                for k, each in enumerate(self._moves.values())
                if not here[k]
                for s in range(1, 1 + len(each))
            ]
            near = near[: self._budget - len(seen)]
            if not near:
                return
            seen |= set(near)
            margins = self._run(near, {c for c in near if all(s in some for s, some in zip(c, known, strict=True))})
            here = near[int(margins.argmin())]

    def _run(self, combinations: Iterable[Combination], proven: set[Combination]) -> Float[Tensor, " combinations"]:
        """Run combinations, count those that are not proven, and return their margins."""
        X, functionals = self._scene.embeddings, self._scene.rivals.functionals
        steps = [torch.cat((each.new_zeros(1, each.shape[-1]), each)) for each in self._moves.values()]
        found: list[Tensor] = []
        every = iter(combinations)
        while part := tuple(itertools.islice(every, TOGETHER)):
            Z = X.repeat(len(part), 1, 1)
            for k, i in enumerate(self._moves):
                Z[:, i] += steps[k][[c[k] for c in part]]
            margins = (self._scene.classifier(Z)[:, 0] @ functionals.mT).amin(-1)
            keeps = (margins > 0).tolist()
            self.tried += sum(c not in proven for c in part)
            self.unchanged += sum(kept and c not in proven for c, kept in zip(part, keeps, strict=True))
            if self.changed is None and not all(keeps):
                self.changed = part[keeps.index(False)]
            found.append(margins)
        return torch.cat(found)
