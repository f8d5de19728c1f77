"""The atlas: cards that can be compared, intervals that are those of scipy, tokens as the package reads them."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "docs" / "_ext"), str(ROOT / "tools")]

import atlas  # noqa: E402
import make_atlas  # noqa: E402


@pytest.fixture(scope="module")
def entries():
    return atlas.entries()


def test_there_are_enough_cards_of_one_protocol_and_version(entries):
    assert len(entries) >= 25
    assert sum(entry.source == make_atlas.SCEPTR for entry in entries) == len(make_atlas.OBJECTIVES) == 16
    assert {entry.card.protocol.name for entry in entries} == {"protocol-1"}
    assert len({entry.card.version for entry in entries}) == 1
    assert len({entry.card.model for entry in entries}) == len({entry.card.digest for entry in entries}) == len(entries)
    assert sum(file.stat().st_size for file in (ROOT / "docs" / "atlas").rglob("*.json")) < 1_000_000


def test_every_model_has_a_card_or_a_reason(entries):
    there = {entry.card.model for entry in entries}
    missing = [model.name for model in make_atlas.models() if model.name not in there | atlas.skipped().keys()]
    assert missing == []


def test_models_of_one_family_and_their_twins_read_the_same_text(entries):
    for entry in entries:
        twins = [other for other in entries if other.card.model.startswith(f"{entry.card.model} twin")]
        assert {twin.card.protocol for twin in twins} <= {entry.card.protocol}
        assert {twin.card.sizes["layers"] for twin in twins} <= {entry.card.sizes["layers"]}


def test_a_ratio_has_the_interval_of_welch():
    generator = np.random.default_rng(0)
    these, those = np.exp(generator.normal(1, 2, 7)), np.exp(generator.normal(0, 0.5, 4))
    found = atlas.ratio(these, those)
    expected = stats.ttest_ind(np.log(these), np.log(those), equal_var=False).confidence_interval(0.95)
    assert found.low == pytest.approx(math.exp(expected.low))
    assert found.high == pytest.approx(math.exp(expected.high))
    pairs = atlas.paired(these)
    expected = stats.ttest_1samp(np.log(these), 0).confidence_interval(0.95)
    assert (pairs.low, pairs.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


def test_an_exponent_has_the_interval_of_its_slope():
    value, low, high = atlas.power([1, 2, 4, 8], [3, 6, 12, 24])
    assert (value, low, high) == pytest.approx((1, 1, 1))
    generator = np.random.default_rng(0)
    sizes = np.repeat([16.0, 32.0, 64.0], 400)
    value, low, high = atlas.power(sizes, sizes**0.7 * np.exp(generator.normal(0, 0.3, len(sizes))))
    assert low < 0.7 < high
    assert high - low == pytest.approx(2 * 1.96 * 0.3 / np.log(sizes).std() / math.sqrt(len(sizes)), rel=0.1)


def test_lessons_are_three_and_the_cards_decide_them(entries):
    lessons = atlas.lessons(entries)
    assert len(lessons) == 3
    receptors = [entry for entry in entries if entry.family == "receptors"]

    def groups(name):
        kinds = ("trained", "random twin")
        return [atlas.group(receptors, lambda entry, kind=kind: entry.kind == kind, name) for kind in kinds]

    layer, whole, noise = (atlas.ratio(*groups(name)) for name in ("worst layer", "whole worst", "whole typical"))
    assert str(layer) in lessons[0]
    assert min(groups("worst layer")[0]) > max(groups("worst layer")[1])  # "whatever their objective"
    trained = [entry for entry in receptors if entry.training == "trained: contrastive"]
    twins = [entry for entry in receptors if entry.kind == "random twin"]
    slopes = [
        atlas.power([x.card.sizes["width"] for x in some], [x.of("worst layer") for x in some])
        for some in (trained, twins)
    ]
    assert slopes[0][1] > slopes[1][2]  # "only through training"
    assert 1 < noise.value < whole.value < layer.value
    assert whole.high < layer.low
    assert noise.high < whole.low
    elsewhere = [atlas.paired(list(atlas.others(entries, name).values())) for name in ("whole worst", "whole typical")]
    assert [str(ratio) in lessons[2] for ratio in elsewhere] == [True, True]
    assert elsewhere[0].low < 1 < elsewhere[0].high  # "which may be no change"
    assert elsewhere[1].high < 1  # "less than at initial weights"


def test_tokens_of_receptors_are_embedded_as_the_package_does():
    letters, places = torch.eye(22), torch.eye(6)
    state = {
        "_token_embedder._token_embedding._token_embeddings": torch.cat([torch.zeros(1, 22), letters]),
        "_token_embedder._compartment_embedding._token_embeddings": torch.cat([torch.zeros(1, 6), places]),
    }
    row = make_atlas.embedded(state, ("C", 3, 5, 2))
    assert row.nonzero().flatten().tolist() == [3, 22, 24]  # the fourth letter with MASK and CLS, half way, loop 2
    assert row[22] == 0.5
    assert make_atlas.embedded(state, ("A", 1, 1, 1))[22] == 0.5
    assert make_atlas.embedded(state, None).nonzero().flatten().tolist() == [1]


def test_a_vocabulary_cuts_molecules_and_keeps_what_it_does_not_know():
    words = ["[UNK]", "Cl", "C", "(", ")", ">>", "[O-]", "1"]
    found = make_atlas.Vocabulary(words, make_atlas.SMILES)
    assert found.pieces(found.encode("CCl(C1)>>[O-]N")) == ["C", "Cl", "(", "C", "1", ")", ">>", "[O-]", "[UNK]"]


def test_the_page_holds_every_card(entries, tmp_path):
    page = atlas.write_atlas(tmp_path / "atlas.html").read_text(encoding="utf-8")
    data = json.loads(page.split('id="report-data">')[1].split("</script>")[0])
    assert [row["name"] for row in data["rows"]] == [entry.card.model for entry in entries]
    assert all(lesson.split(":")[0] in page for lesson in atlas.lessons(entries))
