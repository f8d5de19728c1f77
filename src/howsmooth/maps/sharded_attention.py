"""Maps on a sequence whose tokens several processes share out: attention over a ring, the rest token by token."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import Operator, on_tokens, take
from howsmooth.maps.activations import Pointwise
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import ComposedMap
from howsmooth.maps.heads_derivative import project_heads
from howsmooth.maps.mlp import MLP, Dense, GatedMLP
from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.projections import NO_TRANSFORMS, Projections
from howsmooth.ring_attention import RingAttention
from howsmooth.token_ring import TokenRing
from howsmooth.validation import require_tokens

# Maps that act on each token by itself.
TOKENWISE = (LayerNorm, RMSNorm, Dense, MLP, GatedMLP, Pointwise)


def sharded(f: Any, ring: TokenRing) -> Any:
    """Return a map on this process's tokens whose attention sees those of all processes; other callables as they are.

    Callables that are no maps of howsmooth must talk to the other processes themselves, as ``hs.sdpa(…, group=…)``.
    """
    if isinstance(f, Attention):
        return ShardedAttention(attention=f, ring=ring)
    if isinstance(f, ComposedMap):
        return f.with_children(*(sharded(part, ring) for part in f.children))
    if isinstance(f, TOKENWISE) or not hasattr(f, "jacobian"):
        return f
    raise AssumptionError(
        f"{type(f).__name__} is not shared out over processes: softmax attention is, and maps on single tokens, and "
        "compositions of them.",
        field="group",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedAttention:
    """Softmax attention on the tokens of this process, which sees the tokens of all."""

    attention: Attention
    ring: TokenRing

    def __post_init__(self) -> None:
        order = self.attention.positions
        parts: dict[str, Any] = {"padding": order.padding, "mask": order.mask, "distances": order.distances}
        parts |= {"weights": self.attention.weights, "rotary positions": order.rotary and order.rotary.positions}
        if refused := [name for name, part in parts.items() if part is not None]:
            raise AssumptionError(
                f"attention with {' and '.join(refused)} is not shared out over processes; causal masks, windows, "
                "rotary embeddings and biases of positions are.",
                field="group",
            )
        if order.batch or self.attention.query.ndim > 3:
            raise AssumptionError("a batch of maps is not shared out over processes; give one map.", field="group")
        order.check(sum(self.ring.lengths))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return self.attention.dtype

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "ShardedAttention":
        """Return the same map in another dtype or on another device."""
        return dataclasses.replace(self, attention=self.attention.to(dtype, device))

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply the map; all processes must call it."""
        f, (found, _projections) = self.attention, self._attend(X)
        batch = tuple(X.shape[:-2])
        return f._put_out(f._shifted(found.o, batch) if f.sink is None else found.o, f._joined_output(), batch)

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "ShardedJacobian":
        """Differentiate at ``X``; all processes must call it, and every product."""
        found, projections = self._attend(X)
        return ShardedJacobian(
            projections=projections,
            ring_attention=found,
            scale=self.attention.score_scale,
            output=self.attention._joined_output(),
            **on_tokens(X, self.attention.out),
        )

    def _attend(self, X: Tensor) -> tuple[RingAttention, Projections]:
        f, order, layout = self.attention, self.attention.positions, self.attention.layout
        require_tokens(X, f.query)
        n, own = X.shape[-2], self.ring.positions.to(X.device)
        rotary = None if order.rotary is None else dataclasses.replace(order.rotary, positions=own)
        # weights that sum to one let the bias of values through, with a sink they do not
        bias = None if f.sink is None else f.value_bias
        q, k, v, projections = f._project(X, NO_TRANSFORMS, f.value, rotary, value_bias=bias)
        batch = X.shape[:-2].numel()
        biased = order.relative_bias is not None or order.position_bias is not None
        found = RingAttention.at(
            ring=self.ring,
            q=(q * f.score_scale).reshape(-1, layout.shared, n, layout.k),
            k=k.reshape(-1, n, layout.k),
            v=v.reshape(-1, n, layout.v),
            causal=order.causal,
            window=order.window,
            softcap=f.softcap,
            bias=self._add_bias if biased else None,
            sink=None if f.sink is None else f.sink.expand(batch, -1).reshape(-1, layout.shared),
        )
        return found, projections

    def _add_bias(self, S: Float[Tensor, "stack shared rows columns"], rows: slice, columns: slice) -> None:
        order = self.attention.positions
        by_head = S.view(-1, self.attention.layout.heads, *S.shape[-2:])
        if order.relative_bias is not None:
            i, j = (torch.arange(at.start, at.stop, device=S.device) for at in (rows, columns))
            by_head += order.relative_bias[..., j - i[:, None] + order.relative_bias.shape[-1] // 2]
        if order.position_bias is not None:
            by_head += order.position_bias[..., None, columns]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedJacobian(Operator):
    """The derivative of sharded attention: this process's rows of products with the derivative at all tokens."""

    projections: Projections  # the derivative of tokens ↦ queries, keys, values
    ring_attention: RingAttention
    scale: float  # of the scores
    output: Float[Tensor, "out hv"] | None  # the output projections side by side; none for concatenated heads

    def _push(self, E: Tensor) -> Tensor:
        found = self.ring_attention
        dq, dk, dv = self.projections.jvp(E)
        moved = found.push(self.scale * dq, dk.reshape(found.k.shape), dv.reshape(found.v.shape))
        return project_heads(moved, self.output, self.batch)

    def _pull(self, G: Tensor) -> Tensor:
        layout = self.projections.layout
        g = G if self.output is None else G @ self.output
        g = g.unflatten(-1, (layout.heads, layout.v)).transpose(-2, -3)
        pulled = self.ring_attention.pull(g.reshape(self.ring_attention.o.shape))
        dq, dk, dv = (x.reshape(*self.batch, -1, self.domain[0], x.shape[-1]) for x in pulled)
        return self.projections.vjp(self.scale * dq, dk, dv)

    def take(self, index: Tensor) -> "ShardedJacobian":
        """Pick some operators of the batch; all processes must pick the same."""
        return dataclasses.replace(
            self,
            projections=self.projections.take(self.batch, index),
            ring_attention=self.ring_attention.take(index, self.projections.layout.groups),
            output=take(self.output, self.batch, index, event=2),
            batch=(len(index),),
        )
