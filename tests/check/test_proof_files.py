"""Proof files: true ones are checked, tampered ones are not."""

import copy
import json
import math
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.check import check_proof
from howsmooth.check.attention import AttentionAt
from howsmooth.check.balls import ball
from howsmooth.errors import AssumptionError
from howsmooth.proof_files import fingerprint, steps_of
from howsmooth.rounding import PROOF_ROOM

N, R = 6, 1.5


def layer(heads, *, causal=False, biased=False, seed=0):
    f = hs.Attention.random(heads=heads, d=6, k=3, causal=causal, dtype=torch.float64, seed=seed)
    if not biased:
        return f
    bias = torch.randn(heads, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return type(f)(**{**vars(f), "query_bias": bias, "key_bias": -bias})


LAYERS = {
    "one head": layer(1),
    "masked": layer(1, causal=True),
    "three heads": layer(3),
    "with a bias": layer(3, biased=True, seed=2),
    "masked with a bias": layer(2, causal=True, biased=True),
    "concatenated": hs.Attention(**{**vars(layer(2)), "output": None}),
}


@cache
def table_of(name):
    """All bounds of a layer, and the text of their proof file."""
    found = hs.bounds.table(LAYERS[name], n=N, radius=R)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        found.save(path, LAYERS[name], n=N, radius=R)
        return found, path.read_text()


def statuses(path, f):
    return [outcome.status for outcome in check_proof(path, f)]


@pytest.mark.parametrize("name", LAYERS)
def test_every_bound_of_the_table_is_checked(name, tmp_path):
    f, path = LAYERS[name], tmp_path / "proof.json"
    found, text = table_of(name)
    path.write_text(text)
    assert statuses(path, f) == ["checked"] * len(found.bounds)
    claims = json.loads(text)["claims"]
    for bound, claim in zip(found.bounds, claims, strict=True):
        # a lower bound is saved with what its input attains, which may be more
        assert claim["value"] == pytest.approx(bound.value, rel=2 * PROOF_ROOM) or claim["kind"] == "lower"
        assert bound.side != "≥" or claim["value"] >= bound.value * (1 - 2 * PROOF_ROOM)
    # between largest tokens, for every number of them
    token = hs.bounds.token_upper(f, radius=R)
    token.save(path, f, n=N, radius=R)
    assert statuses(path, f) == ["checked"]


def test_both_ends_of_a_bracket_and_an_input_alone(tmp_path):
    f, path = LAYERS["with a bias"], tmp_path / "proof.json"
    bracket = hs.bracket(f, n=N, radius=R)
    bracket.save(path, f, n=N, radius=R)
    assert statuses(path, f) == ["checked", "checked"]
    bracket.lower.save(path, f, radius=R)
    assert statuses(path, f) == ["checked"]


def test_a_local_constant_is_checked_below_and_replayed_above(tmp_path):
    f, path = LAYERS["three heads"], tmp_path / "proof.json"
    X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hs.local_lipschitz(f, X, seed=0).save(path, f, X)
    assert statuses(path, f) == ["checked", "replayed"]
    raised = json.loads(path.read_text())
    raised["claims"][1]["value"] = raised["claims"][0]["value"] * 0.99  # below what is attained
    path.write_text(json.dumps(raised))
    assert statuses(path, f) == ["checked", "refuted"]


def test_the_derivative_in_balls_is_that_of_the_map():
    f = LAYERS["masked with a bias"]
    (step,) = steps_of(f)
    X, E = (torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    at = AttentionAt.of(step, ball(X.numpy()))
    for found, truth in ((at.value(), f(X)), (at.jvp(ball(E.numpy())), f.jacobian(X).jvp(E))):
        assert np.abs(found.mid - truth.numpy()).max() < 1e-12
        assert (found.rad < 1e-12).all()


def test_weights_come_from_a_model_or_a_file(tmp_path):
    path, arrays = tmp_path / "proof.json", tmp_path / "layer.npz"
    f = hs.load("reviews").layer(1).map("attention").head(2)
    hs.bounds.sharp_upper(f, n=3, radius=2.0).save(path, f, n=3, radius=2.0)
    assert statuses(path, "reviews") == ["checked"]
    np.savez(arrays, **steps_of(f)[0].arrays)
    (outcome,) = check_proof(path, arrays)
    assert outcome.status == "checked"
    assert "'scale': 0.25" in outcome.assumed[-1]  # arrays do not hold it
    other = steps_of(f)[0].arrays
    other["value"][0, 0, 0] += 1e-9
    np.savez(arrays, **other)
    assert statuses(path, arrays) == ["cannot check"]


@pytest.mark.parametrize("values", [True, False])
def test_a_proof_about_one_head_is_checked_against_a_file_of_its_matrices(values, tmp_path):
    path, arrays = tmp_path / "proof.json", tmp_path / "head.npz"
    A = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = 2 * A if values else torch.eye(4, dtype=torch.float64)
    f = hs.Attention.single_head(A=A, V=V)
    hs.bracket(f, n=4, radius=1.0).save(path, f, n=4, radius=1.0)
    held = {"A": A.numpy()} | ({"V": V.numpy()} if values else {})
    np.savez(arrays, **held)
    assert statuses(path, arrays) == ["checked", "checked"]
    np.savez(arrays, **(held | {"A": A.numpy() * (1 + 1e-12)}))
    assert set(statuses(path, arrays)) == {"cannot check"}


def test_a_fingerprint_depends_on_every_weight_and_setting():
    f = LAYERS["masked"]
    seen = {fingerprint(steps_of(f)), fingerprint(steps_of(LAYERS["one head"]))}
    for name in ("query", "key", "value", "output"):
        moved = getattr(f, name).clone()
        moved[0, -1, -1] = torch.nextafter(moved[0, -1, -1], torch.tensor(9.0, dtype=torch.float64))
        seen.add(fingerprint(steps_of(type(f)(**{**vars(f), name: moved}))))
    seen.add(fingerprint(steps_of(type(f)(**{**vars(f), "scale": 0.5}))))
    assert len(seen) == 7


def test_what_no_file_can_hold_is_refused(tmp_path):
    f = layer(1)
    bound = hs.bounds.sharp_upper(f, n=N, radius=R)
    with pytest.raises(AssumptionError, match=r"saved as \.json"):
        bound.save(tmp_path / "proof.txt", f, n=N, radius=R)
    capped = type(f)(**{**vars(f), "softcap": 3.0})
    with pytest.raises(AssumptionError, match="softcap"):
        bound.save(tmp_path / "proof.json", capped, n=N, radius=R)
    far = hs.bounds.mean_field_upper(f, radius=100.0)
    with pytest.raises(AssumptionError, match="range of floats"):
        far.save(tmp_path / "proof.json", f, n=N, radius=100.0)


def leaves(node, path=()):
    """The places of all numbers of a file that checks read."""
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        return [leaf for key, value in items if key not in ("map", "format") for leaf in leaves(value, (*path, key))]
    return [path] if isinstance(node, float) else []


def replaced(proof, path, value):
    """The file with another number at a place."""
    found = copy.deepcopy(proof)
    node = found
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value(node[path[-1]])
    return found


def better(claim, before):
    """Whether a claim says more than it did, beyond the room for rounding."""
    if claim["kind"] == "lower":
        return claim["value"] > before["value"] * (1 + 3 * PROOF_ROOM) or claim["radius"] < before["radius"]
    larger = claim["radius"] > before["radius"] * (1 + 3 * PROOF_ROOM) or (claim["n"] or 0) > (before["n"] or 0)
    return claim["value"] < before["value"] * (1 - 3 * PROOF_ROOM) or larger


def tampered(proof, rng, count):
    """Files with a number raised or lowered, stages exchanged, or another fingerprint."""
    for k in range(count):
        claim = proof["claims"][k % len(proof["claims"])]
        one, stages = {**proof, "claims": [claim]}, claim.get("stages", ())
        if k % 10 == 9 and len(stages) > 1:
            exchanged = {**claim, "stages": list(stages)[::-1], "value": claim["value"] * (1 - 1e-6)}
            yield {**proof, "claims": [exchanged]}, claim
        elif k % 10 == 8:
            yield {**one, "map": {**proof["map"], "sha256": proof["map"]["sha256"][::-1]}}, claim
        else:
            share = 10.0 ** rng.uniform(-6, -1) * rng.choice([-1, 1])
            # numbers of the claim and of its stages; of its tokens, which are many, now and then
            places = [path for path in leaves(one) if k % 3 == 0 or not {"tokens", "direction"} & set(path)]
            place = places[rng.integers(len(places))]
            yield replaced(one, place, lambda x, share=share: float(x * (1 + share))), claim


def test_no_tampering_that_improves_a_claim_passes(tmp_path):
    rng, path, seen, passed = np.random.default_rng(0), tmp_path / "proof.json", 0, 0
    for name in LAYERS:
        f = LAYERS[name]
        for other, before in tampered(json.loads(table_of(name)[1]), rng, 50):
            path.write_text(json.dumps(other))
            seen += 1
            if statuses(path, f) == ["checked"]:
                passed += 1
                assert other["map"]["sha256"] == fingerprint(steps_of(f))
                assert not better(other["claims"][0], before), (name, other["claims"], before)
    assert seen == 300
    assert passed > 30  # a claim that says less is as true


@pytest.mark.parametrize("bad", ["NaN", "-Infinity", "null", '"1"', "[]", "true", "1e999"])
def test_what_is_no_number_is_never_a_proof(bad, tmp_path):
    path = tmp_path / "proof.json"
    f = LAYERS["with a bias"]
    hs.bracket(f, n=N, radius=R).save(path, f, n=N, radius=R)
    proof = json.loads(path.read_text())
    places = {(place[1], *(key for key in place if isinstance(key, str))): place for place in leaves(proof)}
    assert len(places) >= 10
    for place in places.values():
        mark = math.pi * 1e17
        path.write_text(json.dumps(replaced(proof, place, lambda _x, mark=mark: mark)).replace(repr(mark), bad))
        assert statuses(path, f)[place[1]] in ("cannot check", "refuted"), place


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"format": "howsmooth proof 1"}', '{"format": "howsmooth proof 2"}', "[" * 10**5]
)
def test_files_that_say_nothing_cannot_be_checked(text, tmp_path):
    path = tmp_path / "proof.json"
    path.write_text(text)
    assert statuses(path, layer(1)) == ["cannot check"]


def test_claims_outside_a_theorem_cannot_be_checked(tmp_path):
    path, f, masked = tmp_path / "proof.json", LAYERS["one head"], LAYERS["masked"]
    hs.bounds.mean_field_upper(f, radius=R).save(path, f, n=N, radius=R)
    proof = json.loads(path.read_text())
    proof["map"]["sha256"] = fingerprint(steps_of(masked))
    path.write_text(json.dumps(proof))
    assert statuses(path, masked) == ["cannot check"]
    proof["map"]["sha256"] = fingerprint(steps_of(f))
    for change in ({"theorem": "none"}, {"metric": "token"}, {"kind": "none"}, {"stages": []}, {"heads": "none"}):
        path.write_text(json.dumps({**proof, "claims": [{**proof["claims"][0], **change}]}))
        assert statuses(path, f) == ["cannot check"]
