"""Certificates as claims of a proof file: the remainders of Theorem 11, stage by stage."""

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.certificates.image_norms import EUCLIDEAN
from howsmooth.certificates.radius_search import Proof, Rivals, second_order_affordable
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.errors import AssumptionError
from howsmooth.proof_files import write_proof
from howsmooth.rounding import CHAIN_ROOM

if TYPE_CHECKING:
    from howsmooth.certificates.certify import Certificate

# Radii are lowered in turn until the margin suffices for a chain with room.
SHARES = (1.0, 0.998, 0.995, 0.99, 0.98, 0.95, 0.9)


def save_certificate(path: str | os.PathLike[str], certificate: "Certificate", share: float) -> None:
    """Write the radii of all words of a certificate, each by the order that proves more of it."""
    if not 0 < share <= 1:
        raise AssumptionError(f"share must be above 0 and at most 1, got {share}.", field="share")
    if certificate.metric != "total":
        raise AssumptionError(f"proof files know the metric total, got {certificate.metric!r}.", field="metric")
    table = RemainderTable(certificate.classifier, certificate.embeddings, single=False, every_row=True)
    if table.has_relu:
        raise AssumptionError("proof files know smooth activations, and this classifier has ReLUs.")
    found = (_claim(certificate, table, radius.tokens, share * radius.certified) for radius in certificate.radii)
    claims = [claim for claim in found if claim is not None]
    if not claims:
        raise AssumptionError("no word of this certificate has a radius that can be saved.")
    write_proof(path, certificate.classifier, claims)


def _claim(
    certificate: "Certificate", table: RemainderTable, tokens: tuple[int, ...], certified: float
) -> dict[str, Any] | None:
    """Return the claim of some words; none if nothing is proven of them."""
    moved = torch.tensor(tokens)
    found: dict[str, Any] | None = None
    # Second orders mostly prove more, and are tried first: the other order then is not needed.
    orders = (2, 1) if second_order_affordable(table, moved) else (1,)
    for order in orders:
        if found is not None and found["radius"] >= SHARES[-1] * certified:
            break  # whole, or nearly so
        proof = Proof(table, certificate.rivals, moved, EUCLIDEAN, second_order=order == 2)
        chain = _chain(proof, certificate.rivals, min(proof.radius(), certified))
        if chain is None or (found is not None and found["radius"] >= chain[0]):
            continue
        eps, stages = chain
        found = {
            "kind": "certificate",
            "radius": eps,
            "order": order,
            "moved": list(tokens),
            "predicted": certificate.predicted,
            "rivals": (certificate.rivals.functionals < 0).int().argmax(1).tolist(),
            "tokens": certificate.embeddings.tolist(),
            "stages": [{"remainders": bounds.tolist()} for bounds in stages],
        }
    return found


def _chain(proof: Proof, rivals: Rivals, largest: float) -> tuple[float, list[Tensor]] | None:
    """Return the largest radius that leaves a part of the margin to a chain with room, and the chain."""
    # Room at every stage adds up: where it uses the margin up, a slightly smaller radius leaves some.
    for share in SHARES:
        eps = share * largest
        stages, left = proof.chain(eps, CHAIN_ROOM)
        if eps > 0 and bool((left > CHAIN_ROOM * rivals.margins).all()):
            return eps, stages
    return None
