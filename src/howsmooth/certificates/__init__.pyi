"""Certified radii, and what they are proven for."""

from howsmooth.certificates.certify import Certificate as Certificate
from howsmooth.certificates.remainder_table import Slack as Slack
from howsmooth.certificates.sentence_certifier import Radius as Radius
from howsmooth.certificates.sentence_certifier import SentenceCertifier as SentenceCertifier
from howsmooth.certificates.synonyms import ReplacementHull as ReplacementHull
from howsmooth.certificates.synonyms import Synonyms as Synonyms
from howsmooth.certificates.synonyms import certify_synonyms as certify_synonyms

__all__: list[str]
