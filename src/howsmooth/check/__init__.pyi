"""What checks a proof file, and what comes of it."""

from howsmooth.check.checker import check_proof as check_proof
from howsmooth.check.checker import save_checked as save_checked
from howsmooth.check.outcomes import CheckOutcome as CheckOutcome

__all__: list[str]
