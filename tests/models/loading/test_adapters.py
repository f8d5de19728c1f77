"""Models with adapters of peft, and models whose weights are quantised: read right, by autograd, or refused."""

import copy

import pytest
import torch
import transformers
from models.small_models import EVERY, SMALL, randomised, run
from torch.testing import assert_close

import howsmooth as hs

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own

TOKENS = torch.tensor([[5, 9, 7, 12, 31]])
BERT = ["query", "value", "dense"]
CONFIGS = {
    "LoRA": peft.LoraConfig(r=3, target_modules=BERT, init_lora_weights=False),
    "DoRA": peft.LoraConfig(r=3, target_modules=BERT, init_lora_weights=False, use_dora=True),
    "IA³": peft.IA3Config(
        target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"], init_ia3_weights=False
    ),
}


def classifier(rng, family="bert"):
    config = transformers.BertConfig(**SMALL) if family == "bert" else EVERY[family]()
    return randomised(config, rng, build=transformers.AutoModelForSequenceClassification.from_config)


def randomise_adapters(module, rng):
    """Adapters of IA³ and magnitudes of DoRA begin at one; let them be anything."""
    for name, parameter in module.named_parameters():
        if "lora" in name or "ia3" in name:
            parameter.data = (0.5 * torch.randn(parameter.shape, generator=rng) + ("lora_A" not in name)).to(parameter)


def added(module, config):
    module.add_adapter(config)
    return module


def injected(module, config):
    return peft.inject_adapter_in_model(config, module)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("put", [added, injected, peft.get_peft_model], ids=lambda put: put.__name__)
def test_adapters_are_read_as_the_module_runs_them(kind, put, rng):
    module = put(classifier(rng), copy.deepcopy(CONFIGS[kind])).double().eval()
    randomise_adapters(module, rng)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = hs.load(module)
    assert any("adapters" in note for note in model.notes)
    assert all(part.attention is not None for part in model.layers)
    found = model.activations(TOKENS)
    with torch.no_grad():
        for layer in range(2):
            f, X = found.at(layer, "block")
            assert_close(f(X), model.module.encoder.layer[layer](X))
        f, X = found.at(0, "classes")
        assert_close(f(X)[:, 0], module(input_ids=TOKENS).logits)
    after = module.state_dict()
    assert before.keys() == after.keys()  # the module itself still has its adapters
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_an_adapted_classifier_is_certified_for_the_class_that_it_predicts(rng):
    module = added(classifier(rng), copy.deepcopy(CONFIGS["LoRA"])).double().eval()
    randomise_adapters(module, rng)
    found = hs.certify(module, TOKENS[0], word=1)
    with torch.no_grad():
        assert found.predicted == int(module(TOKENS).logits.argmax())
    assert found.verify() > 0


def test_adapters_that_are_switched_off_are_not_read(rng):
    plain = classifier(rng)
    module = peft.get_peft_model(copy.deepcopy(plain), copy.deepcopy(CONFIGS["LoRA"])).double()
    randomise_adapters(module, rng)
    with module.disable_adapter():
        f, X = hs.load(module).activations(TOKENS).at(1, "block")
    g, Y = hs.load(plain).activations(TOKENS).at(1, "block")
    assert_close(f(X), g(Y))


def test_matrices_that_are_stored_columns_first_are_merged_too(rng):
    module = injected(
        classifier(rng, "gpt2"), peft.LoraConfig(r=3, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    )
    randomise_adapters(module.double(), rng)
    f, X = hs.load(module).activations(TOKENS).at(1, "block")
    assert_close(f(X), module.transformer.h[1](X))


def test_a_head_that_is_trained_beside_adapters_is_the_one_that_is_read(rng):
    config = peft.LoraConfig(r=3, target_modules=["query"], task_type="SEQ_CLS")
    module = peft.get_peft_model(classifier(rng), config).double().eval()
    head = module.get_base_model().classifier.modules_to_save["default"]
    head.weight.data.normal_()
    f, X = hs.load(module).activations(TOKENS).at(0, "classes")
    with torch.no_grad():
        assert_close(f(X)[:, 0], module(input_ids=TOKENS).logits)


def test_an_adapter_that_cannot_be_merged_is_differentiated_by_autograd(rng, monkeypatch):
    module = added(classifier(rng), copy.deepcopy(CONFIGS["LoRA"])).double().eval()
    randomise_adapters(module, rng)

    def refuse(self, *_given, **_named):
        raise ValueError("cannot merge")

    monkeypatch.setattr(peft.tuners.lora.Linear, "merge", refuse)
    model = hs.load(module)
    assert all(layer.attention is None for layer in model.layers)
    assert "has an adapter that could not be merged" in model.notes[-1]
    f, X = model.activations(TOKENS).at(1, "block")
    assert_close(f(X), model.module.encoder.layer[1](X))
    with pytest.raises(hs.errors.AssumptionError, match="could not be merged"):
        hs.certify(module, TOKENS[0], word=1)


def unmergeable(rng, monkeypatch, family, target):
    module = injected(classifier(rng, family), peft.LoraConfig(r=3, target_modules=[target])).double().eval()
    randomise_adapters(module, rng)
    monkeypatch.setattr(peft.tuners.lora.Linear, "merge", lambda *_given, **_named: None)
    return hs.load(module)


@pytest.mark.parametrize(("family", "target"), [("bert", "attention.output.dense"), ("llama", "o_proj")])
def test_parts_of_a_layer_with_an_adapter_that_cannot_be_merged_are_those_of_the_module(
    family, target, rng, monkeypatch
):
    model = unmergeable(rng, monkeypatch, family, target)
    found, heard = run(model, TOKENS, [layer.projection_path for layer in model.layers])
    f, X = found.at(1, "attention")
    assert_close(f(X), heard[1][1])
    f, X = found.at(1, "heads")
    assert_close(f(X), heard[1][0])
    for part, reason in {"head:0": "heads are cut out", "residual": "use map='block'"}.items():
        with pytest.raises(hs.errors.AssumptionError, match=reason):
            found.at(1, part)


@pytest.mark.parametrize("kind", ["PrefixTuningConfig", "PromptTuningConfig", "PromptEncoderConfig"])
def test_learned_tokens_beside_those_of_a_sentence_are_refused(kind, rng):
    config = getattr(peft, kind)(num_virtual_tokens=3, task_type="SEQ_CLS")
    module = peft.get_peft_model(classifier(rng), config)
    with pytest.raises(hs.errors.UnsupportedModelError, match="learned tokens or keys") as caught:
        hs.load(module)
    assert caught.value.field == "model"


def test_a_monitor_follows_adapters_as_they_are_trained(rng):
    module = added(classifier(rng), copy.deepcopy(CONFIGS["LoRA"])).double()
    monitor = hs.Monitor(module, layers=[1], maps=["block"], rtol=1e-6)
    randomise_adapters(module, rng)  # a step of training
    (reading,) = monitor.look(TOKENS, step=1).readings
    layers = module.eval().bert.encoder.layer
    X = layers[0](module.bert.embeddings(TOKENS)).detach()
    J = torch.autograd.functional.jacobian(layers[1], X).reshape(X.numel(), X.numel())
    assert reading.lower == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-4)
