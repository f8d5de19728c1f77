"""Every public function, with the inputs that people have: the answer of its plain twin, or a refusal in a sentence.

The twin is called with the same numbers, contiguous and in float64. What is given is the same afterwards, bit by bit.
"""

import copy
import ctypes
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from boundary.functions import (
    CASES,
    EXEMPT,
    LAYER,
    OF_BLOCKS,
    OF_IDS,
    OF_MODELS,
    PUT_IN_EVAL_MODE,
    UNLIKE,
    Between,
    Case,
    X,
    block,
    classifier,
)
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

# Whose kinds of arguments hold tensors.
TENSORS = r"Tensor|Module|Transformer|\bMap\b|Attention|MultiHead|Measure|LinearOperator"
TWINS: dict[Any, list[Any] | HowsmoothError] = {}


@pytest.fixture(autouse=True)
def _every_warning():
    """Let torch warn each time: by default it warns once, and the first to see it is not the one to blame."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


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
    """Return all that a tensor, an array or a list keeps."""
    if isinstance(x, Tensor):
        if x.is_sparse or x.is_meta:
            return x.shape, x.requires_grad
        kept = x.untyped_storage()
        return ctypes.string_at(kept.data_ptr(), kept.nbytes()), x.requires_grad, x.shape, x.stride()
    return (x.tobytes(), x.strides) if isinstance(x, np.ndarray) else copy.deepcopy(x)


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
        assert said[-1] in ".?", f"no sentence: {said}"
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
        assert memory(x) == before[name], f"{name} was changed"
    exact = {} if held.owed == "refusal" else {name: plain(x) for name, x in given.items()}
    lead = exact[argument].shape[: exact[argument].ndim - own[argument].ndim] if held in BATCHES else ()
    parts = [exact | {argument: x} for x in exact[argument].reshape(-1, *own[argument].shape)] if lead else [exact]
    twins = [twin_of(case.name, case.call, each) for each in parts] if exact else [[]]
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


def twin_of(name: str, call: Callable[..., Any], exact: Mapping[str, Any]) -> list[Any] | HowsmoothError:
    """Return what is claimed at plain inputs; once for the same numbers."""
    parts = [y for x in exact.values() for y in (x.state_dict().values() if isinstance(x, nn.Module) else (x,))]
    key = (name, str(exact.get("f")), *(x.numpy().tobytes() for x in parts))
    if key not in TWINS:
        TWINS[key] = answer(call, exact)
    return TWINS[key]


LAYOUT, STATE, STRANGELY, TOGETHER = "in every layout", "in every state", "held strangely", "in batches and arrays"


def pairs(case: Case, group: str) -> Iterator[tuple[Held, str | None]]:
    """Yield the ways to hold tensors, and which one is held so; none for all of them."""
    first = next(iter(case.inputs), None)
    if group == LAYOUT:
        found = [(held, None) for held in (FEW if case.slow else LAYOUTS)]
    elif group == STATE:
        found = [(held, None) for held in STATES if not (case.slow and held.owed != "answer")]
    elif group == STRANGELY:  # what changes nothing, as NaN in a mask, says nothing
        found = [(held, name) for name, x in case.inputs.items() for held in STRANGE if held.hold(x) is not x]
    else:
        found = [(held, first) for held in (*BATCHES, *(ARRAYS if case.arrays else ())) if first is not None]
    yield from (pair for pair in found if pair[0].name not in case.unlike)


def require_all(judged: Iterator[tuple[str, Callable[[], None]]]) -> None:
    """Try every input, and say what went wrong with which."""
    faults = []
    for name, check in judged:
        try:
            check()
        except Exception as error:
            faults.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    assert not faults, "\n".join(faults)


def require_answer(found: Any) -> None:
    """Refuse a table whose plain call is refused: nothing else would be told by it."""
    assert not isinstance(found, HowsmoothError), found


@pytest.mark.parametrize("group", [LAYOUT, STATE, STRANGELY, TOGETHER])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tensors_that_people_have_are_answered_or_refused(case: Case, group: str) -> None:
    require_answer(twin_of(case.name, case.call, {**case.inputs, **case.beside}))
    require_all((f"{name or 'all'} {held.name}", partial(check, case, held, name)) for held, name in pairs(case, group))


TOKENS = torch.tensor([[2, 5, 7, 3], [2, 9, 11, 3]])


def state(module: nn.Module, mode: bool) -> Any:
    """Return all that a module keeps."""
    modes = [part.training for part in module.modules() if mode]
    kept = {name: memory(x) for name, x in (*module.named_parameters(), *module.named_buffers())}
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in module.modules()]
    return kept, hooks, modes, [parameter.grad is None for parameter in module.parameters()]


def same_weights(module: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
    """Return a plain module in float64 with the weights that another has now."""
    fresh, found = build(), copy.deepcopy(module).eval()
    for path, part in fresh.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            parameter.data = getattr(found.get_submodule(path), name).detach().double().contiguous()
    return fresh


def check_module(build: Callable[[], nn.Module], name: str, held: Held, given: Tensor) -> None:
    """Hold a module in one way, and compare."""
    call = OF_BLOCKS[name] if build is block else OF_MODELS[name]
    inner = build()
    module = held.hold(inner)
    twin = [] if held.owed == "refusal" else held.twin(same_weights(inner, build))
    dtype = next(inner.parameters()).dtype
    given = given.to(dtype) if given.is_floating_point() else given
    with held.within():
        kept, numbers = (lambda: state(module, name not in PUT_IN_EVAL_MODE)), memory(given)
        before = kept()
        found = answer(call, {"f": module, "X": given})
        assert kept() == before, "the module was changed"
        assert memory(given) == numbers, "the input was changed"
    if twin:
        twin = twin_of(name, call, {"f": twin, "X": given.double() if given.is_floating_point() else given})
    judge(found, twin, held.owed, max(ROUNDING[dtype], held.rounding, 1e-2))


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_modules_that_people_have_are_answered_or_refused_at_tokens(name: str) -> None:
    some = [held for held in BLOCKS if held.name not in UNLIKE.get(name, ())]
    require_answer(twin_of(name, OF_BLOCKS[name], {"f": block(), "X": X}))
    require_all((held.name, partial(check_module, block, name, held, X)) for held in some)


@pytest.mark.parametrize("name", OF_MODELS)
def test_models_that_people_have_are_answered_or_refused_at_token_ids(name: str) -> None:
    some = [held for held in MODULES if held.name not in UNLIKE.get(name, ())]
    require_answer(twin_of(name, OF_MODELS[name], {"f": classifier(), "X": TOKENS}))
    require_all((held.name, partial(check_module, classifier, name, held, TOKENS)) for held in some)


@pytest.mark.parametrize("name", OF_IDS)
def test_token_ids_that_people_have_are_answered_or_refused(name: str) -> None:
    model = classifier()

    def check_ids(held: Held) -> None:
        with held.within():
            given = held.hold(TOKENS.clone())
            before = memory(given)
            found = answer(OF_MODELS[name], {"f": model, "X": given})
        assert memory(given) == before, "the ids were changed"
        twin = [] if held.owed == "refusal" else twin_of(name, OF_MODELS[name], {"f": model, "X": plain(given).long()})
        judge(found, twin, held.owed, 1e-2)

    require_all((held.name, partial(check_ids, held)) for held in IDS)


@pytest.mark.parametrize("real", [[False, True, True, True], [True, True, True, False]], ids=["left", "right"])
def test_padding_on_either_side_and_in_either_convention_leaves_what_the_sequence_has_alone(real: list[bool]) -> None:
    f, model, seen = hs.Attention(**LAYER), hs.load(classifier()), torch.tensor(real)
    padded = torch.where(seen[:, None], X, 1e3)
    within = hs.maps.Positions(padding=seen)
    torch.testing.assert_close(dataclasses.replace(f, positions=within)(padded)[seen], f(X[seen]))
    for kind in ("mean", "first", "last"):
        pooled = getattr(hs.maps.Pooling, kind)
        torch.testing.assert_close(pooled(real=seen, like=X)(padded), pooled(n=3, like=X)(X[seen]))
    ids, alone = TOKENS[:1], model.layer(0).map("attention")
    masks = seen[None], seen[None].long(), seen[None].double(), [list(map(int, real))]
    for named in (*({"attention_mask": mask} for mask in masks), {"padding": seen[None]}):
        g, Y = model.activations(ids, **named).at(0)
        found, twin = (hs.local_lipschitz(*at, rtol=1e-6, seed=0) for at in ((g, Y), (alone, Y[0][seen])))
        judge(leaves(found[0]), leaves(twin), "answer", 1e-6)
    with pytest.raises(HowsmoothError, match="must be boolean"):
        model.activations(ids, padding=seen[None].long())


def public() -> dict[Any, set[str]]:
    """Return the names of all public functions, classes and methods that take tensors, maps, measures or modules."""
    found: dict[Any, set[str]] = {}
    spaces = {"hs": hs} | {f"hs.{name}": x for name in hs.__all__ if inspect.ismodule(x := getattr(hs, name))}
    for space, names in spaces.items():
        for name in getattr(names, "__all__", vars(names)):
            own = getattr(names, name)
            home = getattr(own, "__module__", "")
            listed = hasattr(names, "__all__") or (home == names.__name__ and not name.startswith("_"))
            if not home.startswith("howsmooth") or not listed or space == "hs.errors":
                continue
            found.setdefault(own, set()).add(f"{space}.{name}")
            for method, x in inspect.getmembers(own, inspect.isroutine) if inspect.isclass(own) else ():
                if (method[0] != "_" or method == "__call__") and "howsmooth" in str(getattr(x, "__module__", "")):
                    found.setdefault(getattr(x, "__func__", x), set()).add(f"{space}.{name}.{method}")
    return {own: names for own, names in found.items() if callable(own) and takes_tensors(own)}


def takes_tensors(own: Any) -> bool:
    try:
        given = inspect.signature(own).parameters.values()
    except ValueError:
        return False
    return any(re.search(TENSORS, str(each.annotation)) for each in given)


def test_no_public_function_is_forgotten() -> None:
    tested = {case.name.partition(",")[0] for case in CASES} | {*OF_BLOCKS, *OF_MODELS}
    tested |= {name.rpartition(".")[0] for name in tested}  # a class whose methods are tested
    missing = [min(names) for names in public().values() if not names & tested]
    missing = [name for name in missing if not any(re.fullmatch(left, name) for left in EXEMPT)]
    assert not missing, f"put these into the table of functions.py, or say there why not: {sorted(missing)}"
