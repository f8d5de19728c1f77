"""Models whose weights are quantised are refused in one sentence, whoever has quantised them."""

import pytest
import torch
import transformers
from models.small_models import SMALL, randomised
from torch import nn

import howsmooth as hs

TOKENS = torch.tensor([[5, 9, 7, 12, 31]])


class PackedLinear(nn.Linear):
    """Eight bits for each weight and a scale for each row, as the usual quantisers keep them."""

    @classmethod
    def of(cls, linear, *, buffer):
        packed = cls(linear.in_features, linear.out_features)
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        codes = (linear.weight.detach() / scale).round().to(torch.int8)
        if buffer:
            del packed.weight
            packed.register_buffer("codes", codes)
        else:
            packed.weight = nn.Parameter(codes, requires_grad=False)
        packed.register_buffer("scale", scale)
        packed.bias = linear.bias
        return packed

    def forward(self, X):
        codes = self.codes if hasattr(self, "codes") else self.weight
        return nn.functional.linear(X, codes.to(X) * self.scale, self.bias)


@pytest.fixture
def module(rng):
    return randomised(transformers.BertConfig(**SMALL), rng).float()


def swap(module, make):
    for path, part in list(module.named_modules()):
        if isinstance(part, nn.Linear):
            module.set_submodule(path, make(part))
    return module


def packed(module):
    return swap(module, lambda linear: PackedLinear.of(linear, buffer=False))


def dynamic(module):
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)


def torchao(module):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(module, Int8WeightOnlyConfig())
    return module


def quanto(module):
    from optimum.quanto import freeze, qint8, quantize

    quantize(module, weights=qint8)
    freeze(module)
    return module


def bitsandbytes_of_eight_bits(module):
    import bitsandbytes

    def make(linear):
        found = bitsandbytes.nn.Linear8bitLt(linear.in_features, linear.out_features, has_fp16_weights=False)
        found.load_state_dict(linear.state_dict())
        return found.to("cpu")

    return swap(module, make)


def bitsandbytes_of_four_bits(module):
    import bitsandbytes

    def make(linear):
        found = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features)
        found.load_state_dict(linear.state_dict())
        return found.to("cpu")

    return swap(module, make)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "quantise", [packed, dynamic, torchao, quanto, bitsandbytes_of_eight_bits, bitsandbytes_of_four_bits]
)
def test_quantised_weights_are_refused_in_one_sentence(quantise, module):
    try:
        module = quantise(module)
    except ImportError as error:
        pytest.skip(str(error))
    with pytest.raises(hs.errors.UnsupportedModelError, match="are quantised, which is not read here") as caught:
        hs.load(module)
    assert "'encoder.layer.0.attention.self.query'" in str(caught.value)
    assert caught.value.field == "model"


def test_layers_that_cannot_be_read_are_differentiated_by_autograd(module):
    swap(module, lambda linear: PackedLinear.of(linear, buffer=True))
    model = hs.load(module)
    assert "differentiated by autograd" in model.notes[-1]
    f, X = model.activations(TOKENS).at(0, "block")
    torch.testing.assert_close(f(X), module.encoder.layer[0](X))
