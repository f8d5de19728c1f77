import pytest
import torch

import howsmooth as hs
from howsmooth.theory.results import lower_bound, upper_bound

EYE = torch.eye(2, dtype=torch.float64)


def test_every_rung_of_a_ladder_has_a_label_of_its_own():
    for causal in (False, True):
        ladder = hs.bounds.table(hs.Attention.single_head(A=-EYE, V=EYE, causal=causal), n=20, radius=2.0)
        labels = [bound.label for bound in ladder.bounds]
        assert len(set(labels)) == len(labels)
        assert all(label and "_" not in label and "sharp" not in label for label in labels)


def test_our_bound_for_masked_measures_is_not_called_the_papers():
    f = hs.Attention.single_head(A=EYE, V=EYE, causal=True)
    bound = hs.bounds.masked_mean_field_upper(f, radius=1.0)
    assert bound.label == "our bound for masked measures"
    assert bound.source.startswith("ours")


@pytest.mark.parametrize("make", [upper_bound, lower_bound])
def test_a_theorem_without_a_label_is_called_by_its_name(make):
    assert make(0.0, "brand_new_upper", "somewhere", "a theorem").label == "brand new upper"


def test_a_witness_and_a_bracket_are_shown_by_their_labels():
    f = hs.Attention.single_head(A=-EYE, V=EYE)
    witness = hs.inputs.two_point(f, 5, 1.0)
    assert witness.label == "the paper's two points"
    assert "the paper's two points" in repr(witness)
    assert "worst-case bound" in repr(hs.bracket(f, n=5, radius=1.0))


def test_a_formula_that_leaves_the_range_of_the_numbers_claims_nothing():
    assert upper_bound(float("nan"), "name", "somewhere", "a theorem").value == float("inf")
    assert lower_bound(float("nan"), "name", "somewhere", "a theorem").value == 0
