"""Attention against loops written from the definition: values, Jacobian products, gradients, lengths across tiles."""

import functools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import howsmooth as hs

MEMORIES = [2**30, 0]
BUDGETS = [2**30, 2 * 300 * 300 * 8, 300 * 300 * 8, 10_000, 1, 0]


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(20240612)


def gaussian(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


# --- oracles: the definition, one score at a time ---------------------------------------------------------------


def normalise(kind, x, gain, bias, eps):
    if kind == "layer":
        x = x - x.mean()
    x = x / torch.sqrt((x * x).mean() + eps) * gain
    return x if bias is None else x + bias


def rotate(x, position, *, base, dim, interleaved, frequencies):
    dim = x.shape[-1] if dim is None else dim
    out = list(x.unbind(-1))
    for t in range(dim // 2):
        frequency = base ** (-2 * t / dim) if frequencies is None else float(frequencies[t])
        angle = float(position) * frequency
        a, b = (2 * t, 2 * t + 1) if interleaved else (t, t + dim // 2)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return torch.stack(out)


def at_batch(tensor, index, keep):
    """Take entry `index` of the batch axes (those before the last `keep`), which broadcast from the right."""
    axes = tensor.ndim - keep
    chosen = index[len(index) - axes :]
    return tensor[tuple(0 if size == 1 else i for i, size in zip(chosen, tensor.shape[:axes], strict=True))]


def naive_sequence(X, p, index=()):
    n, _d = X.shape
    heads, groups = p["query"].shape[0], p["key"].shape[0]
    k = p["query"].shape[1]
    scale = p.get("scale") or 1 / math.sqrt(k)
    pos = p.get("positions", {})
    outputs = []
    for h in range(heads):
        g = h // (heads // groups)
        q = [p["query"][h] @ X[i] for i in range(n)]
        key = [p["key"][g] @ X[i] for i in range(n)]
        v = [p["value"][g] @ X[i] for i in range(n)]
        if p.get("query_bias") is not None:
            q = [a + p["query_bias"][h] for a in q]
        if p.get("key_bias") is not None:
            key = [a + p["key_bias"][g] for a in key]
        if p.get("value_bias") is not None:
            v = [a + p["value_bias"][g] for a in v]
        if p.get("query_norm"):
            q = [normalise(*p["query_norm"][:1], a, *p["query_norm"][1:]) for a in q]
        if p.get("key_norm"):
            key = [normalise(*p["key_norm"][:1], a, *p["key_norm"][1:]) for a in key]
        if pos.get("rotary"):
            r = dict(pos["rotary"])
            places = r.pop("positions", None)
            places = torch.arange(n) if places is None else at_batch(places, index, 1)
            q = [rotate(a, places[i], **r) for i, a in enumerate(q)]
            key = [rotate(a, places[i], **r) for i, a in enumerate(key)]
        rows = []
        for i in range(n):
            scores, values = [], []
            for j in range(n):
                s = scale * (q[i] @ key[j])
                if p.get("softcap"):
                    s = p["softcap"] * torch.tanh(s / p["softcap"])
                if pos.get("causal") and j > i:
                    continue
                if pos.get("window") and abs(i - j) >= pos["window"]:
                    continue
                if pos.get("padding") is not None and not at_batch(pos["padding"], index, 1)[j]:
                    continue
                if pos.get("mask") is not None:
                    mask = pos["mask"]
                    entry = mask[i, j] if mask.ndim == 2 else at_batch(mask, index, 3)[min(h, mask.shape[-3] - 1), i, j]
                    if mask.dtype == torch.bool:
                        if not entry:
                            continue
                    elif entry == -math.inf:
                        continue
                    else:
                        s = s + entry
                if pos.get("relative_bias") is not None:
                    table = pos["relative_bias"]
                    length = (table.shape[-1] + 1) // 2
                    s = s + table[min(h, table.shape[0] - 1), length - 1 + j - i]
                if p.get("weights") is not None:
                    s = s + torch.log(at_batch(p["weights"], index, 1)[j])
                scores.append(s)
                values.append(v[j])
            rows.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
        mean = torch.stack(rows)
        outputs.append(mean if p.get("output") is None else mean @ p["output"][h].mT)
    if p.get("output") is None:
        return torch.cat(outputs, -1)
    total = sum(outputs)
    return total if p.get("output_bias") is None else total + p["output_bias"]


def naive(X, p):
    batch = X.shape[:-2]
    if not batch:
        return naive_sequence(X, p)
    rows = [naive_sequence(X[index], p, index) for index in ndindex(batch)]
    return torch.stack(rows).reshape(*batch, *rows[0].shape)


def ndindex(batch):
    return [()] if not batch else [(i, *rest) for i in range(batch[0]) for rest in ndindex(batch[1:])]


NORMS = {"layer": hs.LayerNorm, "rms": hs.RMSNorm}


def build(p):
    """The library's Attention for the oracle's parameters."""
    p = dict(p)
    pos = dict(p.pop("positions", {}))
    if pos.get("rotary"):
        pos["rotary"] = hs.Rotary(**pos["rotary"])
    for name in ("query_norm", "key_norm"):
        if p.get(name):
            kind, gain, bias, eps = p[name]
            p[name] = NORMS[kind](gain=gain, bias=bias, eps=eps)
    return hs.Attention(**p, positions=hs.Positions(**pos))


def dense(function, X):
    """The Jacobian of one sequence or of a batch as (prod of outputs, prod of inputs)."""
    J = torch.autograd.functional.jacobian(function, X, vectorize=True)
    return J.reshape(-1, X.numel())


def pushed(function, points, tangents):
    """The value and the forward product by differentiating twice backwards; the result can be differentiated again."""
    (X,), (E,) = points, tangents
    X = X if X.requires_grad else X.detach().requires_grad_()
    Y = function(X)
    G = torch.zeros_like(Y, requires_grad=True)
    (pull,) = torch.autograd.grad(Y, X, G, create_graph=True)
    (tangent,) = torch.autograd.grad(pull, G, E, create_graph=True)
    return Y, tangent


def pulled(function, X):
    X = X.detach().requires_grad_()
    Y = function(X)
    return lambda G: torch.autograd.grad(Y, X, G)[0]


def causal_lengths_oracle(X, Q, K, V, W, *, allowed, bias=None, scale=None):
    """Plain matrix attention for long sequences (heads, k, d), used where loops would be slow."""
    q, k, v = (torch.einsum("hkd,nd->hnk", M, X) for M in (Q, K, V))
    S = q @ k.mT * (scale or 1 / math.sqrt(Q.shape[1]))
    if bias is not None:
        S = S + bias
    P = torch.softmax(S.masked_fill(~allowed, -math.inf), -1)
    return torch.einsum("hov,hnv->no", W, P @ v)


# --- a random problem with every feature ------------------------------------------------------------------------

FEATURES = [
    "causal",
    "window",
    "padding",
    "padding_per_batch",
    "bool_mask",
    "float_mask",
    "mask_per_head",
    "mask_per_batch",
    "relative",
    "relative_long",
    "rotary",
    "rotary_interleaved",
    "rotary_positions",
    "rotary_frequencies",
    "biases",
    "no_output",
    "softcap",
    "query_norm",
    "key_norm",
    "weights",
    "weights_per_batch",
    "scale",
]


@st.composite
def problems(draw):
    groups = draw(st.sampled_from([1, 2, 3]))
    heads = groups * draw(st.sampled_from([1, 2]))
    n, d = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    k, v, out = draw(st.sampled_from([1, 2, 4, 5])), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    batch = draw(st.sampled_from([(), (2,), (1,), (2, 1), (1, 3)]))
    features = draw(st.sets(st.sampled_from(FEATURES), max_size=9))
    number = draw(st.integers(0, 2**31))
    return draw_parameters(torch.Generator().manual_seed(number), heads, groups, n, d, k, v, out, batch, features)


def draw_parameters(rng, heads, groups, n, d, k, v, out, batch, features):
    g = lambda *shape: gaussian(rng, *shape)  # noqa: E731
    coin = lambda *shape: torch.rand(*shape, generator=rng) < 0.6  # noqa: E731
    p = {"query": g(heads, k, d), "key": g(groups, k, d), "value": g(groups, v, d), "output": g(heads, out, v)}
    pos = {}
    if "no_output" in features:
        p["output"] = None
    if "biases" in features:
        p |= {"query_bias": g(heads, k), "key_bias": g(groups, k), "value_bias": g(groups, v)}
        if p["output"] is not None:
            p["output_bias"] = g(out)
    if "softcap" in features:
        p["softcap"] = 0.8
    if "scale" in features:
        p["scale"] = 0.37
    if "query_norm" in features:
        p["query_norm"] = ("rms", g(k), None, 1e-3)
    if "key_norm" in features:
        p["key_norm"] = ("layer", g(k), g(k), 1e-2)
    if "weights" in features:
        p["weights"] = torch.rand(n, generator=rng, dtype=torch.float64) + 0.1
    if "weights_per_batch" in features:
        p["weights"] = torch.rand(*batch, n, generator=rng, dtype=torch.float64) + 0.1
    if "causal" in features:
        pos["causal"] = True
    if "window" in features:
        pos["window"] = 2
    eye = torch.eye(n, dtype=torch.bool)
    if "bool_mask" in features:
        pos["mask"] = coin(n, n) | eye
    if "float_mask" in features:
        pos["mask"] = g(n, n).masked_fill(~(coin(n, n) | eye), -math.inf)
    if "mask_per_head" in features:
        pos["mask"] = coin(heads, n, n) | eye
    if "mask_per_batch" in features:
        pos["mask"] = coin(*batch, 1, n, n) | eye
    alone = pos.keys() & {"causal", "window", "mask"}  # a padded token would then see nothing
    if "padding" in features and not alone:
        pos["padding"] = coin(n)
        pos["padding"][0] = True
    if "padding_per_batch" in features and not alone:
        pos["padding"] = coin(*batch, n)
        pos["padding"][..., -1] = True
    if "relative" in features:
        pos["relative_bias"] = g(heads, 2 * n - 1)
    if "relative_long" in features:
        pos["relative_bias"] = g(1, 2 * (n + 3) - 1)
    if features & {"rotary", "rotary_interleaved", "rotary_positions", "rotary_frequencies"} and k > 1:
        dim = 2 if k == 5 else (None if "rotary" in features else k)
        rotary = {"base": 50.0, "dim": dim, "interleaved": "rotary_interleaved" in features, "frequencies": None}
        if "rotary_positions" in features:
            rotary["positions"] = torch.randint(0, 30, (*batch, n), generator=rng)
        if "rotary_frequencies" in features:
            rotary["frequencies"] = torch.rand((dim or k) // 2, generator=rng, dtype=torch.float64)
        pos["rotary"] = rotary
    p["positions"] = pos
    return p, gaussian(rng, *batch, n, d)


SEARCH = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@seed(1)
@SEARCH
@given(problems())
def test_values_equal_the_definition_for_any_mix_of_features(problem):
    p, X = problem
    assert_close(build(p)(X), naive(X, p))


@seed(2)
@SEARCH
@given(problems(), st.sampled_from(MEMORIES))
def test_products_equal_the_dense_jacobian_for_any_mix_of_features(problem, memory):
    p, X = problem
    operator = build(p).jacobian(X, memory=memory)
    J = dense(lambda Z: naive(Z, p), X)
    Y = naive(X, p)
    E, G = (
        torch.cos(torch.arange(X.numel()).double()).view_as(X),
        torch.sin(torch.arange(Y.numel()).double()).view_as(Y),
    )
    assert_close(operator.jvp(E), (J @ E.flatten()).view_as(Y))
    assert_close(operator.vjp(G), (J.mT @ G.flatten()).view_as(X))
    assert tuple(operator.batch) == tuple(X.shape[:-2])
    assert tuple(operator.domain) == tuple(X.shape[-2:])
    assert tuple(operator.codomain) == tuple(Y.shape[-2:])
    assert operator.dtype == X.dtype
    assert operator.device == X.device


@seed(3)
@settings(SEARCH, max_examples=25)
@given(problems())
def test_the_bracket_holds_the_largest_singular_value_for_any_mix_of_features(problem):
    p, X = problem
    estimate = hs.local_lipschitz(build(p), X, generator=torch.Generator().manual_seed(0))
    singles = X.reshape(-1, *X.shape[-2:])
    J = dense(lambda Z: naive(Z, p), X).reshape(len(singles), -1, len(singles), singles[0].numel())
    truth = torch.stack([torch.linalg.matrix_norm(J[b, :, b], ord=2) for b in range(len(singles))]).view(X.shape[:-2])
    slack = 1e-10 * truth + 1e-12
    assert estimate.lower.shape == X.shape[:-2]
    assert (estimate.lower <= truth + slack).all()
    assert (estimate.upper >= truth - slack).all()
    assert (estimate.upper <= estimate.lower * (1 + 1e-3) + slack).all()


# --- second opinions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_values_and_products_equal_fused_attention_of_pytorch(rng, causal):
    b, h, g, n, d, k = 3, 4, 2, 9, 6, 5
    Q, K, V, X = gaussian(rng, h, k, d), gaussian(rng, g, k, d), gaussian(rng, g, k, d), gaussian(rng, b, n, d)

    def fused(Z):
        q, key, v = (torch.einsum("hkd,bnd->bhnk", M, Z) for M in (Q, K, V))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, key, v, is_causal=causal, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)

    f = hs.Attention(query=Q, key=K, value=V, positions=hs.Positions(causal=causal))
    assert_close(f(X), fused(X))
    Z = X.clone().requires_grad_()
    G = gaussian(rng, b, n, h * k)
    (expected,) = torch.autograd.grad(fused(Z), Z, G)
    assert_close(f.jacobian(X).vjp(G), expected)


def test_values_equal_multihead_attention_of_pytorch_with_padding_and_masks(rng):
    d, h, n, b = 12, 3, 7, 2
    module = torch.nn.MultiheadAttention(d, h, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(gaussian(rng, *parameter.shape))
    wq, wk, wv = module.in_proj_weight.detach().view(3, h, d // h, d)
    bq, bk, bv = module.in_proj_bias.detach().view(3, h, d // h)
    padding = torch.ones(b, n, dtype=torch.bool)
    padding[0, 5:] = False
    mask = gaussian(rng, n, n)
    f = hs.Attention(
        query=wq,
        key=wk,
        value=wv,
        query_bias=bq,
        key_bias=bk,
        value_bias=bv,
        output=module.out_proj.weight.detach().view(d, h, d // h).movedim(1, 0),
        output_bias=module.out_proj.bias.detach(),
        positions=hs.Positions(padding=padding, mask=mask),
    )
    X = gaussian(rng, b, n, d)
    additive = torch.zeros(b, n, dtype=torch.float64).masked_fill(~padding, -math.inf)
    expected, _weights = module(X, X, X, key_padding_mask=additive, attn_mask=mask, need_weights=False)
    assert_close(f(X), expected.detach())


# --- named features ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(("n", "heads"), [(300, 1), (300, 4), (257, 3), (129, 2)])
@pytest.mark.parametrize("kind", ["full", "causal", "window", "causal_window", "window1", "masks", "causal_bias"])
def test_products_are_right_for_sequences_longer_than_a_tile(rng, n, heads, kind, memory):
    d, k = 5, 3
    Q, K, V, W = (
        gaussian(rng, heads, k, d),
        gaussian(rng, heads, k, d),
        gaussian(rng, heads, k, d),
        gaussian(rng, heads, 4, k),
    )
    X = gaussian(rng, n, d)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    allowed, bias, positions = torch.ones(n, n, dtype=torch.bool), None, hs.Positions()
    if kind == "causal":
        allowed, positions = j <= i, hs.Positions(causal=True)
    elif kind == "window":
        allowed, positions = (i - j).abs() < 140, hs.Positions(window=140)
    elif kind == "causal_window":
        allowed, positions = (j <= i) & (i - j < 37), hs.Positions(causal=True, window=37)
    elif kind == "window1":
        allowed, positions = i == j, hs.Positions(window=1)
    elif kind == "masks":
        padding = (torch.rand(n, generator=rng) < 0.7) | (torch.arange(n) == 0)
        per_head = (torch.rand(heads, n, n, generator=rng) < 0.5) | (j == 0)
        allowed = per_head & padding
        positions = hs.Positions(padding=padding, mask=per_head)
    elif kind == "causal_bias":
        table = gaussian(rng, heads, 2 * (n + 5) - 1)
        allowed, bias = j <= i, table[:, n + 5 - 1 + j - i]
        positions = hs.Positions(causal=True, relative_bias=table)
    f = hs.Attention(query=Q, key=K, value=V, output=W, positions=positions)
    oracle = lambda Z: causal_lengths_oracle(Z, Q, K, V, W, allowed=allowed, bias=bias)  # noqa: E731
    E, G = gaussian(rng, n, d), gaussian(rng, n, 4)
    operator = f.jacobian(X, memory=memory)
    Y, tangent = pushed(oracle, (X,), (E,))
    pullback = pulled(oracle, X)
    assert_close(f(X), Y)
    assert_close(operator.jvp(E), tangent)
    assert_close(operator.vjp(G), pullback(G))


def test_the_memory_budget_does_not_change_the_products(rng):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=torch.float64, generator=rng)
    X, E = gaussian(rng, 2, 300, 6), gaussian(rng, 2, 300, 6)
    expected = f.jacobian(X)
    for memory in BUDGETS:
        operator = f.jacobian(X, memory=memory)
        assert_close(operator.jvp(E), expected.jvp(E))
        assert_close(operator.vjp(E), expected.vjp(E))


@pytest.mark.parametrize("memory", MEMORIES)
def test_per_batch_masks_reach_across_tiles(rng, memory):
    b, heads, n, d = 2, 2, 150, 4
    Q, K, V, W = (gaussian(rng, heads, d, d) for _ in range(4))
    X = gaussian(rng, b, n, d)
    mask = gaussian(rng, b, heads, n, n).masked_fill(torch.rand(b, heads, n, n, generator=rng) < 0.3, -math.inf)
    mask[..., 0] = 0.0
    padding = torch.rand(b, n, generator=rng) < 0.8
    padding[:, 0] = True
    f = hs.Attention(query=Q, key=K, value=V, output=W, positions=hs.Positions(mask=mask, padding=padding))
    operator = f.jacobian(X, memory=memory)
    E, G = gaussian(rng, *X.shape), gaussian(rng, *X.shape)
    Y, Jv, Jt = f(X), operator.jvp(E), operator.vjp(G)
    for i in range(b):
        finite = mask[i] > -math.inf
        rest = {"allowed": finite & padding[i], "bias": mask[i].masked_fill(~finite, 0.0)}
        oracle = functools.partial(causal_lengths_oracle, Q=Q, K=K, V=V, W=W, **rest)
        value, tangent = pushed(oracle, (X[i],), (E[i],))
        pullback = pulled(oracle, X[i])
        assert_close(Y[i], value)
        assert_close(Jv[i], tangent)
        assert_close(Jt[i], pullback(G[i]))


@pytest.mark.parametrize("memory", MEMORIES)
def test_single_head_uses_the_bilinear_form_without_a_further_scale(rng, memory):
    n, d = 6, 4
    A, V, X = gaussian(rng, d, d), gaussian(rng, 3, d), gaussian(rng, n, d)
    P = torch.softmax(torch.stack([torch.stack([A @ X[i] @ X[j] for j in range(n)]) for i in range(n)]), -1)
    m = P @ X
    f = hs.Attention.single_head(A=A, V=V)
    assert_close(f(X), m @ V.mT)
    # THEORY §2: block (i, j) = P_ij V (I + (x_j − m_i)(A x_i)ᵀ) + 1_{i=j} V C_i A
    J = torch.zeros(n, 3, n, d, dtype=torch.float64)
    for i in range(n):
        C = sum(P[i, j] * torch.outer(X[j] - m[i], X[j] - m[i]) for j in range(n))
        for j in range(n):
            J[i, :, j] = P[i, j] * V @ (torch.eye(d).double() + torch.outer(X[j] - m[i], A @ X[i]))
        J[i, :, i] += V @ C @ A
    operator = f.jacobian(X, memory=memory)
    columns = torch.stack([operator.jvp(e.view(n, d)).flatten() for e in torch.eye(n * d).double()], -1)
    rows = torch.stack([operator.vjp(e.view(n, 3)).flatten() for e in torch.eye(n * 3).double()])
    assert_close(columns, J.reshape(n * 3, n * d))
    assert_close(rows, J.reshape(n * 3, n * d))


def test_single_head_is_causal_and_weighted_when_asked(rng):
    n, d = 5, 3
    A, V, X = gaussian(rng, d, d), gaussian(rng, d, d), gaussian(rng, n, d)
    a = torch.rand(n, generator=rng).double() + 0.2
    f = hs.Attention.single_head(A=A, V=V, causal=True, weights=a)
    for i in range(n):
        w = torch.stack([a[j] * torch.exp(A @ X[i] @ X[j]) for j in range(i + 1)])
        assert_close(f(X)[i], V @ (w / w.sum() @ X[: i + 1]))


def test_a_weight_of_two_is_the_same_token_twice(rng):
    d = 3
    A, V, X = gaussian(rng, d, d), gaussian(rng, d, d), gaussian(rng, 4, d)
    twice = torch.cat([X, X[1:2]])
    weighted = hs.Attention.single_head(A=A, V=V, weights=torch.tensor([1.0, 2.0, 1.0, 1.0]).double())
    assert_close(weighted(X), hs.Attention.single_head(A=A, V=V)(twice)[:4])


def test_only_ratios_of_token_weights_matter(rng):
    A, V, X, a = (
        gaussian(rng, 3, 3),
        gaussian(rng, 3, 3),
        gaussian(rng, 4, 3),
        torch.tensor([1.0, 3.0, 1.0, 5.0]).double() * 1e-200,
    )
    small = hs.Attention.single_head(A=A, V=V, weights=a)
    large = hs.Attention.single_head(A=A, V=V, weights=a * 1e200 * 1e150)
    assert_close(small(X), large(X))
    assert_close(small.jacobian(X).jvp(X), large.jacobian(X).jvp(X))


def test_rotary_scores_depend_on_position_differences_only(rng):
    X, Q, K, V = gaussian(rng, 6, 4), gaussian(rng, 2, 4, 4), gaussian(rng, 2, 4, 4), gaussian(rng, 2, 4, 4)
    values = [
        hs.Attention(
            query=Q, key=K, value=V, positions=hs.Positions(rotary=hs.Rotary(positions=torch.arange(6) + shift))
        )(X)
        for shift in (0, 17)
    ]
    default = hs.Attention(query=Q, key=K, value=V, positions=hs.Positions(rotary=hs.Rotary()))(X)
    assert_close(values[0], values[1])
    assert_close(values[0], default)


def test_rotary_positions_may_be_fractional_and_negative(rng):
    places = torch.tensor([-3.5, 0.25, 2.0, 7.75]).double()
    p = {
        "query": gaussian(rng, 1, 4, 3),
        "key": gaussian(rng, 1, 4, 3),
        "value": gaussian(rng, 1, 2, 3),
        "output": None,
    }
    p["positions"] = {
        "rotary": {"base": 100.0, "dim": None, "interleaved": True, "frequencies": None, "positions": places}
    }
    X = gaussian(rng, 4, 3)
    assert_close(build(p)(X), naive(X, p))


def test_a_key_bias_matters_under_rotary_embeddings_and_cancels_without(rng):
    Q, K, V, b, X = (
        gaussian(rng, 1, 4, 3),
        gaussian(rng, 1, 4, 3),
        gaussian(rng, 1, 2, 3),
        gaussian(rng, 1, 4),
        gaussian(rng, 5, 3),
    )
    rotary = hs.Positions(rotary=hs.Rotary())
    with_bias, without = (hs.Attention(query=Q, key=K, value=V, key_bias=c, positions=rotary)(X) for c in (b, None))
    assert (with_bias - without).abs().max() > 1e-3
    assert_close(hs.Attention(query=Q, key=K, value=V, key_bias=b)(X), hs.Attention(query=Q, key=K, value=V)(X))


@pytest.mark.parametrize("memory", MEMORIES)
def test_heads_add_up_to_the_layer(rng, memory):
    p, X = draw_parameters(
        rng,
        4,
        2,
        5,
        4,
        4,
        3,
        6,
        (),
        {"rotary", "mask_per_head", "relative", "query_norm", "biases", "weights", "softcap"},
    )
    f = build(p)
    E = gaussian(rng, 5, 4)
    stacked = f.per_head()
    assert_close(sum(f.head(h)(X) for h in range(4)) + p["output_bias"], f(X))
    assert_close(stacked(X), torch.stack([f.head(h)(X) for h in range(4)]))
    products = stacked.jacobian(X, memory=memory).jvp(E.expand(4, 5, 4))
    assert_close(products, torch.stack([f.head(h).jacobian(X, memory=memory).jvp(E) for h in range(4)]))
    assert_close(products.sum(0), f.jacobian(X, memory=memory).jvp(E))


def test_all_heads_are_measured_in_one_batch(rng):
    f = hs.Attention.random(heads=3, d=6, causal=True, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 8, 6)
    together = hs.local_lipschitz(f.per_head(), X)
    truth = [torch.linalg.matrix_norm(dense(f.head(h), X), ord=2) for h in range(3)]
    assert_close(together.lower, torch.stack(truth), rtol=1e-3, atol=0)


def test_per_head_takes_a_batch_of_sequences_on_an_axis_before_the_heads(rng):
    p, X = draw_parameters(
        rng, 4, 2, 5, 4, 4, 3, 6, (3,), {"mask_per_batch", "padding_per_batch", "weights_per_batch", "causal"}
    )
    p["positions"].pop("mask")
    f = build(p)
    # per-batch weights live on the batch axis of X: give them a head axis by hand
    one = build(p | {"weights": None})
    values = one.per_head()(X[:, None])
    assert_close(values, torch.stack([one.head(h)(X) for h in range(4)], 1))
    assert_close(f(X), naive(X, p))


# --- layout of the inputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", MEMORIES)
def test_strides_do_not_matter(rng, memory):
    n, d, b, h = 6, 4, 3, 2
    f = hs.Attention(
        query=gaussian(rng, d, 3, h).permute(2, 1, 0),
        key=gaussian(rng, 1, d, 3).mT.expand(h, 3, d),
        value=gaussian(rng, h, 3, 2 * d)[..., ::2],
        output=gaussian(rng, 1, 5, 3).expand(h, 5, 3),
        positions=hs.Positions(causal=True),
    )
    clean = hs.Attention(
        query=f.query.contiguous(),
        key=f.key.contiguous(),
        value=f.value.contiguous(),
        output=f.output.contiguous(),
        positions=hs.Positions(causal=True),
    )
    strided = {
        "transposed": gaussian(rng, b, d, n).mT,
        "expanded batch": gaussian(rng, 1, n, d).expand(b, n, d),
        "expanded tokens": gaussian(rng, b, 1, d).expand(b, n, d),
        "sliced": gaussian(rng, b, 2 * n, 3 * d)[:, ::2, ::3],
        "batch last": gaussian(rng, n, d, b).movedim(-1, 0),
    }
    for X in strided.values():
        E, G = gaussian(rng, b, d, n).mT, gaussian(rng, b, n, 1).expand(b, n, 5)
        assert_close(f(X), clean(X.contiguous()))
        one, two = f.jacobian(X, memory=memory), clean.jacobian(X.contiguous(), memory=memory)
        assert_close(one.jvp(E), two.jvp(E.contiguous()))
        assert_close(one.vjp(G), two.vjp(G.contiguous()))


def test_measuring_does_not_change_its_inputs(rng):
    p, X = draw_parameters(
        rng, 4, 2, 5, 4, 4, 3, 6, (2,), {"rotary", "float_mask", "relative", "biases", "weights", "causal"}
    )
    before = {name: value.clone() for name, value in p.items() if torch.is_tensor(value)}
    mask, tokens = p["positions"]["mask"].clone(), X.clone()
    f = build(p)
    E = gaussian(rng, *X.shape)
    kept = E.clone()
    f.jacobian(X).jvp(E)
    f.jacobian(X, memory=0).vjp(f(X))
    hs.local_lipschitz(f, X)
    assert torch.equal(X, tokens)
    assert torch.equal(E, kept)
    assert torch.equal(p["positions"]["mask"], mask)
    for name, value in before.items():
        assert torch.equal(p[name], value), name


def test_a_jacobian_keeps_its_point_when_the_tokens_are_overwritten_later(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    X, E = gaussian(rng, 5, 4), gaussian(rng, 5, 4)
    for memory in MEMORIES:
        Z = X.clone()
        operator = f.jacobian(Z, memory=memory)
        expected = operator.jvp(E).clone()
        Z.zero_()
        assert_close(operator.jvp(E), expected)


def test_permuting_the_tokens_permutes_the_output(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    X, order = gaussian(rng, 9, 4), torch.randperm(9, generator=rng)
    assert_close(f(X[order]), f(X)[order])
    assert_close(f.jacobian(X[order]).jvp(X[order].sin()), f.jacobian(X).jvp(X.sin())[order])


def test_the_future_does_not_move_the_past_under_a_causal_mask(rng):
    f = hs.Attention.random(heads=2, d=4, causal=True, dtype=torch.float64, generator=rng)
    X, E = gaussian(rng, 200, 4), torch.zeros(200, 4).double()
    E[150] = 1.0
    for memory in MEMORIES:
        moved = f.jacobian(X, memory=memory).jvp(E)
        assert (moved[:150] == 0).all()
        assert (moved[150:].abs().sum(-1) > 0).all()


def test_a_padded_key_has_no_influence_on_other_tokens(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    padding = torch.tensor([True, True, False, True])
    masked = hs.Attention(
        query=f.query, key=f.key, value=f.value, output=f.output, positions=hs.Positions(padding=padding)
    )
    X = gaussian(rng, 4, 4)
    kept = [0, 1, 3]
    assert_close(masked(X)[kept], f(X[kept]))


def test_a_batch_axis_of_weights_tokens_and_masks_broadcasts(rng):
    d, n, h = 3, 4, 2
    Q, K, V = gaussian(rng, h, d, d), gaussian(rng, h, d, d), gaussian(rng, h, d, d)
    X = gaussian(rng, 2, 1, n, d)
    padding = torch.tensor([[True, True, True, True], [True, False, True, True], [False, True, True, False]])
    f = hs.Attention(query=Q, key=K, value=V, positions=hs.Positions(padding=padding))
    values, operator = f(X), f.jacobian(X)
    E = gaussian(rng, 2, 3, n, d)
    products = operator.jvp(E)
    for b in range(2):
        for c in range(3):
            single = hs.Attention(query=Q, key=K, value=V, positions=hs.Positions(padding=padding[c]))
            assert_close(values[b, c], single(X[b, 0]))
            assert_close(products[b, c], single.jacobian(X[b, 0]).jvp(E[b, c]))


# --- precision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_conversion_keeps_the_map(rng, dtype):
    p, X = draw_parameters(
        rng,
        4,
        2,
        5,
        4,
        4,
        3,
        6,
        (),
        {"rotary", "float_mask", "relative", "biases", "weights", "query_norm", "key_norm"},
    )
    f = build(p)
    converted = f.to(dtype)
    assert converted.query.dtype == dtype
    value = converted(X.to(dtype))
    assert value.dtype == dtype
    tolerance = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}[dtype]  # entries of size one
    assert_close(value.double(), f(X), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("memory", MEMORIES)
def test_float32_products_stay_close_to_float64_at_saturated_scores(rng, memory):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    X, E = gaussian(rng, 40, 8) * 30, gaussian(rng, 40, 8)
    exact = f.jacobian(X, memory=memory).jvp(E)
    # scores of size s carry errors s·2⁻²⁴ into the exponent
    single = f.to(torch.float32).jacobian(X.float(), memory=memory).jvp(E.float()).double()
    assert (single - exact).norm() <= 1e-2 * exact.norm()


# --- derivatives of derivatives ---------------------------------------------------------------------------------

SECOND = [
    set(),
    {"causal", "biases"},
    {"rotary", "relative", "query_norm", "key_norm"},
    {"softcap", "weights", "padding"},
    {"float_mask", "rotary_interleaved", "no_output"},
    {"mask_per_batch", "weights_per_batch", "softcap", "biases"},
]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("features", SECOND, ids=lambda s: "-".join(sorted(s)) or "bare")
def test_the_jvp_is_differentiable_in_tokens_and_weights(rng, features, memory):
    p, X = draw_parameters(rng, 2, 1, 3, 2, 4, 2, 2, (2,) if "mask_per_batch" in features else (), features)
    names = [
        n for n in ("query", "key", "value", "output", "query_bias", "key_bias", "weights") if p.get(n) is not None
    ]
    E = gaussian(rng, *X.shape)

    def product(Z, tangent, *weights):
        return build(p | dict(zip(names, weights, strict=True))).jacobian(Z, memory=memory).jvp(tangent)

    inputs = [t.clone().requires_grad_() for t in (X, E, *(p[n] for n in names))]
    assert torch.autograd.gradcheck(product, inputs)


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_vjp_is_differentiable_in_tokens_and_weights(rng, memory):
    p, X = draw_parameters(rng, 2, 1, 3, 2, 4, 2, 2, (), {"causal", "rotary", "biases", "softcap"})
    G = gaussian(rng, 3, 2)

    def product(Z, cotangent, query, value):
        return build(p | {"query": query, "value": value}).jacobian(Z, memory=memory).vjp(cotangent)

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, G, p["query"], p["value"])])


@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_of_the_jvp_are_right_for_sequences_longer_than_a_tile(rng, memory):
    n, d, heads = 140, 3, 2
    Q, K, V, W = (gaussian(rng, heads, d, d) for _ in range(4))
    X, E, G = gaussian(rng, n, d), gaussian(rng, n, d), gaussian(rng, n, d)
    allowed = torch.ones(n, n, dtype=torch.bool).tril()

    def ours(Z, query):
        f = hs.Attention(query=query, key=K, value=V, output=W, positions=hs.Positions(causal=True))
        return (f.jacobian(Z, memory=memory).jvp(E) * G).sum()

    def oracle(Z, query):
        _value, tangent = pushed(lambda Y: causal_lengths_oracle(Y, query, K, V, W, allowed=allowed), (Z,), (E,))
        return (tangent * G).sum()

    leaves = [t.clone().requires_grad_() for t in (X, Q)]
    assert_close(torch.autograd.grad(ours(*leaves), leaves), torch.autograd.grad(oracle(*leaves), leaves))


def test_forward_values_are_differentiable_too(rng):
    p, X = draw_parameters(
        rng, 2, 1, 3, 2, 4, 2, 2, (), {"causal", "rotary", "biases", "softcap", "weights", "query_norm"}
    )
    E = gaussian(rng, 3, 2)
    f = build(p)
    _value, tangent = pushed(f, (X,), (E,))
    assert_close(f.jacobian(X).jvp(E), tangent)
    assert torch.autograd.gradcheck(f, [X.clone().requires_grad_()])


def test_products_match_central_differences(rng):
    p, X = draw_parameters(
        rng, 4, 2, 5, 4, 4, 3, 6, (2,), {"rotary", "causal", "relative", "biases", "weights", "softcap"}
    )
    f, E, h = build(p), gaussian(rng, 2, 5, 4), 1e-5
    difference = (f(X + h * E) - f(X - h * E)) / (2 * h)
    assert_close(f.jacobian(X).jvp(E), difference, rtol=1e-7, atol=1e-8)  # error h² and eps/h


def test_tokens_and_weights_that_require_grad_are_measured_as_well(rng):
    f = hs.Attention.random(heads=2, d=4, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 5, 4)
    g = hs.Attention(**{n: getattr(f, n).clone().requires_grad_() for n in ("query", "key", "value", "output")})
    expected = hs.local_lipschitz(f, X, generator=torch.Generator().manual_seed(0))
    for memory in MEMORIES:
        J = g.jacobian(X.clone().requires_grad_(), memory=memory)
        estimate = hs.spectral_norm(J, generator=torch.Generator().manual_seed(0))
        assert_close(estimate.lower.detach(), expected.lower)
    estimate = hs.local_lipschitz(g, X.clone().requires_grad_(), generator=torch.Generator().manual_seed(0))
    assert_close(estimate.lower.detach(), expected.lower)
    assert isinstance(estimate.to_json(), str)


# --- extremes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("causal", [False, True])
def test_one_token_sees_only_itself(rng, causal, memory):
    A, V, X = gaussian(rng, 3, 3), gaussian(rng, 2, 3), gaussian(rng, 1, 3)
    f = hs.Attention.single_head(A=A, V=V, causal=causal)
    assert_close(f(X), X @ V.mT)
    assert_close(f.jacobian(X, memory=memory).jvp(X.cos()), X.cos() @ V.mT)
    assert_close(hs.local_lipschitz(f, X).upper, torch.linalg.matrix_norm(V, ord=2), rtol=1e-3, atol=0)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("n", [2, 10, 300])
def test_equal_tokens_give_the_kronecker_product_of_uniform_weights_and_values(rng, n, memory):
    A, V, x = gaussian(rng, 3, 3), gaussian(rng, 3, 3), gaussian(rng, 1, 3)
    X, E = x.repeat(n, 1), gaussian(rng, n, 3)
    for causal in (False, True):
        P = torch.ones(n, n).double()
        P = P.tril() if causal else P
        P = P / P.sum(-1, keepdim=True)
        f = hs.Attention.single_head(A=A, V=V, causal=causal)
        assert_close(f.jacobian(X, memory=memory).jvp(E), P @ E @ V.mT)
        truth = torch.linalg.matrix_norm(P, ord=2) * torch.linalg.matrix_norm(V, ord=2)
        estimate = hs.local_lipschitz(f, X)
        assert estimate.lower <= truth * (1 + 1e-12)
        assert estimate.upper >= truth * (1 - 1e-12)


def test_the_cesaro_operator_has_norm_1_4101(rng):
    f = hs.Attention.single_head(A=gaussian(rng, 2, 2), V=torch.eye(2).double(), causal=True)
    X = gaussian(rng, 1, 2).repeat(10, 1)
    assert hs.local_lipschitz(f, X, rtol=1e-6).lower == pytest.approx(1.4101, abs=5e-5)


def test_the_sharp_points_reach_160_310():
    e = torch.tensor([1.0, 0.0]).double()
    z = torch.tensor([0.0, 1.0]).double()
    X = 4 * torch.cat([z[None], -z[None], e.expand(198, 2)])  # θ = π/2, r = R = 4, A = −I
    f = hs.Attention.single_head(A=-torch.eye(2).double(), V=torch.eye(2).double())
    truth = torch.linalg.matrix_norm(dense(f, X), ord=2)
    assert truth.item() == pytest.approx(160.310, abs=5e-4)
    estimate = hs.local_lipschitz(f, X)
    assert estimate.lower <= truth * (1 + 1e-12)
    assert estimate.upper >= truth * (1 - 1e-12)


@pytest.mark.parametrize("memory", MEMORIES)
def test_saturated_scores_of_ten_thousand_copy_the_winning_token(memory):
    # A = I on tokens 100·e_i: the score of a token with itself is 10⁴, all others 0
    X = 100 * torch.eye(4, dtype=torch.float64)
    V = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4, dtype=torch.float64), V=V)
    E = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
    assert torch.equal(f(X), X @ V.mT)
    assert_close(f.jacobian(X, memory=memory).jvp(E), E @ V.mT)
    assert_close(f.jacobian(X, memory=memory).vjp(E), E @ V)
    assert_close(hs.local_lipschitz(f, X).lower, torch.linalg.matrix_norm(V, ord=2), rtol=1e-3, atol=0)


@pytest.mark.parametrize("memory", MEMORIES)
def test_two_tied_scores_of_ten_thousand_share_the_weight(memory):
    # rows 2, 3, … see x_0 and x_1 with exactly the same huge score; the derivative is of order R²
    X = torch.tensor([[100.0, 1.0], [100.0, -1.0], [100.0, 0.0]]).double()
    f = hs.Attention.single_head(A=torch.diag(torch.tensor([1.0, 0.0]).double()), V=torch.eye(2).double())
    oracle = lambda Z: torch.softmax(Z[:, :1] @ Z[:, :1].mT, -1) @ Z  # noqa: E731
    assert_close(f(X), oracle(X))
    E = torch.tensor([[1.0, 0.5], [-2.0, 0.25], [3.0, -1.0]]).double()
    _value, tangent = pushed(oracle, (X,), (E,))
    assert_close(f.jacobian(X, memory=memory).jvp(E), tangent)
    truth = torch.linalg.matrix_norm(dense(oracle, X), ord=2)
    estimate = hs.local_lipschitz(f, X)
    assert estimate.lower <= truth * (1 + 1e-10)
    assert estimate.upper >= truth * (1 - 1e-10)


@pytest.mark.parametrize("memory", MEMORIES)
def test_tokens_of_dimension_one_are_measured(memory):
    X = torch.tensor([[-5.3], [-0.5]]).double()
    one = torch.ones(1, 1).double()
    f = hs.Attention.single_head(A=-one, V=one)
    J = dense(lambda Z: torch.softmax(-Z @ Z.mT, -1) @ Z, X)
    operator = f.jacobian(X, memory=memory)
    assert_close(torch.cat([operator.jvp(e.view(2, 1)) for e in torch.eye(2).double()], -1), J)
    assert hs.local_lipschitz(f, X).lower == pytest.approx(1.1978, abs=5e-5)


@pytest.mark.parametrize("memory", MEMORIES)
def test_masked_scores_of_minus_ten_to_the_thirty_are_harmless(rng, memory):
    n, d = 5, 3
    A, V, X = gaussian(rng, d, d), gaussian(rng, d, d), gaussian(rng, n, d)
    hard = torch.rand(n, n, generator=rng) < 0.4
    hard.fill_diagonal_(False)
    soft = torch.zeros(n, n).double().masked_fill(hard, torch.finfo(torch.float64).min)
    one = hs.Attention.single_head(A=A, V=V, positions=hs.Positions(mask=soft))
    two = hs.Attention.single_head(A=A, V=V, positions=hs.Positions(mask=~hard))
    assert_close(one(X), two(X))
    assert_close(one.jacobian(X, memory=memory).jvp(X), two.jacobian(X, memory=memory).jvp(X))


def test_random_attention_is_reproducible_and_has_the_shapes_asked_for():
    make = lambda s: hs.Attention.random(heads=3, d=6, k=5, causal=True, generator=torch.Generator().manual_seed(s))  # noqa: E731
    one, two, other = make(0), make(0), make(1)
    assert one.query.shape == (3, 5, 6)
    assert torch.equal(one.query, two.query)
    assert torch.equal(one.value, two.value)
    assert not torch.equal(one.query, other.query)
    assert one.query.dtype == torch.get_default_dtype()
    X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert one(X).shape == (4, 6)
    assert torch.equal(one(X)[:2], one(X[:2])) or torch.allclose(one(X)[:2], one(X[:2]))
