"""howsmooth: how smooth is attention? Measure, bound and attack its Lipschitz constant."""

import importlib

from howsmooth.threads import wait_passively

__version__ = "0.1.0"

wait_passively()


def _public_names() -> dict[str, str]:
    """Return the home of every public name, ``module`` or ``module:name``, as the stub beside this file lists them.

    Names are loaded on first use, so that the command line can print its version without importing torch.
    """
    homes = {}
    with open(f"{__file__.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        for line in stub:
            statement, _as, name = line.strip().partition(" as ")
            if statement.startswith("from "):
                homes[name] = statement.removeprefix("from ").replace(" import ", ":")
            elif statement.startswith("import "):
                homes[name] = statement.removeprefix("import ")
    return homes


_HOMES = _public_names()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'howsmooth' has no attribute {name!r}")
    module, _colon, member = _HOMES[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, member) if member else found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
