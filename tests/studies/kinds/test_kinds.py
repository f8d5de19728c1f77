"""Every kind that needs no text: asked twice it answers alike, bit for bit, and its answers keep their order."""

import pytest
from asked import ONE, TWO
from drawn import PROBED

import howsmooth as hs
from howsmooth.studies.json_values import settings_of
from howsmooth.studies.kinds import kind_named, kind_names
from howsmooth.studies.kinds.text import SplittingAsk, run_splitting
from howsmooth.studies.kinds.tokens_in_ball import AscentAsk, BoundsAsk, ExtremalAsk, MeasuresAsk, RegimesAsk
from howsmooth.studies.resources import Resources
from howsmooth.studies.settings import Solver

ASKS = [
    RegimesAsk(length=5, radius=1.5, **ONE),
    MeasuresAsk(length=2, radius=1.5, climb=2, **ONE),
    AscentAsk(length=3, radius=1.5, climb=2, solver=Solver(seed=1), **TWO),
    BoundsAsk(length=5, radius=1.5, **ONE),
    ExtremalAsk(points="two_point", length=5, radius=1.5, **TWO),
    ExtremalAsk(points="tied_pair", length=5, radius=1.5, **TWO),
]


def answer(ask):
    (found,) = kind_named(ask.kind).run([ask], [ask], Resources())
    return found


# Numbers that are estimates, or only counted: they are rounded to the nearest.
ESTIMATES = {
    *("typical", "linear", "predicted", "crossing", "mean_radius", "reach", "radius", "released_quantity"),
    *("entropy", "overhead", "accuracy", "network", "attention", "flipped", "swapped"),
    *("table_seconds", "word_seconds", "norm", "nearest"),
    *("bits", "share", "fresh", "fresh_low", "fresh_high", "measured"),
    *("largest_logit", *PROBED),
}


@pytest.mark.parametrize("name", kind_names())
def test_every_number_of_an_answer_that_is_proven_says_to_which_side_it_may_be_rounded(name):
    for field in settings_of(kind_named(name).answer).values():
        if "float" in str(field.type) and "tuple" not in str(field.type):
            assert ("rounded" in field.declared) != (field.name in ESTIMATES), field.name


@pytest.mark.slow
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: f"{ask.kind} {getattr(ask, 'points', '')}".strip())
def test_an_ask_is_answered_alike_twice_bit_for_bit(ask):
    first = answer(ask)
    assert answer(ask) == first
    assert type(first) is kind_named(ask.kind).answer


def test_another_seed_is_another_search():
    one, other = (MeasuresAsk(length=2, radius=1.5, climb=2, solver=Solver(seed=seed), **ONE) for seed in (0, 1))
    assert one.key != other.key


def test_bounds_are_those_of_the_theory():
    found = answer(BoundsAsk(length=5, radius=1.5, **ONE))
    f = Resources().attention(BoundsAsk(length=5, radius=1.5, **ONE))
    assert found.sharp_upper == hs.bounds.sharp_upper(f, n=5, radius=1.5).value
    assert found.discrete_upper == hs.bounds.discrete_upper(f, n=5, radius=1.5).value
    # a form on the line has no tied pair, since tokens of a pair differ in a second coordinate
    assert found.tied_pair is None
    assert found.two_point <= found.sharp_upper


def test_the_worst_measure_names_its_atoms():
    found = answer(MeasuresAsk(length=3, radius=1.5, climb=2, **ONE))
    assert len(found.atoms) == 3
    assert sum(atom.mass for atom in found.atoms) == pytest.approx(1)
    assert [atom.mass for atom in found.atoms] == sorted((atom.mass for atom in found.atoms), reverse=True)
    assert all(atom.norm == abs(atom.coordinate) <= 1.5 * (1 + 1e-9) for atom in found.atoms)


def test_windows_that_split_are_looked_at_one_by_one(asks, resources):
    work = [SplittingAsk(model=a.model, layer=a.layer, map=a.map, window=a.window) for a in asks(count=2)]
    found = run_splitting(work, work, resources)
    for one in found:
        assert one.value == max(one.move, one.split) > 0
        assert 0 <= one.atom < 8
        assert one.mean_radius <= one.reach
    assert work[0].cell == (0, "head:0")


def test_what_is_no_attention_is_refused(asks, resources, tiny):
    ask = BoundsAsk(model=tiny.name, map="residual", length=5, radius=1.0)
    with pytest.raises(hs.errors.AssumptionError, match="about attention alone") as refusal:
        resources.attention(ask)
    assert refusal.value.field == "map"
    (window,) = asks(count=1, maps=("block",))
    split = SplittingAsk(model=window.model, layer=0, map="block", window=window.window)
    with pytest.raises(hs.errors.AssumptionError, match="about attention alone"):
        run_splitting([split], [split], resources)


def test_biases_leave_when_they_are_told_to(resources, tiny):
    kept = resources.attention(BoundsAsk(model=tiny.name, length=5, radius=1.0))
    bare = resources.attention(BoundsAsk(model=tiny.name, biases=False, length=5, radius=1.0))
    assert kept.query_bias is not None
    assert bare.query_bias is bare.key_bias is bare.value_bias is bare.output_bias is None


def test_what_a_monitor_reads_cannot_be_asked_for_afterwards():
    with pytest.raises(hs.errors.AssumptionError, match=r"written while a model is trained: hs\.Monitor"):
        kind_named("monitor").run([], [], Resources())
