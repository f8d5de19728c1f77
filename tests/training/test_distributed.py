"""Two processes that train one model: every parameter gets the mean of the penalties' gradients."""

import datetime
import os
import socket
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import howsmooth as hs


def layer():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0).double()


def tokens(rank):
    return torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def loss_of(called, f, X):
    generator = torch.Generator().manual_seed(7)
    return called(X).square().mean() + hs.penalty(f, X, steps=12, seed=generator).mean()


def work(rank, port, folder):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=30))
    torch.set_num_threads(1)
    model = DistributedDataParallel(layer())
    for state in (None, hs.training.WarmStart()):  # the wrapper itself can be penalised, too
        model.zero_grad()
        f = model if state is None else model.module
        loss_of(model, f, tokens(rank)).backward()
    torch.save([parameter.grad for parameter in model.parameters()], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_get_the_mean_of_both_gradients(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.start_processes(work, (port, str(tmp_path)), nprocs=2, join=False, start_method="fork")
    stop = time.monotonic() + 60
    while not context.join(timeout=5):  # true once all are done
        if time.monotonic() > stop:
            for process in context.processes:
                process.kill()
            pytest.fail("the processes did not come to an end")
    alone = layer()
    sum(loss_of(alone, alone, tokens(rank)) for rank in range(2)).backward()
    for rank in range(2):
        for grad, parameter in zip(torch.load(tmp_path / f"{rank}.pt"), alone.parameters(), strict=True):
            assert_close(grad, parameter.grad / 2)
