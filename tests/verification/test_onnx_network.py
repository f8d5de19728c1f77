"""ONNX files: what is read is what onnxruntime runs, and what cannot be read is refused by its node."""

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import howsmooth as hs

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from verification.onnx_files import write_vit

from howsmooth.verification.onnx_network import (
    read_and_run,
    read_and_run_module,
    read_module,
    read_onnx,
    session_of,
    written,
)
from howsmooth.verification.properties import Property


@pytest.mark.parametrize("opset", [11, 13])
def test_a_network_is_read_as_onnxruntime_runs_it(tmp_path, rng, opset):
    path = write_vit(tmp_path / "vit.onnx", rng, opset=opset)
    f, run = read_onnx(path), session_of(path)
    kinds = [type(g.map if isinstance(g, hs.maps.Residual) else g).__name__ for g in f.maps]
    assert kinds == ["Affine", "Attention", "MLP", "Attention", "MLP", "Affine"]
    for x in torch.randn(5, 16, generator=rng).double():
        assert_close(f(x[None]).flatten(), run(x), rtol=1e-5, atol=1e-5)


def test_a_property_of_a_file_is_proven_or_falsified_and_replayed(tmp_path, rng):
    path = write_vit(tmp_path / "vit.onnx", rng)
    x, run = torch.randn(16, generator=rng).double(), session_of(path)
    label = int(run(x).argmax())
    near = Property.robust(x, eps=1e-3, label=label, classes=3)
    assert hs.verify(path, near).status == "proven"
    far = hs.verify(path, Property.robust(x, eps=5.0, label=label, classes=3))
    assert far.status == "falsified"
    assert int(run(far.counterexample).argmax()) != label


class Classifier(nn.Module):
    """Tokens, layers of torch's own encoder, a way to pool them, and a head."""

    def __init__(self, *, pool="first", head="linear", mask=False, **options):
        super().__init__()
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0, **options),
            2,
            enable_nested_tensor=False,
        )
        self.pool, self.mask = pool, nn.Transformer.generate_square_subsequent_mask(4) if mask else None
        last = {"norm": nn.LayerNorm(8), "tanh": nn.Sequential(nn.Linear(8, 8), nn.Tanh())}.get(head, nn.Identity())
        self.head = nn.Sequential(last, nn.Linear(8, 3))

    def forward(self, X):
        X = self.layers(X, mask=self.mask)
        return self.head(X[:, 0] if self.pool == "first" else X.mean(1))


class WrittenOut(nn.Module):
    """A norm and an activation in the operations that they consist of."""

    def __init__(self, activation, norm):
        super().__init__()
        self.up, self.down, self.out = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)
        self.activation, self.norm = activation, norm

    def forward(self, X):
        return self.out(self.norm(X + self.down(self.activation(self.up(self.norm(X))))).mean(1))


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)


def layer_norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-3)


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


class HuggingFaceBert(nn.Module):
    """A classifier on embeddings."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
        config = transformers.BertConfig(**sizes, vocab_size=9, num_labels=3, attn_implementation="eager")
        self.model = transformers.BertForSequenceClassification(config)

    def forward(self, X):
        return self.model(inputs_embeds=X).logits


class HuggingFaceViT(nn.Module):
    """A classifier of images of 8 × 4, in patches of 4 × 4."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
        image = {"image_size": (8, 4), "patch_size": 4, "num_channels": 1}
        config = transformers.ViTConfig(**sizes, **image, num_labels=3, attn_implementation="eager")
        self.model = transformers.ViTForImageClassification(config)

    def forward(self, X):
        return self.model(pixel_values=X.reshape(1, 1, 8, 4)).logits


class OwnAttention(nn.Module):
    """Attention by hand behind a class token and positions, and an approximate GELU, without any norm."""

    def __init__(self, attend):
        super().__init__()
        self.parts, self.out, self.attend = nn.Linear(8, 24), nn.Linear(8, 8), attend
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, X):
        X = torch.cat([self.first.expand(len(X), -1, -1), X], 1) + self.places
        heads = (part.reshape(-1, 5, 2, 4).transpose(1, 2) for part in self.parts(X).chunk(3, -1))
        X = X + self.out(self.attend(*heads).transpose(1, 2).reshape(X.shape))
        return self.head((X + self.down(nn.functional.gelu(self.up(X), approximate="tanh")))[:, 0])


def by_einsum(query, key, value):
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", query, key) / 2, -1)
    return torch.einsum("bhij,bjhd->bihd", weights, value).transpose(1, 2)


def mean_by_einsum(X):
    return torch.einsum("bnd,n->bd", X, torch.full((4,), 0.25))


MODULES = {
    "BERT of transformers": HuggingFaceBert,
    "ViT of transformers": HuggingFaceViT,
    "relu, norm behind, mean": lambda: Classifier(pool="mean"),
    "gelu, norm before, first": lambda: Classifier(activation="gelu", norm_first=True),
    "causal, norm before, norm": lambda: Classifier(mask=True, norm_first=True, head="norm"),
    "gelu, without biases, tanh": lambda: Classifier(activation="gelu", bias=False, head="tanh"),
    "rms, silu written out": lambda: WrittenOut(lambda x: x * torch.sigmoid(x), rms),
    "layer norm, gelu written out": lambda: WrittenOut(gelu, layer_norm),
    "tanh": lambda: WrittenOut(torch.tanh, nn.LayerNorm(8)),
    "attention of torch, no norm": lambda: OwnAttention(nn.functional.scaled_dot_product_attention),
    "attention by matrices": lambda: OwnAttention(lambda q, k, v: torch.softmax(q @ k.mT / 2, -1) @ v),
    "attention by einsum": lambda: OwnAttention(by_einsum),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_read_as_they_and_onnxruntime_compute(name, tmp_path, rng):
    torch.manual_seed(0)
    module, path = MODULES[name]().eval(), tmp_path / "module.onnx"
    path.write_bytes(written(module, torch.zeros(1, 4, 8)).getvalue())
    f, run = read_and_run(path)
    for x in torch.randn(3, 4, 8, generator=rng):
        found = f(x.double().reshape(1, -1))[0]
        assert_close(found, run(x.flatten()), rtol=1e-5, atol=1e-5)
        assert_close(found.float(), module(x[None])[0].detach(), rtol=1e-5, atol=1e-5)
    on_tokens = read_module(module, x)
    assert_close(on_tokens(x.double())[0], found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["BERT of transformers", "relu, norm behind, mean", "attention by einsum"])
def test_words_of_a_module_are_certified_and_its_boxes_are_proven_alike(name, rng):
    torch.manual_seed(0)
    module, X = MODULES[name]().eval(), torch.randn(4, 8, generator=rng)
    f = read_module(module, X)
    certificate = hs.certify(f, X.double(), word=1, metric="entries")
    eps, logits = certificate.radii[0].certified, module(X[None])[0]
    assert certificate.predicted == int(logits.argmax())
    assert eps > 0
    moves = torch.zeros(4, 8)
    moves[1] = eps
    box = Property.robust(X, eps=0.01 * moves, label=certificate.predicted, classes=3)
    assert hs.verify(f, box, timeout=20).status == hs.verify(module, box, timeout=20).status == "proven"
    corners = X + moves * (torch.randint(0, 2, (200, 1, 8), generator=rng) * 2 - 1)
    for corner in corners:
        assert int(module(corner[None]).argmax()) == certificate.predicted


def test_what_is_read_as_tokens_has_their_shape():
    with pytest.raises(hs.errors.ShapeError, match=r"X must be the tokens \(n, d\).*got \(1, 4, 8\)"):
        read_module(Classifier().eval(), torch.zeros(1, 4, 8))


@pytest.mark.parametrize("how", ["mean", "scores turned round"])
def test_products_by_letters_are_linear_maps_or_attention(how, rng):
    torch.manual_seed(0)

    def attend(query, key, value):
        return torch.softmax(torch.einsum("bhjd,bhid->bhij", key, query), -1) @ value

    module = OwnAttention(attend).eval()
    if how == "mean":
        module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Step(mean_by_einsum), nn.Linear(8, 3)).eval()
        X = torch.randn(4, 8, generator=rng)
        assert_close(read_module(module, X)(X.double())[0].float(), module(X[None])[0].detach())
    else:
        with pytest.raises(hs.errors.UnsupportedModelError, match="neither linear nor a part of attention"):
            read_module(module, torch.zeros(4, 8))


class Step(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, X):
        return self.function(X)


class Masked(nn.Module):
    """Attention of which later tokens are hidden by a constant, added to scores or in their place."""

    def __init__(self, hide):
        super().__init__()
        self.query, self.out, self.hide = nn.Linear(8, 8), nn.Linear(8, 3), hide

    def forward(self, X):
        scores = self.hide(self.query(X) @ X.transpose(1, 2), torch.ones(4, 4).triu(1))
        return self.out((X + torch.softmax(scores, -1) @ X).mean(1))


@pytest.mark.parametrize("low", [-1e4, -3e38, -torch.inf])
def test_what_is_added_to_scores_is_hidden_or_kept_as_it_is(low, rng):
    torch.manual_seed(0)
    lows = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, low)
    f, _run = read_and_run_module(Masked(lambda scores, later: scores + lows).eval(), (4, 8))
    positions = f.maps[1].map.positions
    assert positions.causal == (low < -1e30)
    assert low < -1e30 or positions.mask.min() == low
    in_place = Masked(lambda scores, later: scores.masked_fill(later > 0, low)).eval()
    if low < -1e30:
        assert read_and_run_module(in_place, (4, 8))[0].maps[1].map.positions.causal
    else:  # a constant in place of a score is not far enough below all others to be called hidden
        with pytest.raises(hs.errors.UnsupportedModelError, match="scores"):
            read_and_run_module(in_place, (4, 8))


def test_a_module_is_verified_and_attacked_itself(rng):
    torch.manual_seed(1)
    module = MODULES["gelu, norm before, first"]().eval()
    x = torch.randn(4, 8, generator=rng)
    label = int(module(x[None]).argmax())
    assert hs.verify(module, Property.robust(x, eps=1e-3, label=label, classes=3)).status == "proven"
    far = hs.verify(module, Property.robust(x, eps=5.0, label=label, classes=3))
    assert far.status == "falsified"
    assert int(module(far.counterexample.float().reshape(1, 4, 8)).argmax()) != label


class Refused(nn.Module):
    """A classifier with one step that is not read."""

    def __init__(self, step):
        super().__init__()
        self.weight, self.step = nn.Linear(8, 8), step

    def forward(self, X):
        return self.step(self.weight(X), X).mean(1)


REFUSED = {
    "softplus": (lambda y, x: nn.functional.softplus(y), "Softplus"),
    "elu": (lambda y, x: nn.functional.elu(y), "Elu"),
    "leaky": (lambda y, x: nn.functional.leaky_relu(y), "LeakyRelu"),
    "sigmoid": (lambda y, x: torch.sigmoid(y), "no activation"),
    "exp": (lambda y, x: torch.exp(y), "Exp"),
    "log": (lambda y, x: torch.log(y.abs() + 1), "Abs"),
    "sin": (lambda y, x: torch.sin(y), "Sin"),
    "max": (lambda y, x: torch.maximum(y, x), "Max"),
    "clip": (lambda y, x: y.clamp(-1, 1), "Clip"),
    "cumsum": (lambda y, x: y.cumsum(-1), "CumSum"),
    "product": (lambda y, x: y * x, "multiplies or divides two tensors"),
    "quotient": (lambda y, x: y / x, "multiplies or divides two tensors"),
    "inverse": (lambda y, x: 1 / y, "Reciprocal"),
    "cube": (lambda y, x: y**3, "a part of no norm and no activation"),
    "fourth power": (lambda y, x: y**4, "Pow"),
    "three by letters": (lambda y, x: torch.einsum("bnd,bnd,bnd->bnd", y, y, x), "where two operands"),
    "softmax alone": (lambda y, x: torch.softmax(y, -1), "Softmax"),
    "softmax over queries": (lambda y, x: torch.softmax(y @ y.transpose(1, 2), -2) @ x, "scores"),
    "no softmax": (lambda y, x: (y @ y.transpose(1, 2)) @ x, "without a softmax"),
    "softmax squared": (lambda y, x: torch.softmax(y @ y.transpose(1, 2), -1) ** 2 @ x, "weights of attention"),
    "norm of length": (lambda y, x: y / y.pow(2).sum(-1, keepdim=True).sqrt(), "ReduceSum"),
    "norm by another": (lambda y, x: y / torch.sqrt(x.pow(2).mean(-1, keepdim=True)), "mean square of something else"),
    "gelu of another": (lambda y, x: y * (1 + torch.erf(x)), "no activation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_its_node(name):
    torch.manual_seed(0)
    step, said = REFUSED[name]
    with pytest.raises(hs.errors.UnsupportedModelError, match=rf"^the node \S+ .*{said}"):
        read_and_run_module(Refused(step).eval(), (4, 8))


def test_a_module_in_training_or_that_cannot_be_written_is_refused():
    with pytest.raises(hs.errors.AssumptionError, match="training mode"):
        read_and_run_module(Classifier(), (4, 8))
    with pytest.raises(hs.errors.UnsupportedModelError, match="cannot be written as ONNX"):
        read_and_run_module(Classifier().eval(), (4, 7))


@pytest.mark.parametrize(("options", "said"), [({"activation": "Celu"}, "Celu"), ({"change": "weights"}, "weights of")])
def test_nodes_of_files_are_refused_by_name(tmp_path, rng, options, said):
    path = write_vit(tmp_path / "vit.onnx", rng, **options)
    with pytest.raises(hs.errors.UnsupportedModelError, match=rf"the node \w+_\d+ .*{said}"):
        read_onnx(path)


@pytest.mark.parametrize(
    ("kind", "others"), [("Reshape", [3, 5]), ("NoSuchNode", [2]), ("GatherElements", [9]), ("Concat", [1])]
)
def test_a_constant_that_cannot_be_computed_is_refused_by_its_node(tmp_path, kind, others):
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node(kind, ["weights", "others"], ["folded"], name="folding"),
        helper.make_node("Add", ["x", "folded"], ["y"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [
            helper.make_tensor("weights", TensorProto.FLOAT, [4], [0.0] * 4),
            helper.make_tensor("others", TensorProto.INT64, [len(others)], others),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), tmp_path / "x.onnx")
    with pytest.raises(hs.errors.UnsupportedModelError, match=rf"^the node folding .*{kind}") as refused:
        read_onnx(tmp_path / "x.onnx")
    assert "\n" not in str(refused.value)


def test_weights_beside_the_file_are_read(tmp_path, rng):
    import onnx

    path, beside = write_vit(tmp_path / "vit.onnx", rng), tmp_path / "beside.onnx"
    onnx.save(onnx.load(path), beside, save_as_external_data=True, location="weights.bin", size_threshold=100)
    assert (tmp_path / "weights.bin").is_file()
    x = torch.randn(1, 16, generator=rng).double()
    assert_close(read_onnx(beside)(x), read_onnx(path)(x))


def test_a_file_that_is_no_network_is_refused(tmp_path):
    with pytest.raises(hs.errors.FileError, match="not an ONNX file"):
        read_onnx(tmp_path / "none.onnx")
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x00\x01 nothing")
    with pytest.raises(hs.errors.FileError, match="not an ONNX file"):
        read_onnx(path)


def test_a_convolution_over_time_is_read(rng):
    module = nn.Sequential(nn.Conv1d(2, 3, 4, stride=2), nn.Flatten(), nn.ReLU(), nn.Linear(15, 3)).eval()
    f, _run = read_and_run_module(module, (2, 12))
    for x in torch.randn(3, 2, 12, generator=rng):
        assert_close(f(x.double().reshape(1, -1)).flatten(), module(x[None]).flatten().double(), rtol=1e-5, atol=1e-5)
    with pytest.raises(hs.errors.UnsupportedModelError, match="is a convolution in 3 dimensions"):
        read_and_run_module(nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten()).eval(), (1, 2, 2, 2))


def test_a_file_with_more_inputs_than_fit_into_memory_is_refused(tmp_path, rng, monkeypatch):
    path = write_vit(tmp_path / "vit.onnx", rng)
    monkeypatch.setattr("howsmooth.files.available_memory", lambda: 8 * 16**2 - 1)
    with pytest.raises(hs.errors.FileError, match="has 16 inputs, and what its operations do"):
        read_onnx(path)
