r"""The bottleneck distance :math:`W_\infty`: the least longest step of a coupling, exact for discrete measures.

:math:`W_\infty(\mu,\nu)\le t` exactly if mass can flow from atom to atom over steps no longer than t. Whether it can is
a question of combinatorics, so it is asked of every distance between atoms that may be the answer, by bisection.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

# How many roundings each mass may have suffered: computed, normalised, split, merged.
ROUNDINGS = 16

T = TypeVar("T")


class Steps(NamedTuple):
    """The moves of a coupling: mass ``mass[m]`` from atom ``source[m]`` to atom ``target[m]``."""

    source: np.ndarray
    target: np.ndarray
    mass: np.ndarray


def bottleneck_assignment(distances: np.ndarray) -> np.ndarray:
    """Return a permutation whose longest step is as short as it can be: where each row goes."""

    def matched(t: float) -> np.ndarray | None:
        found = maximum_bipartite_matching(csr_array(distances <= t), perm_type="column")
        return None if (found < 0).any() else found

    return _least(distances, matched)


def bottleneck_coupling(distances: np.ndarray, first: np.ndarray, second: np.ndarray, eps: float) -> Steps:
    r"""Return a coupling of masses whose longest step is as short as it can be.

    A rounding of masses must not send a crumb of mass far: that would be the answer. Masses are thus compared up to
    :math:`\delta = 16` eps *of each*: mass may flow if :math:`(1-\delta)\mu(A)\le\nu(A^t)` for all sets A of atoms
    and their neighbourhoods :math:`A^t`, and the same the other way round. However light an atom is, it counts.

    Args:
        distances: From each atom of the first measure to each of the second.
        first: The masses of the first, as whole numbers of some small unit.
        second: Those of the second.
        eps: The rounding of one mass.
    """
    # both totals are one up to rounding; made equal without any
    first, second = first * second.sum(), second * first.sum()
    least = [x - x * int(ROUNDINGS * eps * 2**64) // 2**64 for x in (first, second)]

    def both(t: float) -> Steps | None:
        near = distances <= t
        # One flow serves every atom of the first measure, the other every atom of the second; both are near couplings.
        if (there := flow(near, least[0], second)) is None or (back := flow(near.T, least[1], first)) is None:
            return None
        together = there + back.T
        source, target = together.nonzero()
        total = int(together.sum())
        return Steps(source, target, np.array([int(m) / total for m in together[source, target]]))

    return _least(distances, both)


def flow(near: np.ndarray, supply: np.ndarray, room: np.ndarray) -> np.ndarray | None:
    """Send all of the supply to where there is room, over the allowed steps; ``None`` if that cannot be.

    Paths that free room are looked for, shortest first, in whole numbers: nothing is rounded.
    """
    sent = np.zeros(near.shape, dtype=object)
    left, free = supply.copy(), room.copy()
    for i in range(len(left)):  # greedily at first
        for j in near[i].nonzero()[0]:
            sent[i, j] = amount = min(left[i], free[j])
            left[i] -= amount
            free[j] -= amount
            if not left[i]:
                break
    while left.any():
        path = _path(near, sent > 0, left > 0, free > 0)
        if path is None:
            return None
        forward, backward = path[::2], path[1::2]
        start, end = forward[-1][0], forward[0][1]
        amount = min(left[start], free[end], *(sent[step] for step in backward))
        for step in forward:
            sent[step] += amount
        for step in backward:
            sent[step] -= amount
        left[start] -= amount
        free[end] -= amount
    return sent


def _path(near: np.ndarray, used: np.ndarray, begin: np.ndarray, end: np.ndarray) -> list[tuple[int, int]] | None:
    """Find a shortest path from a row that has mass left to a column with room, steps in reverse; by breadth first."""
    rows, columns = begin.copy(), np.zeros_like(end)
    to, back = np.full(len(end), -1), np.full(len(begin), -1)
    wave = begin.nonzero()[0]
    while len(wave) and (fresh := near[wave].any(0) & ~columns).any():
        to[fresh] = wave[near[wave][:, fresh].argmax(0)]
        columns |= fresh
        if (fresh & end).any():
            return _traced(int((fresh & end).argmax()), to, back)
        reached = fresh.nonzero()[0]
        again = used[:, reached].any(1) & ~rows
        back[again] = reached[used[again][:, reached].argmax(1)]
        rows |= again
        wave = again.nonzero()[0]
    return None


def _traced(j: int, to: np.ndarray, back: np.ndarray) -> list[tuple[int, int]]:
    path = [(int(to[j]), j)]
    while back[i := path[-1][0]] >= 0:
        j = int(back[i])
        path += [(i, j), (int(to[j]), j)]
    return path


def _least(distances: np.ndarray, solved: Callable[[float], T | None]) -> T:
    """Return the solution for the smallest distance that has one; the largest distance always has."""
    # every atom has to go somewhere, and be reached from somewhere: no step can be shorter than that
    floor = max(distances.min(0).max(), distances.min(1).max())
    if (answer := solved(float(floor))) is not None:
        return answer
    candidates = np.unique(distances[distances > floor])
    low, high, best = -1, len(candidates), None
    while high - low > 1:
        middle = (low + high) // 2
        answer = solved(float(candidates[middle]))
        low, high, best = (middle, high, best) if answer is None else (low, middle, answer)
    assert best is not None, "all mass may go anywhere"
    return best
