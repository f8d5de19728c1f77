"""One sequence over one to four processes: the same constants, one clear error where a process is lost."""

import json
import os
import subprocess
import sys
import threading
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
import torch
from spectral import shared_sequence
from spectral.shared_sequence import FEW, PLACED, TIMEOUT, D, by_sdpa, maps, tokens

import howsmooth as hs
from howsmooth.ring_attention import RingAttention
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.operators import over_processes, random_start
from howsmooth.token_ring import TokenRing, even_pieces

pytestmark = [pytest.mark.slow, pytest.mark.clock("processes wait for each other, and one is killed")]
SRC = Path(hs.__file__).parents[1]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each process wrote; the fourth one is lost at the end, and writes nothing."""
    place = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SRC)}
    subprocess.run([sys.executable, shared_sequence.__file__, str(place)], env=environment, check=True, timeout=500)
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(3)]


def exact(f):
    """Return the norms of the dense derivatives."""
    X = tokens()
    rows = [torch.autograd.functional.jacobian(f, x).reshape(-1, x.numel()) for x in X]
    return torch.stack([torch.linalg.matrix_norm(J, 2) for J in rows])


@pytest.mark.parametrize("name", [*maps(), "callable"])
def test_any_number_of_processes_finds_the_same_constant(said, name):
    norm = exact(by_sdpa(maps()["plain"]) if name == "callable" else maps()[name])
    one = said[0]["1"][name]
    lower, upper = (torch.tensor(one[end], dtype=torch.float64) for end in ("lower", "upper"))
    assert bool((lower <= norm * (1 + 1e-12)).all())
    assert bool((norm <= upper * (1 + 1e-12)).all())
    for size in (2, 3, 4) if name in FEW else (3,):
        for process in said[:size]:
            for end in ("lower", "upper"):
                assert process[str(size)][name][end] == pytest.approx(one[end], rel=1e-12)
                # bit by bit the same on every process
                assert process[str(size)][name][end] == said[0][str(size)][name][end]


@pytest.mark.parametrize("name", PLACED)
def test_tokens_may_lie_anywhere(said, name):
    for process in said:
        for end in ("lower", "upper"):
            assert process["placed"][name][end] == pytest.approx(said[0]["1"][name][end], rel=1e-12)


def test_tensors_that_context_parallel_shared_out_are_taken_as_they_are(said):
    for process in said:
        assert process["context parallel"] <= 1e-12


@pytest.mark.parametrize("size", [2, 4, 8])
def test_two_pieces_each_balance_causal_masks(size, monkeypatch):
    monkeypatch.setattr("howsmooth.ring_attention.TILE", 2**12)

    def scores(pieces):
        found = []
        for rank in range(size):
            own = torch.zeros(1, sum(map(len, pieces[rank])), 1)
            ring = TokenRing(group=None, rank=rank, pieces=pieces)
            parts = {"q": own[None], "k": own, "v": own, "o": own[None], "log_sum_exp": own[None]}
            found.append(RingAttention(ring=ring, causal=True, **parts).scores)
        return max(found) * size / sum(found)

    n = 4096
    even = even_pieces(n, size, causal=True)
    assert sorted(place for pieces in even for piece in pieces for place in piece) == list(range(n))
    assert scores(tuple((range(i * n // size, (i + 1) * n // size),) for i in range(size))) > 2 - 1.3 / size
    assert scores(even) < 1.02


class ThreadedRing(TokenRing):
    """A ring of two threads in place of processes: they add up when both have come."""

    def sum(self, x):
        self.group["parts"][self.rank] = x
        self.group["both"].wait()
        total = sum(self.group["parts"].values())
        self.group["both"].wait()
        return total


class Scaling:
    """Multiply every number of some tokens by a factor."""

    def __init__(self, factors):
        self.factors, self.batch, self.domain, self.codomain = factors, (), factors.shape, factors.shape
        self.dtype, self.device = factors.dtype, factors.device

    def jvp(self, E):
        return self.factors * E

    vjp = jvp


@pytest.mark.parametrize("pieces", [((range(4),), (range(4, 8),)), ((range(1), range(6, 8)), (range(1, 6),))])
def test_directions_drawn_after_a_breakdown_are_those_of_one_process(pieces):
    steps, n, d = 4, 8, 3
    factors = torch.zeros(n, d, dtype=torch.float64)
    factors[2, 1] = 2.0  # of rank one, so that nothing is left after a step: exactly nothing, whatever the rounding

    def space(op):
        generator = torch.Generator().manual_seed(0)
        found = Bidiagonalisation(op, random_start(op, generator).reshape(1, -1), generator)
        for _step in range(steps):
            found.advance()
        return found

    def part(rank):
        ring = ThreadedRing(group=group, rank=rank, pieces=pieces)
        with over_processes(ring):
            found = space(Scaling(factors[ring.positions]))
        return found, ring.positions

    group = {"parts": {}, "both": threading.Barrier(2, timeout=60)}
    one = space(Scaling(factors))
    assert (one.alphas[0, 1:] < 1e-15).all()
    with ThreadPool(2) as pool:
        for found, positions in pool.map(part, range(2), chunksize=1):
            for side in ("_left", "_right"):
                here, there = (getattr(x, side).vectors for x in (found, one))
                torch.testing.assert_close(
                    here.reshape(-1, len(positions), d), there.reshape(-1, n, d)[:, positions], rtol=1e-12, atol=1e-12
                )


def test_single_precision(said):
    for size in "234":
        assert said[0][size]["float32"]["lower"] == pytest.approx(said[0]["1"]["float32"]["lower"], rel=1e-5)


def test_directions_are_shared_out(said):
    # of a unit vector for each of two sequences
    assert sum(process["3"]["causal"]["size"] for process in said) == pytest.approx(2.0)


def test_mistakes_are_refused_by_all(said):
    for process in said:
        shapes, mask, metric, pooling, positions = process["refused"]
        assert shapes.startswith("ShapeError: every process must hold at least one token")
        assert f"(2, 5, {D - 1}) float64" in shapes
        assert "attention with mask is not shared out" in mask
        assert "in the metric total" in metric
        assert "Pooling is not shared out" in pooling
        assert "the positions of all processes together must be 0 to 19, each once" in positions
    for call in (hs.local_lipschitz, lambda f, X, **options: hs.sdpa(X, X, X, **options)):
        with pytest.raises(hs.errors.AssumptionError, match="that a group shares out; give group"):
            call(maps()["plain"], tokens(), positions=torch.arange(23))


def test_a_lost_process_is_one_clear_error_everywhere(said):
    for process in said:
        assert process["lost"].startswith("ClusterError: a process of the group was lost, or did not answer")
        assert process["waited"] < TIMEOUT + 10
