"""Classifiers whose nearest flip is known: it lies at a corner of a box that is computed, not searched for.

``monotone`` networks only grow with s ∘ X for a vector s of signs: of every box around X the corner s is the worst, for
all numbers that move and for any choice of tokens. ``needle`` networks are flat but for one hidden unit that wakes in a
corner: no gradient leads there.
"""

from dataclasses import dataclass

import torch

import howsmooth as hs


@dataclass(frozen=True)
class Planted:
    """A classifier of class 0, and where its boxes begin to hold inputs of class 1.

    Attributes:
        f: From tokens (n, d) to two logits.
        X: The tokens.
        moves: How far each number may move, in multiples of ε.
        signs: The corner that is worst.
        safe: Boxes up to this ε hold no flip.
        unsafe: From this ε on the corner flips.
    """

    f: hs.maps.Chain
    X: torch.Tensor
    moves: torch.Tensor
    signs: torch.Tensor
    safe: float
    unsafe: float

    def corner(self, eps):
        """The worst input of a box."""
        return self.X + eps * self.moves * self.signs

    def margin(self, X):
        """How far class 0 is ahead."""
        return float(self.f(X) @ torch.tensor([1.0, -1.0], dtype=torch.float64))

    def box(self, eps):
        """No input of the box is of class 1."""
        return hs.verification.Property.robust(self.X, eps=eps * self.moves, label=0, classes=2)


def _uniform(rng, *shape, low=0.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=rng)


def _moving(n, d, tokens):
    moves = torch.zeros(n, d, dtype=torch.float64)
    moves[list(range(n)) if tokens is None else list(tokens)] = 1.0
    return moves


def monotone(rng, *, layers=2, n=3, d=3, heads=2, activation="relu", eps=0.2, tokens=None):
    r"""Return a network that grows with every number of s ∘ X, and flips at ε exactly.

    All weights but those of s are positive. With scores :math:`\langle q_i,k_j\rangle` of positive queries and keys the
    output of a head grows with token i where :math:`P_{ii}V\ge\rho(K^\top q+Q^\top k)` entry by entry, with ρ the range
    of the values; both ends of the box say how large all of these are, and queries and keys shrink until it holds.
    """
    signs = (2 * torch.randint(0, 2, (d,), generator=rng) - 1).double()
    X, moves = 2 * _uniform(rng, n, d) - 1, _moving(n, d, tokens)
    entry = hs.maps.Dense(_uniform(rng, d, d) * signs, torch.full((d,), 3.0 * d, dtype=torch.float64))
    blocks, ends = [entry], [entry(X + side * eps * moves * signs) for side in (-1, 1)]
    for _layer in range(layers):
        query, key, value = (_uniform(rng, heads, d, d, low=0.2) for _part in range(3))
        while not _grows(query, key, value, *ends):
            query, key = 0.8 * query, 0.8 * key
        attention = hs.Attention(query=query, key=key, value=value, output=_uniform(rng, heads, d, d) / d, scale=1.0)
        up = _uniform(rng, 2 * d, d)
        blocks.append(hs.maps.Residual(attention))
        ends = [blocks[-1](end) for end in ends]
        middle = up @ (ends[0] + ends[1]).mean(0) / 2  # so that some units bend
        mlp = hs.maps.MLP(
            up=up, up_bias=-middle, down=_uniform(rng, d, 2 * d) / d, down_bias=_uniform(rng, d), activation=activation
        )
        blocks.append(hs.maps.Residual(mlp))
        ends = [blocks[-1](end) for end in ends]
        assert bool((ends[0] > 0).all())
    readout = _uniform(rng, 1, d)
    blocks.append(hs.maps.Pooling.mean(n=n, like=readout))
    threshold = float(readout @ blocks[-1](ends[1]).flatten())
    head = hs.maps.Dense(torch.cat((0 * readout, readout)), torch.tensor([threshold, 0.0], dtype=torch.float64))
    return Planted(hs.maps.Chain(*blocks, head), X, moves, signs.expand(n, d), eps, eps)


def _grows(query, key, value, least, largest):
    """Whether heads grow with their tokens between two ends."""
    q, k, v = (torch.einsum("hed,tnd->thne", w, torch.stack((least, largest))) for w in (query, key, value))
    spread = (q[1] @ k[1].mT).amax((-2, -1)) - (q[0] @ k[0].mT).amin((-2, -1))
    own = 1 / (1 + (len(least) - 1) * spread.exp())  # the least weight of a token for itself
    reach = v[1].amax(-2) - v[0].amin(-2)  # of values
    slopes = torch.einsum("hed,he->hd", key, q[1].amax(-2)) + torch.einsum("hed,he->hd", query, k[1].amax(-2))
    return bool((own[:, None, None] * value >= reach[..., None] * slopes[:, None]).all())


def needle(rng, *, n=3, d=3, eps=0.2, steep=1e5, tokens=None):
    r"""Return a network in which one unit wakes just before the corner s, and is steep enough to flip there.

    The mean of :math:`\langle s,x_j\rangle` less a threshold enters the unit; an attention beside it moves the margin
    by no more than its largest value.
    """
    signs = (2 * torch.randint(0, 2, (d,), generator=rng) - 1).double()
    X, moves = 2 * _uniform(rng, n, d) - 1, _moving(n, d, tokens)
    # three more numbers: the mean of all tokens, what disturbs, and the unit
    wide = hs.maps.Dense(torch.eye(d + 3, dtype=torch.float64)[:, :d].contiguous())
    mean, disturbance, woken = torch.eye(d + 3, dtype=torch.float64)[d:]
    query, key = (2 * _uniform(rng, 2, 2, d + 3) - 1 for _part in range(2))
    query[0] = 0  # the first head sees all tokens alike
    value = torch.zeros(2, 1, d + 3, dtype=torch.float64)
    value[0, 0, :d], value[1, 0, :d] = signs, 2 * _uniform(rng, d) - 1
    largest = float((X.abs() + 2 * eps * moves).amax(0) @ value[1, 0, :d].abs())
    output = torch.stack((mean, 0.5 / largest * disturbance)).unsqueeze(-1)  # no more than a half, wherever it looks
    attention = hs.maps.Residual(hs.Attention(query=query, key=key, value=value, output=output))
    at, rate = float((X @ signs).mean()), float(moves.sum()) / n  # in the middle, and for ε more
    threshold = torch.tensor([-at - eps * rate], dtype=torch.float64)
    unit = hs.maps.MLP(up=mean[None], up_bias=threshold, down=steep * woken[:, None], activation="relu")
    head = hs.maps.Dense(torch.stack((disturbance, woken)), torch.tensor([1.0, 0.0], dtype=torch.float64))
    f = hs.maps.Chain(wide, attention, hs.maps.Pooling.first(n=n, like=X), hs.maps.Residual(unit), head)
    # it flips where steep · relu(⟨s, mean⟩ − threshold) is 1 and what disturbs, between a half and three halves
    safe, unsafe = (eps + share / (steep * rate) for share in (0.5, 1.5))
    return Planted(f, X, moves, signs.expand(n, d), safe, unsafe)
