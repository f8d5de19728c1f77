"""``howsmooth measure --whole``: a table of blocks alone and together, and what it refuses."""

import pytest
from small import beginning, folder_model, module, save_model, tokenizer

from howsmooth.studies.runs.run import read_run

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.mark.slow
def test_a_whole_model_is_told_in_a_sentence_a_table_and_two_charts(howsmooth, folder_model, beginning, tmp_path):
    done = howsmooth(
        "measure", folder_model, "--text", beginning, "--whole", "--lengths", "4,8", "--sequences", "2", "--out", "run"
    )
    assert (done.code, done.err) == (0, "")
    run = read_run(tmp_path / "run")
    kinds = [record.ask.kind for record in run.records]
    depth = len({record.ask.layer for record in run.records if record.ask.map == "block"})
    assert kinds.count("whole") == (3 * depth - 1) * 4
    assert kinds.count("text") == 4
    assert "multiply to" in " ".join(done.out.split())
    assert "to here" in done.out
    assert done.out.startswith(howsmooth("show", "run").out)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Layers do not multiply" in page
    assert "An error hurts" in page


@pytest.mark.slow
def test_the_first_blocks_together_are_the_first_block_and_the_last_ones_end_the_model(
    howsmooth, folder_model, beginning
):
    howsmooth(
        "measure", folder_model, "--text", beginning, "--whole", *["--lengths", "8", "--sequences", "1", "--out", "run"]
    )
    found = {(r.ask.kind, r.ask.layer, r.ask.map): r.answer for r in read_run("run").records}
    assert found["whole", 0, "to:0"].lower == pytest.approx(found["whole", 0, "block"].lower, rel=0.01)
    whole, alone = found["whole", 0, "model"], found["text", 0, "model"]
    assert (whole.lower, whole.typical_low, whole.typical_high) == (alone.lower, alone.typical_low, alone.typical_high)


@pytest.mark.parametrize("other", [("--map", "mlp"), ("--layers", "0"), ("--per-head",)])
def test_a_whole_model_has_no_choice_of_layers_maps_and_heads(howsmooth, folder_model, tmp_path, other):
    done = howsmooth("measure", folder_model, "--whole", *other, "--out", "run")
    assert done.code == 2
    assert "leave --map, --layers and --per-head out" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
