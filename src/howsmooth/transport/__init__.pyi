"""Discrete and Gaussian measures and the distances between them."""

from howsmooth.transport.distances import TransportPlan as TransportPlan
from howsmooth.transport.distances import conditional_wasserstein as conditional_wasserstein
from howsmooth.transport.distances import transport_plan as transport_plan
from howsmooth.transport.distances import wasserstein as wasserstein
from howsmooth.transport.gaussian import GaussianMeasure as GaussianMeasure
from howsmooth.transport.measures import DiscreteMeasure as DiscreteMeasure

__all__: list[str]
