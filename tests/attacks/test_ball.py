import pytest
import torch
from torch.testing import assert_close

from howsmooth.attacks.objective import PerturbationBall


@pytest.mark.parametrize("norm", ["total", "token"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_that_a_ball_returns_is_outside_of_it(norm, dtype, rng):
    ball = PerturbationBall(eps=0.1, norm=norm)
    for _draw in range(50):
        G = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64).to(dtype)
        for E in (ball.surface(G), ball.nearest(G), ball.surface(1e-30 * G)):
            assert bool((ball.sizes(E) <= 0.1).all())
            assert_close(ball.sizes(E), torch.full_like(ball.sizes(E), 0.1), rtol=1e-5, atol=0.0)


def test_the_surface_maximises_a_linear_function(rng):
    G, others = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((4, 3), (100, 4, 3)))
    for norm, most in (("total", G.norm()), ("token", G.norm(dim=-1).sum())):
        ball = PerturbationBall(eps=2.0, norm=norm)
        assert_close((G * ball.surface(G)).sum(), 2.0 * most)
        assert bool(((G * ball.surface(others)).sum((-2, -1)) <= 2.0 * most).all())


@pytest.mark.parametrize("norm", ["total", "token"])
def test_what_is_inside_stays_where_it_is_and_zero_has_no_direction(norm, rng):
    ball = PerturbationBall(eps=10.0, norm=norm)
    E = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    assert_close(ball.nearest(E), E)
    assert_close(ball.surface(torch.zeros_like(E)), torch.zeros_like(E))


@pytest.mark.parametrize("norm", ["total", "token"])
def test_uphill_is_the_gradient_without_what_leads_out_of_the_ball(norm, rng):
    ball = PerturbationBall(eps=1.0, norm=norm)
    G = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    E = ball.surface(torch.randn(4, 3, generator=rng, dtype=torch.float64))
    assert_close(ball.uphill(E / 2, G), G)
    assert_close(ball.uphill(E, E), torch.zeros_like(E))
    assert_close(ball.uphill(E, -E), -E)
