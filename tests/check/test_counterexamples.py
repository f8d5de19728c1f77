"""Counterexamples of verdicts, evaluated in balls."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from verification.small_networks import gaussian, network, smooth_network

from howsmooth.check import check_proof
from howsmooth.check.balls import ball
from howsmooth.check.counterexamples import forward
from howsmooth.errors import AssumptionError
from howsmooth.proof_files import steps_of
from howsmooth.verification import Property, verify


@pytest.fixture
def falsified(rng, tmp_path):
    f, x = network(rng, layers=1), gaussian(rng, 6)
    label = int(f(x[None])[0].argmax())
    wanted = Property.robust(x, eps=3.0, label=label, classes=3)
    verdict = verify(f, wanted, timeout=5)
    assert verdict.status == "falsified"
    verdict.save(tmp_path / "proof.json", f, wanted)
    return f, tmp_path / "proof.json"


def test_a_counterexample_is_checked_and_tampered_ones_are_not(falsified):
    f, path = falsified
    (outcome,) = check_proof(path, f)
    assert outcome.status == "checked"
    proof = json.loads(path.read_text())
    for change in (
        lambda claim: claim["input"].__setitem__(0, claim["upper"][0] + 1e-9),
        lambda claim: claim["b"].__setitem__(0, 1e3),
        lambda claim: claim.update(input=[float("nan")] * 6),
        lambda claim: claim.update(A=[]),
        lambda claim: claim.pop("lower"),
    ):
        other = copy.deepcopy(proof)
        change(other["claims"][0])
        path.write_text(json.dumps(other))
        (outcome,) = check_proof(path, f)
        assert outcome.status in ("refuted", "cannot check")


@pytest.mark.parametrize("before", [True, False])
def test_the_forward_pass_in_balls_is_that_of_the_network(before, rng):
    f = smooth_network(rng, before=before)
    x = gaussian(rng, 3, 4)
    found = forward(steps_of(f), ball(x.numpy()))
    assert np.abs(found.mid - f(x).numpy()).max() < 1e-10
    assert (found.rad < 1e-8).all()


def test_what_is_unknown_is_not_saved(rng, tmp_path):
    f, x = network(rng, layers=1), gaussian(rng, 6)
    wanted = Property.robust(x, eps=1e-6, label=int(f(x[None])[0].argmax()), classes=3)
    unknown = replace(verify(f, wanted, timeout=5), status="unknown")
    with pytest.raises(AssumptionError, match="unknown"):
        unknown.save(tmp_path / "proof.json", f, wanted)
