"""Attention by scores: queries meet keys, scores become weights, weights take means of values."""

import math
from abc import abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention_weights import AttentionPattern, Scores, attend
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.distances import Distances
from howsmooth.maps.heads import GIBIBYTE, MultiHead, require_memory
from howsmooth.maps.projections import Projections
from howsmooth.maps.query_key_transforms import Transforms
from howsmooth.maps.weighting import Weighting
from howsmooth.validation import require_finite


@dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism:
    """What makes one kind of attention: all that the others do not have.

    Attributes:
        weighting: From scores to weights.
        transforms: What is done to queries, keys and values before they meet.
        value: The value projection.
        masses_in_scores: Whether the logarithms of token weights are added to scores.
        lead: Axes that transforms put before those of the batch.
    """

    weighting: Weighting
    transforms: Transforms
    value: Tensor
    masses_in_scores: bool = True
    lead: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoreAttention(MultiHead):
    r"""Attention by scores :math:`S_{ij} = s\,\langle q_i, k_j\rangle`, capped, masked, and made into weights.

    Attributes:
        scale: :math:`s`; ``None`` means :math:`1/\sqrt k`.
        softcap: ``c`` in :math:`c\tanh(S/c)`.
    """

    scale: float | None = None
    softcap: float | None = None

    @abstractmethod
    def _mechanism(self, X: Tensor) -> Mechanism:
        """Return what makes this kind, at tokens that are admitted."""

    def _check_options(self) -> None:
        """Refuse a scale or a soft cap that has no meaning."""
        if self.scale is not None and not math.isfinite(self.scale):
            raise AssumptionError(f"scale must be finite, got {self.scale}.", field="scale")
        if self.softcap is not None and not self.softcap > 0:
            raise AssumptionError(f"softcap must be positive, got {self.softcap}.", field="softcap")

    @property
    def score_scale(self) -> float:
        r"""What the scores are multiplied by, ``scale`` or :math:`1/\sqrt k` where none is given."""
        return 1 / math.sqrt(self.layout.k) if self.scale is None else self.scale

    def jacobian(self, X: Float[Tensor, "*batch n d"], *, memory: int = GIBIBYTE) -> AttentionJacobian:
        """Differentiate at ``X``.

        Args:
            X: The tokens.
            memory: How many bytes the attention weights may take. When they need more, none are kept, and every
                product rebuilds them tile by tile (about 1.3 times the work).
        """
        return self._linearised(X, memory)

    def value_and_jacobian(
        self, X: Float[Tensor, "*batch n d"], *, memory: int = GIBIBYTE
    ) -> tuple[Float[Tensor, "*more n out"], AttentionJacobian]:
        """Return the value and the derivative at ``X``: the attention weights of one are those of the other.

        The arguments are those of :meth:`jacobian`.
        """
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
            scaled_k=pattern.k * self.score_scale,
            output=self._joined_output(),
            batch=tuple(X.shape[:-2]),
            domain=tuple(X.shape[-2:]),
            distances=_scaled(self.positions.distances, self.score_scale, self.score_scale),
        )

    def _attend(self, X: Tensor, *, memory: int) -> tuple[AttentionPattern, Projections]:
        """Return the attention pattern at ``X`` and the derivative of queries, keys and values."""
        made, n = self._mechanism(X), X.shape[-2]
        alone = made.weighting.sums_to_one and made.transforms.value is None  # the bias is added to the means
        value_bias = None if alone else self.value_bias
        q, k, v, projections = self._project(
            X, made.transforms, made.value, self.positions.rotary, value_bias=value_bias
        )
        masses = self.weights if made.masses_in_scores else None
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
                lead=made.lead,
            ),
            memory=memory,
            weighting=made.weighting,
        )
        return pattern, projections


def _scaled(distances: Distances | None, keys: float, queries: float) -> Distances | None:
    return None if distances is None else distances.times(keys, queries)
