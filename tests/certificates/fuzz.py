"""Attack certificates: of random classifiers of every activation, norm, mask, place of the norms, depth and ball, of
wild scales, and of a trained one.

Points inside the ball, and far beyond it, are sampled and then moved down the gradient of the margin; none may have a
margin below what is proven at its radius, and none may contradict what is claimed on the way there (``claims.py``).
Tables in single precision may claim no less than those in double precision. A share of seconds runs in the suite; by
hand it takes as long as it is given: ``PYTHONPATH=tests python tests/certificates/fuzz.py --minutes 3``, and
``--seed`` to begin elsewhere.
"""

import argparse
import math
import time
from dataclasses import dataclass

import torch
from certificates.claims import Shares, claims
from certificates.random_classifiers import Drawn, draw

from howsmooth.certificates.flip_attack import descent_direction, random_sphere, unit_directions
from howsmooth.certificates.image_norms import UnitBall
from howsmooth.certificates.radius_search import Proof, Rivals
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.word_perturbation import WordPerturbation

SAMPLES, ATTACKS, STEPS = 100, 16, 12
# Where points lie, in certified radii.
RADII = (0.3, 1.0, 2.0, 6.0)
# Two margins in floats are compared: both are sums of numbers no larger than this share allows.
ROUNDING = 1e-12
# How many points are held against every claim at each radius, sampled and attacked ones.
CLAIMED = 6


@dataclass(frozen=True)
class Found:
    """What one network gave.

    Attributes:
        points: How many points were looked at.
        certified: The radius.
        worst: The smallest distance of a margin from what is proven, as a share of the margin at the centre.
        shares: How much of what is claimed is taken up.
        what: The network.
    """

    points: int
    certified: float
    worst: float
    shares: Shares
    what: str


def attack(seed: int, *, radii: tuple[float, ...] = RADII, steps: int = STEPS) -> Found:
    """Certify a network and look for what contradicts it, at some radii and with some steps down the gradient."""
    drawn = draw(seed)
    f, X, tokens = drawn.f, drawn.X, drawn.tokens
    rivals, table = Rivals.of(f(X)[0]), RemainderTable(f, X)
    proof = Proof(table, rivals, tokens, UnitBall(drawn.p))
    certified, rng = proof.radius(), torch.Generator().manual_seed(seed)
    # rectified units are taken in another way, for a radius that need not be the one they are looked at
    reach = proof.unit_ranges(RADII[seed % len(RADII)] * certified)
    suited = RemainderTable(f, X, unit_ranges=reach) if reach else table
    second = Proof(suited, rivals, tokens, UnitBall(drawn.p)) if reach else proof
    shares, points, worst = _rough(drawn, table, rivals), 0, math.inf
    # larger models go without exact second orders
    plain = WordPerturbation(table, tokens, UnitBall(drawn.p), second_order=False)
    for eps in [times * certified for times in radii if certified > 0]:
        proven, rounding = torch.maximum(proof.margins(eps), second.margins(eps)), ROUNDING * table.output.abs().max()
        E = eps * random_sphere((SAMPLES, len(tokens), X.shape[1]), drawn.p, rng)
        some = E[:CLAIMED]
        for step in range(steps + 1):
            E = eps * E / torch.linalg.vector_norm(E.flatten(1), drawn.p, dim=1)[:, None, None]
            Z = X.repeat(len(E), 1, 1)
            Z[:, tokens] += E
            margins = f(Z)[:, 0] @ rivals.functionals.mT
            points += len(E)
            worst = min(worst, float(((margins - proven + rounding) / rivals.margins).min()))
            if step < steps:
                E = E[margins.amin(1).argsort()[:ATTACKS]] if step == 0 else E
                _margins, gradient = descent_direction(f, X, E, tokens, rivals.functionals)
                E = E - 0.5 * E.flatten(1).norm(dim=1)[:, None, None] * unit_directions(gradient)
        for at, way in ((table, proof._word), (table, plain), (suited, second._word)):
            shares.join(claims(at, way, eps, torch.cat((some, E[:CLAIMED])), rivals.functionals))
    return Found(points, certified, worst, shares, drawn.what)


def _rough(drawn: Drawn, table: RemainderTable, rivals: Rivals) -> Shares:
    """Compare sizes in double precision with those that are claimed in single precision."""
    found, rough = Shares(), RemainderTable(drawn.f, drawn.X, single=True)
    pairs = [(sizes, rough.transfer[place]) for place, sizes in table.transfer.items()]
    pairs.append(tuple(each.transfer_to(rivals.functionals) for each in (table, rough)))
    for sizes, wider in pairs:
        # what is zero may be no more than nearly zero in double precision
        found.add("single precision", sizes, wider, ROUNDING * sizes.amax(1, keepdim=True))
    return found


def main() -> None:
    """Attack for as long as is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    end, seed, points, empty, closest, shares = time.time() + 60 * asked.minutes, asked.seed, 0, 0, math.inf, Shares()
    while time.time() < end:
        found = attack(seed)
        points, empty, closest = points + found.points, empty + (found.certified == 0), min(closest, found.worst)
        shares.join(found.shares)
        if found.worst < 0 or found.shares.worst > 1:
            wrong = {kind: share for kind, share in found.shares.largest.items() if share > 1}
            print(f"VIOLATION by {-found.worst:.3g} of the margin, {wrong}: {found.what}", flush=True)
        seed += 1
    print(f"{seed - asked.seed} networks, {points} points, closest {closest:.3g} of the margin, {empty} radii of zero")
    for kind, share in sorted(shares.largest.items()):
        print(f"{kind}: {shares.count[kind]} claims, at most {share:.4f} of what is allowed")


if __name__ == "__main__":
    main()
