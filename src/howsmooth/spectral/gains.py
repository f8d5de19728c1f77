"""What an estimate of the typical amplification returns."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from howsmooth.markup import paragraph, table
from howsmooth.strict import strict_json
from howsmooth.wording import count, estimated, percent


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
        worth, many = percent(self.confidence), self.value.numel()
        said = self._written(int(self.value.argmin()))
        if many > 1:
            said = f"{many} inputs, from {said} to {self._written(int(self.value.argmax()))}"
            worth += " each"
        return f"{said} ({worth}, {count(self.samples, 'sample')})"

    def _written(self, place: int) -> str:
        value, low, high = (float(x.flatten()[place]) for x in (self.value, self.low, self.high))
        return " ".join(estimated(value, low, high))

    def __rich__(self) -> str:
        """Render in a rich console."""
        return self._summary().replace("[", r"\[")  # brackets are markup there

    def _repr_html_(self) -> str:
        rows = ((self._written(place),) for place in range(self.value.numel()))
        head = (f"typical gain ({percent(self.confidence)})",)
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
