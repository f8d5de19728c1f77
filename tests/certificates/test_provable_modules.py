"""What is proven of maps is true of the module in all the ball: hooks, branches and chance are refused."""

import functools
import random
import re
from contextlib import nullcontext

import pytest
import torch
import transformers
from sentences import save_classifier, small_classifier
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import prune, spectral_norm, weight_norm

import howsmooth as hs
from howsmooth.certificates.provable_modules import require_plain_forward, require_same_steps
from howsmooth.check import check_proof
from howsmooth.errors import AssumptionError, HowsmoothError
from howsmooth.models.inputs.model_inputs import read_sentence

__all__ = ["save_classifier", "small_classifier"]

TEXT = "a fine film"


@pytest.fixture
def model(small_classifier):
    return hs.load(small_classifier, dtype=torch.float64)


@pytest.fixture
def logits(model):
    return model.with_head(torch.tensor([read_sentence(model, TEXT)])).logits.detach()


def elsewhere(o, there):
    """Change logits a lot wherever they are not those of the sentence."""
    return o + 50 * torch.relu((o - there).abs() - 1e-6) * torch.tensor([1.0, -1.0])


# Each attaches what does nothing at the sentence, and returns what takes it off.
def hooked(module, there):
    return module.classifier.register_forward_hook(lambda _part, _given, o: elsewhere(o, there)).remove


def hooked_in_front_of_a_part(module, there):
    part = module.bert.encoder.layer[1].output.dense
    return part.register_forward_pre_hook(lambda _part, given: (given[0] + 0 * there.sum(),)).remove


def hooked_at_a_token(module, there):
    def negate(_module, given, output):
        if 50 in given[0]:
            output.logits = -output.logits

    return module.register_forward_hook(negate).remove


def hooked_everywhere(module, there):
    return register_module_forward_hook(lambda _part, _given, _output: None).remove


def hooked_in_front_everywhere(module, there):
    return register_module_forward_pre_hook(lambda _part, _given: None).remove


def hooked_by_a_partial(module, there):
    return module.classifier.register_forward_hook(functools.partial(lambda _there, *_given: None, there)).remove


def forward_of_a_part(module, there):
    part = module.classifier
    part.forward = lambda X: elsewhere(nn.Linear.forward(part, X), there)
    return lambda: delattr(part, "forward")


def forward_of_a_class(module, there, wrapper=lambda forward: forward):
    kind = transformers.models.bert.modeling_bert.BertIntermediate
    before = kind.forward
    kind.forward = wrapper(lambda self, X: before(self, X))
    return lambda: setattr(kind, "forward", before)


def forward_that_looks_like_theirs(module, there):
    before = transformers.models.bert.modeling_bert.BertIntermediate.forward
    return forward_of_a_class(module, there, functools.wraps(before))


def forward_behind_torch(module, there):
    return forward_of_a_class(module, there, torch.no_grad())


ATTACHED = {
    hooked: "it has a hook (<lambda> on Linear at 'classifier')",
    hooked_in_front_of_a_part: "it has a hook (<lambda> on Linear at 'bert.encoder.layer.1.output.dense')",
    hooked_at_a_token: "it has a hook (negate on BertForSequenceClassification)",
    hooked_everywhere: "every module has a hook (<lambda>)",
    hooked_in_front_everywhere: "every module has a hook (<lambda>)",
    hooked_by_a_partial: "it has a hook (partial on Linear at 'classifier')",
    forward_of_a_part: "its forward was replaced (Linear at 'classifier')",
    forward_of_a_class: "its forward was replaced (BertIntermediate at 'bert.encoder.layer.0.intermediate')",
    forward_that_looks_like_theirs: "its forward was replaced (BertIntermediate",
    forward_behind_torch: "its forward was replaced (BertIntermediate",
}


@pytest.fixture(params=ATTACHED, ids=lambda attach: attach.__name__)
def attached(request, model, logits):
    """Return what is said of a model that may do something else at other inputs."""
    take_off = request.param(model.with_head, logits)
    yield ATTACHED[request.param]
    take_off()


def test_what_does_nothing_at_a_sentence_may_do_something_in_its_ball_and_is_refused(attached, model):
    with pytest.raises(AssumptionError, match=rf"^nothing is proven of this Bert.*{re.escape(attached)}"):
        hs.certify(model, TEXT, word=2)


def test_every_kind_of_certificate_refuses_hooks(model, logits, tmp_path):
    hs.certify(model, TEXT, word=2).save(tmp_path / "proof.json")
    assert {each.status for each in check_proof(tmp_path / "proof.json", model)} == {"checked"}
    hooked(model.with_head, logits)
    for prove in (
        lambda: hs.certify(model, TEXT, word=2, at="attention", layer=1),
        lambda: hs.certify_synonyms(model, TEXT, {"film": ["movie"]}),
        lambda: hs.certify(model.with_head, torch.tensor(read_sentence(model, TEXT)), word=2),
        lambda: hs.certified_accuracy(model, [TEXT]),
    ):
        with pytest.raises(HowsmoothError, match="it has a hook"):
            prove()
    (outcome,) = check_proof(tmp_path / "proof.json", model)
    assert outcome.status == "cannot check"
    assert "it has a hook" in outcome.why


def test_bounds_of_a_module_with_a_hook_are_said_to_be_those_of_its_weights(model, logits):
    module = model.with_head
    assert hs.load(module).notes == ()
    hooked_at_a_token(module, logits)
    (note,) = hs.load(module).notes
    assert "it has a hook (negate on BertForSequenceClassification)" in note
    assert "its bounds are of its weights" in note


def with_outputs_captured(model):
    model.with_head(torch.tensor([[1, 2]]), output_hidden_states=True, output_attentions=True)
    assert any(part._forward_hooks for part in model.with_head.modules())


# What others attach and what changes nothing.
HARMLESS = {
    "transformers, of hidden states": with_outputs_captured,
    "transformers, of gradients": lambda model: model.with_head.enable_input_require_grads(),
    "weight norm": lambda model: weight_norm(model.with_head.classifier),
    "pruning": lambda model: prune.identity(model.with_head.classifier, "weight"),
    "a probe": lambda model: hs.probe(model.with_head),
    "fused attention": lambda model: hs.use_sdpa(model.with_head),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("attach", HARMLESS.values(), ids=HARMLESS)
def test_what_only_reads_is_no_reason_to_refuse(attach, model):
    plain = hs.certify(model, TEXT, word=2)
    block = attach(model)
    with block if hasattr(block, "__enter__") else nullcontext():
        found = hs.certify(hs.load(model.with_head, tokenizer=model.tokenizer), TEXT, word=2)
    assert found.radii[0].certified == pytest.approx(plain.radii[0].certified, rel=1e-6)


def test_a_power_iteration_of_the_past_is_no_reason_to_refuse():
    require_plain_forward(spectral_norm(nn.Linear(3, 3)).eval())


class GuardedForSequenceClassification(transformers.BertForSequenceClassification):
    """A classifier whose forward goes on where that of transformers ends."""

    def forward(self, *positional, **named):
        output = super().forward(*positional, **named)
        output.logits = self.further(output.logits)
        return output


@pytest.fixture
def guarded(small_classifier, model):
    """A model that does what its weights say; what it does further is found by no run at the sentence alone."""
    module = GuardedForSequenceClassification.from_pretrained(small_classifier).double()
    module.further = lambda o: o
    return hs.load(module, tokenizer=model.tokenizer)


def test_a_branch_is_refused_at_its_line(guarded, logits):
    guarded.with_head.further = lambda o: -o if float((o - logits).abs().max()) > 1e-6 else o
    with pytest.raises(AssumptionError, match=r"test_provable_modules\.py:\d+ \(.* -o if float\(.* same steps"):
        hs.certify(guarded, TEXT, word=2)


@pytest.mark.parametrize("metric", ["entries", "sum", hs.metrics.weighted(torch.eye(8).double())])
def test_what_changes_without_a_branch_shows_on_the_ball(metric, guarded, logits):
    hs.certify(guarded, TEXT, word=2, metric=metric)
    guarded.with_head.further = lambda o: elsewhere(o, logits)
    with pytest.raises(AssumptionError, match="the module is not what its weights say: where tokens 2 are moved by"):
        hs.certify(guarded, TEXT, word=2, metric=metric)


def test_a_test_set_is_compared_on_its_balls_too(guarded, logits):
    guarded.with_head.further = lambda o: elsewhere(o, logits)
    with pytest.raises(HowsmoothError, match="is not what its weights say"):
        hs.certified_accuracy(guarded, [TEXT])


# Steps that depend on numbers of the input, however these come to Python; and those that do not.
LOOKS = {
    "bool": lambda x: -x if x.abs().max() > 6 else x,
    "item": lambda x: x / x.max().item(),
    "list": lambda x: x * sum(map(sum, x.tolist())),
    "array": lambda x: x + torch.from_numpy(x.numpy().round()),
    "format": lambda x: x * float(f"{x.sum():.2f}"),
    "index": lambda x: [x, -x][x.argmax() % 2],
    "slice": lambda x: x[: x.argmax()],
    "mask": lambda x: x[x > 0].sum() + x,
    "nonzero": lambda x: x * len(x.nonzero()),
    "unique": lambda x: x * len(x.unique()),
    "equal": lambda x: -x if torch.equal(x, x.abs()) else x,
    "all close": lambda x: -x if torch.allclose(x, x.abs()) else x,
    "where": lambda x: x * len(torch.where(x > 0)[0]),
    "pieces": lambda x: x * float(torch.tensor([x[0, 0], x[0, 1]])[0]),
    "script": lambda x: scripted(x),
    "function": lambda x: Signed.apply(x),
    "swallowed": lambda x: swallowing(x),
    "written": lambda x: written_into_another(x),
    "address": lambda x: x * (x.data_ptr() > 0),
}
DOES_NOT_LOOK = {
    "where": lambda x: torch.where(x.abs() > 6, -x, x),
    "clamp": lambda x: x.clamp(-1, 1),
    "shape": lambda x: -x if x.shape[0] > 6 else x,
    "constant": lambda x: -x if torch.arange(3).sum() > 6 else x,
    "weight": lambda x: -x if torch.ones(3).sum().item() > 6 else x,
    "mask": lambda x: x[torch.tensor([True, False, True])],
    "index": lambda x: x[torch.tensor([0, 1])][:, x.argmax(-1)],
    "in place": lambda x: torch.empty_like(x).copy_(x).add_(1).unsqueeze_(0).t_() if x.ndim == 1 else x.clone().t_(),
    "slices in place": lambda x: sliced(x),
    "gradient": lambda x: torch.func.grad(lambda y: y.pow(2).sum())(x),
    "transform": lambda x: torch.vmap(torch.sin)(x),
}


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    if bool(x.max() > 6):
        return -x
    return x


class Signed(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return -x if x.max() > 6 else x.clone()


def swallowing(x):
    try:
        return -x if x.max() > 6 else x
    except Exception:
        return x


def written_into_another(x):
    y = torch.zeros(3, 4)
    y[:, 0] = x[:, 0]
    return x + float(y.sum())


def sliced(x):
    y = torch.zeros_like(x)
    y[:, 0] = x[:, 1]
    return y


@pytest.mark.parametrize("step", LOOKS.values(), ids=LOOKS)
def test_steps_that_depend_on_numbers_are_refused(step, rng):
    with pytest.raises(AssumptionError, match=r"^step .*test_provable_modules\.py:\d+ \(.*same steps"):
        require_same_steps(step, torch.randn(3, 4, generator=rng), "step")


@pytest.mark.parametrize("step", DOES_NOT_LOOK.values(), ids=DOES_NOT_LOOK)
def test_steps_that_do_not_are_not(step, rng):
    require_same_steps(step, torch.randn(3, 4, generator=rng), "step")


@pytest.mark.parametrize(
    "step",
    [
        nn.Dropout(),
        lambda x: nn.functional.dropout(x, 1e-9, training=True),
        lambda x: x + torch.rand(()),
        lambda x: x + random.random(),
    ],
)
def test_chance_is_refused(step, rng):
    with pytest.raises(AssumptionError, match=r"^step draws random numbers, or changes from one run to the next"):
        require_same_steps(step, torch.randn(3, 4, generator=rng), "step")


def test_a_module_keeps_plain_tensors_of_the_runs_that_look_at_it(rng):
    kept = []
    require_same_steps(lambda x: kept.append(x) or x, torch.randn(3, 4, generator=rng), "step")
    assert type(kept[-1]) is torch.Tensor


@pytest.mark.untyped
def test_labels_and_rivals_are_classes():
    X = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    f = hs.maps.Chain(hs.maps.Pooling.first(n=1, like=X), hs.maps.Dense(torch.eye(2, dtype=torch.float64)))
    assert hs.certify(f, X, label=torch.tensor(0)).predicted == 0
    for label in (2, -1, 0.5, True):
        with pytest.raises(AssumptionError, match=rf"label must be one of the classes 0 to 1, got {label!r}\.$"):
            hs.certify(f, X, label=label)
    for classes in (1, ["a"], [2], [-1]):
        with pytest.raises(AssumptionError, match=r"give classes from 0 to 1"):
            hs.certify(f, X, classes=classes)
