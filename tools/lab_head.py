"""Compute the head of MiniLM that the lab shows: ``python tools/lab_head.py`` writes it among the assets of the lab.

A plane is chosen among all planes through the origin such that the tied pair that lies in it, with its crowd, is as
bad as a search finds. On tokens in that plane the head is an attention with a 2×2 form A, a vector b (from its query
bias) and a 2×2 matrix V: no approximation, but for the rotation of outputs, which no norm sees.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import howsmooth as hs
from howsmooth.models.activations import Activations
from howsmooth.models.inputs.text import read_text

TARGET = Path(__file__).parents[1] / "src" / "howsmooth" / "lab" / "assets" / "minilm.json"
LAYERS, LENGTH, N = (0, 4), 24, 64
STARTS, STEPS = 2, 150


def form(head: hs.Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, the vector that the query bias adds to Ax, and V of one head."""
    assert head.query_bias is not None
    assert head.output is not None
    turn = head.score_scale * head.key[0].mT
    return turn @ head.query[0], turn @ head.query_bias[0], head.output[0] @ head.value[0]


def in_plane(head: hs.Attention, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the head on tokens Bξ: A and b in the coordinates ξ, and the symmetric root of the Gram matrix of VB."""
    A, b, V = form(head)
    _left, sizes, right = torch.linalg.svd(V @ B, full_matrices=False)
    return B.mT @ A @ B, B.mT @ b, right.mT @ torch.diag(sizes) @ right


def tied(A: Tensor, b: Tensor, V: Tensor, place: Tensor, radius: float) -> Tensor:
    """Return the logarithm of what the tied pair proves: crowd at ``place[:2]``, angle from ``place[2]``."""
    y = radius * place[:2] / place[:2].norm().clamp_min(1.0)
    g = A @ y + b
    w = g / g.norm()
    z = torch.stack((-w[1], w[0]))
    angle = torch.sigmoid(place[2]) * math.pi / 2
    delta = radius * g.norm() * angle.cos() - y @ g
    share = -torch.logaddexp(torch.tensor(math.log(2)), math.log(N - 2) - delta)
    return 0.5 * math.log(2 * (N - 2)) + share + (g.norm() * radius * angle.sin() * (V @ z).norm()).log()


def climbed(head: hs.Attention, radius: float, start: Tensor, crowd: float) -> tuple[float, Tensor]:
    """Turn a plane until its tied pair is worst."""
    A, b, V = form(head)
    X = start.clone().requires_grad_()
    place = torch.tensor([crowd, 0.1, 1.0], dtype=A.dtype, requires_grad=True)
    steps = torch.optim.Adam([{"params": [X], "lr": 0.02}, {"params": [place], "lr": 0.05}])
    best, kept = -math.inf, start
    for _step in range(STEPS):
        B = torch.linalg.qr(X).Q
        VB = V @ B
        # the norm of Vz through the Gram matrix: any root of it will do
        value = tied(B.mT @ A @ B, B.mT @ b, torch.linalg.cholesky(VB.mT @ VB).mT, place, radius)
        if value.item() > best:
            best, kept = value.item(), B.detach()
        steps.zero_grad()
        (-value).backward()
        steps.step()
    return best, kept


def best_plane(head: hs.Attention, radius: float) -> tuple[float, Tensor]:
    """Return the plane, from several starts: what likes itself least or most, with what values stretch most."""
    A, _b, V = form(head)
    own = torch.linalg.eigh(A + A.mT).eigenvectors
    stretched = torch.linalg.svd(V, full_matrices=False).Vh
    found = []
    for side in (0, -1):
        for other in range(STARTS // 2):
            start = torch.stack((own[:, side], stretched[other]), dim=1)
            found += [climbed(head, radius, start, crowd) for crowd in (0.9, -0.9)]
    return max(found, key=lambda pair: pair[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A head with its plane, what enters its layer at the text, and what its worst pair has in all dimensions."""

    layer: int
    number: int
    head: hs.Attention
    X: Tensor
    radius: float
    B: Tensor
    share: float
    whole: float


def heads(activations: Activations) -> Iterator[Shown]:
    """Look at every head of some layers, one after the other."""
    for layer in LAYERS:
        f, X = activations.at(layer)
        assert isinstance(f, hs.Attention)
        radius = float(X[0].norm(dim=-1).mean())
        for number in range(f.layout.heads):
            head = f.head(number).to(torch.float64)
            value, B = best_plane(head, radius)
            whole = hs.inputs.tied_pair(head, N, radius).value
            share = math.exp(value) / whole
            print(
                f"layer {layer} head {number}: plane {math.exp(value):.1f}, whole {whole:.1f}, {share:.2f}", flush=True
            )
            yield Shown(
                layer=layer, number=number, head=head, X=X[0].double(), radius=radius, B=B, share=share, whole=whole
            )


def described(best: Shown, words: list[str]) -> dict[str, Any]:
    """Return what the page needs to know."""
    A, b, V = in_plane(best.head, best.B)
    identity = torch.eye(2, dtype=A.dtype)
    inside = hs.Attention(query=A[None], key=identity[None], value=V[None], query_bias=b[None], scale=1.0)
    pair = hs.inputs.tied_pair(inside, N, best.radius)
    generator = torch.Generator().manual_seed(0)
    return {
        "layer": best.layer,
        "head": best.number,
        "radius": best.radius,
        "A": A.flatten().tolist(),
        "b": b.tolist(),
        "V": V.flatten().tolist(),
        "words": words,
        "shadows": (best.X @ best.B).tolist(),
        "n": N,
        "pair": [row.tolist() for row in pair.tokens[:3]],
        "pair_value": pair.value,
        "whole_value": best.whole,
        "text_value": float(hs.local_lipschitz(best.head, best.X, seed=generator).lower),
        "text_typical": float(hs.typical_gain(best.head, best.X, seed=generator).value),
    }


def main() -> None:
    model = hs.load("minilm")
    assert model.tokenizer is not None
    tokens = model.windows(read_text(), length=LENGTH, count=1)
    words = [piece.strip().removeprefix("##") for piece in model.tokenizer.pieces(tokens[0].tolist())]
    best = max(heads(model.activations(tokens)), key=lambda shown: shown.share)
    kept = described(best, words)
    TARGET.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{TARGET}: in the plane {kept['pair_value']:.1f}, in all dimensions {best.whole:.1f}")


if __name__ == "__main__":
    main()
