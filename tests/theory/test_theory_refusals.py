"""What a theorem does not cover is refused, and the one that covers it is named."""

import math

import pytest
import torch
from draws import gaussian
from theory.bounds_by_name import LOWERS_WITH_N, LOWERS_WITHOUT_N, WITH_N, WITHOUT_N, bound
from theory.example_layers import form, random_layer, rotation, turn, with_mask
from theory.perturbed_inputs import small_layer

import howsmooth as hs
from howsmooth.errors import AssumptionError, HowsmoothError
from howsmooth.theory.assumptions import has_bias_beside_sink, has_key_bias, has_query_bias

pytestmark = pytest.mark.untyped


def test_the_papers_lower_bound_needs_a_real_eigenvalue_and_names_the_sharp_one(rng):
    for A in (rotation(2), rotation(4)):
        for name in ("discrete_lower", "mean_field_lower"):
            with pytest.raises(AssumptionError, match="sharp"):
                bound(name, form(A), n=9, radius=2.0)
        assert hs.bounds.sharp_lower(form(A), n=9, radius=2.0).value > 0
    with pytest.raises(AssumptionError, match="sharp_lower"):
        hs.bounds.discrete_lower(form(rotation(2)), n=9, radius=2.0)


def test_the_papers_bounds_refuse_a_query_bias_and_name_the_sharp_one(rng):
    f = random_layer(rng, heads=1, query_bias=gaussian(rng, 1, 2))
    with pytest.raises(AssumptionError, match="sharp_upper"):
        hs.bounds.discrete_upper(f, n=9, radius=2.0)


@pytest.mark.parametrize("name", [name for name in LOWERS_WITH_N + LOWERS_WITHOUT_N if name != "sharp_lower"])
def test_lower_bounds_refuse_rotary_embeddings(rng, name):
    f = random_layer(rng, heads=1, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))
    with pytest.raises(AssumptionError, match=r"(?i)rotary"):
        bound(name, f, n=9, radius=2.0)


@pytest.mark.parametrize("name", WITH_N + WITHOUT_N + LOWERS_WITH_N + LOWERS_WITHOUT_N)
def test_maps_that_are_not_attention_are_refused(name):
    for f in (torch.nn.Linear(2, 2), hs.maps.Residual(form(torch.eye(2).double())), None):
        with pytest.raises(HowsmoothError):
            bound(name, f, n=4, radius=1.0)


def test_masked_measures_have_no_bound_for_p_at_most_one():
    f = with_mask(form(-torch.eye(2).double()), True)
    for p in (1, 1.0, 0.5):
        with pytest.raises(AssumptionError):
            hs.bounds.masked_mean_field_upper(f, radius=1.0, p=p)
    with pytest.raises(AssumptionError):
        hs.bounds.sharp_mean_field_upper(form(-torch.eye(2).double()), radius=1.0, p=0.5)


@pytest.mark.parametrize("name", WITH_N + WITHOUT_N + LOWERS_WITH_N + LOWERS_WITHOUT_N)
@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_radii_that_are_none_are_refused(name, radius):
    f = with_mask(form(-torch.eye(2).double()), name.startswith("masked"))
    with pytest.raises(HowsmoothError, match="radius"):
        bound(name, f, n=9, radius=radius)


@pytest.mark.parametrize("name", WITH_N + LOWERS_WITH_N)
@pytest.mark.parametrize("n", [0, -3])
def test_numbers_of_tokens_that_are_none_are_refused(name, n):
    with pytest.raises(HowsmoothError):
        bound(name, form(-torch.eye(2).double()), n=n, radius=1.0)


def test_two_points_need_a_real_eigenvalue_and_name_the_tied_pair():
    with pytest.raises(AssumptionError, match=r"tied_pair|sharp_lower"):
        hs.inputs.two_point(form(turn(90)), 9, 2.0)


@pytest.mark.parametrize("maker", [hs.inputs.origin_token, hs.inputs.two_point])
def test_explicit_inputs_refuse_rotary_embeddings(rng, maker):
    f = random_layer(rng, heads=1, positions=hs.maps.Positions(rotary=hs.maps.Rotary()))
    with pytest.raises(AssumptionError, match=r"(?i)rotary"):
        maker(f, 9, 2.0)


def test_a_norm_of_another_dimension_is_refused(rng):
    f = form(gaussian(rng, 3, 3))
    with pytest.raises(HowsmoothError):
        hs.inputs.tied_pair_on_image(f, 5, hs.maps.LayerNorm(gain=torch.ones(4).double()))
    with pytest.raises(HowsmoothError):
        hs.maximise(
            f, n=5, domain=hs.domains.LayerNormImage(hs.maps.LayerNorm(gain=torch.ones(4).double())), starts=1, steps=1
        )


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "maker", [hs.inputs.tied_pair, hs.inputs.two_point, hs.inputs.equal_tokens, hs.inputs.tied_pair_on_sphere]
)
def test_explicit_inputs_refuse_radii_that_are_none(maker, radius):
    with pytest.raises(HowsmoothError, match="radius"):
        maker(form(-torch.eye(2).double()), 5, radius)


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf])
def test_sizes_of_neighbourhoods_that_are_none_are_refused(rng, eps):
    with pytest.raises(HowsmoothError, match="eps"):
        hs.bounds.neighbourhood_upper(small_layer(rng), gaussian(rng, 4, 3), eps=eps)


@pytest.mark.parametrize("name", ["local_upper", "attention_map_upper", "neighbourhood_upper", "large_radius_limit"])
def test_tokens_of_another_dimension_and_tokens_that_are_not_finite_are_refused(rng, name):
    options = {"eps": 0.1} if name == "neighbourhood_upper" else {}
    broken = gaussian(rng, 4, 3)
    broken[1, 1] = math.nan
    for X in (gaussian(rng, 4, 2), broken):
        with pytest.raises(HowsmoothError):
            getattr(hs.bounds, name)(small_layer(rng), X, **options)


@pytest.mark.parametrize("name", ["local_upper", "attention_map_upper", "neighbourhood_upper", "large_radius_limit"])
def test_maps_that_are_not_attention_and_batches_are_refused(rng, name):
    options = {"eps": 0.1} if name == "neighbourhood_upper" else {}
    for f in (torch.nn.Linear(3, 3).double(), hs.maps.Residual(small_layer(rng)), None):
        with pytest.raises(HowsmoothError):
            getattr(hs.bounds, name)(f, gaussian(rng, 4, 3), **options)
    with pytest.raises(HowsmoothError):
        getattr(hs.bounds, name)(small_layer(rng), gaussian(rng, 2, 4, 3), **options)


def test_a_key_bias_matters_where_it_is_not_zero_and_does_not_cancel(rng):
    bias = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    turned = {"k": 4, "positions": hs.maps.Positions(rotary=hs.maps.Rotary())}
    assert has_key_bias(random_layer(rng, key_bias=bias, **turned))
    assert not has_key_bias(random_layer(rng, key_bias=0 * bias, **turned))
    assert not has_key_bias(random_layer(rng, k=4, key_bias=bias))


def test_a_bias_counts_where_one_of_its_numbers_is_not_zero(rng):
    zero, full, one = torch.zeros(3, 2).double(), torch.ones(3, 2).double(), torch.eye(3, 2).double()
    capped, sink = {"softcap": 1.0}, {"sink": torch.zeros(3).double()}
    for bias, counts in ((None, False), (zero, False), (full, True), (one, True)):
        assert has_query_bias(random_layer(rng, query_bias=bias)) == counts
        assert has_key_bias(random_layer(rng, key_bias=bias, **capped)) == counts
        assert has_bias_beside_sink(random_layer(rng, key_bias=bias, **sink)) == counts
        assert has_bias_beside_sink(random_layer(rng, v=2, value_bias=bias, **sink)) == counts
        assert not has_key_bias(random_layer(rng, key_bias=bias))
        assert not has_bias_beside_sink(random_layer(rng, key_bias=bias))
