"""Public names of a package, listed in the stub beside its ``__init__.py`` and loaded on first use."""

import importlib
from collections.abc import Callable


def names_of_stub(package: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package, from the imports of its stub.

    The stub is the one place where a public name is written down: type checkers read it, and so does this function.
    A name is imported on first use, so that the command line can print its version without importing torch.

    Args:
        package: The name of the package.
        file: The path of its ``__init__.py``. Every import of the stub beside it has the form
            ``from module import name as name``.
    """
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        imports = [line.split() for line in stub if line.startswith("from ")]
    homes = {name: module for _from, module, _import, _member, _as, name in imports}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a module of the package itself, such as hs.maps
            return importlib.import_module(f"{package}.{name}")
        return getattr(__import__(homes[name], fromlist=[name]), name)

    return sorted(homes), load, lambda: sorted(homes)
