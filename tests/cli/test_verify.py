"""``howsmooth verify``: words, exit codes, the file of the competition."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from verification.onnx_files import write_vit

from howsmooth.verification.onnx_network import session_of


def written(folder, x, eps, label):
    lines = [f"(declare-const X_{k} Real)\n(assert (>= X_{k} {v - eps}))\n(assert (<= X_{k} {v + eps}))" for k, v in x]
    rivals = " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(3) if k != label)
    lines += [f"(declare-const Y_{k} Real)" for k in range(3)] + [f"(assert (or {rivals}))"]
    path = folder / f"{eps}.vnnlib"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def network(tmp_path, rng):
    path = write_vit(tmp_path / "vit.onnx", rng)
    x = torch.randn(16, generator=rng).double()
    return path, list(enumerate(x.tolist())), int(session_of(path)(x).argmax())


def test_a_verdict_comes_first_and_decides_the_exit_code(howsmooth, tmp_path, network):
    path, x, label = network
    proven = howsmooth("verify", str(path), str(written(tmp_path, x, 0.001, label)))
    assert proven.code == 0
    assert proven.out.startswith("Proven in real arithmetic: no input of the box has an unsafe output")
    assert "at the centre; inputs " in proven.out
    results = tmp_path / "result.txt"
    wanted = str(written(tmp_path, x, 5.0, label))
    falsified = howsmooth("verify", str(path), wanted, "--results", str(results), "--json")
    assert falsified.code == 1
    found = json.loads(falsified.out)
    assert found["status"] == "falsified"
    lines = results.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "sat"
    assert lines[1].startswith("((X_0 ")
    assert lines[-1].startswith("(Y_2 ")
    assert "--results FILE writes it to a file" in howsmooth("verify", str(path), wanted).out
    written_there = howsmooth("verify", str(path), wanted, "--results", "there.txt").out
    assert written_there.rstrip().endswith("It is in there.txt.")
    assert (tmp_path / "there.txt").read_text(encoding="utf-8").startswith("sat")


def test_bad_files_are_refused_in_one_sentence(howsmooth, tmp_path, network):
    path, x, label = network
    wanted, cut, half = written(tmp_path, x, 0.001, label), tmp_path / "cut.onnx", tmp_path / "half.vnnlib"
    cut.write_bytes(path.read_bytes()[:-1000])
    half.write_text(wanted.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    (tmp_path / "empty").touch()
    for arguments, said in (
        (("nothing.onnx", wanted), "there is no file"),
        ((path, "nothing.vnnlib"), "there is no file"),
        ((cut, wanted), "is not an ONNX file that can be read"),
        ((path, half), "does not close all its parentheses"),
        ((path, tmp_path / "empty"), "is no property in VNN-LIB"),
        ((wanted, path), "is no text, as a property in VNN-LIB is"),
        ((path, wanted, "--timeout", "nan"), "must be a positive number of seconds"),
        ((path, wanted, "--results", tmp_path), "--results must be a file"),
        ((path, wanted, "--results", tmp_path / "none" / "r.txt"), "make it first"),
    ):
        done = howsmooth("verify", *map(str, arguments))
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert done.err.count("\n") == 1


@pytest.mark.slow
def test_the_scripts_of_the_competition(tmp_path, rng):
    scripts = Path(__file__).parents[2] / "benchmarks" / "vnncomp_scripts"
    network, wanted = write_vit(tmp_path / "n.onnx", rng), tmp_path / "p.vnnlib"
    bounds = "".join(f"(assert (<= X_{k} 0.001))(assert (>= X_{k} -0.001))" for k in range(16))
    wanted.write_text(
        "".join(f"(declare-const Y_{k} Real)" for k in range(3)) + bounds + "(assert (>= Y_0 1000))", encoding="utf-8"
    )

    def run(script, *words):
        environment = {**os.environ, "PYTHON": sys.executable}
        command = [str(scripts / script), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False).returncode

    assert run("prepare_instance.sh", "v1", "vit", network, wanted) == 0
    assert run("prepare_instance.sh", "v1", "vit", network, tmp_path / "none.vnnlib") == 1
    assert run("prepare_instance.sh", "v2", "vit", network, wanted) == 1
    assert run("run_instance.sh", "v1", "vit", network, wanted, tmp_path / "results", 60) == 0
    assert (tmp_path / "results").read_text(encoding="utf-8") == "unsat\n"
    assert run("run_instance.sh", "v1", "vit", wanted, wanted, tmp_path / "results", 60) == 0
    assert (tmp_path / "results").read_text(encoding="utf-8") == "error\n"


def test_a_verdict_is_saved_as_the_file_that_check_reads_or_not_at_all(howsmooth, tmp_path, network, monkeypatch):
    pytest.importorskip("flint")
    path, x, label = network
    for eps, code in ((0.001, 0), (5.0, 1)):
        wanted, proof = str(written(tmp_path, x, eps, label)), tmp_path / f"{eps}.json"
        saved = howsmooth("verify", str(path), wanted, "--save", str(proof))
        assert saved.code == code
        assert f"Saved and checked: {proof.name}" in saved.out.replace(f"{tmp_path}/", "")
        assert howsmooth("check", str(proof), "--model", str(path), "--property", wanted).code == 0
    monkeypatch.setattr("howsmooth.check.checker.FORMAT", "another")
    refused = howsmooth("verify", str(path), str(written(tmp_path, x, 0.001, label)), "--save", "none.json")
    assert refused.code == 3
    assert "Not saved: the proof was cannot check" in refused.err
    assert not (tmp_path / "none.json").exists()
