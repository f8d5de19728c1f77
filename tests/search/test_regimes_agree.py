"""Every number of an answer about regimes agrees with every row of its table, whatever the head."""

import math
import re
from collections import Counter

import pytest
import torch

import howsmooth as hs
from howsmooth.wording import at_least

HEADS, SCALES = 200, (1e-4, 0.03, 1.0, 30.0)
SHAPES = ("random", "symmetric", "antisymmetric", "no real eigenvalue", "rank one")
FEW, MANY = (3, 4, 12), (36, 3000, 10**6)


def drawn(i, g, *, largest=3):
    """Return a form of one shape and scale, values that are the identity or random, and a radius."""

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    shape, scale = SHAPES[i % len(SHAPES)], SCALES[i // len(SHAPES) % len(SCALES)]
    d = int(torch.randint(1, largest + 1, (1,), generator=g))
    d = d if shape in ("random", "rank one") else max(2, d // 2 * 2)
    A = random(d, 1) @ random(1, d) if shape == "rank one" else random(d, d)
    if shape in ("symmetric", "antisymmetric"):
        A = A + A.mT if shape == "symmetric" else A - A.mT
    if shape == "no real eigenvalue":
        turns = [torch.tensor([[a, -b], [b, a]]).double() for a, b in random(d // 2, 2).tolist()]
        basis = torch.linalg.qr(random(d, d)).Q
        A = basis @ torch.block_diag(*turns) @ basis.mT
    V = torch.eye(d, dtype=torch.float64) if i % 2 else random(d, d)
    return scale / math.sqrt(d) * A, V, 0.5 * 20 ** float(torch.rand(1, generator=g))


def contradictions(found):
    """Yield what a table of regimes and what is said of measures contradict."""
    rows = sorted(found.rows, key=lambda row: row.n)
    for row in rows:
        if sum(row.shape) != row.n or not 0 <= row.found < math.inf:
            yield f"no sequence: {row}"
        if not row.found <= min(row.upper.value, found.upper.value):
            yield f"above what is proven: {row}"
        # every sequence is a measure
        if not row.found <= found.lower.value:
            yield f"measures are said to attain {found.lower.value}: {row}"
        if not row.upper.value <= found.upper.value:
            yield f"a bound above that of measures, {found.upper.value}: {row}"
        # each token k times: the sequences of n tokens are among those of kn
        yield from (f"{row} and {more}" for more in rows if more.n % row.n == 0 and more.found < row.found)
    if not found.lower.value <= found.upper.value:
        yield f"measures: {found.lower} and {found.upper}"


def unsupported(found):
    """Yield what the sentence claims and the rows do not show."""
    rows, said = sorted(found.rows, key=lambda row: row.n), found.sentence
    best = max(row.found for row in rows)
    if claim := re.match(r"From n = ([\d,]+) on the constant grows by at most one percent, proven", said):
        row = next(row for row in rows if f"{row.n:,}" == claim[1])
        if not found.upper.value <= 1.01 * row.found:
            yield f"that it stops is not proven: {said}"
    elif claim := re.match(r"Beyond n = ([\d,]+) no constant found is larger by more than one percent", said):
        row = next(row for row in rows if f"{row.n:,}" == claim[1])
        if not best <= 1.01 * row.found or row is rows[-1] or "is not proven" not in said:
            yield f"it grows: {said}"
    elif len(rows) == 1:
        if not said.startswith(f"At n = {rows[0].n:,} the largest constant found is {at_least(best)}. "):
            yield f"one length: {said}"
    elif claim := re.match(r"At n = ([\d,]+) the largest constant found is (\S+) and still grows\.", said):
        earlier = max(row.found for row in rows[:-1])
        if claim[1] != f"{rows[-1].n:,}" or not rows[-1].found > 1.01 * earlier:
            yield f"it does not grow: {said}"
    else:
        yield f"nothing is said of growth: {said}"
    if f"at least {found.lower.digits}" not in said or f"no measure exceeds {found.upper.digits}" not in said:
        yield f"measures: {said}"


def test_the_answer_agrees_with_its_rows_at_random_heads():
    g, wrong, said = torch.Generator().manual_seed(0), [], Counter()
    for i in range(HEADS):
        A, V, radius = drawn(i, g)
        if i % 10 == 0:
            with pytest.raises(hs.errors.AssumptionError, match="unmasked"):
                hs.regimes(hs.Attention.single_head(A=A, V=V, causal=True), radius, [3])
        # one length is enough to ask what measures attain, two are for growth
        lengths = [FEW[i % 3], MANY[i // 3 % 3]][-1 - i // 20 % 2 :]
        found = hs.regimes(hs.Attention.single_head(A=A, V=V), radius, lengths)
        wrong += [(i, text) for text in (*contradictions(found), *unsupported(found))]
        said[found.sentence.split()[0]] += 1
    assert wrong == []
    assert min(said[word] for word in ("From", "Beyond", "At")) >= 10
