"""Maps that stand in for a module, compared with what the module itself puts out.

Maps are read from weights. What else a module does (adapters, hooks, a forward that was replaced, code that has changed
since) is not in its weights: it shows in what the module puts out, part by part.
"""

import importlib.metadata
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howsmooth.errors import HowsmoothError
from howsmooth.maps.composition import Chain
from howsmooth.models import blocks
from howsmooth.models.adapters import not_in_its_weights
from howsmooth.models.calls import in_turn, listening, without_cache
from howsmooth.models.rest import first_tensor
from howsmooth.wording import percent

if TYPE_CHECKING:  # a transformer is compared with its module
    from howsmooth.models.transformer import Transformer

# A part may be off by so many times what one unit of rounding in its input does to its output. Families that are read
# right stay below 2 with weights of ordinary size, and below 9 with weights from a tenth to a hundred times that;
# adapters and hooks are tens of thousands off.
UNITS = 64
# Parts that are no layer.
EMBEDDINGS, LAST_NORM, CLASSES, WORDS = "embeddings", "last norm", "classes", "words"
Outputs = dict[tuple[str, int], Tensor]


def rounding(
    f: Callable[[Tensor], Tensor], X: Float[Tensor, "*batch n d"], Y: Float[Tensor, "*batch m out"]
) -> tuple[Float[Tensor, "*batch m"], Float[Tensor, "*batch m"]]:
    r"""Return how far a map is from what a module puts out, token by token, and how far rounding may bring it.

    A module and a map that agree but for rounding differ as if their input had been rounded once more, and their output
    too: :math:`|f(x)-y|\le 64\,(|f(x\circ(1\pm u))-f(x)|+u|y|)`, with signs at random. The unit u is that of float32 or
    of a coarser output, since modules compute angles, norms and softmax in float32 whatever their weights are.

    Args:
        f: The map.
        X: What enters the module.
        Y: What it puts out.
    """
    unit = max(torch.finfo(torch.float32).eps, torch.finfo(Y.dtype).eps)
    signs = torch.randint(2, X.shape, generator=torch.Generator().manual_seed(0)).to(X) * 2 - 1
    ours = f(X)
    Y = Y.to(ours)
    moved = (f(X * (1 + unit * signs)) - ours).norm(dim=-1)
    return (ours - Y).norm(dim=-1), UNITS * (moved + unit * Y.norm(dim=-1))


@torch.no_grad()
def differences(
    transformer: "Transformer", tokens: Tensor, padding: Bool[Tensor, "batch n"] | None = None, *, words: bool = False
) -> dict[int | str, str]:
    """Run a model at one input and return which of its parts are not what stands in for them, each with a sentence.

    Args:
        transformer: The model and its maps.
        tokens: What it reads; one sequence is enough.
        padding: True for real tokens, where some are padding.
        words: Whether scores of words are compared too: they are as many as the vocabulary, for every token.
    """
    base, frame = transformer.module, transformer.frame
    headed = not isinstance(frame.classes, str) or (words and not isinstance(frame.head, str))
    model = transformer.with_head if headed and transformer.with_head is not None else base
    reads = None if frame.ends is None else frame.ends.reads
    paths = [site.block for site in transformer.sites]
    reading, writing = ([getattr(site, side) for site in transformer.sites] for side in ("reads", "puts_out"))
    masks = {} if padding is None else {"attention_mask": padding.long()}
    inputs = Counter(reading) | Counter(paths) | Counter(() if reads is None else (reads,))
    with (
        listening(base, inputs) as calls,
        _outputs(base, {*paths, *writing, ""}) as outputs,
        without_cache(base),
        without_cache(model),
    ):
        scores = first_tensor(model(tokens, **masks))
    found: dict[int | str, str] = {}

    def compare(part: int | str, named: str, module: nn.Module, f: Callable[[Tensor], Tensor], X: Any, Y: Any) -> None:
        try:
            off, allowed = rounding(f, X, Y)
        except HowsmoothError:
            return  # the map itself refuses such an input, and says why where it is asked for
        counts = Y.isfinite().all(-1)  # where the module puts out NaN there is nothing to compare
        if padding is not None and counts.shape == padding.shape:
            counts &= padding
        if bool((~(off <= allowed) & counts).any()):
            size = float(off[counts].norm() / Y[counts].norm())
            found[part] = f"{named} does not put out what its weights say ({percent(size)} off): {reason(module)}"

    for site, call, output in zip(transformer.sites, in_turn(reading, calls), in_turn(writing, outputs), strict=True):
        if site.attention is not None:
            named = f"the attention of layer {site.layer} ({site.puts_out!r})"
            compare(site.layer, named, base.get_submodule(site.block), site.padded(padding), call.tokens, output)
    entered, left = in_turn(paths, calls), in_turn(paths, outputs)
    for site, call, output in zip(transformer.sites, entered, left, strict=True):
        if site.attention is not None and site.feed_forward is not None and site.layer not in found:
            f = blocks.block(site, site.padded(padding))
            compare(site.layer, f"layer {site.layer} ({site.block!r})", call.module, f, call.tokens, output)
    if frame.ends is not None and frame.ends.before and reads is not None:
        f = Chain(*frame.ends.before)
        compare(EMBEDDINGS, f"{reads!r}", base.get_submodule(reads), f, calls[reads, 0].tokens, entered[0].tokens)
    last = outputs["", 0]
    if frame.ends is not None and frame.ends.after:
        compare(LAST_NORM, "what stands behind the last layer", base, Chain(*frame.ends.after), left[-1], last)
    if model is not base and not isinstance(frame.classes, str):
        f = Chain(*frame.classes.maps(last, tokens, padding))
        compare(CLASSES, "its classifier", model, f, last, scores.unsqueeze(-2))
    elif model is not base and not isinstance(frame.head, str):
        compare(WORDS, "its head over the vocabulary", model, Chain(*frame.head), last, scores)
    return found


def reason(module: nn.Module) -> str:
    """Say why a module may put out something else than its weights say."""
    if module.training:
        return "it is in training mode; call model.eval() first"
    if why := not_in_its_weights(module):
        return why
    version = importlib.metadata.version("transformers")
    return f"the code of {type(module).__name__} in transformers {version} is not what is read here"


@contextmanager
def _outputs(module: nn.Module, paths: set[str]) -> Iterator[Outputs]:
    """Keep what parts of a module put out while it runs, by path and how often the part had run before."""
    kept: Outputs = {}
    here = threading.get_ident()

    def keeper(path: str) -> Any:
        def keep(_part: nn.Module, _inputs: Any, output: Any) -> None:
            if threading.get_ident() == here:  # somebody else may run the same module meanwhile
                kept[path, sum(known == path for known, _turn in kept)] = first_tensor(output).detach()

        return keep

    hooks = [module.get_submodule(path).register_forward_hook(keeper(path)) for path in paths]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
