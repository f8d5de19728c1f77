"""Where errors enter a forward pass: every error is a displacement of a tensor on the way to the output.

A weight matrix with the error δ displaces the output of its linear map at x by δx, a rounded cache displaces keys and
values, a rounded residual stream the output of a block.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from howsmooth.budgets.schemes import Scheme
from howsmooth.budgets.subject import Subject
from howsmooth.errors import UnsupportedModelError
from howsmooth.models.autograd.hooks import ModuleCall, first_tensor, hooked
from howsmooth.models.streaming import Change

# An error by the name of what it is in, and the name of its scheme.
Key = tuple[str, str]
EMBEDDINGS = "embeddings"


@dataclass(frozen=True, kw_only=True)
class Error:
    """An error that may be put into a model."""

    name: str  # what it is in: a parameter as in ``named_parameters()``, ``cache.3.key.2`` (layer, head), or a module
    scheme: str  # the name of the scheme that makes it
    numbers: int  # how many numbers are rounded
    bits: float  # how many bits the scheme needs for each of them
    squared: float  # |δ|²; of caches and activations, at the first window
    place: str = "weights"  # where it enters

    @property
    def key(self) -> Key:
        """The name and the scheme."""
        return self.name, self.scheme


# Called where errors enter: with the tensor, the errors, and their displacements (errors, …); returns the tensor that
# takes its place.
Meet = Callable[[Tensor, Sequence[Error], Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """The places of a model where errors of some schemes enter."""

    subject: Subject  # the model
    schemes: Sequence[Scheme]  # the schemes; their places say where

    def __post_init__(self) -> None:
        """Refuse errors that would miss.

        These are errors of embeddings whose tied output head is no module of the model, and of matrices beside linear
        modules whose weights come from files: these need gradients, and are gone before they get any.
        """
        away = [name for name, W in self.other_matrices().items() if W.is_meta]
        if away:
            raise UnsupportedModelError(
                f"{away[0]!r} belongs to no linear module, so that a budget needs it in memory; load "
                f"{self.subject.transformer.name!r} with streamed=False.",
                field="streamed",
            )
        if self.at(EMBEDDINGS) and self.subject.kind == "words" and self.subject.transformer.with_head is None:
            raise UnsupportedModelError(
                f"{self.subject.transformer.name!r} was loaded without the module of its output head, which shares the "
                "weights of its embeddings; load it as AutoModelForCausalLM and give the module.",
                field="schemes",
            )

    def at(self, *places: str) -> list[Scheme]:
        """Return the schemes whose errors enter at some kinds of places."""
        return [scheme for scheme in self.schemes if scheme.place in places]

    def linear_modules(self) -> Iterator[tuple[str, str, Any, list[Scheme]]]:
        """Yield the path of every linear module with the name of its weight and the schemes that round it."""
        module: Any = self.subject.module
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        head = getattr(module, "get_output_embeddings", lambda: None)()
        tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        if head is not None:
            tables.add(id(head.weight))
        for path, part in module.named_modules():
            if _image(part) is None:
                continue
            schemes = self.at(EMBEDDINGS) if id(part.weight) in tables else self.at("weights")
            if schemes and id(part.weight) not in names:
                raise UnsupportedModelError(
                    f"{path!r} makes its weights anew in each pass, as weight_norm does, so that rounding them is not "
                    "defined; make them plain with torch.nn.utils.parametrize.remove_parametrizations.",
                    field="model",
                )
            if schemes:
                yield path, names[id(part.weight)], part, schemes

    def check_checkpoints(self) -> None:
        """Refuse other checkpoints that lack a matrix, or have one of another shape."""
        for _path, name, part, schemes in self.linear_modules():
            for scheme in schemes:
                if scheme.by_name:
                    scheme.rounded(part.weight.detach(), name)

    def other_matrices(self) -> dict[str, nn.Parameter]:
        """Return the matrices that belong to no linear module, such as those of experts: they need gradients."""
        module = self.subject.module
        linear = {id(part.weight) for part in module.modules() if _image(part) is not None}
        return {
            name: parameter
            for name, parameter in module.named_parameters()
            if self.at("weights") and parameter.ndim > 1 and id(parameter) not in linear
            if min(parameter.shape[-2:]) > 1
        }

    def weights(self, recipe: Mapping[str, str], factor: float = 1.0) -> dict[str, Tensor | Change]:
        """Return the matrices that a recipe rounds, with a share of their errors in them.

        Of those that come from their files, this is what makes them of the matrix.
        """
        schemes = {scheme.name: scheme for scheme in self.at("weights", EMBEDDINGS)}
        transposed = {name: _transposed(part) for _path, name, part, _schemes in self.linear_modules()}
        stream = self.subject.transformer.stream

        def change(name: str, W: Tensor) -> Tensor:
            turned = transposed.get(name, False)
            return W + factor * weight_error(name, W, schemes[recipe[name]], transposed=turned)

        matrices = {name: W for name, W in self.subject.module.named_parameters() if recipe.get(name) in schemes}
        return {
            name: functools.partial(change, name) if stream is not None and stream.comes(name) else change(name, W)
            for name, W in matrices.items()
        }

    @contextmanager
    def attached(self, meet: Meet, recipe: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Call ``meet`` wherever an error enters; yield a cache for the model, if one is needed.

        With a recipe, these are its errors of activations and caches; :meth:`weights` has those of matrices.
        """
        wanted = _Wanted(meet=meet, recipe=recipe)
        with ExitStack() as stack:
            for path, name, part, schemes in self.linear_modules() if recipe is None else ():
                before, after = _linear_hooks(name, part, schemes, meet)
                stack.enter_context(hooked(self.subject.module, inputs={path: before}, outputs={path: after}))
            for path, schemes in self._outputs():
                if chosen := wanted.schemes(path, schemes):
                    stack.enter_context(hooked(self.subject.module, outputs={path: _output_hook(path, chosen, meet)}))
            schemes = self.at("kv", "kv-channel")
            yield {} if not schemes else {"past_key_values": _cache(schemes, wanted), "use_cache": True}

    def _outputs(self) -> Iterator[tuple[str, list[Scheme]]]:
        """Yield the modules whose outputs are rounded: blocks, and all modules without parts."""
        module = self.subject.module
        if residual := self.at("residual"):
            yield from ((path, residual) for path in self.subject.blocks)
        if kernel := self.at("kernel"):
            leaves = ((path, part) for path, part in module.named_modules() if path and not any(part.children()))
            # what passes its input on rounds nothing anew
            yield from ((path, kernel) for path, part in leaves if not isinstance(part, nn.Dropout | nn.Identity))


class _Wanted(NamedTuple):
    """What to do with errors, and which are wanted."""

    meet: Meet
    recipe: Mapping[str, str] | None

    def schemes(self, name: str, schemes: list[Scheme]) -> list[Scheme]:
        """Return the schemes whose errors of a name are wanted."""
        return schemes if self.recipe is None else [s for s in schemes if self.recipe.get(name) == s.name]


def weight_error(name: str, weight: Tensor, scheme: Scheme, *, transposed: bool = False) -> Tensor:
    """Return the error of a weight matrix; one that is stored transposed is rounded along its rows."""
    W = weight.detach()
    return scheme.error(W.mT, name).mT if transposed and not scheme.by_name else scheme.error(W, name)


def error_of(name: str, X: Tensor, scheme: Scheme, delta: Tensor) -> Error:
    """Return what is known of an error beside its values."""
    squared = float(torch.linalg.vector_norm(delta)) ** 2
    return Error(
        name=name, scheme=scheme.name, numbers=X.numel(), bits=scheme.bits(X), squared=squared, place=scheme.place
    )


def _transposed(part: Any) -> bool:
    """Return whether a linear module stores its matrix transposed."""
    return type(part).__name__ == "Conv1D"


def _linear_hooks(name: str, part: Any, schemes: list[Scheme], meet: Meet) -> tuple[Any, Any]:
    transposed, image = _transposed(part), cast("Callable[[Tensor, Tensor], Tensor]", _image(part))
    entering: list[Tensor] = []

    def before(call: ModuleCall, _turn: int) -> None:
        (x, *_others) = (*call.positional, *call.named.values())
        entering.append(x.detach())

    def after(output: Any, _turn: int) -> Any:
        x = entering.pop()
        errors, displaced = [], []
        with torch.no_grad():
            W = part.weight.mT if transposed else part.weight
            for scheme in schemes:  # one error of a matrix at a time: all of them would be larger than the model
                delta = weight_error(name, part.weight, scheme, transposed=transposed)
                errors.append(error_of(name, W, scheme, delta))
                displaced.append(image(x, delta))
        return meet(output, errors, torch.stack(displaced))

    return before, after


def _output_hook(path: str, schemes: list[Scheme], meet: Meet) -> Callable[[Any, int], Any]:
    def after(output: Any, _turn: int) -> Any:
        Y = first_tensor(output)
        if not Y.is_floating_point():
            return None
        displaced = torch.stack([scheme.error(Y.detach(), path) for scheme in schemes])
        errors = [error_of(path, Y, scheme, delta) for scheme, delta in zip(schemes, displaced, strict=True)]
        found = meet(Y, errors, displaced)
        return found if isinstance(output, Tensor) else (found, *output[1:])

    return after


def _cache(schemes: list[Scheme], wanted: _Wanted) -> Any:
    """Return a cache of keys and values whose errors are met head by head."""
    from transformers import DynamicCache

    def met(X: Tensor, layer: int, what: str) -> Tensor:
        return torch.stack([_met_head(x, f"cache.{layer}.{what}.{head}") for head, x in enumerate(X.unbind(1))], 1)

    def _met_head(x: Tensor, name: str) -> Tensor:
        chosen = wanted.schemes(name, schemes)
        if not chosen:
            return x
        sides = [x.detach().mT if scheme.place == "kv-channel" else x.detach() for scheme in chosen]
        deltas = [scheme.error(side, name) for scheme, side in zip(chosen, sides, strict=True)]
        errors = [error_of(name, side, s, delta) for s, side, delta in zip(chosen, sides, deltas, strict=True)]
        displaced = [d.mT if s.place == "kv-channel" else d for s, d in zip(chosen, deltas, strict=True)]
        return wanted.meet(x, errors, torch.stack(displaced))

    class ErroneousCache(DynamicCache):
        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
            return met(keys, layer_idx, "key"), met(values, layer_idx, "value")

    return ErroneousCache()


def _image(part: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the function (x, δ) → δx of a linear module; none for other modules."""
    if isinstance(part, nn.Linear):
        return nn.functional.linear
    if isinstance(part, nn.Embedding):
        return nn.functional.embedding
    if type(part).__name__ == "Conv1D" and hasattr(part, "nf"):
        return torch.matmul
    if isinstance(part, nn.Conv2d):
        return lambda x, delta: part._conv_forward(x, delta, None)
    return None


def require_places(found: Sequence[Error], places: Places) -> None:
    """Refuse schemes whose errors enter nowhere: a model without a cache, or without linear maps."""
    met = {error.scheme for error in found}
    for scheme in places.schemes:
        if scheme.name not in met:
            raise UnsupportedModelError(
                f"{places.subject.transformer.name!r} has no place for the scheme {scheme.name!r}: it has no "
                f"{'cache' if scheme.place.startswith('kv') else scheme.place} that can be rounded.",
                field="schemes",
            )
