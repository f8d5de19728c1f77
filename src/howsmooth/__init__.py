"""howsmooth: how smooth is attention? Measure, bound and attack its Lipschitz constant."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from howsmooth.maps.attention import Attention
    from howsmooth.maps.composition import Chain, Residual
    from howsmooth.maps.ellipsoids import Ball, Ellipsoid
    from howsmooth.maps.norms import LayerNorm, RMSNorm
    from howsmooth.maps.positions import Positions
    from howsmooth.maps.rotary import Rotary
    from howsmooth.spectral.autograd import JacobianOperator
    from howsmooth.spectral.deflation import singular_values
    from howsmooth.spectral.estimates import NormEstimate, SingularValues, Status
    from howsmooth.spectral.operators import Dense, LinearOperator
    from howsmooth.spectral.power import power_iteration
    from howsmooth.spectral.solvers import local_lipschitz, spectral_norm

__all__ = [
    "Attention",
    "Ball",
    "Chain",
    "Dense",
    "Ellipsoid",
    "JacobianOperator",
    "LayerNorm",
    "LinearOperator",
    "NormEstimate",
    "Positions",
    "RMSNorm",
    "Residual",
    "Rotary",
    "SingularValues",
    "Status",
    "local_lipschitz",
    "power_iteration",
    "singular_values",
    "spectral_norm",
]

# Loaded on first use, so that the command line can say its version without importing torch.
_HOMES = {
    "Attention": "maps.attention",
    "Ball": "maps.ellipsoids",
    "Chain": "maps.composition",
    "Dense": "spectral.operators",
    "Ellipsoid": "maps.ellipsoids",
    "JacobianOperator": "spectral.autograd",
    "LayerNorm": "maps.norms",
    "LinearOperator": "spectral.operators",
    "NormEstimate": "spectral.estimates",
    "Positions": "maps.positions",
    "RMSNorm": "maps.norms",
    "Residual": "maps.composition",
    "Rotary": "maps.rotary",
    "SingularValues": "spectral.estimates",
    "Status": "spectral.estimates",
    "local_lipschitz": "spectral.solvers",
    "power_iteration": "spectral.power",
    "singular_values": "spectral.deflation",
    "spectral_norm": "spectral.solvers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'howsmooth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"howsmooth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
