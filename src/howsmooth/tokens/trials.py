"""Sequences that are tried by true forward passes: the best is kept, and every pass is counted."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.tokens.outputs import Outputs
from howsmooth.tokens.replacements import Replacements


class Trials:
    """What was tried so far.

    Attributes:
        outputs: The map.
        replacements: What may be swapped for what.
        tokens: The sequence as it is.
        edits: How many tokens may be swapped.
        budget: How many passes may be taken.
        passes: How many were: a forward pass of one sequence, or a product with its Jacobian.
        best: The worst sequence so far.
        displacement: How far it moves the output.
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
        """Try sequences, as many as there are passes left for and as text can spell; return how far each moves."""
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
        self, base: Int[Tensor, " n"], places: Int[Tensor, " b"], coming: Int[Tensor, " b"]
    ) -> Int[Tensor, "b n"]:
        """Return a sequence with one token swapped, once for each pair."""
        rows = base.expand(len(places), -1).clone()
        rows[torch.arange(len(places)), places] = coming
        return rows
