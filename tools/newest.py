"""Bring everything but torch to its newest release and write constraints.txt anew; `make test` then says what broke."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / "constraints.txt"


def main() -> None:
    ours = tuple(word.partition("==")[0] for word in sys.argv[1:])  # weights: the Makefile names their releases
    head = [line for line in PINS.read_text(encoding="utf-8").splitlines() if line.startswith(("#", "torch=="))]
    pip = [sys.executable, "-m", "pip"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as torch:
        torch.write("\n".join(head) + "\n")
        torch.flush()
        newest = ["--upgrade", "--upgrade-strategy", "eager", "--constraint", torch.name]
        subprocess.run([*pip, "install", *newest, "--editable", ".[dev]"], check=True, cwd=ROOT)
    freeze = [*pip, "freeze", "--exclude-editable"]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    others = [line for line in frozen if not line.startswith(("torch==", *ours))]
    PINS.write_text("\n".join([*head, *others]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
