"""LinearAttention: features of queries times a sum over keys, so that products cost O(n)."""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import on_tokens, take
from howsmooth.maps.heads import GIBIBYTE, MultiHead, require_memory
from howsmooth.maps.heads_derivative import HeadsJacobian
from howsmooth.maps.mechanisms.counting import require_count, require_count_on_measures, token_counts
from howsmooth.maps.positions import Positions
from howsmooth.maps.projections import Layout, Transform, Transforms
from howsmooth.maps.weighting import Pick
from howsmooth.validation import require_finite

Features = Literal["elu", "identity"]
# Tokens that are summed as a small matrix of weights; between chunks there are sums only.
CHUNK = 64
# The three arguments of T(a, b, c).
Triple = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LinearAttention(MultiHead):
    r"""Attention without exponentials of scores :cite:`katharopoulos2020`.

    .. math:: f(X)_i = \sum_h W_h\,\frac{\sum_j m_j\,\langle\phi(q_i),\phi(k_j)\rangle\,v_j}
              {\sum_jm_j\,\langle\phi(q_i),\phi(k_j)\rangle} + b_o,\qquad \phi(x) = \mathrm{elu}(x)+1

    with :math:`q = Q_hx + b_q` and so on. Without ``normalised`` there is no denominator. The sum over j is one matrix
    for all i, so values and products cost O(n), also under a causal mask; other masks cost O(n²).

    Each token counts once, :math:`m_j = 1`; with masses :math:`m_j = N a_j/\sum_l a_l`, where N is ``count``: the
    number of tokens that the total mass represents, which cancels in the denominator.

    Attributes:
        normalised: Whether there is a denominator.
        features: :math:`\phi`, ``"elu"`` for elu + 1 or, without a denominator, ``"identity"``.
        count: :math:`N`; ``None`` means the number of tokens.

    The other fields are those of :class:`howsmooth.Attention`; there is no scale, no soft cap, and nothing can be added
    to scores.

    Example:
        >>> one = torch.eye(1)
        >>> LinearAttention.single_head(Q=one, K=0 * one, V=one)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    normalised: bool = True
    features: Features = "elu"
    count: float | None = None

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"linear": {}, "linear-plain": {"normalised": False}}
    counting_kinds: ClassVar[tuple[str, ...]] = ("linear-plain",)

    def on(self, measure: object) -> "LinearAttention":
        """Return the map that moves the atoms of a measure; without a denominator ``count`` has to be given."""
        if not self.normalised:
            require_count_on_measures(self.count)
        return super().on(measure)

    def jacobian(self, X: Float[Tensor, "*batch n d"], *, memory: int = GIBIBYTE) -> "LinearJacobian":
        """Differentiate at ``X``; no weights are kept, so ``memory`` does not matter."""
        require_memory(memory)
        found = self._attend(self._admit(X))
        require_finite(found.means, "the output of attention")
        return found

    def value_and_jacobian(self, X: Tensor, *, memory: int = GIBIBYTE) -> "tuple[Tensor, LinearJacobian]":
        """Return the value and the derivative at ``X``."""
        found = self.jacobian(X, memory=memory)
        return self._put_out(self._biased(found), found.output, found.batch), found

    def _means(self, X: Tensor) -> Float[Tensor, "stack shared n v"]:
        return self._biased(self._attend(X))

    def _biased(self, found: "LinearJacobian") -> Float[Tensor, "stack shared n v"]:
        return self._shifted(found.means, found.batch) if self.normalised else found.means

    def _attend(self, X: Tensor) -> "LinearJacobian":
        feature: Transform | None = EluPlusOne() if self.features == "elu" else None
        value_bias = None if self.normalised else self.value_bias  # weights sum to one: it is added to their means
        q, k, v, projections = self._project(
            X, Transforms(feature, feature), self.value, self.positions.rotary, value_bias=value_bias
        )
        n, layout, batch = X.shape[-2], self.layout, tuple(X.shape[:-2])
        masses = token_counts(self.weights, self.count, n, X)
        if self.positions.padding is not None:
            masses = (X.new_ones(n) if masses is None else masses) * self.positions.padding
        if masses is not None:
            masses = masses.expand(*batch, n).reshape(-1, 1, n, 1).repeat_interleave(layout.groups, dim=0)
        a, b = q.reshape(-1, layout.shared, n, layout.k), k.reshape(-1, 1, n, layout.k)
        c = v.reshape(-1, 1, n, layout.v)
        if self.normalised:
            c = torch.cat((c, torch.ones_like(c[..., :1])), dim=-1)
        c = c if masses is None else masses * c
        visible = visibility(self.positions, batch, layout, X)
        sums = visible.forward(a, b, c)
        total = sums[..., -1:] if self.normalised else None
        may_hide_all = self.positions.may_hide_all or self.weights is not None
        if total is not None and may_hide_all and bool((total == 0).any()):
            raise AssumptionError("a token may attend to nothing: its mask hides every token. Let it see itself.")
        return LinearJacobian(
            projections=projections,
            output=self._joined_output(),
            **on_tokens(X, self.out),
            visible=visible,
            a=a,
            b=b,
            c=c,
            masses=masses,
            total=total,
            o=sums if total is None else sums[..., :-1] / total,
        )

    def _check_options(self) -> None:
        require_count(self.count)
        if self.features not in ("elu", "identity"):
            raise AssumptionError(f"features must be 'elu' or 'identity', got {self.features!r}.", field="features")
        if self.normalised and self.features != "elu":
            raise AssumptionError(
                "a denominator needs positive features; use features='elu', or normalised=False.", field="features"
            )
        order = self.positions
        added = (order.relative_bias, order.position_bias, order.distances)
        if any(x is not None for x in added) or (order.mask is not None and order.mask.dtype != torch.bool):
            raise AssumptionError(
                "linear attention has no scores that anything could be added to; use a boolean mask.",
                field="positions",
            )


@dataclass(frozen=True, eq=False)
class EluPlusOne:
    r"""The features :math:`\phi(x) = \mathrm{elu}(x)+1`: :math:`e^x` below zero, :math:`x+1` above."""

    def apply(self, X: Tensor) -> Tensor:
        """Return the features."""
        # Why not elu(x) + 1: far below zero that would be zero, and there would be nothing to divide by
        return torch.where(X > 0, X + 1, X.clamp_max(0).exp())

    def linearise(self, X: Tensor) -> "EntrywiseJacobian":
        """Differentiate."""
        return EntrywiseJacobian(X.clamp_max(0).exp())


@dataclass(frozen=True, eq=False)
class EntrywiseJacobian:
    """A derivative that multiplies every coordinate by its own slope."""

    slopes: Float[Tensor, "*batch n k"]

    def jvp(self, E: Tensor) -> Tensor:
        """Multiply."""
        return self.slopes * E

    vjp = jvp

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "EntrywiseJacobian":
        """Pick entries of the batch."""
        return EntrywiseJacobian(take(self.slopes, batch, index, event=event))


class Visibility(ABC):
    r"""The map :math:`T(a,b,c)_i = \sum_{j\text{ seen by }i}\langle a_i,b_j\rangle c_j`."""

    @abstractmethod
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return T; ``a`` has queries that share ``b`` and ``c``."""

    @abstractmethod
    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        r"""Return :math:`\sum_{i\text{ sees }j}\langle b_j,a_i\rangle g_i`, summed over queries that share ``b``."""

    @abstractmethod
    def jvp(self, at: Triple, tangents: Triple) -> Tensor:
        """Return the derivative of T at three arguments, along three others."""

    def take(self, pick: Pick) -> "Visibility":
        """Pick some entries of the batch; by default all are equal."""
        return self


@dataclass(frozen=True, eq=False)
class Unmasked(Visibility):
    """Every token sees all tokens: one sum serves all."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Sum over keys once, then multiply by the queries."""
        return a @ (b.mT @ c)

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Sum over queries once, then multiply by the keys."""
        return b @ (a.flatten(1, 2).mT @ g.flatten(1, 2)).unsqueeze(1)

    def jvp(self, at: Triple, tangents: Triple) -> Tensor:
        """Apply the product rule; the changes of keys and values share one product."""
        (a, b, c), (da, db, dc) = at, tangents
        # dbᵀc + bᵀdc, as one product over tokens stacked twice
        change = torch.cat((db, b), dim=-2).mT @ torch.cat((c, dc), dim=-2)
        return da @ (b.mT @ c) + a @ change


@dataclass(frozen=True, eq=False)
class Causal(Visibility):
    """A token sees itself and what came before: sums run along the sequence, chunk by chunk."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Sum over chunks that are past, and over the past within a chunk."""
        n = a.shape[-2]
        a, b, c = (_chunks(x) for x in (a, b, c))
        sums = b.mT @ c
        # what all earlier chunks sum up to; within a chunk the triangle of weights is small enough to be written out
        before = sums.cumsum(-3) - sums
        return (a @ before + (a @ b.mT).tril() @ c).flatten(-3, -2)[..., :n, :]

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Sum over the future: the past of the reversed sequence."""
        b, a, g = (x.flip(-2) for x in (b, a, g))
        return self.forward(b, a, g).sum(1, keepdim=True).flip(-2)

    def jvp(self, at: Triple, tangents: Triple) -> Tensor:
        """Apply the product rule; the changes of queries and keys share one sum."""
        (a, b, c), (da, db, dc) = at, tangents
        # ⟨da,b⟩ + ⟨a,db⟩ is one scalar product of features stacked twice, so T(da,b,c) + T(a,db,c) is one sum
        b2 = torch.cat((b, db), dim=-1)
        return self.forward(torch.cat((da, a), dim=-1), b2, c) + self.forward(a, b, dc)


@dataclass(frozen=True, eq=False)
class Masked(Visibility):
    """A token sees what a mask shows; the weights are a matrix."""

    mask: Bool[Tensor, "stack shared_or_1 n n"]

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Hide weights, then sum."""
        return (a @ b.mT * self.mask) @ c

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Hide weights, then sum over queries."""
        return ((b @ a.mT * self.mask.mT) @ g).sum(1, keepdim=True)

    def jvp(self, at: Triple, tangents: Triple) -> Tensor:
        """Apply the product rule."""
        (a, b, c), (da, db, dc) = at, tangents
        return ((da @ b.mT + a @ db.mT) * self.mask) @ c + self.forward(a, b, dc)

    def take(self, pick: Pick) -> "Masked":
        """Pick some entries of the batch."""
        return Masked(pick(self.mask))


def visibility(
    positions: Positions, batch: tuple[int, ...], layout: Layout, X: Float[Tensor, "*batch n d"]
) -> Visibility:
    """Return the sum over what each token sees; padding is left to masses."""
    n = X.shape[-2]
    if positions.mask is None and positions.window is None:
        return Causal() if positions.causal else Unmasked()
    S = torch.zeros(*batch, layout.heads, n, n, dtype=X.dtype, device=X.device)
    positions.apply(S, slice(0, n), slice(0, n))
    return Masked((-torch.inf < S).reshape(-1, layout.shared, n, n))


def _chunks(x: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch chunks chunk k"]:
    n = x.shape[-2]
    size = min(CHUNK, n)
    return torch.nn.functional.pad(x, (0, 0, 0, -n % size)).unflatten(-2, (-1, size))


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearJacobian(HeadsJacobian):
    r"""The derivative of linear attention.

    With :math:`T(a,b,c)_i = \sum_j\langle a_i,b_j\rangle c_j` and :math:`c_j = m_j[v_j, 1]` the means are the first
    entries of :math:`T(a,b,c)` over the last. T is linear in each of three:
    :math:`dT = T(da,b,c) + T(a,db,c) + T(a,b,dc)`.
    """

    visible: Visibility  # the sum over the tokens that each token sees
    a: Float[Tensor, "stack shared n k"]  # features of queries
    b: Float[Tensor, "stack 1 n k"]  # features of keys
    c: Float[Tensor, "stack 1 n c"]  # values, and ones below a denominator, times masses
    masses: Float[Tensor, "stack 1 n 1"] | None  # for how many tokens each counts; none for one
    total: Float[Tensor, "stack shared n 1"] | None  # the denominators, if there are any
    o: Float[Tensor, "stack shared n v"]  # the means of every head

    @property
    def means(self) -> Float[Tensor, "stack shared n v"]:
        """The means of every head."""
        return self.o

    @property
    def forward_rounding(self) -> float:
        r"""The share of a sum that rounding may have changed: features are as large as :math:`e^x` or x."""
        info, sizes = torch.finfo(self.dtype), [x.detach().abs() for x in (self.a, self.b)]
        smallest = min(float(x.min()) for x in sizes)
        exponent, lost = -math.log(smallest) if smallest > 0 else 0.0, 0.0
        if smallest == 0 and self.total is not None:  # exponentials below the range of the numbers are left out
            exponent = -math.log(info.tiny)
            largest, least = max(float(x.max()) for x in sizes), float(self.total.detach().min())
            lost = info.tiny * self.domain[0] * self.a.shape[-1] * largest / least if least > 0 else math.inf
        return info.eps * (max(exponent, 0.0) + 8) + lost

    @property
    def query_rounding(self) -> float:
        """Bound the rounding error of products with queries alone, relative to the projections."""
        sums = self.visible.forward(torch.ones_like(self.a), self.b.abs(), self.c.abs())
        size = sums if self.total is None else sums / self.total
        return 8 * torch.finfo(self.dtype).eps * float(size.norm(dim=-1).max())

    def push_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push perturbations of queries, keys and values to the means."""
        da, db, dc = dq.reshape(self.a.shape), dk.reshape(self.b.shape), dv.reshape(*self.c.shape[:-1], -1)
        dc = dc if self.masses is None else self.masses * dc
        if self.total is not None:
            dc = torch.nn.functional.pad(dc, (0, 1))
        return self._divided(self.visible.jvp((self.a, self.b, self.c), (da, db, dc)))

    def pull_means(self, g: Float[Tensor, "stack shared n v"]) -> tuple[Tensor, Tensor, Tensor]:
        """Pull a cotangent of the means back to queries, keys and values."""
        g = self._undivided(g)
        # ⟨g, T(a,b,c)⟩ is linear in each of the three, so every cotangent is the same sum with the roles exchanged
        da = self.visible.forward(g, self.c, self.b)
        db = self.visible.backward(self.c, g, self.a)
        dc = self.visible.backward(self.b, self.a, g)
        dc = dc if self.total is None else dc[..., :-1]
        dc = dc if self.masses is None else self.masses * dc
        return da, db, dc.contiguous()

    def push_queries(self, dq: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push a perturbation of each token's query to its mean, with keys and values fixed."""
        return self._divided(self.visible.forward(dq.reshape(self.a.shape), self.b, self.c))

    def pull_queries(self, g: Float[Tensor, "stack shared n v"]) -> Tensor:
        """Pull a cotangent of each token's mean back to its query."""
        return self.visible.forward(self._undivided(g), self.c, self.b)

    def _divided(self, dT: Tensor) -> Tensor:
        """Push a change of numerators and denominators to the means."""
        if self.total is None:
            return dT
        return torch.addcmul(dT[..., :-1], self.o, dT[..., -1:], value=-1) / self.total

    def _undivided(self, g: Tensor) -> Tensor:
        """Pull a cotangent of the means back to numerators and denominators."""
        if self.total is None:
            return g
        g = g / self.total
        return torch.cat((g, -(g * self.o).sum(-1, keepdim=True)), dim=-1)

    def take(self, index: Tensor) -> "LinearJacobian":
        """Pick some operators of the batch."""

        def pick(x: Tensor) -> Tensor:
            return x.unflatten(0, (math.prod(self.batch), -1))[index].flatten(0, 1)

        return dataclasses.replace(
            self,
            projections=self.projections.take(self.batch, index),
            output=take(self.output, self.batch, index, event=2),
            batch=(len(index),),
            visible=self.visible.take(pick),
            a=pick(self.a),
            b=pick(self.b),
            c=pick(self.c),
            masses=None if self.masses is None else pick(self.masses),
            total=None if self.total is None else pick(self.total),
            o=pick(self.o),
        )
