import pytest
import torch
from draws import gaussian
from oracles import constant
from theory.example_layers import ROUNDING, form
from theory.witness_checks import MEASURED, assert_honest, assert_in_ball, assert_on_image

import howsmooth as hs
from howsmooth.search import ascent
from howsmooth.search.mechanisms import of_kind

IDENTITY = torch.eye(2, dtype=torch.float64)


def gauss(rng, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=rng)


def layer(rng, **options):
    return hs.Attention.random(heads=2, d=4, dtype=torch.float64, seed=rng, **options)


def alone(f):
    """The same map, of which theory knows no inputs: only the starts that are asked for remain."""
    return hs.maps.Chain(f)


def tied_pair(n, radius):
    """Two opposite tokens that tie for the attention of all others, which lie at a right angle to them."""
    X = torch.zeros(n, 2, dtype=torch.float64)
    X[:, 0], X[0], X[1] = radius, torch.tensor([0.0, radius]), torch.tensor([0.0, -radius])
    return X


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_worst_input_of_the_identity_is_found(causal, rng):
    f = form(IDENTITY, causal=causal)
    found = hs.maximise(f, n=10, domain=hs.domains.Ball(5.0), steps=20)
    assert found.value >= 22.5  # more than any explicit input attains
    assert found.value <= constant(f, found.tokens) * (1 + 1e-12)
    assert_honest(f, found, 10, rng)
    assert_in_ball(found.tokens, 5.0)
    assert found.value <= hs.bounds.sharp_upper(f, n=10, radius=5.0).value


@pytest.mark.slow
def test_random_starts_alone_find_it_too():
    generator = torch.Generator().manual_seed(0)
    assert hs.maximise(alone(form(IDENTITY)), n=10, domain=hs.domains.Ball(5.0), seed=generator).value >= 22.5


@pytest.mark.slow
def test_random_starts_alone_come_near_the_worst_masked_input():
    # the token that sees all others has to be the last one, and no small step changes the order of tokens
    f = alone(form(IDENTITY, causal=True))
    assert hs.maximise(f, n=10, domain=hs.domains.Ball(5.0), steps=60).value >= 20.9


@pytest.mark.slow
@pytest.mark.parametrize(("n", "steps"), [(20, 45), (200, 5)])
def test_a_tied_pair_is_not_lost(n, steps):
    f, X = form(-IDENTITY), tied_pair(n, 4.0)
    found = hs.maximise(alone(f), n=n, domain=hs.domains.Ball(4.0), starts=[X], steps=steps)
    assert found.value >= constant(f, X) * 0.999
    if n == 200:
        assert found.value == pytest.approx(160.310, abs=0.16)


@pytest.mark.slow
def test_random_starts_come_near_the_tied_pair():
    found = hs.maximise(alone(form(-IDENTITY)), n=20, domain=hs.domains.Ball(4.0))
    assert found.value >= 0.99 * constant(form(-IDENTITY), tied_pair(20, 4.0))


DOMAINS = {
    "ball": lambda X: hs.domains.Ball(1.5),
    "sphere": lambda X: hs.domains.Sphere(1.5),
    "layer norm": lambda X: hs.domains.LayerNormImage(hs.maps.LayerNorm(gain=X[0].abs() + 0.1, bias=X[1])),
    "neighbourhood": lambda X: hs.domains.Neighbourhood(X, eps=0.3),
    "neighbourhood of every token": lambda X: hs.domains.Neighbourhood(X, 0.3, metric="token"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "name"), [(place % 2 == 1, name) for place, name in enumerate(DOMAINS)])
def test_a_search_climbs_stays_in_its_domain_beats_its_starts_and_tells_its_trace(name, causal, rng):
    f, X = layer(rng, causal=causal), gauss(rng, 5, 4)
    domain, starts, seen = DOMAINS[name](X), gauss(rng, 3, 5, 4), []
    found = hs.maximise(
        alone(f), n=5, domain=domain, starts=starts, steps=25, seed=rng, progress=lambda *call: seen.append(call)
    )
    begun = max(constant(f, x).item() for x in domain.nearest(starts))
    assert found.value > 1.02 * begun
    assert found.trace[0] == pytest.approx(begun, rel=1e-3)
    torch.testing.assert_close(domain.nearest(found.tokens), found.tokens, rtol=0, atol=1e-12)
    assert found.value == pytest.approx(constant(f, found.tokens).item(), rel=1e-3)
    assert found.domain == domain.describe(5)
    assert list(found.trace) == sorted(found.trace)
    assert len(found.trace) == 26
    assert seen == list(enumerate(found.trace))[1:]
    assert found.trace[-1] <= found.measured.upper * (1 + 1e-12)
    assert found.value >= found.trace[-1] * 0.999


def test_without_steps_the_best_start_comes_back(rng):
    f, starts = layer(rng), hs.domains.Ball(1.0).draw(6, 5, torch.empty(4).double(), rng)
    found = hs.maximise(alone(f), n=5, domain=hs.domains.Ball(1.0), starts=starts, steps=0)
    assert torch.equal(found.tokens, max(starts, key=lambda x: constant(f, x)))
    # all starts are measured in one batch, the best again alone: some processors round these apart
    assert found.trace == pytest.approx((found.value,), rel=1e-14)


@pytest.mark.slow
def test_starts_are_taken_in_every_form(rng):
    f, X = layer(rng), hs.domains.Ball(2.0).nearest(gauss(rng, 2, 5, 4))

    def best(starts):
        return hs.maximise(alone(f), n=5, domain=hs.domains.Ball(2.0), starts=starts, steps=3)

    one = best(X)
    assert torch.equal(best(list(X)).tokens, one.tokens)
    assert torch.equal(best(tuple(X.float().double())).tokens, best(X.float()).tokens)
    again = best([one, X[0]])
    assert again.trace[0] >= one.value * 0.999
    assert again.value >= one.value * 0.999


def test_theory_adds_inputs_to_the_starts_of_attention(rng):
    f = form(-IDENTITY)
    tied = hs.inputs.tied_pair(f, 10, 5.0).value
    assert (
        hs.maximise(f, n=10, domain=hs.domains.Ball(5.0), starts=torch.zeros(1, 10, 2), steps=1).value >= tied * 0.999
    )
    assert hs.maximise(alone(f), n=10, domain=hs.domains.Ball(5.0), starts=torch.zeros(1, 10, 2), steps=1).value < tied


@pytest.mark.slow
def test_the_same_generator_finds_the_same_input_and_the_global_one_is_left_alone(rng):
    f, before = layer(rng), torch.get_rng_state()
    runs = [
        hs.maximise(alone(f), n=5, domain=hs.domains.Ball(2.0), steps=4, seed=seed)
        for seed in (0, 0, 5, torch.Generator().manual_seed(5))
    ]
    assert torch.equal(runs[0].tokens, runs[1].tokens)
    assert torch.equal(runs[2].tokens, runs[3].tokens)
    assert runs[2].trace == runs[3].trace != runs[0].trace
    assert torch.equal(torch.get_rng_state(), before)


MAPS = {
    "residual": lambda rng: hs.maps.Residual(layer(rng)),
    "block": lambda rng: hs.maps.Residual(hs.maps.Chain(hs.maps.LayerNorm(gain=gauss(rng, 4)), layer(rng))),
    "norm": lambda rng: hs.maps.RMSNorm(gain=gauss(rng, 4), eps=0.1),
    "one token at a time": lambda rng: hs.Attention.single_head(A=gauss(rng, 4, 4), V=gauss(rng, 1, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_any_map_is_searched_and_tells_the_dimension(name, rng):
    f = MAPS[name](rng)
    found = hs.maximise(f, n=4, domain=hs.domains.Ball(2.0), starts=2, steps=4)
    assert found.value == pytest.approx(constant(f, found.tokens).item(), rel=1e-3)
    assert found.value <= constant(f, found.tokens).item() * ROUNDING
    assert found.trace[-1] > found.trace[0]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda f: f.__call__, lambda f: lambda X: f(X)], ids=["method", "function"])
def test_any_callable_is_searched(wrap, rng):
    f = layer(rng)
    found = hs.maximise(wrap(f), n=4, d=4, domain=hs.domains.Ball(2.0), starts=gauss(rng, 2, 4, 4), steps=5)
    assert found.value == pytest.approx(constant(f, found.tokens).item(), rel=1e-3)
    assert found.trace[-1] > 1.1 * found.trace[0]


@pytest.mark.slow
def test_a_module_is_searched_in_its_own_precision_and_left_as_it_was():
    module = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True).double()
    found = hs.maximise(module, n=3, d=4, domain=hs.domains.Ball(2.0), starts=2, steps=5)
    assert found.tokens.dtype == torch.float64
    assert module.training


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_searched_in_float32(dtype, rng):
    f = layer(rng).to(dtype)
    found = hs.maximise(f, n=4, domain=hs.domains.Ball(2.0), starts=2, steps=2)
    assert found.tokens.dtype == torch.float32
    assert found.value == pytest.approx(constant(f.to(torch.float64), found.tokens.double()).item(), rel=1e-3)


@pytest.mark.slow
def test_a_search_gives_up_where_there_is_nothing_to_climb():
    found = hs.maximise(lambda X: 2 * X, n=3, d=2, domain=hs.domains.Sphere(1.0), starts=2)
    assert found.value == pytest.approx(2.0)
    assert len(found.trace) < 50
    zero = alone(hs.Attention.single_head(A=IDENTITY, V=0 * IDENTITY))
    assert hs.maximise(zero, n=3, domain=hs.domains.Ball(1.0), steps=3).value == 0


@pytest.mark.parametrize(("n", "d"), [(1, 3), (4, 1)])
def test_one_token_and_one_dimension_are_enough(n, d, rng):
    f = form(gauss(rng, d, d))
    found = hs.maximise(f, n=n, domain=hs.domains.Ball(2.0), starts=1, steps=5)
    assert found.value == pytest.approx(constant(f, found.tokens).item(), rel=1e-3)


def test_a_ball_of_one_point_has_one_value(rng):
    f = layer(rng)
    found = hs.maximise(f, n=3, domain=hs.domains.Ball(0.0, centre=torch.ones(4).double()), steps=2)
    assert found.value == pytest.approx(constant(f, torch.ones(3, 4).double()).item(), rel=1e-3)


def test_a_search_over_masses_takes_half_precision_in_float32():
    half = torch.eye(2, dtype=torch.float16)
    f = hs.Attention.single_head(A=-half, V=half)
    found = hs.maximise(f, n=3, domain=hs.domains.Ball(2.0), starts=1, steps=2, weights=True)
    assert found.tokens.dtype == torch.float32
    assert found.value >= 1


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_search_never_ends_below_its_starts(rng, causal):
    f = form(gaussian(rng, 3, 3), gaussian(rng, 3, 3), causal=causal)
    found = hs.maximise(f, n=5, domain=hs.domains.Ball(2.0), starts=3, steps=4, seed=rng)
    best = max(hs.inputs.tied_pair(f, 5, 2.0).value, hs.inputs.equal_tokens(f, 5, 2.0).value)
    assert found.value >= best / MEASURED
    assert_honest(f, found, 5, rng)
    assert found.formula is None or found.formula <= found.measured.upper.item() * ROUNDING
    assert found.value <= hs.bounds.sharp_upper(f, n=5, radius=2.0).value * ROUNDING


WITH_MEMBERSHIP = {
    "ball": (lambda X: hs.domains.Ball(1.5), lambda X, Z: Z.norm(dim=-1).max() <= 1.5 * ROUNDING),
    "sphere": (lambda X: hs.domains.Sphere(1.5), lambda X, Z: (Z.norm(dim=-1) - 1.5).abs().max() < 1e-9),
    "total": (lambda X: hs.domains.Neighbourhood(X, eps=0.3), lambda X, Z: (Z - X).norm() <= 0.3 * ROUNDING),
    "per token": (
        lambda X: hs.domains.Neighbourhood(X, eps=0.3, metric="token"),
        lambda X, Z: (Z - X).norm(dim=-1).max() <= 0.3 * ROUNDING,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_MEMBERSHIP)
def test_what_search_finds_lies_in_its_domain_and_beats_random_inputs(rng, name):
    f, X = form(2 * gaussian(rng, 3, 3), gaussian(rng, 3, 3)), gaussian(rng, 4, 3)
    domain, holds = WITH_MEMBERSHIP[name]
    # upper ends hold at 99.9 %: how often they miss is counted in tests/spectral, here none may
    found = hs.maximise(f, n=4, domain=domain(X), starts=3, steps=12, seed=1)
    assert holds(X, found.tokens)
    assert_honest(f, found, 4, rng)
    random = gaussian(rng, 200, 4, 3)
    if name in ("ball", "sphere"):
        random = 1.5 * random / random.norm(dim=-1, keepdim=True)
    else:
        random = X + 0.3 * random / random.flatten(1).norm(dim=1)[:, None, None]
    typical = hs.local_lipschitz(f, random, seed=rng).lower.max().item()
    assert found.value >= typical / MEASURED


@pytest.mark.slow
@pytest.mark.parametrize("kind", [hs.maps.LayerNorm, hs.maps.RMSNorm])
def test_search_over_the_image_of_a_norm_stays_on_the_ellipsoid(rng, kind):
    f = form(gaussian(rng, 4, 4), gaussian(rng, 4, 4))
    norm_map = kind(gain=gaussian(rng, 4).abs() + 0.5, bias=gaussian(rng, 4))
    found = hs.maximise(f, n=5, domain=hs.domains.LayerNormImage(norm_map), starts=3, steps=6, seed=rng)
    assert_on_image(found.tokens, norm_map)
    assert_honest(f, found, 5, rng)
    assert found.value <= hs.bounds.sharp_upper(f, n=5, radius=norm_map.image.radius).value * ROUNDING


def test_of_a_large_search_the_best_runs_go_on_and_nothing_is_lost(rng, monkeypatch):
    f, sizes = of_kind(layer(rng), "l2"), []
    options = {"n": 6, "domain": hs.domains.Ball(3.0), "starts": 3, "steps": 40}
    plain = hs.maximise(f, **options, seed=rng)
    monkeypatch.setattr(ascent, "LARGE", 0)
    gradient = ascent.norm_gradient_or_skip

    def noted(maps, X, *others):
        sizes.append(len(X))
        return gradient(maps, X, *others)

    monkeypatch.setattr(ascent, "norm_gradient_or_skip", noted)
    found, spent = ascent.maximise_counting(f, **options)
    assert sizes[0] > 8
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == ascent.LARGE_RUNS
    assert len(sizes) == 41
    assert spent > sum(sizes) * (2 * ascent.LARGE_STEPS + 2)
    assert_honest(f, found, 6, rng)
    assert found.measured.upper <= found.measured.lower * (1 + 1e-3) * ROUNDING
    assert list(found.trace) == sorted(found.trace)
    assert found.trace[-1] <= found.value * 1.01
    assert found.value >= 0.8 * plain.value
    kept = ascent.maximise_counting(f, **options | {"steps": 1})[0]
    assert kept.measured.upper <= kept.measured.lower * (1 + 1e-3) * ROUNDING
