"""Processes that torchrun starts share out a sequence: the values of one process, one that speaks, clear refusals."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from cli import shared_measure
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from transformers import LlamaConfig, LlamaForCausalLM

import howsmooth as hs
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.models.shared_sequence import SharedSequence, check_shared
from howsmooth.studies.runs.store import open_run
from howsmooth.token_ring import TokenRing, even_pieces

pytestmark = [pytest.mark.slow, pytest.mark.clock("processes wait for each other, and one is killed")]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """A folder with a model and what processes wrote that measured it together."""
    place = tmp_path_factory.mktemp("processes")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 61}
    config = LlamaConfig(**sizes, num_key_value_heads=1, num_hidden_layers=3, bos_token_id=None, eos_token_id=None)
    module = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    module.save_pretrained(place / "model")
    np.save(place / "ids.npy", np.random.default_rng(0).integers(0, 61, 2000))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, shared_measure.__file__, str(place / "model"), str(place)],
        env=environment,
        check=True,
        timeout=2 * shared_measure.LONGEST,
    )
    return place


def test_two_processes_find_what_one_finds(said):
    assert (said / "codes").read_text() == "[0, 0]"
    told = json.loads((said / "said-0.out").read_text())
    assert told["complete"]
    assert any("shared out over 2 processes" in note for note in told["notes"])
    settings = {"token_ids": said / "ids.npy", "lengths": [33], "sequences": 1, "layers": [0, 2]}
    alone = {record.ask.key: record.answer for record in hs.measure(str(said / "model"), **settings).records}
    with open_run(said / "run") as store:
        together = {key: record.answer for key, record in store.find(alone).items()}
    assert set(together) == set(alone)
    for key, one in alone.items():
        two = together[key]
        for name in ("lower", "upper", "mean_radius", "reach", "relative", "typical", "typical_low", "typical_high"):
            assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-5), name
        for name in ("sensitivity", "response"):
            assert getattr(two, name) == pytest.approx(getattr(one, name), abs=1e-5), name
        assert (two.probes, two.dimensions, two.leading) == (one.probes, one.dimensions, one.leading)


def test_one_process_speaks_and_the_other_is_silent(said):
    assert "The report is" in (said / "said-0.err").read_text()
    assert [(said / f"said-1.{kind}").read_text() for kind in ("out", "err")] == ["", ""]


def test_a_killed_process_is_one_error_everywhere_and_nothing_is_half_written(said):
    codes, seconds = (said / "lost-codes").read_text().rsplit(maxsplit=1)
    assert codes == "[2, 2, -9]"
    assert float(seconds) < 60
    for rank in range(2):
        errors = (said / f"lost-said-{rank}.err").read_text().splitlines()
        assert [line for line in errors if "a process of the group was lost" in line] == errors[-1:]
        assert len(errors[-1]) < 300
    with open_run(said / "lost") as store:
        kept = store.keys()
        records = store.find(kept)
    assert 0 < len(kept) == len(records) < 162


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["attention", "head:1", "normed", "mlp", "block", "to:1", "network"])
def test_inputs_over_a_ring_are_those_of_the_model(said, name, streamed):
    model = hs.load(said / "model", streamed=streamed)
    ring = TokenRing(group=None, rank=0, pieces=((range(20, 33), range(20)),))
    tokens = torch.arange(33)[None] + 20
    if streamed and name in ("to:1", "network"):
        with pytest.raises(AssumptionError, match="where weights are streamed"):
            check_shared(model, 0, name, ring)
        return
    layer = 0 if name in ("to:1", "network") else 1
    check_shared(model, layer, name, ring)
    f, X = model.activations(tokens).at(layer, name)
    g, Y = SharedSequence(model, tokens, ring).at(layer, name)
    torch.testing.assert_close(Y, X[:, ring.positions], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(g(Y), f(X)[:, ring.positions], rtol=1e-4, atol=1e-4)  # of five, by way of 30 scores


def test_blocks_without_a_closed_form_are_run_by_every_process(said, monkeypatch):
    model = hs.load(said / "model")
    ring, tokens = TokenRing(group=None, rank=0, pieces=((range(9),),)), torch.arange(9)[None]
    monkeypatch.setattr("howsmooth.maps.sharded_attention.TOKENWISE", (hs.maps.RMSNorm,))
    f, X = model.activations(tokens).at(2)
    g, Y = SharedSequence(model, tokens, ring).at(2, "attention")
    torch.testing.assert_close(Y, X)
    torch.testing.assert_close(g(Y), f(X))


def test_what_is_not_shared_out_is_refused_before_any_work(said, howsmooth, monkeypatch, tmp_path):
    reply = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(reply))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        for arguments, reason in (
            (["compare", "a", "b"], "leave torchrun out"),
            (["measure", "--metric", "token"], "in the metric total"),
            (["measure", "--certificate"], "--certificate is not shared out"),
            (["measure", "--whole"], "--whole is not shared out"),
            (["measure", "--map", "sentence"], "puts out one vector"),
            (["measure", "--workers", "2"], "--workers is for a command without torchrun"),
            (["measure", "--dry-run"], "--dry-run is for a command without torchrun"),
        ):
            refused = howsmooth(*arguments)
            assert (refused.code, refused.out) == (2, "")
            assert refused.err.count("\n") == (rank == "0")
            assert rank == "1" or reason in refused.err
            # what torchrun's own report says of each process
            told = ProcessFailure(local_rank=int(rank), pid=1, exitcode=2, error_file=str(reply))
            assert told.message.startswith("howsmooth: ")
            assert reason in told.message
            assert abs(told.timestamp - time.time()) < 600
            reply.unlink()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert howsmooth("--version").code == 0
    model = hs.load(said / "model")
    ring = TokenRing(group=None, rank=0, pieces=((range(9),),))
    with pytest.raises(AssumptionError, match="'logits' is not shared out"):
        check_shared(model, 0, "logits", ring)
    masked = model.layers[0].closed_form.positions
    monkeypatch.setitem(masked.__dict__, "mask", torch.ones(9, 9, dtype=torch.bool))
    with pytest.raises(AssumptionError, match="attention with mask"):
        check_shared(model, 0, "attention", ring)
    with pytest.raises(ShapeError, match="of 1 tokens cannot be shared out over 2"):
        even_pieces(1, 2, causal=True)
