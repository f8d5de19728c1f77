"""Recipes as other tools read them: llm-compressor, llama.cpp, transformers, vLLM, and JSON."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping

from howsmooth.budgets.recipes import KEEP, Recipe
from howsmooth.errors import AssumptionError, nearest

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
# What llm-compressor leaves alone.
UNQUANTISED = (KEEP, "bf16", "fp16")
# Options of llama-quantize and of vLLM.
TENSOR_TYPE, SKIP_LAYERS = "--tensor-type", "--kv-cache-dtype-skip-layers"
PLACE = re.compile(r"^(?:.*\.)?(?:layers|h)\.(\d+)\.(.*?)(?:\.weight)?$")


def llm_compressor(recipe: Recipe) -> str:
    """Return a recipe of llm-compressor, YAML: targets by scheme, and what is ignored."""
    lines = ["quant_stage:", "  quant_modifiers:", "    QuantizationModifier:", "      ignore:", '        - "lm_head"']
    lines += [f"        - {_pattern(name)}" for name, scheme in recipe.schemes.items() if scheme in UNQUANTISED]
    lines.append("      config_groups:")
    for i, scheme in enumerate(dict.fromkeys(s for s in recipe.schemes.values() if s not in UNQUANTISED)):
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
