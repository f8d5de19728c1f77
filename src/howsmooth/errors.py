"""Every exception and warning that howsmooth raises on purpose, and how a name that is not known is answered."""

import difflib
from collections.abc import Iterable


class HowsmoothError(Exception):
    """Base of every error that howsmooth raises on purpose.

    Attributes:
        field: The argument or setting that the error is about, by its name; none if it is about no single one. Study
            files and the command line point at it.
    """

    def __init__(self, *message: object, field: str | None = None) -> None:
        super().__init__(*message)
        self.field = field


class ShapeError(HowsmoothError, ValueError):
    """A tensor does not have the shape that is needed."""


class DtypeError(HowsmoothError, TypeError):
    """A tensor has the wrong kind of numbers, or two tensors do not agree."""


class DeviceError(HowsmoothError, ValueError):
    """Two tensors live on different devices."""


class NonFiniteError(HowsmoothError, ValueError):
    """A tensor holds NaN or infinity where finite numbers are needed."""


class AssumptionError(HowsmoothError, ValueError):
    """A hypothesis of a theorem, a solver or a map does not hold."""


class UnmeasurableError(AssumptionError):
    """A map, or its derivative, cannot be computed at this input; at others it may be. Searches leave it out."""


class FileError(HowsmoothError, OSError):
    """A file is missing, damaged, or does not hold what is needed."""


class UnsupportedModelError(HowsmoothError, LookupError):
    """A model is of no known family, or cannot be found."""


class StudyError(HowsmoothError, ValueError):
    """A study file asks for something that cannot be had."""


class FieldError(HowsmoothError, ValueError):
    """A value does not have the type or the range that its field needs; ``field`` says which, as in ``lengths[2]``."""


class ClusterError(HowsmoothError, RuntimeError):
    """A cluster cannot be reached, or is lost."""


class ContradictionError(HowsmoothError, RuntimeError):
    """A lower bound exceeds an upper bound of the same number: a bug of howsmooth, whatever the call was."""

    @classmethod
    def between(cls, lower: float, upper: float, what: str) -> "ContradictionError":
        """Return the error that says which two ends contradict each other, and how to report it."""
        return cls(
            f"{what} contradicts itself: at least {lower!r} and at most {upper!r}. This is a bug of howsmooth: please "
            "report it as CONTRIBUTING.md says, with this message, the versions of howsmooth and torch (pip show), the "
            "map and its input or the seeds that draw them, and the arguments of the call."
        )


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached the accuracy that was asked for."""


class FallbackWarning(UserWarning):
    """Something was done in a slower way than the one that was asked for; the result is the same."""


class SmoothnessWarning(UserWarning):
    """A constant doubled while a model was trained, left its limit, or is no number any more."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a refusal: the names that are nearest to one that is not known, or all there are.

    >>> nearest("atention", ["attention", "block"])
    '; did you mean attention?'
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known are {', '.join(known)}."
