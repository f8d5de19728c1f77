"""The penalty against finite differences of the exact norm, its warm starts, and the conditions it works under."""

import pytest
import torch
from oracles import constant, dense_jacobian
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import howsmooth as hs
from howsmooth.errors import AssumptionError, ConvergenceWarning, DtypeError, FallbackWarning, NonFiniteError
from howsmooth.training.penalties import PATIENCE, WarmStart

STEP = 1e-5


class SelfAttention(nn.Module):
    """Attention by torch's own fused function, with dropout behind it."""

    def __init__(self, d=4):
        super().__init__()
        self.mix = nn.Linear(d, 3 * d)
        self.drop = nn.Dropout(0.5)

    def forward(self, X):
        q, k, v = self.mix(X).chunk(3, -1)
        return self.drop(nn.functional.scaled_dot_product_attention(q, k, v))


class Classifier(nn.Module):
    """A whole small model: two blocks, a mean over tokens, logits."""

    def __init__(self, d=4):
        super().__init__()
        self.blocks = nn.Sequential(*(block(d) for _layer in range(2)))
        self.head = nn.Linear(d, 2)

    def forward(self, X):
        return self.head(self.blocks(X).mean(-2))


def block(d=4):
    return nn.TransformerEncoderLayer(d, 2, 6, batch_first=True)


NETS = {"attention": SelfAttention, "block": block, "whole model": Classifier}


def net(name):
    return NETS[name]().double()


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def exact(f, X):
    """Return the norm of the dense Jacobian of every sequence, the module in eval mode."""
    was = f.training
    f.eval()
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.stack([constant(lambda x: f(x[None])[0], x) for x in X])
    f.train(was)
    return found


def finite_differences(of, x, entries=4):
    """Return the gradient of a number by central differences in a few entries of ``x``, and those entries."""
    places = torch.randperm(x.numel())[:entries]
    slopes = []
    for place in places:
        ends = []
        for side in (1, -1):
            with torch.no_grad():
                x.view(-1)[place] += side * STEP
                ends.append(of())
                x.view(-1)[place] -= side * STEP
        slopes.append((ends[0] - ends[1]) / (2 * STEP))
    return torch.stack(slopes), places


@pytest.mark.parametrize("name", NETS)
def test_value_and_gradients_are_those_of_the_exact_norm(name):
    f, X = net(name), tokens(2, 3, 4).requires_grad_()
    found = hs.penalty(f, X, steps=12)
    assert_close(found.detach(), exact(f, X.detach()))
    found.sum().backward()
    data = X.detach().clone()
    slopes, places = finite_differences(lambda: exact(f, data).sum(), data)
    assert_close(X.grad.view(-1)[places], slopes, rtol=1e-5, atol=1e-7)  # differences lose half of the digits
    for parameter in f.parameters():
        if parameter.grad is not None:
            slopes, places = finite_differences(lambda: exact(f, X.detach()).sum(), parameter.data, entries=1)
            assert_close(parameter.grad.view(-1)[places], slopes, rtol=1e-5, atol=1e-7)


def in_metric(J, metric):
    """Return the norm of a dense Jacobian between largest entries, or between sums of entries."""
    return J.abs().sum(1 if metric == "entries" else 0).max()


@pytest.mark.parametrize("metric", ["entries", "sum"])
def test_penalties_of_few_coordinates_are_exact_and_so_are_their_gradients(metric):
    f, X = block(), tokens(2, 3, 4)
    f.eval().double()

    def exact():
        return torch.stack([in_metric(dense_jacobian(lambda x: f(x[None])[0], x), metric) for x in data])

    data = X.clone()
    found = hs.penalty(f, X.requires_grad_(), metric=metric)
    with sdpa_kernel(SDPBackend.MATH):
        assert_close(found.detach(), exact())
        found.sum().backward()
        slopes, places = finite_differences(lambda: exact().sum(), data)
    assert_close(X.grad.view(-1)[places], slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("metric", ["entries", "sum", "token"])
def test_penalties_of_many_coordinates_come_near_the_truth_from_a_cold_start_and_nearer_from_a_warm_one(metric):
    # plain alternation from one start ended between 0.08 and 1 of it
    shares = []
    for seed in range(6):
        f = hs.Attention.random(heads=2, d=12, seed=seed).to(torch.float64)
        f = hs.Attention(query=3 * f.query, key=3 * f.key, value=f.value, output=f.output)
        X, state = 2 * tokens(2, 10, 12), hs.training.WarmStart()
        if metric == "token":
            truth = hs.local_lipschitz(f, X, metric=metric, seed=0).upper
        else:
            truth = torch.stack([in_metric(dense_jacobian(f, x), metric) for x in X])
        cold, warm = (hs.penalty(f, X, metric=metric, state=state, seed=seed) for _call in range(2))
        assert (torch.maximum(cold, warm) <= truth * (1 + 1e-12)).all()
        assert (warm >= cold * (1 - 1e-12)).all()
        assert state.exact
        shares.append(cold / truth)
    assert torch.stack(shares).min() > 0.95


@pytest.mark.parametrize("name", ["query", "value", "tokens"])
def test_a_map_in_closed_form_has_the_same_gradients(name):
    start = hs.Attention.random(heads=2, d=4, seed=1).to(torch.float64)
    weights = {part: getattr(start, part).clone() for part in ("query", "key", "value", "output")}
    X = tokens(2, 3, 4)
    about = X if name == "tokens" else weights[name]
    about.requires_grad_()
    hs.penalty(hs.Attention(**weights), X, steps=12).sum().backward()
    found = about.grad
    about.requires_grad_(False)

    def measured():
        return sum(constant(hs.Attention(**weights), x) for x in X)

    slopes, places = finite_differences(measured, about)
    assert_close(found.reshape(-1)[places], slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"power": 2}, lambda s: s**2),
        ({"log": True}, torch.log),
        ({"above": 1.0}, lambda s: (s - 1).clamp_min(0)),
        ({"above": 1e6}, lambda s: 0 * s),
        ({"log": True, "above": 0.5, "power": 2}, lambda s: (s / 0.5).log().clamp_min(0) ** 2),
    ],
)
def test_powers_logarithms_and_hinges_are_those_of_the_constant(how, expected):
    f, X = net("attention"), tokens(2, 3, 4)
    sigma = exact(f, X).requires_grad_()
    (slope,) = torch.autograd.grad(expected(sigma).sum(), sigma)
    found = hs.penalty(f, X, steps=12, **how)
    assert_close(found.detach(), expected(sigma).detach())
    plain = torch.autograd.grad((slope * hs.penalty(f, X, steps=12)).sum(), f.mix.weight)
    assert_close(torch.autograd.grad(found.sum(), f.mix.weight), plain)


def test_warm_starts_reach_the_cold_value_while_weights_drift():
    f, X, state = block(8).double(), tokens(4, 6, 8), hs.training.WarmStart()
    ways = [0.2 * torch.randn_like(parameter) for parameter in f.parameters()]
    worst = []
    for step in range(8):
        with torch.no_grad():
            for parameter, way in zip(f.parameters(), ways, strict=True):
                parameter += 0.01 * way  # a hundredth of what weights scatter by
        warm = hs.penalty(f, X, state=state).detach()
        assert state.steps == 3 or step == 0
        cold = hs.penalty(f, X, steps=20).detach()
        worst.append((warm / cold - 1).abs().max())
    assert max(worst) < 0.01
    assert (state.residual < 0.2).all()


def test_a_value_that_is_no_longer_the_largest_is_left():
    state, X, scales = hs.training.WarmStart(), tokens(1, 1, 40), torch.linspace(0.1, 1, 40, dtype=torch.float64)
    scales[0] = 3.0
    assert_close(hs.penalty(lambda Y: scales * Y, X, state=state).item(), 3.0, rtol=1e-4, atol=0)
    scales[1] = 9.0  # orthogonal to where it is
    for _step in range(4):
        found = hs.penalty(lambda Y: scales * Y, X, state=state)
    assert_close(found.item(), 9.0, rtol=1e-4, atol=0)


def test_sequences_of_another_length_start_from_a_common_direction():
    f, state = net("attention"), hs.training.WarmStart()
    hs.penalty(f, tokens(3, 7, 4), state=state)
    X = tokens(2, 5, 4)
    assert state.guess(X).shape == X.shape
    found = hs.penalty(f, X, state=state, steps=3)
    assert (found <= exact(f, X) * (1 + 1e-9)).all()
    assert (found >= 0.8 * exact(f, X)).all()


def test_it_says_so_once_when_it_stays_inexact():
    scales = torch.linspace(0.9, 1, 400, dtype=torch.float64)  # hardly any gap
    X, state = tokens(1, 20, 20), hs.training.WarmStart()
    state._direction = tokens(1, 20, 20)

    def inexact():
        state._direction = tokens(1, 20, 20)
        hs.penalty(lambda Y: scales.reshape(20, 20) * Y * torch.linspace(0.1, 1, 20), X, state=state, steps=1)

    for _step in range(PATIENCE - 1):
        inexact()
    with pytest.warns(ConvergenceWarning, match="inexact 10 steps in a row"):
        inexact()
    inexact()  # not again
    assert "residual" in repr(state)


def test_a_constant_map_and_a_zero_map_cost_nothing_and_have_no_gradient_that_is_not_a_number():
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    X = tokens(2, 3, 4).requires_grad_()
    found = hs.penalty(lambda Y: weight * Y, X)
    found.sum().backward()
    assert found.tolist() == [0.0, 0.0]
    assert weight.grad.isfinite()
    assert hs.penalty(lambda Y: torch.ones_like(Y), X).tolist() == [0.0, 0.0]


def test_autocast_does_not_round_the_penalty():
    f, X = SelfAttention(8), torch.randn(2, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(X).dtype == torch.bfloat16
        rounded = hs.penalty(f, X, steps=20)
    assert rounded.dtype == torch.float32
    assert_close(rounded, hs.penalty(f, X, steps=20), rtol=1e-4, atol=0)


def test_half_precision_weights_are_penalised_in_float32_and_get_gradients_of_their_own():
    f = SelfAttention(8).to(torch.bfloat16)
    hs.penalty(f, torch.randn(2, 5, 8, dtype=torch.bfloat16)).sum().backward()
    assert f.mix.weight.grad.dtype == torch.bfloat16
    assert f.mix.weight.grad.norm() > 0


def test_a_checkpointed_part_gives_the_same_penalty():
    mix, X = nn.Linear(4, 4).double(), tokens(2, 3, 4)

    def attend(Y):
        return torch.softmax(mix(Y) @ Y.mT, -1) @ Y

    expected, found = (
        hs.penalty(g, X, steps=12).sum() for g in (attend, lambda Y: checkpoint(attend, Y, use_reentrant=False))
    )
    assert_close(found, expected)
    slopes = [torch.autograd.grad(x, mix.weight)[0] for x in (expected, found)]
    assert_close(slopes[1], slopes[0])


def test_fused_attention_inside_a_checkpoint_is_refused_with_the_remedy():
    f = net("block").eval()
    with pytest.raises(AssumptionError, match="give the part itself"):
        hs.penalty(lambda Y: checkpoint(f, Y, use_reentrant=False), tokens(2, 3, 4))


def test_a_part_that_is_checkpointed_the_old_way_is_refused_with_the_remedy():
    f = net("attention").eval()
    with pytest.raises(AssumptionError, match="use_reentrant=False"):
        hs.penalty(lambda Y: checkpoint(f, Y, use_reentrant=True), tokens(2, 3, 4))


def test_fused_attention_runs_in_its_mathematical_form_and_is_fused_again_afterwards():
    f, X = net("attention").train(), tokens(2, 3, 4)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
        hs.penalty(f, X).sum().backward()
        assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()) == before
    assert f.training
    assert f.drop.training


@pytest.mark.slow
def test_a_compiled_module_is_run_as_written_with_a_note():
    f, X = net("attention"), tokens(2, 3, 4)
    fast = torch.compile(f, backend="eager")
    with pytest.warns(FallbackWarning, match="uncompiled"):
        found = hs.penalty(fast, X, steps=12)
    assert_close(found, hs.penalty(f, X, steps=12))
    f.compile(backend="aot_eager")  # of this one no second derivative can be had
    with pytest.warns(FallbackWarning):
        hs.penalty(f, X).sum().backward()


@pytest.mark.slow
@pytest.mark.untyped  # the compiler would trace the checks, too
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own
def test_a_compiled_training_step_is_the_step_as_written():
    f, X = net("block").eval(), tokens(2, 3, 4)

    def steps(change):
        state = WarmStart()

        def step(X):
            loss = f(X).square().mean() + hs.penalty(f, X, seed=0, state=state).sum()
            loss.backward()
            return loss.detach()

        found, step = [], change(step)
        for _repeat in range(2):
            f.zero_grad()
            found += [step(X), *(x.grad for x in f.parameters())]
        return found

    assert_close(steps(lambda step: torch.compile(step, backend="aot_eager")), steps(lambda step: step))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="leave fullgraph=True out"):
        steps(lambda step: torch.compile(step, backend="eager", fullgraph=True))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"power": 0}, AssumptionError, "power must be a positive number"),
        ({"power": 2, "log": True}, AssumptionError, "give above"),
        ({"above": -1.0}, AssumptionError, "above must be"),
        ({"above": 0.0, "log": True}, AssumptionError, "above must be positive"),
        ({"steps": 0}, AssumptionError, "steps must be"),
        ({"f": 3}, DtypeError, "f must be a map"),
        ({"X": torch.full((2, 3, 4), torch.nan)}, NonFiniteError, "tokens"),
        ({"f": lambda X: (X, X)}, DtypeError, "must return one tensor"),
        ({"f": lambda X: X + X.mean(0)}, AssumptionError, "mixes the sequences"),
    ],
)
def test_what_is_no_penalty_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        hs.penalty(**({"f": lambda X: X, "X": torch.ones(2, 3, 4)} | given))
