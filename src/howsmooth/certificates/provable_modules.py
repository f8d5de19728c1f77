"""Modules of whose maps Theorem 11 proves something: it must be true of the module too, on the whole ball.

A hook or a branch may do nothing at one input. Three checks, each of which takes a few forward passes at most:

1. nothing stands around the forward that its classes were written with, no hook and no other forward;
2. it takes the same steps at every input: Python looks at none of its numbers, and nothing is drawn at random;
3. it computes what the maps do at points on the surface of the certified ball.
"""

import os
import traceback
from collections.abc import Callable, Sequence
from inspect import getfile
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.certificates.flip_attack import descent_direction, random_sphere
from howsmooth.certificates.sentence_certifier import Radius, SentenceCertifier
from howsmooth.errors import AssumptionError
from howsmooth.models.autograd.module_calls import ModuleClassifier
from howsmooth.models.loading.adapters import changed_forward
from howsmooth.models.module_comparison import rounding
from howsmooth.torch_internals import FollowedTensor, InputReadError
from howsmooth.wording import number

# Where no line of the user's stands.
LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(getfile(Tensor)).parent, Path(__file__).parents[1]))
# What a module may differ by from its maps, beyond rounding, as a share of the margin that is left.
SHARE = 1e-3


def require_plain_forward(module: nn.Module) -> None:
    """Refuse a module with hooks or a forward that was replaced, unless these are known to change nothing.

    Raises:
        AssumptionError: If it has one.
    """
    if why := changed_forward(module):
        raise AssumptionError(
            f"nothing is proven of this {type(module).__name__}, since {why}, which may do at other inputs what it "
            "does not at this one; take it off first.",
            field="model",
        )


@torch.no_grad()
def require_same_steps(run: Callable[[Tensor], Tensor], x: Tensor, name: str) -> None:
    """Refuse a module whose steps depend on the numbers of its input, or on chance.

    Args:
        run: The module.
        x: Any input of the right shape.
        name: What the module is called.

    Raises:
        AssumptionError: If Python looks at a number that depends on the input, or two runs differ.
    """
    once = run(x)
    if not isinstance(once, Tensor):
        raise AssumptionError(
            f"{name} must return one tensor, got {type(once).__name__}; give a module that returns its logits.",
            field="model",
        )
    try:
        run(FollowedTensor(x))
    except (Exception, InputReadError) as error:
        what = str(error) if isinstance(error, InputReadError) else f"does what cannot be followed ({_first(error)})"
        raise AssumptionError(
            f"{name} {what}{_place(error)}, so that it may take other steps at other inputs, and what is proven needs "
            "the same steps at all of them; torch.where, clamp and relu leave them the same.",
            field="model",
        ) from error
    state, again = torch.random.get_rng_state(), run(x)  # last, so that what a module keeps are plain tensors
    unit = 64 * torch.finfo(once.dtype).eps * float(once.abs().max())
    drawn = not torch.equal(state, torch.random.get_rng_state())
    if drawn:  # by the module, or meanwhile by another thread
        state, _again = torch.random.get_rng_state(), run(x)
        drawn = not torch.equal(state, torch.random.get_rng_state())
    if drawn or not torch.allclose(once, again, 0, unit, equal_nan=True):
        raise AssumptionError(
            f"{name} draws random numbers, or changes from one run to the next (dropout with training=True, say), and "
            "what is proven needs the same outputs every time; call .eval(), or take that out.",
            field="model",
        )


def require_same_on_ball(
    certifier: SentenceCertifier, module: ModuleClassifier, radii: Sequence[Radius], p: float
) -> None:
    """Compare a module with its maps on the surface of the largest certified ball.

    Two pairs of opposite points: where the smallest margin falls fastest, and in a random direction.

    Raises:
        AssumptionError: If margins differ by more than rounding.
    """
    radius = max(radii, key=lambda found: found.certified)
    if not radius.certified > 0:
        return
    X, functionals, tokens = certifier.embeddings, certifier.rivals.functionals, torch.tensor(radius.tokens)
    random = random_sphere((2, len(tokens), X.shape[-1]), p, torch.Generator().manual_seed(0))
    _margin, slope = descent_direction(certifier.classifier, X, torch.zeros_like(random[:1]), tokens[None], functionals)
    steepest = _steepest(slope, p) if bool(slope.any()) else random[1:]
    directions = torch.cat((steepest, random[:1]))
    Z = X.repeat(4, 1, 1)
    Z[:, tokens] += radius.certified * torch.cat((directions, -directions))
    with torch.no_grad():
        ours, theirs = certifier.classifier(Z), module(Z)
        _off, allowed = rounding(certifier.classifier, Z, theirs)
        margins, others = ours @ functionals.mT, theirs.to(ours) @ functionals.mT
    off = (margins - others).abs()
    # a margin is the difference of two logits
    wrong = ~(off <= torch.maximum(2**0.5 * allowed[..., None], SHARE * margins))
    if bool(wrong.any()):
        raise AssumptionError(
            f"the module is not what its weights say: where tokens {', '.join(map(str, radius.tokens))} are moved by "
            f"{number(radius.certified)}, which its weights prove to be safe, its margin is off by "
            f"{number(float(off[wrong].max()))} of {number(float(margins[wrong].min()))}; a certificate needs a "
            "classifier that is all in its weights.",
            field="model",
        )


def _steepest(slope: Float[Tensor, "1 k d"], p: float) -> Float[Tensor, "1 k d"]:
    """Return the point of norm one against which a slope is largest."""
    if p == 1:
        flat = slope.flatten()
        return nn.functional.one_hot(flat.abs().argmax(), flat.numel()).to(slope).reshape(slope.shape)
    return slope.sign() if p == torch.inf else slope / slope.norm()


def _place(error: BaseException) -> str:
    """Say where an error was raised, in the code of the user."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(LIBRARIES)]
    if not frames:
        return ""
    return f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})"


def _first(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
