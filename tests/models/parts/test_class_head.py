"""Classifiers of sentences: from the sum of the embeddings to the scores of labels, as the module computes them."""

import pytest
import torch
import transformers
from models.small_models import CONFIGS, each, randomised

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.models.parts.ends import LAST_TOKEN_HEADS

SMALL = {"vocab_size": 50, "num_labels": 3}
WIDE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
BERTS = ("bert", "roberta", "electra", "mpnet", "albert", "xlm-roberta", "camembert")
SHAPES = {
    **dict.fromkeys(BERTS, WIDE | {"max_position_embeddings": 20}),
    "distilbert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12},
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2},
    "llama": WIDE | {"num_key_value_heads": 1, "pad_token_id": 0},
    "qwen2": WIDE | {"num_key_value_heads": 1, "pad_token_id": 0},
}
TOKENS = torch.tensor([[5, 9, 7, 12, 31]])


def classifier(family):
    config = transformers.AutoConfig.for_model(family, **SMALL, **SHAPES[family])
    config.embedding_size = 8
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_config(config).double().eval()


@pytest.mark.parametrize("family", SHAPES)
def test_the_map_classes_is_the_classifier(family):
    module = classifier(family)
    f, X = hs.load(module).activations(TOKENS).at(0, "classes")
    torch.testing.assert_close(f(X)[:, 0], module(TOKENS).logits)
    assert X.shape == (1, 5, 8)


def test_a_folder_with_a_classifier_is_loaded_with_it(tmp_path):
    module = classifier("bert").float()
    module.save_pretrained(tmp_path)
    f, X = hs.load(str(tmp_path)).activations(TOKENS).at(0, "classes")
    torch.testing.assert_close(f(X)[:, 0], module(TOKENS).logits, rtol=1e-4, atol=1e-5)


def test_a_classifier_is_read_in_other_numbers_than_its_own(tmp_path):
    module = classifier("bert").float()
    module.save_pretrained(tmp_path)
    f, X = hs.load(str(tmp_path), dtype=torch.float64).activations(TOKENS).at(0, "classes")
    assert f(X).dtype == torch.float64
    torch.testing.assert_close(f(X)[:, 0], module.double()(TOKENS).logits)


def test_a_model_without_a_classifier_says_so():
    module = classifier("bert").base_model
    with pytest.raises(AssumptionError, match="not trained to classify"):
        hs.load(module).activations(TOKENS).at(0, "classes")


PAD, EOS = 0, 7
SENTENCES = (
    [5, 9, 12, PAD, PAD],  # pads behind
    [5, PAD, 9, 12, 31],  # inside
    [5, PAD, 9, PAD],  # inside and behind
    [PAD, PAD, 5, 9],  # in front
    [5, 9, 12, 31],  # none
    [5, 9, 12, EOS],  # the end of the sentence
    [PAD, PAD, PAD],  # nothing but pads
)


def batches(pad):
    """Sentences of one length together; without a padding token the modules take one at a time."""
    if pad is None:
        return [torch.tensor([sentence]) for sentence in SENTENCES[-2:]]
    return [torch.tensor([sentence for sentence in SENTENCES if len(sentence) == n]) for n in (5, 4, 3)]


@pytest.mark.parametrize("family", each(sorted(LAST_TOKEN_HEADS)))
def test_a_head_on_the_last_token_takes_the_last_one_that_is_not_padding(family, rng):
    config = CONFIGS[family]()
    config.num_labels = 3
    module = randomised(config, rng, build=transformers.AutoModelForSequenceClassification.from_config)
    for pad in (PAD, EOS, None):
        module.config.pad_token_id = pad
        model = hs.load(module)
        for tokens in batches(pad):
            f, X = model.activations(tokens).at(0, "classes")
            with torch.no_grad():
                torch.testing.assert_close(f(X)[:, 0], module(tokens).logits, rtol=1e-4, atol=1e-4)


def test_padded_sequences_of_a_batch_have_the_scores_that_they_have_alone(rng):
    config = CONFIGS["gpt2"]()
    config.num_labels, config.pad_token_id = 3, None
    model = hs.load(randomised(config, rng, build=transformers.AutoModelForSequenceClassification.from_config))
    tokens = torch.tensor([[5, 9, 12, 31], [5, 9, 4, 4]])
    f, X = model.activations(tokens, padding=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()).at(0, "classes")
    alone, Y = model.activations(tokens[1:, :2]).at(0, "classes")
    torch.testing.assert_close(f(X)[1], alone(Y)[0])
