"""``howsmooth certify``: a line for each word, records that are kept, synonyms, and what it refuses."""

import json

import pytest
from sentences import save_classifier, small_classifier
from small import folder_model, module, save_model, tokenizer

import howsmooth as hs
from howsmooth.studies.kinds.certified_radii import _nearest
from howsmooth.studies.runs.run import read_run

__all__ = ["folder_model", "module", "save_classifier", "save_model", "small_classifier", "tokenizer"]

TEXT = "a fine film"


@pytest.fixture
def certify(howsmooth, small_classifier, loaded_once):
    return lambda *options, model=small_classifier: howsmooth("certify", model, "--out", "run", *options)


@pytest.fixture(scope="session")
def one_class(save_classifier):
    return save_classifier(labels=1)


@pytest.fixture(scope="session")
def predicted(small_classifier):
    """Return which class wins, and which does not."""
    certificate = hs.certify(small_classifier, TEXT, word=1)
    winner = certificate.labels[certificate.predicted]
    return winner, next(label for label in certificate.labels if label != winner)


@pytest.mark.slow
def test_every_word_is_told_kept_shown_drawn_and_exported(certify, howsmooth, tmp_path):
    done = certify("--sentence", TEXT)
    assert (done.code, done.err) == (0, "")
    assert "cannot change that" in done.out
    assert done.out.startswith(howsmooth("show", "run").out)
    run = read_run(tmp_path / "run")
    records = {r.answer.spelled: r for r in run.records}
    assert sorted(records) == ["a", "film", "fine"]
    assert all(0 < r.answer.certified < (r.answer.attacked or 1e9) for r in run.records)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Certified and attacked radius" in page
    assert "a fine film" in page
    # one word more: the others are there
    again = json.loads(certify("--sentence", TEXT, "--word", "film,0", "--json").out)
    (found,) = again["certificates"]
    assert [word["places"] for word in found["words"]] == [[0], [3]]
    assert found["words"][1]["certified"] == records["film"].answer.certified
    assert len(read_run(tmp_path / "run").records) == 4
    assert "spelled" in howsmooth("show", "run", "--records").out
    assert howsmooth("export", "run", "--to", "csv").code == 0
    assert howsmooth("figure", "run", "words", "--out", "words.svg").code == 0


@pytest.mark.slow
def test_words_move_together_in_other_norms_and_between_layers(certify):
    options = ("--together", "--metric", "entries", "--at", "attention", "--layer", "1", "--json")
    (found,) = json.loads(certify("--sentence", TEXT, *options).out)["certificates"]
    assert (found["metric"], found["at"], found["layer"]) == ("entries", "attention", 1)
    (word,) = found["words"]
    assert word["places"] == [1, 2, 3]
    assert word["certified"] > 0
    assert "layer 0" not in word["slack"]


@pytest.mark.slow
def test_sentences_of_another_class_are_said_and_the_others_certified(certify, tmp_path):
    (tmp_path / "sentences.txt").write_text("dull film\n\ngripping film\n", encoding="utf-8")
    done = certify("--sentences", "sentences.txt", "--label", "good", "--word", "film", model="reviews")
    assert done.code == 0
    assert done.err == "'dull film' is classified as 'bad', not 'good': misclassified, so not certified.\n"
    wrong, right = sorted(read_run(tmp_path / "run").records, key=lambda record: record.ask.sentence)
    assert (right.ask.sentence, right.answer.spelled, right.answer.predicted) == ("gripping film", "film", "good")
    assert (wrong.ask.sentence, wrong.answer.predicted, wrong.answer.places) == ("dull film", "bad", ())
    assert done.out.startswith("Clean accuracy 50.0 %, certified 50.0 % and under attack 50.0 % at ε = 0.0")


def test_synonyms_are_counted_and_a_combination_that_changes_the_prediction_is_told(certify, tmp_path):
    (tmp_path / "synonyms.json").write_text('{"film": ["movie", "mess"], "a": ["the"]}', encoding="utf-8")
    done = certify("--sentence", TEXT, "--synonyms", "synonyms.json", "--json")
    (found,) = json.loads(done.out)["sentences"]
    assert found["combinations"] == 6
    assert found["certified"] == (found["covered"] == 6) == (found["changed"] is None)
    assert done.code == int(not found["certified"])
    told = certify("--sentence", TEXT, "--synonyms", "synonyms.json")
    assert "6 combinations" in told.out
    assert not (tmp_path / "run").exists()


def test_a_proof_is_saved_and_checked(certify, howsmooth, small_classifier, tmp_path):
    done = certify("--sentence", TEXT, "--word", "film,1", "--save", "proof.json")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("Saved and checked: proof.json.\n")
    checked = howsmooth("check", "proof.json", "--model", small_classifier)
    assert checked.code == 0
    assert checked.out.count("checked: class ") == 2
    records = read_run(tmp_path / "run").records
    claims = json.loads((tmp_path / "proof.json").read_text())["claims"]
    assert {tuple(claim["moved"]): claim["radius"] for claim in claims} == {
        r.answer.places: pytest.approx(r.answer.certified, rel=0.1) for r in records
    }
    assert all(c["radius"] <= r.answer.certified for c in claims for r in records if [*r.answer.places] == c["moved"])
    again = certify("--sentence", TEXT, "--word", "film,1", "--save", "proof.json", "--json")
    assert again.err == "Saved and checked: proof.json.\n"
    assert json.loads(again.out)


def test_a_proof_that_does_not_check_is_not_left(certify, howsmooth, tmp_path, monkeypatch):
    (tmp_path / "proof.json").write_text("before", encoding="utf-8")
    done = certify("--sentence", TEXT, "--word", "1", "--at", "attention", "--save", "proof.json")
    assert done.code == 1
    assert done.err.startswith("Not saved, cannot check: the weights are others")
    assert (tmp_path / "proof.json").read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sentence", TEXT, "--save", "proof.txt"), "saved as .json, got 'proof.txt'"),
        (("--sentence", TEXT, "--save", "nowhere/proof.json"), "nowhere"),
        (("--sentence", TEXT, "--save", "proof.json", "--metric", "sum"), "proof files know the metric total"),
        (("--sentence", TEXT, "--save", "proof.json", "--dry-run"), "leave out --dry-run"),
        (("--sentence", TEXT, "--save", "proof.json", "--synonyms", "absent.json"), "leave out --synonyms"),
        (("--sentences", "set.txt", "--save", "proof.json"), "one sentence: give --sentence"),
    ],
)
def test_what_cannot_be_saved_is_said_before_any_work(certify, tmp_path, options, said):
    (tmp_path / "set.txt").write_text("a film\na fine film\n", encoding="utf-8")
    check_refusal(certify(*options), said, tmp_path)


def check_refusal(done, said, tmp_path):
    assert done.code == 2, done.out + done.err
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give either --sentence"),
        (("--sentence", "  "), "--sentence must hold words, got nothing"),
        (("--sentence", TEXT, "--sentences", "sentences.txt"), "give either --sentence"),
        (("--sentences", "absent.txt"), "not there"),
        (("--sentence", TEXT, "--metric", "token"), "proven in the metrics total, entries, sum"),
        (("--sentence", TEXT, "--at", "mlp"), "embeddings or attention"),
        (("--sentence", TEXT, "--layer", "1"), "embeddings come before all layers"),
        (("--sentence", TEXT, "--at", "attention", "--layer", "9"), "layers 0 to 1, got 9"),
        (("--sentence", TEXT, "--word", "99"), "tokens 0 to 4, got 99"),
        (("--sentence", TEXT, "--word", "-1"), "tokens 0 to 4, got -1"),
        (("--sentence", TEXT, "--word", "zebra"), "no word 'zebra'; its tokens are 1 a, 2 fine, 3 film"),
        (("--sentence", TEXT, "--label", "LABEL_7"), "no class 'LABEL_7'; did you mean"),
        (("--sentence", 30 * "film "), "positions for 20 tokens, and the sentence has 32"),
        (("--sentence", __file__), "is a file, not a sentence"),
        (("--sentence", "zxcv qwerty"), "unknown to the tokenizer"),
        (("--sentence", TEXT, "--seed", "-1"), "seed must be"),
        (("--sentence", TEXT, "--synonyms", "absent.json"), "not there"),
        (("--sentence", TEXT, "--synonyms", "absent.json", "--word", "1"), "leave out --word"),
    ],
)
def test_mistakes_are_one_line_before_any_work(certify, tmp_path, options, said):
    check_refusal(certify(*options), said, tmp_path)


def test_a_sentence_that_is_misclassified_is_said_and_not_certified(certify, predicted, tmp_path):
    winner, other = predicted
    done = certify("--sentence", TEXT, "--label", other)
    check_refusal(done, f"is classified as {winner!r}, not {other!r}: misclassified", tmp_path)
    (tmp_path / "synonyms.json").write_text('["movie"]', encoding="utf-8")
    done = certify("--sentence", TEXT, "--label", other, "--synonyms", "synonyms.json")
    check_refusal(done, f"is classified as {winner!r}, not {other!r}: misclassified", tmp_path)


def labelled(folder, *rows):
    (folder / "sentences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return "--sentences", "sentences.jsonl"


@pytest.mark.slow
def test_a_label_in_a_file_is_the_class_that_should_win(certify, predicted, tmp_path):
    winner, other = predicted
    one, two = TEXT.title(), TEXT.upper()  # the same to the tokenizer
    rows = [{"text": TEXT, "label": other}, {"text": one, "label": int(winner.removeprefix("LABEL_"))}]
    rows += 2 * [{"text": two, "label": winner}]
    done = certify(*labelled(tmp_path, *rows), "--word", "1")
    assert done.code == 0
    said = f"{TEXT!r} is classified as {winner!r}, not {other!r}: misclassified, so not certified.\n"
    assert done.err == f"{said}1 line repeated: every sentence counts once.\n"
    found = {(r.ask.sentence, r.ask.expected, r.answer.certified > 0) for r in read_run(tmp_path / "run").records}
    assert found == {(TEXT, other, False), (one, winner, True), (two, winner, True)}
    assert done.out.startswith("Clean accuracy 66.7 %, certified ")


def test_synonyms_heed_the_labels_in_a_file(certify, predicted, tmp_path):
    winner, other = predicted
    (tmp_path / "synonyms.json").write_text('{"film": ["movie"]}', encoding="utf-8")
    file = labelled(tmp_path, {"text": TEXT, "label": winner}, {"text": TEXT, "label": other})
    done = certify(*file, "--synonyms", "synonyms.json", "--json")
    assert done.err == f"{TEXT!r} is classified as {winner!r}, not {other!r}: misclassified, so not certified.\n"
    assert [found["text"] for found in json.loads(done.out)["sentences"]] == [TEXT]


@pytest.mark.parametrize("options", [(), ("--synonyms", "synonyms.json")], ids=["words", "synonyms"])
def test_labels_that_no_class_has_are_refused_before_any_work(certify, small_classifier, tmp_path, options):
    (tmp_path / "synonyms.json").write_text('{"film": ["movie"]}', encoding="utf-8")
    for label, said in (("LABEL_7", "no class 'LABEL_7'; did you mean"), (2, "no class 2"), (-1, "no class -1")):
        file = labelled(tmp_path, {"text": TEXT, "label": 0}, {"text": TEXT, "label": label})
        check_refusal(certify(*file, *options), f"'sentences.jsonl', line 2: {small_classifier!r} has {said}", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("set.csv", "words,label\na fine film,0\n", "line 1: a table of sentences names its columns"),
        ("set.csv", "", "line 1: a table of sentences names its columns"),
        ("set.csv", "text,sentence\na,b\n", "line 1: a table of sentences names its columns"),
        ("set.csv", "text,label\na fine, funny film,0\n", "line 2: there are 2 columns, got 3 cells"),
        ("set.csv", 'id,text,label\n0,"a\nfilm",0\n1,,0\n', "line 4: we need a string that is not empty"),
        ("set.csv", 'text\n"a film\n', "line 2: unexpected end of data"),
        ("set.csv", "text,label\na fine film,none\n", "line 2: "),
        ("set.tsv", "text\tlabel\n" + 30 * "film " + "\t0\n", "line 2: "),
        ("set.jsonl", '{"text": "a film", "label": 0}\n"a fine film"\n', "line 2: there is no label, and other"),
        ("set.jsonl", '{"text": "a film", "label": 0}\n{"text": \n', "line 2: a line must be JSON by itself"),
    ],
)
def test_mistakes_in_a_test_set_are_told_with_their_line(certify, tmp_path, name, content, said):
    (tmp_path / name).write_text(content, encoding="utf-8")
    check_refusal(certify("--sentences", name), f"'{name}', {said}", tmp_path)


@pytest.mark.slow
def test_a_table_is_a_test_set_in_its_order_with_other_columns_left_out(certify, predicted, small_classifier, tmp_path):
    winner, other = predicted
    rows = f'id,label,text\n7,{other},"fine, not dull"\n8,{winner},a film\n9,{winner},{TEXT}\n'
    (tmp_path / "set.csv").write_text(rows, encoding="utf-8")
    done = certify("--sentences", "set.csv", "--word", "1", "--json")
    (found,) = json.loads(done.out)["certificates"]
    texts = ["fine, not dull", "a film", TEXT]
    assert [each["text"] for each in found["sentences"]] == texts
    assert found["total"] == 3
    assert found["clean"] == sum(each["expected"] == each["predicted"] for each in found["sentences"])
    for at in found["curve"]:
        right = [each["words"][0] for each in found["sentences"] if each["words"]]
        assert at["certified"] == sum(word["certified"] >= at["eps"] for word in right)
        assert at["attacked"] == sum(word["attacked"] is None or word["attacked"] > at["eps"] for word in right)
    same = hs.certified_accuracy(small_classifier, texts[1:], labels=[winner, winner])
    for mine, theirs in zip(same.sentences, found["sentences"][1:], strict=True):
        assert (mine.text, mine.right) == (theirs["text"], bool(theirs["words"]))
        assert [word.certified for word in mine.words][:1] == [word["certified"] for word in theirs["words"]]
    with pytest.raises(hs.errors.AssumptionError, match="there are 2 sentences, got 1 label"):
        hs.certified_accuracy(small_classifier, texts[1:], labels=[winner])
    (word,) = found["sentences"][-1]["words"]
    assert word["nearest"] > 0
    assert word["nearest_word"] != word["spelled"] == "a"
    assert word["norm"] == pytest.approx(
        hs.certify(small_classifier, TEXT, word=1).embeddings[1].norm().item(), rel=1e-6
    )


def test_rows_of_a_table_behind_the_vocabulary_are_no_nearest_word(small_classifier):
    model = hs.load(small_classifier)
    words, token = model.require_tokenizer().size, model.require_tokenizer().encode("film")[0]
    table = model.module.resize_token_embeddings(words + 1, mean_resizing=False).weight.data
    table[words] = table[token] + 1e-3
    found = _nearest(model, token, 2.0)
    assert found["nearest"] > 1e-2
    assert found["nearest_word"] != "None"


def test_a_label_for_all_beside_labels_of_their_own_is_refused(certify, tmp_path):
    file = labelled(tmp_path, {"text": TEXT, "label": 1})
    check_refusal(certify(*file, "--label", "0"), "leave out one", tmp_path)


def test_what_a_line_holds_besides_is_refused_and_not_ignored(certify, tmp_path):
    file = labelled(tmp_path, {"text": TEXT, "lable": "bad"})
    check_refusal(certify(*file), "line 1: an object holds a sentence as 'text' or 'sentence'", tmp_path)


def test_a_model_without_a_classifier_is_refused(certify, folder_model, tmp_path):
    check_refusal(certify("--sentence", TEXT, model=folder_model), "has no classifier", tmp_path)


def test_a_classifier_of_one_class_is_refused(certify, one_class, tmp_path):
    check_refusal(certify("--sentence", TEXT, model=one_class), "has one class", tmp_path)


@pytest.mark.slow
def test_a_study_file_can_ask_for_certificates(howsmooth, small_classifier, tmp_path):
    (tmp_path / "study.toml").write_text(
        f'kind = "certificate"\nmodel = "{small_classifier}"\nsentences = ["{TEXT}", "not funny"]\n'
        'metrics = ["sum", "total"]\n',
        encoding="utf-8",
    )
    done = howsmooth("sweep", "study.toml", "--out", "run")
    assert (done.code, done.err) == (0, "")
    records = read_run(tmp_path / "run").records
    assert {(r.ask.sentence, r.ask.metric, r.answer.places) for r in records} == {
        (text, metric, places)
        for text, places in ((TEXT, (1, 2, 3)), ("not funny", (1, 2)))
        for metric in ("sum", "total")
    }
