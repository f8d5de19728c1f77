"""``howsmooth verify``: words, exit codes, the file of the competition."""

import json

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
    assert proven.out.startswith("Proven: no input of the box has an unsafe output")
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


@pytest.mark.parametrize("arguments", [("nothing.onnx", "nothing.vnnlib")])
def test_a_file_that_is_not_there_is_one_sentence(howsmooth, arguments):
    done = howsmooth("verify", *arguments)
    assert done.code == 2
    assert "there is no file" in done.err
