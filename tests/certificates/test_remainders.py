"""Remainders of single maps: never longer than their bounds, in any direction, and often nearly as long."""

import pytest
import torch
from draws import gaussian

import howsmooth as hs
from howsmooth.certificates.attention_stage import AttentionStage
from howsmooth.certificates.image_norms import EUCLIDEAN, UnitBall
from howsmooth.certificates.mlp_stage import GatedStage, derivative, largest_derivative, mlp_stage
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.stages import FirstOrder
from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import ACTIVATIONS, known_activation

EPS = (1e-3, 0.03, 0.3, 1.0, 3.0, 30.0)
SMOOTH = sorted(set(ACTIVATIONS) - {"relu", "identity"})


def share(f, stage, X, columns, eps, rng, ball=EUCLIDEAN):
    """Return how much of what is allowed a remainder takes up, at most, along itself and along random functionals."""
    sizes = stage.image_norms(columns[None], ball)[0]
    bounds = stage.remainder(eps * sizes, FirstOrder(sizes, columns[None], eps, ball))
    directions, jacobian, found = stage.directions(), f.jacobian(X), 0.0
    assert len(bounds) == sum(map(len, directions))
    for _ in range(6):
        xi = gaussian(rng, len(columns))
        delta = torch.einsum("r,rnd->nd", eps * xi / torch.linalg.vector_norm(xi, ball.p), columns)
        R = f(X + delta) - f(X) - jacobian.jvp(delta)
        for h in (R, gaussian(rng, *R.shape)):
            along = torch.cat([(bundle * h).sum((-2, -1)).norm(dim=1) for bundle in directions])
            rounding = 1e-13 * (f(X + delta).norm() + f(X).norm() + jacobian.jvp(delta).norm()) * h.norm()
            found = max(found, float(((R * h).sum().abs() - rounding) / (bounds @ along).clamp_min(1e-300)))
    return found


def test_what_comes_from_earlier_remainders_bends_neurons_too(rng):
    f, X = hs.maps.MLP(up=gaussian(rng, 3, 2), down=gaussian(rng, 4, 3), activation="tanh"), gaussian(rng, 1, 2)
    stage, little, much = mlp_stage(f, X), 1e-9 * gaussian(rng, 1, 1, 2), gaussian(rng, 1, 1, 2)
    direct, later = (stage.image_norms(columns[None], EUCLIDEAN)[0] for columns in (little, much))
    for eps in (0.1, 1.0):
        bounds = stage.remainder(eps * (direct + later), FirstOrder(direct, little[None], eps, EUCLIDEAN))
        delta = eps * (little + much)[0]
        R = f(X + delta) - f(X) - f.jacobian(X).jvp(delta)
        (bundle,) = stage.directions()
        assert float((R * R).sum()) <= float(bounds @ (bundle * R).sum((-2, -1)).norm(dim=1))


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_queries_and_keys_that_move_towards_each_other_count(scale, rng):
    # scores are products of a coordinate that is zero at the centre: they change in second order only
    first, second = torch.eye(2, dtype=torch.float64)
    f = hs.Attention(query=first[None, None], key=first[None, None], value=second[None, None], scale=scale)
    X = torch.stack((0 * first, 0 * first + second))
    moved = torch.stack((first, first))[None]
    moved[0, 0] = -first
    for eps in (0.01, 0.3, 1.0):
        assert 0.2 < share(f, AttentionStage(f, X), X, moved, eps, rng) <= 1


@pytest.mark.parametrize("gap", [100.0, 800.0])
def test_a_token_that_nobody_attends_to_is_not_hidden(gap):
    # from a score 746 below on the weight is no float, and neither is any derivative
    first, second = torch.eye(2, dtype=torch.float64)
    key, value, bias = first[None, None], second[None, None], torch.ones(1, 1, dtype=torch.float64)
    f = hs.Attention(query=0 * key, key=key, value=value, query_bias=bias, scale=1.0)
    X = torch.stack((second, -gap * first - second))
    stage, columns = AttentionStage(f, X), torch.stack((0 * first, first))[None]
    sizes = stage.image_norms(columns[None], EUCLIDEAN)[0]
    for eps in (gap, 2 * gap):
        R = f(X + eps * columns[0]) - f(X) - f.jacobian(X).jvp(eps * columns[0])
        bounds = (1 + 1e-9) * stage.remainder(
            eps * sizes, FirstOrder(sizes, columns[None], eps, EUCLIDEAN)
        )  # as in a proof
        assert float(R[0].abs()) <= float(bounds[0])


def test_a_norm_whose_token_turns_round_moves_by_twice_its_length():
    f, X = hs.maps.RMSNorm(gain=torch.ones(2, dtype=torch.float64), eps=0.0), torch.tensor([[1.0, 0.0]]).double()
    stage, columns = NormStage(f, X), -X[None]
    sizes = torch.tensor([3.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(3 * stage.image_norms(columns[None], EUCLIDEAN)[0], sizes)
    along, across = stage.remainder(sizes, FirstOrder(sizes / 3, columns[None], 3.0, EUCLIDEAN)).tolist()
    R = f(-2 * X) - f(X) - f.jacobian(X).jvp(-3 * X)
    torch.testing.assert_close(R, -2 * f(X))
    assert (along, across) == pytest.approx((2.0, 1.0), rel=1e-14)  # norms of matrices, which processors round apart


def attention(rng, heads, groups, k, d, **others):
    return hs.Attention(
        query=gaussian(rng, heads, k, d),
        key=gaussian(rng, groups, k, d),
        value=gaussian(rng, groups, k, d),
        output=gaussian(rng, heads, d, k),
        query_bias=gaussian(rng, heads, k),
        value_bias=gaussian(rng, groups, k),
        **others,
    )


NORMS = {
    "layer norm": lambda rng: hs.maps.LayerNorm(gain=gaussian(rng, 4), bias=gaussian(rng, 4), eps=1e-12),
    "layer norm with a large eps": lambda rng: hs.maps.LayerNorm(gain=gaussian(rng, 4), eps=0.5),
    "rms norm": lambda rng: hs.maps.RMSNorm(gain=gaussian(rng, 4), eps=1e-6),
    "rms norm without eps": lambda rng: hs.maps.RMSNorm(gain=gaussian(rng, 4), eps=0.0),
}
ATTENTIONS = {
    "one head": lambda rng: attention(rng, 1, 1, 1, 2),
    "heads": lambda rng: attention(rng, 2, 2, 2, 4),
    "causal": lambda rng: attention(rng, 2, 2, 2, 4, positions=hs.maps.Positions(causal=True)),
    "shared keys and rotary": lambda rng: attention(
        rng, 4, 2, 2, 4, positions=hs.maps.Positions(rotary=hs.maps.Rotary(base=100.0))
    ),
    "concatenated": lambda rng: hs.Attention.single_head(A=gaussian(rng, 3, 3), V=gaussian(rng, 2, 3)),
}


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", NORMS)
def test_the_remainder_of_a_norm_stays_within_its_bound_and_comes_near_it(name, rank, rng):
    shares = []
    for eps in EPS:
        f, X = NORMS[name](rng), gaussian(rng, 2, 4)
        shares.append(share(f, NormStage(f, X), X, gaussian(rng, rank, 2, 4), eps, rng))
    assert 0.3 < max(shares) <= 1


@pytest.mark.parametrize("activation", [*SMOOTH, "relu"])
def test_the_remainder_of_an_mlp_stays_within_its_bound(activation, rng):
    shares = []
    for eps in EPS:
        f = hs.maps.MLP(
            up=gaussian(rng, 3, 2), down=gaussian(rng, 4, 3), up_bias=gaussian(rng, 3), activation=activation
        )
        X = gaussian(rng, 2, 2)
        shares.append(share(f, mlp_stage(f, X), X, gaussian(rng, 2, 2, 2), eps, rng))
    assert 0.1 < max(shares) <= 1


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
def test_the_remainder_of_a_gated_mlp_stays_within_its_bound(activation, rng):
    shares = []
    for eps in EPS:
        f = hs.maps.GatedMLP(
            gate=gaussian(rng, 3, 2), up=gaussian(rng, 3, 2), down=gaussian(rng, 4, 3), activation=activation
        )
        X = gaussian(rng, 2, 2)
        shares.append(share(f, GatedStage(f, X), X, gaussian(rng, 2, 2, 2), eps, rng))
    assert 0.1 < max(shares) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_remainder_of_attention_stays_within_its_bound_and_comes_near_it(name, rank, rng):
    shares = []
    for eps in EPS:
        f = ATTENTIONS[name](rng)
        X = gaussian(rng, 3, f.query.shape[-1])
        shares.append(share(f, AttentionStage(f, X), X, gaussian(rng, rank, *X.shape), eps, rng))
    assert 0.05 < max(shares) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("p", [1.0, 2.0, torch.inf])
def test_every_ball_keeps_within_the_bounds(p, rng):
    f, X = attention(rng, 2, 2, 2, 4), gaussian(rng, 3, 4)
    norm, mlp = NORMS["layer norm"](rng), hs.maps.MLP(up=gaussian(rng, 6, 4), down=gaussian(rng, 4, 6))
    for g, stage in ((f, AttentionStage(f, X)), (norm, NormStage(norm, X)), (mlp, mlp_stage(mlp, X))):
        for eps in EPS:
            assert share(g, stage, X, gaussian(rng, 4, 3, 4), eps, rng, UnitBall(p)) <= 1


@pytest.mark.parametrize("activation", SMOOTH)
def test_no_point_of_an_interval_bends_more_than_is_said(activation, rng):
    phi = known_activation(activation)
    for width in (0.01, 0.5, 3.0, 40.0):
        low = 4 * gaussian(rng, 50)
        inside = low[:, None] + width * torch.linspace(0, 1, 400, dtype=torch.float64)
        assert bool((derivative(phi, inside).abs().amax(1) <= largest_derivative(phi, low, low + width)).all())


def test_scores_that_are_not_bilinear_are_refused(rng):
    f = attention(rng, 1, 1, 2, 4, softcap=5.0)
    with pytest.raises(AssumptionError, match="bilinear"):
        AttentionStage(f, gaussian(rng, 3, 4))
