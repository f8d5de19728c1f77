"""Norms, their ellipsoids, compositions, and one clear error for each kind of bad input."""

import math

import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, DeviceError, DtypeError, HowsmoothError, NonFiniteError, ShapeError

KINDS = {"layer": hs.LayerNorm, "rms": hs.RMSNorm}


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(99)


def gaussian(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def naive_norm(kind, X, gain, bias, eps):
    rows = []
    for x in X.reshape(-1, X.shape[-1]):
        centred = x - sum(x) / len(x) if kind == "layer" else x
        y = gain * centred / torch.sqrt(sum(t * t for t in centred) / len(x) + eps)
        rows.append(y if bias is None else y + bias)
    return torch.stack(rows).view(X.shape)


def dense(function, X):
    J = torch.autograd.functional.jacobian(function, X)
    return J.reshape(-1, X.numel())


def columns(operator):
    """The matrix of an operator, one product at a time: by jvp and by vjp."""
    inputs, outputs = math.prod(operator.domain), math.prod(operator.codomain)
    forward = [operator.jvp(e.view(operator.domain)).flatten() for e in torch.eye(inputs, dtype=operator.dtype)]
    backward = [operator.vjp(e.view(operator.codomain)).flatten() for e in torch.eye(outputs, dtype=operator.dtype)]
    return torch.stack(forward, -1), torch.stack(backward)


# --- norms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "eps"), [(1, 1e-5), (1, 0.5), (2, 0.0), (2, 1e-5), (5, 0.0), (5, 1e-5), (5, 0.5)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_their_products_equal_the_definition(rng, kind, d, biased, eps):
    gain, bias = gaussian(rng, d), gaussian(rng, d) if biased else None
    norm = KINDS[kind](gain=gain, bias=bias, eps=eps)
    X = gaussian(rng, 3, d) * 2 + 1
    assert_close(norm(X), naive_norm(kind, X, gain, bias, eps))
    J = dense(lambda Z: naive_norm(kind, Z, gain, bias, eps), X)
    for matrix in columns(norm.jacobian(X)):
        assert_close(matrix, J)


def test_norms_equal_those_of_pytorch(rng):
    d = 7
    gain, bias, X = gaussian(rng, d), gaussian(rng, d), gaussian(rng, 2, 3, d)
    assert_close(hs.LayerNorm(gain=gain, bias=bias)(X), torch.nn.functional.layer_norm(X, (d,), gain, bias))
    assert_close(hs.RMSNorm(gain=gain, eps=1e-6)(X), torch.nn.functional.rms_norm(X, (d,), gain, 1e-6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-150, 1e-8, 1e8, 1e150])
def test_norms_of_tiny_and_huge_tokens_stay_finite(rng, kind, size):
    X, gain = gaussian(rng, 3, 4), gaussian(rng, 4)
    norm = KINDS[kind](gain=gain, eps=0.0 if size > 1 else 1e-5)
    value, product = norm(X * size), norm.jacobian(X * size).jvp(X * size)
    if size > 1:
        assert_close(value, norm(X))
        assert (product.abs() < 1e-6).all()  # along the ray the norm does not move
    else:
        assert (value.abs() < 1e-4).all()
        assert_close(product, value, rtol=1e-5, atol=1e-12)  # linear near zero


def test_a_constant_token_has_a_large_but_finite_derivative():
    norm = hs.LayerNorm(gain=torch.ones(4).double(), eps=1e-6)
    estimate = hs.local_lipschitz(norm, torch.full((3, 4), 5.0).double())
    assert_close(estimate.lower, torch.tensor(1e3).double())


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_without_spread_and_without_eps_is_refused(kind):
    norm = KINDS[kind](gain=torch.ones(4).double(), eps=0.0)
    X = torch.ones(3, 4).double() if kind == "layer" else torch.zeros(3, 4).double()
    with pytest.raises(HowsmoothError):
        norm.jacobian(X)
    with pytest.raises(HowsmoothError):
        hs.local_lipschitz(norm, X)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_take_strided_and_expanded_tokens(rng, kind):
    norm = KINDS[kind](gain=gaussian(rng, 8)[::2], bias=gaussian(rng, 1).expand(4))
    clean = KINDS[kind](gain=norm.gain.contiguous(), bias=norm.bias.contiguous())
    for X in (gaussian(rng, 2, 4, 3).mT, gaussian(rng, 1, 1, 4).expand(2, 3, 4), gaussian(rng, 2, 3, 8)[..., ::2]):
        E = gaussian(rng, 2, 4, 3).mT
        assert_close(norm(X), clean(X.contiguous()))
        assert_close(norm.jacobian(X).jvp(E), clean.jacobian(X.contiguous()).jvp(E.contiguous()))
        assert_close(norm.jacobian(X).vjp(E), clean.jacobian(X.contiguous()).vjp(E.contiguous()))


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_norms_are_differentiable(rng, kind):
    X, E, gain = gaussian(rng, 3, 4), gaussian(rng, 3, 4), gaussian(rng, 4)

    def product(Z, tangent, alpha):
        return KINDS[kind](gain=alpha, eps=1e-3).jacobian(Z).jvp(tangent)

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, E, gain)])


# --- the ellipsoid of a norm ------------------------------------------------------------------------------------


def farthest_image(kind, gain, bias, centre):
    """The largest distance from `centre` of a normalised token, by ascent from many starts (no eps)."""
    d = gain.numel()
    Z = torch.randn(80, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()

    def image():
        z = Z - Z.mean(-1, keepdim=True) if kind == "layer" else Z
        return z / z.norm(dim=-1, keepdim=True) * math.sqrt(d) * gain + bias

    optimiser = torch.optim.LBFGS(
        [Z], max_iter=400, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -(image() - centre).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return (image() - centre).norm(dim=-1).max().item()


GAINS = {
    "random": lambda rng, d: (gaussian(rng, d), gaussian(rng, d)),
    "no bias": lambda rng, d: (gaussian(rng, d), None),
    "equal": lambda rng, d: (torch.full((d,), -2.0).double(), 5 * gaussian(rng, d)),
    "one direction": lambda rng, d: (torch.eye(d).double()[0], gaussian(rng, d)),
    # the hard case of the secular equation (the bias has no part along the longest axis), with a large bias:
    # test_spec_failing has the small one
    "orthogonal": lambda rng, d: (
        torch.tensor([5.0] + [1.0] * (d - 1)).double(),
        torch.tensor([0.0] + [300.0] * (d - 1)).double(),
    ),
    "two longest axes": lambda rng, d: (torch.tensor([3.0, 3.0] + [1.0] * (d - 2)).double(), gaussian(rng, d)),
}


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("name", GAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_balls_around_the_image_touch_it_and_contain_it(rng, kind, name, d):
    gain, bias = GAINS[name](rng, d)
    image = KINDS[kind](gain=gain, bias=bias).image
    offset = torch.zeros(d).double() if bias is None else bias
    farthest = farthest_image(kind, gain, offset, torch.zeros(d).double())
    assert float(image.radius) == pytest.approx(farthest, rel=1e-9)
    around = farthest_image(kind, gain, offset, image.ball.centre)
    assert float(image.ball.radius) == pytest.approx(around, rel=1e-9)
    # an ellipsoid is symmetric about its bias, so no ball is smaller than the one centred there
    assert_close(image.ball.centre, offset)


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_tokens_lie_in_both_balls(rng, kind):
    norm = KINDS[kind](gain=gaussian(rng, 6), bias=gaussian(rng, 6))
    Y = norm(gaussian(rng, 5000, 6) * torch.logspace(-3, 3, 5000).double()[:, None])
    assert (Y.norm(dim=-1) <= norm.image.radius * (1 + 1e-12)).all()
    assert ((Y - norm.image.ball.centre).norm(dim=-1) <= norm.image.ball.radius * (1 + 1e-12)).all()


def test_a_gain_of_zero_sends_every_token_to_the_bias(rng):
    bias = gaussian(rng, 4)
    for kind in KINDS.values():
        image = kind(gain=torch.zeros(4).double(), bias=bias).image
        assert float(image.ball.radius) == 0
        assert float(image.radius) == pytest.approx(bias.norm().item())


def test_the_radius_of_a_plain_norm_is_the_root_of_the_dimension():
    assert float(hs.RMSNorm(gain=torch.ones(768).double()).image.radius) == pytest.approx(math.sqrt(768))
    assert float(hs.LayerNorm(gain=torch.ones(768)).image.radius) == pytest.approx(math.sqrt(768), rel=1e-6)


# --- compositions -----------------------------------------------------------------------------------------------


def make_compositions(rng, d=4):
    f = hs.Attention.random(heads=2, d=d, causal=True, dtype=torch.float64, generator=rng)
    first, last = hs.LayerNorm(gain=gaussian(rng, d), bias=gaussian(rng, d)), hs.RMSNorm(gain=gaussian(rng, d))
    narrow = hs.Attention(query=f.query, key=f.key, value=f.value, output=gaussian(rng, 2, 3, f.value.shape[-2]))
    return {
        "pre-norm": (hs.Chain(first, f), lambda X: f(first(X))),
        "post-norm": (hs.Chain(hs.Residual(f), first), lambda X: first(X + f(X))),
        "pre-norm residual": (hs.Residual(hs.Chain(first, f)), lambda X: X + f(first(X))),
        "two blocks": (
            hs.Chain(hs.Residual(hs.Chain(first, f)), hs.Residual(hs.Chain(last, f)), last),
            lambda X: last((Y := X + f(first(X))) + f(last(Y))),
        ),
        "narrowing": (hs.Chain(last, f, narrow), lambda X: narrow(f(last(X)))),
        "chain of one": (hs.Chain(f), f),
        "chain of chains": (hs.Chain(hs.Chain(first, f), hs.Chain(f, last)), lambda X: last(f(f(first(X))))),
        "residual of residual": (hs.Residual(hs.Residual(f)), lambda X: 2 * X + f(X)),
    }


@pytest.mark.parametrize("name", make_compositions(torch.Generator().manual_seed(0)))
def test_compositions_are_maps_with_a_jacobian(rng, name):
    composed, plain = make_compositions(rng)[name]
    X = gaussian(rng, 5, 4)
    assert_close(composed(X), plain(X))
    J = dense(plain, X)
    for matrix in columns(composed.jacobian(X)):
        assert_close(matrix, J)
    truth = torch.linalg.matrix_norm(J, ord=2)
    estimate = hs.local_lipschitz(composed, X, generator=rng)
    assert estimate.lower <= truth * (1 + 1e-10)
    assert estimate.upper >= truth * (1 - 1e-10)


@pytest.mark.parametrize("name", ["pre-norm residual", "two blocks", "narrowing"])
def test_batches_of_compositions_equal_single_ones(rng, name):
    composed, _plain = make_compositions(rng)[name]
    X, E = gaussian(rng, 2, 3, 5, 4), gaussian(rng, 2, 3, 5, 4)
    operator = composed.jacobian(X)
    products = operator.jvp(E)
    assert tuple(operator.batch) == (2, 3)
    for b in range(2):
        for c in range(3):
            assert_close(products[b, c], composed.jacobian(X[b, c]).jvp(E[b, c]))
            assert_close(operator.vjp(products)[b, c], composed.jacobian(X[b, c]).vjp(products[b, c]))


def test_the_norm_of_a_linear_chain_is_that_of_the_product(rng):
    zero = torch.zeros(3, 3).double()
    U, V, X = gaussian(rng, 3, 3), gaussian(rng, 3, 3), gaussian(rng, 6, 3)
    f, g = hs.Attention.single_head(A=zero, V=U), hs.Attention.single_head(A=zero, V=V)  # averages, then U, V
    estimate = hs.local_lipschitz(hs.Chain(f, g), X, rtol=1e-9, generator=rng)
    assert_close(estimate.lower, torch.linalg.matrix_norm(V @ U, ord=2))
    twice = hs.local_lipschitz(hs.Residual(f), X, rtol=1e-9, generator=rng)
    assert_close(twice.lower, torch.linalg.matrix_norm(torch.eye(3).double() + U, ord=2).clamp(min=1))


def test_products_of_compositions_are_differentiable(rng):
    f = hs.Attention.random(heads=1, d=2, dtype=torch.float64, generator=rng)
    X, E, gain = gaussian(rng, 3, 2), gaussian(rng, 3, 2), gaussian(rng, 2)

    def product(Z, alpha, query):
        g = hs.Attention(query=query, key=f.key, value=f.value, output=f.output)
        return hs.Residual(hs.Chain(hs.LayerNorm(gain=alpha, eps=1e-2), g)).jacobian(Z).jvp(E)

    assert torch.autograd.gradcheck(product, [t.clone().requires_grad_() for t in (X, gain, f.query)])


def test_a_layer_of_pytorch_is_the_composition_of_its_parts(rng):
    d, h = 8, 2
    layer = torch.nn.TransformerEncoderLayer(d, h, 4, batch_first=True, norm_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(gaussian(rng, *parameter.shape))
        layer.linear2.weight.zero_()  # only the attention half is left
        layer.linear2.bias.zero_()
    inner = layer.self_attn
    q, k, v = inner.in_proj_weight.detach().view(3, h, d // h, d)
    bq, bk, bv = inner.in_proj_bias.detach().view(3, h, d // h)
    attention = hs.Attention(
        query=q,
        key=k,
        value=v,
        query_bias=bq,
        key_bias=bk,
        value_bias=bv,
        output=inner.out_proj.weight.detach().view(d, h, d // h).transpose(0, 1),
        output_bias=inner.out_proj.bias.detach(),
    )
    norm = hs.LayerNorm(gain=layer.norm1.weight.detach(), bias=layer.norm1.bias.detach(), eps=layer.norm1.eps)
    block = hs.Residual(hs.Chain(norm, attention))
    X = gaussian(rng, 5, d)
    assert_close(block(X), layer(X[None]).squeeze(0).detach())
    truth = torch.linalg.matrix_norm(dense(lambda Z: layer(Z[None]).squeeze(0), X), ord=2)
    assert_close(hs.local_lipschitz(block, X, rtol=1e-8).lower, truth)


# --- bad input: attention ---------------------------------------------------------------------------------------


def parts(rng):
    return {
        "query": gaussian(rng, 4, 3, 4),
        "key": gaussian(rng, 2, 3, 4),
        "value": gaussian(rng, 2, 5, 4),
        "output": gaussian(rng, 4, 4, 5),
    }


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("query", (3, 4)),
        ("query", (3, 3, 4)),
        ("key", (3, 3, 4)),
        ("key", (2, 2, 4)),
        ("key", (2, 3, 5)),
        ("value", (1, 5, 4)),
        ("value", (2, 5, 3)),
        ("output", (2, 4, 5)),
        ("output", (4, 4, 4)),
        ("query_bias", (3,)),
        ("query_bias", (2, 3)),
        ("key_bias", (4, 3)),
        ("value_bias", (4, 5)),
        ("value_bias", (2, 3)),
        ("output_bias", (5,)),
    ],
    ids=str,
)
def test_weights_of_the_wrong_shape_are_refused(rng, name, shape):
    with pytest.raises(ShapeError):
        hs.Attention(**(parts(rng) | {name: gaussian(rng, *shape)}))


def test_heads_that_groups_do_not_divide_are_refused(rng):
    with pytest.raises(ShapeError, match="multiple"):
        hs.Attention(**(parts(rng) | {"key": gaussian(rng, 3, 3, 4), "value": gaussian(rng, 3, 5, 4)}))


@pytest.mark.parametrize("name", ["query", "key", "value", "output", "query_bias", "output_bias"])
def test_weights_that_are_not_finite_reals_of_one_dtype_are_refused(rng, name):
    good = parts(rng) | {"query_bias": gaussian(rng, 4, 3), "output_bias": gaussian(rng, 4)}
    for poison in (math.nan, math.inf):
        bad = good[name].clone()
        bad.view(-1)[-1] = poison
        with pytest.raises(NonFiniteError):
            hs.Attention(**(good | {name: bad}))
    for convert in (torch.Tensor.float, torch.Tensor.long, lambda t: t + 0j):
        with pytest.raises(DtypeError):
            hs.Attention(**(good | {name: convert(good[name])}))
    if name != "query":
        with pytest.raises(DeviceError):
            hs.Attention(**(good | {name: good[name].to("meta")}))


def make_bad_tokens(d=4):
    good = torch.ones(6, d).double()
    return {
        "one axis": (good[0], ShapeError),
        "other dimension": (torch.ones(6, d + 1).double(), ShapeError),
        "no tokens": (good[:0], ShapeError),
        "float32": (good.float(), DtypeError),
        "integers": (good.long(), DtypeError),
        "booleans": (good.bool(), DtypeError),
        "complex": (good + 0j, DtypeError),
        "a list": (good.tolist(), DtypeError),
        "NaN": (good * math.nan, NonFiniteError),
        "inf": (good * math.inf, NonFiniteError),
    }


@pytest.mark.parametrize("name", make_bad_tokens())
def test_bad_tokens_are_refused_by_value_jacobian_and_estimate(rng, name):
    bad, error = make_bad_tokens()[name]
    f = hs.Attention(**parts(rng))
    with pytest.raises(error):
        f(bad)
    norm = hs.LayerNorm(gain=torch.ones(4).double())
    for g in (f, norm, hs.Chain(norm, f), hs.Residual(f)):
        for ask in (g.jacobian, lambda X, g=g: hs.local_lipschitz(g, X)):
            with pytest.raises(error):
                ask(bad)


def test_perturbations_of_the_wrong_shape_are_refused(rng):
    f = hs.Attention(**(parts(rng) | {"output": gaussian(rng, 4, 7, 5)}))
    X = gaussian(rng, 2, 6, 4)
    for operator in (f.jacobian(X), f.jacobian(X, memory=0), hs.Chain(f).jacobian(X), hs.JacobianOperator(f, X)):
        for shape in [(6, 4), (2, 6, 7), (2, 5, 4), (48,), (3, 2, 6, 4)]:
            with pytest.raises(ShapeError):
                operator.jvp(gaussian(rng, *shape))
        with pytest.raises(ShapeError):
            operator.vjp(gaussian(rng, 2, 6, 4))


BAD_POSITIONS = {
    "window 0": ({"window": 0}, AssumptionError),
    "window -1": ({"window": -1}, AssumptionError),
    "short padding": ({"padding": torch.ones(5).bool()}, ShapeError),
    "numeric padding": ({"padding": torch.ones(6)}, DtypeError),
    "all padding": ({"padding": torch.zeros(6).bool()}, AssumptionError),
    "left padding, causal": ({"padding": torch.arange(6) > 0, "causal": True}, AssumptionError),
    "padding at the window": ({"padding": torch.arange(6) < 3, "window": 2}, AssumptionError),
    "square mask of other length": ({"mask": torch.ones(5, 5).bool()}, ShapeError),
    "oblong mask": ({"mask": torch.ones(6, 5).bool()}, ShapeError),
    "mask of three heads": ({"mask": torch.ones(3, 6, 6).bool()}, ShapeError),
    "integer mask": ({"mask": torch.ones(6, 6).long()}, DtypeError),
    "NaN mask": ({"mask": torch.full((6, 6), math.nan).double()}, NonFiniteError),
    "+inf mask": ({"mask": torch.full((6, 6), math.inf).double()}, NonFiniteError),
    "blind row": ({"mask": torch.ones(6, 6).bool() & (torch.arange(6) != 3)[:, None]}, AssumptionError),
    "blind additive row": (
        {"mask": torch.zeros(6, 6).double().index_fill(0, torch.tensor([2]), -math.inf)},
        AssumptionError,
    ),
    "blind in one head": (
        {"mask": torch.ones(4, 6, 6).bool() & (torch.arange(24).view(4, 6) != 20)[..., None]},
        AssumptionError,
    ),
    "only the future, causal": (
        {"mask": torch.ones(6, 6).bool().triu(1) | torch.eye(6).bool() & (torch.arange(6) == 5), "causal": True},
        AssumptionError,
    ),
    "short bias": ({"relative_bias": torch.zeros(4, 9).double()}, ShapeError),
    "even bias": ({"relative_bias": torch.zeros(4, 12).double()}, ShapeError),
    "bias of two heads": ({"relative_bias": torch.zeros(2, 11).double()}, ShapeError),
    "NaN bias": ({"relative_bias": torch.full((4, 11), math.nan).double()}, NonFiniteError),
    "rotary on three numbers": ({"rotary": {}}, ShapeError),
    "rotary of odd dimension": ({"rotary": {"dim": 1}}, ShapeError),
    "rotary wider than the head": ({"rotary": {"dim": 4}}, ShapeError),
    "rotary base 0": ({"rotary": {"dim": 2, "base": 0.0}}, AssumptionError),
    "rotary frequencies": ({"rotary": {"dim": 2, "frequencies": torch.ones(2).double()}}, ShapeError),
    "rotary positions": ({"rotary": {"dim": 2, "positions": torch.arange(5)}}, ShapeError),
}


@pytest.mark.parametrize("memory", [2**30, 0])
@pytest.mark.parametrize("name", BAD_POSITIONS)
def test_positions_without_a_meaning_are_refused(rng, name, memory):
    keywords, error = BAD_POSITIONS[name]
    X = gaussian(rng, 6, 4)
    for ask in (lambda f: f(X), lambda f: f.jacobian(X, memory=memory)):
        with pytest.raises(error):
            ask(hs.Attention(**parts(rng), positions=hs.Positions(**with_rotary(keywords))))


def with_rotary(keywords):
    return keywords | ({"rotary": hs.Rotary(**keywords["rotary"])} if "rotary" in keywords else {})


def test_a_blind_row_far_down_a_long_sequence_is_refused(rng):
    n = 300
    mask = torch.ones(n, n).bool()
    mask[277] = False
    f = hs.Attention(**parts(rng), positions=hs.Positions(mask=mask))
    for memory in (2**30, 0):
        with pytest.raises(AssumptionError, match="277"):
            f.jacobian(gaussian(rng, n, 4), memory=memory)
    with pytest.raises(AssumptionError, match="277"):
        f(gaussian(rng, n, 4))


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"weights": torch.ones(5).double()}, ShapeError),
        ({"weights": -torch.ones(6).double()}, AssumptionError),
        ({"weights": torch.zeros(6).double()}, AssumptionError),
        ({"weights": torch.full((6,), math.nan).double()}, NonFiniteError),
        ({"weights": torch.ones(6).long()}, DtypeError),
        ({"weights": torch.ones(3, 6).double()}, ShapeError),
        ({"scale": math.nan}, AssumptionError),
        ({"scale": math.inf}, AssumptionError),
        ({"softcap": 0.0}, AssumptionError),
        ({"softcap": -1.0}, AssumptionError),
        ({"softcap": math.nan}, AssumptionError),
        ({"query_norm": hs.RMSNorm(gain=torch.ones(4).double())}, ShapeError),
        ({"key_norm": hs.RMSNorm(gain=torch.ones(3))}, DtypeError),
    ],
    ids=str,
)
def test_other_settings_without_a_meaning_are_refused(rng, keywords, error):
    with pytest.raises(error):
        hs.Attention(**parts(rng), **keywords)(gaussian(rng, 2, 6, 4))


def test_a_scale_of_zero_is_a_scale(rng):
    f = hs.Attention(**parts(rng), scale=0.0)
    X = gaussian(rng, 6, 4)
    assert_close(f(X), f(X)[:1].expand(6, 4))


def test_a_map_whose_output_overflows_is_refused(rng):
    f = hs.Attention(**(parts(rng) | {"value": torch.full((2, 5, 4), 1e308, dtype=torch.float64)}))
    with pytest.raises(NonFiniteError):
        hs.local_lipschitz(f, gaussian(rng, 6, 4))


def test_heads_that_do_not_exist_are_refused(rng):
    f = hs.Attention(**parts(rng))
    for h in (4, -5, 100):
        with pytest.raises(HowsmoothError):
            f.head(h)


@pytest.mark.parametrize(("A", "V"), [((3, 4), (4, 4)), ((4,), (4, 4)), ((4, 4), (4, 3)), ((4, 4), (4,))], ids=str)
def test_single_heads_of_the_wrong_shape_are_refused(rng, A, V):
    with pytest.raises(ShapeError):
        hs.Attention.single_head(A=gaussian(rng, *A), V=gaussian(rng, *V))


def test_causal_and_positions_together_are_refused(rng):
    with pytest.raises(AssumptionError):
        hs.Attention.single_head(
            A=gaussian(rng, 4, 4), V=gaussian(rng, 4, 4), causal=True, positions=hs.Positions(window=2)
        )


@pytest.mark.parametrize("kind", KINDS.values())
def test_bad_norms_are_refused(rng, kind):
    with pytest.raises(ShapeError):
        kind(gain=gaussian(rng, 2, 2))
    with pytest.raises(ShapeError):
        kind(gain=gaussian(rng, 4), bias=gaussian(rng, 3))
    with pytest.raises(DtypeError):
        kind(gain=gaussian(rng, 4), bias=gaussian(rng, 4).float())
    with pytest.raises(DtypeError):
        kind(gain=torch.ones(4).long())
    with pytest.raises(NonFiniteError):
        kind(gain=gaussian(rng, 4) * math.nan)
    with pytest.raises(AssumptionError):
        kind(gain=gaussian(rng, 4), eps=-1e-5)


def test_compositions_that_do_not_fit_are_refused(rng):
    narrow = hs.Attention(**(parts(rng) | {"output": gaussian(rng, 4, 3, 5)}))
    X = gaussian(rng, 6, 4)
    with pytest.raises(ShapeError):
        hs.Residual(narrow).jacobian(X)
    with pytest.raises(ShapeError):
        hs.Chain(narrow, narrow).jacobian(X)
    with pytest.raises(HowsmoothError):
        hs.Chain()
    with pytest.raises(HowsmoothError):
        hs.Chain(3)


def test_errors_are_also_the_builtin_a_caller_would_guess():
    assert issubclass(ShapeError, ValueError)
    assert issubclass(NonFiniteError, ValueError)
    assert issubclass(AssumptionError, ValueError)
    assert issubclass(DtypeError, TypeError)
    for error in (ShapeError, NonFiniteError, AssumptionError, DtypeError, DeviceError):
        assert issubclass(error, HowsmoothError)


def test_values_are_frozen(rng):
    f = hs.Attention(**parts(rng))
    with pytest.raises(AttributeError):
        f.scale = 2.0
    with pytest.raises(TypeError):
        hs.Attention(f.query, f.key, f.value)
