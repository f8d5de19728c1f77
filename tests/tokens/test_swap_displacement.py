"""A row and a column of the scores are enough: enumeration against applying the map to every changed sequence."""

import pytest
import torch
from tokens.tiny import tiny
from torch.testing import assert_close

from howsmooth.models.parts.ends import entrance, lexicon
from howsmooth.tokens.swap_displacement import SwapDisplacement


def read(model, sums):
    for f in entrance(model, "attention"):
        sums = f(sums)
    return sums


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "gemma2", "gpt_neo", "qwen3"])
def test_a_swap_moves_the_output_as_far_as_applying_the_map_says(name):
    model, tokens = tiny(name)
    known = lexicon(model, len(tokens))
    X = read(model, known(tokens))
    for part in ("heads", "head:1"):
        f = model.layers[0].map(part)
        swap = SwapDisplacement.at(f, X)
        for p in range(len(tokens)):
            others = torch.tensor([v for v in range(50) if v != tokens[p]])
            rows = read(model, known.words[others] + known.places[p])
            changed = X.expand(len(others), -1, -1).clone()
            changed[:, p] = rows
            assert_close(swap.displacements(p, rows), (f(changed) - f(X)).flatten(1).norm(dim=1))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_displacements_are_counted_from_another_sequence(name):
    model, tokens = tiny(name)
    known, f = lexicon(model, len(tokens)), model.layers[0].closed_form
    before, X = read(model, known(tokens)), read(model, known(tokens.roll(1)))
    swap = SwapDisplacement.at(f, X, origin=SwapDisplacement.at(f, before))
    for p in (0, 3):
        rows = read(model, known.words + known.places[p])
        changed = X.expand(len(rows), -1, -1).clone()
        changed[:, p] = rows
        assert_close(swap.displacements(p, rows), (f(changed) - f(before)).flatten(1).norm(dim=1))
