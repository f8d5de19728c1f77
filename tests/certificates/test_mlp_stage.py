"""The remainder of feed-forward parts, term by term: each as its theorem says it, unit by unit."""

import math

import pytest
import torch
from draws import gaussian, uniform

import howsmooth as hs
from howsmooth.certificates.image_norms import EUCLIDEAN
from howsmooth.certificates.mlp_stage import (
    GRID_END,
    GRID_ERROR,
    GRID_POINTS,
    GatedStage,
    MLPStage,
    SmoothMLPStage,
    activation_remainder,
    derivative,
    derivative_peaks,
    largest_derivative,
    mlp_stage,
)
from howsmooth.certificates.stages import FirstOrder
from howsmooth.maps.activations import known_activation


def mlp(rng, activation="gelu"):
    up, down = gaussian(rng, 5, 3), gaussian(rng, 2, 5)
    return hs.maps.MLP(up=up, down=down, up_bias=gaussian(rng, 5), activation=activation), gaussian(rng, 2, 3)


def largest(phi, y, s, order=2):
    return largest_derivative(phi, y - s, y + s, order).tolist()


def bent(phi, y, s):
    """Bound the remainder of every unit of a row."""
    if phi.name == "relu":
        return [max(b - abs(a), 0) for a, b in zip(y.tolist(), s.tolist(), strict=True)]
    return [0.5 * c * b**2 for c, b in zip(largest(phi, y, s), s.tolist(), strict=True)]


def drawn(rng, *shape):
    return 10 ** (2 * uniform(rng, *shape) - 1.5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_a_unit_bends_by_no_more_than_is_said(activation, rng):
    phi, y, s = known_activation(activation), gaussian(rng, 60), drawn(rng, 60)
    t = s * torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None]
    truth = (phi.value(y + t) - phi.value(y) - phi.slope(y) * t).abs().amax(0)
    found = activation_remainder(phi, y, s)
    assert bool((truth <= found + 1e-15).all())
    if activation == "relu":
        torch.testing.assert_close(found, truth, rtol=0.1, atol=1e-12)
    else:
        small = s < 0.2
        assert bool((truth[small] >= 0.5 * found[small] - 1e-3 * s[small] ** 2).any())
    assert found.tolist() == pytest.approx(bent(phi, y, s), rel=1e-12)


def test_smooth_units_bend_each_for_itself_or_by_what_moves_them_all(rng):
    f = hs.maps.MLP(up=gaussian(rng, 12, 6), down=gaussian(rng, 2, 12), up_bias=gaussian(rng, 12), activation="gelu")
    X, phi, ways = gaussian(rng, 2, 6), f.activation, []
    stage = SmoothMLPStage(f, X)
    for columns in (torch.eye(12, dtype=torch.float64).view(1, 12, 2, 6), gaussian(rng, 1, 3, 2, 6)):
        for eps, more in ((0.01, 0.0), (0.01, 0.1), (0.3, 0.5)):
            direct = stage.image_norms(columns, EUCLIDEAN)[0]
            sizes = eps * direct * (1 + more * uniform(rng, 24))
            found = stage.remainder(sizes, FirstOrder(direct, columns, eps, EUCLIDEAN)).tolist()
            for i in range(2):
                y, s, straight = stage._hidden[i], sizes.view(2, 12)[i], eps * direct.view(2, 12)[i]
                c = largest(phi, y, s)
                units = list(zip(c, s.tolist(), straight.tolist(), strict=True))
                each = math.hypot(*(0.5 * bend * b**2 for bend, b, _a in units))
                weighted = (columns @ f.up.mT)[:, :, i] * torch.tensor(c, dtype=torch.float64).sqrt()
                moved = eps * float(EUCLIDEAN.vector_norms(weighted)) + math.hypot(
                    *(bend**0.5 * (b - a) for bend, b, a in units)
                )
                together = 0.5 * max(bend**0.5 * b for bend, b, _a in units) * moved
                assert found[i] == pytest.approx(min(each, together), rel=1e-9)
                ways.append(each < together)
    assert 0 < sum(ways) < len(ways)


def test_what_smooth_units_leave_beyond_their_second_order_is_bounded_as_taylor_says(rng):
    f, X = mlp(rng, "tanh")
    stage, phi, ways = SmoothMLPStage(f, X), f.activation, []
    for _ in range(6):
        one, rest = drawn(rng, 10).view(2, 5), drawn(rng, 10).view(2, 5)
        found = stage.third_order_remainder(one.flatten(), rest.flatten()).tolist()
        for i in range(2):
            left, y, s = [], stage._hidden[i], one[i] + rest[i]
            thirds, whole = largest(phi, y, s, 3), bent(phi, y, s)
            for j in range(5):
                tanh, far, first = math.tanh(float(y[j])), float(s[j]), float(one[i, j])
                second = abs(-2 * tanh * (1 - tanh**2))
                taylor = 0.5 * second * (far**2 - first**2) + thirds[j] * far**3 / 6
                left.append(min(taylor, whole[j] + 0.5 * second * first**2))
                ways.append(left[-1] == taylor)
            assert found[i] == pytest.approx(math.hypot(*left), rel=1e-9)
    assert 0 < sum(ways) < len(ways)


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_gates_that_bend_and_what_they_open_are_bounded_as_the_theorem_says(activation, rng):
    f = hs.maps.GatedMLP(
        gate=gaussian(rng, 5, 3), up=gaussian(rng, 5, 3), down=gaussian(rng, 2, 5), gate_bias=gaussian(rng, 5),
        up_bias=gaussian(rng, 5), activation=activation,
    )  # fmt: skip
    X = gaussian(rng, 2, 3)
    stage, phi = GatedStage(f, X), known_activation(activation)
    a, u = X @ f.gate.mT + f.gate_bias, X @ f.up.mT + f.up_bias
    for _ in range(4):
        sizes = drawn(rng, 20)
        found = stage.remainder(sizes, FirstOrder(sizes, torch.zeros(1, 1, 2, 3).double(), 1.0, EUCLIDEAN)).tolist()
        s, tau = sizes.view(2, 2, 5).unbind(1)
        for i in range(2):
            left, bends = [], bent(phi, a[i], s[i])
            for j in range(5):
                opened = abs(float(phi.slope(a[i, j]))) * float(s[i, j]) + bends[j]
                left.append(bends[j] * abs(float(u[i, j])) + opened * float(tau[i, j]))
            assert found[i] == pytest.approx(math.hypot(*left), rel=1e-12)
    # of one column: gates first, what they open behind
    columns = gaussian(rng, 2, 1, 2, 3)
    moved = torch.cat((columns @ f.gate.mT, columns @ f.up.mT), dim=-1)[:, 0].abs().flatten(1)
    torch.testing.assert_close(stage.image_norms(columns, EUCLIDEAN), moved)


def test_the_length_of_what_all_units_bend_by_is_along_the_root_of_what_reads_them(rng):
    f, X = mlp(rng, "relu")
    stage, columns = mlp_stage(f, X), gaussian(rng, 2, 1, 2, 3)
    assert type(stage) is MLPStage
    assert type(mlp_stage(mlp(rng, "gelu")[0], X)) is SmoothMLPStage
    sizes = drawn(rng, 10)
    y = X @ f.up.mT + f.up_bias
    expected = (sizes.view(2, 5) - y.abs()).clamp_min(0).norm(dim=-1)
    torch.testing.assert_close(stage.remainder(sizes, FirstOrder(sizes, columns[:1], 1.0, EUCLIDEAN)), expected)
    torch.testing.assert_close(stage.image_norms(columns, EUCLIDEAN), (columns @ f.up.mT)[:, 0].abs().flatten(1))
    assert stage.tokens.tolist() == [0, 1]
    (bundle,) = stage.directions()
    for i in range(2):
        torch.testing.assert_close(bundle[i, :, i].mT @ bundle[i, :, i], f.down @ f.down.mT)
        assert not bool(bundle[i, :, 1 - i].any())


def test_derivatives_of_activations_are_those_of_their_formulas(rng):
    x = 2 * gaussian(rng, 20)
    t = x.tanh()
    tanh = known_activation("tanh")
    torch.testing.assert_close(derivative(tanh, x), -2 * t * (1 - t**2))
    torch.testing.assert_close(derivative(tanh, x, 3), (6 * t**2 - 2) * (1 - t**2))
    assert not bool(derivative(known_activation("identity"), x).any())


@pytest.mark.parametrize(("order", "places"), [(2, (0.6584789,)), (3, (0.0, 1.1462158))])
def test_peaks_of_a_curvature_are_where_calculus_finds_them(order, places):
    # tanh'' is largest where tanh² = ⅓, |tanh'''| at 0 and where tanh² = ⅔
    found = derivative_peaks(known_activation("tanh"), order)
    expected = sorted({sign * place for place in places for sign in (1, -1)})
    assert [place for place, _height in found] == pytest.approx(expected, abs=1e-3)
    for place, height in found:
        t = math.tanh(place)
        truth = abs(-2 * t * (1 - t**2)) if order == 2 else abs((6 * t**2 - 2) * (1 - t**2))
        assert height == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_no_interval_has_more_curvature_than_is_said_nor_much_less(activation, order, rng):
    phi, width = known_activation(activation), drawn(rng, 200)
    low = 2 * gaussian(rng, 200) - width / 2
    inside = low + width * torch.linspace(0, 1, 801, dtype=torch.float64)[:, None]
    truth = derivative(phi, inside, order).abs().amax(0)
    found = largest_derivative(phi, low, low + width, order)
    assert bool((truth <= found).all())
    assert bool((found <= truth + 2e-3).all())


def test_an_interval_that_ends_just_beside_a_peak_counts_its_height():
    # the peak itself lies between points of the grid
    phi, step = known_activation("tanh"), 2 * GRID_END / GRID_POINTS
    (place, height), beside = derivative_peaks(phi)[1], 0.95 * step
    for low, high in ((place + beside, place + 0.1), (place - 0.1, place - beside)):
        ends = (torch.tensor(end, dtype=torch.float64) for end in (low, high))
        assert float(largest_derivative(phi, *ends)) == pytest.approx(height + GRID_ERROR, rel=1e-12)
