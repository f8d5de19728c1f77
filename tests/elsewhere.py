"""A second device for machines that have none: tensors that claim to live elsewhere, and do not mix with ours."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("privateuseone", 0)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Away(torch.Tensor):
    """A tensor that claims to live elsewhere; its numbers are held by an ordinary one."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )

    def __init__(self, held):
        self.held = held

    def tolist(self):
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Elsewhere(TorchDispatchMode):
    """Make what is asked for on the other device, which no kernel of torch can."""

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    away = any(isinstance(x, Away) for x in tensors)
    if away and func not in COPIES and any(not isinstance(x, Away) and x.ndim for x in tensors):
        raise RuntimeError(f"{func}: tensors on two devices")
    if (wanted := kwargs.get("device")) is not None:
        away = torch.device(wanted).type == DEVICE.type
        kwargs = dict(kwargs) | {"device": torch.device("cpu")}
    out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if tensors and out is _held(tensors[0]):
        return tensors[0]  # in place
    return tree_map(lambda x: Away(x) if away and isinstance(x, torch.Tensor) else x, out)


def _held(x):
    return x.held if isinstance(x, Away) else x


def second_device() -> tuple[torch.device, TorchDispatchMode]:
    """Register a device that refuses to mix with the CPU, for the rest of the process; return it with its mode."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # torch 2.6 lacks it

    _setup_privateuseone_for_python_backend()
    return DEVICE, _Elsewhere()
