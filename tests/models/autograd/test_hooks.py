"""Hooks count the calls of their own thread, may change inputs and outputs, and are removed whatever happens."""

import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.models.autograd.hooks import StopForward, hooked, recorded_calls, recorded_outputs


def tower():
    first = nn.Linear(3, 3)
    return nn.Sequential(first, nn.ReLU(), first)


def hook_count(module):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_inputs_and_outputs_are_replaced_at_the_call_that_is_meant(rng):
    module, X, Y = tower(), torch.randn(1, 2, 3, generator=rng), torch.randn(1, 2, 3, generator=rng)
    with hooked(module, inputs={"0": lambda call, turn: call.at(Y) if turn == 1 else None}):
        assert_close(module(X), module[0](Y))
    with hooked(module, outputs={"0": lambda output, turn: output + 1 if turn == 1 else None}):
        shifted = module(X)
    assert_close(shifted, module(X) + 1)


def test_shared_parts_are_recorded_once_for_each_call(rng):
    module, X = tower(), torch.randn(1, 2, 3, generator=rng)
    with recorded_calls(module, {"0": 2}) as calls, recorded_outputs(module, {"0"}) as outputs:
        module(X)
    assert sorted(calls) == sorted(outputs) == [("0", 0), ("0", 1)]
    assert_close(calls["0", 1].tokens, outputs["0", 0].relu())
    with pytest.raises(hs.errors.UnsupportedModelError, match="did not run"), recorded_calls(module, {"0": 3}):
        module(X)


def test_a_forward_pass_is_stopped_and_leaves_no_hook(rng):
    module, X = tower(), torch.randn(1, 2, 3, generator=rng)
    seen = []

    def stop(call, _turn):
        seen.append(call)
        raise StopForward

    with hooked(module, inputs={"1": stop}):
        module(X)
        pytest.fail("the pass went on")
    assert len(seen) == 1
    assert hook_count(module) == 0
    with pytest.raises(AttributeError), hooked(module, inputs={"0": stop, "nowhere": stop}):
        pass
    assert hook_count(module) == 0


def test_calls_of_other_threads_are_ignored(rng):
    module, X = tower(), torch.randn(1, 2, 3, generator=rng)
    turns = []
    with hooked(module, inputs={"0": lambda _call, turn: turns.append(turn)}):
        other = threading.Thread(target=module, args=(X,))
        other.start()
        other.join()
        module(X)
    assert turns == [0, 1]
