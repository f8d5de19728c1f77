"""Models, layers and activations show themselves."""

import torch
from models.small_models import build, inputs
from models.unknown_models import unknown_model


def test_a_model_shows_its_layers_and_its_notes():
    known, other = build("gpt2"), unknown_model("roformer")
    page = known._repr_html_()
    assert page.count("<tr>") == 3
    assert "Attention(heads=4, d=24" in page
    assert "normed" in page
    page = other._repr_html_()
    assert "by autograd" in page
    assert "Note: the family &#x27;roformer&#x27; has no closed form here" in page
    assert "normed" not in page  # its norm comes behind


def test_a_layer_says_what_can_be_measured_of_it():
    assert repr(build("bert").layers[1]) == (
        "AttentionLayer(layer 1, Attention(heads=4, d=24, k=6, v=6, out=24, torch.float64))"
    )
    assert repr(unknown_model("roformer").layers[0]) == (
        "AttentionLayer(layer 0, by autograd: attention, heads, head:0, residual, block)"
    )
    assert repr(unknown_model("xlm").layers[0]) == "AttentionLayer(layer 0, by autograd: attention, heads, head:0)"
    assert "by autograd" in unknown_model("xlm").layers[0]._repr_html_()


def test_activations_say_what_was_run(rng):
    transformer, tokens = build("bert"), inputs("bert", rng)
    assert repr(transformer.activations(tokens)) == "Activations(2 × 9 tokens, d = 24, 2 layers)"
    padding = torch.arange(9) < torch.tensor([[9], [4]])
    padded = transformer.activations(tokens, padding=padding)
    assert repr(padded) == "Activations(2 × 9 tokens, d = 24, 2 layers, 13 of 18 tokens real)"
    radius = float(padded.attention[0][padding].norm(dim=-1).square().mean().sqrt())
    assert f"<td>{radius:.3g}</td>" in padded._repr_html_()
