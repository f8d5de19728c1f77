"""``howsmooth attack``: a line for each radius and method, records that are kept, and what it refuses."""

import json

import pytest
from small import beginning, folder_model, module, save_model, tokenizer

from howsmooth.studies.runs.run import read_run

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

SIZES = ("--lengths", "4", "--sequences", "2", "--budget", "20", "--out", "run")


@pytest.fixture
def attack(howsmooth, folder_model, beginning, loaded_once):
    return lambda *options: howsmooth("attack", folder_model, "--text", beginning, *SIZES, *options)


@pytest.mark.slow
def test_an_attack_is_told_line_by_line_kept_shown_drawn_and_exported(attack, howsmooth, tmp_path):
    options = ("--layer", "1", "--eps", "0.01,3", "--metric", "token", "--method", "singular,ascent", "--no-bounded")
    done = attack(*options)
    assert (done.code, done.err) == (0, "")
    assert "attained / ε" in done.out
    assert "10 %" in " ".join(done.out.split())
    assert "Attained: " in done.out
    assert "Predicted: " in done.out
    assert "Flips: " not in done.out
    assert done.out.startswith(howsmooth("show", "run").out)
    run = read_run(tmp_path / "run")
    assert len(run.records) == 2 * 2 * 2
    assert all(r.answer.attained > 0 for r in run.records)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "times what the derivative predicts" in page
    again = json.loads(attack(*options, "--json").out)
    (found,) = again["attacks"]
    assert [(line["eps"], line["products"] <= 20) for line in found["lines"]] == [(0.01, True)] * 2 + [(3.0, True)] * 2
    assert len(read_run(tmp_path / "run").records) == 8
    assert "products" in howsmooth("show", "run", "--records").out
    assert howsmooth("export", "run", "--to", "csv").code == 0
    assert howsmooth("figure", "run", "attained", "--out", "attained.svg").code == 0


@pytest.mark.slow
def test_a_whole_model_is_attacked_too_and_nothing_is_above_a_ceiling(attack, tmp_path):
    done = attack("--map", "sentence", "--eps", "0.1", "--method", "ascent")
    assert (done.code, done.err) == (0, "")
    assert ", sentence, 4 tokens" in " ".join(done.out.split())
    title, _, _ = (tmp_path / "run" / "report.html").read_text(encoding="utf-8").partition("</h1>")
    assert "layer" not in title.rpartition("<h1")[2]
    assert attack("--layer", "0", "--eps", "0.1,1", "--method", "ascent").code == 0
    records = read_run(tmp_path / "run").records
    assert {r.ask.map for r in records} == {"sentence", "attention"}
    for r in records:
        assert (r.answer.ceiling is None) == (r.ask.map == "sentence")
        assert r.answer.ceiling is None or r.answer.attained <= r.answer.ceiling


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--eps", "0"), "eps must be positive"),
        (("--eps", "1,-2"), "eps must be positive"),
        (("--eps", "nan"), "eps must be positive"),
        (("--eps", "one"), "takes numbers"),
        (("--method", "ascend"), "did you mean ascent"),
        (("--metric", "l2"), "no metric 'l2'"),
        (("--budget", "7"), "at least 8"),
        (("--layer", "9"), "got 9"),
        (("--map", "attn"), "map must be one of"),
        (("--seed", "-1"), "seed must be"),
    ],
)
def test_mistakes_are_one_line_before_any_work(attack, tmp_path, options, said):
    done = attack(*options)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_radius_that_single_precision_rounds_away_fails_with_what_to_do(attack):
    done = attack("--eps", "1e-9", "--layer", "0", "--method", "random", "--no-bounded")
    assert done.code == 1
    assert "use float64" in done.err


def test_a_study_file_can_ask_for_attacks(howsmooth, folder_model, beginning, tmp_path):
    (tmp_path / "study.toml").write_text(
        f'kind = "attack"\nmodel = "{folder_model}"\ntext = "{beginning}"\nlayers = [0]\nlengths = [4]\n'
        'sequences = 1\nepsilons = [0.1, 1.0]\nmethods = ["random", "fgsm"]\nbudget = 10\nbounded = false\n',
        encoding="utf-8",
    )
    done = howsmooth("sweep", "study.toml", "--out", "run")
    assert (done.code, done.err) == (0, "")
    assert {(r.ask.eps, r.ask.method) for r in read_run(tmp_path / "run").records} == {
        (eps, method) for eps in (0.1, 1.0) for method in ("random", "fgsm")
    }


def test_on_a_classifier_it_is_told_from_which_radius_on_the_class_changes(howsmooth, blank_page):
    options = ("--sentence", "a gripping film", "--map", "classes", "--eps", "0.001,3", "--method", "pgd")
    done = howsmooth("attack", "reviews", *options, "--budget", "12", "--no-bounded", "--out", "run")
    assert done.code == 0, done.err
    assert done.out.startswith("Attacks change the predicted class in 1 of 1 windows at ε = 3. ")


@pytest.mark.slow
def test_ceilings_are_the_same_whatever_radii_are_asked_for_together(howsmooth, folder_model, beginning, loaded_once):
    def ceilings(eps, folder):
        options = ("--layer", "1", "--method", "random", "--budget", "8", "--lengths", "4", "--sequences", "2")
        done = howsmooth("attack", folder_model, "--text", beginning, *options, "--eps", eps, "--out", folder)
        assert done.code == 0, done.err
        return {(r.ask.eps, r.ask.window.index): r.answer.ceiling for r in read_run(folder).records}

    together = ceilings("0.1,1,30", "together")
    assert len(together) == 6
    assert all(ceiling > 0 for ceiling in together.values())
    assert together == ceilings("0.1", "one") | ceilings("1", "other") | ceilings("30", "last")
