import math

import pytest
import torch
from cases import layer
from draws import gaussian
from oracles import constant
from theory.example_layers import ROUNDING, form
from theory.perturbed_inputs import ascended, constants, on_boundary, small_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, HowsmoothError
from howsmooth.spectral.solvers import widening
from howsmooth.theory.around_input import neighbourhood
from howsmooth.theory.around_input.first_derivative import FirstDerivative
from howsmooth.theory.around_input.head_on_ball import HeadAtCentre
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, LayerOnBall
from howsmooth.theory.around_input.neighbourhood import AroundOrigin, InputCentre, constants_on_balls, token_unit
from howsmooth.theory.around_input.second_derivative import SecondDerivative
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.rescaling import Rescaled
from howsmooth.theory.linalg.matrix_norms import norm_upper


@pytest.fixture
def coarse(monkeypatch):
    """Sum over four intervals in place of sixteen: that is larger by little, in a quarter of the time."""
    monkeypatch.setattr(neighbourhood, "INTERVALS", 4)


def gauss_from(rng):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=rng)


def within(f, X, eps, per_token):
    return hs.bounds.neighbourhood_upper(f, X, eps=eps, metric=("total", "token")[per_token]).value


def moved(X, t, per_token, rng):
    """A random input on the boundary of the ball."""
    E = torch.randn(X.shape, dtype=X.dtype, generator=rng)
    if torch.rand((), generator=rng) < 0.5:  # one token alone
        E = E * (torch.arange(len(X)) == torch.randint(len(X), (), generator=rng))[:, None]
    length = E.norm(dim=-1, keepdim=True).clamp_min(1e-9) if per_token else E.norm()
    return X + t * E / length


@pytest.mark.slow
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_quantity_on_the_ball_is_bounded(rng, causal, per_token):
    f = layer(gauss_from(rng), heads=1, positions=hs.maps.Positions(causal=causal))
    X = 0.7 * gauss_from(rng)(7, 6)
    (view,) = (alone.mixed() for alone in heads_at_input(f, X))
    for t in (0.01, 0.1, 0.5, 2.0):
        region = HeadAtCentre.of(view).on_ball(t, per_token)
        for _draw in range(6):
            Z = moved(X, t, per_token, rng)
            (there,) = (alone.mixed() for alone in heads_at_input(f, Z))
            here = HeadAtCentre.of(there)
            visible = here.log_P > -torch.inf
            truth = {
                "upper": here.P,
                "peak": here.P.amax(-1),
                "tau": here.tau,
                "sigma": here.sigma,
                "rho": torch.where(visible, here.value_distance, 0.0).amax(-1),
                "gamma": here.key_gradient,
            }
            for name, value in truth.items():
                # the standard deviations at Z carry an allowance for rounding
                assert bool((value <= getattr(region, name) * (1 + 1e-9) + 1e-6).all()), name


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_the_second_derivative_is_below_its_bound(rng, causal):
    f = layer(gauss_from(rng), heads=1, positions=hs.maps.Positions(causal=causal))
    X = 0.7 * gauss_from(rng)(7, 6)
    (view,) = (alone.mixed() for alone in heads_at_input(f, X))
    ball = HeadAtCentre.of(view).on_ball(1e-12, False)
    second, first = ball.second_derivative(False), ball.first_derivative()
    assert float(constant(f, X)) <= first * (1 + 1e-9)
    assert largest_second_derivative(f, X, rng) <= second * (1 + 1e-6)


def largest_second_derivative(f, X, rng):
    """The largest |D²f(E, F)| that alternating maximisation finds."""

    def bilinear(E, F):
        def along(x):
            _value, tangent = torch.func.jvp(f, (x,), (E,))
            return tangent

        _value, tangent = torch.func.jvp(along, (X,), (F,))
        return tangent

    best = 0.0
    for _start in range(2):
        E, F = (torch.randn(X.shape, dtype=X.dtype, generator=rng) for _ in range(2))
        E, F = E / E.norm(), F / F.norm()
        for _round in range(12):
            G = bilinear(E, F)
            best = max(best, float(G.norm()))
            E = torch.func.grad(lambda e, F=F, G=G: (G * bilinear(e, F)).sum())(E)
            E = E / E.norm()
            F = torch.func.grad(lambda e, E=E, G=G: (G * bilinear(E, e)).sum())(F)
            F = F / F.norm()
    return best


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("output", [True, False])
def test_the_bound_holds_at_random_inputs_of_the_ball(rng, per_token, output):
    def gauss(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    f = hs.Attention(
        query=gauss(2, 3, 6), key=gauss(2, 3, 6), value=gauss(2, 2, 6), output=gauss(2, 4, 2) if output else None
    )
    X = 0.5 * gauss(5, 6)
    for eps in (0.01, 0.2, 1.0, 5.0):
        upper = within(f, X, eps, per_token)
        assert all(float(constant(f, moved(X, eps, per_token, rng))) <= upper for _draw in range(20))


def test_weights_too_small_for_a_float_still_count(rng):
    """Scores far apart: P underflows to zero, yet a move within the ball can make it the largest."""
    f = hs.Attention.single_head(A=torch.eye(2, dtype=torch.float64), V=torch.eye(2, dtype=torch.float64))
    X = torch.tensor([[40.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    swapped = torch.tensor([[40.0, 0.0], [40.0, 1e-3]], dtype=torch.float64)
    upper = hs.bounds.neighbourhood_upper(f, X, eps=float((swapped - X).norm()) + 1e-9).value
    assert float(constant(f, swapped)) <= upper


AROUND = {
    "single head": lambda g: form(gaussian(g, 3, 3), gaussian(g, 3, 3)),
    "strong scores": lambda g: form(4 * gaussian(g, 3, 3), gaussian(g, 3, 3)),
    "no scores": lambda g: form(torch.zeros(3, 3).double()),
    "causal": lambda g: form(2 * gaussian(g, 3, 3), gaussian(g, 2, 3), causal=True),
    "mixed heads": lambda g: small_layer(g),
    "concatenated heads": lambda g: small_layer(g, mixed=False, size=2.0),
    "grouped queries, causal": lambda g: small_layer(g, heads=4, groups=2, positions=hs.maps.Positions(causal=True)),
    "query bias": lambda g: small_layer(g, query_bias=3 * gaussian(g, 2, 2)),
    "all biases": lambda g: small_layer(
        g, query_bias=gaussian(g, 2, 2), key_bias=5 * gaussian(g, 2, 2), value_bias=gaussian(g, 2, 2)
    ),
    "padding": lambda g: small_layer(g, positions=hs.maps.Positions(padding=torch.tensor([True, False, True, False]))),
    "window": lambda g: small_layer(g, positions=hs.maps.Positions(window=2)),
    "mask": lambda g: small_layer(
        g, positions=hs.maps.Positions(mask=torch.eye(4, dtype=torch.bool) | (gaussian(g, 4, 4) > 0))
    ),
    "relative bias": lambda g: small_layer(g, positions=hs.maps.Positions(relative_bias=gaussian(g, 2, 7))),
    "rotary": lambda g: small_layer(g, positions=hs.maps.Positions(rotary=hs.maps.Rotary())),
    "rotary, biases": lambda g: small_layer(
        g,
        query_bias=gaussian(g, 2, 2),
        key_bias=4 * gaussian(g, 2, 2),
        positions=hs.maps.Positions(rotary=hs.maps.Rotary()),
    ),
    "soft cap": lambda g: small_layer(g, size=3.0, softcap=1.0),
    "token weights": lambda g: small_layer(g, weights=gaussian(g, 4).exp()),
    "norms of queries and keys": lambda g: small_layer(
        g,
        query_norm=hs.maps.RMSNorm(gain=2 * torch.ones(2).double()),
        key_norm=hs.maps.RMSNorm(gain=torch.ones(2).double()),
    ),
}


FOREIGN = ["rotary", "rotary, biases", "soft cap", "norms of queries and keys"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_scores_that_are_no_plain_products_have_no_neighbourhood_and_local_upper_is_named(rng, kind):
    with pytest.raises(AssumptionError, match="local_upp"):
        hs.bounds.neighbourhood_upper(AROUND[kind](rng), gaussian(rng, 4, 3), eps=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("kind", [kind for kind in AROUND if kind not in FOREIGN])
def test_no_point_of_a_neighbourhood_exceeds_its_bound(rng, kind):
    f = AROUND[kind](rng)
    spread, crowded = gaussian(rng, 4, 3), 0.4 * gaussian(rng, 1, 3) + 0.1 * gaussian(rng, 4, 3)
    for X, eps, per_token in [(spread, 0.1, False), (crowded, 0.5, True)]:
        bound = hs.bounds.neighbourhood_upper(f, X, eps=eps, metric=("total", "token")[per_token])
        edge = on_boundary(rng, 60, X, eps, per_token)
        inside = X + (edge - X) * torch.rand(60, 1, 1, generator=rng).double()
        points = torch.cat([X[None], edge, inside])
        values = constants(f, points)
        assert values.max().item() <= bound.value * ROUNDING
        assert ascended(f, X, points[values.topk(3).indices], eps, per_token) <= bound.value * ROUNDING


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_bound_covers_the_switch_of_a_nearly_tied_row(rng, causal):
    # a small move makes two keys tie, and the constant leaps
    X = torch.tensor([[0.0, 4.0], [0.0, -4.0], [4.0, 0.2], [4.0, 0.2]]).double()
    f = form(-torch.eye(2).double(), causal=causal)
    at_rest = constant(f, X).item()
    for eps in (0.1, 0.6):
        for per_token in (False, True):
            starts = torch.cat([X[None], on_boundary(rng, 6, X, eps, per_token)])
            found = ascended(f, X, starts, eps, per_token, steps=20)
            assert found <= ROUNDING * within(f, X, eps, per_token)
    assert found > 1.5 * at_rest


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("kind", ["single head", "causal", "mixed heads"])
def test_search_inside_a_neighbourhood_stays_below_its_bound(rng, kind):
    f, X = AROUND[kind](rng), gaussian(rng, 4, 3)
    for per_token in (False, True):
        domain = hs.domains.Neighbourhood(X, eps=0.3, metric=("total", "token")[per_token])
        found = hs.maximise(f, n=4, domain=domain, starts=2, steps=10, seed=rng).value
        assert found <= ROUNDING * within(f, X, 0.3, per_token)


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("per_token", [False, True], ids=["total", "per token"])
def test_the_bound_of_a_neighbourhood_grows_with_it_and_starts_at_the_constant(rng, per_token):
    f, X = small_layer(rng), gaussian(rng, 5, 3)
    grid = [1e-9, 1e-2, 0.1, 0.4]
    values = [within(f, X, eps, per_token) for eps in grid]
    assert values == sorted(values)
    truth = constant(f, X).item()
    assert truth <= values[0] * ROUNDING
    assert values[0] <= truth * 1.01  # the constant may be measured, with its own tolerance


def test_every_token_at_once_is_more_than_all_together(rng):
    f, X = small_layer(rng), gaussian(rng, 5, 3)
    total = hs.bounds.neighbourhood_upper(f, X, eps=0.1).value
    each = hs.bounds.neighbourhood_upper(f, X, eps=0.1, metric="token").value
    wide = hs.bounds.neighbourhood_upper(f, X, eps=0.1 * math.sqrt(5)).value
    assert total <= each * 1.01  # either constant at X may be measured, with its own tolerance
    assert each <= wide * 1.01


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("n", [1, 2])
def test_short_sequences_have_neighbourhoods(rng, n):
    f, X = form(gaussian(rng, 3, 3), gaussian(rng, 3, 3)), gaussian(rng, n, 3)
    bound = hs.bounds.neighbourhood_upper(f, X, eps=0.2).value
    assert constants(f, on_boundary(rng, 50, X, 0.2, False)).max().item() <= bound * ROUNDING
    assert math.isfinite(bound)


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_the_bound_of_a_neighbourhood_is_never_nan(rng):
    f = form(gaussian(rng, 3, 3))
    for scale, eps in [(100.0, 1.0), (1.0, 50.0), (1e3, 1e-3), (0.0, 0.5)]:
        X = scale * gaussian(rng, 6, 3)
        bound = hs.bounds.neighbourhood_upper(f, X, eps=eps)
        assert constants(f, on_boundary(rng, 20, X, eps, False)).max().item() <= bound.value * ROUNDING


def instance(seed):
    """Gaussian tokens of scale 0.5, Gaussian projections of variance 1/d."""
    g = torch.Generator().manual_seed(seed)
    Q, K, V = (gaussian(g, 1, 16, 16) / 4 for _ in range(3))
    return hs.Attention(query=Q, key=K, value=V), 0.5 * gaussian(g, 8, 16)


# of the first forty, those whose constant at X lies nearest to 1.9
@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 2])
def test_neighbourhoods_are_as_tight_as_promised(rng, seed):
    f, X = instance(seed)
    truth = constant(f, X).item()
    assert 1.84 < truth < 1.93
    found = {}
    for eps in (0.01, 0.1, 0.3):
        points = on_boundary(rng, 30, X, eps, False)
        found[eps] = hs.bounds.neighbourhood_upper(f, X, eps=eps).value
        largest = hs.local_lipschitz(f, points, rtol=1e-3, certify=False, seed=rng).lower.max().item()
        assert max(truth, largest) <= found[eps] * ROUNDING
    assert found[0.01] < truth + 0.1
    assert found[0.1] < 2.6
    assert found[0.3] < 5.5


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_a_layer_of_the_size_of_bert_has_a_neighbourhood(rng):
    f = hs.Attention.random(heads=12, d=768, seed=rng)
    X = torch.randn(12, 768, generator=rng)
    assert math.isfinite(hs.bounds.neighbourhood_upper(f, X, eps=0.01).value)


def test_a_neighbourhood_of_size_zero_is_refused(rng):
    with pytest.raises(HowsmoothError, match="eps must be positive"):
        hs.bounds.neighbourhood_upper(small_layer(rng), gaussian(rng, 4, 3), eps=0.0)


def stated_derivatives(f, X, t, per_token):
    """Both derivatives on balls of radii t from their parts: head by head, and for the whole layer."""
    seen = heads_at_input(f, X)
    mixed = [view.mixed() for view in seen]
    layer_at_X = LayerAtCentre.of(seen)
    second, first = SecondDerivative(centre=layer_at_X), FirstDerivative.of(seen, layer_at_X)
    W = None if f.output is None else torch.linalg.matrix_norm(torch.cat(list(f.output), dim=1), 2)
    by_heads, whole = [], []
    for s in t.tolist():
        values = [HeadAtCentre.of(view).on_ball(s, per_token) for view in seen]
        after = [HeadAtCentre.of(view).on_ball(s, per_token) for view in mixed]
        ball = LayerOnBall.of(layer_at_X, values, s, per_token)
        length = math.sqrt(len(X)) if per_token else 1.0
        whole.append((length * second.upper(ball), first.upper(values, after, s, per_token)))
        v, o = (
            torch.tensor([(h.second_derivative(per_token), h.first_derivative()) for h in side], dtype=torch.float64)
            for side in (values, after)
        )
        stacked = v.norm(dim=0)
        by_heads.append(stacked if W is None else torch.minimum(stacked * W, o.sum(0)))
    return torch.stack(by_heads, dim=1), torch.tensor(whole, dtype=torch.float64).mT


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("eps", [0.1, 3.0])
def test_the_bound_is_the_sum_over_intervals_or_the_derivative_on_the_ball(rng, per_token, mixed, eps, monkeypatch):
    f, X = small_layer(rng, mixed=mixed), gaussian(rng, 4, 3)
    unit = Rescaled.of(f, X)
    share = eps / token_unit(X, unit)
    t = torch.linspace(0, share, 17, dtype=torch.float64)[1:]
    by_heads, whole = stated_derivatives(unit.attention, unit.X, t, per_token)
    here = float(constant(unit.attention, unit.X))
    everywhere = math.inf
    if eps >= 0.1 * float(X.norm(dim=-1).max()):
        radius = (float(X.norm(dim=-1).max()) + eps) * (1 + 1e-12)
        everywhere = hs.bounds.sharp_upper(f, n=4, radius=radius).value
    for limit, (second, first) in ((2e7, torch.minimum(by_heads, whole)), (0, by_heads)):
        monkeypatch.setattr(neighbourhood, "NUMBERS", limit)
        along = here + torch.stack([second[: k + 1].sum() for k in range(16)]) * share / 16
        stated = torch.minimum(along, first) * max(unit.factors) * min(unit.factors)
        centre = InputCentre(attention=f, X=X)
        found = constants_on_balls(centre, eps, per_token, AroundOrigin(attention=f))
        assert_close(torch.tensor(found, dtype=torch.float64), stated.clamp_max(everywhere), rtol=1e-9, atol=0)
        assert centre.confidence == 1.0
        # the path has the length ε, or √n times that
        moved = sum(found) * eps / 16 * (2 if per_token else 1) * (1 + 1e-12)
        displacement = hs.bounds.displacement_upper(f, X, eps=eps, metric=("total", "token")[per_token]).value
        assert displacement == pytest.approx(min(moved, centre.hull(eps)), rel=2e-13, abs=0)


def test_gram_matrices_are_affordable_up_to_their_limit_and_not_beyond(rng, monkeypatch):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    size = 4 * (2 * 4) ** 2
    values = []
    for limit in (size, size - 1):
        monkeypatch.setattr(neighbourhood, "NUMBERS", limit)
        values.append(hs.bounds.neighbourhood_upper(f, X, eps=0.1).value)
    affordable, beyond = values
    assert affordable < 0.99 * beyond


def test_around_the_origin_is_looked_at_only_where_it_may_be_better(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    X = X[X.norm(dim=-1).argsort()]  # the longest token comes last
    size = float(X.norm(dim=-1).max())
    known, unknown = 1.0, math.inf
    assert neighbourhood.AroundOrigin(attention=f).upper(X, 0.09 * size, known) == math.inf
    assert neighbourhood.AroundOrigin(attention=f).upper(X, 0.09 * size, unknown) < math.inf
    for eps in (0.1 * size, 0.5):
        stated = hs.bounds.sharp_upper(f, n=4, radius=(size + eps) * (1 + 1e-12)).value
        assert neighbourhood.AroundOrigin(attention=f).upper(X, eps, known) == pytest.approx(stated, rel=1e-14, abs=0)


def test_tokens_are_measured_in_a_power_of_two(rng):
    f, X = small_layer(rng), 5 * gaussian(rng, 4, 3)
    for x in (X, -X):  # the largest entry is negative in one of them
        assert token_unit(x, Rescaled.of(f, x)) == 2.0 ** math.floor(math.log2(float(X.abs().max())))
    zero = torch.zeros(4, 3, dtype=torch.float64)
    assert token_unit(zero, Rescaled.of(f, zero)) == 1.0


def test_the_constant_at_the_centre_is_decomposed_or_measured_with_its_rounding(rng, monkeypatch):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    unit = Rescaled.of(f, X)
    J = unit.attention.jacobian(unit.X)
    dense = torch.func.jacrev(unit.attention)(unit.X).reshape(12, 12)
    found, confidence = neighbourhood._constant_at_centre(unit)
    assert confidence == 1.0
    assert found == pytest.approx(norm_upper(dense) * (1 + widening(J)), rel=2e-15, abs=0)
    monkeypatch.setattr(neighbourhood, "DENSE", 11)
    measured, confidence = neighbourhood._constant_at_centre(unit)
    assert confidence == 1 - 1e-12
    assert found <= measured * (1 + 1e-12) <= 1.2 * found
    for out in (2, 5):  # by columns or by rows, whichever are fewer
        J = small_layer(rng, out=out).jacobian(X)
        narrow = neighbourhood._matrix(J)
        assert narrow.shape == ((12, 20) if out == 5 else (8, 12))


@pytest.mark.parametrize(("out", "limit"), [(2, 10), (5, 15)])
def test_the_longer_side_of_the_derivative_decides_whether_it_is_decomposed(rng, out, limit, monkeypatch):
    # twelve columns, and eight or twenty rows
    unit = Rescaled.of(small_layer(rng, out=out), gaussian(rng, 4, 3))
    assert neighbourhood._constant_at_centre(unit)[1] == 1.0
    monkeypatch.setattr(neighbourhood, "DENSE", limit)
    assert neighbourhood._constant_at_centre(unit)[1] == neighbourhood.CONFIDENCE


def derivatives(f, X, t, per_token):
    """Both derivatives on balls of radii t."""
    centre = InputCentre(attention=f, X=X)
    return torch.tensor([centre._derivatives(s, per_token) for s in t.tolist()], dtype=torch.float64).mT


@pytest.mark.parametrize("per_token", [False, True])
def test_where_a_decomposition_fails_heads_alone_bound_both_derivatives(rng, per_token, monkeypatch):
    f, X, t = small_layer(rng), gaussian(rng, 4, 3), torch.tensor([0.1, 0.5], dtype=torch.float64)
    unit = Rescaled.of(f, X)
    by_heads, _whole = stated_derivatives(unit.attention, unit.X, t, per_token)

    def fails(_seen):
        raise torch.linalg.LinAlgError("no decomposition")

    monkeypatch.setattr(LayerAtCentre, "of", fails)
    assert_close(derivatives(f, X, t, per_token), by_heads, rtol=1e-12, atol=0)


def test_what_is_measured_starts_elsewhere_for_every_question(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    seeds = {neighbourhood._start(f, x).initial_seed() for x in (X, X, 2 * X)}
    assert len(seeds) == 2


@pytest.mark.parametrize("per_token", [False, True])
def test_of_heads_apart_and_the_whole_layer_the_smaller_bound_counts(rng, per_token, monkeypatch):
    f, X, t = small_layer(rng), gaussian(rng, 4, 3), torch.tensor([0.1, 0.5], dtype=torch.float64)
    unit = Rescaled.of(f, X)
    by_heads, _whole = stated_derivatives(unit.attention, unit.X, t, per_token)
    length = 2.0 if per_token else 1.0  # √n
    for size in (1e-6, 1e6):
        monkeypatch.setattr(SecondDerivative, "upper", lambda *_, size=size: size)
        monkeypatch.setattr(FirstDerivative, "upper", lambda *_, size=size: 3 * size)
        stated = torch.tensor([[length * size], [3 * size]], dtype=torch.float64).expand(2, 2)
        found = derivatives(f, X, t, per_token)
        assert_close(found, torch.minimum(by_heads, stated), rtol=1e-12, atol=0)


def test_heads_are_joined_by_the_norm_of_the_output_or_added_up():
    class Head:
        def __init__(self, second, first):
            self.second_derivative, self.first_derivative = lambda _per_token: second, lambda: first

    values = [Head(3.0, 6.0), Head(4.0, 8.0)]
    for outputs, norm_W, stated in (
        ([Head(20.0, 1.0), Head(30.0, 2.0)], 2.0, (10.0, 3.0)),
        ([Head(1.0, 50.0), Head(2.0, 60.0)], 0.5, (2.5, 5.0)),
        ([], None, (5.0, 10.0)),
    ):
        assert neighbourhood._by_heads(values, outputs, norm_W, True) == stated
