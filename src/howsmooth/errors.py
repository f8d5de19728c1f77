"""Every exception and warning that howsmooth raises on purpose."""


class HowsmoothError(Exception):
    """Base of every error that howsmooth raises on purpose."""


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


class FileError(HowsmoothError, OSError):
    """A file is missing, damaged, or does not hold what is needed."""


class UnsupportedModelError(HowsmoothError, LookupError):
    """A model is of no known family, or cannot be found."""


class StudyError(HowsmoothError, ValueError):
    """A study file asks for something that cannot be had."""


class ClusterError(HowsmoothError, RuntimeError):
    """A cluster cannot be reached, or is lost."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached the accuracy that was asked for."""
