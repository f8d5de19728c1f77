import json
from itertools import pairwise

import pytest
from drawn import rows_of
from measured import grid, measurement, record

import howsmooth as hs
from howsmooth.report.charts.sensitive_tokens import draw as draw_tokens
from howsmooth.report.charts.sensitive_tokens import draw_patches
from howsmooth.report.figures import chart_names, draw, section_of
from howsmooth.report.saving import save_chart


def shown(tokens):
    return rows_of(draw(measurement([record(0, len(tokens), 0)], tokens=tokens), "tokens"))


@pytest.mark.slow
def test_tokens_keep_their_order_and_all_appear():
    tokens = tuple(f"word{i}" for i in range(1024))
    found = measurement([record(0, 1024, 0)], tokens=tokens)
    rows = shown(tokens)
    assert [row["text"] for row in rows] == list(tokens)
    assert [row["share"] for row in rows] == list(found.records[0].answer.sensitivity)
    places = [(row["line"], row["start"]) for row in rows]
    assert places == sorted(set(places))
    assert all(row["end"] <= 90 for row in rows)
    assert all(one["end"] < two["start"] for one, two in pairwise(rows) if one["line"] == two["line"])


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        (("[CLS]", "mov", "##ing", "##", "."), "[CLS] moving## ."),
        (("Ġthe", "Ġmov", "ing", "Ċ", "Ġ", "Ġcaf", "Ã©", "âĢĻ"), "the moving⏎ ␣ café’"),
        (("<s>", "▁the", "▁mov", "ing", "<0x0A>", "▁"), "<s> the moving⏎ ␣"),
        (("a", "b\x00c", "\n", "\t", "文字"), "a b⟨U+0000⟩c ⏎ ⇥ 文字"),
    ],
    ids=["WordPiece", "bytes", "SentencePiece", "words"],
)
def test_pieces_of_every_vocabulary_are_readable(tokens, line):
    text, column = "", 0
    for row in shown(tokens):
        text += " " * (row["start"] - column) + row["text"]
        column = row["end"]
    assert text == line


def test_a_wide_character_takes_two_columns_and_a_combining_one_none():
    assert [row["end"] - row["start"] for row in shown(("文字", "e\u0301"))] == [4, 1]


@pytest.mark.slow
def test_a_token_cannot_end_the_script_it_is_written_into(tmp_path):
    found = measurement([record(0, 3, 0)], tokens=("</script>", "<!--", "<script>"))
    save_chart(draw(found, "tokens"), tmp_path / "tokens.html")
    _before, there, rest = (tmp_path / "tokens.html").read_text(encoding="utf-8").partition('id="specification">')
    assert there
    spec, _end, _after = rest.partition("</script>")
    assert "<" not in spec
    assert [row["text"] for row in json.loads(spec)["data"]["values"]] == ["</script>", "<!--", "<script>"]


def test_the_tokens_of_the_layer_with_the_largest_constant_are_shown():
    title = draw(measurement(grid()), "tokens").to_dict()["title"]
    assert title["text"] == "Layer 1: which tokens to move (window 0, 16 tokens)"


def test_a_layer_whose_window_was_not_measured_is_refused():
    with pytest.raises(hs.errors.AssumptionError, match="layer 7") as refused:
        draw_tokens(section_of(measurement(grid())), 7)
    assert refused.value.field == "layer"
    assert "sensitive_tokens" not in chart_names(section_of(measurement(grid(), tokens=())))


def test_the_patches_of_a_picture_are_a_picture_and_other_tokens_are_said():
    records = [record(layer, 17, i, source="images", whole=True) for layer in (0, 1) for i in (0, 1)]
    found = measurement(records, tokens=(), openings={(17, 0): ("cat.png",)})
    assert "sensitive_patches" in chart_names(section_of(found))
    drawn = draw(found, "patches")
    shares = records[2].answer.sensitivity
    rows = rows_of(drawn)
    assert [(row["row"], row["column"], row["share"]) for row in rows] == [
        (i // 4, i % 4, share) for i, share in enumerate(shares[1:])
    ]
    title = drawn.to_dict()["title"]
    assert title["text"] == "Layer 1: which patches to move (cat.png, 4 × 4 patches)"
    assert title["subtitle"].startswith("5 patches hold")
    assert "sensitive_patches" not in chart_names(section_of(measurement(grid())))
    assert {row["layer"] for row in rows_of(draw_patches(section_of(found), None))} == {0, 1}
