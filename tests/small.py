"""One small model in a folder, and the beginning of a book: what studies and their commands are tried on."""

import pickle

import pytest
import torch
import transformers

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.names import built_in_path
from howsmooth.theory.results import BoundsTable

SMALL = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "vocab_size": 30522,
    "max_position_embeddings": 40,
}


@pytest.fixture(scope="session")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(built_in_path("minilm"))


@pytest.fixture(scope="session")
def beginning(tmp_path_factory):
    """Return a file with the beginning of the book: the whole of it takes longer to cut than a model to measure."""
    path = tmp_path_factory.mktemp("text") / "beginning.txt"
    path.write_text(read_text().content[:2000], encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def module():
    """Build a small model with every parameter random: biases start at zero and hide a forgotten one."""

    def build(family="bert", seed=0, **more):
        if family == "llama":
            more = {"num_key_value_heads": 1, "attention_bias": True} | more
        config = transformers.CONFIG_MAPPING[family](**SMALL, **more)
        if family != "roformer":  # which knows none but its own
            config._attn_implementation = "sdpa"
        found = transformers.AutoModel.from_config(config)
        rng = torch.Generator().manual_seed(seed)
        for parameter in found.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=rng)
        return found

    return build


@pytest.fixture(scope="session")
def save_model(module, tokenizer):
    """Save a small model with its tokenizer in a folder."""

    def save(folder, seed=0):
        module(seed=seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def folder_model(save_model, tmp_path_factory):
    """Return a folder with a small model: what other processes can load."""
    return save_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session", autouse=True)
def bounds_once():
    """Bound a layer from above alone, and once a session: all bounds take most of the time of a small measurement."""
    from howsmooth.studies.runs import run_metadata

    known = {}

    def table(f, *, n, radius, heads, metric):
        key = pickle.dumps((f, n, radius, metric))
        if key not in known:
            known[key] = BoundsTable(bounds=(hs.bounds.smallest_upper(f, n=n, radius=radius, metric=metric),))
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_metadata, "table", table)
        yield
