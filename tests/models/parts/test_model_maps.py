"""Whole models, and their parts, against the Hugging Face module itself: value and both products."""

import json

import pytest
import torch
import transformers
from models.small_models import (
    CONFIGS,
    EVERY,
    PICTURES,
    SMALL,
    build,
    each,
    first,
    inputs,
    overheard,
    randomised,
    substituted,
    tolerance,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.maps.activations import ACTIVATIONS
from howsmooth.models.map_names import LayerSpan, MapName
from howsmooth.models.parts.ends import LANGUAGE_FAMILIES

# What the feed-forward part of a block reads and puts out: the input of one module, the output of another.
PARTS = {
    "albert": ("ffn", "ffn_output"),
    "bart": ("fc1", "fc2"),
    "bert": ("intermediate", "output.dense"),
    "bloom": ("mlp", "mlp.dense_4h_to_h"),
    "camembert": ("intermediate", "output.dense"),
    "distilbert": ("ffn", "ffn"),
    "deberta-v2": ("intermediate", "output.dense"),
    "electra": ("intermediate", "output.dense"),
    "mpnet": ("intermediate", "output.dense"),
    "opt": ("fc1", "fc2"),
    "roberta": ("intermediate", "output.dense"),
    "t5": ("layer.1.DenseReluDense", "layer.1.DenseReluDense"),
    "xlm-roberta": ("intermediate", "output.dense"),
}
# What a family's default configuration leaves out of the feed-forward part.
T5 = {"d_model": 24, "d_kv": 5, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
GATED_T5 = transformers.T5Config(**T5, feed_forward_proj="gated-gelu")


def products(g, X, E, G):
    """A function's value and both products by reverse mode alone: some modules have no other."""
    with sdpa_kernel(SDPBackend.MATH):
        leaf = X.clone().requires_grad_()
        value = g(leaf)
        cotangent = G.clone().requires_grad_()
        (pulled,) = torch.autograd.grad(value, leaf, cotangent, create_graph=True)
        (tangent,) = torch.autograd.grad(pulled, cotangent, E)
    return value.detach(), tangent, pulled.detach()


def rest(transformer, tokens, path, *, turn=0):
    """The last hidden states of the model as a function of what the part at a path reads."""
    part = dict(transformer.module.named_modules())[path]

    def output(X):
        turns = []

        def swap(_part, positional, named):
            turns.append(path)
            if len(turns) != turn + 1:
                return positional, named
            return ((X, *positional[1:]), named) if positional else (positional, named | {"hidden_states": X})

        hook = part.register_forward_pre_hook(swap, with_kwargs=True)
        try:
            return first(transformer.module(tokens))
        finally:
            hook.remove()

    return output


def agrees(f, g, X, rng, family, *, derivatives=True):
    if not derivatives:
        with torch.no_grad():
            return agrees_with(f(X), g(X), family)
    E = torch.randn(X.shape, dtype=torch.float64, generator=rng)
    G = torch.randn(f(X).shape, dtype=torch.float64, generator=rng)
    J = f.jacobian(X)
    for found, expected in zip((f(X), J.jvp(E), J.vjp(G)), products(g, X, E, G), strict=True):
        agrees_with(found, expected, family)
    return None


def agrees_with(found, expected, family):
    allowed = tolerance(family)
    if allowed:  # what a module rounds to float32 on its way is rounded in proportion
        allowed["atol"] *= max(1.0, float(expected.abs().max()))
    assert_close(found, expected, **allowed)


@pytest.mark.slow
@pytest.mark.parametrize("family", each(EVERY))
def test_whole_models_are_the_module_and_so_are_their_derivatives(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=5)
    found = transformer.activations(tokens)
    blocks = [layer.block_path for layer in transformer.layers]
    turn = blocks[:1].count(blocks[1])
    theirs = {
        "block": substituted(transformer, tokens, blocks[1], turn=turn),
        "from:1": rest(transformer, tokens, blocks[1], turn=turn),
        "model": rest(transformer, tokens, blocks[0]),
    }
    if not turn:  # layers that share their weights are heard at once
        theirs["to:1"] = substituted(transformer, tokens, blocks[0], hear=blocks[1])
    for name, g in theirs.items():
        f, X = found.at(1 if name == "block" else 0, name)
        agrees(f, g, X, rng, family, derivatives=name in ("block", "model"))  # the others are parts of the same chain


@pytest.mark.parametrize("family", each(CONFIGS))
def test_to_a_layer_is_what_the_next_one_reads(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=5)
    found, last = transformer.activations(tokens), len(transformer.layers) - 1
    f, X = found.at(0, f"to:{last - 1}")
    assert_close(f(X), found.blocks[last], **tolerance(family))
    whole, _same = found.at(0, f"to:{last}")
    part, Y = found.at(last, f"layers:{last}-{last}")
    assert_close(whole(X), part(Y), **tolerance(family))
    E = torch.randn(X.shape, dtype=torch.float64, generator=rng)
    # the chain rule
    assert_close(part.jacobian(f(X)).jvp(f.jacobian(X).jvp(E)), whole.jacobian(X).jvp(E))


@pytest.mark.parametrize("family", each(CONFIGS))
def test_the_network_begins_at_the_sum_of_the_embeddings(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=5)
    f, X = transformer.activations(tokens).at(0, "network")
    stem = transformer.ends.stem
    agrees(f, rest(transformer, tokens, stem.path or transformer.layers[0].block_path), X, rng, family)


def test_before_the_norm_of_berts_embeddings_there_is_a_sum(rng):
    transformer = build("bert")
    tokens = inputs("bert", rng, length=5)
    _f, X = transformer.activations(tokens).at(0, "network")
    own = transformer.module.embeddings
    types = own.token_type_embeddings.weight[0]
    assert_close(X, (own.word_embeddings(tokens) + own.position_embeddings.weight[:5] + types).detach())


@pytest.mark.parametrize("family", each(CONFIGS))
def test_the_mlp_is_the_modules_own(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=5)
    reads, writes = PARTS.get(family, ("mlp", "mlp"))
    paths = [f"{layer.block_path}.{part}" for layer in transformer.layers for part in (reads, writes)]
    with overheard(transformer.module, dict.fromkeys(paths)) as heard:
        found = transformer.activations(tokens)
    for layer in transformer.layers:
        f, X = found.at(layer.index, "mlp")
        (read, *_), _ = heard[f"{layer.block_path}.{reads}"]
        _, (written, *_) = heard[f"{layer.block_path}.{writes}"]
        if heard[f"{layer.block_path}.{reads}"][0][1:]:
            continue  # layers that share their weights were heard many times
        assert_close(X, read.reshape(X.shape).detach(), **tolerance(family))
        if reads == writes:  # what a module put out may have been added to since
            written = transformer.module.get_submodule(f"{layer.block_path}.{reads}")(read)
        assert_close(f(X), first(written).reshape(X.shape).detach(), **tolerance(family))


@pytest.mark.parametrize("family", each(CONFIGS))
def test_both_products_of_an_mlp_are_those_of_the_module(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=5)
    layer = transformer.layers[0]
    reads, writes = (f"{layer.block_path}.{part}" for part in PARTS.get(family, ("mlp", "mlp")))
    f, X = transformer.activations(tokens).at(0, "mlp")
    g = substituted(transformer, tokens, reads, hear=writes)
    with overheard(transformer.module, {reads: None}) as heard:
        transformer.module(tokens)
    shape = heard[reads][0][0].shape  # some modules lay all tokens of a batch in a row
    agrees(f, lambda X: g(X.reshape(shape)).reshape(X.shape), X, rng, family)


def test_a_gated_t5_is_read_whole(rng):
    transformer = hs.load(randomised(GATED_T5, rng))
    tokens = inputs("t5", rng, length=5)
    f, X = transformer.activations(tokens).at(0, "model")
    agrees(f, rest(transformer, tokens, transformer.layers[0].block_path), X, rng, "t5")


@pytest.mark.parametrize("act", ["gelu_10", "mish", "laplace"])
def test_an_activation_without_a_closed_form_is_differentiated(act, rng):
    transformer = hs.load(randomised(transformers.BertConfig(**SMALL, hidden_act=act), rng))
    tokens = inputs("bert", rng, length=5)
    f, X = transformer.activations(tokens).at(0, "model")
    agrees(f, rest(transformer, tokens, transformer.layers[0].block_path), X, rng, "bert")


ACTS = ["gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate"]


@pytest.mark.parametrize("act", [*ACTS, "quick_gelu", "relu", "relu2", "silu", "swish", "tanh", "linear"])
def test_activations_are_read_from_the_module(act, rng):
    transformer = hs.load(randomised(transformers.BertConfig(**SMALL, hidden_act=act), rng))
    own = transformer.module.encoder.layer[0].intermediate.intermediate_act_fn
    read, x = transformer.layers[0].feed_forward.map.activation, torch.linspace(-3, 3, 41).double()
    assert read in ACTIVATIONS.values()
    assert_close(read.value(x), own(x), rtol=1e-7, atol=1e-9)  # gelu_fast rounds a constant to ten digits


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral", "bloom"])
def test_a_padded_model_is_that_of_the_sentence_alone(family, rng):
    transformer = build(family, tie_word_embeddings=True)
    tokens, real = inputs(family, rng, batch=1, length=7), torch.arange(7)[None] < 5
    padded, bare = transformer.activations(tokens, padding=real), transformer.activations(tokens[:, :5])
    for name in ("model", "mlp", "block", "logits" if family in LANGUAGE_FAMILIES else "sentence"):
        f, X = padded.at(0, name)
        g, Y = bare.at(0, name)
        E = torch.randn(X.shape, dtype=torch.float64, generator=rng)
        moved, alone = f.jacobian(X).jvp(E), g.jacobian(Y).jvp(E[:, :5])
        assert_close(moved[:, : alone.shape[1]], alone, **tolerance(family))
        pulled = f.jacobian(X).vjp(moved)
        assert_close(pulled[:, :5], g.jacobian(Y).vjp(alone), **tolerance(family))
        assert not pulled[:, 5:].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "sentence"])
def test_the_whole_of_a_batch_is_that_of_each_of_its_sequences(name, rng):
    transformer = build("bert")
    tokens = inputs("bert", rng, batch=3, length=5)
    f, X = transformer.activations(tokens).at(0, name)
    estimate = hs.local_lipschitz(f, X, seed=rng)
    for b in range(3):
        alone = hs.local_lipschitz(*transformer.activations(tokens[b : b + 1]).at(0, name), seed=rng)
        assert_close(estimate.lower[b : b + 1], alone.lower, rtol=1e-3, atol=0)  # the measurement's own rtol


def test_experts_leave_a_batch_as_everything_else_does(rng):
    transformer = build("mixtral")
    f, X = transformer.activations(inputs("mixtral", rng, batch=3, length=5)).at(0, "model")
    J, E = f.jacobian(X), torch.randn(X.shape, dtype=torch.float64, generator=rng)
    index = torch.tensor([2, 0])
    assert_close(J.take(index).jvp(E[index]), J.jvp(E)[index])
    assert f.to(torch.float64).dtype == torch.float64


HEADED = sorted(LANGUAGE_FAMILIES & set(CONFIGS))


@pytest.mark.parametrize("family", each(HEADED))
def test_logits_are_the_scores_of_the_next_word(family, rng):
    config = CONFIGS[family]()
    config.tie_word_embeddings = False
    config.use_cache = False
    config.logits_scaling, config.final_logit_softcapping = 8.0, 5.0
    config._attn_implementation = "eager"
    model = randomised(config, rng, build=transformers.AutoModelForCausalLM.from_config)
    tokens = inputs(family, rng, length=5)
    f, X = hs.load(model).activations(tokens).at(0, "logits")
    # some take the softmax in float32
    assert_close(f(X), model(tokens).logits[:, -1:].detach(), rtol=1e-5, atol=1e-5)
    assert f.jacobian(X).codomain == (1, 50)


def test_a_tied_head_is_the_embeddings(rng):
    transformer = build("gpt2")
    tokens = inputs("gpt2", rng, length=5)
    f, X = transformer.activations(tokens).at(0, "logits")
    states = transformer.module(tokens).last_hidden_state[:, -1:]
    assert_close(f(X), (states @ transformer.module.wte.weight.mT).detach())


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_keeps_its_head(tied, tmp_path, rng):
    config = CONFIGS["llama"]()
    config.tie_word_embeddings = tied
    model = randomised(config, rng, build=transformers.AutoModelForCausalLM.from_config)
    model.save_pretrained(tmp_path)
    transformer = hs.load(str(tmp_path), dtype=torch.float64)
    tokens = inputs("llama", rng, length=5)
    f, X = transformer.activations(tokens).at(0, "logits")
    assert_close(f(X), model(tokens).logits[:, -1:].detach(), rtol=1e-5, atol=1e-5)
    assert transformer.digest == hs.load(model).digest


@pytest.mark.parametrize("family", ["albert", "bert", "modernbert", "mpnet", "t5"])
def test_the_sentence_of_an_encoder_is_the_mean_on_the_sphere(family, rng):
    transformer = build(family)
    tokens = inputs(family, rng, length=5)
    f, X = transformer.activations(tokens).at(0, "sentence")
    mean = first(transformer.module(tokens)).mean(1, keepdim=True).detach()
    assert_close(f(X), torch.nn.functional.normalize(mean, dim=-1), **tolerance(family))


def sentence_folder(folder, *, mode="pooling_mode_cls_token", kinds=("Transformer", "Pooling")):
    build("bert").module.save_pretrained(folder)
    listed = [{"idx": i, "path": f"{i}_{kind}", "type": f"some.models.{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    said = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": False, mode: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    return hs.load(str(folder), dtype=torch.float64)


MODES = {"pooling_mode_cls_token": 0, "pooling_mode_lasttoken": -1}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("normalised", [False, True])
def test_a_sentence_is_what_the_folder_says(mode, normalised, tmp_path, rng):
    kinds = ("Transformer", "Pooling", "Normalize") if normalised else ("Transformer", "Pooling")
    transformer = sentence_folder(tmp_path, mode=mode, kinds=kinds)
    tokens = inputs("bert", rng, length=5)
    f, X = transformer.activations(tokens).at(0, "sentence")
    token = transformer.module(tokens).last_hidden_state[:, MODES[mode]].unsqueeze(1).detach()
    assert_close(f(X), torch.nn.functional.normalize(token, dim=-1) if normalised else token)


@pytest.mark.parametrize(
    "odd", [{"mode": "pooling_mode_max_tokens"}, {"kinds": ("Transformer", "Pooling", "Dense")}], ids=str
)
def test_a_sentence_that_is_made_otherwise_is_refused(odd, tmp_path, rng):
    transformer = sentence_folder(tmp_path, **odd)
    with pytest.raises(hs.errors.AssumptionError, match="not read here") as caught:
        transformer.check_map("sentence")
    assert caught.value.field == "map"
    transformer.check_map("model")


@pytest.mark.parametrize("family", ["codegen", "mbart"])
def test_the_whole_of_an_unknown_family_is_run_and_differentiated(family, rng):
    from models.unknown_models import unknown_model

    transformer = unknown_model(family)
    tokens = inputs(family, rng, length=4)
    found, blocks = transformer.activations(tokens), [layer.block_path for layer in transformer.layers]
    f, X = found.at(0, "model")
    assert_close(f(-X), rest(transformer, tokens, blocks[0])(-X))
    f, _X = found.at(0, "to:0")
    assert_close(f(X), found.blocks[1])
    f, Y = found.at(1, "from:1")
    assert_close(f(-Y), rest(transformer, tokens, blocks[1])(-Y))
    J, E = hs.spectral.JacobianOperator(f, Y), torch.randn(Y.shape, dtype=torch.float64, generator=rng)
    _value, tangent, _pulled = products(rest(transformer, tokens, blocks[1]), Y, E, torch.zeros_like(f(Y)))
    assert_close(J.jvp(E), tangent)
    for name in ("network", "logits", "sentence"):
        with pytest.raises(hs.errors.AssumptionError, match=f"no map '{name}'.*it has model, to:3") as caught:
            found.at(0, name)
        assert caught.value.field == "map"


@pytest.mark.parametrize(
    ("family", "name", "words"),
    [
        ("bert", "logits", "has no map 'logits'.*it has model, network, sentence, to:3"),
        ("gpt2", "sentence", "is a decoder.*it has model, network, logits, to:3"),
        ("llama", "logits", "without a head"),
        ("vit", "sentence", "reads no text"),
        ("bert", "to:2", "layers 0 to 1, got the map 'to:2'"),
        ("bert", "from:9", "layers 0 to 1"),
        ("bert", "layers:0-2", "layers 0 to 1"),
        ("bert", "layers:1-0", "holds no layer.*layers:0-1"),
        ("bert", "to:x", "by their numbers"),
        ("bert", "layers:1", "by their numbers"),
        ("bert", "from:-1", "by their numbers"),
    ],
)
def test_a_map_that_a_model_has_not_is_refused_with_those_that_it_has(family, name, words, rng):
    transformer = build(family)
    for act in (lambda: transformer.check_map(name), lambda: transformer.activations(inputs(family, rng)).at(0, name)):
        with pytest.raises(hs.errors.AssumptionError, match=words) as caught:
            act()
        assert caught.value.field == "map"
        assert len(str(caught.value).splitlines()) == 1


def test_a_map_that_begins_elsewhere_is_refused(rng):
    found = build("bert").activations(inputs("bert", rng))
    with pytest.raises(hs.errors.AssumptionError, match="begins at layer 0, got layer 1") as caught:
        found.at(1, "model")
    assert caught.value.field == "layer"
    with pytest.raises(hs.errors.AssumptionError, match="not of one layer"):
        found.layers[0].map("model")


def test_names_stand_for_layers():
    assert MapName.parse("model").span(6) == LayerSpan(first=0, last=5, to_the_end=True)
    assert MapName.parse("network").span(6) == LayerSpan(first=0, last=5, from_embeddings=True, to_the_end=True)
    assert MapName.parse("to:3").span(6) == LayerSpan(first=0, last=3)
    assert MapName.parse("from:3").span(6) == LayerSpan(first=3, last=5, to_the_end=True)
    assert MapName.parse("layers:2-4").span(6) == LayerSpan(first=2, last=4)


def test_pictures_are_read_whole_too(rng):
    for family in sorted(PICTURES):
        f, X = build(family).activations(inputs(family, rng)).at(0, "model")
        assert f(X).shape == X.shape
