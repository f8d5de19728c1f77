"""Bounds on attention of other kinds are their statements, computed once more from dense matrices and by autograd."""

import dataclasses
import math

import pytest
import torch
from draws import gaussian
from scipy.optimize import brentq, minimize_scalar
from torch.func import jacrev

import howsmooth as hs
from howsmooth.theory.mechanisms import mechanism_head as any_mechanism
from howsmooth.theory.mechanisms import other_weights, softmax_scores
from howsmooth.theory.mechanisms.mechanism_head import (
    MechanismHead,
    coarse_norm,
    layer_upper,
    length_upper,
    mechanism_head,
)
from howsmooth.theory.mechanisms.other_weights import _sigmoid_head as sigmoid_head
from howsmooth.theory.mechanisms.other_weights import largest_sigmoid_slope as slope
from howsmooth.theory.mechanisms.other_weights import sigmoid
from howsmooth.theory.mechanisms.softmax_scores import column_energy, halves, kim, lipsformer, phi_inverse

EPS = torch.finfo(torch.float64).eps
CLOSE = 1e-9  # allowances for rounding errors are far below


def norm(x):
    return torch.linalg.matrix_norm(x, 2).item()


def layer(rng, kind, *, mixed=True, biased=True, k=2, scale=0.7, **more):
    biases = {"query_bias": gaussian(rng, 2, k), "key_bias": gaussian(rng, 2, k), "value_bias": gaussian(rng, 2, 3)}
    return kind(
        query=gaussian(rng, 2, k, 4),
        key=gaussian(rng, 2, k, 4),
        value=gaussian(rng, 2, 3, 4),
        output=gaussian(rng, 2, 2, 3) if mixed else None,
        **({} if kind is hs.maps.LinearAttention else {"scale": scale}),
        **(biases if biased else {}),
        **more,
    )


def combined(f, each):
    """The smaller one of the sum of heads, and of the concatenated heads times the output projection."""
    parts = [mechanism_head(f, h) for h in range(f.layout.heads)]
    stacked = math.hypot(*(each(part) for part, _W in parts))
    if f.output is None:
        return stacked
    mixed = (dataclasses.replace(part, B=W @ part.B, value_bias=W @ part.value_bias) for part, W in parts)
    return min(sum(each(part) for part in mixed), stacked * norm(torch.cat(list(f.output), -1)))


def slopes(part, R):
    """How fast scores change with the token of the query and with that of the key, at most."""
    a, s = norm(part.K.mT @ part.Q) * abs(part.scale) * R, abs(part.scale)
    return a + s * (part.key_bias @ part.Q).norm().item(), a + s * (part.query_bias @ part.K).norm().item()


def l2(f, part, n, R):
    s, Q, K = part.scale, norm(part.Q), norm(part.K)
    V = s * norm(part.B @ part.Q.mT) * Q if f.tied else norm(part.B)
    far = (Q + K) * R + (part.query_bias - part.key_bias).norm().item()
    untied = V * (math.sqrt(n) + 2 * s * norm(part.K.mT @ part.Q) * R**2 + math.sqrt(n / 2) * 2 * s * K * far * R)
    if not torch.equal(part.Q, part.K):
        return untied
    n_root = (2 * n if f.positions.causal else n) ** 0.25
    if f.tied:
        L, rest = s * norm(part.B @ part.Q.mT), 0.0
    else:
        back = torch.linalg.pinv(part.Q)
        L, rest = norm(part.B @ back), norm(part.B @ (torch.eye(part.Q.shape[1]).double() - back @ part.Q))
    energy = 4 * s * Q**2 * R**2
    beta = min(phi_inverse(n - 1), energy)
    column = min(column_energy(n, masked=f.positions.causal), n_root**2 * energy)
    sigma = min(V * R, L * math.sqrt(beta / s) + rest * R)
    return min(untied, n_root * V + 2 * math.sqrt(s) * Q * sigma * (math.sqrt(beta) + math.sqrt(column)))


def sigmoid_statement(f, part, n, R):
    count = n if f.count is None else f.count
    bias = -math.log(count) if f.bias is None else f.bias
    pq, pk = slopes(part, R)
    s, a = abs(part.scale), norm(part.K.mT @ part.Q) * abs(part.scale)
    c = a * R**2 + s * R * ((part.key_bias @ part.Q).norm().item() + (part.query_bias @ part.K).norm().item())
    middle = bias + part.scale * float(part.query_bias @ part.key_bias)
    scores = torch.tensor([min(max(0.0, middle - c), middle + c), middle + c], dtype=torch.float64)
    steepest = (scores.sigmoid() * (-scores).sigmoid()).max().item()
    Y = norm(part.B) * R + part.value_bias.norm().item()
    return count * (norm(part.B) * scores[-1].sigmoid().item() + Y * steepest * (pq + pk))


def linear(f, part, n, R):
    Q, K, V = norm(part.Q), norm(part.K), norm(part.B)
    if f.normalised:
        return V * (math.sqrt(n) + R * (Q / math.sqrt(2) + math.sqrt(n / 2) * K))
    root = math.sqrt(len(part.Q))
    p, r = root + Q * R + part.query_bias.norm().item(), root + K * R + part.key_bias.norm().item()
    Y = V * R + part.value_bias.norm().item()
    return (n if f.count is None else f.count) * (V * p * r + Y * (r * Q + p * K))


def sinkhorn(f, part, n, R):
    return norm(part.B) * (1 + 2 * norm(part.K.mT @ part.Q) * abs(part.scale) * R**2)


def cosine(f, part, n, R):
    V, sharp = norm(part.B), f.eps**-0.5
    v, Y = (V * sharp, 1.0) if f.normalise_values else (V, V * R)
    steep = abs(f.score_scale) * Y * sharp * (norm(part.Q) + math.sqrt(n / 2) * norm(part.K))
    return abs(f.gain) * (math.sqrt(n) * v + steep)


def entmax(f, part, n, R):
    pq, pk = slopes(part, R)
    N = n if f.count is None else f.count
    kappa = math.sqrt(n) if f.alpha == 2 else 2 * math.sqrt(n) * (1 + (n - 1) ** (1 / 3)) ** -1.5
    share = N / n
    third = share ** (f.alpha - 1) * math.sqrt(n) * kappa * R * pk
    return norm(part.B) * (math.sqrt(n) + R * pq * N ** (f.alpha - 1) + third)


def differential(f, part, n, R):
    total = 0.0
    half = len(part.Q) // 2
    for rows, factor in ((slice(half), 1.0), (slice(half, None), f.subtracted.abs().max().item())):
        a = norm(part.K[rows].mT @ part.Q[rows]) * abs(part.scale)
        key = a * R + abs(part.scale) * (part.query_bias[rows] @ part.K[rows]).norm().item()
        total += factor * (math.sqrt(n) + a * R**2 + math.sqrt(n / 2) * R * key)
    return norm(part.B) * total


def tied_layer(rng, *, mixed, tied=False, **more):
    f = layer(rng, hs.maps.L2Attention, mixed=mixed, biased=False, **more)
    return dataclasses.replace(f, key=f.query, tied=tied)


STATEMENTS = {
    "l2": (l2, lambda g, **m: layer(g, hs.maps.L2Attention, **m)),
    "l2 tied": (l2, lambda g, **m: tied_layer(g, tied=True, **m)),
    "l2 tied causal": (l2, lambda g, **m: tied_layer(g, tied=True, positions=hs.maps.Positions(causal=True), **m)),
    "l2 same keys": (l2, lambda g, **m: tied_layer(g, **m)),
    "sigmoid": (sigmoid_statement, lambda g, **m: layer(g, hs.maps.SigmoidAttention, **m)),
    "sigmoid, a count and a bias": (
        sigmoid_statement,
        lambda g, **m: layer(g, hs.maps.SigmoidAttention, count=3.0, bias=-0.5, **m),
    ),
    "sigmoid, a negative scale": (
        sigmoid_statement,
        lambda g, **m: layer(g, hs.maps.SigmoidAttention, scale=-0.7, **m),
    ),
    "linear": (linear, lambda g, **m: layer(g, hs.maps.LinearAttention, **m)),
    "linear plain": (linear, lambda g, **m: layer(g, hs.maps.LinearAttention, normalised=False, **m)),
    "linear counted": (linear, lambda g, **m: layer(g, hs.maps.LinearAttention, normalised=False, count=3.0, **m)),
    "sinkhorn": (sinkhorn, lambda g, **m: layer(g, hs.maps.SinkhornAttention, **m)),
    "cosine": (cosine, lambda g, **m: layer(g, hs.maps.CosineAttention, eps=0.1, gain=-0.5, **m)),
    "cosine, a negative scale": (cosine, lambda g, **m: layer(g, hs.maps.CosineAttention, eps=0.1, scale=-0.7, **m)),
    "entmax": (entmax, lambda g, **m: layer(g, hs.maps.EntmaxAttention, **m)),
    "entmax, a negative scale": (entmax, lambda g, **m: layer(g, hs.maps.EntmaxAttention, scale=-0.7, **m)),
    "entmax counted": (entmax, lambda g, **m: layer(g, hs.maps.EntmaxAttention, count=3.0, **m)),
    "sparsemax": (entmax, lambda g, **m: layer(g, hs.maps.EntmaxAttention, alpha=2.0, **m)),
    "sparsemax counted": (entmax, lambda g, **m: layer(g, hs.maps.EntmaxAttention, alpha=2.0, count=3.0, **m)),
    "differential": (
        differential,
        lambda g, **m: layer(g, hs.maps.DifferentialAttention, k=4, subtracted=torch.tensor([-0.8, 0.3]).double(), **m),
    ),
}


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "concatenated"])
@pytest.mark.parametrize("kind", STATEMENTS)
def test_the_bound_in_a_ball_is_its_statement(rng, kind, mixed):
    statement, make = STATEMENTS[kind]
    made = make(rng, mixed=mixed)
    # outputs of one size, where the concatenation says less, and of different sizes, where the sum does
    uneven = torch.tensor([1.0, 1e-3]).double()[:, None, None]
    other = dataclasses.replace(made, output=uneven * made.output, value=made.value / uneven) if mixed else made
    for f in (made, other):
        for n, R in ((1, 0.3), (2, 0.05), (7, 0.4), (30, 2.0), (3000, 9.0)):
            exact = combined(f, lambda part, f=f, n=n, R=R: statement(f, part, n, R))
            found = hs.bounds.sharp_upper(f, n=n, radius=R).value
            assert exact * (1 + 20 * EPS) <= found <= exact * (1 + CLOSE)


def test_heads_combine_in_the_smaller_one_of_two_ways(rng):
    f = layer(rng, hs.maps.SinkhornAttention)
    # opposite outputs of equal values: their sum is twice one, the concatenation √2; far apart ones add up to less
    for output in (torch.ones(2, 2, 3).double(), gaussian(rng, 2, 2, 3) * torch.tensor([1.0, 1e-6])[:, None, None]):
        g = dataclasses.replace(f, output=output)
        assert layer_upper(g, lambda part: norm(part.B)) == pytest.approx(combined(g, lambda part: norm(part.B)))
    assert layer_upper(f, lambda part: math.nan) == math.inf


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "concatenated"])
def test_normalised_values_stand_between_the_heads_and_the_output_projection(rng, mixed):
    f = layer(rng, hs.maps.CosineAttention, mixed=mixed, eps=0.1, normalise_values=True)
    n, R = 7, 2.0
    heads = math.hypot(*(cosine(f, mechanism_head(f, h)[0], n, R) for h in range(2)))
    exact = heads * (norm(torch.cat(list(f.output), -1)) if mixed else 1.0)
    found = hs.bounds.sharp_upper(f, n=n, radius=R).value
    assert exact * (1 + 20 * EPS) <= found <= exact * (1 + CLOSE)


def test_published_bounds_are_their_formulas(rng):
    f = tied_layer(rng, mixed=True, tied=True)
    norms = math.hypot(*(norm(Q) ** 2 * norm(V) for Q, V in zip(f.query, f.value, strict=True)))
    output, energy = norm(torch.cat(list(f.output), -1)), phi_inverse(6)
    exact = 0.7 * math.sqrt(7) * (4 * energy + 1) * norms * output
    assert exact * (1 + 20 * EPS) <= hs.bounds.kim_l2_upper(f, n=7).value <= exact * (1 + CLOSE)
    alone = math.hypot(*(norm(Q) * norm(V) for Q, V in zip(f.query, f.value, strict=True)))
    assert kim(f, 7, as_printed=True) == pytest.approx(exact * alone / norms)
    bare = dataclasses.replace(f, output=None)
    assert hs.bounds.kim_l2_upper(bare, n=7).value == pytest.approx(exact / output)
    one = layer(
        rng, hs.maps.CosineAttention, eps=0.04, gain=-1.5, normalise_values=True, biased=False, scale=-0.7
    ).head(0)
    Q, K, V, W = one.query[0], one.key[0], one.value[0], one.output[0]
    exact = 2 * 1.5 / 0.2 * (7 * 6 * 0.7 * norm(K) + 6 * 0.7 * norm(Q) + 7 * norm(V))
    found = hs.bounds.lipsformer_upper(one, n=7).value
    assert exact * norm(W) * (1 + 20 * EPS) <= found <= exact * norm(W) * (1 + CLOSE)
    assert lipsformer(dataclasses.replace(one, output=None), 7) == pytest.approx(exact)
    assert lipsformer(dataclasses.replace(one, eps=0.0), 7) == math.inf
    f = layer(rng, hs.maps.SigmoidAttention, biased=False)
    X = gaussian(rng, 5, 4)

    def ramapuram(part):
        S = part.scale * (X @ part.Q.mT) @ (X @ part.K.mT).mT - math.log(5)
        mean = X.square().sum(-1).mean().item()
        steepest = (S.sigmoid() * (-S).sigmoid()).max().item()
        a = norm(part.K.mT @ part.Q) * part.scale
        return norm(part.B) * 5 * (S.sigmoid().max().item() + 2 * steepest * a * mean)

    exact = combined(f, ramapuram)
    assert exact * (1 + 20 * EPS) <= hs.bounds.ramapuram_upper(f, X).value <= exact * (1 + CLOSE)


def test_energies_against_a_point_at_zero_hold_what_the_root_says():
    for N in (0.5, 1.0, 15.0, 1e6):
        root = brentq(lambda x, N=N: x * math.exp(x + 1) - N, 0, 50, xtol=1e-15)
        assert root <= phi_inverse(N) <= root * (1 + 1e-9)
    for n in (2, 3, 9, 1000, 10**7):
        for masked in (False, True):
            kernel = minimize_scalar(
                lambda e, n=n: n ** ((1 + e) / 2) / (math.e * e), bounds=(1e-3, 1), method="bounded"
            ).fun
            exact = min((n - 1) * phi_inverse(1.0), kernel * (math.sqrt(2) if masked else 1))
            assert exact * (1 - 1e-5) <= column_energy(n, masked=masked) <= exact * (1 + 1e-9)
    assert column_energy(1, masked=False) == 0


def test_roots_and_kernels_are_rounded_up_by_a_share_of_their_own():
    for N in (1.0, 15.0, 1e6):
        root = brentq(lambda x, N=N: x * math.exp(x + 1) - N, 0.0, 20.0, xtol=1e-16, rtol=1e-15)
        assert phi_inverse(N) == pytest.approx(root * (1 + 1e-12), rel=2e-13, abs=0)
    for n in (256, 10**6):
        share = min(1.0, 2 / math.log(n))
        kernel = n ** ((1 + share) / 2) / (math.e * share)
        assert column_energy(n, masked=False) == pytest.approx(kernel * (1 + 1e-12), rel=1e-14)
        assert column_energy(n, masked=True) == pytest.approx(math.sqrt(2) * kernel * (1 + 1e-12), rel=1e-14)


def test_the_steepest_point_of_the_sigmoid_is_the_one_nearest_to_zero():
    for low, high in ((-2.0, 1.0), (0.5, 3.0), (-4.0, -1.0), (-900.0, -800.0)):
        grid = torch.linspace(low, high, 100001, dtype=torch.float64)
        assert slope(low, high) == pytest.approx((grid.sigmoid() * (-grid).sigmoid()).max().item(), rel=1e-6)
    for u in (-900.0, -3.0, 0.0, 0.7, 900.0):
        assert sigmoid(u) == pytest.approx(torch.tensor(u, dtype=torch.float64).sigmoid().item(), rel=1e-12, abs=1e-300)


def test_norms_and_lengths_are_widened_by_their_rounding(rng):
    x = gaussian(rng, 5, 9)
    assert norm(x) * (1 + 200 * EPS) <= coarse_norm(x) <= norm(x) * (1 + CLOSE)
    assert x[0].norm().item() * (1 + 200 * EPS) <= length_upper(x[0]) <= x[0].norm().item() * (1 + CLOSE)
    # queries and keys that do not meet: what is left is rounding, and it is not called zero
    eye = torch.eye(4).double()
    zero = torch.zeros(4).double()
    part = MechanismHead(
        Q=torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0]).double()),
        K=torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0]).double()),
        B=eye,
        query_bias=zero,
        key_bias=zero,
        value_bias=zero,
        scale=-3.0,
    )
    assert 3 * 4 * EPS <= part.norm_A <= 1e-12


def test_the_parts_that_statements_are_made_of_are_the_tensors_of_the_layer(rng):
    names = {"Q": "query", "K": "key", "B": "value", "query_bias": None, "key_bias": None, "value_bias": None}
    for f in (layer(rng, hs.maps.SigmoidAttention), layer(rng, hs.maps.SigmoidAttention, biased=False)):
        for h in range(2):
            part, W = mechanism_head(f, h)
            for name, tensor in names.items():
                given = getattr(f, tensor or name)
                exact = torch.zeros(len(getattr(part, name))).double() if given is None else given[h]
                assert torch.equal(getattr(part, name), exact)
            assert torch.equal(W, f.output[h])
            assert part.scale == 0.7
    assert mechanism_head(layer(rng, hs.maps.SigmoidAttention, mixed=False), 0)[1] is None


# At one input.


def softmax(S):
    return torch.softmax(S, -1)


def dots(part, Y, Z):
    return part.scale * (Y @ part.Q.mT + part.query_bias) @ (Z @ part.K.mT + part.key_bias).mT


def squares(part, Y, Z):
    q, k = Y @ part.Q.mT + part.query_bias, Z @ part.K.mT + part.key_bias
    return -part.scale * (q[:, None] - k).square().sum(-1)


def logarithms(part, Y, Z):
    q, k = Y @ part.Q.mT + part.query_bias, Z @ part.K.mT + part.key_bias
    return ((torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT).log()


def cosines(eps):
    def scores(part, Y, Z):
        q, k = Y @ part.Q.mT + part.query_bias, Z @ part.K.mT + part.key_bias
        q, k = (z / (z.square().sum(-1, keepdim=True) + eps).sqrt() for z in (q, k))
        return part.scale * q @ k.mT

    return scores


def sparse(S):
    """The sparsemax, by sorting."""
    z = S.sort(-1, descending=True).values
    many = torch.arange(1, S.shape[-1] + 1).double()
    count = (1 + many * z > z.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (z.cumsum(-1).gather(-1, count - 1) - 1) / count
    return (S - threshold).clamp_min(0)


def half_sparse(S):
    """The 1.5-entmax, by sorting."""
    z = (S / 2).sort(-1, descending=True).values
    many = torch.arange(1, S.shape[-1] + 1).double()
    mean, square = z.cumsum(-1) / many, z.square().cumsum(-1) / many
    thresholds = mean - ((1 / many - (square - mean.square())).clamp_min(0)).sqrt()
    count = (thresholds <= z).sum(-1, keepdim=True)
    return (S / 2 - thresholds.gather(-1, count - 1)).clamp_min(0).square()


def three_terms(part, X, scores, weights, hidden, values=None, gain=1.0):
    """The certificate of one head at an input, every derivative by autograd."""

    def masked(S):
        return S if hidden is None else S.masked_fill(hidden, -1e4)  # far enough below

    S = scores(part, X, X)
    y = X @ part.B.mT + part.value_bias if values is None else X @ values.mT
    P = gain * weights(masked(S))
    moved = jacrev(lambda S: gain * weights(masked(S)) @ y)(S).nan_to_num(0.0)
    by_query = jacrev(lambda Y: scores(part, Y, X))(X)
    by_key = jacrev(lambda Z: scores(part, X, Z))(X)
    second, third = 0.0, 0.0
    for i in range(len(X)):
        M = moved[i, :, i]  # out, columns
        second = max(second, norm(M @ by_query[i, :, i]))
        pull = by_key[i].diagonal(dim1=0, dim2=1).norm(dim=0)
        third += norm(M * pull) ** 2
    return norm(part.B if values is None else values) * norm(P), second, math.sqrt(third)


HERE = {
    "l2": (hs.maps.L2Attention, squares, softmax, {}),
    "linear": (hs.maps.LinearAttention, logarithms, softmax, {}),
    "cosine": (hs.maps.CosineAttention, cosines(0.1), softmax, {"eps": 0.1, "gain": -0.5}),
    "sigmoid": (hs.maps.SigmoidAttention, dots, lambda S: (S - math.log(5)).sigmoid(), {}),
    "sigmoid counted": (
        hs.maps.SigmoidAttention,
        dots,
        lambda S: 3 / 5 * (S - 0.2).sigmoid(),
        {"count": 3.0, "bias": -0.2},
    ),
    "sparsemax": (hs.maps.EntmaxAttention, dots, sparse, {"alpha": 2.0}),
    "entmax": (hs.maps.EntmaxAttention, dots, half_sparse, {}),
}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", HERE)
def test_the_bound_at_an_input_is_its_statement(rng, kind, causal):
    made, scores, weights, more = HERE[kind]
    f = layer(rng, made, mixed=False, positions=hs.maps.Positions(causal=causal), **more).head(0)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    for scale in (0.3, 1.5):
        X = scale * gaussian(rng, 5, 4)
        gain = getattr(f, "gain", 1.0)
        first, second, third = three_terms(mechanism_head(f, 0)[0], X, scores, weights, hidden, gain=gain)
        exact = first + second + third
        found = hs.bounds.local_upper(f, X).value
        assert exact * (1 + 20 * EPS) <= found <= exact * (1 + 1e-8)


def test_tied_values_at_an_input_are_those_of_the_form(rng):
    f = tied_layer(rng, mixed=False, tied=True).head(0)
    part, X = mechanism_head(f, 0)[0], gaussian(rng, 5, 4)
    values = part.scale * part.B @ part.Q.mT @ part.Q
    first, second, third = three_terms(part, X, squares, softmax, None, values=values)
    through = norm(part.scale * part.B @ part.Q.mT) * norm(part.Q) / norm(values)
    exact = first * through + second + third
    assert exact * (1 + 20 * EPS) <= hs.bounds.local_upper(f, X).value <= exact * (1 + 1e-8)
    widened = coarse_norm(part.scale * part.B @ part.Q.mT) * coarse_norm(part.Q)
    assert softmax_scores._l2_at_input(f, part, X, None).norm_V == pytest.approx(widened, rel=1e-15, abs=0)


def test_two_softmaxes_at_an_input_add_up(rng):
    f = layer(rng, hs.maps.DifferentialAttention, k=4, mixed=False, subtracted=torch.tensor([-0.8, 0.3]).double())
    f, X = dataclasses.replace(f, subtracted=f.subtracted.flip(0)), gaussian(rng, 5, 4)
    each = []
    for h in range(2):
        one, two = (sum(three_terms(half, X, dots, softmax, None)) for half in halves(mechanism_head(f, h)[0]))
        each.append(one + 0.8 * two)
    exact = math.hypot(*each)
    assert exact * (1 + 20 * EPS) <= hs.bounds.local_upper(f, X).value <= exact * (1 + 1e-8)


def test_sinkhorn_attention_at_an_input_has_covariances_of_rows_and_columns(rng):
    f = layer(rng, hs.maps.SinkhornAttention, mixed=False).head(0)
    part, X = mechanism_head(f, 0)[0], 0.4 * gaussian(rng, 5, 4)
    S = dots(part, X, X)
    for _step in range(500):
        S = S - S.logsumexp(-1, keepdim=True)
        S = S - S.logsumexp(-2, keepdim=True)
    P, s = S.exp(), part.scale

    def spread(P, y, M):
        roots = []
        for p in P:
            centred = y - p @ y
            roots.append(norm(p.sqrt()[:, None] * centred @ M))
        return max(roots)

    q, k, y = X @ part.Q.mT, X @ part.K.mT, X @ part.B.mT
    steep = spread(P, s * k, part.Q) + spread(P.mT, s * q, part.K)
    exact = norm(part.B) * norm(P) + spread(P, y, torch.eye(3).double()) * steep
    found = hs.bounds.local_upper(f, X).value
    assert exact * (1 + 5e-9) <= found <= exact * (1 + 1e-6)
    assert other_weights._balanced(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]).double()) is None


def test_what_rounding_did_to_weights_is_a_share_of_all_that_moves_with_them(rng):
    n, d, exponent, reach, V = 4, 3, 3e9, 5.0, 2.0
    rows = any_mechanism.MechanismAtInput(
        P=torch.softmax(gaussian(rng, n, n), -1) * 1.7,
        output_gradient=gaussian(rng, n, n, d),
        query_gradient=gaussian(rng, n, n, d) * torch.linspace(1, 5, n).double()[:, None],
        key_gradient=gaussian(rng, n, n).abs(),
        exponent=exponent,
        value_diameter=reach,
        norm_V=V,
    )
    wrong = math.expm1(2 * (exponent + n + 64) * EPS) + 64 * n * EPS
    second, third = 0.0, 0.0
    for i in range(n):
        lost = wrong * reach * rows.P[i].sum().item()
        query = norm(rows.output_gradient[i].mT @ rows.query_gradient[i])
        second = max(second, query + lost * rows.query_gradient[i].norm(dim=-1).max().item())
        third += (
            norm(rows.output_gradient[i] * rows.key_gradient[i, :, None]) + lost * rows.key_gradient[i].max().item()
        ) ** 2
    exact = V * norm(rows.P) * (1 + wrong) + second + math.sqrt(third)
    assert any_mechanism.three_terms(rows) == pytest.approx(exact, rel=1e-12)
    for small in (0.0, 1e18):
        changed = dataclasses.replace(rows, exponent=small)
        assert (any_mechanism.three_terms(changed) < exact) == (small == 0)
    calm = dataclasses.replace(rows, exponent=0.0, norm_V=1e3)
    wrong = math.expm1(2 * (n + 64) * EPS) + 64 * n * EPS
    second, third = 0.0, 0.0
    for i in range(n):
        lost = wrong * reach * rows.P[i].sum().item()
        query = norm(rows.output_gradient[i].mT @ rows.query_gradient[i])
        second = max(second, query + lost * rows.query_gradient[i].norm(dim=-1).max().item())
        third += (
            norm(rows.output_gradient[i] * rows.key_gradient[i, :, None]) + lost * rows.key_gradient[i].max().item()
        ) ** 2
    stated = 1e3 * coarse_norm(rows.P) * (1 + wrong) + second + math.sqrt(third)
    assert any_mechanism.three_terms(calm) == pytest.approx(stated, rel=4e-15)
    few = dataclasses.replace(rows, exponent=0.0, value_diameter=0.0)
    zero = V * norm(rows.P) + max(
        norm(m.mT @ q) for m, q in zip(rows.output_gradient, rows.query_gradient, strict=True)
    )
    zero += math.sqrt(
        sum(norm(m * k[:, None]) ** 2 for m, k in zip(rows.output_gradient, rows.key_gradient, strict=True))
    )
    assert any_mechanism.three_terms(few) >= zero + V * norm(rows.P) * 200 * EPS
    broken = dataclasses.replace(rows, norm_V=math.nan)
    assert any_mechanism.three_terms(broken) == math.inf


def test_the_numbers_that_weights_are_made_of_bound_their_rounding(rng):
    kinds = (hs.maps.L2Attention, hs.maps.SigmoidAttention, hs.maps.LinearAttention, hs.maps.CosineAttention)
    made = (
        softmax_scores._l2_at_input,
        other_weights._sigmoid_at_input,
        other_weights._linear_at_input,
        softmax_scores._cosine_at_input,
    )
    for kind, make in 4 * list(zip(kinds, made, strict=True)):
        X = gaussian(rng, 5, 4)
        more = {"eps": 0.1, "gain": -0.5, "scale": -0.7} if kind is hs.maps.CosineAttention else {}
        f = layer(rng, kind, mixed=False, **more).head(0)
        part = mechanism_head(f, 0)[0]
        q, k, y = X @ part.Q.mT + part.query_bias, X @ part.K.mT + part.key_bias, X @ part.B.mT + part.value_bias
        largest = {
            hs.maps.L2Attention: part.scale * (q.norm(dim=-1).max() + k.norm(dim=-1).max()) ** 2,
            hs.maps.SigmoidAttention: (part.scale * q @ k.mT - math.log(5)).abs().max(),
            hs.maps.LinearAttention: torch.cat((q, k)).abs().max(),
            hs.maps.CosineAttention: 0.7 * (1 + X.norm(dim=-1).max() / math.sqrt(0.1) * (norm(part.Q) + norm(part.K))),
        }[kind]
        rows = make(f, part, X, None)
        assert rows.exponent == pytest.approx(16 * float(largest), rel=1e-9)
        assert rows.norm_V == pytest.approx(coarse_norm(part.B), rel=1e-15, abs=0)
        gain = -0.5 if kind is hs.maps.CosineAttention else 1.0
        far = y.norm(dim=-1) if kind is hs.maps.SigmoidAttention else 2 * (y - y.mean(0)).norm(dim=-1)
        assert rows.value_diameter == pytest.approx(abs(gain) * far.max().item(), rel=1e-9)


def test_an_input_at_the_edge_of_a_sparse_support_has_no_bound(rng):
    eye = torch.eye(2).double()[None]
    f = hs.maps.EntmaxAttention(query=eye, key=eye, value=eye, alpha=2.0, scale=1.0)
    # scores of the first row are 1 and 0: the second weight is zero at the very edge
    edge = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    assert hs.bounds.local_upper(f, edge).value == math.inf
    assert hs.bounds.local_upper(f, 0.5 * edge).value < math.inf
    assert hs.bounds.local_upper(f, 2.0 * edge).value < math.inf
    # so near to it that rounding may have put the token on the other side
    for near in (1 - 4 * EPS, 1 + 4 * EPS):
        assert hs.bounds.local_upper(f, near * edge).value == math.inf


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_scores_of_sparse_and_of_subtracted_weights_bound_their_rounding(rng, alpha, monkeypatch):
    given = []
    for room in (softmax_scores, other_weights):
        monkeypatch.setattr(room, "three_terms", lambda rows: given.append(rows) or 1.0)
    for _draw in range(6):
        f, X = layer(rng, hs.maps.EntmaxAttention, mixed=False, alpha=alpha).head(0), gaussian(rng, 5, 4)
        part = mechanism_head(f, 0)[0]
        y = X @ part.B.mT
        far = 2 * (y - y.mean(0)).norm(dim=-1).max().item()
        largest = 16 * dots(part, X, X).abs().max().item()
        given.clear()
        hs.bounds.local_upper(f, X)
        assert given[0].exponent == pytest.approx(5 * largest)
        assert given[0].value_diameter == pytest.approx(5 * far)
        assert given[0].norm_V == pytest.approx(coarse_norm(part.B), rel=1e-15, abs=0)
        rows = softmax_scores._dots(part, X, None)
        assert rows.norm_V == pytest.approx(coarse_norm(part.B), rel=1e-15, abs=0)
        assert rows.exponent == pytest.approx(largest)
        assert rows.value_diameter == pytest.approx(far)


def test_covariances_of_one_hot_weights_are_their_rounding(rng):
    y, M = gaussian(rng, 6, 3), gaussian(rng, 3, 2)
    P = torch.eye(6).double()
    far = max(((a - b) @ M).square().sum().item() for a in y for b in y)
    assert other_weights._spread(P, y, M) == pytest.approx(math.sqrt(6 * 64 * EPS * far))


def test_balanced_weights_have_rows_and_columns_that_sum_to_one(rng):
    for steep in (0.1, 1.0, 3.0):
        for _draw in range(5):
            S = steep * gaussian(rng, 6, 6)
            P = other_weights._balanced(S)
            assert float((P.sum(-1) - 1).abs().max()) < 1e-12
            assert float((P.sum(-2) - 1).abs().max()) < 1.1 * other_weights.LOOSE / 100
            # products of a row's and a column's factors: cross ratios stay
            ratio = (P.log() - S) - (P.log() - S)[:1] - (P.log() - S)[:, :1] + (P.log() - S)[:1, :1]
            assert float(ratio.abs().max()) < 1e-9


def test_steep_sigmoids_are_widened_by_the_rounding_of_their_scores():
    one, zero = torch.ones(1, 1).double(), torch.zeros(1).double()
    part = MechanismHead(Q=1e3 * one, K=1e3 * one, B=one, query_bias=zero, key_bias=zero, value_bias=zero, scale=1.0)
    found = sigmoid_head(part, 3, 1.0, -1e6, 3.0)
    widened = 1 + 64 * 2.0**-52 * (1 + 2e6)
    assert found == pytest.approx(3 * (0.5 + 0.25 * 2e6) * widened, rel=1e-12)
    flat = dataclasses.replace(part, Q=0 * part.Q)
    assert sigmoid_head(flat, 3, 1.0, 0.0, 3.0) == pytest.approx(
        1.5 * coarse_norm(one) * (1 + 64 * 2.0**-52), rel=1e-15, abs=0
    )


def test_scores_that_are_all_zero_leave_averages_of_values():
    eye = torch.eye(3).double()[None]
    f = hs.maps.L2Attention(query=eye, key=eye, value=eye, scale=0.0)
    assert hs.bounds.sharp_upper(f, n=16, radius=2.0).value == pytest.approx(2.0)


def test_published_bounds_are_widened_by_the_rounding_of_every_norm(rng):
    one = layer(rng, hs.maps.CosineAttention, eps=0.04, normalise_values=True, biased=False).head(0)
    part, W = mechanism_head(one, 0)
    stated = (
        2 / 0.2 * (7 * coarse_norm(part.B) + 6 * 0.7 * (7 * coarse_norm(part.K) + coarse_norm(part.Q))) * coarse_norm(W)
    )
    assert lipsformer(one, 7) == pytest.approx(stated, rel=2e-15)
    f = tied_layer(rng, mixed=True, tied=True)
    norms = math.hypot(*(coarse_norm(Q) ** 2 * coarse_norm(V) for Q, V in zip(f.query, f.value, strict=True)))
    stated = 0.7 * math.sqrt(7) * (4 * phi_inverse(6) + 1) * norms * coarse_norm(torch.cat(list(f.output), -1))
    assert kim(f, 7) == pytest.approx(stated, rel=2e-15)
    g, X = layer(rng, hs.maps.SigmoidAttention, biased=False, mixed=False).head(0), gaussian(rng, 5, 4)
    rows = other_weights._sigmoid_at_input(g, mechanism_head(g, 0)[0], X, None)
    steepest = (rows.P * (1 - rows.P)).max().item()
    inner = rows.P.max().item() + 2 * steepest * mechanism_head(g, 0)[0].norm_A * X.square().sum(-1).mean().item()
    stated = coarse_norm(mechanism_head(g, 0)[0].B) * 5 * (1 + (rows.exponent + 64 * 5) * EPS) * inner
    found = hs.bounds.ramapuram_upper(g, X)
    assert math.exp(found.log_value) == pytest.approx(stated, rel=1e-14)


def test_bounds_in_a_ball_are_widened_by_the_rounding_of_every_norm(rng):
    n, R = 7, 0.4
    for kind in STATEMENTS:
        f = STATEMENTS[kind][1](rng, mixed=False).head(0)
        part = mechanism_head(f, 0)[0]
        found = math.exp(hs.bounds.sharp_upper(f, n=n, radius=R).log_value)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(f"{__name__}.norm", coarse_norm)
            stated = STATEMENTS[kind][0](f, part, n, R)
        assert found >= stated * (1 - 4e-15), kind
