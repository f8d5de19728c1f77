"""Attention: softmax of scores, with or without sinks."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.one_head import one_head
from howsmooth.maps.positions import Positions
from howsmooth.maps.query_key_transforms import Transforms
from howsmooth.maps.scored import Mechanism, ScoreAttention
from howsmooth.maps.weighting import Softmax
from howsmooth.validation import require_agreement, require_finite, require_floating, require_shape


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

    for_each_head: ClassVar[tuple[str, ...]] = ("sink",)

    @classmethod
    def single_head(
        cls,
        *,
        V: Float[Tensor, "v d"],
        A: Float[Tensor, "d d"] | None = None,
        Q: Float[Tensor, "k d"] | None = None,
        K: Float[Tensor, "k d"] | None = None,
        causal: bool = False,
        positions: Positions | None = None,
        weights: Float[Tensor, "... n"] | None = None,
        sink: float | None = None,
    ) -> "Attention":
        r"""Build the map of the theory.

        .. math:: f(X)_i = V\sum_j P_{ij}x_j,\qquad P_{ij}\propto a_j\,e^{\langle Ax_i,x_j\rangle}

        Args:
            V: The value matrix; rectangular is fine.
            A: The bilinear form of the scores; any scale is inside.
            Q: In place of A, the query projection, :math:`A = K^\top Q`.
            K: In place of A, the key projection.
            causal: Whether a token sees only itself and the past.
            positions: Any other mask; not together with ``causal``.
            weights: The mass of each token.
            sink: The score of a token whose value is zero; 0 for the softmax that is "off by one".
        """
        if A is not None and Q is None and K is None:
            require_floating(A, "A")
            if A.ndim != 2 or A.shape[0] != A.shape[1]:
                raise ShapeError(f"A must be a square matrix, got {tuple(A.shape)}.", field="A")
            Q, K = A, torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        elif A is not None or Q is None or K is None:
            raise AssumptionError("give either A, or Q and K.", field="A")
        query, key, value, seen = one_head(Q=Q, K=K, V=V, causal=causal, positions=positions)
        return cls(
            query=query,
            key=key,
            value=value,
            scale=1.0,
            positions=seen,
            weights=weights,
            sink=None if sink is None else Q.new_full((1,), sink),
        )

    @classmethod
    def random(
        cls,
        *,
        heads: int,
        d: int,
        k: int | None = None,
        causal: bool = False,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> "Attention":
        """Build a layer with Gaussian weights of variance ``1/d`` (a control, as in the paper).

        Args:
            heads: How many heads.
            d: The dimension of tokens and outputs.
            k: The dimension of a head; ``d / heads`` by default.
            causal: Whether a token sees only itself and the past.
            dtype: The numbers; torch's default by default.
            generator: The source of randomness.
        """
        if heads < 1 or d < 1:
            raise ShapeError(f"a layer needs at least one head and one dimension, got heads = {heads} and d = {d}.")
        if k is None and d % heads:
            raise ShapeError(
                f"d must be a multiple of heads, or k be given; got d = {d} and heads = {heads}.", field="k"
            )
        k = d // heads if k is None else k

        def gaussian(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=dtype, generator=generator) / math.sqrt(d)

        return cls(
            query=gaussian(heads, k, d),
            key=gaussian(heads, k, d),
            value=gaussian(heads, k, d),
            output=gaussian(heads, d, k),
            positions=Positions(causal=causal),
        )

    def project(
        self, X: Float[Tensor, "*batch m d"], *, places: Int[Tensor, " m"] | None = None
    ) -> tuple[
        Float[Tensor, "*batch heads m k"], Float[Tensor, "*batch groups m k"], Float[Tensor, "*batch groups m v"]
    ]:
        """Return the queries, keys and values of tokens, as the scores meet them: normed, turned, queries scaled.

        Args:
            X: The tokens; they need not be a sequence.
            places: At which position each of them stands, for rotary embeddings; 0, 1, 2, … by default.
        """
        rotary = self.positions.rotary
        if rotary is not None and places is not None:
            rotary = dataclasses.replace(rotary, positions=places)
        q, k, v, _derivative = self._project(X, Transforms(), self.value, rotary, value_bias=self.value_bias)
        return q * self.score_scale, k, v

    def _mechanism(self, X: Tensor) -> Mechanism:
        sink = self.sink
        if sink is not None:
            sink = sink.expand(*X.shape[:-2], -1).reshape(-1, self.layout.shared)
        return Mechanism(weighting=Softmax(sink=sink), transforms=Transforms(), value=self.value)

    def _check_options(self) -> None:
        super()._check_options()
        if self.sink is not None:
            require_floating(self.sink, "sink")
            require_shape(self.sink, (*self.query.shape[:-3], self.layout.heads), "sink")
            require_agreement(self.sink, self.query, "sink", "query")
            require_finite(self.sink, "sink")
