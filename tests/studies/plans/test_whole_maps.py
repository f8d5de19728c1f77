"""Maps of many layers in ``hs.measure``: asked once, told by their name."""

import pytest

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.report.sentences import sentence

QUICK = {"lengths": [8], "sequences": 2, "rtol": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer"), [("model", 0), ("network", 0), ("sentence", 0), ("to:1", 0), ("from:1", 1), ("layers:0-1", 0)]
)
def test_a_map_of_many_layers_is_measured_once(name, layer, tiny, beginning):
    found = hs.measure(tiny, text=beginning, map=name, **QUICK)
    assert [(record.ask.layer, record.ask.map, record.ask.window.index) for record in found.records] == [
        (layer, name, 0),
        (layer, name, 1),
    ]
    (row,) = found.layers
    assert (row.layer, row.windows, row.any_input) == (layer, 2, None)
    f, X = tiny.activations(tiny.windows(read_text(beginning), length=8, count=2)).at(layer, name)
    truth = hs.local_lipschitz(f, X).lower
    assert [record.answer.lower for record in found.records] == pytest.approx(truth.tolist(), rel=0.1)
    assert f"{name!r}" in sentence(found)
    assert found.records[0].ask.label == f"{tiny.name} {name}, 8 tokens"


def test_parts_of_a_layer_are_still_measured_at_every_layer(tiny, beginning):
    found = hs.measure(tiny, text=beginning, map="mlp", **QUICK)
    assert [layer.layer for layer in found.layers] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"map": "model", "layers": [0, 1]}, "layer", "measured once"),
        ({"map": "from:1", "layers": [0]}, "layer", "measured once"),
        ({"map": "model", "per_head": True}, "per_head", "heads are of one"),
        ({"map": "logits"}, "map", "it has model, network, sentence"),
        ({"map": "to:2"}, "map", "layers 0 to 1"),
        ({"map": "layers:1-0"}, "map", "holds no layer"),
    ],
)
def test_what_a_map_of_many_layers_cannot_be_is_refused(settings, field, words, tiny, beginning):
    with pytest.raises(hs.errors.HowsmoothError, match=words) as caught:
        hs.measure(tiny, text=beginning, **QUICK, **settings)
    assert caught.value.field == field


def test_the_layer_at_which_it_begins_may_be_named(tiny, beginning):
    assert hs.measure(tiny, text=beginning, map="from:1", layers=[1], **QUICK).layers[0].layer == 1


@pytest.mark.slow
def test_its_report_is_written(tiny, beginning, tmp_path):
    for name in ("model", "sentence"):
        hs.measure(tiny, text=beginning, map=name, out=tmp_path / "run", **QUICK)
    page = hs.write_report(tmp_path / "run", tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(f"through &#39;{name}&#39;" in page for name in ("model", "sentence"))
