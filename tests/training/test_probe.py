"""A probe: what it reads of every head, against the dense weights; when it warns, where it writes."""

import copy
import json
import math
import warnings

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import howsmooth as hs
import howsmooth.models.attention_interface
from howsmooth import attention_calls, scaled_dot_product
from howsmooth.errors import AssumptionError, SmoothnessWarning

SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 4}
CONFIGS = {
    "bert": transformers.BertConfig(**SMALL),
    "distilbert": transformers.DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=4, hidden_dim=24),
    "gpt2": transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4),
    "opt": transformers.OPTConfig(**(SMALL | {"ffn_dim": 24, "word_embed_proj_dim": 16})),
    "llama": transformers.LlamaConfig(**GROUPED),
    "mistral": transformers.MistralConfig(**GROUPED, sliding_window=3),
    "qwen3": transformers.Qwen3Config(**GROUPED),
    "gemma3_text": transformers.Gemma3TextConfig(
        **GROUPED, sliding_window=3, layer_types=["sliding_attention", "full_attention"]
    ),
}


def bert():
    """A configuration with fused attention; those above are changed by tests that ask for another."""
    config = copy.deepcopy(CONFIGS["bert"])
    config._attn_implementation = "sdpa"
    return config


def random_model(config):
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("family", CONFIGS)
def test_numbers_are_those_of_the_dense_weights_of_real_tokens(family, monkeypatch):
    monkeypatch.setattr(scaled_dot_product, "TILE", 30)
    monkeypatch.setattr(scaled_dot_product, "ROWS", 3)
    model = random_model(CONFIGS[family])
    ids = torch.randint(5, 40, (2, 7))
    mask = torch.ones_like(ids)
    padded = slice(0, 2) if family in ("llama", "mistral") else slice(5, 7)  # on the left or on the right
    mask[1, padded] = 0
    model.set_attn_implementation("sdpa")
    calls = []
    with torch.no_grad(), hs.probe(model, every=1, limit=1e9) as probe:
        with attention_calls.calls_observed(lambda *x, **named: calls.append((x, named))):
            expected = model(input_ids=ids, attention_mask=mask)[0]
        model.set_attn_implementation("howsmooth")
        assert_close(model(input_ids=ids, attention_mask=mask)[0], expected)
        model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    first, second = probe.looks
    assert len(first.heads) == 8
    for a, b in zip(first.heads, second.heads, strict=True):
        assert a.numbers == pytest.approx(b.numbers)
    real = mask.bool()
    for layer, P in enumerate(weights):
        (q, k, *_v), named = calls[layer]
        scale = named.get("scale") or q.shape[-1] ** -0.5
        S = scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        for head in range(4):
            rows, keys = P[:, head][real], S[:, head][real]
            first_token = torch.stack((P[0, head, :, 0], P[1, head, :, padded.stop if padded.start == 0 else 0]))
            peaks = rows.amax(-1)
            queries = q[:, head][real].norm(dim=-1)
            dense = {
                "largest_logit": float(keys[rows > 0].max()),
                "entropy": float(-torch.special.xlogy(rows, rows).sum(-1).mean()),
                "first_token": float(first_token[real].mean()),
                "peaked": float((peaks > 0.5).float().mean()),
                "largest_query": float(queries.max()),
                "mean_query": float(queries.mean()),
                "largest_key": float(k[:, head * k.shape[1] // 4][real].norm(dim=-1).max()),
                "mean_key": float(k[:, head * k.shape[1] // 4][real].norm(dim=-1).mean()),
            }
            found = first.heads[4 * layer + head]
            assert {name: found.numbers[name] for name in dense} == pytest.approx(dense, rel=1e-3, abs=1e-5)
            theta = max_over_subsets(rows)
            assert 8 / 9 * theta - 1e-5 <= found.sensitivity <= theta + 1e-5


def max_over_subsets(rows):
    """θ by every subset of columns, the mean over rows."""
    subsets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * rows.shape[-1])
    shares = rows @ subsets.mT
    return float((4 * shares * (1 - shares)).amax(-1).mean())


def test_packed_sequences_have_a_first_token_each():
    from howsmooth.training.head_probe import head_statistics

    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    together = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).bool().tril()
    P = torch.softmax((0.5 * q @ k.mT).masked_fill(~together, -math.inf), -1)
    found = head_statistics(q, k, v, together)["first_token"]
    assert_close(found, torch.cat((P[..., :2, 0], P[..., 2:, 2]), -1).mean((0, -1)))


def test_an_alarm_comes_before_the_loss_of_a_bert_whose_queries_grow_leaves():
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = transformers.BertForSequenceClassification(config).train()
    ids = torch.randint(5, 40, (64, 8))
    labels = ((ids[:, 1:] > 22).sum(1) > 3).long()
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    with hs.probe(model, every=2) as probe, warnings.catch_warnings():
        warnings.simplefilter("ignore", SmoothnessWarning)
        for step in range(80):
            loss = model(input_ids=ids, labels=labels).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
            if step >= 50:
                with torch.no_grad():
                    for layer in model.bert.encoder.layer:
                        for projection in (layer.attention.self.query, layer.attention.self.key):
                            projection.weight *= 1.05
                            projection.bias *= 1.05
    learned = min(losses[:51])
    left = next(step for step, loss in enumerate(losses) if step > 50 and loss > 2 * learned + 0.1)
    assert learned < 0.1
    assert min(alarm.reading.step for alarm in probe.alarms) < left
    assert any("doubled in" in str(alarm) for alarm in probe.alarms)


class Notes:
    def __init__(self):
        self.logged, self.alerts = [], []

    def log(self, numbers):
        self.logged.append(numbers)

    def alert(self, *, title, text):
        self.alerts.append(text)


def test_looks_go_to_every_sink_and_alarms_say_which_head(tmp_path):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    notes, lines = Notes(), hs.training.JsonLines(tmp_path / "looks.jsonl")
    X = torch.randn(2, 5, 8)
    with (
        hs.probe(layer, every=2, limit=1e-9, sinks=[notes, lines]) as probe,
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        for _step in range(4):
            layer(X)
        layer.eval()
        layer(X)  # evaluation is not counted
        layer.train()
    assert [str(warning.message) for warning in seen] == notes.alerts
    assert "layer 0 head 1 at step 2: largest logit" in notes.alerts[1]
    assert "above the limit of" in notes.alerts[1]
    assert probe.steps == 4
    assert [look.step for look in probe.looks] == [2, 4]
    assert probe.step() is probe.looks[-1]
    assert probe.step() is None
    assert [numbers["step"] for numbers in notes.logged] == [2, 4]
    assert notes.logged[0]["howsmooth/layer_0/head_1/entropy"] == probe.looks[0].heads[1].entropy
    assert notes.alerts == [str(alarm) for alarm in probe.alarms]
    written = [json.loads(line) for line in (tmp_path / "looks.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["heads"][0]["step"] for line in written] == [2, 4]
    summary = json.loads(json.dumps(probe.summary()))
    assert summary["thresholds"]["limit"] == 1e-9
    assert [alarm["text"] for alarm in summary["alarms"]] == notes.alerts
    columns = probe.frame()
    assert columns["step"] == [2, 2, 4, 4]
    assert columns["head"] == [0, 1, 0, 1]
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks


def test_a_run_keeps_monitor_and_probe_and_its_report_has_one_section(tmp_path):
    torch.manual_seed(0)
    model = transformers.BertModel(bert()).train()
    ids = torch.randint(5, 40, (2, 7))
    with hs.training.RunLog(tmp_path / "run") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", SmoothnessWarning)
        monitor = hs.Monitor(model, every=2, budget=1.0, sinks=[log])
        with hs.probe(model, every=1, limit=1e-9, sinks=[log]) as probe:
            for _step in range(2):
                model(ids)
                monitor.step(ids)
    run = hs.read_run(tmp_path / "run")
    heads = [r for r in run.records if r.ask.kind == "probe"]
    assert {r.ask.kind for r in run.records} == {"monitor", "probe"}
    read = {(h.step, h.layer, h.map): h for look in probe.looks for h in look.heads}
    assert len(heads) == len(read) == 16
    for r in heads:
        reading = read[r.ask.step, r.ask.layer, r.ask.map]
        assert {name: getattr(r.answer, name) for name in reading.numbers} == pytest.approx(reading.numbers)
        assert bool(r.answer.alarm) == any(a.reading is reading for a in probe.alarms)
    page = hs.write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Largest logits of layers while they are trained: 8 alarms" in page
    assert "the largest logit is" in page


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("library", ["transformers", "pytorch_lightning"])
def test_trainers_open_a_probe_and_log_what_it_reads(library, tmp_path):
    pytest.importorskip("accelerate" if library == "transformers" else library)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(bert()).train()
    rows = [{"input_ids": ids, "labels": ids[0] % 2} for ids in torch.randint(5, 40, (8, 6))]
    probe, notes = hs.probe(model, every=2, sinks=[sink := Notes()]), []
    if library == "transformers":
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="no",
        )  # fmt: skip
        callback = hs.training.callbacks.HuggingFace(probe)
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback])
        trainer.train()
        notes = [row for row in trainer.state.log_history if "howsmooth/layer_0/head_3/largest_logit" in row]
    else:
        import pytorch_lightning as pl

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = model

            def training_step(self, data, _index):
                return self.model(**data).loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-3)

        logger = pl.loggers.CSVLogger(tmp_path)
        logger.log_metrics = lambda numbers, step=None: notes.append(numbers)
        trainer = pl.Trainer(
            max_steps=4, accelerator="cpu", logger=logger, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[hs.training.callbacks.Lightning(probe)],
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=4))
        notes = [numbers for numbers in notes if "howsmooth/layer_0/head_3/largest_logit" in numbers]
    assert [look.step for look in probe.looks] == [2, 4]
    assert len(notes) == len(sink.logged) == 2
    assert not model._forward_pre_hooks


def test_what_cannot_be_probed_is_refused():
    with pytest.raises(AssumptionError, match="every must be"):
        hs.probe(nn.Linear(2, 2), every=0)
    with pytest.raises(AssumptionError, match="limit must be"):
        hs.probe(nn.Linear(2, 2), limit=-1.0)
    linear = nn.Linear(2, 2)
    with hs.probe(linear, every=1), pytest.raises(AssumptionError, match="attn_implementation='sdpa'"):
        linear(torch.ones(2))


def test_a_probe_outside_of_its_block_says_so():
    probe = hs.probe(torch.nn.MultiheadAttention(4, 2))
    for ask in (probe.step, probe.frame, probe.summary):
        with pytest.raises(AssumptionError, match="within its `with` block, and none was opened"):
            ask()
    with probe:
        assert probe.step() is None
    assert probe.frame() == {}
