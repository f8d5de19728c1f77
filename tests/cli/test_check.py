"""``howsmooth check``: words and exit codes."""

import json

import pytest
import torch

import howsmooth as hs


@pytest.fixture
def proof(tmp_path):
    f, path = hs.load("reviews").layer(0).map("attention"), tmp_path / "proof.json"
    hs.bounds.sharp_upper(f, n=4, radius=2.0).save(path, f, n=4, radius=2.0)
    return path


def test_exit_codes_say_what_came_of_it(proof, howsmooth):
    done = howsmooth("check", str(proof), "--model", "reviews")
    assert done.code == 0
    assert done.out.startswith("checked: Lip ≤ ")
    assert "Assumed: real arithmetic" in done.out
    found = json.loads(proof.read_text())
    found["claims"][0]["value"] *= 0.999
    proof.write_text(json.dumps(found))
    done = howsmooth("check", str(proof), "--model", "reviews", "--json")
    assert done.code == 1
    assert json.loads(done.out)[0]["status"] == "refuted"
    done = howsmooth("check", str(proof), "--model", "minilm")
    assert done.code == 3
    assert "the weights are others" in done.out


@pytest.fixture
def files(tmp_path, rng):
    """A network, a property that holds of it, and one that does not."""
    pytest.importorskip("onnxruntime")
    from cli.test_verify import written
    from verification.onnx_files import write_vit

    from howsmooth.verification.onnx_network import session_of

    path, x = write_vit(tmp_path / "net.onnx", rng), torch.randn(16, generator=rng).double()
    label, point = int(session_of(path)(x).argmax()), list(enumerate(x.tolist()))
    return str(path), *(str(written(tmp_path, point, eps, label)) for eps in (0.001, 5.0))


def test_what_verify_saves_is_checked_with_the_property_that_was_asked(howsmooth, tmp_path, files):
    path, holds, fails = files
    proof = tmp_path / "proof.json"
    done = howsmooth("verify", path, holds, "--save", str(proof))
    assert done.code == 0
    assert f"Saved and checked: {proof}" in done.out
    done = howsmooth("check", str(proof), "--model", path, "--property", holds)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "checked: no input of the box has an unsafe output."
    assert lines[1].startswith("Asked: 16 inputs, all of which move, by 0.001 at most to either side: X_0 in [")
    assert lines[2].startswith("Asked: unsafe: Y_")
    assert lines[3] == "Asked: compared with the property."
    done = howsmooth("check", str(proof), "--model", path)
    assert done.code == 0
    assert "Asked: compared with no property; --property FILE does." in done.out
    done = howsmooth("check", str(proof), "--model", path, "--property", fails, "--json")
    assert done.code == 3
    (found,) = json.loads(done.out)
    assert found["why"].startswith("the file proves another question: it has X_0 >= ")
    assert len(found["question"]["lower"]) == 16
    done = howsmooth("verify", path, fails, "--save", str(proof))
    assert done.code == 1
    assert howsmooth("check", str(proof), "--model", path, "--property", fails).code == 0
    done = howsmooth("check", str(proof), "--model", path, "--property", "nowhere.vnnlib")
    assert done.code == 2
    assert "nowhere.vnnlib" in done.err


def test_a_certificate_is_compared_with_a_sentence(howsmooth, tmp_path):
    proof = tmp_path / "proof.json"
    hs.certify("reviews", "fine", word=1).save(proof)
    done = howsmooth("check", str(proof), "--model", "reviews", "--sentence", "fine")
    assert done.code == 0
    assert "moved: 1 'fine'" in done.out
    assert "Asked: compared with the sentence." in done.out
    done = howsmooth("check", str(proof), "--model", "reviews", "--sentence", "awful")
    assert done.code == 3
    assert "another question" in done.out


def test_what_is_no_json_is_no_proof_file(howsmooth, tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"\xa8\x00")
    done = howsmooth("check", str(tmp_path / "net.onnx"), "--model", "reviews")
    assert done.code == 3
    assert "it is no JSON, so no proof file" in done.out


def test_a_file_that_is_not_there(howsmooth):
    done = howsmooth("check", "nowhere.json", "--model", "reviews")
    assert done.code == 2
    assert "nowhere.json" in done.err


def test_a_folder_is_no_proof_file(howsmooth, tmp_path):
    done = howsmooth("check", str(tmp_path), "--model", "reviews")
    assert done.code == 2
    assert "is a folder; name the proof file" in done.err
    assert "there is no file" not in done.err
