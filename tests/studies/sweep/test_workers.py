"""One process, several, or a cluster: the same records; and what happens when one of them is lost."""

import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

import distributed
import psutil
import pytest
import torch
from asked import TWO, answered, radii, untimed, windows

import howsmooth as hs
from howsmooth.errors import AssumptionError, ClusterError, FileError
from howsmooth.models.transformer import Transformer
from howsmooth.studies.kinds.tokens_in_ball import ExtremalAsk
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.store import Store
from howsmooth.studies.sweep import dask_cluster
from howsmooth.studies.sweep.sweep import sweep, units
from howsmooth.studies.sweep.workers import LOSSES, executor, using_threads

pytestmark = pytest.mark.clock("a cluster answers in its own time, and loses workers")
PATIENCE = 120.0


@pytest.fixture
def mixed(folder_model, beginning, digest):
    """Work of several kinds, one of which fails."""
    texts = windows(folder_model, digest, place=beginning, layers=(0, 1), maps=("head:0", "attention"), count=3)
    built = [ExtremalAsk(points="two_point", length=n, radius=1.5, **TWO) for n in (5, 6)]
    return [*radii(3), *texts, *built, *windows(folder_model, digest, place=beginning, layers=(99,), count=1)]


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


@pytest.fixture(scope="module")
def mortal(tmp_path_factory):
    """A cluster that loses a worker, and then its scheduler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path_factory.mktemp("mortal")))
        found = Cluster(2)
        try:
            yield found
        finally:
            found.close()


def stored(asks, folder, **how):
    with Store(folder) as store:
        tally = answered(asks, store, **how)
        assert tally.done + tally.failed == len(asks)
        assert tally.left == 0
        return untimed(store.records()), [(failure.ask, failure.error) for failure in store.failures()]


@pytest.mark.slow
def test_one_process_and_a_cluster_give_the_same_records(mixed, cluster, tmp_path):
    alone = stored(mixed, tmp_path / "alone")
    assert len(alone[0]) == len(mixed) - 1
    assert len(alone[1]) == 1
    assert stored(mixed, tmp_path / "cluster", scheduler=cluster) == alone


@pytest.mark.slow
def test_models_are_released_with_the_executor_that_loaded_them(folder_model, beginning, digest):
    asks, held = windows(folder_model, digest, place=beginning), Resources()
    with executor(resources=held) as execute, Store(None) as store:
        assert sweep(asks, store, execute=execute).done == 2
        transformer = weakref.ref(held.transformer(folder_model, asks[0].where))
        weights = weakref.ref(transformer().module)
    gc.collect()
    assert transformer() is None
    assert weights() is None


@pytest.mark.slow
def test_what_is_given_to_be_measured_is_not_kept_either(module, tokenizer, small):
    transformer = hs.load(module(), tokenizer=tokenizer)
    hs.measure(transformer, **small)
    remembered = weakref.ref(transformer)
    del transformer
    gc.collect()
    assert remembered() is None


def test_workers_release_their_models_with_the_executor(folder_model, beginning, digest, cluster):
    asks = windows(folder_model, digest, place=beginning)
    with distributed.Client(cluster, timeout=PATIENCE, set_as_default=False) as client:
        with executor(scheduler=cluster) as execute, Store(None) as store:
            assert sweep(asks, store, execute=execute).done == 2
            assert list(client.run(_transformers).values()) == [1]
        assert list(client.run(_transformers).values()) == [0]


def _transformers():
    gc.collect()
    return sum(type(found) is Transformer for found in gc.get_objects())


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_has_its_asks_done_by_another(mortal, tmp_path):
    asks = radii(40)
    alone = stored(asks, tmp_path / "alone")
    seen = []

    def kill(tally):
        seen.append(tally)
        if len(seen) == 3:
            mortal.workers[0].kill()

    with Store(tmp_path / "cluster") as store:
        tally = answered(asks, store, scheduler=mortal.address, progress=kill)
        assert (tally.done, tally.failed, tally.left) == (40, 0, 0)
        assert untimed(store.records()) == alone[0]
    assert seen[2].left > 10, "there was work left when the worker died"
    assert mortal.workers[0].process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_processes_that_are_started_here_give_the_same_records_though_one_is_killed_and_open_no_port(tmp_path):
    # no model among them: loading one takes longer than all the rest, in each of the processes
    asks = [*radii(30), *(ExtremalAsk(points="two_point", length=n, radius=1.5, **TWO) for n in (5, 6))]
    alone = stored(asks, tmp_path / "alone")
    seen, others = [], set(_spawned())
    before, ports = _listening(), set()

    def kill(tally):
        seen.append(tally)
        ports.update(_listening())
        if len(seen) == 3:
            os.kill(pids[0], signal.SIGKILL)

    with Store(tmp_path / "two") as store, executor(workers=2) as execute:
        pids = [pid for pid in _spawned() if pid not in others]
        assert len(pids) == 2
        tally = sweep(asks, store, execute=execute, progress=kill)
        assert (tally.done, tally.failed, tally.left) == (len(asks), 0, 0)
        assert untimed(store.records()) == alone[0]
    assert seen[2].left > 10, "there was work left when the process died"
    assert ports == before
    assert set(_spawned()) == others


def _spawned():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [child.pid] if any("spawn_main" in word for word in child.cmdline()) else []
    return found


@pytest.mark.slow
def test_a_lost_scheduler_is_a_clear_error_and_what_was_done_is_kept(mortal, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_cluster, "PATIENCE", 10.0)
    asks = radii(400)  # so many that some are left when the news of the loss arrives
    seen = []

    def kill(tally):
        seen.append(tally)
        if len(seen) == 3:
            mortal.scheduler.kill()

    began = time.monotonic()
    with Store(tmp_path / "run") as store:
        with pytest.raises(ClusterError, match="lost") as refusal:
            answered(asks, store, scheduler=mortal.address, progress=kill)
        assert time.monotonic() - began < PATIENCE
        assert mortal.address in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1
        assert 3 <= len(store.records()) < 400
        assert store.failures() == [], "an ask is not to blame for the cluster"
        assert answered(asks, store).done == 400


@pytest.mark.slow
def test_an_address_where_nobody_listens_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(dask_cluster, "PATIENCE", 1.0)
    address = f"tcp://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(ClusterError, match="no Dask scheduler answers") as refusal, executor(scheduler=address):
        pass
    assert time.monotonic() - began < PATIENCE
    assert address in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.slow
def test_a_listener_that_says_nothing_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(dask_cluster, "PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ClusterError, match="no Dask scheduler answers"), executor(scheduler=address):
            pass
        assert time.monotonic() - began < PATIENCE


@pytest.mark.parametrize("address", ["", "nonsense", "tcp://", "tcp://127.0.0.1:x", "xyz://127.0.0.1:1", "127.0.0.1"])
def test_an_address_that_is_none_is_refused(address, monkeypatch):
    monkeypatch.setattr(dask_cluster, "PATIENCE", 0.5)
    with pytest.raises(ClusterError, match="no Dask scheduler answers"), executor(scheduler=address):
        pass


def test_workers_and_a_scheduler_together_are_refused():
    with pytest.raises(AssumptionError, match="not both"), executor(workers=2, scheduler="tcp://127.0.0.1:1"):
        pass


def test_without_dask_the_command_that_installs_it_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ClusterError, match=r"pip install 'howsmooth\[cluster\]'"),
        executor(scheduler="tcp://127.0.0.1:1"),
    ):
        pass
    for count in (0, 1):  # the processes of one machine need none
        with executor(workers=count) as execute:
            assert list(execute([])) == []


def _listening():
    mine, found = psutil.Process(), set()
    for process in (mine, *mine.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            every = process.net_connections("inet")
            found |= {connection.laddr for connection in every if connection.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.slow
def test_a_unit_that_loses_every_process_is_a_failure_and_the_others_are_done(tmp_path):
    asks, others, lost = radii(12), set(_spawned()), set()

    def kill():
        while not over.wait(0.01) and len(lost) < LOSSES:
            for pid in {*_spawned()} - others - lost:
                lost.add(pid)
                os.kill(pid, signal.SIGKILL)

    over = threading.Event()
    killer = threading.Thread(target=kill, daemon=True)
    with Store(tmp_path) as store, executor(workers=1) as execute:
        killer.start()
        tally = sweep(asks, store, execute=execute)
        over.set()
        killer.join(timeout=PATIENCE)
        assert (tally.done, tally.failed, tally.left) == (11, 1, 0)
        (failure,) = store.failures()
        assert failure.error == "3 processes were lost with it"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with an authority, a certificate and its key; and one with those of another authority."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by openssl, which is not here")
    return [_certified(tmp_path_factory.mktemp(name)) for name in ("ours", "theirs")]


def _certified(folder):
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *request.split()], cwd=folder, capture_output=True, check=True, timeout=PATIENCE)
    shutil.copy(folder / "cert.pem", folder / "ca.pem")  # it signs itself
    return folder


@pytest.mark.slow
def test_a_cluster_that_speaks_tls_gives_the_same_records_and_no_other_is_trusted(certificates, tmp_path, monkeypatch):
    ours, theirs = certificates
    monkeypatch.setattr(dask_cluster, "PATIENCE", 10.0)
    files = {"ca_file": "ca.pem"} | {
        f"{role}_{part}": f"{part}.pem" for role in ("scheduler", "worker", "client") for part in ("cert", "key")
    }
    security = distributed.Security(
        require_encryption=True, **{f"tls_{name}": str(ours / file) for name, file in files.items()}
    )
    with distributed.LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tls://",
        security=security,
        host="127.0.0.1",
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        silence_logs=logging.CRITICAL,
    ) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        assert stored(radii(4), tmp_path / "tls", scheduler=address, tls=ours) == stored(radii(4), tmp_path / "alone")
        for tls in (None, theirs):
            with pytest.raises(ClusterError, match="no Dask scheduler answers"), executor(scheduler=address, tls=tls):
                pass


def test_plain_text_is_refused_where_tls_was_asked_for(certificates, cluster, monkeypatch):
    monkeypatch.setattr(dask_cluster, "PATIENCE", 10.0)
    with pytest.raises(ClusterError, match="with a certificate"), executor(scheduler=cluster, tls=certificates[0]):
        pass


def test_tls_without_its_files_or_without_a_scheduler_is_refused(tmp_path):
    with pytest.raises(FileError, match="is not there"), executor(scheduler="tls://127.0.0.1:1", tls=tmp_path):
        pass
    with pytest.raises(AssumptionError, match="none was given"), executor(workers=2, tls=tmp_path):
        pass


def test_a_store_that_fails_ends_a_sweep_on_workers_at_once(cluster, tmp_path, capfd):
    class Full(Store):
        def add(self, outcomes):
            if len(self.records()) > 2:
                raise hs.errors.FileError("the disk is full.")
            super().add(outcomes)

    began = time.monotonic()
    with pytest.raises(hs.errors.FileError, match="full"), Full(tmp_path) as store:
        answered(radii(20), store, scheduler=cluster)
    assert time.monotonic() - began < PATIENCE
    assert "Traceback" not in capfd.readouterr().err
    with Store(tmp_path) as store:
        assert len(store.records()) == 3


def test_no_thread_or_setting_is_left_behind():
    before = threading.active_count()
    with using_threads(2):
        with executor(threads=1) as execute:
            for _outcomes in execute(units(radii(2), frozenset())):
                assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    assert threading.active_count() == before
