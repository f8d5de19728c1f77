r"""Whether any combination of replacements for the words of a sentence could change a prediction.

Theorem 11 holds for any set of perturbations whose images can be bounded. Here it is a sum of hulls: word i moves to
:math:`x_i+\delta_i`, with :math:`\delta_i` anywhere in the hull of zero and of the differences :math:`d_{is}` to its
replacements. A convex function is largest at a corner of each hull, so that one proof covers all combinations.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.certificates.image_norms import UnitBall
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.sentence_certifier import SentenceCertifier
from howsmooth.certificates.sentences import class_head, classifier_at, label_number
from howsmooth.certificates.word_perturbation import WordPerturbation
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.model_inputs import read_sentence
from howsmooth.models.load import load
from howsmooth.models.parts.ends import lexicon
from howsmooth.models.transformer import Transformer
from howsmooth.rounding import CHAIN_FACTOR
from howsmooth.tokens.replacements import Words, replacements

# How many combinations are run, at most, and how many at once.
BUDGET, BATCH = 4096, 256
# Steps of the bisection of the share that is proven.
STEPS = 12
# One number for each word that may be replaced: 0 for the word itself, s for its s-th replacement.
Combination = tuple[int, ...]


@dataclass(frozen=True)
class ReplacementHull(UnitBall):
    r"""All sums of one point from each word's hull, as coefficients of the columns :math:`d_{is}`.

    A scalar :math:`|f\cdot e|` is at most :math:`\sum_i\max_s|f\cdot d_{is}|`, and a vector :math:`|Me|_2` at most
    :math:`\sum_i\max_s|Md_{is}|_2`. Every ball or box that holds all :math:`d_{is}` holds the hull, which is smaller.

    Attributes:
        counts: How many columns each word has, in their order.
    """

    counts: tuple[int, ...] = ()

    def scalar_norms(self, columns: Float[Tensor, "groups r *more"]) -> Float[Tensor, "groups *more"]:
        """Bound scalars: the largest of each word, added up."""
        return self._sum_of_maxima(columns.abs())

    def vector_norms(self, columns: Float[Tensor, "groups r *more m"]) -> Float[Tensor, "groups *more"]:
        """Bound lengths of vectors likewise."""
        return self._sum_of_maxima(columns.norm(dim=-1))

    def _sum_of_maxima(self, norms: Float[Tensor, "groups r *more"]) -> Float[Tensor, "groups *more"]:
        words = norms.split(list(self.counts), dim=1)
        return sum((word.amax(1) for word in words[1:]), words[0].amax(1))


class ReplacementPerturbation(WordPerturbation):
    """Replacements of some words, propagated to the end by first order; second orders are part of remainders.

    Args:
        table: The network.
        columns: The difference to every replacement, at the position of its word.
        counts: How many columns each word has, in their order.
    """

    def __init__(self, table: RemainderTable, columns: Float[Tensor, "r n d"], counts: tuple[int, ...]) -> None:
        self._differences = columns
        super().__init__(table, torch.zeros(0, dtype=torch.long), ReplacementHull(counts=counts), second_order=False)

    def losses(self, functionals: Float[Tensor, "f out"]) -> Float[Tensor, " f"]:
        """Bound how much functionals of the output lose by first order; a replacement that adds costs nothing."""
        # Only the sign that lowers a margin counts: by first order a hull is not symmetric.
        slopes = -(self._output.flatten(2) @ functionals.mT)
        return self._ball.scalar_norms(slopes.clamp_min(0))[0]

    def _entering(self) -> tuple[int, Tensor, None]:
        return -1, self._differences[None], None


@dataclass(frozen=True, kw_only=True, eq=False)
class Synonyms:
    """What is known of all combinations of replacements in one sentence.

    Attributes:
        tokens: The sentence.
        places: The positions of words that may be replaced.
        choices: Their replacements, for each of these positions.
        combinations: How many there are, the sentence itself among them.
        proven: How many the certificate covers, without running them.
        tried: How many others were run.
        unchanged: How many of those keep the prediction.
        share: The share of the way to all replacements at once that is proven: 1 proves every combination.
        changed: A combination, as tokens, that changes the prediction; none if none was found.
        predicted: The predicted class.
        labels: The names of the classes.
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
    combination. If this proof fails, all combinations are run, if there are few. Otherwise the largest set of nearest
    replacements that can be proven is counted, and some other combinations are run.

    Args:
        classifier: A model with a classification head, or its name.
        tokens: The ids of the tokens of one sentence, or the sentence.
        candidates: The replacements: a list for each word, or one list for every position; as words or as ids of
            tokens. Words that are not one token are skipped.
        label: The expected class; whichever is predicted by default.
        budget: How many combinations may be run.

    Raises:
        AssumptionError: If the model has no classifier, predicts another class than the label, or nothing may be
            replaced.
    """
    began = time.perf_counter()
    if budget < 1:
        raise AssumptionError(f"budget must be at least 1, got {budget}.", field="budget")
    model = classifier if isinstance(classifier, Transformer) else load(classifier)
    head, number = class_head(model), None if label is None else label_number(model, label)
    ids = torch.tensor(read_sentence(model, tokens)) if isinstance(tokens, str) else tokens
    f, X = classifier_at(model, ids)
    allowed = replacements(model, ids, candidates=candidates).allowed
    choices = {i: tuple(row.nonzero()[:, 0].tolist()) for i, row in enumerate(allowed) if bool(row.any())}
    certifier = SentenceCertifier(f, X, label=number)
    words = lexicon(model, len(ids)).words.to("cpu", torch.float64)
    differences = {i: words[list(others)] - words[ids[i]] for i, others in choices.items()}
    found = CombinationSearch(certifier, differences, budget)
    found.run()
    changed = None
    if found.changed is not None:
        new = dict(zip(choices, found.changed, strict=True))
        changed = tuple(token if not new.get(i) else choices[i][new[i] - 1] for i, token in enumerate(ids.tolist()))
    return Synonyms(
        tokens=tuple(ids.tolist()),
        places=tuple(choices),
        choices=tuple(choices.values()),
        combinations=found.combinations,
        proven=found.proven,
        tried=found.tried,
        unchanged=found.unchanged,
        share=found.share,
        changed=changed,
        predicted=certifier.predicted,
        labels=head.labels,
        seconds=time.perf_counter() - began,
    )


class CombinationSearch:
    """All combinations of replacements in one sentence: proven, run, or not known."""

    def __init__(
        self, certifier: SentenceCertifier, differences: Mapping[int, Float[Tensor, "s d"]], budget: int
    ) -> None:
        self._certifier, self._differences, self._budget = certifier, differences, budget
        self.combinations = math.prod(1 + len(each) for each in differences.values())
        self.proven = self.tried = self.unchanged = 0
        self.share = 0.0
        self.changed: Combination | None = None

    def run(self) -> None:
        """Prove all at once; or run all; or prove a part, and run some."""
        every = {i: list(range(len(each))) for i, each in self._differences.items()}
        # Running is exact: where all combinations can be run, no part of them needs a proof.
        self.share = self._proven_share(every)
        if self.share == 1.0:
            self.proven = self.combinations
            return
        if self.combinations <= self._budget:
            self._run(itertools.product(*(range(1 + len(each)) for each in self._differences.values())), set())
            return
        kept = self._largest_proven(every)
        self.proven = math.prod(1 + len(some) for some in kept.values())
        self._descend([{0, *(s + 1 for s in some)} for some in kept.values()])

    def margin(self, kept: Mapping[int, Sequence[int]], share: float) -> float:
        """Bound the smallest margin from below while words move this share of the way, anywhere in their hulls."""
        rivals = self._certifier.rivals
        columns, counts = self._columns(kept)
        if not counts:
            return float(rivals.margins.min())
        table, functionals = self._certifier.table, rivals.functionals
        with torch.no_grad():
            word = ReplacementPerturbation(table, columns, counts)
            lost = share * word.losses(functionals) + word.remainders(share) @ table.transfer_to(functionals)
            return float((rivals.margins - CHAIN_FACTOR * lost).min())

    def _columns(self, kept: Mapping[int, Sequence[int]]) -> tuple[Float[Tensor, "r n d"], tuple[int, ...]]:
        """Return one column for each replacement, and how many each word has."""
        X = self._certifier.embeddings
        kept = {i: some for i, some in kept.items() if some}
        found = X.new_zeros(sum(map(len, kept.values())), *X.shape)
        place = 0
        for i, some in kept.items():
            found[place : place + len(some), i] = self._differences[i][list(some)]
            place += len(some)
        return found, tuple(map(len, kept.values()))

    def _proven_share(self, kept: Mapping[int, Sequence[int]]) -> float:
        """Return the largest share of the way that is proven; what is not a number proves nothing."""
        if self.margin(kept, 1.0) > 0:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(STEPS):
            # Shares may be small: orders of magnitude come first.
            middle = (low + high) / 2 if low > 0 else high / 4
            low, high = (middle, high) if self.margin(kept, middle) > 0 else (low, middle)
        return low

    def _largest_proven(self, every: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Return the nearest replacements, as many as can be proven at once."""
        # The proof covers hulls, so that far replacements are left out first.
        lengths = {i: self._differences[i].norm(dim=-1).tolist() for i in every}
        order = sorted(((lengths[i][s], i, s) for i, some in every.items() for s in some))

        def nearest(count: int) -> dict[int, list[int]]:
            kept: dict[int, list[int]] = {i: [] for i in every}
            for _length, i, s in order[:count]:
                kept[i].append(s)
            return kept

        low, high = 0, len(order)  # the sentence itself is proven, all replacements are not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.margin(nearest(middle), 1.0) > 0 else (low, middle)
        return nearest(low)

    def _descend(self, known: Sequence[set[int]]) -> None:
        """Replace the word that lowers the margin most, again and again, as long as the budget lasts."""
        here: Combination = (0,) * len(self._differences)
        seen: set[Combination] = set()
        while self.changed is None:
            # All combinations that replace one more word.
            near = [
                (*here[:k], s, *here[k + 1 :])
                for k, each in enumerate(self._differences.values())
                if not here[k]
                for s in range(1, 1 + len(each))
            ]
            near = near[: self._budget - len(seen)]
            if not near:
                return
            # Combinations that are proven are run too, for their margins, but count once.
            seen |= set(near)
            margins = self._run(near, {c for c in near if all(s in some for s, some in zip(c, known, strict=True))})
            here = near[int(margins.argmin())]

    def _run(self, combinations: Iterable[Combination], proven: set[Combination]) -> Float[Tensor, " combinations"]:
        """Run combinations, count those that are not proven, and return their margins."""
        X, functionals = self._certifier.embeddings, self._certifier.rivals.functionals
        steps = [torch.cat((each.new_zeros(1, each.shape[-1]), each)) for each in self._differences.values()]
        found: list[Tensor] = []
        every = iter(combinations)
        while part := tuple(itertools.islice(every, BATCH)):
            Z = X.repeat(len(part), 1, 1)
            for k, i in enumerate(self._differences):
                Z[:, i] += steps[k][[c[k] for c in part]]
            margins = (self._certifier.classifier(Z)[:, 0] @ functionals.mT).amin(-1)
            keeps = (margins > 0).tolist()
            self.tried += sum(c not in proven for c in part)
            self.unchanged += sum(kept and c not in proven for c, kept in zip(part, keeps, strict=True))
            if self.changed is None and not all(keeps):
                self.changed = part[keeps.index(False)]
            found.append(margins)
        return torch.cat(found)
