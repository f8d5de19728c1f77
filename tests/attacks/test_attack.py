import itertools
import json
import math

import pytest
import torch
from cases import layer
from tokens.tiny import tiny
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.attacks.attack_settings import METHODS
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models.inputs.text import read_text

N, D = 4, 6
# perturbations in two metrics, displacements in the total norm
NORMS = {"total": hs.metrics.total, "token": hs.Metrics(input=hs.metrics.token, output=hs.metrics.total)}


@pytest.fixture
def gauss(rng):
    return lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", NORMS)
def test_no_method_leaves_the_ball_overspends_or_loses_what_it_had(method, norm, gauss):
    X, eps = gauss(2, N, D), 0.7
    found = hs.attack(layer(gauss), X, eps=eps, metric=NORMS[norm], method=method, budget=30, bounded=False)
    sizes = found.perturbation.norm(dim=-1) if norm == "token" else found.perturbation.norm(dim=(-2, -1))
    assert bool((sizes <= eps).all())
    assert found.perturbation.shape == X.shape
    assert 0 < found.products <= 30
    assert bool((found.trace.diff(dim=-1) >= 0).all())
    assert_close(found.trace[..., -1], found.displacement)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [8, 13])
def test_small_budgets_are_kept_too(method, budget, gauss):
    found = hs.attack(torch.tanh, gauss(N, D), eps=1.0, metric=NORMS["token"], method=method, budget=budget)
    assert found.products <= budget
    assert float(found.displacement) > 0


def test_the_displacement_is_that_of_the_perturbation_in_single_precision_too(gauss):
    f, X = layer(gauss).to(torch.float32), gauss(N, D).float()
    found = hs.attack(f, X, eps=0.3, bounded=False)
    moved = (f(X + found.perturbation).double() - f(X).double()).norm()
    assert_close(found.displacement, moved)
    assert float(found.perturbation.double().norm()) <= 0.3


@pytest.mark.slow
@pytest.mark.parametrize("eps", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("method", ["singular", "ascent"])
def test_on_a_linear_map_the_total_norm_attains_the_singular_value(eps, method, gauss):
    W, X = gauss(N * D, N * D), gauss(N, D)
    found = hs.attack(lambda Z: (W @ Z.flatten()).reshape(N, D), X, eps=eps, method=method)
    top = torch.linalg.matrix_norm(W, ord=2)
    # the direction is known to a residual of one percent, its value to the square of that
    assert_close(found.gain, top, rtol=1e-3 if method == "singular" else 1e-6, atol=0.0)
    assert_close(found.predicted, eps * top, rtol=1e-4, atol=0.0)


@pytest.mark.slow
def test_on_a_linear_map_the_token_norm_attains_the_closed_form(gauss):
    # a map that treats tokens alone moves each along the top singular vector of its own matrix
    W = gauss(N, D, D)
    found = hs.attack(
        lambda Z: torch.einsum("nij,nj->ni", W, Z), gauss(N, D), eps=0.5, metric=NORMS["token"], budget=400
    )
    closed = 0.5 * torch.linalg.matrix_norm(W, ord=2).norm()
    assert_close(found.displacement, closed, rtol=1e-4, atol=0.0)
    assert_close(found.predicted, closed, rtol=1e-2, atol=0.0)


def test_on_the_line_the_token_norm_tries_all_signs_at_once(gauss):
    # tokens of dimension one: the ball of tokens is a cube, whose best corner can be found by trying all
    W, X = gauss(5, 5), gauss(5, 1)
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=5)), dtype=torch.float64)
    found = hs.attack(lambda Z: W @ Z, X, eps=0.1, metric=NORMS["token"], budget=400)
    assert_close(found.gain, (corners @ W.mT).norm(dim=-1).max())


@pytest.mark.parametrize("name", hs.metrics.NAMED)
@pytest.mark.parametrize("method", ["pgd", "ascent"])
def test_in_every_metric_attacks_stay_in_the_ball_and_ascent_attains_what_the_derivative_predicts(name, method, gauss):
    f, X, eps = layer(gauss, heads=2), gauss(2, N, D), 1e-4
    found = hs.attack(f, X, eps=eps, metric=name, method=method, bounded=False)
    at = hs.metrics.NAMED[name].at(X), hs.metrics.NAMED[name].at(f(X))
    assert found.metric == name
    assert bool((at[0].size(found.perturbation) <= eps).all())
    assert_close(found.displacement, at[1].size(f(X + found.perturbation) - f(X)))
    if method == "ascent":
        assert bool((found.displacement >= 0.99 * found.predicted).all())
        constant = hs.local_lipschitz(f, X, metric=name)
        assert bool((found.predicted <= eps * constant.upper * (1 + 1e-6)).all())


@pytest.mark.parametrize("name", ["entries", "relative"])
def test_ceilings_hold_in_other_metrics(name, gauss):
    f, X = layer(gauss, heads=1), gauss(N, D)
    found = hs.attack(f, X, eps=0.01, metric=name)
    assert float(found.displacement) <= float(found.ceiling)


def test_two_tokens_on_the_line_are_moved_to_the_closed_form_optimum():
    # A = 0 averages: each output is V (x_1 + x_2)/2, so both tokens move the same way
    zero, V = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 3.0, dtype=torch.float64)
    f, X = hs.Attention.single_head(A=zero, V=V), torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    for norm, each in (("total", 1 / math.sqrt(2)), ("token", 1.0)):
        found = hs.attack(f, X, eps=0.5, metric=NORMS[norm], bounded=False)
        assert_close(found.perturbation.abs(), torch.full_like(X, 0.5 * each))
        assert_close(float(found.gain), 3 * math.sqrt(2) * each)


def test_two_tokens_far_from_linear_are_moved_as_far_as_a_fine_grid_says():
    one = torch.ones(1, 1, dtype=torch.float64)
    f, X = hs.Attention.single_head(A=one, V=one), torch.tensor([[0.4], [-0.7]], dtype=torch.float64)
    grid = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)
    E = torch.cartesian_prod(grid, grid)[..., None]
    moved = (f(X + E) - f(X)).norm(dim=(-2, -1))
    for norm in NORMS:
        inside = E.norm(dim=(-2, -1)) <= 1.5 if norm == "total" else E.abs().amax((-2, -1)) <= 1.5
        found = hs.attack(f, X, eps=1.5, metric=NORMS[norm], bounded=False)
        assert float(found.displacement) >= float(moved[inside].max()) * (1 - 1e-9)


@pytest.mark.slow
def test_ascent_attains_more_on_average_than_the_others_at_equal_budget(gauss):
    f, X = layer(gauss, heads=2), gauss(3, N, D)
    for norm in NORMS:
        ours, *others = (
            hs.attack(f, X, eps=0.5, metric=NORMS[norm], method=method, budget=100, bounded=False).displacement
            for method in ("ascent", "random", "fgsm", "singular")
        )
        for other in others:
            assert float(ours.mean()) >= float(other.mean())


@pytest.mark.slow
@pytest.mark.untyped
@pytest.mark.parametrize("norm", NORMS)
def test_on_random_heads_nothing_exceeds_a_ceiling(norm, gauss):
    for number in range(6):  # all four radii, with and without a mask
        f = hs.Attention.single_head(A=gauss(2, 2), V=gauss(2, 2), causal=number % 3 == 0)
        found = hs.attack(f, gauss(3, 2), eps=10.0 ** (number % 4 - 2), metric=NORMS[norm], budget=30)
        assert found.ceiling is not None
        assert float(found.displacement) <= float(found.ceiling)


@pytest.mark.untyped
@pytest.mark.parametrize("norm", NORMS)
def test_the_ceiling_is_the_proven_displacement_and_below_eps_times_the_largest_slope(norm, gauss):
    f, X, eps = layer(gauss, heads=1), gauss(2, N, D), 3.0
    found = hs.attack(f, X, eps=eps, metric=NORMS[norm], budget=10)
    for x, allowed in zip(X, found.ceiling, strict=True):
        ball = {"eps": eps, "metric": norm}
        length = eps * math.sqrt(N) if norm == "token" else eps
        assert_close(float(allowed), hs.bounds.displacement_upper(f, x, **ball).value)
        assert float(allowed) < 0.7 * length * hs.bounds.neighbourhood_upper(f, x, **ball).value


@pytest.mark.slow
@pytest.mark.untyped
def test_on_a_head_of_a_real_layer_the_ceiling_is_near_and_not_exceeded(minilm):
    f, X = minilm.activations(minilm.windows(read_text(), length=4, count=1)).at(3, "head:3")
    found = hs.attack(f, X[0], eps=0.01, budget=20)
    assert 0.9 * float(found.ceiling) < float(found.displacement) <= float(found.ceiling)


@pytest.mark.slow
@pytest.mark.untyped
@pytest.mark.parametrize(("norm", "eps", "layer"), [("total", 10.0, 4), ("token", 1.0, 1)])
def test_on_real_layers_nothing_exceeds_a_ceiling(norm, eps, layer, minilm):
    f, X = minilm.activations(minilm.windows(read_text(), length=4, count=1)).at(layer, "attention")
    found = hs.attack(f, X[0], eps=eps, metric=NORMS[norm], budget=60)
    assert float(found.displacement) <= float(found.ceiling)


def test_maps_that_no_theorem_covers_have_no_ceiling(gauss):
    assert hs.attack(torch.tanh, gauss(N, D), eps=1.0, budget=20).ceiling is None
    rotary = layer(gauss, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))
    assert hs.attack(rotary, gauss(N, D), eps=1.0, budget=20).ceiling is None


@pytest.mark.slow
def test_a_linear_target_rises_by_the_dual_norm_of_its_gradient(gauss):
    W, X = gauss(N, D), gauss(N, D)
    for norm, most in (("total", W.norm()), ("token", W.norm(dim=-1).sum())):
        for method in ("fgsm", "ascent"):
            found = hs.attack(
                lambda Z: Z, X, eps=0.2, metric=NORMS[norm], method=method, target=lambda Y: (W * Y).sum()
            )
            assert_close(found.rise, 0.2 * most)
            assert_close(found.predicted, 0.2 * most)


def test_the_cosine_with_the_sentence_as_it_was_falls_by_what_the_displacement_says():
    # on the sphere |u - v|² = 2 - 2⟨u, v⟩, so the farthest sentence is the one of the smallest cosine
    model, tokens = tiny("bert")
    f, X = model.activations(tokens[None]).at(0, "sentence")
    there = f(X)
    found = hs.attack(f, X, eps=0.5, target=lambda Y: -torch.cosine_similarity(Y, there, dim=-1).sum(-1), budget=100)
    assert_close(found.rise, found.displacement.square() / 2, rtol=1e-4, atol=1e-6)
    far = hs.attack(f, X, eps=0.5, budget=100)
    assert float(found.displacement) > 0.9 * float(far.displacement) > 0


def test_the_difference_of_two_logits_rises_by_what_its_gradient_says():
    model, tokens = tiny("gpt2")
    f, X = model.activations(tokens[None]).at(0, "logits")
    change = lambda Y: Y[..., -1, 7] - Y[..., -1, 3]  # noqa: E731
    eps = 1e-3 * float(X.norm())
    found = hs.attack(f, X, eps=eps, target=change, budget=60)
    assert_close(found.rise, change(f(X + found.perturbation)).double() - change(f(X)).double(), rtol=1e-3, atol=1e-6)
    assert_close(found.rise, found.predicted, rtol=0.05, atol=0.0)


def test_a_target_inside_the_ball_is_met(gauss):
    X, goal = gauss(N, D), gauss(N, D)
    goal = X + 0.3 * goal / goal.norm()
    found = hs.attack(lambda Z: Z, X, eps=1.0, target=lambda Y: -(Y - goal).norm())
    assert_close(found.perturbation, goal - X, rtol=1e-3, atol=1e-3)


def test_a_target_that_cannot_rise_leaves_the_input_alone(gauss):
    X = gauss(N, D)
    found = hs.attack(lambda Z: Z, X, eps=1.0, target=lambda Y: -(Y - X).norm())
    assert_close(found.perturbation, torch.zeros_like(X))
    assert float(found.rise) == float(found.displacement) == 0.0


def test_a_constant_map_is_not_moved(gauss):
    found = hs.attack(lambda Z: torch.ones_like(Z), gauss(N, D), eps=1.0, budget=20)
    assert float(found.displacement) == 0.0


def test_the_sequences_of_a_batch_are_attacked_each_by_itself(gauss):
    f, X = layer(gauss), gauss(3, N, D)
    found = hs.attack(f, X, eps=0.01, budget=60, bounded=False)
    assert len(found) == 3
    for x, one in zip(X, found, strict=True):
        assert_close(
            one.displacement, hs.attack(f, x, eps=0.01, budget=60, bounded=False).displacement, rtol=1e-3, atol=0.0
        )
        assert_close(one.predicted, 0.01 * hs.local_lipschitz(f, x).lower, rtol=1e-3, atol=0.0)


def test_padding_is_not_moved(gauss):
    real = torch.tensor([True, True, True, False])
    f = RealTokens(map=layer(gauss, positions=hs.maps.Positions(padding=real)), real=real)
    for method in METHODS:
        found = hs.attack(f, gauss(N, D), eps=1.0, metric=NORMS["token"], method=method, budget=20)
        assert float(found.perturbation[3].abs().max()) == 0.0, method


def test_an_attack_shows_itself_and_becomes_json(gauss):
    found = hs.attack(layer(gauss, heads=1), gauss(2, 2, D), eps=0.1, budget=20)
    assert "2 sequences" in repr(found)
    assert "predicted" in repr(found[0])
    assert "at most" in found[0]._repr_html_()
    told = json.loads(found.to_json())
    assert told["gain"] == found.gain.tolist()
    assert told["method"] == "ascent"
