"""A small language model whose Fisher metric can be written down."""

import pytest
import torch
import transformers
from models.small_models import GROUPED, randomised

import howsmooth as hs

END = {"bos_token_id": 0, "eos_token_id": 0}
LANGUAGE = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "gpt2": lambda: transformers.GPT2Config(n_embd=24, n_layer=2, n_head=4, vocab_size=50, n_positions=40, **END),
}


def language_model(family):
    """Return a language model with random weights, in float64, whose output is neither flat nor certain."""
    generator = torch.Generator().manual_seed(3)
    model = randomised(LANGUAGE[family](), generator, build=transformers.AutoModelForCausalLM.from_config)
    return hs.load(model.double().eval())


@pytest.fixture(scope="session")
def llama():
    return language_model("llama")


@pytest.fixture(scope="session")
def gpt2():
    return language_model("gpt2")


@pytest.fixture(scope="session")
def windows():
    return torch.randint(3, 50, (3, 7), generator=torch.Generator().manual_seed(0))
