"""Proof files, checked in ball arithmetic by a second program that is written from the theorems alone."""

try:
    import flint as _flint  # noqa: F401
except ImportError as error:
    from howsmooth.errors import AssumptionError

    raise AssumptionError("checking needs the package python-flint: pip install 'howsmooth[check]'.") from error

from howsmooth.lazy_names import names_of_stub

__all__, __getattr__, __dir__ = names_of_stub(__name__, __file__)
