"""One sentence for each study, from its records."""

import pytest
from measured import changed, grid, record
from msgspec.structs import replace

from howsmooth.report.sentences import finding
from howsmooth.studies.kinds.text import SplittingAnswer, SplittingAsk
from howsmooth.studies.kinds.tokens_in_ball import (
    AscentAnswer,
    AscentAsk,
    Atom,
    BoundsAnswer,
    BoundsAsk,
    ExtremalAsk,
    MeasuresAnswer,
    MeasuresAsk,
    RegimesAnswer,
    RegimesAsk,
    TextAnswer,
)
from howsmooth.studies.plans.paper import ALSO, FIGURES
from howsmooth.studies.records import Record, this_machine
from howsmooth.studies.settings import Window

HEAD = {"A": ((-1.0,),), "V": ((1.0,),), "radius": 2.0}


def kept(ask, answer):
    return Record(ask=ask, answer=answer, machine=this_machine(), seconds=0.1)


def at_inputs():
    values = {"two_point": 1.0, "tied_pair": 30.0}
    return [
        kept(ExtremalAsk(model="m", points=p, length=n, radius=3.0), TextAnswer(lower=c * n**0.5))
        for p, c in values.items()
        for n in (7, 12, 22)
    ]


def at_bounds():
    return [
        kept(BoundsAsk(length=n, **HEAD), BoundsAnswer(sharp_upper=3.0 * n, tied_pair=2.0 * n, two_point=1.0 * n))
        for n in (4, 8)
    ] + [kept(AscentAsk(length=4, **HEAD), AscentAnswer(lower=7.0))]


def at_regimes():
    answers = {10: 2.0, 1000: 49.0}
    return [
        kept(
            RegimesAsk(length=n, **HEAD),
            RegimesAnswer(lower=v, upper=99.0, crossing=300.0, plateau=50.0, measures_upper=60.0),
        )
        for n, v in answers.items()
    ]


def at_windows():
    fields = {"atom": 0, "move_ratio": 1.0, "split_ratio": 1.0, "mean_radius": 1.0, "reach": 1.0, "move": 1.0}
    return [
        kept(
            SplittingAsk(model="m", layer=0, window=Window(digest="d", length=8, index=i)),
            SplittingAnswer(split=2.0, splits=i > 0, decided=i < 3, **fields),
        )
        for i in range(4)
    ]


def at_measures():
    atoms = [Atom(mass=mass, coordinate=1.0, norm=1.0) for mass in (0.98, 0.02)]
    return [kept(MeasuresAsk(length=2, **HEAD), MeasuresAnswer(lower=12.5, atoms=tuple(atoms)))]


@pytest.mark.parametrize(
    ("name", "records", "said"),
    [
        ("real", grid(model="m"), "With the number of tokens n the constant on real text grows like n^0.30"),
        ("robustness", grid(stride=16), "from 4 to 16 tokens at the same places have constants 1.52 times as large"),
        ("bounds", grid(layers=1, lengths=(8,), lower=3.0, local_upper=60.0), "prove bounds 20 times what is measured"),
        ("adversarial", at_inputs(), "like n^0.50, tied pairs like n^0.50; at the same head, length and radius"),
        ("adversarial", at_inputs(), "attain 30 times as much"),
        ("worst", at_bounds(), "The worst-case bound is 1.5 times what explicit inputs attain"),
        (
            "regimes",
            at_regimes(),
            "From 10 to 1,000 tokens the worst constant found is multiplied by 24.5; it still grows",
        ),
        (
            "transition",
            at_regimes(),
            "At 1,000 tokens the worst inputs found attain 0.98 times what measures are known to attain",
        ),
        ("splitting", at_windows(), "At 2 of 4 windows cutting one token in two"),
        ("splitting", at_windows(), "1 is not decided"),
        (
            "measures",
            at_measures(),
            "12.5 within radius 2: of its 2 atoms the heaviest holds 98 % of the mass",
        ),
        # a study of another name speaks by the kind of its records
        ("mine", at_measures(), "The worst measure found attains 12.5"),
    ],
)
def test_a_study_says_what_it_found_in_one_sentence(name, records, said):
    found = finding(name, records)
    assert said in found
    assert found.endswith(".")
    assert ". " not in found


def test_layers_that_follow_no_law_are_counted_and_not_ranked():
    bent = {4: 1.0, 8: 3.0, 16: 3.0}
    doubted = [record(0, n, w, lower=bent[n] * (1 + 0.001 * w)) for n in bent for w in range(3)]
    said = finding("real", [*doubted, *grid(layers=3)[9:]])
    assert said.endswith("grows like n^0.30; m, layer 0 follows no power law.")
    two = [*doubted, *(replace(r, ask=replace(r.ask, layer=1)) for r in doubted), *grid(layers=3)[18:]]
    assert finding("real", two).endswith("grows like n^0.30; 2 of 3 layers follow no power law.")
    assert finding("real", doubted) == "With the number of tokens n the constant on real text follows no power law."


@pytest.mark.parametrize("name", [*FIGURES, *ALSO])
def test_a_study_without_records_says_so(name):
    assert finding(name, ()) == "Nothing is measured yet."


def test_crossings_beyond_floats_are_left_out():
    lost = changed(at_regimes()[0], crossing=None, plateau=None)
    assert "multiplied by 24.5;" in finding("regimes", [lost, *at_regimes()])
    assert finding("regimes", [lost]) == "1 record of the kind regimes."
    assert finding("transition", [lost]) == "1 record of the kind regimes."


def test_a_study_with_nothing_to_say_tells_what_it_holds():
    searched = [kept(AscentAsk(length=4, **HEAD), AscentAnswer(lower=7.0))]
    assert finding("worst", searched) == "1 record of the kind ascent."
