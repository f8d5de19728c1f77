"""Networks as Taylor models: stage by stage, residual connections around them."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import Pointwise, known_activation
from howsmooth.maps.affine import Affine, Pooling
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.mlp import MLP, Dense
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.rounding import SUM_SHARE
from howsmooth.verification.activation_expansion import ActivationExpansion
from howsmooth.verification.attention_expansion import AttentionExpansion
from howsmooth.verification.norm_expansion import NormExpansion
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import ExpandedStage, Forms, TaylorModel


def expand(f: Map, model: TaylorModel, level: int) -> TaylorModel:
    """Return the model behind a map.

    Args:
        f: The map: attention, MLPs, norms, affine maps and pooling, in chains and residual connections.
        model: What enters.
        level: How second orders are bounded: 0 by products of ranges, 1 by quadratic forms where scores, norms and
            units depend on them, 2 by forms everywhere.
    """
    if isinstance(f, Chain):
        for part in f.maps:
            model = expand(part, model, level)
        return model
    if isinstance(f, Residual):
        return model.then(ResidualStage(model, expand(f.map, model, level)))
    if isinstance(f, MLP):
        return expand(Chain(Dense(f.up, f.up_bias), _pointwise(f), Dense(f.down, f.down_bias)), model, level)
    if isinstance(f, Affine | Dense | Pooling):
        return model.then(LinearStage(f, model))
    if isinstance(f, Attention):
        return model.then(AttentionExpansion(f, model, forms=level > 0, all_forms=level > 1))
    if isinstance(f, Norm):
        return model.then(NormExpansion(f, model, forms=level > 0))
    if isinstance(f, Pointwise):
        activation = known_activation(f.activation)
        if activation.name == "relu":
            return model.then(ReLURelaxation(model, forms=level > 0))
        return model.then(ActivationExpansion(activation, model, forms=level > 0))
    raise AssumptionError(
        "boxes are verified through softmax attention, MLPs, norms, affine maps and pooling, in chains and residual "
        f"connections; got {type(f).__name__}."
    )


def _pointwise(f: MLP) -> Pointwise:
    return Pointwise(activation=f.activation, dtype=f.dtype)


class LinearStage(ExpandedStage):
    """An affine map: nothing is left over."""

    def __init__(self, f: Affine | Dense | Pooling, model: TaylorModel) -> None:
        # where a range before is infinite, centres may be no numbers: maps would refuse them, their matrices do not
        origin = torch.zeros_like(model.centre)
        self._jacobian, self.entered = f.jacobian(origin[None]), model.centre
        self.value = self._push(model.centre[None])[0] + f(origin)
        self.linear = self._push(model.derivative.movedim(-1, 0)).movedim(0, -1)
        summands = _summands(f, model.centre.abs() + model.derivative.abs().sum(-1))
        # what cancels less is among what margins allow for
        cancels = summands > 2.0**10 * (self.value.abs() + self.linear.abs().sum(-1))
        self._rounding = torch.where(cancels, SUM_SHARE * summands, 0.0)

    def _push(self, columns: Float[Tensor, "r n d"]) -> Float[Tensor, "r m out"]:
        return self._jacobian.take(_first(columns)).jvp(columns)

    def pull_back(self, functionals: Float[Tensor, "f m out"], forms: Forms | None) -> Float[Tensor, "f n d"]:
        """Apply the transpose; sums in floats are off by a share of their summands, which may cancel."""
        if forms is not None:
            forms.add_remainder((functionals.abs() * self._rounding).sum((1, 2)))
        return self._jacobian.take(_first(functionals)).vjp(functionals)


class ResidualStage(ExpandedStage):
    """What enters, and what the stages inside make of it."""

    def __init__(self, model: TaylorModel, behind: TaylorModel) -> None:
        self._inside = behind.stages[len(model.stages) :]
        added = behind.derivative.shape[-1] - model.derivative.shape[-1]
        self.value = model.centre + behind.centre
        self.linear = pad(model.derivative, (0, added)) + behind.derivative

    @property
    def parts(self) -> tuple[ExpandedStage, ...]:
        """The stages inside."""
        return tuple(part for stage in self._inside for part in stage.parts)

    def pull_back(self, functionals: Float[Tensor, "f n d"], forms: Forms) -> Float[Tensor, "f n d"]:
        """Pull back through the stages inside, and add what goes past them."""
        pulled = functionals
        for stage in reversed(self._inside):
            pulled = stage.pull_back(pulled, forms)
        return functionals + pulled


def _summands(f: Affine | Dense | Pooling, size: Float[Tensor, "n d"]) -> Float[Tensor, "m out"]:
    """Return the sums of the absolute values of all products, for tokens of such absolute values."""
    if isinstance(f, Pooling):
        return f.weights.abs()[None] @ size
    if isinstance(f, Dense):
        return size @ f.weight.abs().mT + (0.0 if f.bias is None else f.bias.abs())
    return torch.tensordot(f.weight.abs(), size, 2) + (0.0 if f.bias is None else f.bias.abs())


def _first(columns: Tensor) -> Tensor:
    """Return as many zeros as there are columns: the Jacobian is that of a batch of one."""
    return torch.zeros(len(columns), dtype=torch.long)
