"""A small classifier of sentences in a folder, with every parameter random and the words of ``reviews``."""

import pytest
import torch
import transformers

from howsmooth.models.loading.names import built_in_path

SHAPE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


@pytest.fixture(scope="session")
def save_classifier(tmp_path_factory):
    """Save a small classifier with so many classes."""

    def save(labels=2, seed=0):
        folder = tmp_path_factory.mktemp("classifiers") / f"{labels}-{seed}"
        config = transformers.BertConfig(vocab_size=4004, max_position_embeddings=20, num_labels=labels, **SHAPE)
        module = transformers.BertForSequenceClassification(config)
        rng = torch.Generator().manual_seed(seed)
        for name, parameter in module.named_parameters():
            # a bias may decide alone, and norms with small gains leave nothing to tell apart
            scale, centre = 0.1 if name.endswith("bias") else 0.5, float(name.endswith("LayerNorm.weight"))
            parameter.data = centre + scale * torch.randn(parameter.shape, generator=rng)
        module.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(built_in_path("reviews")).save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def small_classifier(save_classifier):
    """Return a folder with a small classifier of two classes."""
    return save_classifier()
