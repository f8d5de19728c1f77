"""Sequences that are tried by forward passes, with every pass counted."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.tokens.outputs import Outputs
from howsmooth.tokens.replacements import Replacements


class Trials:
    """Sequences tried by forward passes: the best is kept, and every pass is counted.

    Attributes:
        outputs: The map.
        replacements: Which tokens may replace which.
        tokens: The given sequence.
        edits: How many tokens may be swapped.
        budget: How many passes may be taken.
        passes: How many were taken: forward passes of one sequence, and products with its Jacobian.
        best: The sequence with the largest displacement so far.
        displacement: That displacement of the output.
        trace: The largest displacement after each batch of trials.
    """

    def __init__(
        self, outputs: Outputs, replacements: Replacements, tokens: Tensor, *, edits: int, budget: int
    ) -> None:
        self.outputs, self.replacements, self.tokens = outputs, replacements, tokens
        self.edits, self.budget, self.passes, self.tried = edits, budget, 1, 0
        (self.at_text,) = outputs(tokens[None])
        self.best, self.displacement, self.trace = tokens, 0.0, [0.0]

    @property
    def left(self) -> int:
        """How many passes are left."""
        return max(0, self.budget - self.passes)

    def take(self, passes: int) -> None:
        """Count passes that were taken elsewhere."""
        self.passes += passes

    def run(self, rows: Int[Tensor, "b n"]) -> Float[Tensor, " c"]:
        """Try the sequences that text can spell, as many as passes are left for; return their displacements."""
        rows = self.replacements.fitting(rows)[: self.left]
        self.tried += len(rows)
        if len(rows) == 0:
            return self.at_text.new_zeros(0)
        moved = (self.outputs(rows) - self.at_text).flatten(1).norm(dim=1)
        self.passes += len(rows)
        most = int(moved.argmax())
        if float(moved[most]) > self.displacement:
            self.best, self.displacement = rows[most], float(moved[most])
        self.trace.append(self.displacement)
        return moved

    def swapped(
        self, base: Int[Tensor, " n"], places: Int[Tensor, " b"], incoming: Int[Tensor, " b"]
    ) -> Int[Tensor, "b n"]:
        """Return a sequence with one token swapped, once for each pair."""
        rows = base.expand(len(places), -1).clone()
        rows[torch.arange(len(places)), places] = incoming
        return rows
