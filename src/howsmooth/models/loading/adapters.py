"""What is around or in place of the plain layers of a model: wrappers, adapters of peft, quantised weights."""

import copy
import sys
import warnings
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from howsmooth.errors import UnsupportedModelError

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
        where = f"{type(part).__name__} at {path!r}" if path else type(part).__name__
        if is_adapter(part):
            return f"it has an adapter that could not be merged ({where})"
        if part._forward_hooks or part._forward_pre_hooks:
            return f"it has a hook ({where})"
        if "forward" in vars(part):
            return f"its forward was replaced ({where})"
    return ""


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
