"""Measures, distances and what is built on them refuse bad input with one sentence that says what to do."""

import pytest
import torch

import howsmooth as hs

pytestmark = pytest.mark.untyped


POINTS = torch.zeros(2, 3)


ONE = torch.ones(1, 1)


F = hs.Attention.single_head(A=-ONE, V=ONE)


CAUSAL = hs.Attention.single_head(A=-ONE, V=ONE, causal=True)


LINE = hs.transport.DiscreteMeasure(torch.tensor([[0.0], [1.0]]))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: hs.transport.DiscreteMeasure(POINTS, torch.tensor([1.5, -0.5])),
            hs.errors.AssumptionError,
            "must be positive",
        ),
        (
            lambda: hs.transport.DiscreteMeasure(POINTS, torch.tensor([1.0, 0.0])),
            hs.errors.AssumptionError,
            "drop atoms",
        ),
        (
            lambda: hs.transport.DiscreteMeasure(POINTS, torch.tensor([0.5, 0.6])),
            hs.errors.AssumptionError,
            "divide them by their sum",
        ),
        (
            lambda: hs.transport.DiscreteMeasure(POINTS, torch.tensor([1.0])),
            hs.errors.ShapeError,
            "weights must have the shape",
        ),
        (
            lambda: hs.transport.DiscreteMeasure(POINTS, torch.tensor([float("nan"), 1.0])),
            hs.errors.NonFiniteError,
            "weights",
        ),
        (lambda: hs.transport.DiscreteMeasure(torch.zeros(0, 3)), hs.errors.ShapeError, "at least one atom"),
        (lambda: hs.transport.DiscreteMeasure(torch.zeros(3)), hs.errors.ShapeError, r"\(n, d\)"),
        (lambda: hs.transport.DiscreteMeasure([[1.0]]), hs.errors.DtypeError, "torch.Tensor"),
        (lambda: hs.transport.DiscreteMeasure(torch.full((1, 1), float("inf"))), hs.errors.NonFiniteError, "points"),
        (
            lambda: hs.transport.DiscreteMeasure(POINTS, None, torch.tensor([0.0, 2.0])),
            hs.errors.AssumptionError,
            "between 0 and 1",
        ),
        (lambda: hs.transport.DiscreteMeasure(POINTS, None, torch.tensor([0.0])), hs.errors.ShapeError, "positions"),
        (lambda: hs.transport.DiscreteMeasure(POINTS, torch.ones(2).double() / 2), hs.errors.DtypeError, "one dtype"),
        (lambda: LINE.split(0), hs.errors.AssumptionError, "parts"),
        (lambda: LINE.split(5, 2), hs.errors.AssumptionError, "atom"),
        (lambda: LINE.split(0, 2, torch.zeros(3, 1)), hs.errors.ShapeError, "moves"),
        (lambda: LINE.merge(-1.0), hs.errors.AssumptionError, "tol"),
        (lambda: LINE.resample(0), hs.errors.AssumptionError, "at least 1"),
        (lambda: hs.transport.DiscreteMeasure.from_json("[1]"), hs.errors.ShapeError, "points"),
        (lambda: hs.transport.DiscreteMeasure.from_json("{"), hs.errors.ShapeError, "JSON"),
        (
            lambda: hs.transport.wasserstein(LINE, hs.transport.DiscreteMeasure(POINTS)),
            hs.errors.ShapeError,
            "one dimension",
        ),
        (lambda: hs.transport.wasserstein(LINE, LINE.to(torch.float64)), hs.errors.DtypeError, "one dtype"),
        (lambda: hs.transport.wasserstein(LINE, LINE.points), hs.errors.DtypeError, "hs.transport.DiscreteMeasure"),
        (lambda: hs.transport.wasserstein(LINE, LINE, p=0.5), hs.errors.AssumptionError, "p must be at least 1"),
        (lambda: hs.transport.conditional_wasserstein(LINE, LINE), hs.errors.AssumptionError, "needs positions"),
        (lambda: hs.maps.mean_field(CAUSAL)(LINE), hs.errors.AssumptionError, "needs the positions"),
        (lambda: hs.splitting(F, LINE.points), hs.errors.DtypeError, "hs.transport.DiscreteMeasure"),
        (lambda: hs.split_attack(F, LINE, eps=0.0), hs.errors.AssumptionError, "eps must be positive"),
        (
            lambda: hs.splitting(F, hs.transport.DiscreteMeasure(POINTS)),
            hs.errors.ShapeError,
            "tokens must have the shape",
        ),
        (lambda: hs.search.splitting_map(A=float("nan")), hs.errors.AssumptionError, "finite"),
        (lambda: hs.search.splitting_map(A=1.0, step=0.0), hs.errors.AssumptionError, "step"),
        (lambda: hs.regimes(F, 1.0, [2]), hs.errors.AssumptionError, "at least 3"),
        (lambda: hs.regimes(F, -1.0, [3]), hs.errors.AssumptionError, "radius"),
        (lambda: hs.regimes(CAUSAL, 1.0, [3]), hs.errors.AssumptionError, "unmasked"),
        (
            lambda: hs.maximise(CAUSAL, n=3, domain=hs.domains.Ball(1.0), weights=True),
            hs.errors.AssumptionError,
            "unmasked",
        ),
    ],
)
def test_bad_input_gets_one_sentence(make, error, words):
    with pytest.raises(error, match=words) as refusal:
        make()
    assert len(str(refusal.value).splitlines()) == 1


def test_a_file_that_is_not_a_measure_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_text("nothing")
    with pytest.raises(hs.errors.HowsmoothError, match="cannot read"):
        hs.transport.DiscreteMeasure.load(path)
    with pytest.raises(hs.errors.AssumptionError, match="safetensors"):
        LINE.save(tmp_path / "m.txt")
