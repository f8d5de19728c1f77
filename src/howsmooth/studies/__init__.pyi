"""Measured runs of models: their settings, records and summaries."""

from howsmooth.studies.card_measurement import card as card
from howsmooth.studies.cards import Card as Card
from howsmooth.studies.cards import CardComparison as CardComparison
from howsmooth.studies.cards import CardNumber as CardNumber
from howsmooth.studies.cards import compare_cards as compare_cards
from howsmooth.studies.cards import read_card as read_card
from howsmooth.studies.cards import write_card as write_card
from howsmooth.studies.kinds.certified_radii import certified_accuracy as certified_accuracy
from howsmooth.studies.plans.measurement_plan import measure as measure
from howsmooth.studies.records import Failure as Failure
from howsmooth.studies.records import Record as Record
from howsmooth.studies.runs.certified_accuracy import CertifiedAccuracy as CertifiedAccuracy
from howsmooth.studies.runs.compare import compare as compare
from howsmooth.studies.runs.comparison import Comparison as Comparison
from howsmooth.studies.runs.growth import Growth as Growth
from howsmooth.studies.runs.growth import growth as growth
from howsmooth.studies.runs.measurement import Measurement as Measurement
from howsmooth.studies.runs.run import Run as Run
from howsmooth.studies.runs.run import read_run as read_run
from howsmooth.studies.runs.summary import LayerSummary as LayerSummary
from howsmooth.studies.settings import Compute as Compute
from howsmooth.studies.settings import Solver as Solver
from howsmooth.studies.settings import Windows as Windows

__all__: list[str]
