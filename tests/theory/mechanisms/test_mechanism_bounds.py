import math

import pytest
import torch

import howsmooth as hs
from howsmooth.search.starts import start_patterns
from howsmooth.theory.mechanisms.other_weights import entmax_deviation
from howsmooth.theory.mechanisms.softmax_scores import column_energy, kim, phi_inverse
from howsmooth.theory.mechanisms.theorems import mechanism_upper

F64 = torch.float64


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=F64, generator=rng)


def head(rng, kind, d=2, **more):
    Q, K, V = gauss(rng, d, d), gauss(rng, d, d), gauss(rng, d, d)
    return kind.single_head(Q=Q, K=Q if more.get("tied") else K, V=V, **more)


def same_keys(rng, **more):
    Q, V = gauss(rng, 2, 2), gauss(rng, 2, 2)
    return hs.maps.L2Attention.single_head(Q=Q, K=Q, V=V, **more)


def layer(rng, kind, **more):
    def some(*shape):
        return gauss(rng, *shape) / 2

    biases = {"query_bias": some(2, 2), "key_bias": some(2, 2), "value_bias": some(2, 3)}
    return kind(
        query=some(2, 2, 3), key=some(2, 2, 3), value=some(2, 3, 3), output=some(2, 2, 3), scale=0.7, **biases, **more
    )


CASES = {
    "l2 tied": lambda rng: head(rng, hs.maps.L2Attention, tied=True),
    "l2 tied causal": lambda rng: head(rng, hs.maps.L2Attention, tied=True, causal=True),
    "l2 same keys": same_keys,
    "l2 untied": lambda rng: head(rng, hs.maps.L2Attention),
    "l2 layer": lambda rng: layer(rng, hs.maps.L2Attention),
    "sigmoid": lambda rng: head(rng, hs.maps.SigmoidAttention),
    "sigmoid bias causal": lambda rng: head(rng, hs.maps.SigmoidAttention, bias=0.5, causal=True),
    "sigmoid layer": lambda rng: layer(rng, hs.maps.SigmoidAttention),
    "linear": lambda rng: head(rng, hs.maps.LinearAttention),
    "linear causal": lambda rng: head(rng, hs.maps.LinearAttention, causal=True),
    "linear plain": lambda rng: head(rng, hs.maps.LinearAttention, normalised=False),
    "sinkhorn": lambda rng: head(rng, hs.maps.SinkhornAttention),
    "sinkhorn layer": lambda rng: layer(rng, hs.maps.SinkhornAttention),
    "cosine": lambda rng: head(rng, hs.maps.CosineAttention, eps=0.1, scale=3.0, gain=0.5),
    "cosine values": lambda rng: head(rng, hs.maps.CosineAttention, eps=0.1, scale=3.0, normalise_values=True),
    "cosine layer": lambda rng: layer(rng, hs.maps.CosineAttention, eps=0.1, normalise_values=True),
    "entmax": lambda rng: head(rng, hs.maps.EntmaxAttention),
    "sparsemax": lambda rng: head(rng, hs.maps.EntmaxAttention, alpha=2.0),
    "sparsemax causal": lambda rng: head(rng, hs.maps.EntmaxAttention, alpha=2.0, causal=True),
    "differential": lambda rng: head(rng, hs.maps.DifferentialAttention, subtracted=-0.8),
    "differential layer": lambda rng: layer(
        rng, hs.maps.DifferentialAttention, subtracted=torch.tensor([0.8, 0.3]).double()
    ),
    "sink": lambda rng: hs.Attention.single_head(A=gauss(rng, 2, 2), V=gauss(rng, 2, 2), sink=0.0),
}


def constants(f, X):
    """The local constants at a batch of inputs, by dense algebra."""
    J, (n, d) = f.jacobian(X), X.shape[-2:]
    columns = [J.jvp(e.reshape(n, d).expand_as(X)).flatten(1) for e in torch.eye(n * d, dtype=X.dtype)]
    return torch.linalg.matrix_norm(torch.stack(columns, dim=-1), ord=2)


def inputs(f, rng, n, radius, count=120):
    ball, like = hs.domains.Ball(radius), torch.empty(f.d, dtype=F64)
    return torch.cat((ball.draw(count, n, like, rng), start_patterns(ball, n, like, 10, rng)))


@pytest.mark.parametrize("case", CASES)
def test_no_input_exceeds_the_bound(case, rng):
    for radius in (0.7, 3.0):
        f = CASES[case](rng)
        n = 5
        upper = hs.bounds.sharp_upper(f, n=n, radius=radius).value
        assert float(constants(f, inputs(f, rng, n, radius)).max()) <= upper


COUNTING = {
    "sigmoid": (hs.maps.SigmoidAttention, {}),
    "linear plain": (hs.maps.LinearAttention, {"normalised": False}),
    "entmax": (hs.maps.EntmaxAttention, {"alpha": 1.5}),
    "sparsemax": (hs.maps.EntmaxAttention, {"alpha": 2.0}),
}


@pytest.mark.parametrize("count", [1.5, 5.0, 40.0])
@pytest.mark.parametrize("kind", COUNTING)
def test_bounds_hold_where_tokens_count_for_more_or_less_than_one(kind, count, rng):
    made, more = COUNTING[kind]
    f = head(rng, made, count=count, **more)
    upper = hs.bounds.sharp_upper(f, n=5, radius=1.5).value
    assert float(constants(f, inputs(f, rng, 5, 1.5)).max()) <= upper
    found = hs.maximise(f, n=5, domain=hs.domains.Ball(1.5), starts=2, steps=8, seed=rng).value
    assert upper / 12 <= found <= upper


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_ascended_input_exceeds_the_bound(case, rng):
    f = CASES[case](rng)
    radius = 0.8 if case.startswith("sinkhorn") else 1.5  # the potentials of steep scores are refused
    found = hs.bracket(f, n=6, radius=radius, search=True, seed=rng)
    assert found.lower.value <= found.upper.value
    assert found.ratio < 40  # the bound is of the right order


LOCAL = [name for name in CASES if name not in ("linear plain", "cosine values", "cosine layer", "sink")]


@pytest.mark.parametrize("case", LOCAL)
def test_the_certificate_at_an_input_holds_there_and_is_of_the_right_order(case, rng):
    f = CASES[case](rng)
    X = inputs(f, rng, 5, 1.0 if case.startswith("sinkhorn") else 2.0, count=20)[::3]
    true = constants(f, X)
    proven = torch.tensor([hs.bounds.local_upper(f, x).value for x in X], dtype=F64)
    assert bool((true <= proven).all())
    assert float((proven / true).median()) < 7  # two softmaxes and two heads that are added up cancel in part


def test_the_published_bounds_hold_and_ours_are_smaller(rng):
    for n in (2, 5):
        tied = CASES["l2 tied"](rng)
        kim, ours = hs.bounds.kim_l2_upper(tied, n=n), hs.bounds.sharp_upper(tied, n=n, radius=50.0)
        assert float(constants(tied, inputs(tied, rng, n, 2.0)).max()) <= ours.value <= kim.value
        cosine = CASES["cosine values"](rng)
        published, ours = hs.bounds.lipsformer_upper(cosine, n=n), hs.bounds.sharp_upper(cosine, n=n, radius=1.0)
        assert float(constants(cosine, inputs(cosine, rng, n, 2.0)).max()) <= ours.value <= published.value


def test_the_published_bound_on_sigmoid_attention_holds_at_an_input_and_ours_is_smaller(rng):
    f = CASES["sigmoid"](rng)
    X = inputs(f, rng, 5, 2.0, count=10)
    for x, true in zip(X, constants(f, X), strict=True):
        published, ours = hs.bounds.ramapuram_upper(f, x).value, hs.bounds.local_upper(f, x).value
        assert float(true) <= ours <= published * (1 + 1e-9)


def test_equal_tokens_attain_the_bound_on_sigmoid_attention():
    eye = torch.eye(2, dtype=F64)
    f = hs.maps.SigmoidAttention.single_head(Q=eye, K=eye, V=eye)
    n, radius = 20, 1.5  # b + c = 2.25 − log 20 < 0
    X = radius * torch.tensor([[1.0, 0.0]], dtype=F64).expand(n, 2)
    attained = float(hs.local_lipschitz(f, X.contiguous()).lower)
    assert attained == pytest.approx(hs.bounds.sharp_upper(f, n=n, radius=radius).value, rel=1e-6)


def test_sinkhorn_attention_has_a_bound_without_length(rng):
    f = CASES["sinkhorn"](rng)
    assert hs.bounds.sharp_upper(f, n=3, radius=2.0).value == hs.bounds.sharp_upper(f, n=10**6, radius=2.0).value


def test_tied_distances_have_a_bound_without_radius_that_grows_slower_than_the_root(rng):
    f = CASES["l2 tied"](rng)
    small, large = (hs.bounds.sharp_upper(f, n=10, radius=r).value for r in (1e3, 1e6))
    assert small == large
    few, many = (hs.bounds.sharp_upper(f, n=n, radius=1e3).value for n in (10**4, 10**8))
    assert many / few < 10**4**0.35


def test_columns_of_gaussian_kernels_hold_what_is_claimed(rng):
    for n in (2, 5, 40):
        for spread in (0.3, 1.0, 3.0):
            x = spread * gauss(rng, 200, n, 3)
            E = torch.cdist(x, x).square()
            for masked in (False, True):
                hidden = torch.ones(n, n, dtype=torch.bool).triu(1) & masked
                P = torch.softmax((-E).masked_fill(hidden, -torch.inf), -1)
                assert float(P.sum(-2).max()) <= math.sqrt(2 * n if masked else n)
                assert float((P * E).sum(-2).max()) <= column_energy(n, masked=masked)
                assert float((P * E).sum(-1).max()) <= phi_inverse(n - 1)


def test_what_sparse_weights_push_is_attained():
    n = 28
    x = 1 / (1 + (n - 1) ** (1 / 3))
    P = torch.cat((torch.tensor([1 - x]), torch.full((n - 1,), x / (n - 1)))).double()
    t = torch.cat((torch.ones(1), -torch.ones(n - 1))).double()
    w = P.sqrt() / P.sqrt().sum()
    value = float((P * (t - w @ t).square()).sum().sqrt())
    other = P.new_tensor([x, *[(1 - x) / (n - 1)] * (n - 1)])
    w = other.sqrt() / other.sqrt().sum()
    assert max(value, float((other * (t - w @ t).square()).sum().sqrt())) == pytest.approx(entmax_deviation(n))


@pytest.mark.parametrize("theorem", ["kim_l2_upper", "lipsformer_upper"])
def test_published_theorems_refuse_what_they_are_not_about(theorem, rng):
    with pytest.raises(hs.errors.DtypeError, match=r"is about hs\."):
        getattr(hs.bounds, theorem)(CASES["sigmoid"](rng), n=4)
    with pytest.raises(hs.errors.AssumptionError, match="use sharp_upper"):
        getattr(hs.bounds, theorem)(CASES["l2 untied" if theorem == "kim_l2_upper" else "cosine"](rng), n=4)


def test_features_that_no_theorem_covers_are_refused_by_name(rng):
    Q = gauss(rng, 2, 2)
    masked = hs.maps.SigmoidAttention.single_head(Q=Q, K=Q, V=Q, positions=hs.maps.Positions(window=2))
    with pytest.raises(hs.errors.AssumptionError, match="window, padding or another mask"):
        hs.bounds.sharp_upper(masked, n=4, radius=1.0)
    with pytest.raises(hs.errors.DtypeError, match=r"theorems are about hs\.Attention"):
        mechanism_upper(hs.maps.LayerNorm(gain=torch.ones(2)), n=4, radius=1.0)


def test_kims_bound_as_it_is_printed_fails_for_long_queries():
    eye = torch.eye(2, dtype=F64)
    f = hs.maps.L2Attention.single_head(Q=5 * eye, K=5 * eye, V=eye, tied=True)
    found = hs.audit(f, claimed=kim(f, 4, as_printed=True), n=4, domain=hs.domains.Ball(1.0), steps=0, starts=1)
    assert found.refuted
    assert found.largest <= hs.bounds.kim_l2_upper(f, n=4).value
