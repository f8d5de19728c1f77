r"""Recipes: which scheme for which matrix, so that all together cost least; and recipes as other tools read them.

With inner products :math:`x_{mc}` of matrix m under scheme c, a recipe c costs
:math:`\sum_{mm'}\langle x_{mc_m},x_{m'c_{m'}}\rangle`. Few draws make cross terms noisy, and a choice among very many
recipes would exploit the noise, so cross terms are shrunk towards zero by the share of them that noise explains. A
recipe is chosen by coordinate descent on cost + λ·size; λ is bisected, and what size remains is filled greedily.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.budgets.effects import Effect
from howsmooth.budgets.places import Error
from howsmooth.budgets.schemes import UNROUNDED_BITS
from howsmooth.errors import AssumptionError, nearest

KEEP = "keep"
# Bisections of the price of a bit, and sweeps over all matrices at each price.
BISECTIONS, SWEEPS = 40, 4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A scheme for each matrix, and what they cost together.

    Attributes:
        schemes: The scheme by the name of the matrix; ``keep`` where it stays as it is.
        bits: The mean bits of a number.
        size: The share of the size that the same matrices have with 16 bits.
        predicted: What the draws say that were used to choose it; a choice makes it too low.
        fresh: What other draws say; none if there were none.
        measured: What it costs truly, by one run of the model at each window; none if it was not run.
    """

    schemes: Mapping[str, str]
    bits: float
    size: float
    predicted: Effect
    fresh: Effect | None = None
    measured: float | None = None

    @property
    def rounded(self) -> dict[str, str]:
        """The matrices that are rounded, with their schemes."""
        return {name: scheme for name, scheme in self.schemes.items() if scheme != KEEP}


@dataclass(frozen=True, kw_only=True, eq=False)
class RecipeChoice:
    """Every option of every matrix: how large it is, and its inner products."""

    names: tuple[str, ...]  # the matrices
    options: tuple[str, ...]  # the names of the schemes; the last is to keep the matrix
    # inner products, zero for what is kept, divided so that squares sum up to a cost
    values: Float[Tensor, "draws matrices options"]
    bits: Float[Tensor, "matrices options"]  # the bits of each option, for all numbers of a matrix
    shrinkage: float  # the share of cross terms that is no noise

    @classmethod
    def of(
        cls, errors: Sequence[Error], values: Float[Tensor, "windows passes errors"], positions: int
    ) -> "RecipeChoice":
        """Arrange inner products by matrix and scheme; an option that a matrix does not have is infinitely large."""
        names = tuple(dict.fromkeys(error.name for error in errors))
        options = (*dict.fromkeys(error.scheme for error in errors), KEEP)
        draws = values.double().flatten(0, 1)
        draws = draws / (2 * positions * len(draws)) ** 0.5
        table = torch.zeros(len(draws), len(names), len(options), dtype=torch.float64)
        bits = torch.full((len(names), len(options)), torch.inf, dtype=torch.float64)
        numbers = {error.name: error.numbers for error in errors}
        bits[:, -1] = UNROUNDED_BITS * torch.tensor([numbers[name] for name in names], dtype=torch.float64)
        for i, error in enumerate(errors):
            at = names.index(error.name), options.index(error.scheme)
            table[:, *at], bits[at] = draws[:, i], error.bits * error.numbers
        return cls(names=names, options=options, values=table, bits=bits, shrinkage=_shrinkage(table))

    def cheapest(self, price: float, start: Tensor | None = None) -> Tensor:
        """Return the option of each matrix that makes cost + price · bits small, by coordinate descent."""
        every = torch.arange(len(self.names))
        chosen = torch.full((len(self.names),), len(self.options) - 1) if start is None else start.clone()
        alone = self.values.square().sum(0)
        total = self.values[:, every, chosen].sum(1)
        for _sweep in range(SWEEPS):
            before = chosen.clone()
            for m in range(len(self.names)):
                rest = total - self.values[:, m, chosen[m]]
                cost = alone[m] + 2 * self.shrinkage * (rest @ self.values[:, m])
                chosen[m] = (cost + price * self.bits[m]).argmin()
                total = rest + self.values[:, m, chosen[m]]
            if torch.equal(chosen, before):
                break
        return chosen

    def within(self, *, bits: float | None = None, kl: float | None = None) -> Tensor:
        """Return the cheapest options that take at most so many bits, or the smallest that cost at most so much."""
        if bits is not None and float(self.bits.amin(1).sum()) > bits:
            least = float(self.bits.amin(1).sum() / self.bits[:, -1].sum())
            raise AssumptionError(
                f"size must be at least {least:.3f}, which is every matrix under its smallest scheme; add a smaller "
                "scheme, or ask for more.",
                field="size",
            )

        def fits(chosen: Tensor) -> bool:
            return self.total_bits(chosen) <= bits if bits is not None else self.cost(chosen) <= (kl or 0.0)

        low, high = 1e-30, 1e6  # prices: no rounding pays, every rounding pays
        best = self.bits.argmin(1) if bits is not None else torch.full((len(self.names),), len(self.options) - 1)
        for _step in range(BISECTIONS):
            price = (low * high) ** 0.5
            chosen = self.cheapest(price)
            if fits(chosen):
                best = chosen
            # a higher price gives smaller recipes, which cost more
            low, high = (low, price) if fits(chosen) == (bits is not None) else (price, high)
        return self._filled(best, bits) if bits is not None else best

    def _filled(self, chosen: Tensor, bits: float) -> Tensor:
        """Spend what is left where it gains most for each bit."""
        chosen = chosen.clone()
        while True:
            every = torch.arange(len(self.names))
            total = self.values[:, every, chosen].sum(1)
            own = self.values[:, every, chosen]
            rest = total[:, None] - own
            cost = self.values.square().sum(0) + 2 * self.shrinkage * torch.einsum("nm,nmo->mo", rest, self.values)
            gain = cost[every, chosen][:, None] - cost
            more = self.bits - self.bits[every, chosen][:, None]
            allowed = (more > 0) & (more <= bits - self.total_bits(chosen)) & (gain > 0)
            if not bool(allowed.any()):
                return chosen
            best = int(torch.where(allowed, gain / more, -torch.inf).argmax())
            chosen[best // len(self.options)] = best % len(self.options)

    def total_bits(self, chosen: Tensor) -> float:
        """Return how many bits a choice takes."""
        return float(self.bits[torch.arange(len(self.names)), chosen].sum())

    def cost(self, chosen: Tensor) -> float:
        """Return what a choice costs, cross terms shrunk."""
        own = self.values[:, torch.arange(len(self.names)), chosen]
        alone = float(own.square().sum())
        return alone + self.shrinkage * (float(own.sum(1).square().sum()) - alone)

    def named(self, chosen: Tensor) -> dict[str, str]:
        """Return a choice by the names of matrices."""
        return {name: self.options[int(i)] for name, i in zip(self.names, chosen, strict=True)}


def _shrinkage(values: Float[Tensor, "draws matrices options"]) -> float:
    """Return the share of squared cross terms that noise does not explain, for the first scheme of each matrix."""
    x = values[..., 0]
    gram = x.T @ x
    off = ~torch.eye(len(gram), dtype=torch.bool)
    observed = float(gram.square()[off].sum())
    # the variance of a cross term from N draws of Gaussian pairs is (G_ii G_jj + G_ij²)/N
    noise = float((torch.outer(gram.diag(), gram.diag()) + gram.square())[off].sum()) / len(x)
    return max(0.0, 1 - noise / observed) if observed > 0 else 0.0


# Names of llama.cpp for the matrices of a block.
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
# The type of llama.cpp that is nearest to a scheme: the same bits, its own rounding.
GGUF_TYPES = {
    KEEP: "f16",
    **dict.fromkeys(("fp16", "bf16"), "f16"),
    **{"int2": "q2_k", "int3": "q3_k", "int4": "q4_0", "int5": "q5_0", "int6": "q6_k", "int7": "q8_0", "int8": "q8_0"},
    **{"nf4": "iq4_nl", "fp8": "q8_0", "e4m3": "q8_0", "e5m2": "q8_0"},
}
# Options of llama-quantize and of vLLM.
TENSOR_TYPE, SKIP_LAYERS = "--tensor-type", "--kv-cache-dtype-skip-layers"
PLACE = re.compile(r"^(?:.*\.)?(?:layers|h)\.(\d+)\.(.*?)(?:\.weight)?$")


def llm_compressor(recipe: Recipe) -> str:
    """Return a recipe of llm-compressor, YAML: targets by scheme, and what is ignored."""
    lines = ["quant_stage:", "  quant_modifiers:", "    QuantizationModifier:", "      ignore:", '        - "lm_head"']
    lines += [f"        - {_pattern(name)}" for name, scheme in recipe.schemes.items() if scheme == KEEP]
    lines.append("      config_groups:")
    for i, scheme in enumerate(dict.fromkeys(recipe.rounded.values())):
        arguments = ", ".join(f"{key}: {_yaml(value)}" for key, value in _weights(scheme).items())
        lines += [f"        group_{i}:", f"          weights: {{{arguments}}}", "          targets:"]
        lines += [f"            - {_pattern(name)}" for name, used in recipe.rounded.items() if used == scheme]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pattern(name: str) -> str:
    # JSON writes a string as YAML reads it
    return json.dumps(f"re:(.*\\.)?{re.escape(name.removesuffix('.weight'))}$")


def _weights(scheme: str) -> dict[str, object]:
    first, *options = scheme.split(":")
    found = re.fullmatch(r"int(\d)", first)
    if found is None and first not in ("fp8", "e4m3"):
        raise AssumptionError(
            f"llm-compressor rounds to integers and fp8, not by {scheme!r}; take another export.", field="export"
        )
    group = next((int(option[1:]) for option in options if option[:1] == "g"), None)
    strategy = "group" if group else "tensor" if "tensor" in options or (not found and not options) else "channel"
    kind = {"num_bits": int(found[1]), "type": "int"} if found else {"num_bits": 8, "type": "float"}
    return {
        **kind,
        "symmetric": "asym" not in options,
        "strategy": strategy,
        **({"group_size": group} if group else {}),
    }


def gguf(recipe: Recipe) -> str:
    """Return options of llama-quantize, one for each matrix."""
    return "".join(f"{TENSOR_TYPE} {_gguf_name(name)}={_gguf_type(s)}\n" for name, s in recipe.schemes.items())


def _gguf_name(name: str) -> str:
    found = PLACE.match(name)
    if found is None or found[2] not in GGUF_NAMES:
        raise AssumptionError(f"it is not known what llama.cpp calls {name!r}; take another export.", field="export")
    return f"blk.{found[1]}.{GGUF_NAMES[found[2]]}"


def _gguf_type(scheme: str) -> str:
    first, *options = scheme.split(":")
    if first == "gguf":
        return options[0].lower()
    if first not in GGUF_TYPES:
        raise AssumptionError(f"llama.cpp has no type for {scheme!r}; take another export.", field="export")
    return GGUF_TYPES[first]


def skip_list(recipe: Recipe) -> str:
    """Return what TorchAoConfig and BitsAndBytesConfig of transformers are given, JSON.

    They have one scheme: the one that most matrices have, and modules to leave alone, all others.
    """
    (scheme, _count), *_rest = Counter(recipe.rounded.values()).most_common(1) or [(KEEP, 0)]
    skipped = [name.removesuffix(".weight") for name, used in recipe.schemes.items() if used != scheme]
    found = {"scheme": scheme, "modules_to_not_convert": skipped, "llm_int8_skip_modules": skipped}
    return json.dumps(found, indent=1) + "\n"


def vllm_cache(recipe: Recipe) -> str:
    """Return the option of vLLM that keeps the cache of some layers: those of which a head is kept."""
    kept = {name.split(".")[1] for name, scheme in recipe.schemes.items() if scheme == KEEP and _cached(name)}
    if not any(map(_cached, recipe.schemes)):
        raise AssumptionError("the recipe rounds no cache; take a scheme such as kv:fp8.", field="export")
    return f"{SKIP_LAYERS} {' '.join(sorted(kept, key=int))}".strip() + "\n"


def _cached(name: str) -> bool:
    return name.startswith("cache.")


def as_json(recipe: Recipe) -> str:
    """Return the whole recipe, JSON."""
    effects = {"predicted": recipe.predicted, "fresh": recipe.fresh}
    costs = {name: None if e is None else {"kl": e.kl, "low": e.low, "high": e.high} for name, e in effects.items()}
    found = {"bits": recipe.bits, "size": recipe.size, "measured": recipe.measured, **costs}
    return json.dumps(found | {"schemes": dict(recipe.schemes)}, indent=1) + "\n"


EXPORTS: Mapping[str, Callable[[Recipe], str]] = {
    "llm-compressor": llm_compressor,
    "gguf": gguf,
    "transformers": skip_list,
    "vllm": vllm_cache,
    "json": as_json,
}


def export(recipe: Recipe, to: str = "json") -> str:
    """Return a recipe as a tool reads it: ``llm-compressor``, ``gguf``, ``transformers``, ``vllm`` or ``json``.

    Raises:
        AssumptionError: If there is no such tool, or it cannot express the recipe.
    """
    if to not in EXPORTS:
        raise AssumptionError(f"there is no export {to!r}{nearest(to, EXPORTS)}", field="export")
    return EXPORTS[to](recipe)
