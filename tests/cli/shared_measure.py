"""The command line as torchrun starts it: processes that measure together, one of which is lost in a second run.

Started by test_torchrun.py: a folder with a model, and where to write. Processes are copies of this one, since every
import of torch takes seconds.
"""

import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch

from howsmooth.cli.app import main
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.store import open_run

# Of everything, in seconds.
LONGEST = 300


def start(size, place, *arguments):
    """Start processes of one command; return their numbers in the system."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [_start(rank, size, port, place, arguments) for rank in range(size)]


def _start(rank, size, port, place, arguments):
    if child := os.fork():
        return child
    signal.alarm(LONGEST)
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{place}-{rank}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    sys.argv = ["howsmooth", *arguments]
    code = 1
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    Path(f"{place}-{rank}.code").write_text(str(code))
    os._exit(code)


def wait(processes):
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def lose_one(model, place):
    """Begin a long run, and kill one of three processes once something is kept; write when, and how all ended."""
    run = f"{place}/lost"
    measured = ("--lengths", "24,32,40,48,56,64", "--sequences", "9", "--rtol", "1e-4", "-o", run)
    processes = start(3, f"{place}/lost-said", "measure", model, "--token-ids", f"{place}/ids.npy", *measured)
    while not _kept(run) and not Path(f"{place}/lost-said-0.code").exists():
        time.sleep(0.02)
    os.kill(processes[2], signal.SIGKILL)
    began = time.monotonic()
    codes = wait(processes)
    Path(f"{place}/lost-codes").write_text(f"{codes} {time.monotonic() - began:.1f}")


def _kept(run):
    if not (Path(run) / FILE).is_file():
        return 0
    try:
        with open_run(Path(run)) as store:
            return len(store.keys())
    except OSError:  # it is being made
        return 0


if __name__ == "__main__":
    model, place = sys.argv[1:]
    together = ("measure", model, "--token-ids", f"{place}/ids.npy", "--lengths", "33", "--sequences", "1", "--json")
    codes = wait(start(2, f"{place}/said", *together, "--layers", "0,2", "-o", f"{place}/run"))
    Path(f"{place}/codes").write_text(str(codes))
    lose_one(model, place)
