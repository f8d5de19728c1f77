"""Attention with derivatives of every order: torch's values, and the derivatives of torch's math kernel."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import howsmooth as hs
from howsmooth import scaled_dot_product
from howsmooth.errors import AssumptionError, DtypeError, ShapeError


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(scaled_dot_product, "TILE", 40)
    monkeypatch.setattr(scaled_dot_product, "ROWS", 3)


def math_kernel(*args, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(*args, **options)


def tensors(rng, *shapes):
    return [torch.randn(shape, dtype=torch.float64, generator=rng) for shape in shapes]


@st.composite
def problems(draw):
    """Inputs of attention that are differentiated, and its other arguments."""
    n_q, n_k, k, v, shared = (draw(st.integers(1, most)) for most in (5, 5, 3, 3, 2))
    gqa = draw(st.booleans())
    heads, batch = shared * (2 if gqa else 1), draw(st.sampled_from([(), (2,)]))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    one = draw(st.booleans()) and not gqa  # keys and values broadcast
    inputs = tensors(
        rng, (*batch, heads, n_q, k), (*batch, 1 if one else shared, n_k, k), (*batch[1:], 1 if one else shared, n_k, v)
    )
    mask = draw(st.sampled_from(["none", "causal", "boolean", "padding", "bias", "constant bias"]))
    options = {"enable_gqa": gqa, "is_causal": mask == "causal", "scale": draw(st.sampled_from([None, 0.7]))}
    shape = (n_q, n_k) if draw(st.booleans()) else (heads, n_q, n_k)
    if mask in ("boolean", "padding"):
        shape = shape if mask == "boolean" else (*batch, 1, 1, n_k)
        options["attn_mask"] = torch.rand(shape, generator=rng) > 0.3
    if "bias" in mask:
        (bias,) = tensors(rng, shape)
        if mask == "bias":
            inputs.append(bias)
        else:
            options["attn_mask"] = bias
    return [x.requires_grad_() for x in inputs], options


@settings(max_examples=20)
@given(problem=problems())
def test_values_and_two_derivatives_are_those_of_the_math_kernel(problem):
    inputs, options = problem
    assert_close(hs.sdpa(*inputs, **options), math_kernel(*inputs, **options))

    def f(*x):
        return hs.sdpa(*x, **options)

    assert gradcheck(f, inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, inputs, check_fwd_over_rev=True, fast_mode=True)


def test_derivatives_compose_under_transforms(rng):
    q, k, v, dq, dk, dv, g = tensors(rng, *[(2, 3, n, 4) for n in (5, 7, 7, 5, 7, 7, 5)])
    x, dx = (q, k, v), (dq, dk, dv)
    bias = tensors(rng, (3, 5, 7))[0]

    def scalar(f, **options):
        return lambda *x: (f(*x, **options) * g).sum()

    every = (0, 1, 2)
    derivatives = {
        "forward": lambda f: jvp(f, x, dx),
        "reverse over forward": lambda f: grad(lambda *x: (jvp(f, x, dx)[1] * g).sum(), argnums=every)(*x),
        "forward over forward": lambda f: jvp(lambda *x: jvp(f, x, dx)[1], x, dx),
        "third": lambda f: grad(
            lambda *x: (grad(lambda *y: (grad(scalar(f), argnums=1)(*y) ** 2).sum())(*x) ** 2).sum(), argnums=every
        )(*x),
        "forward, forward, reverse": lambda f: jvp(
            lambda *x: jvp(grad(scalar(f), argnums=every), x, dx)[1], x, dx
        ),
        "vmap": lambda f: vmap(f, in_dims=(1, None, 1))(q, k[:, 0], v),
        "Jacobians": lambda f: [D(f, argnums=every)(q[0, 0], k[0, 0], v[0, 0]) for D in (jacrev, jacfwd)],
        "Hessian": lambda f: hessian(lambda *x: (f(*x) ** 2).sum(), argnums=every)(q[0, 0], k[0, 0], v[0, 0]),
        "Hessian in a bias": lambda f: hessian(lambda b: scalar(f, attn_mask=b)(*x))(bias),
        "gradients in many masks": lambda f: vmap(lambda b: grad(scalar(f, attn_mask=b))(*x))(
            torch.stack((bias > 0, bias < 1))
        ),
    }  # fmt: skip
    for name, derivative in derivatives.items():
        ours, dense = (torch.utils._pytree.tree_leaves(derivative(f)) for f in (hs.sdpa, math_kernel))
        assert len(ours) == len(dense), name
        for a, b in zip(ours, dense, strict=True):
            assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


def test_rows_that_see_nothing_and_rows_that_are_no_numbers_are_torch_s(rng):
    q, k, v, g = tensors(rng, *[(1, n, 4) for n in (5, 7, 7, 5)])
    allowed = torch.rand(5, 7, generator=rng) > 0.5
    allowed[1] = False
    added = torch.zeros(5, 7, dtype=torch.float64).masked_fill(~allowed, -math.inf)
    q[0, 3], found = math.nan, []
    for mask in (allowed, added):
        for f in (hs.sdpa, math_kernel):
            pulled, _k, _v = grad(lambda *x, f=f, m=mask: (f(*x, m) * g)[:, :3].sum(), argnums=(0, 1, 2))(q, k, v)
            pushed = jvp(lambda *x, f=f, m=mask: f(*x, m), (q, k, v), (q, k, v))
            found.append((f(q, k, v, mask), pulled[:, :3], *pushed))
        assert_close(*found[-2:], equal_nan=True)
    q[0, 3] = 0
    # here the math kernel has NaN: third derivatives of zero rows are zero
    third = grad(
        lambda *x: (jvp(grad(lambda *y: (hs.sdpa(*y, allowed) * g).sum()), x, x)[1] ** 2).sum(), argnums=(0, 1, 2)
    )
    assert all(bool(x.isfinite().all()) for x in third(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dtype, rng):
    x, dx = (tuple(y.to(dtype) for y in tensors(rng, *[(2, 50, 8)] * 3)) for _ in range(2))
    slope = grad(lambda *y: hs.sdpa(*y).square().sum(), argnums=1)
    for f in (hs.sdpa, slope):
        found = jvp(f, x, dx)[1]
        exact = jvp(f, tuple(y.double() for y in x), tuple(y.double() for y in dx))[1]
        assert found.dtype == dtype
        # entries are sums of many terms, each rounded once
        assert_close(found.double(), exact, rtol=0.0, atol=4 * torch.finfo(dtype).eps * float(exact.abs().max()))


def test_results_are_the_same_bit_for_bit_and_under_checkpoints(rng):
    x = [y.requires_grad_() for y in tensors(rng, *[(2, 6, 4)] * 3)]
    first, second = (torch.autograd.grad(hs.sdpa(*x).square().sum(), x, create_graph=True) for _ in range(2))
    again = torch.autograd.grad(checkpoint(hs.sdpa, *x, use_reentrant=False).square().sum(), x)
    twice = [torch.autograd.grad(y[0].sum(), x, retain_graph=True) for y in (first, second)]
    for a, b in ((first, second), (first, again), twice):
        assert all(map(torch.equal, a, b))


@pytest.mark.slow
@pytest.mark.untyped  # the compiler would trace the checks, too
def test_compiled_code_is_one_graph_with_torch_s_kernel_and_under_transforms(rng):
    x = [y.requires_grad_() for y in tensors(rng, *[(2, 6, 4)] * 3)]
    compiled = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    plain = compiled(lambda *x: hs.sdpa(*x).sin())
    assert_close(torch.autograd.grad(plain(*x).sum(), x), torch.autograd.grad(hs.sdpa(*x).sin().sum(), x))
    x = tuple(y.detach() for y in x)
    mask = torch.rand(6, 6, generator=rng) > 0.4
    mask[2] = False

    def derivatives(f):
        def squared(*x):
            return jvp(lambda *x: f(*x, is_causal=True), x, x)[1].square().sum()

        return lambda *x: (jvp(lambda *x: f(*x, mask), x, x)[1], grad(squared)(*x), vmap(f)(*x))

    assert_close(compiled(derivatives(hs.sdpa))(*x), derivatives(math_kernel)(*x))
    # a graph that was made outside of a transform is not taken inside of it
    assert_close(jvp(torch.compile(hs.sdpa, backend="aot_eager"), x, x), jvp(math_kernel, x, x))


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_are_small_and_cover_every_score_once(causal, monkeypatch):
    for batch, n_q, n_k, size in itertools.product([(1,), (3, 2), (5,)], [1, 7], [1, 9], [4, 30, 1000]):
        monkeypatch.setattr(scaled_dot_product, "TILE", size)
        seen = torch.zeros(*batch, n_q, n_k)
        for tile in scaled_dot_product.tiles(batch, n_q, n_k, causal=causal):
            part = seen[(*tile.batch, tile.rows, tile.columns)]
            assert part.numel() <= max(size, n_k)
            part += 1
        expected = torch.ones_like(seen)
        assert torch.equal(seen.tril() if causal else seen, expected.tril() if causal else expected)


def test_nothing_to_differentiate_is_torch_s_own_call_and_dropout_too(rng):
    q, k, v = tensors(rng, *[(2, 6, 4)] * 3)
    assert torch.equal(hs.sdpa(q, k, v), scaled_dot_product_attention(q, k, v))
    torch.manual_seed(1)
    dropped = hs.sdpa(q.requires_grad_(), k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(dropped, scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    assert hs.sdpa(q[:, :0], k, v).shape == (2, 0, 4)


def test_what_does_not_fit_is_refused_before_work(rng):
    q, k, v = (x.requires_grad_() for x in tensors(rng, *[(3, 6, 4)] * 3))
    with pytest.raises(ShapeError, match="same features"):
        hs.sdpa(q[..., :2], k, v)
    with pytest.raises(DtypeError, match="one dtype"):
        hs.sdpa(q, k, v.float())
    with pytest.raises(AssumptionError, match="not both"):
        hs.sdpa(q, k, v, torch.ones(6, 6, dtype=torch.bool), is_causal=True)
    with pytest.raises(ShapeError, match="multiple"):
        hs.sdpa(q, k[:2], v[:2], enable_gqa=True)
