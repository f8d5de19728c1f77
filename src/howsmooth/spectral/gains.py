"""What an estimate of the typical amplification returns."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from howsmooth.markup import paragraph, table
from howsmooth.strict import strict_json
from howsmooth.wording import count, number, percent


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TypicalGain:
    r"""The root mean square amplification of random noise by one operator, or by a batch of them.

    Attributes:
        value: The estimate of :math:`\|J\|_F/\sqrt N`.
        low: The lower end of its interval.
        high: The upper end.
        confidence: The probability with which the interval holds, for each batch element.
        samples: How many random directions were taken.
        products: How many products with the operator that cost.
    """

    value: Float[Tensor, "*batch"]
    low: Float[Tensor, "*batch"]
    high: Float[Tensor, "*batch"]
    confidence: float
    samples: int
    products: int

    def __repr__(self) -> str:
        """Show the estimate and its interval."""
        return f"TypicalGain: {self._summary()}"

    def _summary(self) -> str:
        many, worth = self.value.numel(), f"{percent(self.confidence)}, {count(self.samples, 'sample')}"
        if many == 1:
            low, high = number(float(self.low)), number(float(self.high))
            return f"{number(float(self.value))} in [{low}, {high}] ({worth})"
        least, most = number(float(self.value.min())), number(float(self.value.max()))
        return f"{many} inputs, from {least} to {most} ({worth})"

    def __rich__(self) -> str:
        """Render in a rich console."""
        return self._summary().replace("[", r"\[")  # brackets are markup there

    def _repr_html_(self) -> str:
        ends = (x.flatten().tolist() for x in (self.value, self.low, self.high))
        rows = (tuple(number(x) for x in row) for row in zip(*ends, strict=True))
        head = ("typical gain", "from", f"to ({percent(self.confidence)})")
        return table(head, rows) + paragraph(f"{count(self.samples, 'sample')}, {count(self.products, 'product')}")

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json(
            {
                "value": self.value.tolist(),
                "low": self.low.tolist(),
                "high": self.high.tolist(),
                "confidence": self.confidence,
                "samples": self.samples,
                "products": self.products,
            }
        )
