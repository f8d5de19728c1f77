"""Modules that are read by way of ONNX: what a trace at one input does not show is refused, what it shows is read."""

import random

import pytest
import torch
import transformers
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune
from torch.testing import assert_close

import howsmooth as hs

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from howsmooth.errors import AssumptionError
from howsmooth.verification import Property, read_module


class Tokens(nn.Module):
    """A residual block, a step of one's own, and a head on the mean of the tokens."""

    def __init__(self, step=lambda x: x, head=None):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 2)
        self.dropout, self.step = nn.Dropout(0.5), step
        self.eval()

    def forward(self, x):
        x = x + self.down(torch.tanh(self.up(x)))
        return self.head(self.step(x).mean(1))


def turned_where_large(x):
    if x.abs().max() > 6:
        x = -x
    return x


def written_into_a_list(x):
    return x * max(map(max, x[0].tolist()))


STEPS = {
    "a branch": (turned_where_large, r"Tokens looks at numbers .*test_modules\.py:\d+ \(if x\.abs\(\)\.max\(\) > 6:\)"),
    "a number": (lambda x: x / x.abs().max().item(), r"looks at numbers .*test_modules\.py:\d+ "),
    "a list": (written_into_a_list, r"tolist.*test_modules\.py:\d+ \(return x \* max"),
    "an array": (lambda x: x + torch.from_numpy(x.numpy().round()), r"numpy.*test_modules\.py:\d+ "),
    "a shape": (lambda x: x * len(x.nonzero()), r"looks at numbers .*test_modules\.py:\d+ "),
    "dropout": (lambda x: nn.functional.dropout(x, training=True), "Tokens draws random numbers"),
    "chance": (lambda x: x * random.random(), "from one run to the next"),
    "two outputs": (lambda x: (x, x), "cannot be written as ONNX"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_one_trace_does_not_show_are_refused_at_their_line(name):
    step, said = STEPS[name]
    X = torch.zeros(3, 4)
    box = Property.robust(X, eps=0.1, label=0, classes=2)
    for read in (lambda: read_module(Tokens(step), X), lambda: hs.verify(Tokens(step), box)):
        with pytest.raises(hs.errors.HowsmoothError, match=said) as caught:
            read()
        assert "\n" not in str(caught.value)


# Each does nothing at zeros, where the module is traced; what they return takes them off.
def hooked(module):
    return module.down.register_forward_hook(lambda _part, _given, o: o + 0 * o).remove


def hooked_in_front(module):
    return module.up.register_forward_pre_hook(lambda _part, given: given).remove


def hooked_everywhere(module):
    return register_module_forward_hook(lambda _part, _given, _output: None).remove


def another_forward(module):
    module.head.forward = lambda x: nn.Linear.forward(module.head, x)
    return lambda: delattr(module.head, "forward")


def dropout_that_stays(module):
    module.dropout.train()
    return module.eval


ATTACHED = {
    hooked: r"it has a hook \(<lambda> on Linear at 'down'\)",
    hooked_in_front: r"it has a hook \(<lambda> on Linear at 'up'\)",
    hooked_everywhere: r"every module has a hook \(<lambda>\)",
    another_forward: r"its forward was replaced \(Linear at 'head'\)",
    dropout_that_stays: "in training mode",
}


@pytest.mark.parametrize("attach", ATTACHED, ids=lambda attach: attach.__name__)
def test_what_stands_around_a_forward_is_refused_by_name(attach):
    module, X = Tokens(), torch.zeros(3, 4)
    read_module(module, X)
    take_off = attach(module)
    try:
        for read in (
            lambda: read_module(module, X),
            lambda: hs.verify(module, Property.robust(X, eps=0.1, label=0, classes=2)),
        ):
            with pytest.raises(AssumptionError, match=ATTACHED[attach]):
                read()
    finally:
        take_off()
    read_module(module, X)


def test_a_module_that_returns_more_than_a_tensor_is_told_what_to_return():
    class Named(Tokens):
        def forward(self, x):
            return {"logits": super().forward(x)}

    with pytest.raises(AssumptionError, match="Named must return one tensor, got dict; give a module that returns"):
        read_module(Named(), torch.zeros(3, 4))


class OwnHead(nn.Module):
    """Some layers of others, and the mean of what they put out."""

    def __init__(self, layers):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = layers, nn.Linear(8, 2)
        self.eval()

    def forward(self, x):
        return self.head(self.layers(x).mean(1))


class SelfAttention(nn.Module):
    """nn.MultiheadAttention on one sequence, with shapes that steer Python."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        _batch, n, d = x.shape
        if n * d > 1000:
            return x
        mask = torch.ones(n, n).triu(1) > 0
        if mask.any():  # it does not depend on the input
            return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x


class PreNormBlock(nn.Module):
    """A block as models of pictures have it: one projection for queries, keys and values, and scaled branches."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.qkv = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.mlp = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Dropout(), nn.Linear(12, 8))
        self.scale = nn.Parameter(0.1 * torch.ones(8))

    def forward(self, x):
        batch, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        options = {"dropout_p": 0.5 if self.training else 0.0}
        attended = nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], **options)
        x = x + self.scale * self.out(attended.transpose(1, 2).reshape(batch, n, d))
        return x + self.scale * self.mlp(self.norm2(x))


class Bert(nn.Module):
    """The layers of BERT, whose masks and shapes are the library's own."""

    def __init__(self, attention):
        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
        self.bert = transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation=attention))

    def forward(self, x):
        return self.bert(inputs_embeds=x).last_hidden_state


READ = {
    "own": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
    "nn.MultiheadAttention": SelfAttention,
    "nn.TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
    "nn.TransformerEncoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2),
    "a block of pictures": PreNormBlock,
    "BERT": lambda: Bert("eager"),
    "BERT, fused": lambda: Bert("sdpa"),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "pruned": lambda: prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5),
}


@pytest.mark.parametrize("name", READ)
def test_what_takes_the_same_steps_at_every_input_is_still_read(name, rng):
    module, X = OwnHead(READ[name]()), torch.randn(3, 8, generator=rng)
    f = read_module(module, X)
    assert_close(f(X.double())[0].float(), module(X[None])[0].detach(), rtol=1e-4, atol=1e-5)


def test_a_look_at_a_module_leaves_it_and_the_generator_as_they_are(rng):
    module, X, state = OwnHead(Bert("sdpa")), torch.randn(3, 8, generator=rng), torch.random.get_rng_state()
    before = {name: x.clone() for name, x in module.state_dict().items()}
    read_module(module, X)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert all(type(x) in (torch.Tensor, nn.Parameter) for x in (*module.parameters(), *module.buffers()))
