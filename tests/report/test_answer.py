"""The answer: what it says of a measurement, and that it never says more than is known."""

import dataclasses
import re

import pytest
from measured import changed, grid, measurement, record

from howsmooth.report.page import answer_rows, columns_of, terms
from howsmooth.report.sentences import growth_sentence, growth_words, sentence
from howsmooth.studies.kinds import kind_names
from howsmooth.theory.results import BoundsTable


def bent(layer, lengths=(4, 8, 16)):
    """Return records that grow and then do not: no power law describes them."""
    values = dict(zip(lengths, (1.0, 3.0, 3.0), strict=True))
    return [record(layer, n, w, lower=values[n] * (1 + 0.001 * w)) for n in lengths for w in range(3)]


def test_one_sentence_names_the_least_smooth_layer_its_scale_its_bound_and_the_smoothest():
    assert sentence(measurement(grid(layers=3))) == (
        "At 16 tokens the worst small perturbation of what enters layer 2 grows 7.23-fold, a random one shrinks to "
        "0.36 of its size [0.34, 0.38]; for any 16 tokens no longer than 9, the longest here, at most 1,240-fold; the "
        "smoothest is layer 0, with 2.41."
    )


def test_layers_that_are_alike_are_not_set_against_each_other():
    near, far = ([*grid(layers=1, lower=3.0), *grid(layers=2, lower=r * 3.0)[9:]] for r in (1.04, 1.06))
    assert "; the layers are alike, none is below 3." in sentence(measurement(near))
    assert "; the smoothest is layer 0, with 3." in sentence(measurement(far))


@pytest.mark.parametrize(
    ("found", "said", "unsaid"),
    [
        (measurement(grid(layers=1)), "layer 0 grows 2.41-fold", "smoothest"),
        (measurement(grid(lower=0.0)), "shrinks to 0 of its size", "∞"),
        (measurement(grid(lower=0.065)), "shrinks to 0.065 of its size", "grows"),
        (measurement(grid(typical=None)), "grows 4.82-fold; for any 16 tokens", "random"),
        (measurement(grid(), planned=99), "So far, at 16 tokens", "At "),
        (measurement([record(0, 4, 0), record(1, 8, 0)]), "no length in common", "grows"),
        (measurement(grid(), layers=()), "Nothing is measured yet.", "layer"),
    ],
)
def test_the_sentence_says_what_is_known_and_no_more(found, said, unsaid):
    assert said in sentence(found)
    assert unsaid not in sentence(found)
    assert sentence(found).endswith(".")


def test_layers_are_compared_at_a_length_that_all_have():
    longer = [*grid(layers=3), *(record(0, 64, w, lower=1000.0) for w in range(3))]
    assert "At 16 tokens the worst small perturbation of what enters layer 2" in sentence(measurement(longer))


def test_no_layer_is_marked_where_none_can_be_compared():
    apart = measurement([record(0, 4, 0), record(1, 8, 0)])
    rows = answer_rows([(0, apart)])
    assert [row.mark for row in rows] == ["", ""]
    assert [row.more[0] for row in rows] == ["at 4 tokens", "at 8 tokens"]
    marks = [row.mark for row in answer_rows([(0, measurement(grid(layers=3)))])]
    assert marks == ["smoothest", "", "least smooth"]


def test_a_law_that_is_doubted_is_named_as_such_in_the_sentence_and_in_its_row():
    found = measurement([*bent(0), *grid(layers=2)[9:]])
    assert found.layers[0].growth.doubted
    said = growth_sentence(found)
    assert said == ("With the number of tokens n this factor grows like n^0.30; layer 0 follows no power law.")
    assert growth_words(found, found.layers[0]) == "follows no power law between 4 and 16 tokens"
    # three windows that rise one after the other are alike, and the interval is wide
    assert growth_words(found, found.layers[1]).startswith("grows like n^0.30 [−0.")
    first, second = answer_rows([(0, found)])
    assert "follows no power law between 4 and 16 tokens" in first.more
    assert not any("power law" in part for part in second.more)
    assert not any("n^" in part for part in first.more)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (1, "follows no power law."),
        (3, "follows no power law anywhere."),
    ],
)
def test_where_no_law_holds_that_is_all_that_is_said(layers, said):
    found = measurement([r for layer in range(layers) for r in bent(layer)])
    assert growth_sentence(found) == f"With the number of tokens n this factor {said}"


def test_growth_goes_from_the_slowest_layer_to_the_fastest_and_needs_several_lengths():
    slow = [record(0, n, w, lower=n**-0.05 * (1 + 0.01 * w)) for n in (4, 8, 16) for w in range(3)]
    said = growth_sentence(measurement([*slow, *grid(layers=2)[9:]]))
    assert said.endswith("changes like n^−0.05 (layer 0) up to n^0.30 (layer 1).")
    assert "takes several lengths" in growth_sentence(measurement(grid(lengths=(8,))))


def test_a_layer_whose_range_reaches_the_least_smooth_one_says_so():
    near = [changed(r, upper=100.0) if r.ask.layer == 0 else r for r in grid()]
    first, second = answer_rows([(0, measurement(near))])
    assert first.more[-1] == "range overlaps that of layer 1"
    assert not any("overlaps" in part for part in second.more)


def test_columns_that_no_row_fills_are_left_out():
    bare = dataclasses.replace(measurement(grid()).layers[0], ladder=BoundsTable(bounds=()), typical=None)
    rows = answer_rows([(0, measurement(grid(), layers=(bare,)))])
    assert [column["key"] for column in columns_of(rows)] == ["worst"]
    every = answer_rows([(0, measurement(grid(local_upper=99.0)))])
    assert [column["key"] for column in columns_of(every)] == ["typical", "worst", "certificate", "any"]
    assert all(re.fullmatch(r"[A-Z].*\.", column["meaning"]) for column in columns_of(every))


def test_strips_place_all_numbers_on_one_logarithmic_line():
    rows = answer_rows([(0, measurement(grid(layers=3, local_upper=99.0)))])
    strips = [row.strip for row in rows]
    assert [name for name, _at in strips[0].marks] == ["typical", "worst", "certificate", "any"]
    for strip in strips:
        places = [at for _name, at in strip.marks]
        assert places == sorted(places)
        assert strip.low < dict(strip.marks)["worst"] < strip.high
        assert strip.one == strips[0].one
    assert strips[0].marks[0][1] == 0
    assert strips[0].marks[-1][1] == 1
    # equal ratios lie equally far apart
    assert strips[0].marks[1][1] - strips[0].marks[0][1] == pytest.approx(strips[2].marks[1][1] - strips[2].marks[0][1])
    assert answer_rows([(0, measurement(grid(lower=0.0)))])[0].strip is None


@pytest.mark.parametrize("kind", kind_names())
def test_the_words_of_every_kind_of_record_are_explained(kind):
    assert terms([], {kind})
