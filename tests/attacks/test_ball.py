import pytest
import torch
from torch.testing import assert_close

from howsmooth import metrics
from howsmooth.attacks.objective import PerturbationBall


@pytest.mark.parametrize("norm", ["total", "token", "entries", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_that_a_ball_returns_is_outside_of_it(norm, dtype, rng):
    ball = PerturbationBall(eps=0.1, metric=metrics.NAMED[norm])
    for _draw in range(50):
        G = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64).to(dtype)
        for E in (ball.surface(G), ball.nearest(G), ball.surface(1e-30 * G)):
            sizes = ball.metric.size(E)
            assert bool((sizes <= 0.1).all())
            assert_close(sizes, torch.full_like(sizes, 0.1), rtol=1e-5, atol=0.0)


def test_the_surface_maximises_a_linear_function(rng):
    G, others = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((4, 3), (100, 4, 3)))
    for norm, most in (("total", G.norm()), ("token", G.norm(dim=-1).sum())):
        ball = PerturbationBall(eps=2.0, metric=metrics.NAMED[norm])
        assert_close((G * ball.surface(G)).sum(), 2.0 * most)
        assert bool(((G * ball.surface(others)).sum((-2, -1)) <= 2.0 * most).all())


@pytest.mark.parametrize("norm", ["total", "token"])
def test_what_is_inside_stays_where_it_is_and_zero_has_no_direction(norm, rng):
    ball = PerturbationBall(eps=10.0, metric=metrics.NAMED[norm])
    E = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    assert_close(ball.nearest(E), E)
    assert_close(ball.surface(torch.zeros_like(E)), torch.zeros_like(E))


@pytest.mark.parametrize("norm", ["total", "token"])
def test_uphill_is_the_gradient_without_what_leads_out_of_the_ball(norm, rng):
    ball = PerturbationBall(eps=1.0, metric=metrics.NAMED[norm])
    G = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    E = ball.surface(torch.randn(4, 3, generator=rng, dtype=torch.float64))
    assert_close(ball.uphill(E / 2, G), G)
    assert_close(ball.uphill(E, E), torch.zeros_like(E))
    assert_close(ball.uphill(E, -E), -E)


@pytest.mark.parametrize("norm", ["entries", "sum"])
def test_where_the_ball_has_corners_uphill_is_where_the_projection_of_small_steps_goes(norm, rng):
    ball = PerturbationBall(eps=1.0, metric=metrics.NAMED[norm])
    G, E = (torch.randn(4, 3, generator=rng, dtype=torch.float64) for _each in range(2))
    E = ball.nearest(100 * E)
    small = 1e-7
    assert_close(ball.uphill(E, G), (ball.metric.nearest(E + small * G, 1.0) - E) / small, rtol=1e-4, atol=1e-4)
