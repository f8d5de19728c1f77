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

    Only rectified hidden units can be taken in another way, so that only tables with such are made again.
    """
    again = table.kinked and table.cheap
    plain = Proof(table, rivals, tokens, ball, curved=False)
    linear = plain.linear
    found = [_refined(plain, rivals, tokens, ball, rounds=ROUNDS if again else 0, curved=False)]
    if affordable(table, tokens):
        (best, _radius), rounds = found[0], CURVED_ROUNDS if again else 0
        curved = Proof(best.table, rivals, tokens, ball)
        found.append(_refined(curved, rivals, tokens, ball, rounds=rounds, curved=True))
    return *max(found, key=_reached), linear


def _refined(
    proof: Proof, rivals: Rivals, tokens: Tensor, ball: Ball, *, rounds: int, curved: bool
) -> tuple[Proof, float]:
    """Make tables again while that gains; return the best proof and its radius."""
    radius = proof.radius()
    for _round in range(rounds if radius > 0 else 0):
        again = Proof(proof.table.remade(proof.reach(radius)), rivals, tokens, ball, curved=curved)
        before = radius
        proof, radius = max((proof, radius), (again, again.radius()), key=_reached)
        if radius < ENOUGH * before:
            break
    return proof, radius


def _reached(found: tuple[Proof, float]) -> float:
    _proof, radius = found
    return radius
