"""Drop terms of the bounds one at a time: a test must fail. By hand: ``python tests/certificates/mutants.py``.

Every mutant is a copy of the package with one piece of text replaced; the tests of remainders run against it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ["tests/certificates/test_second.py", "tests/certificates/test_remainders.py"]

ATTENTION, NORM, MLP = (f"howsmooth/certificates/{name}_stage.py" for name in ("attention", "norm", "mlp"))
# Which tests are about a file.
ABOUT = {
    ATTENTION: "attention or masked or needed or towards or meets or hidden",
    NORM: "norm",
    MLP: "mlp or gate or neurons",
}
MUTANTS = (
    (ATTENTION, "found = self._old(met) + bent + shift +", "found = bent + shift +"),
    (ATTENTION, "found = self._old(met) + bent + shift +", "found = self._old(met) + shift +"),
    (ATTENTION, "found = self._old(met) + bent + shift +", "found = self._old(met) + bent +"),
    (ATTENTION, "bent + shift + (weights @ sizes.w[..., None])[..., 0]", "bent + shift"),
    (ATTENTION, "self._old(beyond) + squares", "squares"),
    (ATTENTION, "self._old(beyond) + squares + cubes", "self._old(beyond) + cubes"),
    (ATTENTION, "+ cubes + weight / (1 + weight) * total", "+ weight / (1 + weight) * total"),
    (ATTENTION, "+ cubes + weight / (1 + weight) * total", "+ cubes"),
    (ATTENTION, "weight / (1 + weight) * total + values[..., 0]", "weight / (1 + weight) * total"),
    (ATTENTION, "amax(-1) + sizes.linear", "amax(-1)"),
    (
        ATTENTION,
        "pattern.scores.tile(torch.zeros_like(pattern.q), torch.zeros_like(pattern.k), tile)",
        "part.log(), None",
    ),
    (ATTENTION, "return abs(self._scale) *", "return self._scale *"),
    (NORM, "along = twice + 0.5", "along = 0.5"),
    (NORM, "across = turned + w *", "across = w *"),
    (NORM, "across = turned + w * torch.maximum(u.square() / room, 0.5 * w.square() / room**3)", "across = turned"),
    (NORM, "torch.maximum(shorter, longer) * w", "longer * w"),
    (NORM, "torch.maximum(shorter, longer) * w", "shorter * w"),
    (NORM, "torch.where(inside, along, 2.0)", "torch.where(inside, along, 0.1)"),
    (MLP, "0.5 * c * later * (first + s) + third * s**3 / 6", "third * s**3 / 6"),
    (MLP, "0.5 * c * later * (first + s) + third * s**3 / 6", "0.5 * c * later * (first + s)"),
    (MLP, "bent * self._hidden.abs() + opened * tau", "opened * tau"),
    (MLP, "bent * self._hidden.abs() + opened * tau", "bent * self._hidden.abs()"),
)


def survives(file: str, old: str, new: str) -> bool:
    """Whether all tests pass although a piece of text is replaced."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        target = source / file
        text = target.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{old!r} is {text.count(old)} times in {file}")
        target.write_text(text.replace(old, new), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--no-header",
            "-k",
            ABOUT[file],
            *TESTS,
        ]
        run = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True)
        return run.returncode == 0


if __name__ == "__main__":
    survivors = 0
    for mutant in MUTANTS:
        alive = survives(*mutant)
        survivors += alive
        print(
            "SURVIVES" if alive else "caught  ",
            mutant[0].rsplit("/", 1)[1],
            "|",
            mutant[1],
            "->",
            mutant[2],
            flush=True,
        )
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} caught")
