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
    ("condition", "row", "bound"),
    [
        ("(>= (+ Y_0 Y_0 (* Y_1 3) 2) (- Y_2 Y_1 5))", [2, 4, -1], -7),
        ("(<= (+ Y_0 1) (* (- 2) (+ Y_1 4)))", [-1, -2, 0], 9),
        ("(< 3 (- Y_2))", [0, 0, -1], 3),
        ("(> (- 7 Y_0 1 Y_2) (* 0.5 (- Y_0 6)))", [-1.5, 0, -1], -9),
    ],
)
def test_both_sides_of_a_condition_are_sums(tmp_path, condition, row, bound):
    ((A, b),) = read(tmp_path, BOX + OUTPUTS + f"(assert {condition})").unsafe
    assert A.tolist() == [row]
    assert b.tolist() == [bound]


def test_the_tightest_bounds_of_an_input_count(tmp_path):
    bounds = ("<= X_0 1", "<= X_0 9", "<= (* -2 X_0) 0.5", ">= X_0 -9", ">= 4 (* 2 X_1)")
    more = "".join(f"(assert ({bound}))" for bound in bounds)
    found = read(tmp_path, BOX + more + OUTPUTS + "(assert (<= Y_0 1))")
    assert found.lower.tolist() == [-0.25, -1.5]
    assert found.upper.tolist() == [1.0, 2.0]
    for bound in ("(>= X_5 0)", "(<= X_5 0)"):
        with pytest.raises(hs.errors.FileError, match="X_5, which it does not declare"):
            read(tmp_path, BOX + f"(assert {bound})" + OUTPUTS + "(assert (<= Y_0 1))")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOX + OUTPUTS + "(assert (<= Y_0 1)", "does not close"),
        (BOX + OUTPUTS + "(assert (<= Y_0 1)))", "closes more"),
        (BOX + OUTPUTS + "(assert (<= (+ X_0 X_1) 1))", "a box is needed"),
        ("(declare-const X_0 Real)(assert (<= X_0 1))" + OUTPUTS + "(assert (<= Y_0 1))", "X_0 on both sides"),
        (BOX + OUTPUTS + "(assert (= Y_0 1))", "not read: ="),
        (BOX + OUTPUTS + "(assert (<= Y_0 one))", "not read: one"),
        (BOX + OUTPUTS + "(assert (<= Y_0 1 2))", "not read: <="),
        (BOX + OUTPUTS + "(assert (<= (* Y_0 Y_1) 2))", r"not read: \*"),
        (BOX + OUTPUTS + "(assert (<= (* 0 X_0) 2))", "a box is needed"),
        (BOX + OUTPUTS + "(assert (or (<= X_0 1) (<= X_0 2)))", "a box is needed"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, text, said):
    with pytest.raises(hs.errors.FileError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\x1f\x8b\x08\x00\xff", "is no text"), (b"", "no property in VNN-LIB"), (b"hello", "no property in VNN-LIB")],
)
def test_a_file_of_another_kind_is_refused_in_one_sentence(tmp_path, content, said):
    path = tmp_path / "p.vnnlib"
    path.write_bytes(content)
    with pytest.raises(hs.errors.FileError, match=said):
        read_vnnlib(path)


def test_a_property_needs_unsafe_outputs(tmp_path):
    with pytest.raises(hs.errors.FieldError, match="names none"):
        read(tmp_path, BOX + OUTPUTS)


def test_robustness_is_a_box_with_one_set_for_each_rival():
    found = Property.robust(torch.tensor([1.0, 2.0]), eps=0.5, label=1, classes=3)
    assert found.lower.tolist() == [0.5, 1.5]
    assert found.upper.tolist() == [1.5, 2.5]
    assert [A.tolist() for A, _b in found.unsafe] == [[[1, -1, 0]], [[0, -1, 1]]]


SECOND = """(vnnlib-version <2.0>)
(declare-network N (declare-input X float32 [1,2,2]) (declare-output Y float32 [1,3]))
(assert (and (>= X[0,0,0] 0.1) (<= X[0,0,0] 0.3)))
(assert (>= X[0,0,1] -1.0)) (assert (>= 1.0 X[0,0,1]))
(assert (>= X[0,1,0] 0.0)) (assert (<= X[0,1,0] 2.0))
(assert (>= X[0,1,1] 0.0)) (assert (<= X[0,1,1] 1.0))
"""


def test_the_second_version_is_read_as_the_first(tmp_path):
    pytest.importorskip("vnnlib")
    second, first = tmp_path / "second.vnnlib", tmp_path / "first.vnnlib"
    unsafe = "(assert (or (>= {1} {0}) (and (>= {2} {0}) (<= (* 2.0 {1}) 4.0))))"
    second.write_text(SECOND + unsafe.format("Y[0,0]", "Y[0,1]", "Y[0,2]"), encoding="utf-8")
    bounds = [(0.1, 0.3), (-1.0, 1.0), (0.0, 2.0), (0.0, 1.0)]
    lines = [f"(assert (and (>= X_{k} {low}) (<= X_{k} {high})))" for k, (low, high) in enumerate(bounds)]
    lines += [f"(declare-const Y_{k} Real)" for k in range(3)]
    first.write_text("\n".join(lines) + unsafe.format("Y_0", "Y_1", "Y_2"), encoding="utf-8")
    one, two = read_vnnlib(first), read_vnnlib(second)
    assert one.lower.tolist() == two.lower.tolist() == [low for low, _high in bounds]
    assert one.upper.tolist() == two.upper.tolist() == [high for _low, high in bounds]
    for (A, b), (C, d) in zip(one.unsafe, two.unsafe, strict=True):
        assert (A.tolist(), b.tolist()) == (C.tolist(), d.tolist())


def test_both_sides_of_a_condition_of_the_second_version_are_sums(tmp_path):
    pytest.importorskip("vnnlib")
    path = tmp_path / "p.vnnlib"
    unsafe = "(assert (<= (+ Y[0,0] (* 5.0 Y[0,1]) Y[0,0]) (+ 4.0 (* 3.0 Y[0,0]) Y[0,2])))"
    path.write_text(SECOND + unsafe, encoding="utf-8")
    ((A, b),) = read_vnnlib(path).unsafe
    assert A.tolist() == [[1, -5, 1]]
    assert b.tolist() == [-4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(declare-network", "does not close"),
        ("(declare-network)", "no VNN-LIB"),
        (SECOND + "(assert (== Y[0,0] 1.0))", "is not read"),
        (SECOND + "(assert (or (>= X[0,0,0] 0.2) (>= Y[0,0] 1.0)))", "a box is needed"),
        (SECOND.replace("(assert (>= X[0,1,0] 0.0))", ""), "does not bound X_2"),
    ],
)
def test_what_the_second_version_says_beyond_a_box_is_refused(tmp_path, text, said):
    pytest.importorskip("vnnlib")
    path = tmp_path / "p.vnnlib"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(hs.errors.FileError, match=said):
        read_vnnlib(path)
