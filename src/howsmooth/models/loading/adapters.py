"""What is around or in place of the plain layers of a model: wrappers, adapters of peft, quantised weights."""

import copy
import os
import sys
import warnings
from collections.abc import Iterator
from itertools import filterfalse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from howsmooth.errors import UnsupportedModelError
from howsmooth.torch_internals import global_hooks

# Ours, with what checks its types.
OURS = ("howsmooth", "jaxtyping")
# Whose hooks only read, or put a weight together before it is read.
READS = (*OURS, "torch.nn.utils", "transformers.utils.output_capturing")
# Of transformers and peft, for checkpoints of layers without gradients of their own.
ASKS_FOR_GRADIENTS = ("make_inputs_require_grads", "make_inputs_require_grad")

WRAPPERS = (DistributedDataParallel, nn.DataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside compiled and distributed wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        inner = model.module if inner is None and isinstance(model, WRAPPERS) else inner
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def without_adapters(module: nn.Module) -> nn.Module:
    """Return the model inside a model of peft."""
    peft = sys.modules.get("peft")  # nobody has adapters without it
    if peft is None or not isinstance(module, peft.PeftModel | peft.PeftMixedModel):
        return module
    settings: Any = getattr(module, "active_peft_config", None)
    if getattr(settings, "is_prompt_learning", False):
        raise UnsupportedModelError(
            f"adapters of the kind {settings.peft_type.value} put learned tokens or keys beside those of a sentence, "
            "which is not read here; give the model alone (model.get_base_model()), or one with adapters in its "
            "layers, as LoRA has them.",
            field="model",
        )
    return module.get_base_model()


def merged(module: nn.Module) -> nn.Module:
    """Return a model with its adapters merged into its weights: itself if it has none, else a copy.

    An adapter that cannot be merged is left out of the copy; the comparison with the module finds it.
    """
    if not any(map(is_adapter, module.modules())):
        return module
    module = copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about adapters that were merged before
        outermost = ""
        for path, part in list(module.named_modules()):
            if is_adapter(part) and not (outermost and path.startswith(f"{outermost}.")):
                module.set_submodule(outermost := path, _plain(part))
    return module


def is_adapter(part: nn.Module) -> bool:
    """Return whether a module is a wrapper of peft around another."""
    if "peft" not in sys.modules:
        return False
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return isinstance(part, BaseTunerLayer | AuxiliaryTrainingWrapper)


def not_in_its_weights(module: nn.Module) -> str:
    """Return what a module has besides its weights, if anything is found: an adapter, a hook, another forward."""
    for path, part in module.named_modules():
        if is_adapter(part):
            return f"it has an adapter that could not be merged ({_where(path, part)})"
    return changed_forward(module)


def changed_forward(module: nn.Module) -> str:
    """Return which hook or replaced forward makes a module do something else than its classes say, if any may."""
    if name := next(map(_named, filterfalse(_is_harmless, global_hooks())), None):
        return f"every module has a hook ({name})"
    for path, part in module.named_modules():
        hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        if name := next(map(_named, filterfalse(_is_harmless, hooks)), None):
            return f"it has a hook ({name} on {_where(path, part)})"
        if _is_replaced(part):
            return f"its forward was replaced ({_where(path, part)})"
    return ""


def _is_replaced(part: nn.Module) -> bool:
    """Tell whether a module runs another forward than its class was written with."""
    if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
        return False  # compiled from the forward of its class
    kind = next(kind for kind in type(part).__mro__ if "forward" in vars(kind))
    written = vars(kind)["forward"]
    own = [layer for layer in _layers(vars(part).get("forward")) if not _is_from(layer, OURS)]
    if own and getattr(own[0], "__func__", None) is not written:
        return True
    libraries = ("torch", "transformers")
    return kind.__module__.startswith(libraries) and not all(_is_from(layer, libraries) for layer in _layers(written))


def _is_harmless(hook: Any) -> bool:
    trainers = ("transformers", "peft") if _named(hook) in ASKS_FOR_GRADIENTS else ()
    return all(_is_from(layer, (*READS, *trainers)) for layer in _layers(hook))


def _layers(function: Any) -> Iterator[Any]:
    """Yield a function, the one that it wraps, and so on."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _is_from(function: Any, modules: tuple[str, ...]) -> bool:
    """Tell whether the code of a function is in some modules or packages."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    files = (os.path.abspath(str(sys.modules[name].__file__)) for name in modules if name in sys.modules)
    places = tuple(file.removesuffix("__init__.py") for file in files)
    return code is not None and os.path.abspath(code.co_filename).startswith(places)


def _named(hook: Any) -> str:
    return getattr(hook, "__qualname__", type(hook).__qualname__).rpartition("<locals>.")[2]


def _where(path: str, part: nn.Module) -> str:
    return f"{type(part).__name__} at {path!r}" if path else type(part).__name__


def _plain(part: Any) -> nn.Module:
    """Return the layer inside an adapter, merged with it if possible."""
    inside = part.original_module if hasattr(part, "original_module") else part.get_base_layer()
    if part.disable_adapters:
        return inside
    try:
        if hasattr(part, "unload_and_optionally_merge_module"):
            return part.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        part.merge()
    except (NotImplementedError, ValueError, RuntimeError):
        pass
    return inside


def require_plain_weights(module: nn.Module) -> None:
    """Refuse a model whose weights are quantised: packed into integers, or subclasses of tensors."""
    for path, part in module.named_modules():
        weight = getattr(part, "weight", None)
        packed = [name for name, parameter in part.named_parameters(recurse=False) if not _is_plain(parameter)]
        if packed or hasattr(part, "qweight") or not (isinstance(weight, nn.Module | None) or _is_plain(weight)):
            raise UnsupportedModelError(
                f"the weights of {path!r} ({type(part).__name__}) are quantised, which is not read here: such a model "
                "rounds as it runs, and rounding has no derivative; give it in bfloat16 or float32 (some have "
                "model.dequantize()).",
                field="model",
            )


def _is_plain(weight: Any) -> bool:
    return type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()
