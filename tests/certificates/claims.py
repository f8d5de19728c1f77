"""Hold every claim of a proof against the truth: far more sensitive than to wait for a class that changes.

While tokens move by at most a radius, a proof bounds, stage after stage, how far everything moves that a remainder
depends on, how much of that is not of first order, the remainder itself along its directions, and at last the margins.
Shares say how much of what is allowed is taken up: one above 1 refutes the proof.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from howsmooth.certificates.image_norms import EUCLIDEAN, packed_pairs
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.propagation import Apply, move
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.stages import SmoothStage
from howsmooth.certificates.word_perturbation import WordPerturbation

# What differences of floats may lose: so many times what they lose where the input is a few floats away.
TIMES, NEAR, COPIES = 30.0, 1e-15, 8
ROUNDING = 1e-12


@dataclass
class Shares:
    """The largest share of every kind of claim, and how many claims there were."""

    largest: dict[str, float] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, truth: torch.Tensor, allowed: torch.Tensor, rounding: torch.Tensor | float) -> None:
        """Compare; what is not a number is not claimed."""
        truth, allowed = torch.broadcast_tensors((truth - rounding).clamp_min(0), allowed)
        claimed = allowed.isfinite()
        share = torch.where(truth > 0, truth / allowed.clamp_min(1e-300), 0.0)[claimed]
        self.count[kind] += share.numel()
        self.largest[kind] = max(self.largest.get(kind, 0.0), float(share.max()) if share.numel() else 0.0)

    def join(self, other: "Shares") -> None:
        """Take in what others found."""
        self.count.update(other.count)
        for kind, share in other.largest.items():
            self.largest[kind] = max(self.largest.get(kind, 0.0), share)

    @property
    def worst(self) -> float:
        """The largest of all."""
        return max(self.largest.values(), default=0.0)


def signals(
    table: RemainderTable, Z: torch.Tensor, *, centre: bool
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield what enters every stage and what leaves it, by the place of the stage; at last the output.

    Where the table shifts its centre, centres are shifted too; what truly happens is not.
    """
    stack = [Z]
    for place, link in enumerate(table.links):
        if isinstance(link.step, Apply):
            entered, stack[-1] = stack[-1], link.step.map(stack[-1])
            if link.stage is not None:
                if centre and link.stage.shift is not None:
                    stack[-1] = stack[-1] + link.stage.shift
                yield place, entered, stack[-1]
        else:
            move(stack, link.step)
    yield -1, stack[0], stack[0]


def turned(table: RemainderTable, way: WordPerturbation, E: torch.Tensor) -> torch.Tensor:
    """Return the perturbations that first orders belong to: behind a norm, how far tokens turn."""
    if not way._turns:
        return E.flatten(1)
    stage = table.links[0].stage
    assert isinstance(stage, NormStage)
    moved = torch.zeros(len(E), *table.X.shape, dtype=E.dtype)
    moved[:, way._tokens] = E
    u, w = (x[0].movedim(-1, 0) for x in stage._along_and_across(moved[None]))  # samples first
    length = ((1 + u).square() + w.square().sum(-1)).sqrt()
    return (stage._length * w / length[..., None])[:, way._tokens].flatten(1)


def claims(
    table: RemainderTable, way: WordPerturbation, eps: float, E: torch.Tensor, functionals: torch.Tensor
) -> Shares:
    """Return the shares of all claims at perturbations ``E`` (samples, tokens, d) of size at most ``eps``."""
    Z = table.X.repeat(len(E), 1, 1)
    Z[:, way._tokens] += E
    # what is left of the perturbation in floats
    found, xi = Shares(), turned(table, way, (Z - table.X)[:, way._tokens])
    bounds, begun = way.remainders(eps), 0
    truth = {i: (x, y) for i, x, y in signals(table, Z, centre=False)}
    centre, noise = ({i: (x, y) for i, x, y in signals(table, at, centre=True)} for at in (table.X, _near(table.X)))
    sizes = torch.linalg.vector_norm(xi, way._ball.p, dim=1)
    found.add("turn", sizes, torch.tensor(eps, dtype=E.dtype), ROUNDING * eps + NEAR * table.X.norm())
    for place, stage in table.stages.items():
        own, before = bounds[begun : begun + len(stage.tokens)], bounds[:begun]
        begun += len(own)
        if place not in way._first:
            continue  # turned: nothing is claimed of what enters
        (x0, y0), (x, y), (x1, y1) = (each[place] for each in (centre, truth, noise))
        delta, first = x - x0, torch.einsum("sr,rnd->snd", xi, way._columns[place][0])
        one, rest = way._entering_norms(place, eps, before)
        lost = TIMES * stage.image_norms((x1 - x0)[:, None], EUCLIDEAN).amax(0)
        found.add(f"{stage.name} enters", stage.image_norms(delta[:, None], EUCLIDEAN), one + rest, lost)
        found.add(f"{stage.name} first", stage.image_norms(first[:, None], EUCLIDEAN), one, lost)
        found.add(f"{stage.name} rest", stage.image_norms((delta - first)[:, None], EUCLIDEAN), rest, lost)
        _sizes_seen, pushed = stage.propagate(delta[:, None], EUCLIDEAN)  # along lines that need not be tangents
        R = y - y0 - pushed[:, 0]
        if way._pairs is not None and isinstance(stage, SmoothStage):
            a, b, _times = packed_pairs(len(first))
            R = R - stage.second_order(first[None])[0][a == b]
        lost = TIMES * (y1 - y0).flatten(1).norm(dim=1).max() + ROUNDING * (y - y0).flatten(1).norm(dim=1).max()
        lost = lost + NEAR * y0.norm()  # where every unit is straight nothing at all is allowed
        found.join(_along(stage, R, own, lost))
    lost = TIMES * (noise[-1][1] - centre[-1][1]).abs().max()
    found.join(_ends(table, way, eps, xi, bounds, functionals, truth[-1][1] - centre[-1][1], lost))
    return found


def _near(X: torch.Tensor) -> torch.Tensor:
    """Return inputs that are a few floats away."""
    rng = torch.Generator().manual_seed(0)
    return X + NEAR * X.abs().max() * torch.randn(COPIES, *X.shape, generator=rng, dtype=X.dtype)


def _along(stage, R: torch.Tensor, bounds: torch.Tensor, rounding: torch.Tensor) -> Shares:
    """Compare remainders with their bounds, token by token, along themselves and along what they are images of."""
    found, tokens, sizes = Shares(), R.shape[1], stage.directions()
    for j in range(tokens):
        # (groups, r, out) at this token, with their bounds
        at, begun = [], 0
        for bundle in sizes:
            group = bounds[begun : begun + len(bundle)][j]
            at.append((bundle[j, :, j], group))
            begun += len(bundle)
        everything = torch.cat([columns for columns, _bound in at])
        inverse = torch.linalg.pinv(everything.mT @ everything, rcond=1e-10, hermitian=True)
        for H in (R[:, j], R[:, j] @ inverse):
            H = H / H.norm(dim=1, keepdim=True).clamp_min(1e-300)
            allowed = sum(bound * (H @ columns.mT).norm(dim=1) for columns, bound in at)
            found.add(f"{stage.name} remainder", (H * R[:, j]).sum(1).abs(), allowed, rounding)
    return found


def _ends(table, way, eps, xi, bounds, functionals, moved, lost) -> Shares:
    found = Shares()
    first, second = way.at_output(functionals)
    linear = xi @ (way._output[0].flatten(1) @ functionals.mT)
    moved = moved.flatten(1) @ functionals.mT
    a, b, times = packed_pairs(xi.shape[1])
    if way._pairs is None:
        curved = torch.zeros_like(linear)
    else:
        curved = (times * xi[:, a] * xi[:, b]) @ (way._pairs[0].flatten(1) @ functionals.mT)
    left = bounds @ table.transfer_to(functionals)
    lost = lost + ROUNDING * moved.abs().max()
    found.add("margin first", linear.abs(), eps * first, lost)
    found.add("margin second", curved.abs(), eps**2 * second, lost)
    found.add("margin rest", (moved - linear - curved).abs(), left, lost)
    found.add("margin", moved.abs(), eps * first + eps**2 * second + left, lost)
    return found
