"""Models of the transformers library, and plain modules, with attention that has every derivative."""

import copy
import functools

import pytest
import torch
import transformers
from torch import nn
from torch.func import functional_call, grad, jvp
from torch.nn import functional
from torch.testing import assert_close

import howsmooth as hs
import howsmooth.models.attention_interface
from howsmooth.scaled_dot_product import TORCH_SDPA

SMALL = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip


def random_model(family, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SMALL | options))
    return transformers.AutoModelForCausalLM.from_config(config).double().eval()


def embedded(model, ids, mask=None):
    """The model as a function of its embeddings."""
    X = model.get_input_embeddings()(ids).detach()
    return lambda X: model(inputs_embeds=X, attention_mask=mask, use_cache=False)[0], X


def require_same_model_with_every_derivative(model, ids, mask=None):
    """Compare values with those of torch's kernel and a derivative with differences; the model may be changed."""
    for norm in [part for part in model.modules() if type(part).__name__.endswith("RMSNorm")]:
        # the library computes these in float32, which leaves no digits to differences
        gain = norm.weight.detach() + type(norm).__name__.startswith("Gemma")
        eps = getattr(norm, "variance_epsilon", None) or norm.eps
        norm.forward = functools.partial(functional.rms_norm, normalized_shape=gain.shape, weight=gain, eps=eps)
    model.set_attn_implementation("sdpa")
    f, X = embedded(model, ids, mask)
    with torch.no_grad():
        expected = f(X)
    model.set_attn_implementation("howsmooth")
    E, step = torch.randn_like(X) * X.std(), 1e-5
    value, pushed = jvp(f, (X,), (E,))
    assert_close(value, expected)
    with torch.no_grad():
        difference = (f(X + step * E) - f(X - step * E)) / (2 * step)
    assert float((pushed.detach() - difference).norm()) <= 1e-6 * float(difference.norm())


def require_same_words(model, ids, mask=None):
    made, before = [], model.config._attn_implementation
    for name in ("sdpa", "howsmooth"):
        model.set_attn_implementation(name)
        made.append(model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0))
    model.set_attn_implementation(before)
    assert torch.equal(*made)


def test_a_random_gemma_3_with_windows_and_a_qwen_3_are_unchanged_and_differentiable(rng):
    ids = torch.randint(3, 50, (2, 9), generator=rng)
    left_padded = torch.ones(2, 9, dtype=torch.long)
    left_padded[1, :3] = 0
    gemma = random_model("Gemma3Text", sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    qwen = random_model("Qwen3")
    for model in (gemma, qwen):
        require_same_words(model, ids, left_padded)
        require_same_model_with_every_derivative(model, ids, left_padded)
    # second derivatives
    f, X = embedded(qwen, ids)
    curved = []
    for name in ("howsmooth", "eager"):
        qwen.set_attn_implementation(name)
        curved.append(jvp(grad(lambda X: f(X).square().sum()), (X,), (X,))[1].detach())
    assert_close(*curved, rtol=1e-4, atol=1e-5)  # the softmax of "eager" computes in float32


@pytest.mark.slow
@pytest.mark.untyped  # the compiler would trace the checks, too
def test_a_compiled_model_is_one_graph(rng):
    model, ids = random_model("Qwen3", num_hidden_layers=1), torch.randint(3, 50, (1, 6), generator=rng)
    with torch.no_grad():
        expected = model(ids).logits
        model.set_attn_implementation("howsmooth")
        assert_close(torch.compile(model, backend="eager", fullgraph=True)(ids).logits, expected)


def test_minilm_is_unchanged_and_differentiable(minilm, rng):
    ids = torch.randint(1000, 2000, (2, 12), generator=rng)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 8:] = 0
    require_same_model_with_every_derivative(copy.deepcopy(minilm.module).double(), ids, mask)


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_smollm2_is_unchanged_and_differentiable(smollm2, rng):
    ids = torch.randint(1000, 2000, (1, 6), generator=rng)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(smollm2.module.config)
    model.model, model.lm_head.weight = smollm2.module, smollm2.module.embed_tokens.weight
    require_same_words(model, ids)
    require_same_model_with_every_derivative(copy.deepcopy(smollm2.module).double(), ids)


def test_torch_s_encoder_has_forward_mode_and_is_as_it_was_afterwards(rng):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    X, E = torch.randn(2, 3, 5, 8, dtype=torch.float64, generator=rng).unbind()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad():  # torch's fast path would be taken here
        with hs.use_sdpa(encoder) as same:
            value, pushed = jvp(lambda X: same(X, src_key_padding_mask=padding), (X,), (E,))
            ahead, behind = (encoder(X + h * E, src_key_padding_mask=padding) for h in (1e-5, -1e-5))
        assert_close(value[~padding], encoder(X, src_key_padding_mask=padding)[~padding])
    assert_close(pushed, (ahead - behind) / 2e-5, rtol=1e-5, atol=1e-7)
    assert functional.scaled_dot_product_attention is TORCH_SDPA
    assert torch.backends.mha.get_fastpath_enabled()
    assert all("forward" not in vars(part) for part in encoder.modules())


def test_checkpointed_parts_run_again_as_they_ran_before(rng):
    model = random_model("Qwen3").train()
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # renamed in transformers
    getattr(model, f"{kind}_checkpointing_enable")()
    ids = torch.randint(3, 50, (1, 6), generator=rng)
    parameters = dict(model.named_parameters())
    with hs.use_sdpa(model):
        model(ids, labels=ids).loss.backward()
    found = {name: x.grad for name, x in parameters.items()}
    getattr(model, f"{kind}_checkpointing_disable")()
    model.zero_grad()
    functional_call(model, parameters, (ids,), {"labels": ids}).loss.backward()
    assert_close(found, {name: x.grad for name, x in parameters.items()})


def test_unknown_callables_are_measured_with_it(rng, monkeypatch):
    called = []
    monkeypatch.setattr("howsmooth.scaled_dot_product._check", lambda *_args, **_named: called.append(True))
    X = torch.randn(4, 3, dtype=torch.float64, generator=rng)
    found = hs.local_lipschitz(lambda X: functional.scaled_dot_product_attention(X, X, X), X)
    assert called
    head = hs.Attention.single_head(A=torch.eye(3).double() / 3**0.5, V=torch.eye(3).double())
    exact = hs.local_lipschitz(head, X)
    assert_close(found.lower, exact.lower, rtol=1e-2, atol=0.0)
