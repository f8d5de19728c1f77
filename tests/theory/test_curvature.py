"""The second derivative of a whole layer, at an input and around it."""

import pytest
import torch
from draws import gaussian
from theory.around import ascended, on_boundary, small_layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.theory.curvature import Curvature
from howsmooth.theory.doubt import outputs
from howsmooth.theory.moved import Moved
from howsmooth.theory.region import Centre, softened
from howsmooth.theory.slope import Slope
from howsmooth.theory.views import views

KINDS = {
    "mixed heads": lambda g: small_layer(g, heads=3, query_bias=gaussian(g, 3, 2)),
    "concatenated heads, causal": lambda g: small_layer(g, mixed=False, positions=hs.Positions(causal=True)),
    "saturated": lambda g: small_layer(g, size=6.0),
    "one head": lambda g: small_layer(g, heads=1),
}


def second_derivative(f, X, rng):
    """The largest |D²f(E, F)| that alternating maximisation finds, from the whole tensor."""
    T = torch.func.hessian(lambda x: f(x).flatten())(X).flatten(1, 2).flatten(2)  # outputs, inputs, inputs
    best = 0.0
    for _start in range(2):
        F = gaussian(rng, T.shape[2])
        for _round in range(8):
            U, S, Vh = torch.linalg.svd(T @ (F / F.norm()))
            F = torch.einsum("o,oef,e->f", U[:, 0], T, Vh[0])
            best = max(best, S[0].item())
    return best


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_derivative_is_below_its_bound_at_an_input_and_around_it(rng, kind):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    seen = views(f, X)
    curvature, heads = Curvature.of(seen), [Centre.of(view) for view in seen]
    for t in (1e-9, 0.05, 0.4):
        bound = curvature.within([head.within(t, False) for head in heads], t)
        for Z in on_boundary(rng, 2, X, t, False):
            assert second_derivative(f, Z, rng) <= bound


def key_moments(f, Z, E, F):
    """The third moments of values and of two movements of scores by keys, from their definition: all rows."""
    seen, total = views(f, Z), 0.0
    for view, W in zip(seen, outputs(seen), strict=True):
        y, g = view.y @ W.mT, view.q @ view.head.K
        apart = y - (view.P @ y)[:, None]
        a, b = (torch.einsum("ijd,id->ij", D - (view.P @ D)[:, None], g) for D in (E, F))
        total = total + torch.einsum("ij,ijo->io", view.P * a * b, apart)
    return total.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_weighted_squares_are_below_their_bounds_around_an_input(rng, kind):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    seen = views(f, X)
    curvature, heads = Curvature.of(seen), [Centre.of(view) for view in seen]
    for t in (1e-9, 0.05, 0.4):
        m = Moved.of(curvature.centre, [head.within(t, False) for head in heads], t, False)
        most, change = m.P.norm(dim=-1), m.change.norm(dim=-1)
        moments, a = curvature._moments(m), gaussian(rng, *m.P.shape).abs() * m.P
        squares = curvature._about_means(a, most, change)
        for Z in on_boundary(rng, 4, X, t, False):
            P = torch.stack([view.P for view in views(f, Z)])
            for _draw in range(20):
                E, F = (x / x.norm() for x in gaussian(rng, 2, *X.shape))
                assert key_moments(f, Z, E, F) <= moments
                b = torch.einsum("hijd,hid->hij", F - (P @ F)[:, :, None], curvature.centre.pull)
                assert bool(((a * b.square()).sum((0, 2)).sqrt() <= squares * (1 + 1e-9)).all())


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_slope_of_a_whole_layer_is_below_its_bound_on_balls_of_any_size(rng, kind, per_token):
    f, X = KINDS[kind](rng), gaussian(rng, 4, 3)
    seen = views(f, X)
    mixed = [view.mixed() for view in seen]
    slope = Slope.of(seen, Curvature.of(seen).centre)
    for t in (1e-9, 0.1, 1.0, 10.0):
        alone, after = ([Centre.of(view).within(t, per_token) for view in side] for side in (seen, mixed))
        bound = slope.within(alone, after, t, per_token)
        assert ascended(f, X, on_boundary(rng, 6, X, t, per_token), t, per_token) <= bound


def test_at_an_input_the_bound_is_within_a_factor_of_eight(rng):
    for kind in ("mixed heads", "one head"):
        f, X = KINDS[kind](rng), 0.5 * gaussian(rng, 4, 3)
        seen = views(f, X)
        bound = Curvature.of(seen).within([Centre.of(view).within(1e-9, False) for view in seen], 1e-9)
        assert bound <= 8 * second_derivative(f, X, rng)


def test_the_derivative_of_the_softmax_lies_below_its_diagonal_matrices(rng):
    for scale in (0.1, 1.0, 6.0):
        p = torch.softmax(scale * gaussian(rng, 5), 0)
        slope, spread = softened(p, p)
        S = torch.diag(p) - torch.outer(p, p)
        assert torch.linalg.eigvalsh(torch.diag(spread) - S)[0] >= -1e-12
        assert torch.linalg.matrix_norm(S, 2) <= slope * (1 + 1e-12)


def test_weights_around_an_input_stay_between_their_bounds(rng):
    f, X = small_layer(rng, heads=1, size=3.0), gaussian(rng, 5, 3)
    (view,) = views(f, X)
    for per_token in (False, True):
        for t in (0.03, 0.3):
            region = Centre.of(view).within(t, per_token)
            for Z in on_boundary(rng, 20, X, t, per_token):
                (there,) = views(f, Z)
                assert bool((region.low <= there.P).all() & (there.P <= region.P).all())


def test_units_do_not_matter(rng):
    f, X = small_layer(rng), gaussian(rng, 4, 3)
    plain = hs.bounds.neighbourhood_upper(f, X, eps=0.1).value
    tiny = hs.Attention(query=f.query * 2.0**60, key=f.key * 2.0**60, value=f.value * 2.0**-60, output=f.output)
    assert_close(hs.bounds.neighbourhood_upper(tiny, X * 2.0**-60, eps=0.1 * 2.0**-60).value * 2.0**60, plain)
