"""Maps are compared with the modules that they stand in for: what is not in the weights is found, and said."""

import copy
import types

import pytest
import torch
import transformers
from models.small_models import EVERY, PICTURES, SMALL, build, each, inputs, randomised
from torch import nn
from torch.testing import assert_close

import howsmooth as hs

TOKENS = torch.tensor([[5, 9, 7, 12, 31]])


def bert(rng, **settings):
    return randomised(transformers.BertConfig(**SMALL, **settings), rng)


def triple(module, *_given):
    return 3 * _given[-1]


# What changes the first layer of BERT without changing its weights, and the reason that is named.
def hooked(layer):
    layer.attention.self.value.register_forward_hook(triple)
    return "has a hook"


def hooked_in_front_of_the_block(layer):
    layer.register_forward_pre_hook(lambda _module, given: (2 * given[0], *given[1:]))
    return "has a hook"


def hooked_in_front_of_attention(layer):
    layer.attention.self.register_forward_pre_hook(lambda _module, given: (1.5 * given[0], *given[1:]))
    return "has a hook"


def hooked_behind_the_block(layer):
    layer.register_forward_hook(lambda _module, _given, output: 0.9 * output)
    return "has a hook"


def replaced_forward(layer):
    query = layer.attention.self.query
    query.forward = types.MethodType(lambda self, X: nn.Linear.forward(self, X) + X.tanh(), query)
    return "forward was replaced"


def of_another_class(layer):
    class Doubled(nn.Linear):
        def forward(self, X):
            return 2 * super().forward(X)

    layer.intermediate.dense.__class__ = Doubled
    return "is not what is read here"


CHANGES = (
    hooked,
    hooked_in_front_of_the_block,
    hooked_in_front_of_attention,
    hooked_behind_the_block,
    replaced_forward,
    of_another_class,
)


def constant(f, X):
    """The largest singular value of the dense derivative."""
    J = torch.autograd.functional.jacobian(f, X).reshape(f(X).numel(), X.numel())
    return float(torch.linalg.matrix_norm(J, 2))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_in_the_weights_of_a_layer_is_differentiated_as_it_runs(change, rng):
    module = bert(rng)
    reason = change(module.encoder.layer[0])
    model = hs.load(module)
    assert [layer.attention is None for layer in model.layers] == [True, False]
    (note,) = model.notes
    assert "layer 0 ('encoder.layer.0" in note
    assert "does not put out what its weights say" in note
    assert reason in note
    assert "autograd" in note
    found = model.activations(TOKENS)
    f, X = found.at(0, "block")
    assert_close(f(X), module.encoder.layer[0](module.embeddings(TOKENS)))
    assert_close(X, module.embeddings(TOKENS))
    own = constant(lambda Z: module.encoder.layer[0](Z), X)
    assert hs.local_lipschitz(f, X).lower.item() == pytest.approx(own, rel=1e-6)
    whole, X = found.at(0, "model")
    assert_close(whole(X), module(TOKENS).last_hidden_state)
    with pytest.raises(hs.errors.AssumptionError, match="no closed form"):
        model.layer(0).map("attention")


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_layer_after_loading_is_refused_by_name(change, rng):
    module = bert(rng)
    model = hs.load(module)
    reason = change(module.encoder.layer[1])
    with pytest.raises(hs.errors.UnsupportedModelError, match=r"layer 1 \('encoder.layer.1") as caught:
        model.activations(TOKENS)
    assert reason in str(caught.value)
    assert "load the model as it is now" in str(caught.value)
    hs.load(module).activations(TOKENS)


def test_a_module_in_training_mode_is_refused_where_that_changes_it(rng):
    module = bert(rng)
    model = hs.load(module)
    module.train()
    with pytest.raises(hs.errors.UnsupportedModelError, match="training mode"):
        model.activations(TOKENS)


def test_layers_that_share_their_weights_are_compared_turn_by_turn(rng):
    config = transformers.AlbertConfig(**SMALL | {"num_hidden_layers": 3}, embedding_size=12)
    module = randomised(config, rng)
    shared, turns = module.encoder.albert_layer_groups[0].albert_layers[0], []

    def third(_module, _given, output):
        turns.append(output)
        return 2 * output if len(turns) % 3 == 0 else None

    shared.register_forward_hook(third)
    assert [layer.attention is None for layer in hs.load(module).layers] == [False, False, True]


def test_ends_that_are_changed_are_named_and_left_out(rng):
    module = randomised(EVERY["gpt2"](), rng)
    module.ln_f.register_forward_hook(triple)
    model = hs.load(module)
    assert "what stands behind the last layer" in model.notes[-1]
    f, X = model.activations(TOKENS).at(0, "model")
    assert_close(f(X), module(TOKENS).last_hidden_state)
    module = bert(rng)
    module.embeddings.LayerNorm.register_forward_hook(triple)
    assert "'embeddings.LayerNorm'" in hs.load(module).notes[-1]


@pytest.mark.parametrize("head", ["classes", "logits"])
def test_heads_that_are_changed_are_refused(head, rng):
    kind = transformers.AutoModelForSequenceClassification if head == "classes" else transformers.AutoModelForCausalLM
    module = randomised(EVERY["gpt2"](), rng, build=kind.from_config)
    (module.score if head == "classes" else module.lm_head).register_forward_hook(triple)
    model = hs.load(module)
    with pytest.raises(hs.errors.AssumptionError, match="has a hook"):
        model.activations(TOKENS).at(0, head)


@pytest.mark.parametrize("family", each(sorted(EVERY)))
def test_families_differ_from_their_modules_by_rounding_alone_whatever_the_size_of_their_weights(family, rng):
    for gain in (0.1, 100):
        module = copy.deepcopy(build(family).module).float()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(gain)
        model = hs.load(module)
        assert all(layer.attention is not None for layer in model.layers), model.notes
        tokens = inputs(family, rng)
        model.activations(tokens.float() if family in PICTURES else tokens)
        assert model.compared


@pytest.mark.parametrize("family", each(sorted(EVERY)))
def test_one_part_in_a_thousand_of_what_attention_puts_out_is_seen(family):
    transformer = build(family)
    module = copy.deepcopy(transformer.module).float()
    layer = transformer.layers[-1]
    module.get_submodule(layer.projection_path).register_forward_hook(lambda _module, _given, output: 1.001 * output)
    assert hs.load(module).layers[-1].attention is None


def test_half_precision_is_compared_in_the_numbers_that_it_is_measured_in(rng):
    module = bert(rng).bfloat16()
    model = hs.load(module)
    model.activations(TOKENS)
    assert all(layer.attention is not None for layer in model.layers)
    module.encoder.layer[0].attention.self.value.register_forward_hook(triple)
    assert hs.load(module).layers[0].attention is None


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1.0, 1 + 1e-4])
def test_angles_that_a_module_rounds_at_far_positions_are_no_change_and_other_frequencies_are(turn):
    config = transformers.LlamaConfig(**(SMALL | {"max_position_embeddings": 4096}))
    module, generator = transformers.LlamaModel(config), torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator)  # sharp attention, which notices small angles
    model = hs.load(module.eval())
    tokens = torch.randint(SMALL["vocab_size"], (1, 2048), generator=generator)
    module.rotary_emb.inv_freq *= turn
    if turn == 1:
        f, X = model.activations(tokens).at(0)
        assert X.shape[-2] == 2048
        assert isinstance(f, hs.Attention)
    else:
        with pytest.raises(hs.errors.UnsupportedModelError, match="does not put out what its weights say"):
            model.activations(tokens).at(0)
