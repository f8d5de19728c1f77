"""howsmooth: how smooth is attention? Measure, bound and attack its Lipschitz constant."""

import importlib

from howsmooth.threads import wait_passively

__version__ = "0.1.0"

wait_passively()


def _public_names() -> dict[str, str]:
    """Return the module that defines each public name, as the stub beside this file lists them.

    Names are loaded on first use, so that the command line can print its version without importing torch.
    """
    with open(f"{__file__.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        imports = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _from, module, _import, _member, _as, name in imports}


_HOMES = _public_names()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'howsmooth' has no attribute {name!r}")
    found = vars(importlib.import_module(_HOMES[name])).get(name)
    return importlib.import_module(f"{_HOMES[name]}.{name}") if found is None else found  # such as hs.bounds


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
