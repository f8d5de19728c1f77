"""Recipes by error budgets cost less than rules of thumb of the same size, on text that no choice has seen.

SmolLM2 at three texts: a novel, documentation and code. At each, recipes of four sizes are chosen by a budget and runs
at the first windows, and by three rules: one scheme everywhere (between two schemes, spread evenly over depth), the
first and last two layers finer by two bits, and the least sum of squared weight errors. All choose among the same
schemes, round to nearest in groups of 64; sizes count the scales. Every recipe is then run at windows behind them. Its
prediction are fresh draws at the first windows, with the interval for other windows of the same text. Seconds of
processor time.
"""

import hashlib
import inspect
import pydoc_data.topics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.budgets import Budget, Scheme, scheme
from howsmooth.budgets.passes import Products, inner_products
from howsmooth.budgets.places import Places
from howsmooth.budgets.recipes import RULES
from howsmooth.budgets.subject import Subject
from howsmooth.models.inputs.text import Text, read_text

SCHEMES = tuple(f"int{bits}:g64" for bits in (2, 3, 4, 5, 6, 8))
BITS = (3.25, 3.75, 4.25, 5.25)
OURS = "budget"


def texts() -> list[Text]:
    """Return three texts that are at hand wherever Python is."""
    topics = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    code = inspect.getsource(inspect)
    return [
        read_text(),
        Text(name="documentation of Python", content=topics),
        Text(name="code of a module", content=code),
    ]


def kept(folder: Path | None, key: object, compute: Callable[[], Any]) -> Any:
    """Return what a file of a folder has; compute and write it if it is not there."""
    if folder is None:
        return compute()
    file = folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.pt"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(compute(), file)
    return torch.load(file, weights_only=False)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class KeptBudget(Budget):
    """A budget that keeps what runs of the model gave."""

    folder: Path | None
    about: object

    def measured(self, *recipes: Mapping[str, str], tokens: torch.Tensor | None = None, factor: float = 1.0) -> Any:
        """Return the true cost of one recipe, at held-out windows or at those of the budget."""
        (recipe,) = recipes
        assert factor == 1
        key = (self.about, recipe) if tokens is not None else (self.about, recipe, "seen")
        return kept(self.folder, key, partial(self.by_token, recipe, tokens=tokens)).mean()


def remembered(found: Scheme) -> Scheme:
    """Return a scheme that rounds every matrix once, for all windows and texts; it holds as much as the weights."""
    memory: dict[str, torch.Tensor] = {}

    def rounded(W: torch.Tensor, name: str) -> torch.Tensor:
        if name not in memory:
            memory[name] = found.rounded(W, name)
        return memory[name]

    return replace(found, rounded=rounded)


def draws(places: Places, window: int, passes: int) -> Products:
    """Return the inner products at one window."""
    subject = replace(places.subject, tokens=places.subject.tokens[window : window + 1])
    return inner_products(replace(places, subject=subject), passes=passes, seed=0, first=window)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--windows", type=int, default=6, help="windows to choose by, and as many to judge by")
    parser.add_argument("--length", type=int, default=64, help="tokens of a window")
    parser.add_argument("--passes", type=int, default=12, help="backward passes at each window, and as many fresh ones")
    parser.add_argument("--texts", default="0,1,2", help="which of the three texts")
    parser.add_argument("--sizes", default=",".join(map(str, BITS)), help="mean bits of the recipes, scales included")
    parser.add_argument("--keep", type=Path, help="a folder of what was run, to go on from there")
    given = parser.parse_args()
    small = given.quick
    torch.set_num_threads(1)
    model = hs.load("reviews" if small else "smollm2")
    windows, length, passes = (2, 8, 4) if small else (given.windows, given.length, given.passes)
    schemes, sizes = SCHEMES[1:3] if small else SCHEMES, [float(bits) for bits in given.sizes.split(",")]
    sizes = list(BITS[1:2]) if small else sizes
    rounding = [remembered(scheme(label)) for label in schemes]
    start = time.process_time()
    beaten, covered, ratios = [], [], []
    for text in texts()[:1] if small else [texts()[int(which)] for which in given.texts.split(",")]:
        tokens = model.windows(text, length=length, count=2 * windows)
        seen, held_out = tokens[:windows], tokens[windows:]
        places = Places(subject=Subject.of(model, seen), schemes=rounding)
        about = (text.name, windows, length, passes, schemes)
        parts = [kept(given.keep, (about, w), partial(draws, places, w, 2 * passes)) for w in range(windows)]
        values = torch.cat([part.values for part in parts])
        chosen_by, fresh = (replace(parts[0], values=half) for half in values.chunk(2, dim=1))
        settings = {"model": model.name, "cost": places.subject.unit, "places": places, "folder": given.keep}
        found = KeptBudget(products=chosen_by, about=about, **settings)
        print(f"{text.name}, {windows} windows of {length} tokens, {passes} passes")
        for bits in sizes:
            measured = {}
            for rule in (OURS, *RULES):
                recipe = found.recipe(
                    size=bits / 16 * (1 + 1e-9), rule=None if rule == OURS else rule, fresh=fresh, held_out=held_out
                )
                assert recipe.fresh is not None
                assert recipe.measured is not None
                measured[rule] = recipe.measured
                low, high = recipe.fresh.low, recipe.fresh.high
                covered.append((rule, bits, low <= measured[rule] <= high))
                ratios.append((bits, measured[rule] / recipe.fresh.kl))
                print(
                    f"  {recipe.bits:.2f} bits, {rule:<21}: measured {measured[rule]:.4f}, predicted "
                    f"{recipe.fresh.kl:.4f} ({low:.4f} to {high:.4f})",
                    flush=True,
                )
            beaten += [measured[OURS] < cost for rule, cost in measured.items() if rule != OURS]
    inside = [hit for _rule, _bits, hit in covered]
    own = [hit for rule, _bits, hit in covered if rule == OURS]
    print(f"inside of their intervals: {sum(inside)} of {len(inside)}, of our own {sum(own)} of {len(own)}")
    for bits in sizes:
        least, *_others, most = of_size = sorted(ratio for size, ratio in ratios if size == bits)
        middle = of_size[len(of_size) // 2]
        print(f"{bits} bits: measured/predicted {least:.2f} to {most:.2f}, median {middle:.2f}")
    print(f"{time.process_time() - start:.0f} s")
    claims = {"every recipe costs less than that of each rule of the same size": all(beaten)}
    claims["nine of ten predictions hold the measured cost in their intervals"] = sum(inside) >= 0.9 * len(inside)
    verdict(claims, quick=small)


if __name__ == "__main__":
    main()
