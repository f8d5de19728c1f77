"""What most users call, and the namespaces that hold the rest; loaded on first use."""

from howsmooth import attacks as attacks
from howsmooth import budgets as budgets
from howsmooth import certificates as certificates
from howsmooth import domains as domains
from howsmooth import errors as errors
from howsmooth import maps as maps
from howsmooth import metrics as metrics
from howsmooth import search as search
from howsmooth import spectral as spectral
from howsmooth import studies as studies
from howsmooth import tokens as tokens
from howsmooth import training as training
from howsmooth import transport as transport
from howsmooth import verification as verification
from howsmooth.attacks import attack as attack
from howsmooth.attention_calls import use_sdpa as use_sdpa
from howsmooth.budgets import budget as budget
from howsmooth.certificates.certify import certify as certify
from howsmooth.certificates.synonyms import certify_synonyms as certify_synonyms
from howsmooth.check import check_proof as check_proof
from howsmooth.maps import Attention as Attention
from howsmooth.metrics import Metric as Metric
from howsmooth.metrics import Metrics as Metrics
from howsmooth.models.load import load as load
from howsmooth.models.transformer import Transformer as Transformer
from howsmooth.report.page import write_report as write_report
from howsmooth.report.results import compare as compare
from howsmooth.report.results import measure as measure
from howsmooth.report.results import read_run as read_run
from howsmooth.scaled_dot_product import sdpa as sdpa
from howsmooth.search import audit as audit
from howsmooth.search import bracket as bracket
from howsmooth.search import maximise as maximise
from howsmooth.search import regimes as regimes
from howsmooth.search import split_attack as split_attack
from howsmooth.search import splitting as splitting
from howsmooth.spectral import NormEstimate as NormEstimate
from howsmooth.spectral import local_lipschitz as local_lipschitz
from howsmooth.spectral import singular_values as singular_values
from howsmooth.spectral import spectral_norm as spectral_norm
from howsmooth.spectral import typical_gain as typical_gain
from howsmooth.studies import Measurement as Measurement
from howsmooth.studies import growth as growth
from howsmooth.theory import bounds as bounds
from howsmooth.theory import inputs as inputs
from howsmooth.theory.results import Bound as Bound
from howsmooth.theory.results import Bracket as Bracket
from howsmooth.theory.results import Witness as Witness
from howsmooth.tokens import swap as swap
from howsmooth.training import Monitor as Monitor
from howsmooth.training import penalty as penalty
from howsmooth.training.head_probe import probe as probe
from howsmooth.verification import verify as verify

__version__: str
__all__: list[str]
