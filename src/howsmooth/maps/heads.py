"""MultiHead: what every kind of attention shares, from tokens to the queries, keys and values of heads and back."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DeviceError, ShapeError
from howsmooth.maps.heads_derivative import HeadsJacobian, QuerySide, project_heads
from howsmooth.maps.mean_field_maps import Atoms, WeightedJacobian, visible
from howsmooth.maps.norms import HeadNorm, JointNorm, acting_norm, check_head_norm, normalise
from howsmooth.maps.positions import Positions, Rotary, broadcast_shapes
from howsmooth.maps.projections import Layout, Projections, Transforms, sizes_of
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import (
    require_agreement,
    require_finite,
    require_floating,
    require_parameter,
    require_shape,
    require_tokens,
    tokens_for,
)

GIBIBYTE = 2**30
H = TypeVar("H", bound="MultiHead")
# A function of a tensor and the axis of it that heads, or groups, are on.
OnHeads = Callable[[Tensor | None, int], Tensor | None]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MultiHead(TensorDataclass, ABC):
    """Multi-head attention with any rule from queries and keys to weights, as a frozen value.

    The fields are those of :class:`howsmooth.Attention`, which also says how heads share keys and values.
    """

    query: Float[Tensor, "*w heads k d"]
    key: Float[Tensor, "*w groups k d"]
    value: Float[Tensor, "*w groups v d"]
    output: Float[Tensor, "*w heads out v"] | None = None
    query_bias: Float[Tensor, "*w heads k"] | None = None
    key_bias: Float[Tensor, "*w groups k"] | None = None
    value_bias: Float[Tensor, "*w groups v"] | None = None
    output_bias: Float[Tensor, "*w out"] | None = None
    query_norm: HeadNorm = None
    key_norm: HeadNorm = None
    positions: Positions = field(default_factory=Positions)
    weights: Float[Tensor, "... n"] | None = None

    # fields with one number for each head
    for_each_head: ClassVar[tuple[str, ...]] = ()
    # the names of its kinds, each with the fields that select it, and those of them that need `count` on measures
    kinds: ClassVar[dict[str, dict[str, Any]]] = {}
    counting_kinds: ClassVar[tuple[str, ...]] = ()
    # fields of a single head that differ from the defaults of the class
    single_head_defaults: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        _check_projections(self)
        _check_biases(self)
        self._check_options()
        _check_positions(self)

    @classmethod
    def single_head(
        cls: type[H],
        *,
        Q: Float[Tensor, "k d"] | Any,
        K: Float[Tensor, "k d"] | Any,
        V: Float[Tensor, "v d"] | Any,
        causal: bool = False,
        positions: Positions | None = None,
        weights: Float[Tensor, "... n"] | None = None,
        **options: Any,
    ) -> H:
        r"""Build one head of scale one, with queries :math:`Qx_i`, keys :math:`Kx_j` and values :math:`Vx_j`.

        Args:
            Q: The query projection.
            K: The key projection.
            V: The value projection.
            causal: Whether a token sees only itself and the past.
            positions: Any other mask; not together with ``causal``.
            weights: The mass of each token.
            options: Other fields of the class; those with one entry for each head are given as a number.
        """
        Q, K, V = (tokens_for(x, None) for x in (Q, K, V))
        for name, x in (("Q", Q), ("K", K), ("V", V)):
            require_floating(x, name)
            if x.ndim != 2:
                raise ShapeError(f"{name} must be a matrix, got {tuple(x.shape)}.", field=name)
        if positions is not None and causal:
            raise AssumptionError("give either causal=True or positions=…, not both; Positions has a causal field.")
        fields = cls.single_head_defaults | options
        for name in cls.for_each_head:
            if fields.get(name) is not None:
                fields[name] = Q.new_full((1,), fields[name])
        positions = positions or Positions(causal=causal)
        return cls(query=Q[None], key=K[None], value=V[None], positions=positions, weights=weights, **fields)

    @abstractmethod
    def _check_options(self) -> None:
        """Refuse options of this kind that have no meaning."""

    @abstractmethod
    def jacobian(self, X: Float[Tensor, "*batch n d"], *, memory: int = GIBIBYTE) -> HeadsJacobian:
        """Differentiate at ``X``; ``memory`` bytes of attention weights may be kept."""

    @abstractmethod
    def _means(self, X: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Return the means of every head at tokens that are admitted."""

    @property
    def layout(self) -> Layout:
        """The numbers of heads and groups and their widths."""
        return Layout(self.query.shape[-3], self.key.shape[-3], self.key.shape[-2], self.value.shape[-2])

    @property
    def d(self) -> int:
        """The dimension of a token."""
        return self.query.shape[-1]

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.layout.heads * self.layout.v if self.output is None else self.output.shape[-2]

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*more n out"]:
        """Apply attention to every sequence of the batch."""
        X = self._admit(X)
        return self._put_out(self._means(X), self._joined_output(), tuple(X.shape[:-2]))

    def on(self: H, measure: object) -> H:
        r"""Return the map that moves the atoms of a measure: its masses are token weights, its positions the mask.

        Under a causal mask an atom sees those at its own position or before.

        Args:
            measure: Anything with ``points``, ``weights`` and ``positions``, such as a
                :class:`howsmooth.transport.DiscreteMeasure`.
        """
        order, positions = self.positions, Positions()
        if not isinstance(measure, Atoms):
            raise AssumptionError(
                f"{type(self).__name__} moves measures with atoms, hs.transport.DiscreteMeasure, got a "
                f"{type(measure).__name__}; hs.Attention moves Gaussian ones too.",
                field="measure",
            )
        if self.weights is not None:
            raise AssumptionError(
                "this attention has token weights of its own; a measure brings its masses along.", field="attention"
            )
        if any(x is not None for x in (order.window, order.padding, order.mask)):
            raise AssumptionError(
                "attention on measures knows the causal mask and no mask, got another one.", field="attention"
            )
        if any(x is not None for x in (order.rotary, order.relative_bias, order.position_bias, order.distances)):
            raise AssumptionError(
                "attention on measures has no order of tokens for rotary positions, distances or biases of positions.",
                field="attention",
            )
        if order.causal:
            if measure.positions is None:
                raise AssumptionError(
                    "masked attention needs the positions of atoms; use DiscreteMeasure(points, weights, positions) or "
                    "DiscreteMeasure.from_sequence(X, causal=True).",
                    field="measure",
                )
            positions = Positions(mask=visible(measure.positions))
        return dataclasses.replace(self, weights=measure.weights, positions=positions)

    def jacobian_on(self, measure: Atoms) -> WeightedJacobian:
        r"""Differentiate at a measure whose atoms move without splitting: :math:`D^{1/2}JD^{-1/2}`."""
        return WeightedJacobian.of(self.on(measure).jacobian(measure.points), measure.weights)

    def query_side(self, X: Float[Tensor, "n d"]) -> QuerySide:
        r"""Differentiate each token's output with respect to its own query: :math:`\sum_hW_hV_hC^h_iA_h` for all i."""
        X = tokens_for(X, self)
        if X.ndim != 2 or self.query.ndim > 3:
            raise ShapeError(f"query_side takes one sequence (n, d) and one map, got {tuple(X.shape)}.", field="X")
        if self.positions.distances is not None:
            raise AssumptionError("query_side does not know keys of distances.", field="attention")
        if self.has_joint_norm:
            raise AssumptionError("query_side does not know norms over all heads.", field="attention")
        return QuerySide.of(self.jacobian(X))

    def head(self: H, h: int) -> H:
        """Return head ``h`` alone, with its slice of the output projection and without the output bias.

        A norm over the queries or keys of all heads stays what it is: the head moves with the others' queries too.
        """
        heads = self.layout.heads
        if not 0 <= h < heads:
            raise AssumptionError(f"h must name one of the {heads} heads, 0 to {heads - 1}, got {h}.", field="h")
        g = h // self.layout.shared
        query_norm, key_norm = self._norms()
        return dataclasses.replace(
            self,
            **self._each_head(lambda x, axis: _pick(x, axis, h), lambda x, axis: _pick(x, axis, g)),
            query_norm=query_norm.head(h) if isinstance(query_norm, JointNorm) else query_norm,
            key_norm=key_norm.head(g) if isinstance(key_norm, JointNorm) else key_norm,
            positions=self.positions.head(h),
        )

    def per_head(self: H) -> H:
        """Return all heads as a batch of single-head maps: ``f.per_head()(X)[h] == f.head(h)(X)``.

        The heads become the last batch axis, so a batch of sequences needs one more: ``f.per_head()(X[:, None])``.
        With an output projection the heads add up to the layer, less the output bias.
        """
        shared = self.layout.shared
        query_norm, key_norm = self._norms()
        return dataclasses.replace(
            self,
            **self._each_head(lambda x, axis: _spread(x, axis, 1), lambda x, axis: _spread(x, axis, shared)),
            query_norm=query_norm.per_head(1) if isinstance(query_norm, JointNorm) else query_norm,
            key_norm=key_norm.per_head(shared) if isinstance(key_norm, JointNorm) else key_norm,
            positions=self.positions.per_head(),
            weights=None if self.weights is None else self.weights.unsqueeze(-2),
        )

    def _each_head(self, on_heads: OnHeads, on_groups: OnHeads) -> dict[str, Any]:
        """Apply a function to every field with one entry for each head, another to those with one for each group."""
        changed = {name: on_heads(getattr(self, name), -1) for name in self.for_each_head}
        for name, f in (("query", on_heads), ("key", on_groups), ("value", on_groups)):
            changed[name] = f(getattr(self, name), -3)
            changed[f"{name}_bias"] = f(getattr(self, f"{name}_bias"), -2)
        return changed | {"output": on_heads(self.output, -3), "output_bias": None}

    def __repr__(self) -> str:
        layout = self.layout
        parts = [f"heads={layout.heads}", f"d={self.d}", f"k={layout.k}", f"v={layout.v}", f"out={self.out}"]
        if layout.groups != layout.heads:
            parts.insert(1, f"groups={layout.groups}")
        if self.positions.causal:
            parts.append("causal")
        return f"{type(self).__name__}({', '.join(parts)}, {self.query.dtype})"

    def _admit(self, X: Tensor) -> Tensor:
        """Check the tokens and give them every batch axis that weights and masks bring along."""
        X = tokens_for(X, self)
        require_tokens(X, self.query)
        n = X.shape[-2]
        self.positions.check(n)
        for name, x in self.positions.everywhere.items():
            if x.device != X.device:  # a mask on the meta device hides nothing, and torch does not say so
                raise DeviceError(
                    f"{name} and tokens must be on one device, got {x.device} and {X.device}; move one with .to().",
                    field=name,
                )
        if self.weights is not None and self.weights.shape[-1] != n:
            raise ShapeError(
                f"weights must have one entry for each of {n} tokens, got {self.weights.shape[-1]}.", field="weights"
            )
        mass = () if self.weights is None else self.weights.shape[:-1]
        parts = (X.shape[:-2], self.query.shape[:-3], self.positions.batch, mass)
        try:
            batch = broadcast_shapes(*parts)
        except RuntimeError as error:
            raise ShapeError(
                "the batch axes of tokens, weights, masks and token weights must broadcast, "
                f"got {', '.join(str(tuple(part)) for part in parts)}."
            ) from error
        return X.expand(*batch, *X.shape[-2:])

    @property
    def has_joint_norm(self) -> bool:
        """Whether a norm acts on the queries or keys of all heads together."""
        return any(isinstance(norm, JointNorm) for norm in self._norms())

    def _norms(self) -> tuple[HeadNorm, HeadNorm]:
        """Return the norms of queries and keys as they act: on each head, or on all together."""
        sides = ((self.query_norm, self.query, self.query_bias), (self.key_norm, self.key, self.key_bias))
        query_norm, key_norm = (acting_norm(norm, weight, bias) for norm, weight, bias in sides)
        return query_norm, key_norm

    def _project(
        self, X: Tensor, transforms: Transforms, value: Tensor, rotary: Rotary | None, *, value_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Projections]:
        """Return queries, keys and values at ``X``, and their derivative."""
        layout, n = self.layout, X.shape[-2]
        weight = torch.cat([part.flatten(-3, -2) for part in (self.query, self.key, value)], dim=-2)
        q, k, v = layout.split(X @ weight.mT)
        q, k, v = _shift(q, self.query_bias), _shift(k, self.key_bias), _shift(v, value_bias)
        for_queries, for_keys = self._norms()
        q, query_norm = normalise(q, for_queries, X)
        k, key_norm = normalise(k, for_keys, X)
        rotation = None if rotary is None else rotary.rotation(n, layout.k, X)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        (q, k, v), transformed = transforms.apply(q, k, v)
        sizes = None
        if query_norm is not None or key_norm is not None:
            sizes = sizes_of(X, self.query, self.query_bias), sizes_of(X, self.key, self.key_bias)
        projections = Projections(
            weight=weight,
            layout=layout,
            query_norm=query_norm,
            key_norm=key_norm,
            rotation=rotation,
            transforms=transformed,
            sizes=sizes,
        )
        return q, k, v, projections

    def _shifted(
        self, means: Float[Tensor, "stack shared n v"], batch: tuple[int, ...]
    ) -> Float[Tensor, "stack shared n v"]:
        """Add the bias of values to means that were taken without it, by weights that sum to one.

        Why not before: it does not change the derivative, but rounding would, by units of the bias.
        """
        if self.value_bias is None:
            return means
        by_group = means.unflatten(0, (*batch, self.layout.groups))
        return (by_group + self.value_bias[..., None, None, :]).reshape(means.shape)

    def _put_out(self, means: Tensor, output: Tensor | None, batch: tuple[int, ...]) -> Tensor:
        """Apply the output projection and its bias to the means of all heads."""
        Y = project_heads(means, output, batch)
        return Y if self.output_bias is None else Y + self.output_bias.unsqueeze(-2)

    def _joined_output(self) -> Tensor | None:
        """Return the output projection of all heads side by side, ``(out, heads · v)``."""
        return None if self.output is None else self.output.movedim(-3, -2).flatten(-2)


def require_memory(memory: int) -> None:
    """Refuse what is no number of bytes."""
    if memory is None or not memory >= 0:
        raise AssumptionError(f"memory must be a number of bytes, 0 or more, got {memory}.", field="memory")


def _pick(x: Tensor | None, axis: int, index: int) -> Tensor | None:
    return None if x is None else x.narrow(axis, index, 1)


def _spread(x: Tensor | None, axis: int, repeats: int) -> Tensor | None:
    return None if x is None else x.repeat_interleave(repeats, dim=axis).unsqueeze(axis)


def _shift(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.unsqueeze(-2)


def _check_projections(f: MultiHead) -> None:
    """Refuse projections of tokens that do not fit together."""
    named = {"query": f.query, "key": f.key, "value": f.value, "output": f.output}
    for name, x in named.items():
        if x is None:
            continue
        require_floating(x, name)
        if x.ndim < 3:
            raise ShapeError(f"{name} must have a head axis, (heads, rows, columns), got {tuple(x.shape)}.", field=name)
        if not x.numel() and not x.is_meta:
            raise ShapeError(f"{name} must not be empty, got {tuple(x.shape)}.", field=name)
        require_agreement(x, f.query, name, "query")
        require_finite(x, name)
    w, (heads, k, d), groups = f.query.shape[:-3], f.query.shape[-3:], f.key.shape[-3]
    if groups == 0 or heads % groups:
        raise ShapeError(f"the number of heads must be a multiple of the key/value groups, got {heads} and {groups}.")
    require_shape(f.key, (*w, groups, k, d), "key")
    require_shape(f.value, (*w, groups, f.value.shape[-2], d), "value")
    if f.output is not None:
        require_shape(f.output, (*w, heads, f.output.shape[-2], f.value.shape[-2]), "output")


def _check_biases(f: MultiHead) -> None:
    """Refuse biases that do not fit the projections."""
    w, (heads, groups, k, v) = tuple(f.query.shape[:-3]), f.layout
    needed = {"query_bias": (heads, k), "key_bias": (groups, k), "value_bias": (groups, v), "output_bias": (f.out,)}
    for name, shape in needed.items():
        if (x := getattr(f, name)) is not None:
            require_parameter(x, (*w, *shape), f.query, name, "query")


def _check_positions(f: MultiHead) -> None:
    """Refuse norms, positions and token weights that do not fit the heads."""
    for norm, name, count in ((f.query_norm, "query_norm", f.layout.heads), (f.key_norm, "key_norm", f.layout.groups)):
        if norm is not None:
            check_head_norm(norm, f.query, count, name)
    if f.positions.rotary is not None:
        f.positions.rotary.check_width(f.layout.k)
    if f.positions.distances is not None:
        f.positions.distances.check_heads(f.query, f.layout.groups)
    if f.positions.heads not in (1, f.layout.heads):
        raise ShapeError(
            f"mask and bias must have 1 or {f.layout.heads} heads, got {f.positions.heads}.", field="positions"
        )
    if f.weights is not None:
        require_parameter(f.weights, tuple(f.weights.shape), f.query, "weights", "query")
        if bool((f.weights < 0).any()):
            raise AssumptionError("token weights are masses and must not be negative.", field="weights")
