"""howsmooth: how smooth is attention? Measure, bound and attack its Lipschitz constant."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from howsmooth import errors
    from howsmooth.maps.attention import Attention
    from howsmooth.maps.composition import Chain, Residual
    from howsmooth.maps.ellipsoids import Ball, Ellipsoid
    from howsmooth.maps.norms import LayerNorm, RMSNorm
    from howsmooth.maps.positions import Positions
    from howsmooth.maps.rotary import Rotary
    from howsmooth.maps.weighted import mean_field
    from howsmooth.models.base import Transformer, load
    from howsmooth.report.page import write_report
    from howsmooth.search.ascent import maximise
    from howsmooth.search.brackets import bracket
    from howsmooth.search.domains import LayerNormImage, Neighbourhood, Sphere
    from howsmooth.search.regimes import regimes
    from howsmooth.search.splitting import split_attack, splitting
    from howsmooth.search.splitting_map import splitting_map
    from howsmooth.spectral.autograd import JacobianOperator
    from howsmooth.spectral.deflation import singular_values
    from howsmooth.spectral.estimates import NormEstimate, SingularValues, Status
    from howsmooth.spectral.operators import Dense, LinearOperator
    from howsmooth.spectral.power import power_iteration
    from howsmooth.spectral.solvers import local_lipschitz, spectral_norm
    from howsmooth.studies.growth import growth
    from howsmooth.studies.measure import measure
    from howsmooth.studies.measurement import Measurement
    from howsmooth.studies.reading import Run, read_run
    from howsmooth.theory import bounds, extremal
    from howsmooth.theory.results import Bound, Bracket, Witness
    from howsmooth.transport.measures import Measure
    from howsmooth.transport.wasserstein import conditional_wasserstein, transport_plan, wasserstein

__all__ = [
    "Attention",
    "Ball",
    "Bound",
    "Bracket",
    "Chain",
    "Dense",
    "Ellipsoid",
    "JacobianOperator",
    "LayerNorm",
    "LayerNormImage",
    "LinearOperator",
    "Measure",
    "Measurement",
    "Neighbourhood",
    "NormEstimate",
    "Positions",
    "RMSNorm",
    "Residual",
    "Rotary",
    "Run",
    "SingularValues",
    "Sphere",
    "Status",
    "Transformer",
    "Witness",
    "bounds",
    "bracket",
    "conditional_wasserstein",
    "errors",
    "extremal",
    "growth",
    "load",
    "local_lipschitz",
    "maximise",
    "mean_field",
    "measure",
    "power_iteration",
    "read_run",
    "regimes",
    "singular_values",
    "spectral_norm",
    "split_attack",
    "splitting",
    "splitting_map",
    "transport_plan",
    "wasserstein",
    "write_report",
]

# Loaded on first use, so that the command line can say its version without importing torch.
_HOMES = {
    "Attention": "maps.attention",
    "Ball": "maps.ellipsoids",
    "Bound": "theory.results",
    "Bracket": "theory.results",
    "Chain": "maps.composition",
    "Dense": "spectral.operators",
    "Ellipsoid": "maps.ellipsoids",
    "JacobianOperator": "spectral.autograd",
    "LayerNorm": "maps.norms",
    "LayerNormImage": "search.domains",
    "LinearOperator": "spectral.operators",
    "Measure": "transport.measures",
    "Measurement": "studies.measurement",
    "Neighbourhood": "search.domains",
    "NormEstimate": "spectral.estimates",
    "Positions": "maps.positions",
    "RMSNorm": "maps.norms",
    "Residual": "maps.composition",
    "Rotary": "maps.rotary",
    "Run": "studies.reading",
    "SingularValues": "spectral.estimates",
    "Sphere": "search.domains",
    "Status": "spectral.estimates",
    "Transformer": "models.base",
    "Witness": "theory.results",
    "bracket": "search.brackets",
    "conditional_wasserstein": "transport.wasserstein",
    "growth": "studies.growth",
    "load": "models.base",
    "local_lipschitz": "spectral.solvers",
    "maximise": "search.ascent",
    "mean_field": "maps.weighted",
    "measure": "studies.measure",
    "power_iteration": "spectral.power",
    "read_run": "studies.reading",
    "regimes": "search.regimes",
    "singular_values": "spectral.deflation",
    "spectral_norm": "spectral.solvers",
    "split_attack": "search.splitting",
    "splitting": "search.splitting",
    "splitting_map": "search.splitting_map",
    "transport_plan": "transport.wasserstein",
    "wasserstein": "transport.wasserstein",
    "write_report": "report.page",
}

# Modules that are reached by name: hs.bounds.sharp_upper.
_MODULES = {
    "bounds": "theory.bounds",
    "errors": "errors",
    "extremal": "theory.extremal",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"howsmooth.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'howsmooth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"howsmooth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
