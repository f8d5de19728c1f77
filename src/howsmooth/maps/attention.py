"""Attention by scores: the softmax, with or without sinks, and the base of other rules from scores to weights."""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.linear_operators import on_tokens
from howsmooth.maps.attention_weights import AttentionPattern, Scores, attend
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.gaussian_attention import Gaussian, GaussianAttention
from howsmooth.maps.heads import GIBIBYTE, MultiHead, require_memory
from howsmooth.maps.positions import Distances, Positions
from howsmooth.maps.projections import NO_TRANSFORMS, Projections, Transforms
from howsmooth.maps.weighting import Softmax, Weighting
from howsmooth.token_ring import TokenRing
from howsmooth.validation import (
    Seed,
    generator_from,
    require_finite,
    require_floating,
    require_parameter,
    require_tokens,
    tokens_for,
)

S = TypeVar("S", bound="Attention")


@dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism:
    """The parts in which kinds of attention by scores differ."""

    weighting: Weighting  # the rule from scores to weights
    value: Tensor  # the value projection
    transforms: Transforms = NO_TRANSFORMS  # maps applied to queries, keys and values after their projections
    masses_in_scores: bool = True  # whether the logarithms of token weights are added to scores
    lead: tuple[int, ...] = ()  # axes that transforms put before those of the batch


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoreAttention(MultiHead):
    r"""Attention by scores :math:`S_{ij} = s\,\langle q_i, k_j\rangle`, capped, masked, and made into weights."""

    scale: float | None = None  # s; none means 1/√k
    softcap: float | None = None  # c in c·tanh(S/c)

    single_head_defaults: ClassVar[dict[str, Any]] = {"scale": 1.0}

    @abstractmethod
    def _mechanism(self, X: Tensor) -> Mechanism:
        """Return the mechanism at tokens that are admitted."""

    def _check_options(self) -> None:
        """Refuse a scale or a soft cap that has no meaning."""
        if self.scale is not None and not math.isfinite(self.scale):
            raise AssumptionError(f"scale must be finite, got {self.scale}.", field="scale")
        if self.softcap is not None and not self.softcap > 0:
            raise AssumptionError(f"softcap must be positive, got {self.softcap}.", field="softcap")

    @property
    def score_scale(self) -> float:
        r"""The factor of the scores, ``scale`` or :math:`1/\sqrt k` where none is given."""
        return 1 / math.sqrt(self.layout.k) if self.scale is None else self.scale

    def jacobian(self, X: Float[Tensor, "*batch n d"], *, memory: int = GIBIBYTE) -> AttentionJacobian:
        """Differentiate at ``X``.

        Args:
            X: The tokens.
            memory: How many bytes the attention weights may take. When they need more, none are kept, and every
                product rebuilds them tile by tile (about 1.3 times the work).
        """
        return self._linearised(X, memory)

    def value_and_jacobian(self, X: Tensor, *, memory: int = GIBIBYTE) -> tuple[Tensor, AttentionJacobian]:
        """Return the value and the derivative at ``X``, which share attention weights, as in :meth:`jacobian`."""
        found = self._linearised(X, memory)
        return self._put_out(self._biased(found.pattern, found.projections), found.output, found.batch), found

    def _means(self, X: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Return the means of every head; no weights are kept."""
        return self._biased(*self._attend(X, memory=0))

    def _biased(self, pattern: AttentionPattern, projections: Projections) -> Float[Tensor, "stack shared n v"]:
        """Return the means of every head with the bias of values, where the pattern is without."""
        alone = pattern.weighting.sums_to_one and projections.transforms.value is None
        return self._shifted(pattern.o, pattern.scores.batch) if alone else pattern.o

    def _linearised(self, X: Tensor, memory: int) -> AttentionJacobian:
        require_memory(memory)
        X = self._admit(X)
        pattern, projections = self._attend(X, memory=memory)
        require_finite(pattern.o, "the output of attention")
        return AttentionJacobian(
            projections=projections,
            pattern=pattern,
            scaled_k=pattern.k * self.score_scale,  # once here, and not in every product
            output=self._joined_output(),
            **on_tokens(X, self.out),
            distances=_scaled(self.positions.distances, self.score_scale, self.score_scale),
        )

    def _attend(self, X: Tensor, *, memory: int) -> tuple[AttentionPattern, Projections]:
        """Return the attention pattern at ``X`` and the derivative of queries, keys and values."""
        mechanism, n = self._mechanism(X), X.shape[-2]
        alone = mechanism.weighting.sums_to_one and mechanism.transforms.value is None  # the bias is added to the means
        value_bias = None if alone else self.value_bias
        q, k, v, projections = self._project(
            X, mechanism.transforms, mechanism.value, self.positions.rotary, value_bias=value_bias
        )
        masses = self.weights if mechanism.masses_in_scores else None
        pattern = attend(
            (q * self.score_scale).reshape(-1, self.layout.shared, n, q.shape[-1]),
            k.reshape(-1, n, k.shape[-1]),
            v.reshape(-1, n, v.shape[-1]),
            scores=Scores(
                batch=tuple(X.shape[:-2]),
                positions=self.positions,
                softcap=self.softcap,
                log_weights=None if masses is None else masses.log(),
                distances=_scaled(self.positions.distances, 1.0, self.score_scale),
                lead=mechanism.lead,
            ),
            memory=memory,
            weighting=mechanism.weighting,
        )
        return pattern, projections


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Attention(ScoreAttention):
    r"""Self-attention as a frozen value: a map on sequences of tokens.

    .. math:: f(X)_i = \sum_h W_h \sum_j P^h_{ij}\,(V_h x_j + b_v) + b_o,\qquad
              P^h_{ij} \propto a_j \exp\bigl(s\,\langle Q_h x_i + b_q,\; K_h x_j + b_k\rangle\bigr)

    Heads come first: ``query[h]`` is :math:`Q_h`, ``output[h]`` is :math:`W_h`. Keys and values may be shared: head
    ``h`` uses group ``h // (heads / groups)``. Leading axes of the weights are batch axes: they broadcast against
    those of the tokens. The soft cap acts on the scaled scores, before masks, biases and token weights are added.

    Attributes:
        query: :math:`Q`, ``(heads, k, d)``.
        key: :math:`K`, ``(groups, k, d)``.
        value: :math:`V`, ``(groups, v, d)``.
        output: :math:`W`, ``(heads, out, v)``; ``None`` concatenates the heads instead of mixing them.
        query_bias: ``(heads, k)``.
        key_bias: ``(groups, k)``.
        value_bias: ``(groups, v)``.
        output_bias: ``(out,)``.
        scale: :math:`s`; ``None`` means :math:`1/\sqrt k`.
        softcap: ``c`` in :math:`c\tanh(S/c)`.
        query_norm: A norm applied to queries, before the rotary embedding: of dimension ``k`` to those of each head, of
            dimension ``heads · k`` to those of all heads together.
        key_norm: The same for keys, whose groups are ``groups``.
        positions: Masks, rotary embedding, biases of distance and position.
        weights: :math:`a`, the mass of each token, ``(*batch, n)``; ``None`` means equal masses.
        sink: :math:`c_h`, the score of a token that every token sees and whose value is zero, ``(heads,)``:
            :math:`e^{c_h}` is added to what weights are divided by. Zeros make the softmax that is "off by one".

    Example:
        >>> identity = torch.eye(2)
        >>> Attention.single_head(A=0 * identity, V=identity)(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        tensor([[2., 1.],
                [2., 1.]])
    """

    sink: Float[Tensor, "*w heads"] | None = None

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"softmax": {}, "off-by-one": {}}
    for_each_head: ClassVar[tuple[str, ...]] = ("sink",)

    @classmethod
    def single_head(
        cls: type[S],
        *,
        V: Float[Tensor, "v d"] | Any,
        A: Float[Tensor, "d d"] | Any | None = None,
        Q: Float[Tensor, "k d"] | Any | None = None,
        K: Float[Tensor, "k d"] | Any | None = None,
        causal: bool = False,
        positions: Positions | None = None,
        weights: Float[Tensor, "... n"] | None = None,
        **options: Any,
    ) -> S:
        r"""Build the map of the theory.

        .. math:: f(X)_i = V\sum_j P_{ij}x_j,\qquad P_{ij}\propto a_j\,e^{\langle Ax_i,x_j\rangle}

        Args:
            V: The value matrix, a tensor or an array like the others; rectangular is fine.
            A: The bilinear form of the scores; any scale is inside.
            Q: In place of A, the query projection, :math:`A = K^\top Q`.
            K: In place of A, the key projection.
            causal: Whether a token sees only itself and the past.
            positions: Any other mask; not together with ``causal``.
            weights: The mass of each token.
            options: Other fields, such as ``sink``, as a number: 0 for the softmax that is "off by one".
        """
        if A is not None and Q is None and K is None:
            A = tokens_for(A, None)
            require_floating(A, "A")
            if A.ndim != 2 or A.shape[0] != A.shape[1]:
                raise ShapeError(f"A must be a square matrix, got {tuple(A.shape)}.", field="A")
            Q, K = A, torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        elif A is not None or Q is None or K is None:
            raise AssumptionError("give either A, or Q and K.", field="A")
        return super().single_head(Q=Q, K=K, V=V, causal=causal, positions=positions, weights=weights, **options)

    @classmethod
    def random(
        cls,
        *,
        heads: int,
        d: int,
        k: int | None = None,
        causal: bool = False,
        dtype: torch.dtype | None = None,
        seed: Seed | None = None,
    ) -> "Attention":
        """Build a layer with Gaussian weights of variance ``1/d`` (a control, as in the paper).

        Args:
            heads: How many heads.
            d: The dimension of tokens and outputs.
            k: The dimension of a head; ``d / heads`` by default.
            causal: Whether a token sees only itself and the past.
            dtype: The numbers; torch's default by default.
            seed: Seeds the weights: a whole number, or a torch.Generator to draw from; torch's global one by default.
        """
        if heads < 1 or d < 1:
            raise ShapeError(f"a layer needs at least one head and one dimension, got heads = {heads} and d = {d}.")
        if k is None and d % heads:
            raise ShapeError(
                f"d must be a multiple of heads, or k be given; got d = {d} and heads = {heads}.", field="k"
            )
        k = d // heads if k is None else k

        generator = generator_from(seed)

        def gaussian(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=dtype, generator=generator) / math.sqrt(d)

        return cls(
            query=gaussian(heads, k, d),
            key=gaussian(heads, k, d),
            value=gaussian(heads, k, d),
            output=gaussian(heads, d, k),
            positions=Positions(causal=causal),
        )

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, causal: bool = False) -> "Attention":
        """Read the weights of torch's multi-head attention as a map on one sequence: query, key and value are it.

        Tokens are ``(*batch, n, d)`` whatever the module's ``batch_first`` is; dropout is off, as in eval mode. Masks
        are no part of the module: its caller gives them.

        Args:
            module: The module.
            causal: Whether it is called with a causal mask.

        Example:
            >>> Attention.from_torch(torch.nn.MultiheadAttention(8, 2), causal=True)
            Attention(heads=2, d=8, k=4, v=4, out=8, causal, torch.float32)
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise DtypeError(
                f"from_torch reads torch.nn.MultiheadAttention, got {type(module).__name__}; hs.load reads models, and "
                "hs.load(model).layer(0).closed_form is the attention of a layer.",
                field="module",
            )
        if module.in_proj_weight is None or module.bias_k is not None:
            why = "add_bias_kv" if module.bias_k is not None else "keys or values of another width"
            raise AssumptionError(
                f"attention with {why} is not self-attention on one sequence; use hs.local_lipschitz on a callable.",
                field="module",
            )
        heads, width = module.num_heads, module.embed_dim
        query, key, value = module.in_proj_weight.detach().unflatten(0, (3, heads, -1))
        bias, out_bias = module.in_proj_bias, module.out_proj.bias
        query_bias, key_bias, value_bias = (None,) * 3 if bias is None else bias.detach().unflatten(0, (3, heads, -1))
        return cls(
            query=query,
            key=key,
            value=value,
            output=module.out_proj.weight.detach().reshape(width, heads, -1).transpose(0, 1),
            query_bias=query_bias,
            key_bias=key_bias,
            value_bias=value_bias,
            output_bias=None if out_bias is None else out_bias.detach(),
            positions=Positions(causal=causal),
            # a key and a value of zeros beside those of the tokens
            sink=query.new_zeros(heads) if module.add_zero_attn else None,
        )

    def project(
        self, X: Float[Tensor, "*batch m d"], *, places: Int[Tensor, " m"] | None = None
    ) -> tuple[
        Float[Tensor, "*batch heads m k"], Float[Tensor, "*batch groups m k"], Float[Tensor, "*batch groups m v"]
    ]:
        """Return queries, keys and values as they enter the scores: normalised and rotated, queries scaled.

        Args:
            X: The tokens; they need not be a sequence.
            places: The position of each token for rotary embeddings; 0, 1, 2, … by default.
        """
        X = tokens_for(X, self)
        require_tokens(X, self.query)
        rotary = self.positions.rotary
        if rotary is not None and places is not None:
            rotary = dataclasses.replace(rotary, positions=places)
        q, k, v, _derivative = self._project(X, NO_TRANSFORMS, self.value, rotary, value_bias=self.value_bias)
        return q * self.score_scale, k, v

    def sharded(self, ring: TokenRing) -> Any:
        """Return the map on the tokens of this process, which sees those of all processes of a ring."""
        from howsmooth.maps.sharded_attention import sharded  # which imports this file

        return sharded(self, ring)

    def on(self: S, measure: object) -> Any:
        """Return the map that moves the tokens of a measure; those of a Gaussian one it moves by an affine map."""
        return self.on_gaussian(measure) if isinstance(measure, Gaussian) else super().on(measure)

    def on_gaussian(self, measure: Gaussian) -> GaussianAttention:
        """Return the affine map that moves the tokens of a Gaussian measure."""
        return GaussianAttention.of(self, self.score_scale, measure)

    def _mechanism(self, X: Tensor) -> Mechanism:
        sink = self.sink
        if sink is not None:
            sink = sink.expand(*X.shape[:-2], -1).reshape(-1, self.layout.shared)
        return Mechanism(weighting=Softmax(sink=sink), value=self.value)

    def _check_options(self) -> None:
        super()._check_options()
        if self.sink is not None:
            shape = (*self.query.shape[:-3], self.layout.heads)
            require_parameter(self.sink, shape, self.query, "sink", "query")


def _scaled(distances: Distances | None, keys: float, queries: float) -> Distances | None:
    return None if distances is None else distances.times(keys, queries)
