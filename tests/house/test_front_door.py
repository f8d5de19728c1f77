import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import howsmooth as hs

ROOT = Path(hs.__file__).parent
STUBS = sorted(ROOT.rglob("__init__.pyi"))


def package(stub):
    return importlib.import_module(".".join(["howsmooth", *stub.parent.relative_to(ROOT).parts]))


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_every_name_of_a_stub_can_be_had_and_no_other(stub):
    namespace = package(stub)
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname for node in imports for alias in node.names} == set(namespace.__all__) == set(dir(namespace))
    for name in namespace.__all__:
        assert getattr(namespace, name).__name__.split(".")[-1] == name


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_no_module_hides_a_name_of_its_package(stub):
    # once howsmooth.transport.wasserstein were imported, hs.transport.wasserstein would be the module
    modules = {path.stem for path in stub.parent.glob("*.py")} | {
        path.parent.name for path in stub.parent.glob("*/*.py")
    }
    hidden = {name for name in package(stub).__all__ if not inspect.ismodule(getattr(package(stub), name))}
    assert not hidden & modules


def test_the_front_door_is_small():
    assert len(hs.__all__) <= 58  # some forty, and a dozen namespaces


@pytest.mark.parametrize("index", [hs.bounds, hs.inputs], ids=["bounds", "inputs"])
def test_an_index_holds_what_it_lists_and_nothing_else(index):
    # the import hook that checks shapes in tests leaves its own name in every module
    held = {name for name in vars(index) if not (name.startswith("__") and name.endswith("__"))} - {"jaxtyping"}
    assert held == set(index.__all__) == set(dir(index))
    assert all(inspect.isfunction(getattr(index, name)) for name in held)


def test_every_theorem_is_in_the_index_and_every_input_too():
    assert {name for name in dir(hs.bounds) if not name.endswith(("_upper", "_lower"))} == {
        "large_radius_limit",
        "largest_logit_cap",
        "logit_cap",
        "table",
    }
    assert {"tied_pair", "two_point", "equal_tokens", "origin_token"} < set(dir(hs.inputs))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="lipshitz"):
        hs.local_lipshitz  # noqa: B018
    with pytest.raises(AttributeError, match="'Atention'"):
        hs.maps.Atention  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    rooms = ", ".join(package(stub).__name__ for stub in STUBS)
    code = f"import sys, {rooms}, howsmooth.cli.app, howsmooth.cli.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_the_front_door_measures_can_be_drawn():
    # in a process of its own, where nothing else has imported the room that draws
    code = (
        "import howsmooth as hs; hs.measure; from howsmooth.studies.runs.result_table import DRAWERS; print(*DRAWERS)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert {"Measurement", "Comparison"} <= set(shown.split())


# called by searches and attacks on objects of users, with a generator that goes on
DRAWN_FROM = {f"{name}.draw" for name in ("Ball", "Domain", "LayerNormImage", "Metric", "Neighbourhood", "Sphere")}


def test_whatever_is_random_takes_a_seed():
    named = {}
    for stub in STUBS:
        for name in package(stub).__all__:
            found = getattr(package(stub), name)
            if inspect.isclass(found):
                methods = inspect.getmembers(found, lambda at: inspect.isfunction(at) or inspect.ismethod(at))
                named |= {f"{name}.{method}": at for method, at in methods if method[0] != "_" or method == "__init__"}
            elif inspect.isfunction(found):
                named[name] = found
    others = {"generator", "rng", "random_state"}
    drawing = {name: set(inspect.signature(at).parameters) for name, at in named.items()}
    assert {name for name, parameters in drawing.items() if parameters & others} == DRAWN_FROM
    assert sum("seed" in parameters for parameters in drawing.values()) > 20
