"""``howsmooth budget``: the answer first, records that are kept, recipes for other tools, and what it refuses."""

import json
import re

import pytest
import torch
import transformers
from small import SMALL, beginning, folder_model, module, save_model, tokenizer

from howsmooth.report.charts.error_budgets import draw_tokens
from howsmooth.report.sections import Section
from howsmooth.studies.runs.run import read_run

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

SIZES = ("--length", "4", "--sequences", "2", "--passes", "3", "--out", "run")


@pytest.fixture
def budget(howsmooth, folder_model, beginning):
    return lambda *options: howsmooth("budget", folder_model, "--text", beginning, *SIZES, *options)


@pytest.fixture(scope="session")
def decoder(tokenizer, tmp_path_factory):
    """Return a folder with a small language model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "decoder"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
def test_a_budget_is_told_kept_drawn_and_its_recipes_are_written(decoder, beginning, howsmooth, tmp_path):
    def budget(*options):
        return howsmooth("budget", decoder, "--text", beginning, *SIZES, *options)

    options = ("--scheme", "int3,int8", "--size", "0.4")
    done = budget(*options)
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "int3 everywhere costs" in said
    assert "one by one, half of the cost sits in" in said
    assert said.index("recipes of this size by rules of thumb: uniform ") < said.index("int3 everywhere costs")
    assert "over windows; run truly" in said
    assert "The most likely token changes at" in said
    assert "tokens that suffer most" in said
    assert "measured on held-out text" in said
    assert ", weight error " in said
    run = read_run(tmp_path / "run")
    assert len(run.records) == 2 * 2 + 1
    assert json.loads((tmp_path / "run" / "recipe-size-0.4.json").read_text(encoding="utf-8"))["size"] <= 0.4
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Half of what int3 costs sits in" in page
    assert "Size and cost of recipes" in page
    assert re.search(r"Of \d+ positions, \d+ of them bears? ", page)
    (bars,) = draw_tokens(Section(name="budget", title="", records=run.records)).to_dict()["spec"]["layer"]
    across, up = bars["encoding"]["x"], bars["encoding"]["y"]
    assert across["scale"]["domain"] == [-0.5, 7.5]  # no position is negative
    assert not re.search(r"0\.0000|e-", up["axis"]["labelExpr"].split("[indexof")[0])
    recipe, coarse, fine = json.loads(budget(*options, "--json").out)["budgets"]
    assert len(coarse["tokens"]) == 8
    assert coarse["measured"] == pytest.approx(sum(token["kl"] for token in coarse["tokens"]) / 8)
    assert (coarse["scheme"], fine["scheme"], recipe["size"]) == ("int3", "int8", 0.4)
    assert len(read_run(tmp_path / "run").records) == 5
    # another scheme needs no pass of those that are there
    assert len(json.loads(budget("--scheme", "int3,bf16", "--json").out)["budgets"]) == 2
    assert len(read_run(tmp_path / "run").records) == 7
    assert "int8 everywhere costs" in " ".join(howsmooth("show", "run").out.split())
    assert howsmooth("figure", "run", "frontier", "--out", "frontier.svg").code == 0


@pytest.mark.slow
def test_kernels_have_no_part_in_the_size_of_a_recipe(decoder, beginning, howsmooth, tmp_path):
    sizes = ("--scheme", "int3,int8,kernel:bf16", "--size", "0.5", "--length", "8", "--sequences", "1", "--passes", "2")
    done = howsmooth("budget", decoder, "--text", beginning, *sizes, "--out", "run")
    assert done.code == 0, done.err
    recipe = json.loads((tmp_path / "run" / "recipe-size-0.5.json").read_text(encoding="utf-8"))
    assert 0.19 < recipe["size"] <= 0.5
    assert set(recipe["schemes"].values()) <= {"int3", "int8", "keep"}
    alone = howsmooth("budget", decoder, "--text", beginning, "--scheme", "kernel:bf16", *sizes[4:], "--out", "kernels")
    assert alone.code == 0, alone.err


def test_estimates_are_verified_and_another_checkpoint_is_compared(budget, folder_model):
    done = budget("--verify", "2", "--against", folder_model, "--scheme", "int3")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "4 errors run truly, rank correlation" in said
    assert "by half" in said
    assert "the worst of its size would cost" in said
    found = json.loads(budget("--verify", "2", "--against", folder_model, "--scheme", "int3", "--json").out)["budgets"]
    schemes, same = found[:2], found[3]
    assert {each["scheme"] for each in schemes} == {"int3", f"against:{folder_model}"}
    assert same["rank_correlation"] is None  # no difference from itself
    assert max(same["errors"]["measured"]) == 0
    real = found[2]["errors"]
    assert len(real["names"]) == 4
    assert real["predicted"][0] == max(real["predicted"])


@pytest.mark.slow
def test_classifiers_tell_of_labels_and_encoders_of_their_embeddings(howsmooth, tmp_path):
    sizes = ("--length", "8", "--sequences", "2", "--passes", "2", "--scheme", "int2")
    done = howsmooth("budget", "reviews", *sizes, "--out", "labels")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "nats an input" in said
    # the classifier is in no layer
    assert '"none"' in (tmp_path / "labels" / "report.html").read_text(encoding="utf-8")
    assert "Margins go from" in said
    assert "of 2 labels" in said
    assert "tokens that suffer" not in said
    found = json.loads(howsmooth("budget", "reviews", *sizes, "--out", "labels", "--json").out)["budgets"][0]
    assert [len(window["after"]) for window in found["margins"]] == [1, 1]
    assert "[CLS]" in read_run(tmp_path / "labels").records[0].answer.tokens
    done = howsmooth("budget", "minilm", *sizes, "--out", "embeddings")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert " of cosine distance (" in said
    assert "Embeddings, of length one, move by" in said
    assert "1 − cosine is half the square of that" in said


@pytest.mark.slow
def test_no_thread_reads_weights_that_another_has_rounded(decoder, beginning, howsmooth, tmp_path):
    sizes = ("--text", beginning, "--length", "4", "--sequences", "6", "--passes", "2", "--scheme", "int2,int3")
    answers = []
    for threads in ("1", "4"):
        done = howsmooth("budget", decoder, *sizes, "--size", "0.4", "--threads", threads, "--out", threads)
        assert done.code == 0, done.err
        answers.append([record.answer for record in read_run(tmp_path / threads).records])
    for alone, beside in zip(*answers, strict=True):
        truth = [getattr(found, "truth", None) or (found.measured, *found.by_rules) for found in (alone, beside)]
        assert truth[1] == pytest.approx(truth[0], rel=1e-4)


@pytest.mark.slow
def test_weights_may_stay_in_their_files(decoder, beginning, howsmooth, tmp_path):
    sizes = ("--text", beginning, *SIZES[:-2], "--scheme", "int3", "--size", "0.4", "--verify", "1")
    there, here = (howsmooth("budget", decoder, *sizes, how, "--out", how) for how in ("--no-streamed", "--streamed"))
    assert (there.code, here.code) == (0, 0)
    assert "come in block by block" in " ".join(here.err.split())
    plain, streamed = (read_run(tmp_path / how).records for how in ("--no-streamed", "--streamed"))
    for one, other in zip(streamed, plain, strict=True):
        assert type(one.answer) is type(other.answer)
        if hasattr(one.answer, "truth"):
            assert one.answer.truth == pytest.approx(other.answer.truth, rel=1e-4)
            assert torch.tensor(one.answer.products).allclose(torch.tensor(other.answer.products), rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheme", "int9"), "there is no scheme 'int9'"),
        (("--passes", "1"), "--passes must be at least 2, got 1"),
        (("--size", "0"), "--size must be positive, got 0.0"),
        (
            ("--size", "0.5", "--scheme", "kernel:bf16"),
            "only computed values, which take no space, are rounded here (kernel:bf16)",
        ),
        (("--verify", "-1"), "--verify must be at least 0, got -1"),
        (("--against", "no/such/folder"), "no/such/folder"),
        (("--length", "4000"), "4000"),
        (("--sequences", "100000"), "tokens, enough for"),
    ],
)
def test_what_leads_nowhere_is_refused_in_one_line(options, words, budget):
    done = budget(*options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_checkpoint_of_another_shape_is_refused_before_any_pass(budget, tmp_path):
    transformers.BertModel(transformers.BertConfig(**SMALL | {"hidden_size": 24})).save_pretrained(tmp_path / "other")
    done = budget("--against", str(tmp_path / "other"))
    assert (done.code, done.out) == (2, "")
    *_saving, refusal = done.err.splitlines()
    assert "the other checkpoint must be of the same model" in refusal
