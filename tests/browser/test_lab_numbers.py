"""The lab computes what the library computes, in a real browser."""

import math

import numpy as np
import pytest
import torch
from torch.func import jacrev

import howsmooth as hs
from browser.pages import opened

COMPUTE = "states => states.map(state => window.lab.compute(state))"
DOUBLE = torch.float64


@pytest.fixture(scope="module")
def lab(browser, lab_file):
    with opened(browser, lab_file) as shown:
        yield shown.page
        assert shown.watch.complaints == []


def tensor(numbers, *shape):
    return torch.tensor(numbers, dtype=DOUBLE).reshape(shape or (-1,))


def attention(state):
    """The library's map of a state of the lab."""
    A, V, b = tensor(state["A"], 2, 2), tensor(state["V"], 2, 2), tensor(state.get("b", [0, 0]))
    return hs.Attention(
        query=A[None],
        key=torch.eye(2, dtype=DOUBLE)[None],
        value=V[None],
        query_bias=b[None] if b.any() else None,
        scale=1.0,
        positions=hs.maps.Positions(causal=state["causal"]),
    )


def measure(state):
    c = tensor(state["c"])
    positions = torch.arange(len(c), dtype=DOUBLE) / len(c) if state["causal"] else None
    return hs.transport.DiscreteMeasure(tensor(state["x"], -1, 2), c / c.sum(), positions)


def plain(state):
    """L2 and sigmoid attention, written out for sequences."""
    A, V = tensor(state["A"], 2, 2), tensor(state["V"], 2, 2)

    def f(X):
        if state["mechanism"] == "l2":
            return torch.softmax(-(X @ A.mT)[:, None].sub(X).square().sum(-1), dim=-1) @ X @ V.mT
        return torch.sigmoid(X @ A.mT @ X.mT - math.log(len(X))) @ X @ V.mT

    return f


def random_states(rng, count, mechanisms=("softmax",), largest=5):
    states = []
    for k in range(count):
        places = int(rng.integers(2, largest))
        causal = bool(k % 4 == 3) and mechanisms == ("softmax",)
        states.append(
            {
                "x": rng.normal(size=(places, 2)).tolist(),
                "c": [1] * places if causal else rng.integers(1, 6, size=places).tolist(),
                "A": (rng.choice([0.3, 1, 3]) * rng.normal(size=4)).tolist(),
                "V": rng.normal(size=4).tolist(),
                "b": rng.normal(size=2).tolist() if k % 3 == 2 and mechanisms == ("softmax",) else [0.0, 0.0],
                "mechanism": mechanisms[k % len(mechanisms)],
                "causal": causal,
                "regime": "tokens",
                "R": 5.0,
            }
        )
    return states


def expanded(state):
    return tensor(state["x"], -1, 2).repeat_interleave(torch.tensor(state["c"]), dim=0)


def dense(f, X):
    """The Jacobian of the library, column by column in one batch; by autograd for what the library does not have."""
    N = X.numel()
    if not isinstance(f, hs.Attention):
        return jacrev(f)(X).reshape(N, N)
    return f.jacobian(X.expand(N, *X.shape)).jvp(torch.eye(N, dtype=DOUBLE).reshape(N, *X.shape)).reshape(N, N).mT


def agrees(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_hundreds_of_sequences_with_crowds_agree_with_every_token_written_out(lab):
    states = random_states(np.random.default_rng(0), 140) + random_states(
        np.random.default_rng(1), 80, mechanisms=("l2", "sigmoid")
    )
    for state, found in zip(states, lab.evaluate(COMPUTE, states), strict=True):
        f, X = attention(state) if state["mechanism"] == "softmax" else plain(state), expanded(state)
        J = dense(f, X)
        agrees(found["constant"], float(torch.linalg.matrix_norm(J, 2)))
        agrees(found["typical"], float(J.norm()) / math.sqrt(2 * len(X)))
        first = np.cumsum([0, *state["c"][:-1]])
        agrees(found["outputs"], f(X)[first].tolist())


def test_measures_agree_with_the_library_moved_and_cut(lab):
    states = [state | {"regime": "measure"} for state in random_states(np.random.default_rng(2), 40)]
    for state in states:
        state["c"] = np.exp(np.random.default_rng(len(state["c"])).normal(scale=3, size=len(state["c"]))).tolist()
    for state, found in zip(states, lab.evaluate(COMPUTE, states), strict=True):
        wanted = hs.splitting(attention(state), measure(state), rtol=1e-9)
        agrees(found["constant"], wanted.move)
        agrees(found["split"], wanted.split)


def test_bounds_and_the_limit_agree_with_the_library(lab):
    states = random_states(np.random.default_rng(3), 60)
    for state, found in zip(states, lab.evaluate(COMPUTE, states), strict=True):
        f, n = attention(state), sum(state["c"])
        agrees(found["worst"], hs.bounds.sharp_upper(f, n=n, radius=5.0).value)
        if state["b"] == [0.0, 0.0]:
            agrees(found["paper"], hs.bounds.discrete_upper(f, n=n, radius=5.0).value)
        if state["b"] == [0.0, 0.0] and set(state["c"]) == {1} and not state["causal"]:
            agrees(found["limit"], hs.bounds.large_radius_limit(f, expanded(state)).value)
    measures = [state | {"regime": "measure", "R": 1.2} for state in states]
    for state, found in zip(measures, lab.evaluate(COMPUTE, measures), strict=True):
        if state["b"] != [0.0, 0.0]:
            assert found["worst"] is None
        elif state["causal"]:
            agrees(found["worst"], hs.bounds.masked_mean_field_upper(attention(state), radius=1.2).value)
        else:
            agrees(found["worst"], hs.bounds.sharp_mean_field_upper(attention(state), radius=1.2).value)
            agrees(found["paper"], hs.bounds.mean_field_upper(attention(state), radius=1.2).value)


def test_many_places_go_by_lanczos_and_agree(lab):
    rng = np.random.default_rng(4)
    states = [
        random_states(rng, 1)[0] | {"x": rng.normal(size=(places, 2)).tolist(), "c": [1] * places, "causal": False}
        for places in (*range(9, 34), 64)
    ]
    for state, found in zip(states, lab.evaluate(COMPUTE, states), strict=True):
        J = dense(attention(state), expanded(state))
        agrees(found["constant"], float(torch.linalg.matrix_norm(J, 2)))
        right = tensor(found["right"])
        agrees(float((J @ right).norm()), found["constant"])


def test_a_million_tokens_cost_no_more_than_their_places(lab):
    state = {"x": [[0, 3], [0, -3], [3, 0]], "A": [-1, 0, 0, -1], "V": [1, 0, 0, 1], "c": [1, 1, 198]}
    few, many = lab.evaluate(COMPUTE, [state | {"x": [[0, 4], [0, -4], [4, 0]]}, state | {"c": [1, 1, 999_998]}])
    assert few["constant"] == pytest.approx(160.310, abs=5e-4)  # as in the theory: 200 tokens, R = 4
    assert few["paper"] is not None
    assert many["constant"] > 100
    assert all(map(math.isfinite, many["right"]))


def test_nothing_overflows_far_out(lab):
    state = {"x": [[1e3, 0], [-1e3, 1], [900.0, 5.0]], "A": [30, 0, 0, 30], "V": [1, 0, 0, 1], "c": [1, 1, 1]}
    for mechanism in ("softmax", "l2", "sigmoid"):
        (found,) = lab.evaluate(COMPUTE, [state | {"mechanism": mechanism}])
        assert math.isfinite(found["constant"])
        assert np.isfinite(found["outputs"]).all()


def test_the_peak_in_the_mean_field_regime_is_where_the_theory_has_it(lab):
    state = {"x": [[-2, 0], [2, 0]], "A": [-1, 0, 0, -1], "V": [1, 0, 0, 1], "c": [1, 20], "regime": "measure", "R": 2}
    peak = lab.evaluate("state => window.lab.bestMass(state)", state)
    assert peak["value"] == pytest.approx(165.85, abs=0.005)
    assert peak["share"] == pytest.approx(1.24e-4, rel=0.005)
    lab.evaluate("() => { location.hash = '#scene=mean-field&R=2'; }")
    lab.wait_for_function("() => document.getElementById('note').textContent.includes('2,98')")
    assert "peak is 166" in lab.locator("#note").inner_text()


def test_cutting_beats_moving_near_the_origin_and_a_crumb_may_go_far(lab):
    line = {"V": [1, 0, 0, 0], "c": [1, 1], "regime": "measure"}
    near = line | {"x": [[-5.3, 0], [-0.5, 0]], "A": [-1, 0, 0, -1]}
    (found,) = lab.evaluate(COMPUTE, [near])
    assert found["move"] == pytest.approx(1.1978, abs=5e-5)
    assert found["split"] == pytest.approx(1.7569, abs=5e-5)
    far = line | {"x": [[-5, 0], [5, 0]], "A": [1, 0, 0, 1]}
    assert lab.evaluate("m => window.lab.secant(m, 1, [-0.5, 0])", far) == pytest.approx(1.806, abs=5e-4)
    before = {"x": [[-5, 0], [5, 0], [5, 0]], "c": [1, 1 - 1e-8, 1e-8]}
    after = before | {"x": [[-5, 0], [5, 0], [-0.5, 0]]}
    true = lab.evaluate("([m, before, after]) => window.lab.trueRatio(m, before, after)", [far, before, after])
    assert true == pytest.approx(1.806, abs=1e-3)


def test_nothing_is_claimed_where_outputs_coincide(lab):
    same = {"x": [[1, 0], [-1, 0]], "A": [0, 0, 0, 0], "V": [1, 0, 0, 1], "c": [1, 1], "regime": "measure"}
    (found,) = lab.evaluate(COMPUTE, [same])
    assert not found["distinct"]


def test_transport_agrees_with_the_library(lab):
    rng = np.random.default_rng(5)
    pairs = [
        [{"x": rng.normal(size=(m, 2)).tolist(), "c": rng.exponential(size=m).tolist()} for m in sizes]
        for sizes in ((1, 4), (3, 3), (5, 2), (6, 6), (4, 5))
    ]
    found = lab.evaluate("pairs => pairs.map(([one, other]) => window.lab.wasserstein(one, other))", pairs)
    for pair, distance in zip(pairs, found, strict=True):
        one, other = (hs.transport.DiscreteMeasure(tensor(m["x"], -1, 2), tensor(m["c"]) / sum(m["c"])) for m in pair)
        agrees(distance, float(hs.transport.wasserstein(one, other)))


@pytest.mark.parametrize(
    ("A", "n", "radius"), [([-1, 0, 0, -1], 64, 3.0), ([0, -1, 1, 0], 64, 4.0), ([0, 1, 0, 0], 16, 3.0)]
)
def test_the_best_known_input_reaches_the_tied_pair_and_no_bound(lab, A, n, radius):
    state = {"x": [[0, 0]], "c": [n], "A": A, "V": [1, 0, 0, 1], "R": radius, "causal": False}
    best = lab.evaluate("state => window.lab.bestKnown(state)", state)
    tied = hs.inputs.tied_pair(attention(state), n, radius)
    assert best["value"] >= 0.995 * tied.value
    X = radius * tensor(best["xi"], -1, 2).repeat_interleave(torch.tensor(best["c"]), dim=0)
    agrees(best["value"], float(hs.local_lipschitz(attention(state), X, rtol=1e-8).lower))
    assert best["value"] <= hs.bounds.sharp_upper(attention(state), n=n, radius=radius).value


def test_the_head_of_minilm_is_the_one_that_was_computed(lab):
    data = lab.evaluate("() => JSON.parse(document.getElementById('lab-data').textContent).minilm")
    state = {"A": data["A"], "V": data["V"], "b": data["b"], "causal": False, "R": data["radius"]}
    state |= {"x": data["pair"], "c": [1, 1, data["n"] - 2]}
    (found,) = lab.evaluate(COMPUTE, [state])
    assert found["constant"] == pytest.approx(data["pair_value"], rel=2e-3)
    assert found["constant"] <= found["worst"]
