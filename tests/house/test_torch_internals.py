"""What torch does not promise to keep is called in one place, and does there what we need."""

import re
from pathlib import Path

import torch
from torch.testing import assert_close

import howsmooth
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
