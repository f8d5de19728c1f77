"""What a release says of itself in several places is said once."""

import re
import tomllib
from pathlib import Path

import howsmooth as hs

ROOT = Path(__file__).parents[2]


def test_every_place_has_the_same_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    recipe = (ROOT / "packaging" / "conda-recipe.yaml").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == hs.__version__
    assert re.search(r'^  version: "(.*)"$', recipe, re.MULTILINE)[1] == hs.__version__


def test_the_recipe_needs_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = (ROOT / "packaging" / "conda-recipe.yaml").read_text(encoding="utf-8")
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    needed = {line.strip("- ").replace(" ", "") for line in run.splitlines()} - {"python" + project["requires-python"]}
    assert needed == {line.replace("torch>", "pytorch>") for line in project["dependencies"]}
