"""Which words are fragile, from records that were never computed."""

import json

import pytest
from drawn import certificates, rows_of, title_of
from msgspec.structs import replace
from rich.console import Console

from howsmooth.report.charts.attacks_and_certificates import PROVEN, draw_accuracy, draw_words, table_accuracy
from howsmooth.report.sections import Section
from howsmooth.studies.runs.certified_accuracy import certified_sets, summarise, summarise_certificates


def test_a_sentence_says_what_is_proven_of_every_word_and_which_one_is_fragile():
    (found,) = summarise_certificates(certificates(together=False))
    assert [word.spelled for word in found.words] == ["a", "gripping", "film"]
    assert [word.fragile for word in found.words] == [True, False, False]
    assert "less than 0.01 cannot change that, whichever it is" in found.sentence
    assert found.sentence.endswith("moving 'a' by 0.1 does.")


def test_words_that_move_together_come_last_and_are_not_fragile():
    (found,) = summarise_certificates(reversed(certificates()))
    assert found.words[-1].places == (1, 2, 3)
    assert not found.words[-1].fragile


def test_what_is_not_found_is_said_and_is_null_in_json():
    (found,) = summarise_certificates(certificates(attacked=False))
    assert "nothing that does was found" in found.sentence
    assert not any(word.fragile for word in found.words)
    told = json.loads(found.to_json())
    assert [word["attacked"] for word in told["words"]] == [None] * 4
    console = Console(width=60)
    with console.capture() as shown:
        console.print(found)
    assert "none found" in shown.get()


def test_the_legend_speaks_of_the_columns_that_are_shown():
    (found,) = summarise_certificates(certificates(together=False))
    for width, there in ((200, True), (45, False)):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(found)
        said = " ".join(shown.get().split())
        assert "Certified: proven, no shorter move" in said
        for column in ("linear", "loosest stage"):
            assert (f" {column} " in said) == (f"{column.capitalize()}: " in said) == there, (width, column)


def test_norms_and_places_are_kept_apart():
    records = certificates(together=False)
    other = [replace(r, ask=replace(r.ask, metric="entries", at="attention", layer=2)) for r in records]
    found = summarise_certificates([*records, *other])
    assert [(each.norm, each.place) for each in found] == [("ℓ₂", "embeddings"), ("ℓ∞", "what enters layer 2")]


def a_set(sizes, *, expected="good", wrong=0):
    """Return a test set whose sentences have these certified radii, attacked at ten times as far."""
    records = []
    for i, size in enumerate(sizes):
        for r in certificates(words=(f"word{i}", "film"), together=False, attacked=size < 0.5, scale=size / 0.01):
            answer = replace(r.answer, attacked=r.answer.attacked and 10 * r.answer.certified, norm=2.0, nearest=0.5)
            records.append(replace(r, ask=replace(r.ask, expected=expected), answer=answer))
    for i in range(wrong):
        (r,) = certificates(words=(f"wrong{i}",), together=False)
        answer = replace(r.answer, spelled="", places=(), certified=0.0, attacked=None, predicted="bad")
        records.append(replace(r, ask=replace(r.ask, word=(), expected=expected), answer=answer))
    return records


def test_a_test_set_counts_what_is_right_what_is_proven_and_what_no_attack_changed():
    records = a_set([0.003, 0.02, 0.05, 0.6], wrong=1)
    (found,) = summarise(records)
    assert (len(found.sentences), found.clean, found.labelled) == (5, 4, True)
    assert [each.certified for each in found.sentences] == pytest.approx([0.003, 0.02, 0.05, 0.6, 0.0])
    # at the radius itself it is proven; an attack of the same size changes the class
    for eps, certified, attacked in ((0.003, 4, 4), (0.02, 3, 4), (0.03, 2, 3), (0.2, 1, 2), (0.5, 1, 1), (9.0, 0, 1)):
        at = found.at(eps)
        assert (at.certified, at.attacked) == (certified, attacked), eps
    assert [at.eps for at in found.curve] == [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    assert found.headline == found.at(0.05)
    assert found.sentence == (
        "Clean accuracy 80.0 %, certified 40.0 % and under attack 60.0 % at ε = 0.05: reviews on 5 sentences, "
        "one word moves, ℓ₂ of embeddings; 1 misclassified and not certified."
    )
    assert [word.spelled for _each, word in found.fragile] == ["word0", "film", "word1", "film", "word2"]
    told = json.loads(found.to_json())
    assert (told["total"], told["clean"], len(told["sentences"])) == (5, 4, 5)
    assert told["curve"][0] == {"eps": 0.002, "certified": 4, "attacked": 4}
    console = Console(width=70)
    with console.capture() as shown:
        console.print(found)
    assert "40.0 % (2)" in shown.get()
    assert "Under attack: so many keep it in every attack" in " ".join(shown.get().split())
    assert "half of what is classified well" in found._repr_html_()
    assert "word by word" not in shown.get()
    assert "<table" in found._repr_html_()
    assert found.sentences[-1].sentence.endswith("not 'good': misclassified, so not certified.")


def test_sentences_without_labels_have_no_clean_accuracy_and_one_that_is_alone_stands_for_itself():
    (found,) = summarise(a_set([0.01, 0.02], expected=""))
    assert found.sentence.startswith("Certified 50.0 % and under attack 100.0 % at ε = 0.02")
    (alone,) = summarise(a_set([0.01], expected=""))
    assert alone.sentence.startswith("'word0 film' is classified as 'good'")
    (hopeless,) = certified_sets(summarise_certificates(a_set([], wrong=2)))
    assert (hopeless.curve, hopeless.headline) == ([], None)
    assert hopeless.sentence.startswith("Clean accuracy 0.0 %: reviews on 2 sentences")


def test_the_curve_is_drawn_with_counts_and_a_word_without_a_flip_has_one_point():
    records = tuple(a_set([0.003, 0.02, 0.6], wrong=1))
    drawn = Section(name="certificate", title="", records=records)
    rows = rows_of(draw_accuracy(drawn))
    assert {row["series"] for row in rows} == {"clean", "attacked: no flip found", "certified: no flip possible"}
    assert {row["count"] for row in rows if row["x"] == 0.02} == {"3 of 4", "2 of 4"}
    assert len(table_accuracy(drawn).rows) == len(rows) / 3
    (found,) = summarise(records)
    assert found.sentence not in title_of(draw_accuracy(drawn))
    words = [row for row in rows_of(draw_words(drawn)) if row["panel"].startswith("word2")]
    assert [row.get("series") for row in words if row["word"].startswith("film")] == [None, PROVEN]
    assert not any("to" in row for row in words)
