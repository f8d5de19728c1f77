import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import howsmooth as hs


def test_every_exported_name_can_be_had():
    for name in hs.__all__:
        assert getattr(hs, name).__name__.split(".")[-1] == name
    assert set(hs.__all__) <= set(dir(hs))


def test_the_type_checker_sees_the_same_names():
    tree = ast.parse(Path(hs.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {alias.asname for node in imports for alias in node.names} == set(hs.__all__)


@pytest.mark.parametrize("index", [hs.bounds, hs.extremal], ids=["bounds", "extremal"])
def test_an_index_holds_what_it_lists_and_nothing_else(index):
    # the import hook that checks shapes in tests leaves its own name in every module
    held = {name for name in vars(index) if not (name.startswith("__") and name.endswith("__"))} - {"jaxtyping"}
    assert held == set(index.__all__) == set(dir(index))
    assert all(inspect.isfunction(getattr(index, name)) for name in held)


def test_every_theorem_is_in_the_index_and_every_input_too():
    assert {name for name in dir(hs.bounds) if not name.endswith(("_upper", "_lower"))} == {
        "large_radius_limit",
        "table",
    }
    assert {"tied_pair", "two_point", "equal_tokens", "origin_token"} < set(dir(hs.extremal))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="lipshitz"):
        hs.local_lipshitz  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import sys, howsmooth, howsmooth.cli.app, howsmooth.cli.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
