"""Attention of tensors as people hold them: every layout, mask, dtype and transform, against the formula in float64."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS, SEPARATE
from torch import nn
from torch.autograd import forward_ad
from torch.func import jacrev, jvp, vjp, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import howsmooth as hs
from howsmooth import scaled_dot_product
from howsmooth.errors import DtypeError, ShapeError
from howsmooth.models.attention_interface import attention_forward
from howsmooth.training.head_probe import head_statistics

FULL, HALF = (torch.float32, torch.float64), (torch.float16, torch.bfloat16)


# torch's own layouts under its own vmap
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(scaled_dot_product, "TILE", 100)
    monkeypatch.setattr(scaled_dot_product, "ROWS", 3)


def formula(q, k, v, mask=None, *, is_causal=False, scale=None, enable_gqa=False):
    """Attention as it is written down, with all weights; what sees nothing is zero."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    S = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * q @ k.mT
    if is_causal:
        mask = torch.ones(S.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        S = torch.where(mask, S, -math.inf) if mask.dtype == torch.bool else S + mask
    empty = torch.isneginf(S).all(-1, keepdim=True)
    return torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, S), -1)) @ v


TRANSFORMS = ("value", "gradient", "jvp", "forward mode", "vjp of jvp", "double backward", "vmap", "vmap of gradients")


def drawn(seed, dtypes):
    """Queries, keys, values and perhaps a mask, each in some layout, and the other arguments of attention."""
    rng, r = torch.Generator().manual_seed(seed), random.Random(seed)
    dtype, layouts = r.choice(dtypes), sorted(LAYOUTS)
    n_q, n_k, width = r.choice((1, 2, 5, 19, 37)), r.choice((1, 2, 5, 19, 37)), r.choice((1, 2, 3, 8, 17))
    batch, gqa, one = r.choice(((), (2,), (1, 2), (2, 2), (2, 2), (2, 1, 2))), r.random() < 0.3, r.random() < 0.3
    gqa = gqa and bool(batch)
    shared = (*batch[:-1], r.choice((1, 2))) if gqa else batch

    def tensor(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)

    of_keys = () if one and not gqa else shared  # what is missing is broadcast
    x = [tensor(*batch, n_q, width), tensor(*of_keys, n_k, width), tensor(*shared, n_k, r.choice((width, width, 4)))]
    kind, varied = (
        r.choice(("none", "causal", "boolean", "added", "float32")),
        [i for i in range(3) if r.random() < 0.6],
    )
    if kind not in ("none", "causal"):
        shape = [r.choice((1, n, n)) for n in (*batch, n_q, n_k)]
        mask = tensor(*shape[r.randint(0, len(batch)) :])
        hidden = mask > r.choice((0.7, math.inf))
        if kind == "boolean":
            mask = ~hidden
        else:
            mask = (mask.float() if kind == "float32" else mask).masked_fill(hidden, -math.inf)
            varied += [3] * (r.random() < 0.4)
        x.append(mask)
    return SimpleNamespace(
        seed=seed, rng=rng, x=x, varied=varied or [r.randint(0, 2)], layouts=[r.choice(layouts) for _ in x],
        options={"enable_gqa": gqa, "is_causal": kind == "causal", "scale": r.choice((None, None, 0.7, 0.0, -0.6))},
        transform=r.choice(TRANSFORMS), cotangent=r.choice(layouts), in_dims=[r.randint(0, y.ndim) for y in x],
    )  # fmt: skip


def derivative(f, transform, x, in_dims, dx, g):
    """What a transform makes of a function: all that it returns, one after the other."""
    if transform == "value":
        return [f(*x)]
    if transform == "jvp":
        return list(jvp(f, x, dx))
    if transform == "forward mode":
        with forward_ad.dual_level():
            return list(forward_ad.unpack_dual(f(*map(forward_ad.make_dual, x, dx))))
    if transform == "vjp of jvp":
        pushed, pull = vjp(lambda *y: jvp(f, y, dx)[1], *x)
        return [pushed, *pull(g)]
    if transform == "vmap":
        return [vmap(f, in_dims)(*(y.unsqueeze(i) for y, i in zip(x, in_dims, strict=True)))]
    if transform == "vmap of gradients":
        value, pull = vjp(f, *x)
        return [value, *vmap(pull, in_dims=-1)(torch.stack((g, 2 * g), -1))]
    x, g = [y.detach().requires_grad_() for y in x], g.detach().requires_grad_()
    value = f(*x)
    pulled = torch.autograd.grad(value, x, g, create_graph=transform == "double backward")
    if transform == "double backward":
        pulled = *pulled, *torch.autograd.grad(pulled, (*x, g), dx, materialize_grads=True)
    return [value, *pulled]


def compare(problem, attention=hs.sdpa, *, rounded=None):
    """Ours in the layouts that were drawn, and the formula in float64 on contiguous copies of the same numbers."""
    x, varied, dtype = problem.x, problem.varied, rounded or problem.x[0].dtype
    exact = [y if y.dtype == torch.bool else y.to(dtype).double() for y in x]
    dx = [torch.randn(x[i].shape, generator=problem.rng).to(dtype).to(x[i].dtype) for i in varied]
    o = formula(*exact, **problem.options)
    g = LAYOUTS[problem.cotangent](torch.randn(o.shape, generator=problem.rng).to(dtype))

    def of_varied(f, given, change):
        def function(*y):
            parts = [y[varied.index(i)] if i in varied else part for i, part in enumerate(given)]
            parts = [LAYOUTS[name](part) for name, part in zip(problem.layouts, parts, strict=True)]
            return f(*map(change, parts), **problem.options)

        in_dims = tuple(problem.in_dims[i] for i in varied)
        return function, problem.transform, tuple(given[i] for i in varied), in_dims

    found = derivative(*of_varied(attention, x, lambda y: y), tuple(dx), g)
    wanted = derivative(
        *of_varied(formula, exact, lambda y: y.contiguous()), tuple(y.double() for y in dx), g.double().contiguous()
    )
    assert len(found) == len(wanted)
    # what cancels leaves the rounding of its terms: more of it in each order, and where numbers are repeated it adds up
    terms = (2, 20, 200)[(len(found) > 1) + (problem.transform in ("vjp of jvp", "double backward"))]
    separate = {*problem.layouts, problem.cotangent} <= SEPARATE.keys()
    repeats = 1 if separate else 40 if dtype in HALF else max(y.numel() for y in x)
    for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.shape == b.shape
        eps = max(torch.finfo(dtype).eps, torch.finfo(a.dtype).eps)  # a mask may be of less precision
        allowed = 25 * eps * (float(b.detach().abs().amax()) + terms * (repeats if place else 1))
        assert error(a, b) <= allowed, problem
    return found[0], wanted[0]


def error(found, exact):
    return float((found.detach().double() - exact.detach()).abs().amax())


# Seeds and no more: drawn one by one, a hundred problems are too much alike.
@given(seed=st.integers(0, 2**32))
def test_every_layout_has_the_values_and_derivatives_of_the_formula(seed):
    compare(drawn(seed, FULL))


@given(seed=st.integers(0, 2**32))
def test_half_precision_and_autocast_are_at_least_as_accurate_as_torch(seed):
    """Problems in float32 run under autocast."""
    problem = drawn(seed, (*HALF, torch.float32))
    half = problem.x[0].dtype in HALF
    with torch.autocast("cpu", torch.bfloat16, enabled=not half):
        value, exact = compare(problem, rounded=None if half else torch.bfloat16)
        assert value.dtype in HALF
        if problem.transform == "value":
            x = [LAYOUTS[name](y) for name, y in zip(problem.layouts, problem.x, strict=True)]
            if not set(problem.layouts) <= SEPARATE.keys():  # torch's products may refuse rows that overlap
                x = [y.contiguous() for y in x]
            theirs = error(functional.scaled_dot_product_attention(*x, **problem.options), exact)
            assert not error(value, exact) > max(theirs, error(exact.to(value.dtype), exact))


@pytest.mark.parametrize(("batch", "shared"), [((2, 3, 2), (2, 3, 2)), ((2, 4), (2, 2))])
def test_masks_of_every_shape_broadcast_over_batches_and_groups_of_heads(batch, shared, rng):
    shapes = (*batch, 5, 4), (*shared, 6, 4), (*shared, 6, 4)
    q, k, v = (torch.randn(shape, generator=rng).requires_grad_() for shape in shapes)
    for kept in itertools.product((False, True), repeat=len(batch) + 2):
        mask = torch.randn([n if keep else 1 for n, keep in zip((*batch, 5, 6), kept, strict=True)], generator=rng)
        for m in (mask, mask > -1):
            found, wanted = (f(q, k, v, m, enable_gqa=batch != shared) for f in (hs.sdpa, formula))
            assert_close(found, wanted)
            assert_close(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (found, wanted)))


@pytest.mark.parametrize("recorded", [False, True])
def test_what_torch_s_fused_kernel_gets_wrong_is_right(recorded, rng):
    q, k, v = (torch.randn(1, 2, 40, 4, generator=rng, dtype=torch.float64, requires_grad=recorded) for _ in range(3))
    mask = torch.randn(40, 40, generator=rng)
    cases = [((q, k, v), {"is_causal": True, "scale": -0.7}), ((q, k, v), {"is_causal": True, "scale": 0.0})]
    # a mask of the other width, of which it leaves out columns; windows, whose strides its output takes over
    for x, options in (*cases, ((q, k, v, mask), {}), ((LAYOUTS["windows"](q), k, v), {})):
        assert_close(hs.sdpa(*x, **options), formula(*x, **options))


class FusedOperands(TorchDispatchMode):
    """The matrices that torch's fused kernels are given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "flash_attention" in str(function):
            self.seen += [x for x in args if isinstance(x, torch.Tensor) and x.ndim == 4]
        return function(*args, **(kwargs or {}))


def test_the_fused_kernels_run_only_where_torch_takes_them_and_read_separate_rows(rng):
    x = torch.randn(3, 2, 4, 6, 8, generator=rng)
    bias = torch.zeros(6, 6, requires_grad=True)
    q, k, v = x.clone().requires_grad_()
    strided = [LAYOUTS[name](q) for name in ("transposed", "one token", "windows")]
    cases = {
        "as torch": ((q, k, v), {}),
        "copies": (strided, {}),
        "three axes": ((q[0], k[0], v[0]), {}),
        "a bias with a derivative": ((q, k, v, bias), {}),
        "half": ((q.half(), k.half(), v.half()), {}),
        "shared half": ((q.half(), k[:, :2].half(), v[:, :2].half()), {"enable_gqa": True}),
    }
    refused = {
        "other widths": ((q, k, v[..., :5]), {}),
        "strided half": ((q.half(), k.half(), strided[0].half()), {}),
        "half, three axes": ((q[0].half(), k[0].half(), v[0].half()), {}),
        "half, a bias with a derivative": ((q.half(), k.half(), v.half(), bias), {}),
        "causal of no scale": ((q, k, v), {"is_causal": True, "scale": 0.0}),
        "causal of a negative scale, nothing recorded": (x, {"is_causal": True, "scale": -1.0}),
    }
    for name, (x, options) in (cases | refused).items():
        with FusedOperands() as calls:
            o = hs.sdpa(*x, **options)
            if o.requires_grad:
                o.sum().backward()
        assert bool(calls.seen) == (name in cases), name
        assert all(y.stride(-1) == 1 and y.stride(-2) >= y.shape[-1] for y in calls.seen), name
    with FusedOperands() as calls, sdpa_kernel(SDPBackend.MATH):
        hs.sdpa(q, k, v).sum().backward()
    assert not calls.seen


class Interleaved(nn.Module):
    """Self-attention that lays queries, keys and values out as "(d h qkv)", so that no row is in one piece."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 3 * 2 * 4, dtype=torch.float64)

    def forward(self, X, attention=None):
        q, k, v = self.mix(X).unflatten(-1, (4, 2, 3)).permute(4, 0, 3, 1, 2)
        attention = functional.scaled_dot_product_attention if attention is None else attention
        return attention(q, k, v).transpose(1, 2).flatten(-2)


def test_modules_with_strided_attention_are_measured_penalised_probed_and_trained(rng):
    module, X = Interleaved(), torch.randn(2, 5, 6, generator=rng, dtype=torch.float64)
    norms = [torch.linalg.matrix_norm(jacrev(lambda x: module(x[None], formula)[0])(x).reshape(40, 30), 2) for x in X]
    wanted = torch.stack(norms)
    assert_close(hs.penalty(module, X, seed=0), wanted, rtol=1e-3, atol=0.0)
    for found, norm in zip(hs.local_lipschitz(module, X), norms, strict=True):
        assert found.lower <= float(norm.detach()) * (1 + 1e-9) <= found.upper * (1 + 2e-9)
    pulled = torch.autograd.grad(module(X, formula).square().sum(), module.mix.weight)
    with hs.use_sdpa(module):
        assert_close(torch.autograd.grad(module(X).square().sum(), module.mix.weight), pulled)

    def interface(q, k, v):
        return attention_forward(module, q, k, v, None, is_causal=False)[0].transpose(1, 2)

    assert_close(torch.autograd.grad(module(X, interface).square().sum(), module.mix.weight), pulled)
    seen = []
    module(X, lambda *x: seen.extend(x) or x[2])
    strided, dense = head_statistics(*seen), head_statistics(*(x.contiguous() for x in seen))
    for name, numbers in strided.items():
        assert_close(numbers, dense[name], msg=lambda text, name=name: f"{name}: {text}")
    with hs.probe(module, every=1) as probe:
        module(X)
    assert probe.looks[0].heads[1].largest_logit == pytest.approx(dense["largest_logit"][1].item())


def test_masks_that_do_not_fit_are_refused_where_derivatives_are_recorded(rng):
    q, k, v = (torch.randn(2, 3, 5, 4, generator=rng).requires_grad_() for _ in range(3))
    with pytest.raises(DtypeError, match=r"boolean, float32 or of the dtype of query, torch\.float32, got"):
        hs.sdpa(q, k, v, torch.zeros(5, 5, dtype=torch.float64))
    for shape in ((5, 4), (4, 1, 5, 5), (1, 2, 3, 5, 5)):
        with pytest.raises(ShapeError, match=r"broadcast to the scores, \(2, 3, 5, 5\), got"):
            hs.sdpa(q, k, v, torch.zeros(shape))
    with pytest.raises(ShapeError, match="batch axes"):
        hs.sdpa(q, k[:, :2], v[:, :2])


def test_heads_of_keys_and_of_values_may_be_shared_differently(rng):
    q, k, v = (torch.randn(heads, 5, 4, generator=rng, dtype=torch.float64).requires_grad_() for heads in (6, 2, 3))
    found = hs.sdpa(q, k, v, enable_gqa=True)
    wanted = formula(q, k, v, enable_gqa=True)
    assert_close(found, wanted)
    assert_close(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (found, wanted)))


@pytest.mark.slow
@pytest.mark.untyped  # the compiler would trace the checks, too
def test_compiled_code_is_right_where_torch_s_kernel_is_not_and_under_autocast(rng):
    x = [torch.randn(1, 2, 40, 4, generator=rng, dtype=torch.float64) for _ in range(3)]
    mask = torch.randn(40, 40, generator=rng)
    # not the function itself: checkers of types wrap all functions by one, which was perhaps compiled before
    compiled = torch.compile(lambda *x, **given: hs.sdpa(*x, **given), backend="aot_eager", fullgraph=True)
    assert_close(compiled(*x, is_causal=True, scale=-0.7), formula(*x, is_causal=True, scale=-0.7))
    assert_close(compiled(*x, mask), formula(*x, mask))
    pushed = torch.compile(lambda *x: jvp(hs.sdpa, x, x), backend="aot_eager", fullgraph=True)
    y = tuple(z.float() for z in x)
    with torch.autocast("cpu", torch.bfloat16):
        value, tangent = pushed(*y)
        assert value.dtype == tangent.dtype == torch.bfloat16
        assert_close((value, tangent), jvp(hs.sdpa, y, y), atol=0.02, rtol=0.0)
