import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import howsmooth as hs

SHAPES = {"n": st.integers(1, 6), "d": st.integers(1, 3), "seed": st.integers(0, 2**32)}


def measure(n, d, seed, positions=False):
    """A measure with random atoms and masses, some of them in the same place."""
    rng = torch.Generator().manual_seed(seed)
    points = torch.randint(-2, 3, (n, d), generator=rng).double()
    weights = torch.rand(n, dtype=torch.float64, generator=rng) + 0.1
    places = torch.randint(0, 3, (n,), generator=rng).double() / 2 if positions else None
    return hs.transport.DiscreteMeasure(points, weights / weights.sum(), places)


@given(**SHAPES, k=st.integers(1, 4))
def test_pushing_a_split_forward_is_splitting_the_push_forward(n, d, seed, k):
    mu = measure(n, d, seed)

    def f(X):
        return X.square() + 1

    one, other = mu.split(k).push_forward(f), mu.push_forward(f).split(k)
    assert_close(one.points, other.points)
    assert_close(one.weights, other.weights)


@pytest.mark.slow
@given(**SHAPES, k=st.integers(1, 4))
def test_merging_undoes_splitting(n, d, seed, k):
    mu = measure(n, d, seed, positions=True)
    merged, again = mu.merge(), mu.split(k).merge()
    assert_close(merged.points, again.points)
    assert_close(merged.weights, again.weights)
    assert_close(merged.positions, again.positions)


@pytest.mark.slow
@given(**SHAPES)
def test_a_measure_survives_json_and_files(n, d, seed, tmp_path_factory):
    mu = measure(n, d, seed)
    path = tmp_path_factory.mktemp("measures") / "mu.safetensors"
    mu.save(path)
    for again in (hs.transport.DiscreteMeasure.from_json(mu.to_json()), hs.transport.DiscreteMeasure.load(path)):
        assert_close(again.points, mu.points)
        assert_close(again.weights, mu.weights)
        assert again.positions is None


def test_one_atom_can_be_split_and_its_parts_moved():
    mu = hs.transport.DiscreteMeasure(torch.tensor([[0.0], [1.0]]), torch.tensor([0.25, 0.75]))
    nu = mu.split(1, 3, torch.tensor([[0.1], [0.0], [-0.1]]))
    assert_close(nu.points[:, 0], torch.tensor([0.0, 1.1, 1.0, 0.9]))
    assert_close(nu.weights, torch.tensor([0.25, 0.25, 0.25, 0.25]))
    same = mu.split(atom=1, into=3)
    assert_close(same.merge().weights, mu.weights)


def test_merging_with_a_tolerance_keeps_the_centre_of_mass():
    mu = hs.transport.DiscreteMeasure(torch.tensor([[0.0], [0.01], [5.0]]), torch.tensor([0.25, 0.25, 0.5]))
    nu = mu.merge(tol=0.1)
    assert_close(nu.points[:, 0], torch.tensor([0.005, 5.0]))
    assert_close(nu.weights, torch.tensor([0.5, 0.5]))


def test_atoms_at_different_positions_do_not_merge():
    mu = hs.transport.DiscreteMeasure(torch.zeros(3, 1), None, torch.tensor([0.0, 0.5, 0.5]))
    assert_close(mu.merge().weights, torch.tensor([1 / 3, 2 / 3]))


def test_a_sequence_has_equal_masses_and_positions_in_order():
    mu = hs.transport.DiscreteMeasure.from_sequence(torch.zeros(4, 2), causal=True)
    assert_close(mu.weights, torch.full((4,), 0.25))
    assert_close(mu.positions, torch.tensor([0.25, 0.5, 0.75, 1.0]))
    assert hs.transport.DiscreteMeasure.from_sequence(torch.zeros(4, 2)).positions is None


def test_resampling_has_the_right_law(rng):
    mu = hs.transport.DiscreteMeasure(torch.tensor([[0.0], [1.0]]), torch.tensor([0.2, 0.8]))
    drawn = mu.resample(20_000, seed=rng)
    assert len(drawn) == 20_000
    assert abs(float(drawn.points.mean()) - 0.8) < 0.02


def test_integer_weights_are_duplicated_tokens(rng):
    """The mean-field map on a weighted measure is attention on the sequence with repeated tokens."""
    X = torch.randn(4, 3, dtype=torch.float64, generator=rng)
    counts = torch.tensor([1, 3, 2, 2])
    for causal in (False, True):
        f = hs.Attention.random(heads=2, d=3, k=2, causal=causal, dtype=torch.float64, seed=rng)
        positions = torch.arange(4, dtype=torch.float64) / 4 if causal else None
        mu = hs.transport.DiscreteMeasure(X, counts / counts.sum().double(), positions)
        long = hs.transport.DiscreteMeasure(
            X.repeat_interleave(counts, 0), None, None if positions is None else positions.repeat_interleave(counts)
        )
        short_out, long_out = hs.maps.mean_field(f)(mu).points, hs.maps.mean_field(f)(long).points
        assert_close(short_out.repeat_interleave(counts, 0), long_out, rtol=1e-12, atol=1e-12)
        if not causal:
            assert_close(long_out, f(X.repeat_interleave(counts, 0)), rtol=1e-12, atol=1e-12)
        one, other = (hs.local_lipschitz(f, x, rtol=1e-12).lower for x in (mu, long))
        assert_close(one, other, rtol=1e-10, atol=0)


def test_on_uniform_weights_the_mean_field_map_is_the_sequence_map(rng):
    X = torch.randn(5, 3, dtype=torch.float64, generator=rng)
    for causal in (False, True):
        f = hs.Attention.random(heads=2, d=3, k=2, causal=causal, dtype=torch.float64, seed=rng)
        assert_close(hs.maps.mean_field(f)(hs.transport.DiscreteMeasure.from_sequence(X, causal=causal)).points, f(X))
        constants = (
            hs.local_lipschitz(f, Y, rtol=1e-10).lower
            for Y in (X, hs.transport.DiscreteMeasure.from_sequence(X, causal=causal))
        )
        assert_close(*constants)


@pytest.mark.parametrize(
    ("text", "got"), [('{"atoms": [[1.0]], "masses": [1]}', "'atoms', 'masses'"), ("[[1.0]]", "no points")]
)
def test_a_measure_in_other_json_is_refused_with_the_form_that_is_read(text, got):
    with pytest.raises(hs.errors.ShapeError) as refused:
        hs.transport.DiscreteMeasure.from_json(text)
    assert '{"points": [[…], …], "weights": […]}' in str(refused.value)
    assert str(refused.value).endswith(f"got {got}.")
