"""A monitor: what it reads, what it costs, when it warns, where it writes; and who calls it."""

import json
import logging
import math
import warnings

import pytest
import torch
import transformers
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, SmoothnessWarning
from howsmooth.training.monitor import TimeBudget
from howsmooth.training.readings import AlarmRule, LayerReading

TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def classifier():
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**TINY, max_position_embeddings=12))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.train()


def batch(count=6):
    ids = torch.randint(5, 40, (count, 8))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2}


def reading(step, lower, *, upper=None, layer=0):
    return LayerReading(
        step=step, layer=layer, map="attention", lower=lower, upper=1.05 * lower if upper is None else upper,
        typical=1.0, typical_low=0.9, typical_high=1.1, radius=1.0, entropy=1.0, sequences=1, length=8, tokens=(7, 5),
        seconds=0.1,
    )  # fmt: skip


def generous(model, **others):
    """A monitor that never runs out of time."""
    found = hs.Monitor(model, every=1, **others)
    found._budget.affordable = lambda: 1000
    return found


def test_readings_bracket_what_is_measured_afterwards_and_leave_the_model_as_it_was():
    model, data = classifier(), batch()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = torch.get_rng_state()
    look = generous(model, sequences=3).step(data)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    there = hs.load(model).activations(data["input_ids"][:3], padding=data["attention_mask"][:3].bool())
    for layer, found in enumerate(look.readings):
        f, X = there.at(layer)
        exact = float(hs.local_lipschitz(f, X, rtol=1e-4).lower.max())
        assert found.lower <= exact * (1 + 1e-4)
        assert exact <= found.upper * (1 + 1e-4)
        assert found.upper <= 1.06 * found.lower
        assert 0 < found.typical_low < found.typical < found.typical_high
        assert found.typical < found.upper
        assert 0 < found.entropy <= math.log(8)
        real = data["attention_mask"][:3].bool()
        assert_close(found.radius, float(X[real].square().sum(-1).mean().sqrt()), rtol=1e-5, atol=0)
        assert len(found.tokens) == 4
    assert look.skipped == ()


def test_weights_that_changed_are_read_anew():
    model, data = classifier(), batch()
    monitor = generous(model)
    first = monitor.step(data)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight *= 3
    with pytest.warns(SmoothnessWarning):
        second = monitor.step(data)
    assert_close(second.readings[0].lower, first.readings[0].lower, rtol=0.06, atol=0)
    assert second.readings[1].lower > 2.5 * first.readings[1].lower


def test_entropy_is_that_of_the_attention_weights():
    model, data = classifier().eval(), batch()
    model.set_attn_implementation("eager")
    P = model(**data, output_attentions=True).attentions[0].double()
    rows = -torch.special.xlogy(P, P).sum(-1).mean(1).detach()
    real = data["attention_mask"]
    expected = float(((rows * real).sum(-1) / real.sum(-1)).mean())
    found = generous(model, layers=[0], sequences=6).step(data)
    assert_close(found.readings[0].entropy, expected, rtol=1e-4, atol=0)


def test_a_constant_that_doubles_within_the_window_is_an_alarm_with_layer_tokens_and_step():
    model, data = classifier(), batch()
    monitor = generous(model, layers=[1])
    monitor.step(data)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight *= 3
    with pytest.warns(SmoothnessWarning, match=r"layer 1 \(attention\) at step 2: .* of step 1; . tokens, most sens"):
        monitor.step(data)
    assert len(monitor.alarms) == 1


def test_weights_that_are_no_numbers_are_an_alarm_and_no_error():
    model, data = classifier(), batch()
    monitor = generous(model)
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.query.weight[0, 0] = torch.nan
    with pytest.warns(SmoothnessWarning, match="not finite any more"):
        look = monitor.step(data)
    assert look.readings[0].lower == math.inf


@pytest.mark.parametrize(
    ("readings", "limit", "expected"),
    [
        ([reading(1, 1.0), reading(2, 2.2)], None, [2]),
        ([reading(1, 1.0), reading(2, 2.0)], None, []),  # perhaps, but the bracket does not say so
        ([reading(1, 1.0), reading(30, 9.0)], None, []),  # too long ago
        ([reading(1, 1.0), reading(2, 1.5), reading(3, 2.5)], None, [3]),
        ([reading(1, 1.0), reading(2, 3.0), reading(3, 3.1)], None, [2]),  # told once
        ([reading(1, 1.0), reading(2, 3.0, layer=1)], None, []),  # of another layer
        ([reading(1, 4.0), reading(2, 5.5)], 5.0, [2]),
        ([reading(1, math.inf), reading(2, 1.0)], None, [1]),
    ],
)
def test_alarms_go_by_the_ends_of_brackets(readings, limit, expected):
    watch = AlarmRule(window=20, limit=limit)
    assert [alarm.reading.step for r in readings for alarm in watch.alarms(r)] == expected


def test_a_budget_is_kept_over_any_number_of_looks():
    clock = [0.0]
    budget = TimeBudget(0.02, lambda: clock[0])
    for _step in range(400):
        clock[0] += 1.0  # a training step
        units = budget.affordable()
        clock[0] += 0.3 * units
        budget.spend(0.3 * units, units)
    assert 0.01 < budget.overhead <= 0.021


def test_what_the_budget_leaves_out_is_said_and_has_its_turn(monkeypatch):
    model, data = classifier(), batch()
    monitor = hs.Monitor(model, every=1, maps=("attention", "residual"))
    monitor._budget.affordable = lambda: 1
    said = []
    monkeypatch.setattr(logging.getLogger("howsmooth"), "info", lambda message, *parts: said.append(message % parts))
    looks = [monitor.step(data) for _step in range(4)]
    assert [(r.layer, r.map) for look in looks for r in look.readings] == [
        (0, "attention"), (0, "residual"), (1, "attention"), (1, "residual")
    ]  # fmt: skip
    assert len(looks[0].skipped) == 3
    assert "the budget left out 0:residual" in said[0]
    monitor._budget.affordable = lambda: 0
    assert monitor.step(data).readings == ()


def test_loggers_get_one_dictionary_for_each_look():
    logged = []

    class Logger:
        def log(self, numbers):
            logged.append(numbers)

    generous(classifier(), sinks=[Logger()]).step(batch())
    assert logged[0]["step"] == 1
    assert logged[0]["howsmooth/layer_1/attention/constant"] > 0
    json.dumps(logged)


def test_a_run_keeps_readings_and_alarms_and_its_report_draws_them(tmp_path):
    model, data = classifier(), batch()
    with hs.training.RunLog(tmp_path / "run") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", SmoothnessWarning)
        monitor = generous(model, sinks=[log])
        for _step in range(2):
            monitor.step(data)
            with torch.no_grad():
                model.bert.encoder.layer[0].attention.output.dense.weight *= 3
    run = hs.read_run(tmp_path / "run")
    assert len(run.records) == 4
    assert sorted(bool(r.answer.alarm) for r in run.records) == [False, False, False, True]
    page = hs.write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Constants of layers while they are trained: 1 alarm" in page
    assert "is the least smooth, at step" in page


def test_tensorboard_reads_the_curves_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = hs.training.TensorBoard(tmp_path)
    monitor = generous(classifier(), sinks=[board])
    looks = [monitor.step(batch()) for _step in range(2)]
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    curve = events.Scalars("howsmooth/layer_0/attention/constant")
    assert [point.step for point in curve] == [1, 2]
    assert_close([point.value for point in curve], [look.readings[0].lower for look in looks], rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_trainer_of_transformers_calls_a_monitor(tmp_path):
    pytest.importorskip("accelerate")
    model = classifier()
    rows = [{name: x[i] for name, x in batch(8).items()} for i in range(8)]
    monitor = generous(model, sinks=[hs.training.RunLog(tmp_path / "run")])
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, callbacks=[hs.training.callbacks.HuggingFace(monitor)]
    )
    trainer.train()
    assert [look.step for look in monitor.looks] == [1, 2, 3]
    assert any("howsmooth/layer_0/attention/constant" in row for row in trainer.state.log_history)
    assert len(hs.read_run(tmp_path / "run").records) == 6
    assert not model._forward_pre_hooks


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_trainer_of_lightning_calls_a_monitor(tmp_path):
    pl = pytest.importorskip("pytorch_lightning")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = classifier()

        def training_step(self, data, _index):
            return self.model(**data).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    module = Module()
    monitor = generous(module.model, sinks=[hs.training.RunLog(tmp_path / "run")])
    rows = [{name: x[i] for name, x in batch(8).items()} for i in range(8)]
    trainer = pl.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[hs.training.callbacks.Lightning(monitor)], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=4))
    assert [look.step for look in monitor.looks] == [1, 2, 3, 4]
    assert len(hs.read_run(tmp_path / "run").records) == 8


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": 0}, "every must be"),
        ({"budget": 0}, "budget must be a share"),
        ({"limit": -1.0}, "limit must be"),
        ({"layers": [5]}, "layers 0 to 1, got 5"),
        ({"maps": ["atention"]}, "map must be one of"),
        ({"sinks": [3]}, "a sink has a method log"),
    ],
)
def test_what_is_no_monitor_is_refused(given, said):
    with pytest.raises(AssumptionError, match=said):
        hs.Monitor(classifier(), **given)


@pytest.mark.untyped
@pytest.mark.parametrize("given", [3, {"labels": torch.ones(2)}, ()])
def test_what_is_no_batch_is_refused(given):
    with pytest.raises(AssumptionError, match="a batch must"):
        generous(classifier()).step(given)
