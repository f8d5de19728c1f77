"""Folders of forty families, exact and by autograd: every number against a dense Jacobian of the module in float64."""

import copy

import pytest
import torch
from models.small_models import CONFIGS, EAGER, randomised, substituted
from models.test_layer_maps import SUMS
from models.unknown_models import ATTENTION, UNKNOWN
from models.unknown_models import SUMS as UNKNOWN_SUMS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.spectral.autograd import linearise

N, LONGER = 6, 8  # longer than the windows
# Gemma has a test of its own: in half precision it multiplies its embeddings with a number that is rounded too.
KNOWN = (
    *("albert", "bart", "bert", "bloom", "clip_text_model", "distilbert", "falcon", "gpt2", "granite", "opt"),
    *("llama", "mixtral", "modernbert", "mpnet", "olmo2", "qwen3", "t5"),
)
DTYPES = (torch.float32, torch.bfloat16)
QUICK = ("gpt2",)


def folder(family, tmp_path, rng):
    """A model in float64 whose weights half precision holds exactly, and its folders in float32 and bfloat16."""
    config = (CONFIGS | UNKNOWN)[family]()
    if family in EAGER:
        config._attn_implementation = "eager"
    model = randomised(config, rng)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().double()
    for dtype in DTYPES:
        copy.deepcopy(model).to(dtype).save_pretrained(tmp_path / str(dtype))
    model.config.use_cache = False
    return hs.load(model)


def dense(g, X):
    with sdpa_kernel(SDPBackend.MATH):
        rows = torch.autograd.functional.jacobian(g, X, vectorize=True)
    return torch.linalg.matrix_norm(rows.reshape(-1, X.numel()), 2)


def by_hand(family, transformer, tokens):
    """The three maps of the second layer as the modules compute them, at one sentence alone."""
    layer, found = transformer.layers[1], transformer.activations(tokens)
    attends = f"{layer.block_path}.{ATTENTION[family]}" if family in ATTENTION else layer.projection_path
    turn = [other.block_path for other in transformer.layers].index(
        layer.block_path
    ) != 1  # shared weights run once before
    swapped = {"attention": substituted(transformer, tokens, layer.attention_path, turn=turn, hear=attends)}
    if (SUMS | UNKNOWN_SUMS).get(family):
        part, side = (SUMS | UNKNOWN_SUMS)[family]
        adds = substituted(
            transformer,
            tokens,
            layer.block_path,
            turn=turn,
            hear=f"{layer.block_path}.{part}",
            side=side.replace("adds", "writes"),
        )
        swapped["residual"] = (lambda X: X + adds(X)) if side == "adds" else adds
        swapped["block"] = substituted(transformer, tokens, layer.block_path, turn=turn)
    inputs = {name: found.attention[1] if name == "attention" else found.blocks[1] for name in swapped}
    return {name: dense(g, inputs[name]) for name, g in swapped.items()}


def brackets(pair, constant, rng):
    estimate = hs.local_lipschitz(*pair, confidence=1 - 1e-9, seed=rng)  # of hundreds of brackets none may miss
    # the measurement's own rtol, and what float32 leaves of it
    assert float(estimate.lower[-1]) == pytest.approx(float(constant), rel=2e-3)
    assert float(estimate.upper[-1]) >= float(constant) * (1 - 1e-4)


def same_numbers(single, half, names):
    """Half precision holds these weights exactly: the same values and the same products, to the last bit."""
    for name in names:
        (f, X), (g, Y) = single.at(1, name), half.at(1, name)
        assert_close(Y, X, rtol=0, atol=0)
        assert_close(g(Y), f(X), rtol=0, atol=0)
        J, K = linearise(f, X), linearise(g, Y)
        assert_close(K.jvp(X), J.jvp(X), rtol=0, atol=0)
        assert_close(K.vjp(f(X)), J.vjp(f(X)), rtol=0, atol=0)


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in (*KNOWN, *UNKNOWN)]
)
def test_a_folder_is_measured_right_padded_and_not_in_float32_and_in_half_precision(family, tmp_path, rng):
    exact = folder(family, tmp_path, rng)
    tokens = torch.randint(3, 50, (2, LONGER), generator=rng)
    padding = torch.arange(LONGER) < torch.tensor([[LONGER], [N]])
    constants = by_hand(family, exact, tokens[1:, :N])
    single, half = (hs.load(str(tmp_path / str(dtype))) for dtype in DTYPES)
    padded, alone = single.activations(tokens, padding=padding), single.activations(tokens[1:, :N])
    for name, constant in constants.items():
        brackets(padded.at(1, name), constant, rng)
    alones = "residual" if "residual" in constants else "attention"  # the other parts alone: in the tests of families
    brackets(alone.at(1, alones), constants[alones], rng)
    if family in KNOWN:  # there is no vocabulary, and the loader would make up one to which every word is unknown
        assert single.tokenizer is half.tokenizer is None
    assert not any("bfloat16" in note for note in single.notes)
    assert any("bfloat16" in note for note in half.notes)
    same_numbers(padded, half.activations(tokens, padding=padding), constants)
    for name in {"attention", "residual", "block"} - set(constants):
        with pytest.raises(hs.errors.AssumptionError, match="no module is a block"):
            padded.at(1, name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
def test_gemma_in_half_precision_differs_by_the_scale_of_its_embeddings_and_by_nothing_else(family, tmp_path, rng):
    exact = folder(family, tmp_path, rng)
    tokens = torch.randint(3, 50, (1, N), generator=rng)
    halved = hs.load(str(tmp_path / str(torch.bfloat16)), dtype=torch.float64)
    scale = halved.module.embed_tokens.embed_scale
    assert float(scale) == 4.90625  # which half precision makes of √24 = 4.898…
    before = exact.activations(tokens).blocks[1]
    exact.module.embed_tokens.embed_scale.copy_(scale)
    one, other = exact.activations(tokens), halved.activations(tokens)
    assert (before - other.blocks[1]).norm() > 1e-4 * before.norm()
    for name in ("attention", "residual", "block"):
        f, X = one.at(1, name)
        g, Y = other.at(1, name)
        assert_close(X, Y)
        assert_close(f(X), g(Y))
