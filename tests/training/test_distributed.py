"""Two processes that train one model: every parameter gets the mean of the penalties' gradients.

This file is also a program that becomes the two processes. They are copies of a fresh interpreter and not of pytest's:
a copy of a process whose threads hold a lock may wait for it for ever.
"""

import datetime
import os
import signal
import subprocess
import sys
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import howsmooth as hs

PROCESSES = 2

# Of everything, in seconds.
LONGEST = 120


def layer():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0).double()


def tokens(rank):
    return torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def loss_of(called, f, X):
    generator = torch.Generator().manual_seed(7)
    return called(X).square().mean() + hs.penalty(f, X, steps=12, seed=generator).mean()


def work(rank, place):
    signal.alarm(LONGEST)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{place}/store", PROCESSES)
    wait = datetime.timedelta(seconds=LONGEST / 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES, timeout=wait)
    model = DistributedDataParallel(layer())
    for state in (None, hs.training.WarmStart()):  # the wrapper itself can be penalised, too
        model.zero_grad()
        f = model if state is None else model.module
        loss_of(model, f, tokens(rank)).backward()
    torch.save([parameter.grad for parameter in model.parameters()], f"{place}/{rank}.pt")
    dist.destroy_process_group()


def main(place):
    for rank in range(PROCESSES):
        if os.fork() == 0:
            try:
                work(rank, place)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _rank in range(PROCESSES)]
    sys.exit(any(codes))


@pytest.mark.slow
@pytest.mark.clock("two processes wait for each other")
def test_two_processes_get_the_mean_of_both_gradients(tmp_path):
    ended = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=2 * LONGEST
    )
    assert ended.returncode == 0, ended.stderr
    alone = layer()
    sum(loss_of(alone, alone, tokens(rank)) for rank in range(PROCESSES)).backward()
    for rank in range(PROCESSES):
        for grad, parameter in zip(torch.load(tmp_path / f"{rank}.pt"), alone.parameters(), strict=True):
            assert_close(grad, parameter.grad / PROCESSES)


if __name__ == "__main__":
    main(sys.argv[1])
