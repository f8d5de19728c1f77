"""Every public function, with the inputs that people have: the answer of its plain twin, or a refusal in a sentence.

The twin is called with the same numbers, contiguous and in float64. What is given is the same afterwards, bit by bit.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from boundary.functions import CASES, OF_BLOCKS, OF_IDS, OF_MODELS, UNLIKE, Between, Case, X, block, classifier
from boundary.inputs import ARRAYS, BATCHES, BLOCKS, FEW, IDS, LAYOUTS, MODULES, ROUNDING, STATES, STRANGE, Held
from torch import Tensor, nn

import howsmooth as hs
from howsmooth.errors import HowsmoothError
from howsmooth.linear_operators import LinearOperator

pytestmark = [
    pytest.mark.untyped,  # what annotations forbid is what people have
    pytest.mark.filterwarnings("ignore:compiled code cannot be differentiated twice"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # of torch's compiler
]

TWINS: dict[Any, list[Any] | HowsmoothError] = {}


def leaves(answer: Any) -> list[Tensor | Between]:
    """Return what an answer claims: numbers, and pairs of ends that the truth lies between."""
    if isinstance(answer, Between):
        return [Between(end.detach().double() for end in answer)]
    if isinstance(answer, hs.Witness):
        return leaves(answer.measured)
    if isinstance(answer, hs.NormEstimate):
        return leaves(Between((answer.lower, answer.upper)))
    if isinstance(answer, hs.Bracket):
        return leaves(Between(torch.tensor(end.value, dtype=torch.float64) for end in (answer.lower, answer.upper)))
    if isinstance(answer, hs.BoundsTable):
        return leaves(answer.bounds)
    if isinstance(answer, hs.transport.DiscreteMeasure):
        return leaves((answer.points, answer.weights))
    if isinstance(answer, LinearOperator):
        shapes = torch.Size(answer.domain), torch.Size(answer.codomain)
        E, F = (torch.linspace(-1, 2, s.numel(), dtype=answer.dtype).reshape(s) for s in shapes)
        lead = answer.batch
        return leaves((answer.jvp(E.expand(*lead, *E.shape)), answer.vjp(F.expand(*lead, *F.shape))))
    if isinstance(answer, tuple | list):
        return [leaf for part in answer for leaf in leaves(part)]
    value = answer.value if isinstance(answer, hs.Bound) else answer
    return [value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)]


def plain(x: Any) -> Tensor:
    """Return the same numbers as a contiguous tensor, in float64 unless they are whole."""
    with torch.inference_mode(False):
        if not isinstance(x, Tensor):
            return torch.from_numpy(np.array(x, dtype="f8" if np.asarray(x).dtype.kind == "f" else None))
        x = (x.detach().to_dense() if x.is_sparse else x.detach()).resolve_neg()
        x = x.real if x.is_complex() else x
        return x.to(torch.float64 if x.dtype != torch.bool else None).clone(memory_format=torch.contiguous_format)


def memory(x: Any) -> Any:
    """Return all that a tensor or an array keeps."""
    if isinstance(x, Tensor):
        known = not (x.is_sparse or x.is_meta)
        return bytes(x.untyped_storage()) if known else None, x.requires_grad, x.stride() if known else None
    return copy.deepcopy(x)


def answer(call: Callable[..., Any], given: Mapping[str, Any]) -> list[Any] | HowsmoothError:
    """Return what a call claims, or its refusal."""
    try:
        return leaves(call(**given))
    except HowsmoothError as refusal:
        return refusal


def judge(found: Any, twin: Any, owed: str, rtol: float) -> None:
    """Compare an answer with that of the twin, as far as one is owed."""
    if isinstance(found, HowsmoothError):
        said = str(found)
        assert said.endswith("."), f"no sentence: {said}"
        assert len(said.splitlines()) == 1, f"no sentence: {said}"
        assert owed != "answer" or isinstance(twin, HowsmoothError), f"refused: {said}"
        return
    assert not isinstance(twin, HowsmoothError), f"answered {found}, but the twin refuses: {twin}"
    ends = [end for leaf in found for end in (leaf if isinstance(leaf, Between) else (leaf,))]
    assert not any(bool(end.isnan().any()) for end in ends), f"NaN: {found}"
    if owed == "refusal":
        assert any(bool(end.isinf().any()) for end in ends), f"answered {found}"
        return
    assert len(found) == len(twin)
    for one, other in zip(found, twin, strict=True):
        if isinstance(one, Between):
            (low, high), (least, most) = one, other
            assert low.shape == least.shape
            assert bool((low <= high).all()), f"{low} above {high}"
            assert bool((low <= most * (1 + rtol)).all()), f"{one}, not {other}"
            assert bool((high >= least * (1 - rtol)).all()), f"{one}, not {other}"
        else:
            assert one.shape == other.shape
            size = float(other.abs().max()) if other.numel() else 0.0
            assert bool(((one - other).abs() <= rtol * size).all()), f"{one}, not {other}"


def check(case: Case, held: Held, argument: str | None) -> None:
    """Hold one tensor, or all, in one way, and compare."""
    own = {**case.inputs, **case.beside}
    with held.within():
        given = {name: held.hold(x) if argument in (None, name) else x.clone() for name, x in own.items()}
        before = {name: memory(x) for name, x in given.items()}
        found = answer(case.call, given)
    for name, x in given.items():
        np.testing.assert_equal(memory(x), before[name], f"{name} was changed")
    exact = {} if held.owed == "refusal" else {name: plain(x) for name, x in given.items()}
    lead = exact[argument].shape[: exact[argument].ndim - own[argument].ndim] if held in BATCHES else ()
    parts = [exact | {argument: x} for x in exact[argument].reshape(-1, *own[argument].shape)] if lead else [exact]
    twins = [twin_of(case, each) for each in parts] if exact else [[]]
    owed = "either" if held.name in case.refuses or (held in BATCHES and not case.batch) else held.owed
    twin = next((each for each in twins if isinstance(each, HowsmoothError)), None)
    if twin is None:
        twin = [stacked(each, lead) for each in zip(*twins, strict=True)]
    rounding = max(ROUNDING.get(getattr(x, "dtype", None), 1e-8) for x in given.values())
    judge(found, twin, owed, max(rounding, held.rounding, case.rtol))


def stacked(answers: Any, lead: tuple[int, ...]) -> Any:
    """Return the answers for the sequences of a batch as the answer for the batch."""
    if not lead:
        return answers[0]
    if isinstance(answers[0], Between):
        return Between(stacked(ends, lead) for ends in zip(*answers, strict=True))
    return torch.stack(answers).reshape(*lead, *answers[0].shape)


def twin_of(case: Case, exact: Mapping[str, Tensor]) -> list[Any] | HowsmoothError:
    key = (case.name, *(x.numpy().tobytes() for x in exact.values()))
    if key not in TWINS:
        TWINS[key] = answer(case.call, exact)
    return TWINS[key]


LAYOUT, STATE, STRANGELY, TOGETHER = "in every layout", "in every state", "held strangely", "in batches and arrays"


def pairs(case: Case, group: str) -> Iterator[tuple[Held, str | None]]:
    """Yield the ways to hold tensors, and which one is held so; none for all of them."""
    first = next(iter(case.inputs), None)
    if group == LAYOUT:
        found = [(held, None) for held in (FEW if case.slow else LAYOUTS)]
    elif group == STATE:
        found = [(held, None) for held in STATES]
    elif group == STRANGELY:  # what changes nothing, as NaN in a mask, says nothing
        found = [(held, name) for name, x in case.inputs.items() for held in STRANGE if held.hold(x) is not x]
    else:
        found = [(held, first) for held in (*BATCHES, *(ARRAYS if case.arrays else ())) if first is not None]
    yield from (pair for pair in found if pair[0].name not in case.unlike)


def faults(judged: Iterator[tuple[str, Callable[[], None]]]) -> list[str]:
    """Try every input, and return what went wrong with which."""
    found = []
    for name, check in judged:
        try:
            check()
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return found


@pytest.mark.parametrize("group", [LAYOUT, STATE, STRANGELY, TOGETHER])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tensors_that_people_have_are_answered_or_refused(case: Case, group: str) -> None:
    judged = ((f"{name or 'all'} {held.name}", partial(check, case, held, name)) for held, name in pairs(case, group))
    assert not (found := faults(judged)), "\n".join(found)


TOKENS = torch.tensor([[2, 5, 7, 3], [2, 9, 11, 3]])


def state(module: nn.Module) -> Any:
    """Return all that a module keeps."""
    kept = {name: memory(x) for name, x in (*module.named_parameters(), *module.named_buffers())}
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in module.modules()]
    return kept, hooks, [parameter.grad is None for parameter in module.parameters()]


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def same_weights(module: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
    """Return a plain module in float64 with the weights that another has now."""
    fresh, found = build(), copy.deepcopy(module).eval()
    for path, part in fresh.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            parameter.data = getattr(found.get_submodule(path), name).detach().double().contiguous()
    return fresh


def check_module(build: Callable[[], nn.Module], call: Callable[..., Any], held: Held, given: Tensor) -> None:
    """Hold a module in one way, and compare."""
    inner = build()
    module = held.hold(inner)
    twin = [] if held.owed == "refusal" else held.twin(same_weights(inner, build))
    dtype = next(inner.parameters()).dtype
    given = given.to(dtype) if given.is_floating_point() else given
    with held.within():
        before, numbers = state(module), memory(given)
        found = answer(call, {"f": module, "X": given})
        np.testing.assert_equal(state(module), before, "the module was changed")
        assert memory(given) == numbers, "the input was changed"
    if twin:
        twin = answer(call, {"f": twin, "X": given.double() if given.is_floating_point() else given})
    judge(found, twin, held.owed, max(ROUNDING[dtype], held.rounding, 1e-2))


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_modules_that_people_have_are_answered_or_refused_at_tokens(name: str) -> None:
    some = [held for held in BLOCKS if held.name not in UNLIKE.get(name, ())]
    judged = ((held.name, partial(check_module, block, OF_BLOCKS[name], held, X)) for held in some)
    assert not (found := faults(judged)), "\n".join(found)


@pytest.mark.parametrize("name", OF_MODELS)
def test_models_that_people_have_are_answered_or_refused_at_token_ids(name: str) -> None:
    some = [held for held in MODULES if held.name not in UNLIKE.get(name, ())]
    judged = ((held.name, partial(check_module, classifier, OF_MODELS[name], held, TOKENS)) for held in some)
    assert not (found := faults(judged)), "\n".join(found)


@pytest.mark.parametrize("name", OF_IDS)
def test_token_ids_that_people_have_are_answered_or_refused(name: str) -> None:
    model = classifier()

    def check_ids(held: Held) -> None:
        with held.within():
            given = held.hold(TOKENS.clone())
            before = memory(given)
            found = answer(OF_MODELS[name], {"f": model, "X": given})
        np.testing.assert_equal(memory(given), before, "the ids were changed")
        twin = [] if held.owed == "refusal" else answer(OF_MODELS[name], {"f": model, "X": plain(given).long()})
        judge(found, twin, held.owed, 1e-2)

    assert not (found := faults((held.name, partial(check_ids, held)) for held in IDS)), "\n".join(found)
