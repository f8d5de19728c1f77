"""Properties: VNN-LIB files, and the mistakes in them."""

import pytest
import torch

import howsmooth as hs
from howsmooth.verification import Property, read_vnnlib

BOX = "".join(
    f"(declare-const X_{k} Real)\n(assert (>= X_{k} {-k - 0.5}))\n(assert (<= X_{k} {k + 1.5e0}))\n" for k in range(2)
)
OUTPUTS = "".join(f"(declare-const Y_{k} Real)\n" for k in range(3))


def read(tmp_path, text):
    path = tmp_path / "property.vnnlib"
    path.write_text(text, encoding="utf-8")
    return read_vnnlib(path)


def test_a_box_and_a_union_of_unsafe_sets_are_read(tmp_path):
    text = (
        BOX
        + OUTPUTS
        + "; a comment (with a parenthesis\n(assert (or (and (>= Y_0 Y_1)) (and (>= Y_2 Y_1) (<= Y_0 3))))"
    )
    found = read(tmp_path, text)
    assert found.lower.tolist() == [-0.5, -1.5]
    assert found.upper.tolist() == [1.5, 2.5]
    assert [A.tolist() for A, _b in found.unsafe] == [[[1, -1, 0]], [[0, -1, 1], [-1, 0, 0]]]
    assert [b.tolist() for _A, b in found.unsafe] == [[0], [0, -3]]


def test_conditions_that_hold_together_are_one_set(tmp_path):
    found = read(tmp_path, BOX + OUTPUTS + "(assert (<= Y_0 1))\n(assert (>= (+ (* 2 Y_1) (- Y_2)) 4))")
    ((A, b),) = found.unsafe
    assert A.tolist() == [[-1, 0, 0], [0, 2, -1]]
    assert b.tolist() == [-1, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOX + OUTPUTS + "(assert (<= Y_0 1)", "does not close"),
        (BOX + OUTPUTS + "(assert (<= Y_0 1)))", "closes more"),
        (BOX + OUTPUTS + "(assert (<= (+ X_0 X_1) 1))", "a box is needed"),
        ("(declare-const X_0 Real)(assert (<= X_0 1))" + OUTPUTS + "(assert (<= Y_0 1))", "X_0 on both sides"),
        (BOX + OUTPUTS + "(assert (= Y_0 1))", "not read: ="),
        (BOX + OUTPUTS + "(assert (<= Y_0 one))", "not read: one"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, text, said):
    with pytest.raises(hs.errors.FileError, match=said):
        read(tmp_path, text)


def test_a_property_needs_unsafe_outputs(tmp_path):
    with pytest.raises(hs.errors.FieldError, match="names none"):
        read(tmp_path, BOX + OUTPUTS)


def test_robustness_is_a_box_with_one_set_for_each_rival():
    found = Property.robust(torch.tensor([1.0, 2.0]), eps=0.5, label=1, classes=3)
    assert found.lower.tolist() == [0.5, 1.5]
    assert [A.tolist() for A, _b in found.unsafe] == [[[1, -1, 0]], [[0, -1, 1]]]
