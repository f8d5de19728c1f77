"""Proofs for one word, each with a table that suits the radius which the one before has reached."""

from torch import Tensor

from howsmooth.certificates.radius import Proof, Rivals, affordable
from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.table import Table

# So often at most a table is made again: without exact second orders, which cost more than a table, and with them. A
# round that gains less than this is the last one.
ROUNDS, CURVED_ROUNDS, ENOUGH = 4, 1, 1.02


def farthest(table: Table, rivals: Rivals, tokens: Tensor, ball: Ball) -> tuple[Proof, float, float]:
    """Return the proof that reaches farthest, how far it does, and where the first order alone ends.

    Only rectified hidden units can be taken in another way: everything else is proven at once.
    """
    rounds, curved = (ROUNDS, CURVED_ROUNDS) if table.kinked and table.cheap else (0, 0), affordable(table, tokens)
    proof = Proof(table, rivals, tokens, ball, curved=curved and not any(rounds))
    linear = proof.linear
    proof, radius = _refined(proof, rivals, tokens, ball, rounds=rounds[0], curved=False)
    if curved and any(rounds):
        again = Proof(proof.table, rivals, tokens, ball)
        again, further = _refined(again, rivals, tokens, ball, rounds=rounds[1], curved=True)
        proof, radius = max((proof, radius), (again, further), key=_reached)
    return proof, radius, linear


def _refined(
    proof: Proof, rivals: Rivals, tokens: Tensor, ball: Ball, *, rounds: int, curved: bool
) -> tuple[Proof, float]:
    """Make tables again while that gains; return the best proof and its radius."""
    radius = proof.radius()
    for _round in range(rounds):
        if radius == 0:
            break
        again = Proof(proof.table.remade(proof.reach(radius)), rivals, tokens, ball, curved=curved)
        before = radius
        proof, radius = max((proof, radius), (again, again.radius()), key=_reached)
        if radius < ENOUGH * before:
            break
    return proof, radius


def _reached(found: tuple[Proof, float]) -> float:
    _proof, radius = found
    return radius
