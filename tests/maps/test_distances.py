"""Keys and queries of distances: what does not fit is refused, and no theorem claims to cover them."""

import pytest
import torch
from cases import DISTANCES, D, N, layer
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps.positions import Distances
from howsmooth.theory.at_input.local import local_upper
from howsmooth.theory.ball.softmax import sharp_upper

pytestmark = pytest.mark.untyped


def gauss(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("keys", "queries", "error", "words"),
    [
        ((3, 4, 4), (3, 4, 4), hs.errors.ShapeError, "2L - 1"),
        ((3, 5, 4), (3, 7, 4), hs.errors.ShapeError, r"\(3, 5, 4\) and \(3, 7, 4\)"),
    ],
)
def test_tables_that_do_not_fit_each_other_are_refused(keys, queries, error, words):
    with pytest.raises(error, match=words) as caught:
        Distances(keys=gauss(*keys), queries=gauss(*queries))
    assert caught.value.field == "distances"


@pytest.mark.parametrize(("heads", "groups", "k", "words"), [(2, 2, 4, "3 heads of width"), (6, 3, 4, "of their own")])
def test_tables_that_do_not_fit_the_heads_are_refused(heads, groups, k, words):
    distances = Distances(keys=gauss(3, 9, k), queries=gauss(3, 9, k))
    words = words.replace("3 heads", f"{heads} heads")
    with pytest.raises(hs.errors.HowsmoothError, match=words) as caught:
        layer(gauss, heads=heads, groups=groups, positions=hs.maps.Positions(distances=distances))
    assert caught.value.field == "positions"


def test_a_table_without_numbers_is_refused():
    with pytest.raises(hs.errors.NonFiniteError):
        Distances(keys=gauss(1, 3, 2) / 0, queries=gauss(1, 3, 2))


def test_a_sequence_beyond_the_table_is_refused():
    f = layer(gauss, positions=hs.maps.Positions(distances=Distances(keys=gauss(3, 5, 4), queries=gauss(3, 5, 4))))
    assert f(gauss(3, D)).shape == (3, 5)
    with pytest.raises(hs.errors.ShapeError, match="must reach 4 tokens, got 3") as caught:
        f(gauss(4, D))
    assert caught.value.field == "distances"


@pytest.mark.parametrize("case", DISTANCES, ids=str)
def test_no_theorem_covers_them(case, rng):
    f, X = case.build(rng)
    for bound in (
        lambda: sharp_upper(f, n=4, radius=1.0),
        lambda: local_upper(f, X),
        lambda: f.query_side(X),
        lambda: f.on(hs.transport.DiscreteMeasure.from_sequence(X)),
    ):
        with pytest.raises(hs.errors.AssumptionError, match=r"distances|got another one"):
            bound()


@pytest.mark.parametrize("memory", [0, 2**30])
def test_tiles_do_not_change_the_products(memory, rng, monkeypatch):
    monkeypatch.setattr("howsmooth.maps.attention_weights.LEAST_ROWS", 2)
    monkeypatch.setattr("howsmooth.maps.attention_weights.TILE_BYTES", 64)
    f, X = DISTANCES[1].build(rng)
    small = f.jacobian(X, memory=memory)
    monkeypatch.undo()
    whole = f.jacobian(X)
    E, G = gauss(N, D), gauss(N, 5)
    assert len(small.pattern.tiles) > 2
    assert_close(small.jvp(E), whole.jvp(E))
    assert_close(small.vjp(G), whole.vjp(G))
