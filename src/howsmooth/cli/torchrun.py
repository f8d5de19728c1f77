"""Processes that torchrun started together: the first one speaks, the others are silent."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import AssumptionError

if TYPE_CHECKING:
    import torch.distributed as dist

# The command that shares out the tokens of a sequence.
SHARED = "measure"


def started() -> bool:
    """Tell whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "TORCHELASTIC_RUN_ID" in os.environ


def first() -> bool:
    """Tell whether this process speaks: alone, or as the first of several."""
    return not started() or int(os.environ["RANK"]) == 0


def refuse(command: str) -> None:
    """Refuse to do the same work in every process of a group, into the same folder."""
    if started() and command != SHARED:
        raise AssumptionError(
            f"torchrun shares out the tokens of long sequences, which `howsmooth {SHARED}` measures and no other "
            "command does; leave torchrun out, and share out the windows of a run with --workers."
        )


@contextmanager
def silence() -> Iterator[None]:
    """Let a process that does not speak say nothing for a while."""
    if first():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def explain(sentence: str) -> None:
    """Give torchrun the sentence with which this process ends: its report then says so in place of where to look."""
    # Why not by torch's `record`, which writes the same file: it adds Python's stack, which the report shows instead.
    if started() and (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        with suppress(OSError):  # the report is torchrun's own; the sentence was said already
            Path(file).write_text(json.dumps({"message": sentence, "timestamp": int(time.time())}), encoding="utf-8")


def leave(code: int) -> None:
    """End this process at once: on its way out the interpreter would wait for processes that are lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def group(device: str) -> Iterator["dist.ProcessGroup | None"]:
    """Join the other processes; none where there are no others."""
    if not started():
        yield None
        return
    from howsmooth.studies.sweep.process_group import joined

    with joined(device, int(os.environ.get("LOCAL_RANK") or 0)) as found:
        yield found


def refuse_options(options: Any) -> None:
    """Refuse options of a run that say otherwise who does the work."""
    for name in ("workers", "scheduler", "dry_run"):
        if getattr(options, name):
            raise AssumptionError(
                f"{name}= is for a command without torchrun, which says itself who does the work; leave one of them "
                "out.",
                field=name,
            )
