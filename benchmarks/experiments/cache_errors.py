"""What four bits in the cache cost: keys against values, early and late layers, and heads by the entropy of attention.

SmolLM2 at windows of Alice, and two small decoders that are trained here, at held-out text. Every head's keys and
values are rounded alone, with scales by token and by channel: the true cost, one run each, beside the estimate of a
budget. Intervals are those of a bootstrap, over draws for shares of layers and over heads for rank correlations.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

import howsmooth as hs
from howsmooth.budgets import Scheme
from howsmooth.budgets import scheme as scheme_of
from howsmooth.budgets.outcomes import true_costs
from howsmooth.budgets.places import Places
from howsmooth.budgets.recipes import RecipeChoice
from howsmooth.budgets.subject import Subject
from howsmooth.maps.weighting import unstack
from howsmooth.models.inputs.text import read_text

sys.path.append(str(Path(__file__).parents[1]))
from decoders import STEPS, held_out, trained

SCHEMES = ("kv:int4", "kv-channel:int4")
FINER = tuple(f"kv:int{bits}" for bits in (2, 3, 4, 5, 6))
BOOTSTRAPS = 1000


def renyi_entropies(model: hs.Transformer, tokens: torch.Tensor, kv_heads: int) -> dict[tuple[int, int], float]:
    """Return −log₂ Σp² of the attention of each head of the cache, mean over rows and the queries that share it."""
    activations = model.activations(tokens)
    found: dict[tuple[int, int], float] = {}
    for layer in range(len(model.layers)):
        f, X = activations.at(layer, "attention")
        assert isinstance(f, hs.Attention)
        with torch.no_grad():
            J = f.jacobian(X)
            parts = [unstack(P.square().sum(-1, keepdim=True), tile) for tile, P, _slope in J.pattern.weights()]
        squares = torch.cat(parts, dim=-2).reshape(*J.batch, -1, J.domain[0])  # windows, heads, rows
        entropy = -squares.log2().mean((0, 2)).reshape(kv_heads, -1).mean(1)
        found |= {(layer, head): float(value) for head, value in enumerate(entropy)}
    return found


def quantiles(values: torch.Tensor) -> str:
    """Return the middle 95 % of bootstrapped values."""
    low, high = values.double().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return f"{low:.2f} to {high:.2f}"


def rank(x: torch.Tensor, y: torch.Tensor) -> str:
    """Return a rank correlation with its interval over heads."""
    draws = torch.randint(len(x), (BOOTSTRAPS, len(x)), generator=torch.Generator().manual_seed(0))
    values = torch.tensor([spearmanr(x[i], y[i]).statistic for i in draws])
    return f"{spearmanr(x, y).statistic:.2f} ({quantiles(values[values.isfinite()])})"


def place(name: str) -> tuple[int, int]:
    """Return the layer and the head of ``cache.3.key.2``."""
    _cache, layer, _kind, head = name.split(".")
    return int(layer), int(head)


def keys_and_values(
    model: hs.Transformer, tokens: torch.Tensor, schemes: tuple[str, ...], passes: int, every: int
) -> None:
    """Round keys and values of each head alone; print who costs more, where, and how entropies rank heads.

    Single heads are run truly in every third layer, say; shares of layers are estimates, and so have intervals.
    """
    found = hs.budget(model, tokens, schemes=schemes, passes=passes)
    for scheme in schemes:
        names = found.names(scheme)
        columns = found.columns(dict.fromkeys(names, scheme))
        draws = found.products.values[..., columns].flatten(0, 1).square()
        estimates = dict(zip(names, draws.mean(0).tolist(), strict=True))
        run = [name for name in names if place(name)[0] % every == 0]
        truth = found.measured(*({name: scheme} for name in run))
        estimated = torch.tensor([estimates[name] for name in run])
        print(f"{scheme}: estimates rank {len(run)} errors like the truth: {rank(estimated, truth)}")
        cost = {name: float(value) for name, value in zip(run, truth, strict=True)}
        keys = [name for name in run if ".key." in name]
        worse = sum(cost[name] > cost[_values(name)] for name in keys)
        print(f"  keys cost more in {worse} of {len(keys)} heads")
        for kind in ("key", "value"):
            part = [i for i, name in enumerate(names) if f".{kind}." in name]
            chosen = [names[i] for i in part]
            whole, true = found.together(chosen, scheme), float(found.measured(dict.fromkeys(chosen, scheme)))
            layers = torch.tensor([place(name)[0] for name in chosen])
            depth = int(layers.max()) + 1
            resampled = torch.randint(len(draws), (BOOTSTRAPS, len(draws)), generator=torch.Generator().manual_seed(0))
            each = draws[:, part][resampled].mean(1)
            said = []
            for where, inside in (("first", layers < 2), ("last", layers >= depth - 2)):
                share = float(draws[:, part][:, inside].sum() / draws[:, part].sum())
                said.append(f"{where} two layers {share:.2f} ({quantiles(each[:, inside].sum(1) / each.sum(1))})")
            print(
                f"  {kind}s together: predicted {whole.kl:.3g} ({whole.low:.3g} to {whole.high:.3g}), true {true:.3g}; "
                f"{', '.join(said)}; {2 / depth:.2f} if layers were alike",
                flush=True,
            )
        heads = [name for name in names if ".key." in name]
        entropy = renyi_entropies(model, tokens, 1 + max(place(name)[1] for name in heads))
        both = torch.tensor([cost[name] + cost[_values(name)] for name in keys])
        print(f"  low entropy against true cost: {rank(torch.tensor([-entropy[place(name)] for name in keys]), both)}")
        few = max(1, round(0.02 * len(heads)))
        spared = sorted(heads, key=lambda name: entropy[place(name)])[:few]
        ours = sorted(heads, key=lambda name: -estimates[name] - estimates[_values(name)])[:few]
        recipes = [_without(names, some, scheme) for some in ([], spared, ours)]
        everything, without_lowest, without_ours = found.measured(*recipes).tolist()
        print(
            f"  all: {everything:.3g}; {few} of {len(heads)} heads kept: of the lowest entropy "
            f"{without_lowest:.3g}, of the largest estimate {without_ours:.3g}",
            flush=True,
        )


def ties(model: hs.Transformer, tokens: torch.Tensor, schemes: tuple[str, ...]) -> None:
    """Print what all keys, and all values, cost truly if they were off by a millionth before they are rounded.

    The largest number of a group lies half way between two levels, so that its last bit decides where it goes.
    """
    for label in schemes:
        found, generator = scheme_of(label), torch.Generator().manual_seed(0)

        def rounded(
            X: torch.Tensor, name: str, found: Scheme = found, generator: torch.Generator = generator
        ) -> torch.Tensor:
            noise = torch.randn(X.shape, generator=generator, dtype=X.dtype)
            return found.rounded(X * (1 + 1e-6 * noise), name)

        exact = Places(subject=Subject.of(model, tokens), schemes=[found])
        off = dataclasses.replace(exact, schemes=[dataclasses.replace(found, rounded=rounded)])
        config: Any = model.module.config
        heads = [(layer, head) for layer in range(len(model.layers)) for head in range(config.num_key_value_heads)]
        for kind in ("key", "value"):
            recipe = {f"cache.{layer}.{kind}.{head}": label for layer, head in heads}
            costs = [float(true_costs(places, [recipe]).mean()) for places in (exact, *[off] * 4)]
            print(f"{label}, {kind}s: {costs[0]:.3g}; off by a millionth {', '.join(f'{c:.3g}' for c in costs[1:])}")


def _values(name: str) -> str:
    """Return the values that belong to keys."""
    return name.replace("key", "value")


def _without(names: tuple[str, ...], heads: list[str], scheme: str) -> dict[str, str]:
    spared = {place(name) for name in heads}
    return {name: scheme for name in names if place(name) not in spared}


def allocations(model: hs.Transformer, tokens: torch.Tensor, others: torch.Tensor, passes: int) -> None:
    """Spend the same bits on heads uniformly, by the entropy rule, and by the budget; print true costs elsewhere."""
    found = hs.budget(model, tokens, schemes=FINER, passes=passes)
    products = found.products
    choice = RecipeChoice.of(products.errors, products.values, products.positions)
    entropy = renyi_entropies(model, tokens, 1 + max(place(name)[1] for name in choice.names))
    numbers = choice.bits[:, -1:] / 16
    H = torch.tensor([entropy[place(name)] for name in choice.names], dtype=torch.float64)[:, None]
    # a number of b bits costs w 4⁻ᵇ; the least sum has b = ½ log₂ w + a constant, which is the rule's −H/4
    costs = numbers * 4.0 ** -(choice.bits / numbers) * 2.0 ** -(H / 2)
    rule = dataclasses.replace(choice, costs=costs)
    for scheme in ("kv:int3", "kv:int4"):
        uniform = dict.fromkeys(choice.names, scheme)
        bits = sum(error.bits * error.numbers for error in products.errors if error.scheme == scheme) * (1 + 1e-9)
        recipes = {"uniform": uniform}
        recipes["entropy rule"] = choice.named(rule.within(bits=bits))
        recipes["budget"] = choice.named(choice.within(bits=bits))
        rounded = [{n: s for n, s in recipe.items() if s != "keep"} for recipe in recipes.values()]
        truth = found.measured(*rounded, tokens=others).tolist()
        said = ", ".join(f"{name} {cost:.3g}" for name, cost in zip(recipes, truth, strict=True))
        print(f"as many bits as {scheme}, at held-out windows: {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["gpt2", "llama", "smollm2"])
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="how single heads are rounded")
    parser.add_argument("--ties", action="store_true", help="only what the last bits of SmolLM2's cache do")
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--every", type=int, default=1, help="run single heads of SmolLM2 in every so manieth layer")
    parser.add_argument("--length", type=int, default=64, help="tokens of a window of SmolLM2")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of the small ones")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.models:
        start = time.process_time()
        if name in ("gpt2", "llama"):
            model, tokens = trained(name, given.steps), held_out(8, 128)
        else:
            model = hs.load(name)
            tokens = model.windows(read_text(), length=given.length, count=4)
        tokens, others = tokens.chunk(2)
        print(f"{name}: {len(tokens)} windows of {tokens.shape[1]} tokens, {given.passes} passes")
        if given.ties:
            ties(model, tokens, tuple(given.schemes.split(",")))
            continue
        every = 1 if name in ("gpt2", "llama") else given.every
        keys_and_values(model, tokens, tuple(given.schemes.split(",")), given.passes, every)
        allocations(model, tokens, others, given.passes)
        print(f"{time.process_time() - start:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
