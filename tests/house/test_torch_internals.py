"""What torch does not promise to keep is called in one place, and does there what we need."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from layouts import LAYOUTS, SEPARATE
from torch.testing import assert_close

import howsmooth
from howsmooth import torch_internals
from howsmooth.torch_internals import inside_transform, is_batched, softmax_backward

ROOT = Path(howsmooth.__file__).parent
PRIVATE = re.compile(r"torch\._|ops\.aten|forward_ad\._|import .*\b_functorch|torch\.\w+\._\w")


def test_private_functions_of_torch_are_called_in_one_place():
    found = [path.name for path in ROOT.rglob("*.py") if PRIVATE.search(path.read_text(encoding="utf-8"))]
    assert found == ["torch_internals.py"]


def test_tensors_inside_vmap_are_told_from_others(rng):
    seen = []
    torch.vmap(lambda x: seen.append((is_batched(x), inside_transform())) or x)(torch.ones(2, 3))
    torch.func.jvp(lambda x: seen.append((is_batched(x), inside_transform())) or x, (torch.ones(2),), (torch.ones(2),))
    assert seen == [(True, True), (False, True)]
    assert not is_batched(torch.ones(2))
    assert not inside_transform()


def test_the_fused_derivative_of_a_softmax_is_the_formula_in_fresh_memory_or_in_place(rng):
    P = torch.softmax(torch.randn(3, 5, 7, dtype=torch.float64, generator=rng), dim=-1)
    D = torch.randn(3, 5, 7, dtype=torch.float64, generator=rng)
    formula = P * (D - (P * D).sum(-1, keepdim=True))
    assert_close(softmax_backward(D, P), formula)
    assert softmax_backward(D, P, out=D) is D
    assert_close(D, formula)


SHAPES = ((2, 17, 40), (2, 3, 5), (1, 1, 1), (2, 3, 1), (2, 1, 7), (2, 0, 4), (0, 3, 4))


def softmax_derivative(D, P):
    return P * (D - (P * D).sum(-1, keepdim=True))


def centred(x):
    return x - x.mean(-1, keepdim=True)


# the operator, the formula in plain operations, and whether the first operand may be written over
OPERATORS = {
    "softmax": (lambda S, _P: torch_internals.softmax(S), lambda S, _P: torch.softmax(S, -1), True),
    "softmax_derivative": (torch_internals.softmax_derivative, softmax_derivative, True),
    "softmax_backward": (torch_internals.softmax_backward, softmax_derivative, False),
    "softmax_backward, out": (lambda D, P: torch_internals.softmax_backward(D, P, out=D), softmax_derivative, True),
    "sigmoid_backward": (torch_internals.sigmoid_backward, lambda D, P: P * (1 - P) * D, False),
    "sigmoid_backward, out": (
        lambda D, P: torch_internals.sigmoid_backward(D, P, out=D),
        lambda D, P: P * (1 - P) * D,
        True,
    ),
    "add_product": (
        lambda C, P: torch_internals.add_product(C, P, P.mT @ P),
        lambda C, P: C + P @ (P.mT @ P),
        True,
    ),
    "project_out": (
        torch_internals.project_out,
        lambda E, z: centred(E) - z * (z * E).mean(-1, keepdim=True),
        False,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_their_formulas_on_every_layout(name, dtype, rng):
    operator, formula, written = OPERATORS[name]
    names = [(D, P) for D in (SEPARATE if written else LAYOUTS) for P in LAYOUTS]
    for shape, (of_D, of_P) in itertools.product(SHAPES, names):
        if 0 in shape and "one number" in (of_D, of_P):
            continue
        D = torch.randn(shape, generator=rng).to(dtype)
        P = LAYOUTS[of_P](torch.randn(shape, generator=rng).softmax(-1).to(dtype))
        exact = formula(LAYOUTS[of_D](D).double(), P.double())
        found = operator(LAYOUTS[of_D](D), P)
        assert found.shape == exact.shape
        error = (found.double() - exact).abs()
        assert bool((error <= 16 * torch.finfo(dtype).eps * (1 + exact.abs())).all()), (shape, of_D, of_P)
