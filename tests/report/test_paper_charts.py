import dataclasses
import math
import re
from statistics import geometric_mean

import pytest

from howsmooth.report.paper_charts import CHARTS
from howsmooth.report.saving import save_chart
from howsmooth.studies.paper import ALSO, FIGURES
from howsmooth.studies.records import Record
from howsmooth.studies.setting import here
from howsmooth.studies.summary import growth_of
from howsmooth.studies.tasks import Task

LENGTHS = (4, 8, 16, 32)
LINE, PLANE = ((-1.0,),), ((-1.0, 0.0), (0.0, -1.0))


def record(kind, *, lower, length, numbers=None, local_upper=None, released=None, upper=None, shares=(), **task):
    return Record(
        task=Task(kind=kind, length=length, **task),
        lower=lower,
        upper=upper,
        radius=task.get("radius", 5.0 + 0.1 * task.get("window", 0)),
        local_upper=local_upper,
        released=released,
        sensitivity=shares,
        numbers=tuple((numbers or {}).items()),
        setting=here(),
    )


def window(n, w=0, *, model="minilm", layer=0, lower=None, exponent=0.3, **fields):
    value = 2 * n**exponent * (1 + 0.05 * w) if lower is None else lower
    return record("local", lower=value, length=n, window=w, model=model, layer=layer, **fields)


def windows(places=(("minilm", 0), ("random:gpt2", 6)), lengths=LENGTHS, count=3, **fields):
    return [window(n, w, model=m, layer=k, **fields) for m, k in places for n in lengths for w in range(count)]


def built(points, part, n, *, lower, head=0, model="minilm"):
    return record("extremal", lower=lower, length=n, points=points, map=part, head=head, model=model, layer=2)


def inputs(points=("two_point", "tied_pair"), parts=("head:0", "attention")):
    rates = {"two_point": 1.5, "tied_pair": 4.0}
    return [built(p, part, n, lower=rates[p] * math.sqrt(n)) for p in points for part in parts for n in LENGTHS]


def bounds(n, radius, **left):
    names = ("discrete_lower", "sharp_lower", "two_point", "tied_pair", "sharp_upper", "discrete_upper")
    numbers = {name: (i + 1) * math.sqrt(n) * radius for i, name in enumerate(names)} | left
    found = {name: value for name, value in numbers.items() if value is not None}
    return record("bounds", lower=1.0, length=n, radius=radius, numbers=found, model="minilm", layer=2)


def ascent(n, radius=12.0, lower=9.0):
    return record("ascent", lower=lower, length=n, radius=radius, model="minilm", layer=2)


def regime(n, *, A=LINE, radius=2.0, crossing=100.0, plateau=10.0):
    value = plateau * min(1.0, math.sqrt(n / crossing))
    numbers = {"crossing": crossing, "plateau": plateau, "measures": 3 * plateau}
    return record("regime", lower=value, upper=4 * value, length=n, A=A, radius=radius, numbers=numbers)


def regimes():
    return [
        *(regime(n) for n in (3, 5, 10, 100, 1000, 10_000)),
        *(regime(n, A=PLANE, crossing=1e6, plateau=50.0) for n in (10, 100, 1000)),
    ]


def split(layer, part="attention", *, move=2.0, cut=1.0, w=0):
    numbers = {"move": move, "split": cut, "splits": float(cut > move), "move_ratio": 1.01 * move, "split_ratio": cut}
    return record(
        "splitting", lower=max(move, cut), length=32, layer=layer, map=part, model="minilm", window=w, numbers=numbers
    )


def measure(*atoms, A=LINE, lower=165.8):
    numbers = {f"mass {k}": mass for k, (mass, _place) in enumerate(atoms)}
    numbers |= {f"coordinate {k}": place for k, (_mass, place) in enumerate(atoms)}
    return record("measure", lower=lower, length=len(atoms), A=A, radius=2.0, numbers=numbers)


def nested(**fields):
    return windows(stride=32, shares=(0.5, 0.25, 0.25), **fields)


WHOLE = {
    "real": windows(released=3.0),
    "adversarial": inputs(),
    "worst": [*(bounds(n, 12.0) for n in LENGTHS), *(bounds(8, r) for r in (1.0, 2.0, 4.0, 8.0, 16.0)), ascent(4)],
    "regimes": regimes(),
    "splitting": [split(k, part, w=w) for k in range(3) for part in ("attention", "head:3") for w in range(2)],
    "measures": [measure((0.9, 2.0), (0.1, -2.0)), measure((0.9, 2.0), (0.1, -1.0), (1e-9, -2.0))],
    "robustness": nested(),
    "bounds": windows(local_upper=30.0),
    "transition": regimes(),
}
PARTS = {
    "real, one record": ("real", [window(8)]),
    "real, one length": ("real", windows(lengths=(8,))),
    "real, a zero": ("real", [*windows(), window(4, 3, lower=0.0)]),
    "real, zeros in one layer": ("real", [*windows(), *windows([("minilm", 5)], lower=0.0)]),
    "real, no radius": ("real", [dataclasses.replace(r, radius=None) for r in windows()]),
    "adversarial, single head": ("adversarial", inputs(parts=("head:0",))),
    "adversarial, one kind": ("adversarial", inputs(points=("tied_pair",))),
    "adversarial, a zero": ("adversarial", [*inputs(), built("two_point", "head:0", 64, lower=0.0)]),
    "worst, ascent only": ("worst", [ascent(4), ascent(8)]),
    "worst, one record": ("worst", [bounds(8, 12.0)]),
    "worst, no paper's lower": ("worst", [bounds(n, 12.0, discrete_lower=None) for n in LENGTHS]),
    "regimes, one record": ("regimes", [regime(10)]),
    "regimes, no upper bound": ("regimes", [dataclasses.replace(r, upper=None) for r in regimes()]),
    "splitting, one record": ("splitting", [split(0)]),
    "splitting, nothing moves": ("splitting", [split(0), split(1, move=0.0)]),
    "measures, one atom": ("measures", [measure((1.0, 0.5))]),
    "robustness, no shares": ("robustness", windows(stride=32)),
    "robustness, zeros at the shortest": ("robustness", [window(4, stride=9, lower=0.0), window(8, stride=9)]),
    "bounds, no certificates": ("bounds", windows()),
    "transition, far from the crossing": ("transition", [regime(3, crossing=1e9)]),
    "transition, one record": ("transition", [regime(10)]),
}
CASES = {**{name: (name, records) for name, records in WHOLE.items()}, **PARTS}


def rows_of(chart, **wanted):
    values = chart.to_dict()["data"]["values"]
    return [row for row in values if all(row.get(name) == value for name, value in wanted.items())]


def title_of(chart):
    return chart.to_dict()["title"]["text"]


def draw(figure, records=None, name=None):
    charts = CHARTS[figure](WHOLE[figure] if records is None else records)
    return charts[name or next(iter(charts))]


def pairs(rows):
    return [(row["x"], row["y"]) for row in rows]


def test_there_are_charts_for_every_figure():
    assert list(CHARTS) == [*FIGURES, *ALSO]
    for name, records in WHOLE.items():
        assert CHARTS[name](records)


@pytest.mark.parametrize("figure", CHARTS)
def test_without_records_of_its_own_a_figure_has_no_charts(figure):
    kinds = {r.task.kind for r in WHOLE[figure]}
    others = [r for records in WHOLE.values() for r in records if r.task.kind not in kinds]
    assert CHARTS[figure]([]) == {}
    assert CHARTS[figure](others) == {}


def test_a_chart_that_would_be_empty_is_not_drawn():
    assert CHARTS["real"](windows(lower=0.0)) == {}
    assert CHARTS["transition"]([regime(3, crossing=1e9)]) == {}
    assert CHARTS["robustness"]([window(4, stride=9, lower=0.0), window(8, stride=9)]) == {}


@pytest.mark.parametrize("case", CASES)
def test_every_chart_can_be_written(case, tmp_path, capfd):
    figure, records = CASES[case]
    for name, chart in CHARTS[figure](records).items():
        save_chart(chart, tmp_path / f"{name}.svg")
        text = (tmp_path / f"{name}.svg").read_text()
        assert text.startswith("<svg")
        assert not re.search("NaN|Infinity|undefined", text)
    assert "WARN" not in capfd.readouterr().err


def test_every_window_is_a_point_with_its_radius_over_the_mean():
    records = windows(released=3.0)
    found = rows_of(draw("real", records, "constant_against_length"), series="a window")
    assert pairs(found) == [(r.task.length, r.lower) for r in records]
    assert [row["radius"] for row in found] == pytest.approx([r.radius / 5.1 for r in records])
    found = rows_of(draw("real", records, "constant_against_radius"), series="a window")
    assert [(*pair, row["tokens"]) for pair, row in zip(pairs(found), found, strict=True)] == [
        (r.radius, r.lower, r.task.length) for r in records
    ]
    found = rows_of(draw("real", records, "radius_against_length"), series="a window")
    assert pairs(found) == [(r.task.length, r.radius) for r in records]


def test_a_panel_tells_the_exponent_its_interval_and_that_of_the_released_quantity():
    records = [window(n, w, released=n**0.25) for n in LENGTHS for w in range(3)]
    chart = draw("real", records)
    law = growth_of((r.task.length, r.lower) for r in records)
    (panel,) = {row["panel"] for row in rows_of(chart)}
    assert panel.split("\n") == [
        "minilm, layer 0",
        f"n^0.30 [{law.low:.2f}, {law.high:.2f}]",
        "released n^0.25, R ≈ 5.1",
    ]
    assert pairs(rows_of(chart, series="power law")) == [(n, pytest.approx(law.at(n))) for n in LENGTHS]
    assert pairs(rows_of(chart, series="released quantity")) == [(n, pytest.approx(n**0.25)) for n in LENGTHS]
    assert title_of(chart) == "The constant grows like n^0.30, the released quantity like n^0.25"


def test_layers_stand_in_the_order_of_their_numbers():
    chart = draw("real", windows([("m", 10), ("m", 2), ("a", 5)]), "radius_against_length")
    assert chart.to_dict()["facet"]["sort"] == ["a, layer 5", "m, layer 2", "m, layer 10"]


def test_growing_windows_are_no_part_of_the_real_data_nor_the_other_way_round():
    mixed = windows() + nested(lower=7.0)
    assert {row["y"] for row in rows_of(draw("real", mixed), series="a window")} == {r.lower for r in windows()}
    assert {row["y"] for row in rows_of(draw("robustness", mixed), series="a window")} == {1.0}


def test_flat_panels_are_not_blown_up():
    chart = draw("real", windows(lower=3.0), "constant_against_radius")
    room = rows_of(chart, series="room", panel="minilm, layer 0")
    assert [row["y"] for row in room if row["y"] != 3.0] == pytest.approx([3.0 / 1.04, 3.0 * 1.04])


def test_the_multiple_of_the_root_of_n_is_the_geometric_mean():
    values = {4: 3.0, 16: 20.0}
    chart = draw("adversarial", [built("two_point", "head:0", n, lower=v) for n, v in values.items()])
    c = geometric_mean([3.0 / 2, 20.0 / 4])
    assert pairs(rows_of(chart, series="two points")) == list(values.items())
    assert pairs(rows_of(chart, series="c√n, two points")) == [(4, pytest.approx(2 * c)), (16, pytest.approx(4 * c))]
    (panel,) = {row["panel"] for row in rows_of(chart)}
    slope = math.log(20 / 3) / math.log(4)
    assert panel.split("\n") == ["minilm, layer 2, from head 0", f"two points: {c:.3g}√n (fit n^{slope:.2f})"]


def test_single_heads_and_whole_layers_are_apart():
    assert list(CHARTS["adversarial"](inputs())) == ["single_head", "whole_layer"]
    assert list(CHARTS["adversarial"](inputs(parts=("attention",)))) == ["whole_layer"]


def test_bounds_are_drawn_against_the_length_and_against_the_radius():
    chart = draw("worst")
    across_n, across_r = dict.fromkeys(row["panel"] for row in rows_of(chart))
    assert (across_n, across_r) == ("number of tokens n (R = 12)", "radius R (n = 8)")
    sharp = rows_of(chart, series="sharp upper", panel=across_n)
    assert pairs(sharp) == [(n, 5 * math.sqrt(n) * 12.0) for n in LENGTHS]
    assert [x for x, _y in pairs(rows_of(chart, series="tied pair", panel=across_r))] == [
        1.0,
        2.0,
        4.0,
        8.0,
        12.0,
        16.0,
    ]
    assert pairs(rows_of(chart, series="ascent")) == [(4, 9.0)]
    assert title_of(chart).endswith("n = 32 leave: ours a factor 1.25, the paper's a factor 6")


def test_a_regime_has_its_bound_its_plateau_and_its_crossing_where_the_lengths_reach_it():
    chart = draw("regimes")
    line, plane = dict.fromkeys(row["panel"] for row in rows_of(chart))
    assert (line, plane) == ("A = −1, R = 2: n* ≈ 100", "A = −1·I (2×2), R = 2: n* ≈ 1,000,000")
    assert [row["panel"] for row in rows_of(chart, series="crossing n*")] == [line]
    assert {row["y"] for row in rows_of(chart, series="measures attain", panel=line)} == {10.0}
    found = [r for r in regimes() if r.task.A == LINE]
    assert pairs(rows_of(chart, series="worst found", panel=line)) == [(r.task.length, r.lower) for r in found]
    assert pairs(rows_of(chart, series="upper bound", panel=line)) == [(r.task.length, r.upper) for r in found]


def test_the_transition_is_in_units_of_plateau_and_crossing():
    chart = draw("transition")
    assert pairs(rows_of(chart, series="A = −1, R = 2"))[-2:] == [(10.0, 1.0), (100.0, 1.0)]
    # ten tokens are 1e-5 of the crossing: too far to be drawn
    assert [x for x, _y in pairs(rows_of(chart, series="A = −1·I (2×2), R = 2"))] == pytest.approx([1e-4, 1e-3])
    assert title_of(chart).startswith("Well below n* the constant grows like n^0.50")
    assert title_of(chart).endswith("1.00 of the plateau")


def test_a_window_above_one_splits():
    chart = draw("splitting", [split(0), split(3, cut=5.0), split(3, "head:10"), split(3, "head:9")], "text")
    assert chart.to_dict()["facet"]["sort"] == ["minilm, attention", "minilm, head:9", "minilm, head:10"]
    assert pairs(rows_of(chart, series="a window", panel="minilm, attention")) == [(0, 0.5), (3, 2.5)]
    assert title_of(chart) == "Splitting one token beats moving all in 1 of 4 cases"


def test_the_attack_is_compared_with_the_derivative():
    chart = draw("splitting", [split(0)], "attack")
    assert pairs(rows_of(chart, series="move all tokens")) == [(2.0, 2.02)]
    assert pairs(rows_of(chart, series="split one token")) == [(1.0, 1.0)]
    assert all(x == y for x, y in pairs(rows_of(chart, series="equal")))
    assert title_of(chart).endswith("within 1.00%")


def test_atoms_at_one_place_are_one():
    chart = draw("measures", [measure((0.6, 2.0), (0.3, 2.0), (0.1, -2.0))])
    assert [(row["place"], row["mass"]) for row in rows_of(chart)] == [(2.0, pytest.approx(0.9)), (-2.0, 0.1)]
    assert {row["row"] for row in rows_of(chart)} == {"3 atoms: 165.8"}
    assert "90.00%" in title_of(chart)


def test_growth_is_relative_to_the_same_window_at_the_shortest_length():
    chart = draw(
        "robustness", [window(4, 0, stride=9, lower=2.0), *(window(8, w, stride=9, lower=6.0) for w in (0, 1))]
    )
    # the second window was not measured at four tokens
    assert pairs(rows_of(chart, series="a window")) == [(4, 1.0), (8, 3.0)]
    assert pairs(rows_of(chart, series="geometric mean")) == [(4, 1.0), (8, pytest.approx(3.0))]
    assert title_of(chart).endswith("changes by a factor 3")


def test_concentration_counts_the_tokens_that_share_the_perturbation():
    chart = draw(
        "robustness",
        [window(4, stride=9, shares=(0.25,) * 4), window(8, stride=9, shares=(1.0, 0, 0))],
        "concentration",
    )
    assert pairs(rows_of(chart, series="a window")) == [(4, pytest.approx(4.0)), (8, 1.0)]
    assert list(CHARTS["robustness"](windows(stride=9))) == ["relative_growth"]


def test_certificates_are_compared_with_geometric_means():
    records = [window(4, 0, lower=1.0, local_upper=10.0), window(4, 1, lower=4.0, local_upper=10.0)]
    chart = draw("bounds", records)
    assert pairs(rows_of(chart, series="measured")) == [(4, pytest.approx(2.0))]
    assert pairs(rows_of(chart, series="certificate")) == [(4, pytest.approx(10.0))]
    assert {row["panel"] for row in rows_of(chart)} == {"minilm, layer 0\ncertificate looser by a factor 5"}
    assert title_of(chart) == "The certificate is 6.25 times the constant (median)"
