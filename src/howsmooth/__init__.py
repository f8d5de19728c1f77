"""howsmooth: how smooth is attention? Measure, bound and attack its Lipschitz constant."""

import importlib

from howsmooth.threads import wait_passively

__version__ = "0.1.0"

wait_passively()

# Why not typing's: its import is half of what comes before a Ctrl-C can be heeded, and type checkers go by the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from howsmooth import errors
    from howsmooth.attacks.attack import attack
    from howsmooth.attacks.result import Attack
    from howsmooth.certificates.certificate import Certificate
    from howsmooth.certificates.certify import certify
    from howsmooth.certificates.scene import Radius
    from howsmooth.certificates.synonyms import Synonyms, certify_synonyms
    from howsmooth.domains.ball import Ball
    from howsmooth.domains.ellipsoid import Ellipsoid
    from howsmooth.domains.neighbourhood import Neighbourhood
    from howsmooth.domains.norm_image import LayerNormImage
    from howsmooth.domains.sphere import Sphere
    from howsmooth.maps.attention import Attention
    from howsmooth.maps.composition import Chain, Residual, Sum
    from howsmooth.maps.dense import Dense
    from howsmooth.maps.mechanisms.cosine import CosineAttention
    from howsmooth.maps.mechanisms.differential import DifferentialAttention
    from howsmooth.maps.mechanisms.entmax import EntmaxAttention
    from howsmooth.maps.mechanisms.l2 import L2Attention
    from howsmooth.maps.mechanisms.linear import LinearAttention
    from howsmooth.maps.mechanisms.sigmoid import SigmoidAttention
    from howsmooth.maps.mechanisms.sinkhorn import SinkhornAttention
    from howsmooth.maps.mlp import MLP, GatedMLP
    from howsmooth.maps.norms import LayerNorm, RMSNorm
    from howsmooth.maps.pooling import Pooling
    from howsmooth.maps.positions import Positions
    from howsmooth.maps.rotary import Rotary
    from howsmooth.maps.weighted import mean_field
    from howsmooth.models.load import load
    from howsmooth.models.transformer import Transformer
    from howsmooth.report.page import write_report
    from howsmooth.search.ascent import maximise
    from howsmooth.search.audit import Audit, audit
    from howsmooth.search.brackets import bracket
    from howsmooth.search.regimes import regimes
    from howsmooth.search.splitting import split_attack, splitting
    from howsmooth.search.splitting_map import splitting_map
    from howsmooth.spectral.autograd import JacobianOperator
    from howsmooth.spectral.deflation import singular_values
    from howsmooth.spectral.estimates import NormEstimate, SingularValues, Status
    from howsmooth.spectral.gains import TypicalGain
    from howsmooth.spectral.operators import LinearOperator
    from howsmooth.spectral.power import power_iteration
    from howsmooth.spectral.solvers import local_lipschitz, spectral_norm
    from howsmooth.spectral.typical import typical_gain
    from howsmooth.studies.plans.measure import measure
    from howsmooth.studies.runs.compare import compare
    from howsmooth.studies.runs.comparison import Comparison
    from howsmooth.studies.runs.growth import growth
    from howsmooth.studies.runs.measurement import Measurement
    from howsmooth.studies.runs.reading import Run, read_run
    from howsmooth.studies.runs.training_log import RunLog
    from howsmooth.theory import bounds, extremal
    from howsmooth.theory.results import Bound, Bracket, Witness
    from howsmooth.tokens.inversion import invert
    from howsmooth.tokens.swaps import swap
    from howsmooth.training import callbacks
    from howsmooth.training.attention_penalty import attention_penalty
    from howsmooth.training.monitor import Monitor
    from howsmooth.training.penalty import penalty
    from howsmooth.training.sinks import TensorBoard
    from howsmooth.training.warm_starts import WarmStart
    from howsmooth.transport.measures import DiscreteMeasure
    from howsmooth.transport.wasserstein import conditional_wasserstein, transport_plan, wasserstein

__all__ = [
    "MLP",
    "Attack",
    "Attention",
    "Audit",
    "Ball",
    "Bound",
    "Bracket",
    "Certificate",
    "Chain",
    "Comparison",
    "CosineAttention",
    "Dense",
    "DifferentialAttention",
    "DiscreteMeasure",
    "Ellipsoid",
    "EntmaxAttention",
    "GatedMLP",
    "JacobianOperator",
    "L2Attention",
    "LayerNorm",
    "LayerNormImage",
    "LinearAttention",
    "LinearOperator",
    "Measurement",
    "Monitor",
    "Neighbourhood",
    "NormEstimate",
    "Pooling",
    "Positions",
    "RMSNorm",
    "Radius",
    "Residual",
    "Rotary",
    "Run",
    "RunLog",
    "SigmoidAttention",
    "SingularValues",
    "SinkhornAttention",
    "Sphere",
    "Status",
    "Sum",
    "Synonyms",
    "TensorBoard",
    "Transformer",
    "TypicalGain",
    "WarmStart",
    "Witness",
    "attack",
    "attention_penalty",
    "audit",
    "bounds",
    "bracket",
    "callbacks",
    "certify",
    "certify_synonyms",
    "compare",
    "conditional_wasserstein",
    "errors",
    "extremal",
    "growth",
    "invert",
    "load",
    "local_lipschitz",
    "maximise",
    "mean_field",
    "measure",
    "penalty",
    "power_iteration",
    "read_run",
    "regimes",
    "singular_values",
    "spectral_norm",
    "split_attack",
    "splitting",
    "splitting_map",
    "swap",
    "transport_plan",
    "typical_gain",
    "wasserstein",
    "write_report",
]

# Loaded on first use, so that the command line can say its version without importing torch.
_HOMES = {
    "Attack": "attacks.result",
    "Attention": "maps.attention",
    "Audit": "search.audit",
    "Ball": "domains.ball",
    "Bound": "theory.results",
    "Bracket": "theory.results",
    "Certificate": "certificates.certificate",
    "Chain": "maps.composition",
    "Comparison": "studies.runs.comparison",
    "CosineAttention": "maps.mechanisms.cosine",
    "Dense": "maps.dense",
    "DifferentialAttention": "maps.mechanisms.differential",
    "Ellipsoid": "domains.ellipsoid",
    "EntmaxAttention": "maps.mechanisms.entmax",
    "GatedMLP": "maps.mlp",
    "JacobianOperator": "spectral.autograd",
    "L2Attention": "maps.mechanisms.l2",
    "LayerNorm": "maps.norms",
    "LayerNormImage": "domains.norm_image",
    "LinearAttention": "maps.mechanisms.linear",
    "LinearOperator": "spectral.operators",
    "MLP": "maps.mlp",
    "DiscreteMeasure": "transport.measures",
    "Measurement": "studies.runs.measurement",
    "Monitor": "training.monitor",
    "Neighbourhood": "domains.neighbourhood",
    "NormEstimate": "spectral.estimates",
    "Pooling": "maps.pooling",
    "Positions": "maps.positions",
    "RMSNorm": "maps.norms",
    "Radius": "certificates.scene",
    "Residual": "maps.composition",
    "Rotary": "maps.rotary",
    "Run": "studies.runs.reading",
    "RunLog": "studies.runs.training_log",
    "SigmoidAttention": "maps.mechanisms.sigmoid",
    "SingularValues": "spectral.estimates",
    "SinkhornAttention": "maps.mechanisms.sinkhorn",
    "Sphere": "domains.sphere",
    "Status": "spectral.estimates",
    "Sum": "maps.composition",
    "Synonyms": "certificates.synonyms",
    "TensorBoard": "training.sinks",
    "Transformer": "models.transformer",
    "TypicalGain": "spectral.gains",
    "WarmStart": "training.warm_starts",
    "Witness": "theory.results",
    "attack": "attacks.attack",
    "attention_penalty": "training.attention_penalty",
    "audit": "search.audit",
    "bracket": "search.brackets",
    "certify": "certificates.certify",
    "certify_synonyms": "certificates.synonyms",
    "compare": "studies.runs.compare",
    "conditional_wasserstein": "transport.wasserstein",
    "growth": "studies.runs.growth",
    "invert": "tokens.inversion",
    "load": "models.load",
    "local_lipschitz": "spectral.solvers",
    "maximise": "search.ascent",
    "mean_field": "maps.weighted",
    "measure": "studies.plans.measure",
    "penalty": "training.penalty",
    "power_iteration": "spectral.power",
    "read_run": "studies.runs.reading",
    "regimes": "search.regimes",
    "singular_values": "spectral.deflation",
    "spectral_norm": "spectral.solvers",
    "split_attack": "search.splitting",
    "splitting": "search.splitting",
    "splitting_map": "search.splitting_map",
    "swap": "tokens.swaps",
    "transport_plan": "transport.wasserstein",
    "typical_gain": "spectral.typical",
    "wasserstein": "transport.wasserstein",
    "write_report": "report.page",
}

# Modules that are reached by name: hs.bounds.sharp_upper.
_MODULES = {
    "bounds": "theory.bounds",
    "callbacks": "training.callbacks",
    "errors": "errors",
    "extremal": "theory.extremal",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"howsmooth.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'howsmooth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"howsmooth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
