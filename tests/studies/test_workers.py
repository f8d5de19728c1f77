"""One process, several, or a cluster: the same records; and what happens when one of them is lost."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import distributed
import psutil
import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError, ClusterError
from howsmooth.studies import workers
from howsmooth.studies.store import Store
from howsmooth.studies.sweep import sweep
from howsmooth.studies.tasks import Task
from howsmooth.studies.workers import executor

PATIENCE = 60.0
ONE = {"A": ((-1.0,),), "V": ((1.0,),)}


def regimes(count):
    return [Task(kind="regime", length=3 + i, radius=1.5, **ONE) for i in range(count)]


@pytest.fixture
def tasks(alice_tasks):
    """Work of several kinds, one of which fails."""
    texts = alice_tasks(layers=(0, 1), maps=("head:0", "attention"), windows=3)
    searches = [Task(kind="measure", length=2, radius=1.5, climb=5, seed=seed, **ONE) for seed in (0, 1)]
    return [*regimes(6), *texts, *searches, Task(model="minilm", text="alice", digest="", length=8, layer=99)]


class Process:
    """A process of ours, ended by its id."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """A scheduler and workers as a user would start them, on this machine alone."""

    def __init__(self, count):
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.scheduler = Process(
            "dask_scheduler", "--host", self.address, "--no-dashboard", "--no-jupyter", "--no-show"
        )
        self.workers = [self.add_worker() for _ in range(count)]
        with distributed.Client(self.address, timeout=PATIENCE, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=PATIENCE)

    def add_worker(self):
        return Process(
            "dask_worker", self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"
        )

    def close(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path))
    found = Cluster(2)
    try:
        yield found
    finally:
        found.close()


def stored(tasks, folder, untimed, **how):
    with executor(**how) as execute, Store(folder) as store:
        tally = sweep(tasks, store, execute=execute)
        assert tally.done + tally.failed == len(tasks)
        assert tally.left == 0
        return untimed(store.records()), [(failure.task, failure.error) for failure in store.failures()]


@pytest.mark.slow
def test_one_process_two_processes_and_a_cluster_give_the_same_records(tasks, cluster, tmp_path, untimed):
    alone = stored(tasks, tmp_path / "alone", untimed)
    assert len(alone[0]) == len(tasks) - 1
    assert len(alone[1]) == 1
    assert stored(tasks, tmp_path / "two", untimed, workers=2) == alone
    assert stored(tasks, tmp_path / "cluster", untimed, scheduler=cluster.address) == alone


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_has_its_tasks_done_by_another(cluster, tmp_path, untimed):
    tasks = regimes(40)
    alone = stored(tasks, tmp_path / "alone", untimed)
    seen = []

    def kill(tally):
        seen.append(tally)
        if len(seen) == 3:
            cluster.workers[0].kill()

    with executor(scheduler=cluster.address) as execute, Store(tmp_path / "cluster") as store:
        tally = sweep(tasks, store, execute=execute, progress=kill)
        assert (tally.done, tally.failed, tally.left) == (40, 0, 0)
        assert untimed(store.records()) == alone[0]
    assert seen[2].left > 10, "there was work left when the worker died"
    assert cluster.workers[0].process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_local_worker_killed_in_the_middle_is_replaced(tmp_path, untimed):
    tasks = regimes(40)
    alone = stored(tasks, tmp_path / "alone", untimed)
    seen = []

    def kill(tally):
        seen.append(tally)
        if len(seen) == 3:
            os.kill(pids[0], signal.SIGKILL)

    with executor(workers=2) as execute, Store(tmp_path / "two") as store:
        pids = _spawned()
        assert len(pids) == 2
        tally = sweep(tasks, store, execute=execute, progress=kill)
        assert (tally.done, tally.failed, tally.left) == (40, 0, 0)
        assert untimed(store.records()) == alone[0]


def _spawned():
    return [child.pid for child in psutil.Process().children() if any("spawn_main" in word for word in child.cmdline())]


@pytest.mark.slow
def test_a_lost_scheduler_is_a_clear_error_and_what_was_done_is_kept(cluster, tmp_path, untimed, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 5.0)
    tasks = regimes(40)
    seen = []

    def kill(tally):
        seen.append(tally)
        if len(seen) == 3:
            cluster.scheduler.kill()

    began = time.monotonic()
    with Store(tmp_path / "run") as store:
        with pytest.raises(ClusterError, match="lost") as refusal, executor(scheduler=cluster.address) as execute:
            sweep(tasks, store, execute=execute, progress=kill)
        assert time.monotonic() - began < PATIENCE
        assert cluster.address in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1
        assert 3 <= len(store.records()) < 40
        assert store.failures() == [], "a task is not to blame for the cluster"
        assert sweep(tasks, store).done == 40


def test_an_address_where_nobody_listens_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    address = f"tcp://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(ClusterError, match="no Dask scheduler answers") as refusal, executor(scheduler=address):
        pass
    assert time.monotonic() - began < 20
    assert address in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_listener_that_says_nothing_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ClusterError, match="no Dask scheduler answers"), executor(scheduler=address):
            pass
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("address", ["", "nonsense", "tcp://", "tcp://127.0.0.1:x", "xyz://127.0.0.1:1", "127.0.0.1"])
def test_an_address_that_is_none_is_refused(address, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    with pytest.raises(ClusterError, match="no Dask scheduler answers"), executor(scheduler=address):
        pass


def test_workers_and_a_scheduler_together_are_refused(howsmooth, tmp_path):
    with pytest.raises(AssumptionError, match="not both"), executor(workers=2, scheduler="tcp://127.0.0.1:1"):
        pass
    (tmp_path / "s.toml").write_text("layers = [0]\nlengths = [8]\nsequences = 1", encoding="utf-8")
    done = howsmooth("sweep", "s.toml", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1")
    assert done.code == 2
    assert "not both" in done.err
    assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


@pytest.mark.parametrize("how", [{"workers": 2}, {"scheduler": "tcp://127.0.0.1:1"}], ids=str)
def test_without_dask_the_command_that_installs_it_is_given(how, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterError, match=r"pip install 'howsmooth\[cluster\]'"), executor(**how):
        pass
    with executor() as execute:  # one process needs none
        assert execute([]) is not None


@pytest.mark.slow
def test_a_store_that_fails_ends_a_sweep_on_workers_at_once(tmp_path, capfd):
    tasks = regimes(20)

    class Full(Store):
        def add(self, outcomes):
            if len(self.records()) > 2:
                raise hs.errors.FileError("the disk is full.")
            super().add(outcomes)

    began = time.monotonic()
    with pytest.raises(hs.errors.FileError, match="full"), executor(workers=1) as execute, Full(tmp_path) as store:
        sweep(tasks, store, execute=execute)
    assert time.monotonic() - began < PATIENCE
    assert "Traceback" not in capfd.readouterr().err
    with Store(tmp_path) as store:
        assert len(store.records()) == 3


def test_no_thread_or_setting_is_left_behind():
    before, threads = torch.get_num_threads(), threading.active_count()
    with executor(threads=1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert threading.active_count() == threads
