"""Which words are fragile, from records that were never computed."""

import json

from drawn import certificates
from rich.console import Console

from howsmooth.studies.kinds.certified_radii import summarise_certificates


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


def test_norms_and_places_are_kept_apart():
    from msgspec.structs import replace

    records = certificates(together=False)
    other = [replace(r, ask=replace(r.ask, metric="entries", at="attention", layer=2)) for r in records]
    found = summarise_certificates([*records, *other])
    assert [(each.norm, each.place) for each in found] == [("ℓ₂", "embeddings"), ("ℓ∞", "what enters layer 2")]
