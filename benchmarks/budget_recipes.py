"""Recipes by error budgets cost less than rules of thumb of the same size, on text that no choice has seen.

SmolLM2 at three texts: a novel, documentation and code. At each, recipes of four sizes are chosen by a budget of the
first windows, and by three rules: one scheme everywhere (between two schemes, spread evenly over depth), the first and
last two layers finer by two bits, and the least sum of squared weight errors. All choose among the same schemes, round
to nearest in groups of 64; sizes count the scales. Every recipe is then run at windows behind them. Its prediction are
fresh draws at the first windows, with the interval for other windows of the same text. Seconds of processor time.
"""

import inspect
import pydoc_data.topics
import time

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.budgets.effects import elsewhere
from howsmooth.budgets.recipes import RULES
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


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--windows", type=int, default=6, help="windows to choose by, and as many to judge by")
    parser.add_argument("--length", type=int, default=64, help="tokens of a window")
    parser.add_argument("--passes", type=int, default=12, help="backward passes at each window")
    given = parser.parse_args()
    small = given.quick
    torch.set_num_threads(1)
    model = hs.load("reviews" if small else "smollm2")
    windows, length, passes = (2, 8, 4) if small else (given.windows, given.length, given.passes)
    schemes, sizes = (SCHEMES[1:3], BITS[1:2]) if small else (SCHEMES, BITS)
    start = time.process_time()
    beaten, covered, ratios = [], [], []
    for text in texts()[: 1 if small else None]:
        tokens = model.windows(text, length=length, count=2 * windows)
        seen, held_out = tokens[:windows], tokens[windows:]
        found = hs.budget(model, seen, schemes=schemes, passes=passes)
        fresh = hs.budget(model, seen, schemes=schemes, passes=passes, seed=1).products
        print(f"{text.name}, {windows} windows of {length} tokens, {passes} passes")
        for bits in sizes:
            measured = {}
            for rule in (OURS, *RULES):
                recipe = found.recipe(
                    size=bits / 16 * (1 + 1e-9), rule=None if rule == OURS else rule, fresh=fresh, held_out=held_out
                )
                assert recipe.measured is not None
                assert recipe.fresh is not None
                low, high = elsewhere(recipe.fresh, windows=windows, others=windows)
                measured[rule] = recipe.measured
                covered.append((rule, bits, low <= recipe.measured <= high))
                ratios.append((bits, recipe.measured / recipe.fresh.kl))
                print(
                    f"  {recipe.bits:.2f} bits, {rule:<21}: measured {recipe.measured:.4f}, predicted "
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
