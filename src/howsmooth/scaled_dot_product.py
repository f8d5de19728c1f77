r"""Scaled dot-product attention with exact derivatives of every order, in memory linear in the number of tokens.

With :math:`S = s\,qk^\top + m`, :math:`P = \mathrm{softmax}(S)` and :math:`o = Pv`, let :math:`x = (q, k, v, m)`,
let :math:`\dot x` be a direction, g a cotangent of o, and :math:`\varphi(x;\dot x;g) = \langle g, Do(x)\dot x\rangle`.
Then :math:`\partial_g\varphi` is the Jacobian-vector product, :math:`\partial_{\dot x}\varphi` the vector-Jacobian
product, and :math:`\partial_x\varphi` is what double backward, forward over reverse and reverse over forward need.
These three have closed forms. All of them are sums over tiles of complete rows of S,

.. math:: F(x) = \sum_t E_t\,f(R_t x),

with f a function of a few rows, :math:`R_t` the restriction to a tile and :math:`E_t` its transpose. The derivatives of
such a sum are such sums again, of the derivatives of f: what has no closed form is differentiated tile by tile.
"""

import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.torch_internals import (
    add_product,
    fused_attention,
    fused_attention_backward,
    fused_is_chosen,
    fused_is_right,
    in_place,
    inside_transform,
    outside_of_compiled_code,
    recorded,
    softmax,
    softmax_derivative,
    with_rows_apart,
)

# Taken when this file is imported: others may put `sdpa` in its place.
TORCH_SDPA = functional.scaled_dot_product_attention
# How many scores a tile has (so that it stays in the cache), and how many of its rows belong to one head if possible.
TILE, ROWS = 2**19, 256

# Which axes tiles cut, besides those of the batch: queries and outputs have rows, keys and values columns, masks both.
Kind = Literal["rows", "columns", "scores"]
Tensors = tuple[Tensor, ...]
TileFunction = Callable[..., tuple[Tensor, ...]]


def sdpa(
    query: Float[Tensor, "... n_q k"],
    key: Float[Tensor, "... n_k k"],
    value: Float[Tensor, "... n_k v"],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    group: Any = None,
    positions: Int[Tensor, " n"] | None = None,
) -> Float[Tensor, "... n_q v"]:
    r"""Return :math:`\mathrm{softmax}(s\,qk^\top + m)\,v`, with exact derivatives of every order.

    Arguments and values are those of ``torch.nn.functional.scaled_dot_product_attention``, in every layout of memory,
    by its fused kernels where it takes them. Derivatives are exact in forward and reverse mode and any mix of them,
    under ``torch.func``, ``torch.vmap`` and checkpointing. Memory is linear in the number of tokens: the log-sum-exp of
    each row is kept, and weights are rebuilt, a few rows at a time. Half precision is accumulated in float32. Rows that
    a mask hides completely are zero, and so are their derivatives. Compiled code calls torch's function; where it
    applies ``torch.func`` itself, it has the same derivatives in one graph, but with the matrix of weights.

    In matrix products of the size of :math:`qk^\top`, a Jacobian-vector product takes 5, a vector-Jacobian
    product 5, a second derivative 12. A mask may be differentiated too; then its derivative is of its own size.

    Args:
        query: The queries.
        key: The keys; batch axes broadcast.
        value: The values.
        attn_mask: Where attention is allowed (boolean), or what is added to the scores; broadcast.
        dropout_p: The probability with which weights are dropped. If it is not zero, torch's own function is called,
            with the derivatives that it has.
        is_causal: Whether query i sees keys 0 to i only.
        scale: The factor s; :math:`1/\sqrt k` by default.
        enable_gqa: Whether several heads (the third axis from the end) of the queries share one of the keys.
        group: A process group of ``torch.distributed`` whose processes hold parts of one sequence, of any length:
            queries of this process see the keys of all. Derivatives are those of first order, in forward and reverse
            mode; all processes must take part in each.
        positions: With a group, where the tokens of this process lie in the sequence, which causal masks go by;
            consecutive parts in the order of ranks by default. Of tensors that a load balancer of
            ``torch.distributed.tensor.experimental.context_parallel`` shared out, ``torch.arange(n)`` shared out alike.

    Raises:
        ShapeError: If shapes do not fit together.
        DtypeError: If the dtypes of queries, keys and values differ.
        AssumptionError: If both ``attn_mask`` and ``is_causal`` are given.
    """
    if group is not None:
        from howsmooth.ring_attention import ring_sdpa  # torch.distributed, for those who need it

        if attn_mask is not None or dropout_p > 0:
            raise AssumptionError("over a group, attention knows causal masks, and no dropout.", field="group")
        return ring_sdpa(
            query, key, value, group, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa, positions=positions
        )
    if positions is not None:
        raise AssumptionError("positions are those of tokens that a group shares out; give group.", field="positions")
    compiled, transformed = torch.compiler.is_compiling(), inside_transform()
    if attn_mask is not None and attn_mask.dtype == torch.float32 and query.dtype == torch.float64:
        attn_mask = attn_mask.double()  # torch's fused kernel would leave out half of the columns
    if not compiled:
        query, key, value = (with_rows_apart(x) for x in (query, key, value))
    given = [x for x in (query, key, value, attn_mask) if x is not None]
    plain = not transformed if compiled else not recorded(*given)
    plain = plain and fused_is_right(causal=is_causal, scale=scale)
    if plain or dropout_p > 0 or 0 in (query.numel(), key.numel(), value.numel()):
        return TORCH_SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    device = query.device.type
    if torch.is_autocast_enabled(device):  # what torch's function does to its arguments
        dtype = torch.get_autocast_dtype(device)
        given = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in given]
        query, key, value = given[:3]
        attn_mask = None if attn_mask is None else given[3]
    _check(query, key, value, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    if compiled:
        return _composed(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    fused = device != "cpu" or accumulated(query.dtype) == query.dtype
    if not fused and not transformed:
        # In half precision torch's math kernel computes in float32, and the fused one rounds weights: it is taken where
        # torch itself takes it, which transforms do not let one ask.
        fused = fused_is_chosen(query, key, value, attn_mask, causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    inputs, settings = arrange(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    found, _log_sum_exp = _TiledSum.apply(_Value(settings, fused), *inputs)
    if max(query.ndim, key.ndim, value.ndim) == 2:
        return found.squeeze(0)
    return found.flatten(-4, -3) if enable_gqa else found


def _composed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    *,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Return attention by public operations alone, which the compiler differentiates as often as it is asked to."""
    q, k, v = (x.to(accumulated(x.dtype)) for x in (query, key, value))
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    with torch.autocast(query.device.type, enabled=False):
        S = torch.matmul(q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale), k.mT)
        later = torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device).triu(1) if is_causal else None
        return torch.matmul(_weights(S, later, attn_mask), v).to(query.dtype)


def _weights(S: Tensor, hidden: Tensor | None, mask: Tensor | None) -> Tensor:
    """Return the attention weights of scores; rows that see nothing are zero, and so are their derivatives."""
    if hidden is not None:
        S = S.masked_fill(hidden, -math.inf) if inside_transform() else S.masked_fill_(hidden, -math.inf)
    if mask is None:
        return softmax(S)
    S = S.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else S + mask
    empty = torch.isneginf(S).all(-1, keepdim=True)
    return softmax(S.masked_fill(empty, 0.0)).masked_fill(empty, 0.0)


def arrange(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[list[Tensor], "Settings"]:
    """Return queries, keys, values and perhaps a mask with the same batch axes, at least one; masks broadcast."""
    if enable_gqa:  # heads of a group are one more batch axis, over which keys and values broadcast
        if key.shape[-3] != value.shape[-3]:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        shared = key.shape[-3]
        query, key, value = query.unflatten(-3, (shared, -1)), key.unsqueeze(-3), value.unsqueeze(-3)
        if attn_mask is not None and attn_mask.ndim > 2:
            heads = (1, 1) if attn_mask.shape[-3] == 1 else (shared, -1)
            attn_mask = attn_mask.unflatten(-3, heads)
    batch = _broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    inputs = [x.expand(*(batch or (1,)), *x.shape[-2:]) for x in (query, key, value)]
    if attn_mask is not None:
        missing = len(batch or (1,)) + 2 - attn_mask.ndim
        mask = attn_mask.reshape(*(1,) * missing, *attn_mask.shape)
        inputs.append(mask.expand(*mask.shape[:-1], key.shape[-2]))
    return inputs, Settings(
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        causal=is_causal,
        masked=attn_mask is not None,
        varied=4 if attn_mask is not None and attn_mask.is_floating_point() else 3,
    )


def _check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool, enable_gqa: bool
) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise DtypeError(f"query, key and value need one dtype, got {query.dtype}, {key.dtype}, {value.dtype}.")
    if min(query.ndim, key.ndim, value.ndim) < 2 + enable_gqa:
        raise ShapeError(
            f"query, key and value need axes for {'heads, ' * enable_gqa}tokens and features, got "
            f"{_shapes(query, key, value)}."
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"query and key need the same features, key and value the same tokens, got {_shapes(query, key, value)}."
        )
    if enable_gqa and any(query.shape[-3] % x.shape[-3] for x in (key, value)):
        raise ShapeError(
            "with enable_gqa, the heads of query must be a multiple of those of key and of value, got "
            f"{_shapes(query, key, value)}."
        )
    try:
        # of the heads of groups only those of the queries count
        batch = _broadcast(query.shape[:-2], *((*x.shape[: -2 - enable_gqa], 1)[: x.ndim - 2] for x in (key, value)))
    except RuntimeError as error:
        raise ShapeError(
            f"the batch axes of query, key and value must broadcast, got {_shapes(query, key, value)}."
        ) from error
    if mask is None:
        return
    if is_causal:
        raise AssumptionError("give attn_mask or is_causal=True, not both; put both into one mask.", field="attn_mask")
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise DtypeError(
            f"attn_mask must be boolean, float32 or of the dtype of query, {query.dtype}, got {mask.dtype}.",
            field="attn_mask",
        )
    scores = (*batch, query.shape[-2], key.shape[-2])
    if mask.ndim > len(scores) or any(m not in (1, n) for m, n in zip(mask.shape[::-1], scores[::-1], strict=False)):
        raise ShapeError(
            f"attn_mask must broadcast to the scores, {scores}, got {tuple(mask.shape)}.", field="attn_mask"
        )


def _shapes(*tensors: Tensor) -> str:
    return ", ".join(str(tuple(x.shape)) for x in tensors)


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    # equal ones first: torch's function takes as long as a small product
    return shapes[0] if shapes[1:] == shapes[:1] * (len(shapes) - 1) else torch.broadcast_shapes(*shapes)


@dataclass(frozen=True)
class Settings:
    """What all tiles share."""

    scale: float  # the factor of the scores
    causal: bool  # whether query i sees keys 0 to i only
    masked: bool  # whether a mask is the fourth input
    varied: int  # how many of the inputs q, k, v, m derivatives are taken in: 3 where the mask is constant

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the inputs."""
        kinds: tuple[Kind, ...] = ("rows", "columns", "columns", "scores")
        return kinds[: 3 + self.masked]


@dataclass(frozen=True)
class RowTile:
    """A few complete rows of scores."""

    batch: tuple[slice, ...]  # which entries of each batch axis
    rows: slice  # which queries
    columns: slice  # which keys these may see

    def region(self, x: Tensor, kind: Kind) -> Tensor:
        """Return the part of a tensor that the tile has to do with; axes of length one are broadcast."""
        cuts = {"rows": (self.rows,), "columns": (self.columns,), "scores": (self.rows, self.columns)}[kind]
        cuts = (*self.batch, *cuts)
        return x[tuple(slice(None) if size == 1 else cut for cut, size in zip(cuts, x.shape, strict=False))]

    def restrict(self, x: Tensor, kind: Kind) -> Tensor:
        """Return that part with one batch axis, in the precision that is computed with."""
        part = self.region(x, kind)
        if kind == "scores" and part.shape[:-2].numel() > 1:
            part = part.expand(*(cut.stop - cut.start for cut in self.batch), *part.shape[-2:])
        part = part.flatten(0, -3)
        return part.to(accumulated(part.dtype)) if part.is_floating_point() else part

    def extend(self, total: Tensor, part: Tensor, kind: Kind) -> None:
        """Put a part in its place, which is the transpose of the restriction: what tiles share is added up."""
        region = self.region(total, kind)
        if kind == "rows":
            region.copy_(part.view(region.shape))
            return
        if kind == "scores" and region.shape[:-2].numel() > 1:
            part = part.unflatten(0, [cut.stop - cut.start for cut in self.batch]).sum_to_size(region.shape)
        region.add_(part.view(region.shape))

    def hidden(self, settings: Settings, device: torch.device) -> Bool[Tensor, "rows columns"] | None:
        """Return the scores of keys that come after the query, in causal attention."""
        if not settings.causal:
            return None
        size = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        return torch.ones(size, dtype=torch.bool, device=device).triu_(self.rows.start + 1)


def tiles(batch: tuple[int, ...], n_q: int, n_k: int, *, causal: bool) -> Iterator[RowTile]:
    """Cut the scores into tiles."""
    rows = max(1, min(n_q, max(ROWS, TILE // max(n_k * math.prod(batch), 1)), TILE // max(n_k, 1)))
    matrices, steps = max(1, TILE // max(n_k * rows, 1)), []
    for size in reversed(batch):
        steps.append(max(1, min(size, matrices)))
        matrices //= steps[-1]
    cuts = [_cuts(size, step) for size, step in zip(batch, reversed(steps), strict=True)]
    for *entries, some_rows in itertools.product(*cuts, _cuts(n_q, rows)):
        columns = slice(0, min(n_k, some_rows.stop) if causal else n_k)
        yield RowTile(batch=tuple(entries), rows=some_rows, columns=columns)


def _cuts(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of sums."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class _TiledSum(torch.autograd.Function):
    r"""The sum :math:`\sum_t E_t\,f(R_tx)` of a rule; its derivatives are the sums of other rules."""

    @staticmethod
    def forward(rule: "_Rule", *tensors: Tensor) -> tuple[Tensor, ...]:
        # autocast would round single products of a tile, and not others
        with torch.autocast(tensors[0].device.type, enabled=False):
            return rule.evaluate(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rule, *tensors = inputs
        ctx.count = len(tensors)
        kept = output if isinstance(ctx.rule, _Value) else ()
        if kept:
            ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *kept)
        ctx.save_for_forward(*tensors, *kept)

    @staticmethod
    @outside_of_compiled_code  # a compiled training step that runs it would compile its tiles one by one
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.rule.pull(ctx.saved_tensors, cotangents, ctx.needs_input_grad[1:])

    @staticmethod
    def jvp(ctx: Any, _rule: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return ctx.rule.push(ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rule: "_Rule", *tensors: Tensor) -> tuple[Any, int]:
        # one more batch axis in front; what is the same for all entries is a view
        batched = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        return _TiledSum.apply(rule, *batched), 0


@dataclass(frozen=True)
class _Rule(ABC):
    """A function of tiles; unless a rule knows better, its derivatives are those of the function, tile by tile."""

    settings: Settings  # what all tiles share

    @property
    @abstractmethod
    def inputs(self) -> tuple[Kind, ...]:
        """The kinds of the inputs: q, k, v and perhaps m, then others."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Kind, ...]:
        """The kinds of the outputs."""

    @abstractmethod
    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return the function at one tile, where some scores are hidden."""

    @property
    def varied(self) -> tuple[int, ...]:
        """The inputs in which derivatives are taken."""
        constant = self.settings.masked and self.settings.varied == 3
        return tuple(i for i in range(len(self.inputs)) if not (constant and i == 3))

    def evaluate(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Add up the tiles."""
        q, k = tensors[:2]
        totals: list[Tensor] = []
        for tile in tiles(q.shape[:-2], q.shape[-2], k.shape[-2], causal=self.settings.causal):
            parts = self.tile(
                tile.hidden(self.settings, q.device),
                *(tile.restrict(x, kind) for x, kind in zip(tensors, self.inputs, strict=False)),
            )
            if not totals:
                totals = [self._zeros(part, kind, tensors) for part, kind in zip(parts, self.outputs, strict=True)]
            for total, part, kind in zip(totals, parts, self.outputs, strict=True):
                tile.extend(total, part, kind)
        return tuple(
            total.to(tensors[3 if kind == "scores" else 0].dtype)
            for total, kind in zip(totals, self.outputs, strict=True)
        )

    def _zeros(self, part: Tensor, kind: Kind, tensors: tuple[Tensor, ...]) -> Tensor:
        q, k = tensors[:2]
        if kind == "scores":
            return part.new_zeros(tensors[3].shape)
        return part.new_zeros(*q.shape[:-2], (q if kind == "rows" else k).shape[-2], part.shape[-1])

    def pull(self, tensors: Tensors, cotangents: Tensors, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        """Return the cotangents of the inputs."""
        return self.spread(_TiledSum.apply(_Transposed(self.settings, self), *tensors, *cotangents))

    def push(self, tensors: Tensors, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Return the tangents of the outputs."""
        return _TiledSum.apply(_Linearised(self.settings, self), *tensors, *self.gather(tensors, tangents))

    def gather(self, tensors: Tensors, tangents: tuple[Tensor | None, ...]) -> list[Tensor]:
        """Return the tangents of what varies, zero where there is none."""
        return [torch.zeros_like(tensors[i]) if (t := tangents[i]) is None else t for i in self.varied]

    def spread(self, cotangents: Tensors) -> tuple[Tensor | None, ...]:
        """Return the cotangents of all inputs: none for what does not vary."""
        found = dict(zip(self.varied, cotangents, strict=True))
        return tuple(found.get(i) for i in range(len(self.inputs)))

    def weights(self, hidden: Tensor | None, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention weights of a tile."""
        return _weights(torch.bmm(q * self.settings.scale, k.mT), hidden, mask)

    def of_varied(self, hidden: Tensor | None, parts: Tensors) -> tuple[TileFunction, list[Tensor]]:
        """Return the function of a tile in what varies, and where it is evaluated."""

        def function(*varied: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip(self.varied, varied, strict=True))
            return self.tile(hidden, *(given.get(i, part) for i, part in enumerate(parts[: len(self.inputs)])))

        return function, [parts[i] for i in self.varied]

    def split(self, parts: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensors]:
        """Return q, k, v, m, and the other inputs."""
        count = 3 + self.settings.masked
        q, k, v = parts[:3]
        return q, k, v, parts[3] if self.settings.masked else None, parts[count:]


@dataclass(frozen=True)
class _Value(_Rule):
    """Attention, and the log-sum-exp of its scores where a fused kernel has it."""

    fused: bool = True  # whether it may be asked

    @property
    def inputs(self) -> tuple[Kind, ...]:
        return self.settings.kinds

    @property
    def outputs(self) -> tuple[Kind, ...]:
        return ("rows",)

    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        q, k, v, mask, _none = self.split(parts)
        return (torch.bmm(self.weights(hidden, q, k, mask), v),)

    def evaluate(self, tensors: Tensors) -> tuple[Tensor, ...]:
        q, k, v, mask, _none = self.split(tensors)
        if self.fused:
            found = fused_attention(q, k, v, mask, causal=self.settings.causal, scale=self.settings.scale)
            if found is not None:
                return found
        return *super().evaluate(tensors), q.new_empty(*q.shape[:-2], 0)

    def pull(self, tensors: Tensors, cotangents: Tensors, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        settings = self.settings
        if settings.varied == 4 and not needed[3]:
            settings = dataclasses.replace(settings, varied=3)
        *x, o, log_sum_exp = tensors
        # detached: with an edge to its output, attention would be pulled back once more, along zero
        found = _TiledSum.apply(_VectorJacobian(settings), *x, cotangents[0], o.detach(), log_sum_exp)
        return *found, *(None,) * (len(x) - len(found))

    def push(self, tensors: Tensors, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        settings = self.settings
        if settings.varied == 4 and tangents[3] is None:
            settings = dataclasses.replace(settings, varied=3)
        *x, _o, _log_sum_exp = tensors
        (found,) = _TiledSum.apply(_JacobianVector(settings), *x, *_Value(settings).gather(tensors, tangents))
        return found, None


class _JacobianVector(_Rule):
    r"""The Jacobian-vector product :math:`\dot o = \dot Pv + P\dot v`.

    Here :math:`\dot P = P\circ(\dot S - \mathrm{rowsum}(P\circ\dot S))` and
    :math:`\dot S = s(\dot qk^\top + q\dot k^\top) + \dot m`.
    """

    @property
    def inputs(self) -> tuple[Kind, ...]:
        return *self.settings.kinds, *self.settings.kinds[: self.settings.varied]

    @property
    def outputs(self) -> tuple[Kind, ...]:
        return ("rows",)

    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        q, k, v, mask, tangents = self.split(parts)
        P = self.weights(hidden, q, k, mask)
        dP = softmax_derivative(self.change(q, k, *tangents), P)
        return (add_product(torch.bmm(dP, v), P, tangents[2]),)

    def change(self, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor, _dv: Tensor, dm: Tensor | None = None) -> Tensor:
        r"""Return the change of the scores, :math:`s(\dot q k^\top + q\dot k^\top) + \dot m`."""
        # one product of doubled width: a tile is written once
        dS = torch.bmm(torch.cat((dq, q), -1) * self.settings.scale, torch.cat((k, dk), -1).mT)
        return dS if dm is None else dS + dm

    def pull(self, tensors: Tensors, cotangents: Tensors, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        count = len(self.settings.kinds)
        x = tensors[:count]
        none = x[0].new_empty(*x[0].shape[:-2], 0)
        second = _TiledSum.apply(_SecondDerivative(self.settings), *tensors, *cotangents)
        first = _TiledSum.apply(_VectorJacobian(self.settings), *x, *cotangents, cotangents[0], none)
        return *second, *(None,) * (count - len(second)), *first


class _VectorJacobian(_Rule):
    r"""The vector-Jacobian product.

    With :math:`G = gv^\top` and :math:`D = P\circ(G - \mathrm{rowsum}(P\circ G))` it is :math:`\bar q = sDk`,
    :math:`\bar k = sD^\top q`, :math:`\bar v = P^\top g`, :math:`\bar m = D`.

    Its last two inputs, o and the log-sum-exp, are for the fused kernel; its derivatives do not pass through them.
    """

    @property
    def inputs(self) -> tuple[Kind, ...]:
        return *self.settings.kinds, "rows"

    @property
    def outputs(self) -> tuple[Kind, ...]:
        return self.settings.kinds[: self.settings.varied]

    def evaluate(self, tensors: Tensors) -> tuple[Tensor, ...]:
        q, k, v, mask, (g, o, log_sum_exp) = self.split(tensors)
        if log_sum_exp.shape[-1] and self.settings.varied == 3:
            settings = self.settings
            return fused_attention_backward(
                g, q, k, v, o, log_sum_exp, mask, causal=settings.causal, scale=settings.scale
            )
        return super().evaluate(tensors)

    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        q, k, v, mask, (g,) = self.split(parts)
        P, s = self.weights(hidden, q, k, mask), self.settings.scale
        D = softmax_derivative(torch.bmm(g, v.mT), P)
        found = torch.bmm(D, k) * s, torch.bmm(D.mT, q) * s, torch.bmm(P.mT, g)
        return found if mask is None or self.settings.varied == 3 else (*found, D.sum_to_size(mask.shape))

    def pull(self, tensors: Tensors, cotangents: Tensors, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        *x, g, _o, _log_sum_exp = tensors
        *second, first = _TiledSum.apply(_SecondDerivative(self.settings, "reverse"), *x, *cotangents, g)
        return *second, *(None,) * (len(x) - len(second)), first, None, None

    def push(self, tensors: Tensors, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        *x, g, _o, _log_sum_exp = tensors
        *dx, dg = self.gather(tensors, tangents)
        # Why one rule and not the sum of two: while torch pushes forward, it does not differentiate the sum
        return _TiledSum.apply(_SecondDerivative(self.settings, "forward"), *x, *dx, g, dg)


@dataclass(frozen=True)
class _SecondDerivative(_JacobianVector):
    r"""The derivative of :math:`\varphi = \langle g, Do(x)\dot x\rangle` in x.

    With :math:`\dot S, \dot P` as in :class:`_JacobianVector`, G and D as in :class:`_VectorJacobian`, and the row
    means :math:`t = \mathrm{rowsum}(P\circ\dot S)`, :math:`r = \mathrm{rowsum}(P\circ G)`,

    .. math::
        \bar S &= P\circ(B - \mathrm{rowsum}(P\circ B)),\quad
                 B = (\dot S - t)\circ(G - r) + g\dot v^\top + \dot gv^\top, \\
        \bar q &= s(\bar Sk + D\dot k),\quad \bar k = s(\bar S^\top q + D^\top\dot q),\quad
        \bar v = \dot P^\top g + P^\top\dot g,\quad \bar m = \bar S.

    Attributes:
        over: ``"forward"`` if :math:`\dot g` is one more input: forward mode over the vector-Jacobian product.
            ``"reverse"`` if the derivative in g, which is :math:`\dot o`, is one more output: reverse mode over it.
    """

    over: Literal["forward", "reverse"] | None = None

    @property
    def inputs(self) -> tuple[Kind, ...]:
        return (*super().inputs, "rows", "rows") if self.over == "forward" else (*super().inputs, "rows")

    @property
    def outputs(self) -> tuple[Kind, ...]:
        found = self.settings.kinds[: self.settings.varied]
        return (*found, "rows") if self.over == "reverse" else found

    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        q, k, v, mask, others = self.split(parts)
        dx, g = others[: self.settings.varied], others[self.settings.varied]
        dq, dk, dv = dx[:3]
        P, s = self.weights(hidden, q, k, mask), self.settings.scale
        T, G = self.change(q, k, *dx), torch.bmm(g, v.mT)
        (T, dP), (G, D) = _centred(T, P), _centred(G, P)
        B = add_product(T.mul_(G) if in_place(T, G) else T * G, g, dv.mT)
        v_bar = torch.bmm(dP.mT, g)
        if self.over == "forward":
            dg = others[-1]
            B, v_bar = add_product(B, dg, v.mT), add_product(v_bar, P.mT, dg)
        S = softmax_derivative(B, P)
        q_bar, k_bar = add_product(torch.bmm(S, k), D, dk), add_product(torch.bmm(S.mT, q), D.mT, dq)
        found = [q_bar * s, k_bar * s, v_bar]
        if mask is not None and self.settings.varied == 4:
            found.append(S.sum_to_size(mask.shape))
        if self.over == "reverse":
            found.append(add_product(torch.bmm(dP, v), P, dv))
        return tuple(found)

    pull = _Rule.pull


def _centred(D: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`D - \mathrm{rowsum}(P\circ D)`, in place of ``D`` where that is allowed, and P times it."""
    weighted = P * D
    mean = weighted.sum(-1, keepdim=True)
    if not in_place(D, P):
        D = D - mean
        return D, P * D
    return D.sub_(mean), torch.mul(P, D, out=weighted)


@dataclass(frozen=True)
class _Transposed(_Rule):
    """The vector-Jacobian product of any rule, by autograd in each tile."""

    rule: _Rule

    @property
    def inputs(self) -> tuple[Kind, ...]:
        return *self.rule.inputs, *self.rule.outputs

    @property
    def outputs(self) -> tuple[Kind, ...]:
        return tuple(self.rule.inputs[i] for i in self.rule.varied)

    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        function, varied = self.rule.of_varied(hidden, parts)
        _value, pull = torch.func.vjp(function, *varied)  # type: ignore[misc]
        return pull(parts[len(self.rule.inputs) :])


@dataclass(frozen=True)
class _Linearised(_Rule):
    """The Jacobian-vector product of any rule, by autograd in each tile."""

    rule: _Rule

    @property
    def inputs(self) -> tuple[Kind, ...]:
        return *self.rule.inputs, *(self.rule.inputs[i] for i in self.rule.varied)

    @property
    def outputs(self) -> tuple[Kind, ...]:
        return self.rule.outputs

    def tile(self, hidden: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
        function, varied = self.rule.of_varied(hidden, parts)
        tangents = parts[len(self.rule.inputs) :]
        _value, pushed = torch.func.jvp(function, tuple(varied), tangents)  # type: ignore[misc]
        return pushed
