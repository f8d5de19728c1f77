"""All attention layers of a model in one pass: the sum of what each has alone, padding and shared weights included."""

import pytest
import torch
import transformers
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import AssumptionError, DtypeError

TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
PLACES = {"max_position_embeddings": 12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TINY, **PLACES)),
    "albert": lambda: transformers.AlbertModel(transformers.AlbertConfig(**TINY, **PLACES, embedding_size=8)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, max_position_embeddings=12)),
    "stranger": lambda: transformers.MegatronBertModel(transformers.MegatronBertConfig(**TINY, **PLACES)),
}


def made(name):
    model = MODELS[name]().double().train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(5, 40, (3, 8))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_layers_measured_one_by_one_among_real_tokens(name):
    model, batch = made(name)
    with hs.training.attention_penalty(model, steps=20) as smooth:
        model(**batch)
        found = smooth()
    assert all(module.training for module in model.modules())
    there = hs.load(model).activations(batch["input_ids"], padding=batch["attention_mask"].bool())
    alone = [hs.local_lipschitz(*there.at(layer), rtol=1e-6).lower for layer in range(2)]
    assert_close(found.detach(), sum(alone), rtol=1e-3, atol=0)  # the cold start stops at a residual of two per cent
    assert_close(torch.stack(list(smooth.values.values())), torch.stack(alone), rtol=1e-3, atol=0)
    found.sum().backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(grads) > 5
    assert all(bool(grad.isfinite().all()) for grad in grads)


def test_gradients_are_those_of_finite_differences_through_all_layers_below():
    model, batch = made("bert")
    smooth = hs.training.attention_penalty(model, layers=[1], steps=20)
    model(**batch)
    smooth().sum().backward()
    weight = model.bert.encoder.layer[0].intermediate.dense.weight  # below the layer that is penalised
    values = []
    for side in (1, -1):
        with torch.no_grad():
            weight[0, 0] += side * 1e-5
        there = hs.load(model).activations(batch["input_ids"], padding=batch["attention_mask"].bool())
        values.append(hs.local_lipschitz(*there.at(1), rtol=1e-11).lower.sum())
        with torch.no_grad():
            weight[0, 0] -= side * 1e-5
    assert_close(weight.grad[0, 0], (values[0] - values[1]) / 2e-5, rtol=0.02, atol=1e-6)  # vectors to two per cent


def test_a_checkpointed_model_has_the_same_penalty_and_the_next_pass_is_heard_anew():
    model, batch = made("llama")
    smooth = hs.training.attention_penalty(model)
    expected = []
    for use in (False, True):
        if use:
            # the older name warns from transformers 5.23 on, which brought the newer
            name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
            getattr(model, f"{name}_checkpointing_enable")({"use_reentrant": False})
            model.config.use_cache = False
        smooth.states = {layer: hs.training.WarmStart() for layer in smooth.layers}
        loss = model(**batch, labels=batch["input_ids"]).loss + smooth().sum()
        model.zero_grad()
        loss.backward()
        expected.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
    assert_close(expected[1], expected[0], rtol=0.05, atol=1e-3)  # two random starts


def test_one_pass_is_penalised_once_and_a_batch_can_be_given_in_its_place():
    model, batch = made("bert")
    smooth = hs.training.attention_penalty(model, layers=[0], steps=20)
    with pytest.raises(AssumptionError, match="no forward pass was heard"):
        smooth()
    model(**batch)
    first = smooth()
    with pytest.raises(AssumptionError, match="no forward pass was heard"):
        smooth()
    assert_close(smooth(batch), first, rtol=1e-3, atol=0)
    smooth.close()
    model(**batch)
    with pytest.raises(AssumptionError, match="no forward pass was heard"):
        smooth()


@pytest.mark.untyped
def test_what_cannot_be_penalised_is_refused():
    model, batch = made("bert")
    with pytest.raises(AssumptionError, match="layers 0 to 1, got 7"):
        hs.training.attention_penalty(model, layers=[7])
    with pytest.raises(DtypeError, match="must be a module"):
        hs.training.attention_penalty("bert")
    model.to(torch.bfloat16)
    smooth = hs.training.attention_penalty(model)
    model(**batch)
    with pytest.raises(AssumptionError, match=r"half precision|no forward pass"):
        smooth()
