"""Studies for the front door: what they return can be drawn, as this room is imported with them."""

from howsmooth.studies.plans.measurement_plan import measure
from howsmooth.studies.runs.compare import compare
from howsmooth.studies.runs.run import read_run

__all__ = ["compare", "measure", "read_run"]
