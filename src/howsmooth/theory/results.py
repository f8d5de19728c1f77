"""What the theory returns: a bound with its theorem, an input that attains a value, and the two together."""

import dataclasses
import enum
import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from howsmooth.errors import AssumptionError, ContradictionError, NonFiniteError
from howsmooth.files import whole
from howsmooth.markup import finite, frame, paragraph, strict_json, table
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.stopping import slack
from howsmooth.transport.measures import DiscreteMeasure
from howsmooth.wording import at_least, at_most, power_of_ten

if TYPE_CHECKING:
    from howsmooth.maps.attention import Attention

# The logarithm of the largest float.
LARGEST = math.log(sys.float_info.max)
# The domain of a bound at one input, in words.
GIVEN_INPUT = "the given input"

# What readers call a theorem or an input; one that is not listed is called by its name.
LABELS = {
    "sharp_upper": "worst-case bound",
    "sharp_lower": "tied pair",
    "discrete_upper": "the paper's bound",
    "discrete_lower": "the paper's two points",
    "kim_lower": "token at the origin",
    "sharp_mean_field_upper": "worst-case bound for measures",
    "mean_field_upper": "the paper's bound for measures",
    "masked_mean_field_upper": "our bound for masked measures",
    "sharp_mean_field_lower": "best Diracs",
    "mean_field_lower": "the paper's two Diracs",
    "local_upper": "bound at this input",
    "attention_map_upper": "bound from the attention map",
    "neighbourhood_upper": "bound around this input",
    "displacement_upper": "how far the output can move",
    "kim_l2_upper": "Kim's bound",
    "lipsformer_upper": "LipsFormer's bound",
    "token_upper": "bound for the largest token",
    "logit_cap": "bound under a cap of logits",
    "ramapuram_upper": "Ramapuram's bound at this input",
    "two_point": "the paper's two points",
    "origin_token": "token at the origin",
    "tied_pair_on_sphere": "tied pair on the sphere",
    "tied_pair_on_image": "tied pair in the image of the norm",
    "ascent": "search",
}


def label_of(name: str) -> str:
    """Return what readers call the theorem or the input that the function ``name`` computes.

    Example:
        >>> label_of("sharp_upper"), label_of("equal_tokens")
        ('worst-case bound', 'equal tokens')
    """
    return LABELS.get(name, name.replace("_", " "))


class _InOneLine:
    """What shows itself as one line of text: in a terminal, in rich, and in a notebook."""

    def _summary(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        """Show the kind of result and its line."""
        return f"{type(self).__name__}: {self._summary()}"

    def __rich__(self) -> str:
        """Render in a rich console."""
        return self._summary()

    def _repr_html_(self) -> str:
        return paragraph(self._summary())


class Side(enum.StrEnum):
    """On which side of the constant a bound lies."""

    LOWER = "≥"
    UPPER = "≤"


@dataclass(frozen=True, kw_only=True, repr=False)
class Bound(_InOneLine):
    """A theorem applied to one map.

    Attributes:
        value: The bound; infinite where it exceeds the largest float (``log_value`` is finite all the same).
        side: Whether the constant is at most or at least ``value``.
        name: The function that computed it.
        domain: Where it holds, in words.
        source: The theorem, in words.
        log_value: The natural logarithm of the bound.
        confidence: 1 for a theorem; less if a probabilistic estimate went into it.
    """

    value: float
    side: Side
    name: str
    domain: str
    source: str
    log_value: float
    confidence: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no number: it would compare as neither larger nor smaller than the truth."""
        if math.isnan(self.value) or math.isnan(self.log_value):
            raise NonFiniteError(f"{self.name} is no number; an upper bound that is not known is infinite.")

    @property
    def label(self) -> str:
        """What readers call it."""
        return label_of(self.name)

    def _summary(self) -> str:
        worth = "" if self.confidence == 1 else f", {100 * self.confidence:.12g} %"
        bounded = "displacement" if self.name == "displacement_upper" else "Lip"
        return f"{bounded} {self.side} {self.digits} on {self.domain} ({self.source}{worth})"

    @property
    def digits(self) -> str:
        """The value, rounded to the safe side; as a power of ten where it does not fit a float."""
        return self.rounded(5)

    def rounded(self, digits: int) -> str:
        """Write the value with so many digits, rounded to the safe side."""
        return safe_digits(self.value, self.log_value, self.side, digits)

    def above(self, attained: float, dtype: torch.dtype = torch.float64) -> "Bound":
        """Return this upper bound, raised to a value that is attained where rounding has left it below.

        Raises:
            ContradictionError: If more than rounding keeps them apart.
        """
        if attained <= self.value:
            return self
        if not attained <= self.value * slack(dtype):
            raise ContradictionError.between(attained, self.value, f"the bracket on {self.domain}")
        return dataclasses.replace(self, value=attained, log_value=math.log(attained))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; an infinite value becomes ``None``, since JSON has no infinity."""
        return {
            "name": self.name,
            "side": self.side.name.lower(),
            "value": finite(self.value),
            "log_value": finite(self.log_value),
            "domain": self.domain,
            "source": self.source,
            "confidence": self.confidence,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Bound":
        """Read what :meth:`as_dict` returned."""
        value = math.inf if fields["value"] is None else fields["value"]
        # JSON has no infinities: a missing logarithm is +∞ for an infinite value and −∞ for zero.
        log_value = math.copysign(math.inf, value - 1) if fields["log_value"] is None else fields["log_value"]
        return cls(**fields | {"side": Side[fields["side"].upper()], "value": value, "log_value": log_value})

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json(self.as_dict())

    def save(self, path: str | os.PathLike[str], attention: "Attention", *, n: int, radius: float) -> None:
        """Write a proof file: the bound, and the norms or the input that a second program checks it by.

        Args:
            path: A ``.json`` file.
            attention: The map that the bound is about.
            n: The number of tokens that it is about.
            radius: The radius of their ball.
        """
        from howsmooth.theory.proofs import save_bounds

        save_bounds(path, [self], attention, n, radius)


def upper_bound(log_value: float, name: str, domain: str, source: str, confidence: float = 1.0) -> Bound:
    """Build an upper bound from its logarithm."""
    return _bound(log_value, Side.UPPER, name, domain, source, confidence)


def lower_bound(log_value: float, name: str, domain: str, source: str) -> Bound:
    """Build a lower bound from its logarithm."""
    return _bound(log_value, Side.LOWER, name, domain, source, 1.0)


def _bound(log_value: float, side: Side, name: str, domain: str, source: str, confidence: float) -> Bound:
    if math.isnan(log_value):  # the formula left the range of the numbers: it claims nothing
        log_value = math.inf if side is Side.UPPER else -math.inf
    value = math.exp(log_value) if log_value < LARGEST else math.inf
    if side is Side.UPPER and math.isfinite(log_value):
        value *= 1 + 2 * sys.float_info.epsilon * abs(log_value)  # the rounding of the logarithm
    return Bound(
        value=value,
        side=side,
        name=name,
        domain=domain,
        source=source,
        log_value=log_value,
        confidence=confidence,
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Witness(_InOneLine):
    """A stored input whose local constant is at least ``value``.

    Attributes:
        tokens: The input.
        measured: The local constant there, between two bounds.
        name: The function that built the input.
        domain: The set it was chosen from, in words.
        formula: What a formula proves for the input before rounding; ``None`` if a search found the input, or if what
            is measured at the tokens as they are contradicts it.
        trace: The best value after each step of a search.
        weights: The masses of the tokens, if the input is a measure; ``None`` for a sequence.
    """

    tokens: Float[Tensor, "n d"]
    measured: NormEstimate
    name: str
    domain: str
    formula: float | None = None
    trace: tuple[float, ...] = field(default=())
    weights: Float[Tensor, " n"] | None = None

    @property
    def value(self) -> float:
        """What the stored direction attains at the stored tokens; the formula is for comparison."""
        return float(self.measured.lower)

    @property
    def label(self) -> str:
        """What readers call it."""
        return label_of(self.name)

    @property
    def measure(self) -> DiscreteMeasure:
        """The input as a measure; a sequence has equal masses."""
        return DiscreteMeasure(self.tokens, self.weights)

    def _summary(self) -> str:
        return f"Lip ≥ {safe_digits(self.value, math.inf, Side.LOWER)} on {self.domain} ({self.label})"

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the tensors as plain values."""
        return {
            "name": self.name,
            "value": self.value,
            "formula": self.formula,
            "domain": self.domain,
            "n": self.tokens.shape[-2],
            "d": self.tokens.shape[-1],
            "measured": json.loads(self.measured.to_json()),
            "trace": list(self.trace),
            "weights": None if self.weights is None else self.weights.tolist(),
        }

    def to_json(self) -> str:
        """Return one JSON object; :meth:`save` keeps the tokens too."""
        return strict_json(self.as_dict())

    def save(
        self,
        path: str | os.PathLike[str],
        attention: "Attention | None" = None,
        *,
        radius: float | None = None,
        about: dict[str, str] | None = None,
    ) -> None:
        """Write tokens, direction and response to a ``.safetensors`` file, with the JSON as metadata; or a proof file.

        Args:
            path: A ``.safetensors`` file, or with ``attention`` a ``.json`` file.
            attention: The map, for a proof file.
            radius: The radius of the ball that tokens lie in, for a proof file; if none is given, it is about these
                tokens alone.
            about: Strings to store with the tensors: which model, which layer.
        """
        from safetensors.torch import save_file

        target = Path(path)
        if attention is not None:
            from howsmooth.theory.proofs import save_witness

            save_witness(path, self, attention, radius)
            return
        if target.suffix != ".safetensors":
            raise AssumptionError(
                f"a witness is saved as .safetensors, got {target.name!r}; change the ending.", field="path"
            )
        tensors = {"tokens": self.tokens, "direction": self.measured.direction, "response": self.measured.response}
        if self.weights is not None:
            tensors["weights"] = self.weights
        detached = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        with whole(target) as partial:
            save_file(detached, partial, {**(about or {}), "witness": self.to_json()})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Bracket(_InOneLine):
    """The Lipschitz constant on a domain between an input that attains a value and a theorem.

    Attributes:
        lower: The input.
        upper: The theorem.
    """

    lower: Witness
    upper: Bound

    def __post_init__(self) -> None:
        """Refuse ends that contradict each other, and what is no number.

        Ends that are equal but for rounding become equal: the theorem's value is raised to what the input attains.
        """
        object.__setattr__(self, "upper", self.upper.above(self.lower.value, self.lower.measured.lower.dtype))

    @property
    def ratio(self) -> float:
        """How far apart the two are, as upper / lower."""
        if self.lower.value <= 0:
            return math.inf
        # By logarithms: the upper end may exceed the largest float.
        log_ratio = self.upper.log_value - math.log(self.lower.value)
        return math.exp(log_ratio) if log_ratio < LARGEST else math.inf

    def _summary(self) -> str:
        low = safe_digits(self.lower.value, math.inf, Side.LOWER)
        ratio = at_most(self.ratio, 4 if self.ratio < 1000 else 3)
        names = f"{self.lower.label}, {self.upper.label}"
        return f"{low} ≤ Lip ≤ {self.upper.digits} on {self.upper.domain}, ratio {ratio} ({names})"

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json({"lower": self.lower.as_dict(), "upper": self.upper.as_dict(), "ratio": self.ratio})

    def save(self, path: str | os.PathLike[str], attention: "Attention", *, n: int, radius: float) -> None:
        """Write a proof file of both ends; the arguments are those of :meth:`Bound.save`."""
        from howsmooth.theory.proofs import save_bracket

        save_bracket(path, self, attention, n, radius)


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """A theorem that does not apply, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class BoundsTable:
    """All bounds that apply to one map, from the lowest lower one to the highest upper one.

    Attributes:
        bounds: The bounds, sorted: lower bounds, then upper bounds.
        refused: The theorems that do not apply.
    """

    bounds: tuple[Bound, ...]
    refused: tuple[NotApplicable, ...] = ()

    @property
    def lower(self) -> Bound:
        """The largest lower bound."""
        return max((b for b in self.bounds if b.side is Side.LOWER), key=lambda b: b.log_value)

    @property
    def upper(self) -> Bound:
        """The smallest upper bound."""
        return min((b for b in self.bounds if b.side is Side.UPPER), key=lambda b: b.log_value)

    def __repr__(self) -> str:
        """Show the bounds as lines of text."""
        width = max((len(b.name) for b in self.bounds), default=0)
        return "\n".join(f"{b.name:<{width}}  {b.side} {b.digits:>10}  {b.source}" for b in self.bounds)

    def __rich__(self) -> Table:
        """Render in a rich console."""
        shown = Table("bound", "Lip", "theorem", box=None, header_style="bold")
        shown.columns[1].justify = "right"
        for b in self.bounds:
            shown.add_row(b.name, f"{b.side} {b.digits}", b.source)
        return shown

    def _repr_html_(self) -> str:
        return table(("bound", "Lip", "theorem"), ((b.name, f"{b.side} {b.digits}", b.source) for b in self.bounds))

    def to_json(self) -> str:
        """Return one JSON object."""
        refused = [{"name": r.name, "reason": r.reason} for r in self.refused]
        return strict_json({"bounds": [b.as_dict() for b in self.bounds], "refused": refused})

    def to_frame(self) -> Any:
        """Return the bounds as a DataFrame of pandas."""
        return frame(b.as_dict() for b in self.bounds)

    def save(self, path: str | os.PathLike[str], attention: "Attention", *, n: int, radius: float) -> None:
        """Write a proof file of all bounds that are finite; the arguments are those of :meth:`Bound.save`."""
        from howsmooth.theory.proofs import save_bounds

        save_bounds(path, [bound for bound in self.bounds if math.isfinite(bound.value)], attention, n, radius)

    @classmethod
    def from_json(cls, text: str) -> "BoundsTable":
        """Read what :meth:`to_json` wrote."""
        found = json.loads(text)
        bounds = tuple(Bound.from_dict(fields) for fields in found["bounds"])
        return cls(bounds=bounds, refused=tuple(NotApplicable(**fields) for fields in found["refused"]))


def safe_digits(value: float, log_value: float, side: Side, digits: int = 5) -> str:
    """Write some digits of a bound, rounded so that it stays true; what exceeds a float as a power of ten.

    Example:
        >>> safe_digits(2.000001, 0.6931, Side.UPPER), safe_digits(math.inf, 2303.0, Side.UPPER)
        ('2.0001', '10¹⁰⁰¹')
    """
    if value != 0 and not 1e-300 < value < 1e300 and math.isfinite(log_value):
        away = math.ceil if side is Side.UPPER else math.floor
        return power_of_ten(away(log_value / math.log(10)))
    return at_most(value, digits) if side is Side.UPPER else at_least(value, digits)
