"""What is written of a verdict: room for whoever checks it, the time to prove it anew, the unsafe set."""

import json
import types

import pytest
import torch
from verification.small_networks import gaussian, network, outputs

from howsmooth.rounding import MARGIN_ROOM
from howsmooth.verification import Property, Verdict, proofs
from howsmooth.verification.branch_and_bound import MarginFunction, SplitOutcome
from howsmooth.verification.taylor_model import NEVER


@pytest.mark.untyped
def test_a_margin_is_proven_anew_with_a_share_of_all_its_summands_to_spare(monkeypatch):
    pixels, units = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, -0.25]).double()
    objective = MarginFunction(torch.tensor(-3.0).double(), pixels, units)
    margins = types.SimpleNamespace(lower=torch.tensor([-9.0, -1.0]).double(), objective=lambda row: objective)
    given = []

    def split(_units, shifted, _deadline):
        given.append(shifted)
        return SplitOutcome(True, 0.0, 1, ())

    monkeypatch.setattr(proofs._Margins, "of", lambda *_: margins)
    monkeypatch.setattr(proofs.BentUnits, "of", lambda _model: None)
    monkeypatch.setattr(proofs, "split", split)
    A, b = torch.eye(2).double(), torch.zeros(2).double()
    assert proofs._excluded(None, A, b, NEVER)["row"] == 1
    assert float(-3.0 - given[0].centre) == pytest.approx(MARGIN_ROOM * (3.0 + 3.0 + 0.75), rel=1e-8)
    # a margin that is positive with room is not split
    margins.lower = torch.tensor([2 * MARGIN_ROOM * 6.75, -1.0]).double()
    assert proofs._excluded(None, A, b, NEVER)["leaves"] == [{}]
    assert len(given) == 1
    margins.lower = torch.tensor([0.8 * MARGIN_ROOM * 6.75, -1.0]).double()
    proofs._excluded(None, A, b, NEVER)
    assert len(given) == 2


def test_a_proof_is_found_anew_in_half_as_much_time_again(rng, tmp_path, monkeypatch):
    f, x, given = network(rng, layers=1), gaussian(rng, 6), []

    def claim(_network, _wanted, level, seconds):
        given.append((level, seconds))
        return {"kind": "verdict"}

    monkeypatch.setattr(proofs, "verdict_claim", claim)
    wanted = Property.robust(x, eps=0.1, label=0, classes=3)
    Verdict("proven", torch.ones(2).double(), None, None, 4.0, level=1).save(tmp_path / "p.json", f, wanted)
    assert given == [(1, 16.0)]


def test_a_counterexample_is_written_with_the_unsafe_set_that_holds_its_outputs(rng, tmp_path):
    f, x = network(rng, layers=1), gaussian(rng, 6)
    y = outputs(f, x)
    sets = tuple((sign * y[None], (share * y @ y)[None]) for sign, share in ((1.0, 1.5), (1.0, 0.9)))
    verdict = Verdict("falsified", torch.zeros(2).double(), x, y, 1.0)
    verdict.save(tmp_path / "p.json", f, Property(x - 1, x + 1, sets))
    (claim,) = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["claims"]
    assert (claim["kind"], claim["input"], claim["lower"]) == ("counterexample", x.tolist(), (x - 1).tolist())
    assert (claim["A"], claim["b"]) == (sets[1][0].tolist(), sets[1][1].tolist())
