import pytest
import torch
import torch.nn.functional as F
from cases import BATCHED, SINGLE, layer
from oracles import attention_by_loops
from torch.testing import assert_close

import howsmooth as hs


@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_the_forward_pass_is_the_definition(case, rng):
    f, X = case.build(rng)
    assert_close(f(X), attention_by_loops(f, X))


@pytest.mark.parametrize("case", [c for c in BATCHED if c.name in ("batch", "batch of batches, grouped")], ids=str)
def test_a_batch_is_mapped_sequence_by_sequence(case, rng):
    f, X = case.build(rng)
    singly = torch.stack([f(x) for x in X.flatten(0, -3)])
    assert_close(f(X).flatten(0, -3), singly)


def test_padding_differs_from_sequence_to_sequence(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    X = torch.randn(2, 5, 6, dtype=torch.float64, generator=rng)
    padding = torch.tensor([[True] * 5, [True, True, True, False, False]])
    padded = hs.Attention(
        query=f.query, key=f.key, value=f.value, output=f.output, positions=hs.Positions(padding=padding)
    )
    assert_close(padded(X)[0], f(X[0]))
    assert_close(padded(X)[1, :3], f(X[1, :3]))


@pytest.mark.parametrize("n", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("window", [None, 1, 40, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_tile_borders_do_not_show(n, window, causal, rng, monkeypatch):
    from howsmooth.maps import pattern

    monkeypatch.setattr(pattern, "TILE_BYTES", 0)
    f = layer(
        lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng),
        biases=False,
        positions=hs.Positions(causal=causal, window=window),
    )
    X = torch.randn(n, 6, dtype=torch.float64, generator=rng)
    i = torch.arange(n)
    visible = (i - i[:, None]).abs() < (window or n + 1)
    if causal:
        visible &= i <= i[:, None]
    q, k, v = (torch.einsum("hkd,nd->hnk", W, X) for W in (f.query, f.key, f.value))
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    assert_close(f(X), torch.einsum("hov,hnv->no", f.output, heads))


def test_heads_add_up_to_the_layer(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), heads=4, groups=2)
    X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
    assert_close(sum(f.head(h)(X) for h in range(4)) + f.output_bias, f(X))


def test_per_head_is_a_batch_of_heads(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), heads=4, groups=2)
    X = torch.randn(3, 7, 6, dtype=torch.float64, generator=rng)
    together = f.per_head()(X[:, None])
    assert together.shape == (3, 4, 7, 5)
    for h in range(4):
        assert_close(together[:, h], f.head(h)(X))


def test_attention_does_not_care_about_the_order_of_tokens(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng))
    X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
    order = torch.randperm(7, generator=rng)
    assert_close(f(X[order]), f(X)[order])


def test_integer_weights_are_repeated_tokens(rng):
    g = hs.Attention.random(heads=2, d=6, dtype=torch.float64, generator=rng)
    X = torch.randn(4, 6, dtype=torch.float64, generator=rng)
    counts = torch.tensor([1, 3, 2, 1])
    weighted = hs.Attention(query=g.query, key=g.key, value=g.value, output=g.output, weights=counts.double())
    repeated = X.repeat_interleave(counts, dim=0)
    assert_close(weighted(X), g(repeated)[[0, 1, 4, 6]])


def test_a_rotation_of_queries_and_keys_depends_on_their_distance_only(rng):
    f = layer(
        lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng),
        positions=hs.Positions(rotary=hs.Rotary(positions=torch.arange(7))),
    )
    shifted = hs.Positions(rotary=hs.Rotary(positions=torch.arange(7) + 1000))
    X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
    import dataclasses

    assert_close(f(X), dataclasses.replace(f, positions=shifted)(X))


def test_saturated_scores_pick_the_best_token():
    A, V = 1e4 * torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.1]], dtype=torch.float64)
    f = hs.Attention.single_head(A=A, V=V)
    assert_close(f(X), X[[0, 1, 0]])
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[[0, 1, 2], [0, 1, 0]] = 1.0
    E = torch.randn(3, 2, dtype=torch.float64)
    assert_close(f.jacobian(X).jvp(E), expected @ E)


def test_a_map_can_change_dtype(rng):
    f = layer(
        lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng),
        positions=hs.Positions(padding=torch.ones(7, dtype=torch.bool), rotary=hs.Rotary(frequencies=torch.ones(2))),
    )
    g = f.to(torch.float32)
    X = torch.randn(7, 6, dtype=torch.float64, generator=rng)
    assert g.query.dtype == g.output_bias.dtype == g.positions.rotary.frequencies.dtype == torch.float32
    assert g.positions.padding.dtype == torch.bool
    assert_close(g(X.float()).double(), f(X), rtol=1e-3, atol=1e-4)  # float32 against float64


def test_vmap_and_forward_mode_work_through_the_forward_pass(rng):
    f = layer(lambda *s: torch.randn(*s, dtype=torch.float64, generator=rng), positions=hs.Positions(causal=True))
    X = torch.randn(3, 7, 6, dtype=torch.float64, generator=rng)
    assert_close(torch.vmap(f)(X), f(X))
    assert_close(torch.func.jacfwd(f)(X[0]), torch.func.jacrev(f)(X[0]))


def test_a_map_says_what_it_is():
    f = hs.Attention.random(heads=4, d=8, causal=True)
    assert repr(f) == "Attention(heads=4, d=8, k=2, v=2, out=8, causal, torch.float32)"
