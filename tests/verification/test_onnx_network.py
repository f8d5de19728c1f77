"""ONNX files: what is read is what onnxruntime runs, and what cannot be read is refused by its node."""

import pytest
import torch
from torch.testing import assert_close

import howsmooth as hs

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from verification.onnx_files import write_vit

from howsmooth.verification.onnx_network import read_onnx, session_of


def test_a_network_is_read_as_onnxruntime_runs_it(tmp_path, rng):
    path = write_vit(tmp_path / "vit.onnx", rng)
    f, run = read_onnx(path), session_of(path)
    kinds = [type(g.map if isinstance(g, hs.maps.Residual) else g).__name__ for g in f.maps]
    assert kinds == ["Affine", "Attention", "MLP", "Attention", "MLP", "Affine"]
    for x in torch.randn(5, 16, generator=rng).double():
        assert_close(f(x[None]).flatten(), run(x), rtol=1e-5, atol=1e-5)


def test_a_property_of_a_file_is_proven_or_falsified_and_replayed(tmp_path, rng):
    path = write_vit(tmp_path / "vit.onnx", rng)
    x, run = torch.randn(16, generator=rng).double(), session_of(path)
    label = int(run(x).argmax())
    near = hs.verification.Property.robust(x, eps=1e-3, label=label, classes=3)
    assert hs.verify(path, near).status == "proven"
    far = hs.verify(path, hs.verification.Property.robust(x, eps=5.0, label=label, classes=3))
    assert far.status == "falsified"
    assert int(run(far.counterexample).argmax()) != label


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation": "Tanh"}, r"Tanh_\d+ is Tanh, which is not read"),
        ({"change": "weights"}, r"Mul_\d+ \(Mul\) does more with scores"),
        ({"change": "bias"}, r"Add_\d+ \(Add\) .*by their position"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_what_is_not_read_is_refused_by_its_node(tmp_path, rng, options, said):
    path = write_vit(tmp_path / "vit.onnx", rng, **options)
    with pytest.raises(hs.errors.UnsupportedModelError, match=said):
        read_onnx(path)


def test_a_file_that_is_no_network_is_refused(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x00\x01 nothing")
    with pytest.raises(hs.errors.FileError, match="not an ONNX file"):
        read_onnx(path)
