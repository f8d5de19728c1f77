"""Certificates: small classifiers, whose chains are checked, and remainders that samples never exceed."""

import copy
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.certificates.proofs import _claim
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.check import check_proof
from howsmooth.check.balls import ball, norms_upper
from howsmooth.check.certificates import Network, check_certificate
from howsmooth.check.float32 import rounding_errors
from howsmooth.check.outcomes import Refuted
from howsmooth.check.remainders import STAGES, AttentionRemainder, Sizes, quadratic_norms, triangle
from howsmooth.errors import AssumptionError
from howsmooth.maps import MLP, Attention, Chain, LayerNorm, Pooling, Residual, RMSNorm
from howsmooth.proof_files import steps_of

N, D = 3, 4


def classifier(*, causal=False, activation="gelu", seed=0):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64) / 2

    norms = [LayerNorm(gain=1 + drawn(D), bias=drawn(D), eps=1e-5) for _ in range(3)]
    attention = Attention.random(heads=2, d=D, k=2, causal=causal, dtype=torch.float64, seed=generator)
    mlp = MLP(up=drawn(6, D), up_bias=drawn(6), down=drawn(D, 6), down_bias=drawn(D), activation=activation)
    head = MLP(up=drawn(D, D), up_bias=drawn(D), down=3 * drawn(2, D), down_bias=drawn(2), activation="tanh")
    blocks = (norms[0], Residual(attention), norms[1], Residual(mlp), norms[2])
    X = drawn(N, D) * 4
    return Chain(*blocks, Pooling.first(n=N, like=X), head), X


@cache
def saved(causal=False):
    """A certificate of one word, and its proof file."""
    f, X = classifier(causal=causal)
    certificate = hs.certify(f, X, word=int(causal))
    with tempfile.TemporaryDirectory() as folder:
        certificate.save(Path(folder) / "proof.json")
        return certificate, json.loads((Path(folder) / "proof.json").read_text())


def outcomes(proof, f, folder):
    path = folder / "proof.json"
    path.write_text(json.dumps(proof))
    return check_proof(path, f)


@pytest.mark.parametrize("causal", [False, True])
def test_a_certificate_is_checked(causal, tmp_path):
    certificate, proof = saved(causal)
    (outcome,) = outcomes(proof, certificate.classifier, tmp_path)
    assert outcome.status == "checked"
    (claim,), (radius,) = proof["claims"], certificate.radii
    assert claim["order"] == 2
    assert 0.98 * radius.certified < claim["radius"] <= radius.certified


def test_the_first_order_alone_is_checked_and_proves_less():
    certificate, proof = saved()
    table = RemainderTable(certificate.classifier, certificate.embeddings, single=False, every_row=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("howsmooth.certificates.proofs.second_order_affordable", lambda *_: False)
        claim = _claim(certificate, table, (0,), certificate.radii[0].certified)
    assert claim["order"] == 1
    assert claim["radius"] < 0.98 * proof["claims"][0]["radius"]
    steps = steps_of(certificate.classifier)
    check_certificate(steps, claim, {})
    with pytest.raises(Refuted):  # the remainders of one order are not those of the other
        check_certificate(steps, {**proof["claims"][0], "order": 1}, {})


def test_several_words_together(tmp_path):
    f, X = classifier()
    certificate = hs.certify(f, X, word=(0, 2))
    certificate.save(tmp_path / "proof.json")
    assert [outcome.status for outcome in check_proof(tmp_path / "proof.json", f)] == ["checked"]


@pytest.mark.slow
def test_a_word_of_the_reviews(tmp_path):
    path = tmp_path / "proof.json"
    hs.certify("reviews", "a fine film", word="fine").save(path)
    (outcome,) = check_proof(path, "reviews")
    assert outcome.status == "checked"


def sizes_of(stage, columns, eps, order, later=None):
    """Bounds on the images of some columns, and of others that come later: if not given, a thousandth of the same."""
    r, words = len(columns), stage.images(ball(columns.numpy()))
    first = {name: norms_upper(x.moved(0, -2)) * eps for name, x in words.items()}
    rest = {name: 1e-3 * x if order == 2 else 0 * x for name, x in first.items()}
    if later is not None:
        images = stage.images(ball(later.numpy()))
        rest = {name: norms_upper(x.moved(0, -2)) for name, x in images.items()}
    if order == 2 and isinstance(stage, AttentionRemainder):
        nothing = {name: ball(np.zeros((r * (r + 1) // 2, *x.shape[1:]))) for name, x in words.items()}
        forms = stage.with_products(nothing, words)
        rest = {name: x + quadratic_norms(forms[name]) * eps**2 for name, x in rest.items()}
    whole = {name: (x + rest[name]) * (1 + 1e-12) for name, x in first.items()}
    return Sizes(first, rest, whole, words, eps, order)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("place", [0, 1, 3, 6])
def test_remainders_are_never_exceeded(place, order):
    # the stage alone, moved along three random columns by a radius: a slow oracle of its formula
    f, _X = classifier(causal=True)
    step = steps_of(f)[place]
    generator, rows = torch.Generator().manual_seed(1), 1 if place == 6 else N
    X = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    columns = torch.randn(3, rows, D, generator=generator, dtype=torch.float64)
    stage = STAGES[step.kind](step, ball(X.numpy()))
    alone = f.maps[place].map if isinstance(f.maps[place], Residual) else f.maps[place]
    directions = [x.mid for x in stage.directions()]
    for eps in (1e-2, 0.1, 0.5):
        sizes = sizes_of(stage, columns, eps, order)
        bounds = stage.remainders(sizes)
        xi = torch.nn.functional.normalize(torch.randn(200, 3, generator=generator, dtype=torch.float64), dim=1) * eps
        moved = torch.stack([alone(X + torch.einsum("r,rnd->nd", x, columns)) for x in xi]) - alone(X)
        first = torch.einsum("br,rnd->bnd", xi, torch.from_numpy(stage.leaving(sizes.words).mid))
        remainder = (moved - first).numpy()
        if order == 2:
            H = stage.second_order(sizes.words).mid[triangle(3)[2]]
            remainder -= np.einsum("ba,bc,acnd->bnd", xi, xi, H)
            if eps == 1e-2:  # what is left is of third order
                assert np.abs(remainder).max() < 0.1 * np.abs((moved - first).numpy()).max()
        # the support of every remainder in random directions is at most that of the claimed set
        for test in np.random.default_rng(0).standard_normal((20, *remainder.shape[1:])):
            reach, begun = 0.0, 0
            for group in directions:
                along = np.linalg.norm(np.tensordot(group, test, 2), axis=1)
                reach += float(along @ bounds[begun : begun + len(group)])
                begun += len(group)
            assert np.abs(np.tensordot(remainder, test, 2)).max() <= reach * (1 + 1e-9)


def found_and_bound(f, X, column, later, order):
    """The longest remainder at every token and what bounds it: one column of radius one, and one that comes later."""
    step = steps_of(f)[0]
    stage = STAGES[step.kind](step, ball(X.numpy()))
    sizes = sizes_of(stage, column[None], 1.0, order, later[None])
    bounds = stage.remainders(sizes)
    grid = torch.linspace(-1, 1, 11, dtype=torch.float64)
    first, H = stage.leaving(sizes.words).mid[0], stage.second_order(sizes.words).mid[0]
    behind = stage.leaving(stage.images(ball(later[None].numpy()))).mid[0]
    longest = np.zeros(len(X))
    for e in grid.tolist():
        for xi in grid.tolist():
            found = (f(X + e * column + xi * later) - f(X)).numpy() - e * first - xi * behind
            longest = np.maximum(longest, np.linalg.norm(found - (e * e * H if order == 2 else 0), axis=-1))
    return longest, bounds


# Tokens are two coordinates that values read, and two that scores read: which of them move, and by what order it shows.
PARTS = {
    "products": ([0, 0, 1, 1], [0, 0, 0, 0], 1, {"scores": 0.0}),
    "products later": ([0, 0, 1, 1], [0, 0, 1, 1], 2, {"scores": 0.0}),
    "squares": ([0, 0, 1, 1], [0, 0, 1, 1], 2, {}),
    "scores and values": ([0, 0, 1, 1], [1, 1, 0, 0], 2, {}),
    "values that are equal": ([1, 1, 1, 1], [0, 0, 0, 0], 2, {"values": 0.0}),
    "values at first order": ([1, 1, 1, 1], [0, 0, 0, 0], 1, {"values": 0.0}),
    "cubes": ([0, 0, 1, 1], [0, 0, 0, 0], 2, {}),
}


@pytest.mark.parametrize("name", PARTS)
def test_every_term_of_attention_is_needed_somewhere(name):
    moving, later, order, scales = PARTS[name]
    rng, largest = torch.Generator().manual_seed(0), 0.0
    for _ in range(5):

        def drawn(*shape):
            return torch.randn(shape, generator=rng, dtype=torch.float64)

        zeros = torch.zeros(1, 2, 2, dtype=torch.float64)
        query, key = (torch.cat((zeros, drawn(1, 2, 2)), -1) for _ in range(2))
        value, output = torch.cat((drawn(1, 2, 2), zeros), -1), torch.eye(4, dtype=torch.float64)[None, :, :2]
        f = Attention(query=query, key=key, value=value, output=output)
        sizes = torch.tensor([scales.get("values", 1.0)] * 2 + [scales.get("scores", 1.0)] * 2)
        X, one, other = drawn(N, 4) * sizes, torch.zeros(N, 4, dtype=torch.float64), torch.zeros(N, 4).double()
        direction = drawn(4)
        one[1], other[1] = 0.1 * direction * torch.tensor(moving), 0.1 * direction * torch.tensor(later)
        found, bounds = found_and_bound(f, X, one, other, order)
        assert (found <= bounds * (1 + 1e-9) + 1e-15).all()
        largest = max(largest, float((found / (bounds + 1e-12)).max()))
    assert largest > 0.9  # hardly anything could be left out


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@pytest.mark.parametrize("order", [1, 2])
def test_one_unit_is_bounded_closely(activation, order):
    rng, largest = np.random.default_rng(0), 0.0
    one = torch.ones(1, 1, dtype=torch.float64)
    for y in rng.uniform(-3, 3, 20):
        f = MLP(up=one, down=one, activation=activation)
        found, bounds = found_and_bound(f, float(y) * one, 0.2 * one, 0.1 * one, order)
        assert (found <= bounds * (1 + 1e-9)).all()
        largest = max(largest, float((found / bounds).max()))
    assert largest > 0.9


@pytest.mark.parametrize("word", ["along", "across", "twice"])
def test_the_second_order_of_a_norm_is_bounded_closely(word):
    # the word moves along the token, what comes later across it; the other way round; or both across
    rng = torch.Generator().manual_seed(0)
    f = RMSNorm(gain=torch.ones(D, dtype=torch.float64), eps=1e-9)
    X, across = (torch.randn(1, D, generator=rng, dtype=torch.float64) for _ in range(2))
    across = across - X * (across * X).sum() / X.square().sum()
    across = across * X.norm() / across.norm()
    first, later = {"along": (X, across), "across": (across, X), "twice": (across, across)}[word]
    step = steps_of(f)[0]
    c = X.numpy() / np.linalg.norm(X.numpy()) * 2
    for one, other in ((0.1, 0.05), (0.02, 0.02), (0.2, 0.01)):
        stage = STAGES["norm"](step, ball(X.numpy()))
        sizes = sizes_of(stage, one * first[None], 1.0, 2, other * later[None])
        bound_along, bound_across = stage.remainders(sizes)
        longest = np.zeros(2)
        H = stage.second_order(sizes.words).mid[0]
        linear = [stage.leaving(stage.images(ball(x[None].numpy()))).mid[0] for x in (one * first, other * later)]
        for e in np.linspace(-1, 1, 11):
            for xi in np.linspace(-1, 1, 11):
                left = (f(X + e * one * first + xi * other * later) - f(X)).numpy() - e * linear[0] - xi * linear[1]
                left = (left - e * e * H)[0]
                part = float(left @ c[0]) / 4
                longest = np.maximum(longest, [abs(part), np.linalg.norm(left - part * c[0]) / 2])
        assert (longest <= np.array([bound_along, bound_across]) * (1 + 1e-9)).all()
        assert (longest > 0.8 * np.array([bound_along, bound_across])).all()


def test_predictions_do_not_change_inside_a_checked_ball():
    certificate, proof = saved()
    generator = torch.Generator().manual_seed(0)
    for claim in proof["claims"]:
        E = torch.nn.functional.normalize(torch.randn(100, D, generator=generator, dtype=torch.float64), dim=1)
        Z = certificate.embeddings.repeat(100, 1, 1)
        Z[:, claim["moved"][0]] += claim["radius"] * E
        assert (certificate.classifier(Z)[:, 0].argmax(1) == claim["predicted"]).all()


def test_tampered_chains_do_not_claim_more():
    certificate, proof = saved()
    (original,), rng = proof["claims"], np.random.default_rng(0)
    steps, networks = steps_of(certificate.classifier), {}
    for k in range(100):
        claim, share = copy.deepcopy(original), 10.0 ** rng.uniform(-6, -1)
        stages, way = claim["stages"], k % 4
        if way == 1:
            a, b = rng.choice(len(stages), 2, replace=False)
            stages[a], stages[b] = stages[b], stages[a]
        elif way == 2:
            bounds = stages[rng.integers(len(stages))]["remainders"]
            bounds[:] = [x * (1 - share) for x in bounds]
        elif way == 3:
            claim["predicted"], claim["rivals"] = claim["rivals"][0], [claim["predicted"]]
        claim["radius"] *= 1 + (share if way == 0 else 1e-3)
        with pytest.raises(Refuted):
            check_certificate(steps, claim, networks)
    other = copy.deepcopy(original)
    other["tokens"][0] = [-x for x in other["tokens"][0]]
    with pytest.raises(Refuted):
        check_certificate(steps, other, networks)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, [], "1"])
def test_what_is_no_number_is_never_a_proof(bad, tmp_path):
    certificate, proof = saved()
    for change in (
        lambda claim: claim.update(radius=bad),
        lambda claim: claim.update(order=bad),
        lambda claim: claim.update(moved=bad),
        lambda claim: claim.update(rivals=bad),
        lambda claim: claim.update(predicted=bad),
        lambda claim: claim.update(stages=bad),
        lambda claim: claim["stages"][2].update(remainders=bad),
        lambda claim: claim["stages"][2]["remainders"].__setitem__(0, bad),
        lambda claim: claim["tokens"][1].__setitem__(0, bad),
    ):
        claim = copy.deepcopy(proof["claims"][0])
        change(claim)
        (outcome,) = outcomes({**proof, "claims": [claim]}, certificate.classifier, tmp_path)
        assert outcome.status in ("cannot check", "refuted")


def test_weights_that_are_no_numbers_prove_nothing():
    f, X = classifier()
    _certificate, proof = saved()
    for step, name in ((0, "gain"), (1, "key"), (1, "output"), (3, "up"), (6, "down")):
        steps = steps_of(f)
        steps[step].arrays[name] = np.full_like(steps[step].arrays[name], np.nan)
        with np.errstate(all="ignore"), pytest.raises(Exception):  # noqa: B017, PT011
            Network(steps, X.numpy()).check(proof["claims"][0])


def test_what_files_do_not_know_is_refused(tmp_path):
    f, X = classifier(activation="relu")
    with pytest.raises(AssumptionError, match="ReLU"):
        hs.certify(f, X, word=0).save(tmp_path / "proof.json")
    g, _X = classifier()
    with pytest.raises(AssumptionError, match="metric total"):
        hs.certify(g, X, word=0, metric="entries").save(tmp_path / "proof.json")


@pytest.mark.parametrize("place", [0, 1, 3, 6])
def test_rounding_errors_of_single_precision_are_never_exceeded(place):
    # a stage alone, in the float32 of torch, against itself in float64
    f, _X = classifier(causal=True)
    step, generator = steps_of(f)[place], torch.Generator().manual_seed(1)
    rows, alone, largest = 1 if place == 6 else N, f.maps[place], 0.0
    for size in (1e-2, 1.0, 1e2):
        X = (size * torch.randn(rows, D, generator=generator, dtype=torch.float64)).float().double()
        for name, array in step.arrays.items():  # weights that are float32 numbers
            step.arrays[name] = array.astype(np.float32).astype(np.float64)
        stage = STAGES[step.kind](step, ball(X.numpy()))
        still = {name: x.mid[0, ..., 0] for name, x in stage.images(ball(np.zeros((1, rows, D)))).items()}
        bounds = rounding_errors(stage, step, X.norm(dim=1).numpy(), still)
        wide = alone.to(torch.float32).to(torch.float64)
        single = alone.to(torch.float32)(X.float()).double()
        off = (single - wide(X)).norm(dim=1).numpy()
        assert (off <= bounds).all()
        largest = max(largest, float((off / bounds).max()))
    assert largest > 1e-4  # a bound of something


def test_the_margin_covers_the_deployed_network():
    certificate, proof = saved()
    steps, (claim,) = steps_of(certificate.classifier), proof["claims"]
    claim = {**claim, "radius": 0.8 * claim["radius"]}
    network = Network(steps, np.array(claim["tokens"]), deployed=True)
    network.check(claim)
    # logits of single precision at moved embeddings are within the errors that are taken off
    single, wide = certificate.classifier.to(torch.float32), certificate.classifier
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        E = torch.nn.functional.normalize(torch.randn(D, generator=generator, dtype=torch.float64), dim=0)
        Z = certificate.embeddings.clone()
        Z[claim["moved"][0]] += claim["radius"] * E
        assert int(single(Z.float())[0].argmax()) == claim["predicted"] == int(wide(Z)[0].argmax())


def test_a_margin_that_rounding_uses_up_is_refuted(monkeypatch):
    certificate, proof = saved()
    steps, (claim,) = steps_of(certificate.classifier), proof["claims"]
    monkeypatch.setattr("howsmooth.check.float32.UNIT", 2.0**-10)
    with pytest.raises(Refuted):
        check_certificate(steps, claim, {}, deployed=True)


def test_other_claims_and_precisions_are_not_deployed(tmp_path):
    attention = Attention.random(heads=1, d=2, dtype=torch.float64, seed=0)
    hs.bounds.sharp_upper(attention, n=2, radius=1.0).save(tmp_path / "proof.json", attention, n=2, radius=1.0)
    (outcome,) = check_proof(tmp_path / "proof.json", attention, deployed="float32")
    assert outcome.status == "cannot check"
    (outcome,) = check_proof(tmp_path / "proof.json", attention, deployed="float16")
    assert outcome.status == "cannot check"
    assert "float32" in outcome.why
