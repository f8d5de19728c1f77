"""The result of an attack: the perturbation, its displacement, and the predicted one."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from howsmooth.markup import paragraph, strict_json
from howsmooth.wording import at_least, at_most, number


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Attack:
    r"""The best perturbation that was found, or a batch of them: one for each sequence.

    Attributes:
        perturbation: E, never outside of the ball: :math:`\|E\|_F\le\epsilon` or :math:`|e_i|\le\epsilon`.
        displacement: :math:`\|f(X+E)-f(X)\|_F`.
        rise: What was maximised: the displacement, or by how much the target rose.
        predicted: What the derivative at X predicts of that: :math:`\max\|D_Xf\,E\|_F` over the ball, so
            :math:`\sigma\epsilon` for the total norm. Under the norm of tokens, what block power iteration attains.
        ceiling: A proven upper bound of the displacement over the ball; none where no theorem applies.
        products: How many products with derivatives and forward passes the method spent.
        trace: The largest rise after every forward pass, along the last axis.
        eps: The radius of the ball.
        norm: Its norm: ``total`` or ``token``.
        method: How it was found.
    """

    perturbation: Float[Tensor, "*batch n d"]
    displacement: Float[Tensor, "*batch"]
    rise: Float[Tensor, "*batch"]
    predicted: Float[Tensor, "*batch"]
    ceiling: Float[Tensor, "*batch"] | None
    products: int
    trace: Float[Tensor, "*batch passes"]
    eps: float
    norm: str
    method: str

    @property
    def gain(self) -> Float[Tensor, "*batch"]:
        r"""How far the output moves for each unit of :math:`\epsilon`: what a Lipschitz constant bounds."""
        return self.displacement / self.eps

    def __len__(self) -> int:
        """Return the length of the first batch axis."""
        if not self.rise.ndim:
            raise TypeError("an attack on a single sequence has no length.")
        return self.rise.shape[0]

    def __getitem__(self, index: int) -> "Attack":
        """Return the attack on one entry along the first batch axis."""
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a batch of {size}.")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen: dict[str, Any] = {name: x[index] for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **chosen)

    def __iter__(self) -> Iterator["Attack"]:
        """Go through the first batch axis."""
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        """Show what was attained for each unit of eps, and what was predicted and allowed."""
        return f"Attack: {self._summary()}"

    def _summary(self) -> str:
        where = f"ε = {self.eps:g} ({self.norm}), {self.method}, {self.products} passes"
        if self.rise.ndim:
            low, high = (at_least(float(x) / self.eps, 3) for x in (self.displacement.min(), self.displacement.max()))
            return f"{self.rise.numel()} sequences, from {low} to {high} per unit of ε; {where}"
        allowed = "" if self.ceiling is None else f", at most {at_most(float(self.ceiling) / self.eps, 3)}"
        return f"{at_least(float(self.gain), 3)} per unit of ε, predicted {self._predicted()}{allowed}; {where}"

    def _predicted(self) -> str:
        return number(float(self.predicted) / self.eps)

    def _repr_html_(self) -> str:
        return paragraph(self._summary())

    def to_json(self) -> str:
        """Return everything but the perturbation as one JSON object."""
        return strict_json(
            {
                "method": self.method,
                "norm": self.norm,
                "eps": self.eps,
                "displacement": self.displacement.tolist(),
                "gain": self.gain.tolist(),
                "rise": self.rise.tolist(),
                "predicted": self.predicted.tolist(),
                "ceiling": None if self.ceiling is None else self.ceiling.tolist(),
                "products": self.products,
                "trace": self.trace.tolist(),
            }
        )
