"""Certified radii, and what they are proven for."""

from howsmooth.certificates.certificate import Certificate as Certificate
from howsmooth.certificates.certificate import certify_map as certify_map
from howsmooth.certificates.choices import Choices as Choices
from howsmooth.certificates.scene import Radius as Radius
from howsmooth.certificates.synonyms import Synonyms as Synonyms
from howsmooth.certificates.synonyms import certify_synonyms as certify_synonyms

__all__: list[str]
