import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.domains.domain import Domain

N, D = 5, 4
LIKE = torch.empty(D, dtype=torch.float64)


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def norm(kind, rng, silent=0):
    gain = gauss(rng, D)
    gain[:silent] = 0
    return kind(gain=gain, bias=gauss(rng, D))


CONVEX = {
    "ball": lambda rng: hs.domains.Ball(1.5),
    "ball elsewhere": lambda rng: hs.domains.Ball(1.5, centre=gauss(rng, D)),
    "neighbourhood": lambda rng: hs.domains.Neighbourhood(gauss(rng, N, D), eps=0.7),
    "neighbourhood of every token": lambda rng: hs.domains.Neighbourhood(gauss(rng, N, D), eps=0.7, metric="token"),
}
CURVED = {
    "sphere": lambda rng: hs.domains.Sphere(1.5),
    "layer norm": lambda rng: hs.domains.LayerNormImage(norm(hs.maps.LayerNorm, rng)),
    "rms norm": lambda rng: hs.domains.LayerNormImage(norm(hs.maps.RMSNorm, rng)),
    "layer norm, one coordinate without gain": lambda rng: hs.domains.LayerNormImage(
        norm(hs.maps.LayerNorm, rng, silent=1)
    ),
    "layer norm, two coordinates without gain": lambda rng: hs.domains.LayerNormImage(
        norm(hs.maps.LayerNorm, rng, silent=2)
    ),
    "rms norm, two coordinates without gain": lambda rng: hs.domains.LayerNormImage(
        norm(hs.maps.RMSNorm, rng, silent=2)
    ),
}
ALL = CONVEX | CURVED


def distance_outside(domain, X):
    """By how much inputs miss the domain, from its definition."""
    if isinstance(domain, hs.domains.Ball):
        return (X - (0 if domain.centre is None else domain.centre)).norm(dim=-1).amax() - domain.radius
    if isinstance(domain, hs.domains.Sphere):
        return (X.norm(dim=-1) - domain.radius).abs().amax()
    if isinstance(domain, hs.domains.Neighbourhood):
        far = (X - domain.X).norm(dim=-1) if domain.metric == "token" else (X - domain.X).flatten(-2).norm(dim=-1)
        return far.amax() - domain.eps
    return off_the_image(domain.norm, X)


def off_the_image(f, X):
    """How far z is from the sphere, once the coordinates that do not show have taken the values that suit best."""
    shown = f.gain != 0
    z = ((X - f.bias) / f.gain)[..., shown]
    hidden, total = int((~shown).sum()), z.sum(-1)
    square = z.square().sum(-1)
    if f.centred and hidden:
        square = square + total.square() / hidden
    unbalanced = total.abs().amax() if f.centred and not hidden else 0.0
    return (X - f.bias)[..., ~shown].abs().sum() + (square - D).abs().amax() + unbalanced


@pytest.mark.parametrize("name", ALL)
def test_every_domain_follows_the_protocol(name, rng):
    domain = ALL[name](rng)
    assert isinstance(domain, Domain)
    assert domain.scale > 0
    assert domain.describe(N).startswith("5 tokens ")
    assert domain.describe(1).startswith("1 token ")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_what_is_brought_back_lies_in_the_domain_and_stays(name, size, rng):
    domain = ALL[name](rng)
    X = domain.nearest(size * gauss(rng, 3, 2, N, D))
    assert X.shape == (3, 2, N, D)
    assert distance_outside(domain, X) < 1e-12
    assert_close(domain.nearest(X), X, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ALL)
def test_what_is_drawn_lies_in_the_domain_and_repeats(name, rng):
    domain = ALL[name](rng)
    first, second = (domain.draw(7, N, LIKE, torch.Generator().manual_seed(3)) for _ in range(2))
    assert first.shape == (7, N, D)
    assert torch.equal(first, second)
    assert distance_outside(domain, first) < 1e-12
    assert first.flatten(1).std(0).min() > 0 or "without gain" in name


@pytest.mark.parametrize("name", CONVEX)
def test_nothing_in_the_domain_is_nearer_than_the_projection(name, rng):
    domain = CONVEX[name](rng)
    X = 3 * gauss(rng, N, D)
    projected = domain.nearest(X)
    others = torch.cat((domain.draw(1000, N, LIKE, rng), domain.nearest(projected + 0.1 * gauss(rng, 1000, N, D))))
    assert ((others - X).flatten(1).norm(dim=1) >= (projected - X).norm() - 1e-12).all()
    # the projection onto a convex set is the one point that sees the whole set behind it
    assert ((X - projected) * (others - projected)).sum((-1, -2)).max() < 1e-12


@pytest.mark.parametrize("name", CONVEX)
def test_what_lies_inside_does_not_move(name, rng):
    domain = CONVEX[name](rng)
    X = domain.draw(50, N, LIKE, rng)
    assert_close(domain.nearest(X), X, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_leaves_no_token_outside_a_ball(dtype, rng):
    X = torch.randn(1000, 64, dtype=dtype, generator=rng)
    inside = hs.domains.Ball(0.1).nearest(X)
    assert inside.dtype == dtype
    assert inside.double().norm(dim=-1).max() <= 0.1
    assert torch.equal(hs.domains.Ball(0.1).nearest(inside), inside)


@pytest.mark.parametrize("name", ALL)
def test_a_direction_climbs_and_does_not_leave_the_domain(name, rng):
    domain = ALL[name](rng)
    X, G = domain.nearest(3 * gauss(rng, 20, N, D)), gauss(rng, 20, N, D)
    E = domain.direction(X, G)
    assert ((E * G).sum((-1, -2)) > 0).all()
    left = (domain.nearest(X + 1e-6 * E) - X) / 1e-6 - E
    assert left.norm() < 1e-4 * E.norm()


@pytest.mark.parametrize("name", ["ball", "neighbourhood of every token"])
def test_a_direction_is_the_gradient_but_for_what_points_out(name, rng):
    domain = CONVEX[name](rng)
    X, G = domain.nearest(3 * gauss(rng, N, D)), gauss(rng, N, D)
    outwards = X if isinstance(domain, hs.domains.Ball) else X - domain.X
    leaving = (outwards * G).sum(-1) > 0
    E = domain.direction(X, G)
    assert torch.equal(E[~leaving], G[~leaving])
    assert_close((E * outwards).sum(-1)[leaving], torch.zeros(int(leaving.sum())).double())
    assert torch.equal(domain.direction(0 * X, G), G) == isinstance(domain, hs.domains.Ball)


def test_a_ball_is_named_by_its_radius_alone_or_with_a_centre():
    centre = torch.ones(2)
    X = torch.tensor([[9.0, 0.0]])
    assert_close(hs.domains.Ball(5.0).nearest(X), torch.tensor([[5.0, 0.0]]))
    assert_close(hs.domains.Ball(radius=5.0).nearest(X), torch.tensor([[5.0, 0.0]]))
    assert_close(hs.domains.Ball(centre=centre, radius=5.0).nearest(X - 8 * centre), torch.tensor([[1.0, -4.0]]))
    assert hs.domains.Ball(5.0).describe(10) == "10 tokens in the ball of radius 5"
    assert hs.domains.Ball(5.0, centre=centre).to(torch.float64).centre.dtype == torch.float64


@pytest.mark.parametrize(
    "domain", [hs.domains.Sphere(2.0), hs.domains.LayerNormImage(hs.maps.LayerNorm(gain=torch.ones(D).double()))]
)
def test_tokens_without_a_direction_are_given_one(domain):
    X = domain.nearest(torch.zeros(N, D, dtype=torch.float64))
    assert_close(X.norm(dim=-1), torch.full((N,), 2.0).double())


@pytest.mark.parametrize("kind", [hs.maps.LayerNorm, hs.maps.RMSNorm])
def test_outputs_of_a_norm_lie_on_its_image(kind, rng):
    f = kind(gain=gauss(rng, D), bias=gauss(rng, D), eps=1e-12)
    Y = f(10 * gauss(rng, 100, N, D))
    assert_close(hs.domains.LayerNormImage(f).nearest(Y), Y)


def test_the_first_draw_from_a_neighbourhood_is_its_centre(rng):
    X = gauss(rng, N, D)
    assert torch.equal(hs.domains.Neighbourhood(X=X, eps=0.1).draw(3, N, LIKE, rng)[0], X)
