"""Errors."""

from howsmooth.errors import (
    AssumptionError,
    DeviceError,
    DtypeError,
    HowsmoothError,
    NonFiniteError,
    ShapeError,
)


def test_every_error_is_also_the_builtin_that_a_caller_would_guess():
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DtypeError, TypeError)
    for error in (ShapeError, DtypeError, DeviceError, NonFiniteError, AssumptionError):
        assert issubclass(error, HowsmoothError)
