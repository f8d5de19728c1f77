"""``howsmooth check``: words and exit codes."""

import json

import pytest

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
