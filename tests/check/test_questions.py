"""Claims and what was asked: properties, sentences and files; forged ones, which are true of something else."""

import copy
import json
import os
import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.check import check_proof, save_checked
from howsmooth.check.balls import ball
from howsmooth.check.outcomes import CannotCheck
from howsmooth.check.questions import ONE, cases_of, inequality, require_case, require_excluded
from howsmooth.errors import AssumptionError
from howsmooth.verification import Property, Verdict, read_vnnlib, verify

BOX = "".join(
    f"(declare-const X_{k} Real)(assert (>= X_{k} {-k - 0.5}))(assert (<= X_{k} {k + 1.5e0}))" for k in (0, 1)
)
OUTPUTS = "".join(f"(declare-const Y_{k} Real)\n" for k in range(3))


def written(path, x, eps, label, classes=3):
    """A property in VNN-LIB: no input within eps of x is put into another class."""
    ends = [f"(assert (>= X_{k} {a - eps!r}))\n(assert (<= X_{k} {a + eps!r}))" for k, a in enumerate(x.tolist())]
    sets = " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(classes) if k != label)
    names = [f"(declare-const X_{k} Real)" for k in range(len(x))] + [
        f"(declare-const Y_{k} Real)" for k in range(classes)
    ]
    path.write_text("\n".join([*names, *ends, f"(assert (or {sets}))"]), encoding="utf-8")
    return path


# ---- verdicts on files -----------------------------------------------------------------------------------------------


@cache
def saved():
    """A network, a property that is proven of it, the proof, and what else there is to know."""
    pytest.importorskip("onnxruntime")
    from verification.onnx_files import write_vit

    folder, rng = Path(tempfile.mkdtemp()), torch.Generator().manual_seed(0)
    path = write_vit(folder / "net.onnx", rng)
    other = write_vit(folder / "other.onnx", rng)
    x = torch.randn(16, generator=rng).double()
    label = int(check_of(path, x).argmax())
    wanted = written(folder / "wanted.vnnlib", x, 1e-3, label)
    verify(path, wanted).save(folder / "proof.json", path, wanted)
    return path, other, wanted, x, label, json.loads((folder / "proof.json").read_text())


def check_of(path, x):
    from howsmooth.check.graph import runtime

    return runtime(path)(x.numpy())


def outcome_of(proof, tmp_path, model, **asked):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(proof), encoding="utf-8")
    (found,) = check_proof(path, model, **asked)
    return found


def forged(proof, change):
    found = copy.deepcopy(proof)
    change(found["claims"][0])
    return found


def test_a_claim_is_printed_and_compared_with_the_property(tmp_path):
    path, _other, wanted, _x, _label, proof = saved()
    for asked in (wanted, str(wanted), read_vnnlib(wanted)):
        found = outcome_of(proof, tmp_path, path, property=asked)
        assert found.status == "checked", found
        assert found.asked[-1] == "compared with the property"
    found = outcome_of(proof, tmp_path, path)
    assert found.status == "checked"
    box, unsafe, compared = found.asked
    assert box.startswith("16 inputs, all of which move, by 0.001 at most to either side: X_0 in [")
    assert box.endswith("and 13 more")
    assert unsafe.startswith("unsafe: Y_")
    assert " ≥ 0; or Y_" in unsafe
    assert compared == "compared with no property"
    claim = proof["claims"][0]
    assert found.question["lower"] == claim["lower"]
    assert [(each["A"], each["b"]) for each in found.question["unsafe"]] == [(u["A"], u["b"]) for u in claim["unsafe"]]


def shrunk(claim):
    middle = [(a + b) / 2 for a, b in zip(claim["lower"], claim["upper"], strict=True)]
    claim.update(lower=middle, upper=middle)


FORGED = {
    "a box shrunk to a point": (shrunk, "X_0 >= "),
    "one end moved inwards": (lambda claim: claim["upper"].__setitem__(3, claim["upper"][3] - 1e-12), "X_3 <= "),
    "an unsafe set loosened": (lambda claim: claim["unsafe"][1]["b"].__setitem__(0, 0.01), "it does not exclude Y_"),
    "an unsafe set left out": (lambda claim: claim["unsafe"].pop(), "it does not exclude Y_"),
    "another row": (lambda claim: claim["unsafe"][0]["A"].__setitem__(0, [0.0, 0.0, 0.0]), "it does not exclude Y_"),
}


@pytest.mark.parametrize("name", FORGED)
def test_proofs_of_another_question_are_checked_alone_and_not_with_the_property(name, tmp_path):
    path, _other, wanted, _x, _label, proof = saved()
    change, said = FORGED[name]
    proof = forged(proof, change)
    if name != "another row":
        assert outcome_of(proof, tmp_path, path).status == "checked"
    found = outcome_of(proof, tmp_path, path, property=wanted)
    assert found.status == "cannot check"
    assert found.why.startswith("the file proves another question: ")
    assert said in found.why


def test_a_property_of_another_label_a_wider_box_or_more_inputs_is_another_question(tmp_path):
    path, other, _wanted, x, label, proof = saved()
    for k, (eps, asked, point) in enumerate(((1e-3, (label + 1) % 3, x), (2e-3, label, x), (1e-3, label, x[:15]))):
        question = written(tmp_path / f"{k}.vnnlib", point, eps, asked)
        found = outcome_of(proof, tmp_path, path, property=question)
        assert (found.status, found.why[:32]) == ("cannot check", "the file proves another question")
    narrow = written(tmp_path / "narrow.vnnlib", x, 5e-4, label)
    assert outcome_of(proof, tmp_path, path, property=narrow).status == "checked"
    # another file, of the same architecture, or the same network written again
    found = outcome_of(proof, tmp_path, other)
    assert found.status == "cannot check"
    assert "another one than that of the proof" in found.why
    again = tmp_path / "again.onnx"
    again.write_bytes(path.read_bytes() + b"\x7a\x01x")
    assert outcome_of(proof, tmp_path, again).status == "cannot check"
    assert outcome_of({**proof, "map": {**proof["map"], "steps": []}}, tmp_path, path).status == "cannot check"
    assert outcome_of(proof, tmp_path, tmp_path / "none.onnx").status == "cannot check"


def test_a_verdict_is_written_checked_or_not_at_all(tmp_path, monkeypatch):
    from howsmooth.verification.onnx_network import read_onnx

    path, other, wanted, _x, _label, _proof = saved()
    verdict, target = verify(path, wanted), tmp_path / "safe.json"
    assert [
        outcome.status
        for outcome in save_checked(target, lambda partial: verdict.save(partial, path, wanted), path, property=wanted)
    ] == ["checked"]
    assert check_proof(target, path, property=wanted)[0].status == "checked"
    assert [each.name for each in tmp_path.iterdir()] == ["safe.json"]
    before = target.read_bytes()
    folder = tmp_path.with_name(f"{tmp_path.name}-links")
    folder.mkdir()
    (folder / "link.json").symlink_to(target)
    os.mkfifo(folder / "pipe.json")
    save_checked(folder / "link.json", lambda partial: verdict.save(partial, path, wanted), path, property=wanted)
    with pytest.raises(AssumptionError, match=r"a proof is saved as a file, which .*pipe\.json' is not"):
        save_checked(folder / "pipe.json", lambda _partial: None, path, property=wanted)
    assert (folder / "link.json").is_symlink()
    assert (folder / "pipe.json").is_fifo()
    # a proof of another network is not one of this
    misread = read_onnx(other)
    monkeypatch.setattr("howsmooth.verification.onnx_network.read_onnx", lambda _path: misread)
    with pytest.raises(AssumptionError):
        save_checked(target, lambda partial: verdict.save(partial, path, wanted), path, property=wanted)
    assert target.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["safe.json"]


def test_counterexamples_on_files_are_cases_of_the_property(tmp_path):
    path, _other, wanted, x, label, _proof = saved()
    far = written(tmp_path / "far.vnnlib", x, 5.0, label)
    verdict = verify(path, far)
    assert verdict.status == "falsified"
    verdict.save(tmp_path / "proof.json", path, far)
    (found,) = check_proof(tmp_path / "proof.json", path, property=far)
    assert found.status == "checked", found
    assert found.question["input"] == verdict.counterexample.tolist()
    (found,) = check_proof(tmp_path / "proof.json", path, property=wanted)
    assert (found.status, found.why[:32]) == ("cannot check", "the file proves another question")
    proof = json.loads((tmp_path / "proof.json").read_text())
    for change in (
        lambda claim: claim.update(input=x.tolist()),
        lambda claim: claim["b"].__setitem__(0, 1e3),
    ):
        assert outcome_of(forged(proof, change), tmp_path, path).status in ("refuted", "cannot check")


def test_an_output_on_the_boundary_violates_no_strict_inequality(tmp_path):
    f = hs.maps.Chain(hs.maps.Dense(weight=torch.eye(1).double()), hs.maps.Dense(weight=torch.eye(1).double()))
    one, zero = torch.ones(1, 1).double(), torch.zeros(1).double()
    for strict in (False, True):
        asked = Property(-one, one, ((one, zero + 2), (-one, zero)), (torch.tensor([False]), torch.tensor([strict])))
        found = Verdict("falsified", torch.zeros(1).double(), -one[0], -one[0], 1.0)
        found.save(tmp_path / "proof.json", f, asked)
        proof = json.loads((tmp_path / "proof.json").read_text())
        (claim,) = proof["claims"]
        assert claim["A"] == [[-1.0]]
        assert outcome_of(proof, tmp_path, f, property=asked).status == "checked"
        claim["input"] = [[0.0]]
        assert outcome_of(proof, tmp_path, f).status == "refuted"


def test_other_claims_answer_no_property_and_no_sentence(tmp_path):
    _path, _other, wanted, _x, _label, _proof = saved()
    f = hs.Attention.random(heads=1, d=2, dtype=torch.float64, seed=0)
    hs.bounds.sharp_upper(f, n=2, radius=1.0).save(tmp_path / "proof.json", f, n=2, radius=1.0)
    (found,) = check_proof(tmp_path / "proof.json", f, property=wanted)
    assert (found.status, found.why[:32]) == ("cannot check", "the file proves another question")
    (found,) = check_proof(tmp_path / "proof.json", f, sentence="a film")
    assert found.status == "cannot check"
    assert "a model with a tokenizer" in found.why


# ---- certificates of sentences ---------------------------------------------------------------------------------------


@cache
def certified():
    model = hs.load("reviews")
    with tempfile.TemporaryDirectory() as folder:
        hs.certify(model, "good film", word=1).save(Path(folder) / "proof.json")
        return model, json.loads((Path(folder) / "proof.json").read_text())


def test_a_certificate_is_about_the_sentence_that_is_named(tmp_path):
    model, proof = certified()
    found = outcome_of(proof, tmp_path, model, sentence="good film")
    assert found.status == "checked", found
    assert "4 tokens of width 64" in found.asked[0]
    assert found.asked[0].endswith("moved: 1 'good'")
    assert found.asked[1] == "compared with the sentence"
    assert found.question["tokens"] == proof["claims"][0]["tokens"]
    for other in ("good films", "bad film", "good film indeed", "good", " "):
        found = outcome_of(proof, tmp_path, model, sentence=other)
        assert found.status == "cannot check"


def test_embeddings_times_ten_are_no_sentence(tmp_path):
    model, proof = certified()

    def longer(claim):
        claim["tokens"] = [[10 * x for x in row] for row in claim["tokens"]]

    found = outcome_of(forged(proof, longer), tmp_path, model, sentence="good film")
    assert (found.status, found.why[:32]) == ("cannot check", "the file proves another question")
    found = outcome_of(forged(proof, longer), tmp_path, model)
    assert found.status == "checked"
    assert found.asked[1] == "compared with no sentence"
    assert found.asked[0] == "4 tokens of width 64, the longest of norm 4.83262; moved: 1"


def test_a_swapped_label_is_refuted(tmp_path):
    model, proof = certified()

    def swapped(claim):
        claim.update(predicted=claim["rivals"][0], rivals=[claim["predicted"]])

    assert outcome_of(forged(proof, swapped), tmp_path, model, sentence="good film").status == "refuted"


def test_what_a_module_computes_besides_its_weights_is_seen_at_the_sentence(tmp_path):
    proof, model = certified()[1], hs.load("reviews")
    handle = model.with_head.register_forward_hook(lambda module, args, out: type(out)(logits=out.logits + 0.01))
    found = outcome_of(proof, tmp_path, model, sentence="good film")
    handle.remove()
    assert found.status == "cannot check"


# ---- VNN-LIB ---------------------------------------------------------------------------------------------------------


def rows_of(tmp_path, text):
    path = tmp_path / "property.vnnlib"
    path.write_text(text, encoding="utf-8")
    return cases_of(path)


def test_the_checker_reads_the_properties_that_the_prover_reads(tmp_path):
    texts = [
        BOX + OUTPUTS + "; a comment (\n(assert (or (and (>= Y_0 Y_1)) (and (> Y_2 Y_1) (<= Y_0 3))))",
        BOX
        + OUTPUTS
        + "(assert (<= Y_0 1))\n(assert (>= (+ (* 2 Y_1) (- Y_2)) 4))(assert (< (* Y_0 -0.5) (- 7 Y_1 1)))",
        BOX + OUTPUTS + "(assert (or (<= Y_0 1) (<= Y_1 2)))(assert (or (<= Y_2 1) (and (<= Y_1 3) (>= Y_0 0.1))))",
        BOX + "(assert (<= (* -2 X_0) 0.5))(assert (>= 4 (* 2 X_1)))" + OUTPUTS + "(assert (<= Y_0 1))",
        BOX + OUTPUTS + "(assert (and))(assert (or (and (<= Y_0 1))))(check-sat)",
    ]
    for text in texts:
        (shared, cases), theirs = rows_of(tmp_path, text), read_vnnlib(tmp_path / "property.vnnlib")
        sets = [[row for row in [*shared, *case] if row.of("Y")] for case in cases]
        assert len(sets) == len(theirs.unsafe)
        for rows, (A, b), strict in zip(sets, theirs.unsafe, theirs.strict, strict=True):
            found = sorted((sorted(row.of("Y").items()), -row.terms.get(ONE, Fraction(0)), row.strict) for row in rows)
            expected = zip(A.tolist(), b.tolist(), strict.tolist(), strict=True)
            assert found == sorted(
                (sorted((k, Fraction(x)) for k, x in enumerate(a) if x), Fraction(c), more) for a, c, more in expected
            )
        claim = {"lower": theirs.lower.tolist(), "upper": theirs.upper.tolist()}
        claim["unsafe"] = [{"A": A.tolist(), "b": b.tolist(), "row": 0} for A, b in theirs.unsafe]
        require_excluded(claim, tmp_path / "property.vnnlib")
        require_excluded(claim, theirs)
        for side, step in (("lower", 1e-9), ("upper", -1e-9)):
            inside = {**claim, side: [x + step for x in claim[side]]}
            for asked in (tmp_path / "property.vnnlib", theirs):
                with pytest.raises(CannotCheck, match="another question: it has X_0"):
                    require_excluded(inside, asked)


def test_the_second_version_is_read_as_the_first(tmp_path):
    second = (
        "(vnnlib-version <2.0>)\n"
        "(declare-network N (declare-input X float32 [1, 2,2]) (declare-output Out float32 [1,3]))"
        "(assert (and (>= X[0,0,0] 0.1) (<= X[0,0,0] 0.3)))(assert (>= X[0,0,1] -1.0)) (assert (>= 1.0 X[0,0,1]))"
        "(assert (or (>= Out[0,1] Out[0,0]) (<= (* 2.0 Out[0,1]) 4.0)))"
    )
    first = (
        "(assert (and (>= X_0 0.1) (<= X_0 0.3)))(assert (>= X_1 -1.0)) (assert (>= 1.0 X_1))"
        "(assert (or (>= Y_1 Y_0) (<= (* 2.0 Y_1) 4.0)))"
    )
    assert rows_of(tmp_path, second) == rows_of(tmp_path, first)
    with pytest.raises(CannotCheck, match="not read"):
        rows_of(tmp_path, second.replace("X[0,0,1]", "X[0,0,2]"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "(assert)",
        "(assert ())",
        "()",
        "(assert (<= Y_0 1)",
        "(assert (<= Y_0 1)))",
        "(assert (= Y_0 1))",
        "(assert (<= Y_0 one))",
        "(assert (<= Y_0 nan))",
        "(assert (<= Y_0 1e999))",
        "(assert (<= Y_0 1 2))",
        "(assert (<= (* Y_0 Y_1) 2))",
        "(assert (<= Y_99999999999 2))",
        "(assert " + "(and " * 5000 + ")" * 5001,
        "(maximise Y_0)",
        "(assert (or (<= Y_0 1) (<= Y_1 1)))" * 40,
        "\x1f\x8b\x08",
    ],
)
def test_a_property_that_cannot_be_read_is_refused_in_one_sentence(text, tmp_path):
    with pytest.raises(CannotCheck, match=r"^the property property\.vnnlib is not read: ") as refused:
        rows_of(tmp_path, text)
    assert "\n" not in str(refused.value)


def claim_of(A, b):
    return {"lower": [-0.5, -1.5], "upper": [1.5, 2.5], "unsafe": [{"A": [A], "b": [b], "row": 0}]}


@pytest.mark.parametrize(
    ("condition", "A", "b", "fine"),
    [
        ("(>= Y_0 1)", [1.0, 0.0, 0.0], 1.0, True),
        ("(>= Y_0 1)", [1.0, 0.0, 0.0], 0.5, True),
        ("(>= Y_0 1)", [1.0, 0.0, 0.0], 1.5, False),
        ("(>= Y_0 1)", [2.0, 0.0, 0.0], 2.0, True),
        ("(>= Y_0 1)", [2.0, 0.0, 0.0], 2.5, False),
        ("(>= Y_0 1)", [-1.0, 0.0, 0.0], -1.0, False),
        ("(>= Y_0 1)", [1.0, 1e-300, 0.0], 1.0, False),
        ("(> Y_0 1)", [1.0, 0.0, 0.0], 1.0, True),
        ("(and (>= Y_0 1) (<= Y_1 0))", [0.0, -1.0, 0.0], 0.0, True),
        ("(or (>= Y_0 1) (<= Y_1 0))", [1.0, 0.0, 0.0], 1.0, False),
        ("(or (>= Y_0 1) (and (>= Y_0 2) (<= Y_1 0)))", [1.0, 0.0, 0.0], 1.0, True),
        ("(or (>= Y_0 1) (and (>= X_0 9) (<= Y_1 0)))", [1.0, 0.0, 0.0], 1.0, True),
        ("(or (>= Y_0 1) (and (>= X_0 1) (<= Y_1 0)))", [1.0, 0.0, 0.0], 1.0, False),
        ("(or (>= Y_0 1) (>= 0 1))", [1.0, 0.0, 0.0], 1.0, True),
        ("(or (>= Y_0 1) (> 0 0))", [1.0, 0.0, 0.0], 1.0, True),
        ("(or (>= Y_0 1) (>= 0 0))", [1.0, 0.0, 0.0], 1.0, False),
        ("(or (and) (>= Y_0 5))", [1.0, 0.0, 0.0], 5.0, False),
        ("(or)", [1.0, 0.0, 0.0], 5.0, True),
        ("(>= Y_0 1)", [0.0, 0.0, 0.0], -1.0, False),
    ],
)
def test_a_case_is_excluded_by_one_of_its_rows(condition, A, b, fine, tmp_path):
    path = tmp_path / "p.vnnlib"
    path.write_text(BOX + OUTPUTS + f"(assert {condition})", encoding="utf-8")
    if fine:
        require_excluded(claim_of(A, b), path)
    else:
        with pytest.raises(CannotCheck, match="another question: it does not exclude"):
            require_excluded(claim_of(A, b), path)


def test_a_box_that_is_not_bounded_on_all_sides_is_not_excluded(tmp_path):
    path = tmp_path / "p.vnnlib"
    for box in (BOX.replace("(assert (<= X_1 2.5))", ""), BOX + "(assert (>= X_2 0))(assert (<= X_2 0))"):
        path.write_text(box + OUTPUTS + "(assert (>= Y_0 1))", encoding="utf-8")
        with pytest.raises(CannotCheck, match="it has 2 inputs"):
            require_excluded(claim_of([1.0, 0.0, 0.0], 1.0), path)


def test_an_input_and_its_output_are_a_case_if_all_rows_hold(tmp_path):
    path = tmp_path / "p.vnnlib"
    path.write_text(BOX + OUTPUTS + "(assert (or (> Y_0 1) (and (<= (+ Y_1 X_0) 0) (>= Y_2 2))))", encoding="utf-8")
    good = [([0.5, 0.0], [1.25, 9, 9]), ([0.5, 0.0], [0, -0.5625, 2.5]), ([1.5, 2.5], [0, -2.0, 3])]
    bad = [([0.5, 0.0], [1, 9, 9]), ([0.5, 0.0], [0, -0.25, 2]), ([1.6, 0.0], [2, 9, 9]), ([0.5, 0.0], [np.nan] * 3)]
    for x, y in good:
        require_case({"input": x}, path, ball(np.array(y)))
    for x, y in bad + [(x[:1], y) for x, y in good] + [(x, y[:1]) for x, y in good[1:]]:
        with pytest.raises(CannotCheck, match="another question"):
            require_case({"input": x}, path, ball(np.array(y, dtype=float)))


def test_inequalities_in_words():
    assert inequality({0: -1.0, 2: 1.0}, 0.0) == "Y_2 - Y_0 ≥ 0"
    assert inequality({1: -2.5}, -3.0) == "- 2.5 Y_1 ≥ -3"
    assert inequality(dict.fromkeys(range(9), 1.0), 1.0) == "Y_0 + Y_1 + Y_2 + Y_3 + Y_4 + Y_5 + … ≥ 1"
    assert inequality({}, 0.0) == "0 ≥ 0"
