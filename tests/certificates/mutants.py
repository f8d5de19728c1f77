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
TESTS = [
    f"tests/certificates/test_{name}.py"
    for name in ("second", "remainders", "certificates", "fuzz_certificates", "kinks")
]

ATTENTION, NORM, MLP, KINKED = (
    f"howsmooth/certificates/{name}_stage.py" for name in ("attention", "norm", "mlp", "kinked")
)
ENTRANCE, SIZES, CURVATURE, TABLE, RADIUS = (
    f"howsmooth/certificates/{name}.py" for name in ("entrance", "sizes", "curvature", "table", "radius")
)
# Which tests are about a file.
ABOUT = {
    ATTENTION: "attention or masked or needed or towards or meet or hidden",
    NORM: "norm",
    MLP: "mlp or gate or neurons",
    KINKED: "units or lines or line or centre",
    ENTRANCE: "second or contradicts",
    SIZES: "image or proven",
    CURVATURE: "mlp or neurons or curvature",
    TABLE: "centre",
    RADIUS: "centre",
}
MUTANTS = (
    (ATTENTION, "found = self._old(met) + bent + shift +", "found = bent + shift +"),
    (ATTENTION, "found = self._old(met) + bent + shift +", "found = self._old(met) + shift +"),
    (ATTENTION, "found = self._old(met) + bent + shift +", "found = self._old(met) + bent +"),
    (ATTENTION, "bent + shift + (weights @ sizes.w[..., None])[..., 0]", "bent + shift"),
    (ATTENTION, "self._old(later) + squares", "squares"),
    (ATTENTION, "self._old(later) + squares + thirds", "self._old(later) + thirds"),
    (ATTENTION, "torch.minimum(thirds, self._old(one_of_them))", "share * total"),
    (ATTENTION, "torch.minimum(thirds, self._old(one_of_them))", "thirds - share * total"),
    (ATTENTION, "torch.maximum(cubes, share[..., None] * (alpha + bent))", "cubes"),
    (ATTENTION, "torch.maximum(cubes, share[..., None] * (alpha + bent))", "share[..., None] * (alpha + bent)"),
    (ATTENTION, "thirds + values[..., 0]", "thirds"),
    (ATTENTION, "torch.maximum(bent, share[..., None] * grown)", "bent"),
    (ATTENTION, "torch.maximum(bent, share[..., None] * grown)", "share[..., None] * grown"),
    (ATTENTION, "(self._centred(known) if inside is None else inside) +", "self._centred(0 * known) +"),
    (ATTENTION, "squares.numbers(torch.cat(forms)[None])[0]", "0.5 * squares.numbers(torch.cat(forms)[None])[0]"),
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
    (KINKED, "for t in (-s, s, kink)]", "for t in (s, kink)]"),
    (KINKED, "for t in (-s, s, kink)]", "for t in (-s, kink)]"),
    (KINKED, "for t in (-s, s, kink)]", "for t in (-s, s)]"),
    (KINKED, "- slope * t - offset).abs()", "- slope * t).abs()"),
    (KINKED, "(left / self._axes)", "left"),
    (KINKED, "(y.abs() >= s) & (slope == (y > 0).to(slope.dtype)) & (offset == 0)", "(y.abs() >= s) & (offset == 0)"),
    (KINKED, " & (offset == 0)\n", "\n"),
    (KINKED, "self.shift = self._offset @", "self.shift = 0 * self._offset @"),
    (KINKED, "root(self._down * axes)", "root(self._down)"),
    (ATTENTION, "sizes.scores + centred, 0.0", "sizes.scores + met, 0.0"),
    (ATTENTION, "sizes.scores + centred, 0.0", "sizes.scores + 0 * met, 0.0"),
    (ATTENTION, "other.scores + met, 0.0", "other.scores + 0 * met, 0.0"),
    (ATTENTION, "other.scores + met, 0.0", "met, 0.0"),
    (ATTENTION, "return met + (self._P * met).sum(-1, keepdim=True)", "return met"),
    (ATTENTION, "torch.minimum(sizes.s + (self._P * met.square()).sum(-1).sqrt(),", "torch.minimum(sizes.s,"),
    (ATTENTION, "sizes.spread + (weighted * met.square()).sum(-1).sqrt(),", "sizes.spread,"),
    (
        ATTENTION,
        "P * (alpha + torch.maximum(each, (0.5 * kappa * s.square())[..., None]))",
        "P * torch.maximum(each, (0.5 * kappa * s.square())[..., None])",
    ),
    (ATTENTION, "P * (alpha + torch.maximum(each, (0.5 * kappa * s.square())[..., None]))", "P * (alpha + each)"),
    (
        ATTENTION,
        "P * (alpha + torch.maximum(each, (0.5 * kappa * s.square())[..., None]))",
        "P * (alpha + (0.5 * kappa * s.square())[..., None])",
    ),
    (ATTENTION, "far + sizes.w[:, None, :], 0.0", "far, 0.0"),
    (ATTENTION, "far + sizes.w[:, None, :], 0.0", "sizes.w[:, None, :] + 0 * far, 0.0"),
    (ATTENTION, "self._met(other.q, whole.k) + self._met(first.q, other.k)", "self._met(first.q, other.k)"),
    (ATTENTION, "self._met(other.q, whole.k) + self._met(first.q, other.k)", "self._met(other.q, whole.k)"),
    (ATTENTION, "first.spread * apart + 0.5 * apart.square()", "0.5 * apart.square()"),
    (ATTENTION, "first.spread * apart + 0.5 * apart.square()", "first.spread * apart"),
    (ATTENTION, " + torch.minimum(0.5 * kappa * spread.square(), self._old(bent))\n", "\n"),
    (ATTENTION, "torch.minimum(0.5 * kappa * s.square(), (P * bent).sum(-1))", "0 * s"),
    (ATTENTION, "(P * (rho + lost)) @", "(P * lost) @"),
    (ATTENTION, "(P * (rho + lost)) @", "(P * rho) @"),
    (ATTENTION, " + (P * alpha1) @ other.w[..., None]\n", "\n"),
    (ATTENTION, "both = self._all(whole) + second", "both = self._all(whole)"),
    (ATTENTION, "kappa = (2 + alpha.amax(-1).clamp_max(MOST).exp()) / 3", "kappa = torch.ones_like(alpha.amax(-1))"),
    (NORM, " + 0.375 * (w / room) ** 4", ""),
    (NORM, "twice + 0.5 * w.square() * u * (2 - u) / room.square() +", "twice +"),
    (NORM, "torch.maximum(u.square() / room, 0.5 * w.square() / room**3)", "(u.square() / room)"),
    (NORM, "torch.maximum(u.square() / room, 0.5 * w.square() / room**3)", "(0.5 * w.square() / room**3)"),
    (NORM, "turned = rest[: self._n] * w + u1 * rest[self._n :]", "turned = rest[: self._n] * w"),
    (NORM, "turned = rest[: self._n] * w + u1 * rest[self._n :]", "turned = u1 * rest[self._n :]"),
    (NORM, "self._all(u, w) + torch.cat((0.5 * w1.square(), u1 * w1))", "self._all(u, w)"),
    (NORM, "if exact else sine.square() / (1 + cosine)", "if exact else 0 * sine"),
    (NORM, "sine**4 / (2 * (1 + cosine).square()) if exact", "0 * sine if exact"),
    (NORM, "torch.where(inside, across, 1 + w)", "torch.where(inside, across, w)"),
    (NORM, "* w, 1 + w)", "* w, w)"),
    (MLP, "first.ball.vectors(moved)[0] + (root * later).norm(dim=-1)", "first.ball.vectors(moved)[0]"),
    (MLP, "opened = self._activation.slope(self._gates).abs() * s + bent", "opened = bent + 0 * s"),
    (
        MLP,
        "opened = self._activation.slope(self._gates).abs() * s + bent",
        "opened = self._activation.slope(self._gates).abs() * s",
    ),
    (MLP, "self._hidden, s) + 0.5 * c * first.square()", "self._hidden, s)"),
    (ENTRANCE, "rest = rest + eps**2 * self._second[place]", "pass"),
    (ENTRANCE, "curves[-1] = curves[-1] + second", "pass"),
    (ENTRANCE, "self._push(place, curves, self._squares, self._second)\n", "pass\n"),
    (ENTRANCE, "return stage.bounds(one + rest,", "return stage.bounds(one,"),
    (SIZES, "around = columns.shape[1] ** 0.5 *", "around ="),
    (SIZES, "H.shape[-1] * round_, H.abs().sum", "round_, H.abs().sum"),
    (SIZES, "H.shape[-1] * round_, H.norm", "round_, H.norm"),
    (TABLE, "value[0] if shift is None else value[0] + shift", "value[0]"),
    (RADIUS, "table, rivals.margins_at(table.output[0])", "table, rivals.margins"),
    (CURVATURE, "found = torch.where(inside, found.clamp_min(height), found)", "pass"),
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
