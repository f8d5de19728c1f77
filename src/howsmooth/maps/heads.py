"""What every kind of attention shares: heads, groups, biases, norms, positions, token weights; from tokens to heads."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.heads_checks import check_biases, check_positions, check_projections
from howsmooth.maps.heads_derivative import HeadsJacobian, project_heads
from howsmooth.maps.joint_norm import JointNorm, JointNormJacobian
from howsmooth.maps.mean_field import Atoms, WeightedJacobian, visible
from howsmooth.maps.norms import Norm, NormJacobian, RMSNorm
from howsmooth.maps.positions import Positions
from howsmooth.maps.projections import Layout, Projections, sizes_of
from howsmooth.maps.query_key_transforms import Transforms
from howsmooth.maps.query_side import QuerySide
from howsmooth.maps.rotary import Rotary
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_tokens

GIBIBYTE = 2**30
T = TypeVar("T", Tensor, Tensor | None)
H = TypeVar("H", bound="MultiHead")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MultiHead(TensorDataclass, ABC):
    r"""Attention of any kind, as a frozen value: projections of tokens, what is done with them, and the output.

    Heads come first: ``query[h]`` is :math:`Q_h`, ``output[h]`` is :math:`W_h`. Keys and values may be shared: head
    ``h`` uses group ``h // (heads / groups)``. Leading axes of the weights are batch axes: they broadcast against
    those of the tokens.

    Attributes:
        query: :math:`Q`, ``(heads, k, d)``.
        key: :math:`K`, ``(groups, k, d)``.
        value: :math:`V`, ``(groups, v, d)``.
        output: :math:`W`, ``(heads, out, v)``; ``None`` concatenates the heads instead of mixing them.
        query_bias: ``(heads, k)``.
        key_bias: ``(groups, k)``.
        value_bias: ``(groups, v)``.
        output_bias: ``(out,)``.
        query_norm: A norm applied to queries, before the rotary embedding: of dimension ``k`` to those of each head, of
            dimension ``heads · k`` to those of all heads together.
        key_norm: The same for keys, whose groups are ``groups``.
        positions: Masks, rotary embedding, biases of distance and position.
        weights: :math:`a`, the mass of each token, ``(*batch, n)``; ``None`` means equal masses.
    """

    query: Float[Tensor, "*w heads k d"]
    key: Float[Tensor, "*w groups k d"]
    value: Float[Tensor, "*w groups v d"]
    output: Float[Tensor, "*w heads out v"] | None = None
    query_bias: Float[Tensor, "*w heads k"] | None = None
    key_bias: Float[Tensor, "*w groups k"] | None = None
    value_bias: Float[Tensor, "*w groups v"] | None = None
    output_bias: Float[Tensor, "*w out"] | None = None
    query_norm: Norm | JointNorm | None = None
    key_norm: Norm | JointNorm | None = None
    positions: Positions = field(default_factory=Positions)
    weights: Float[Tensor, "... n"] | None = None

    # fields with one number for each head
    for_each_head: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Check the weights once, so that no product has to."""
        check_projections(self)
        check_biases(self)
        self._check_options()
        check_positions(self)

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
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.query.dtype

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

    def on(self: H, measure: Atoms) -> H:
        r"""Return the map that moves the atoms of a measure: its masses are token weights, its positions the mask.

        Under a causal mask an atom sees those at its own position or before.

        Args:
            measure: Anything with ``points``, ``weights`` and ``positions``: a :class:`howsmooth.DiscreteMeasure`.
        """
        if self.weights is not None:
            raise AssumptionError(
                "this attention has token weights of its own; a measure brings its masses along.", field="attention"
            )
        if any(x is not None for x in (self.positions.window, self.positions.padding, self.positions.mask)):
            raise AssumptionError(
                "attention on measures knows the causal mask and no mask, got another one.", field="attention"
            )
        order = self.positions
        if any(x is not None for x in (order.rotary, order.relative_bias, order.position_bias, order.distances)):
            raise AssumptionError(
                "attention on measures has no order of tokens for rotary positions, distances or biases of positions.",
                field="attention",
            )
        positions = Positions()
        if self.positions.causal:
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
        plain = self.on(measure).jacobian(measure.points)
        return WeightedJacobian(plain=plain, roots=measure.weights.sqrt().unsqueeze(-1))

    def query_side(self, X: Float[Tensor, "n d"]) -> QuerySide:
        r"""Differentiate each token's output with respect to its own query: :math:`\sum_hW_hV_hC^h_iA_h` for all i."""
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
        heads, groups = self.layout.heads, self.layout.groups
        if not 0 <= h < heads:
            raise AssumptionError(f"h must name one of the {heads} heads, 0 to {heads - 1}, got {h}.", field="h")
        g = h // (heads // groups)
        query_norm, key_norm = self._norms()

        return dataclasses.replace(
            self,
            query=_pick(self.query, -3, h),
            key=_pick(self.key, -3, g),
            value=_pick(self.value, -3, g),
            output=_pick(self.output, -3, h),
            query_bias=_pick(self.query_bias, -2, h),
            key_bias=_pick(self.key_bias, -2, g),
            value_bias=_pick(self.value_bias, -2, g),
            output_bias=None,
            query_norm=query_norm.head(h) if isinstance(query_norm, JointNorm) else query_norm,
            key_norm=key_norm.head(g) if isinstance(key_norm, JointNorm) else key_norm,
            positions=self.positions.head(h),
            **{name: _pick(getattr(self, name), -1, h) for name in self.for_each_head},
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
            query=_spread(self.query, -3, 1),
            key=_spread(self.key, -3, shared),
            value=_spread(self.value, -3, shared),
            output=_spread(self.output, -3, 1),
            query_bias=_spread(self.query_bias, -2, 1),
            key_bias=_spread(self.key_bias, -2, shared),
            value_bias=_spread(self.value_bias, -2, shared),
            output_bias=None,
            query_norm=query_norm.per_head(1) if isinstance(query_norm, JointNorm) else query_norm,
            key_norm=key_norm.per_head(shared) if isinstance(key_norm, JointNorm) else key_norm,
            positions=self.positions.per_head(),
            weights=None if self.weights is None else self.weights.unsqueeze(-2),
            **{name: _spread(getattr(self, name), -1, 1) for name in self.for_each_head},
        )

    def __repr__(self) -> str:
        """Say what kind of attention this is, without its numbers."""
        layout = self.layout
        parts = [f"heads={layout.heads}", f"d={self.d}", f"k={layout.k}", f"v={layout.v}", f"out={self.out}"]
        if layout.groups != layout.heads:
            parts.insert(1, f"groups={layout.groups}")
        if self.positions.causal:
            parts.append("causal")
        return f"{type(self).__name__}({', '.join(parts)}, {self.query.dtype})"

    def _admit(self, X: Tensor) -> Tensor:
        """Check the tokens and give them every batch axis that weights and masks bring along."""
        require_tokens(X, self.query)
        n = X.shape[-2]
        self.positions.check(n)
        if self.weights is not None and self.weights.shape[-1] != n:
            raise ShapeError(
                f"weights must have one entry for each of {n} tokens, got {self.weights.shape[-1]}.", field="weights"
            )
        mass = () if self.weights is None else self.weights.shape[:-1]
        parts = (X.shape[:-2], self.query.shape[:-3], self.positions.batch, mass)
        try:
            batch = torch.broadcast_shapes(*parts)
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

    def _norms(self) -> tuple[Norm | JointNorm | None, Norm | JointNorm | None]:
        """Return the norms of queries and keys as they act: on each head, or on all together."""
        sides = ((self.query_norm, self.query, self.query_bias), (self.key_norm, self.key, self.key_bias))
        query_norm, key_norm = (_joined(norm, weight, bias) for norm, weight, bias in sides)
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
        q, query_norm = _normalise(q, for_queries, X)
        k, key_norm = _normalise(k, for_keys, X)
        rotation = None if rotary is None else rotary.rotation(n, layout.k, X)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        (q, k, v), lifted = transforms.apply(q, k, v)
        sizes = None
        if query_norm is not None or key_norm is not None:
            sizes = sizes_of(X, self.query, self.query_bias), sizes_of(X, self.key, self.key_bias)
        projections = Projections(
            weight=weight,
            layout=layout,
            query_norm=query_norm,
            key_norm=key_norm,
            rotation=rotation,
            transforms=lifted,
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
        """Return what comes out of the attention means."""
        Y = project_heads(means, output, batch)
        return Y if self.output_bias is None else Y + self.output_bias.unsqueeze(-2)

    def _joined_output(self) -> Tensor | None:
        """Return the output projection of all heads side by side, ``(out, heads · v)``."""
        return None if self.output is None else self.output.movedim(-3, -2).flatten(-2)


def require_memory(memory: int) -> None:
    """Refuse what is no number of bytes."""
    if memory is None or not memory >= 0:
        raise AssumptionError(f"memory must be a number of bytes, 0 or more, got {memory}.", field="memory")


def _pick(x: T, axis: int, index: int) -> T:
    return None if x is None else x.narrow(axis, index, 1)


def _spread(x: T, axis: int, repeats: int) -> T:
    return None if x is None else x.repeat_interleave(repeats, dim=axis).unsqueeze(axis)


def _shift(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.unsqueeze(-2)


def _joined(norm: Norm | JointNorm | None, weight: Tensor, bias: Tensor | None) -> Norm | JointNorm | None:
    """Return a norm as it acts on what ``weight`` puts out; the size of its gain tells on how many heads."""
    if isinstance(norm, RMSNorm) and norm.gain.shape[0] != weight.shape[-2]:
        return JointNorm.over(norm, weight, bias)
    return norm


def _normalise(
    x: Tensor, norm: Norm | JointNorm | None, X: Tensor
) -> tuple[Tensor, NormJacobian | JointNormJacobian | None]:
    if norm is None:
        return x, None
    return norm.linearise(x, X) if isinstance(norm, JointNorm) else (norm.apply(x), norm.linearise(x))
