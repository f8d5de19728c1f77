"""Where the command line begins: only the standard library is imported before Ctrl-C ends a command in one line."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C ends it in one line, unless the work is one that can be stopped (``stoppable``)."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # signals come to the main thread alone
    before = signal.signal(signal.SIGINT, _stop) if in_main_thread else None
    try:
        from howsmooth.cli.commands import run

        run()
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let the first Ctrl-C raise ``KeyboardInterrupt``: who catches it keeps what is done. The next one ends all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _raise)
    try:
        yield
    except KeyboardInterrupt:
        _stop()
    finally:
        signal.signal(signal.SIGINT, before)


def _raise(_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _stop)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _stop()  # an import is under way: compiled modules that are interrupted meanwhile abort the process
        frame = frame.f_back
    raise KeyboardInterrupt


def _stop(_number: int = 0, _frame: FrameType | None = None) -> None:
    # whoever cannot wait presses again meanwhile
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave(b"Stopped.\n")


def leave(said: bytes) -> "NoReturn":
    """End a command that was interrupted, whatever threads are still at work.

    Why not sys.exit: on its way out the interpreter joins threads, or ends them in the middle of compiled code, and
    may end by a signal in place of our code. Records are kept by transactions, and files are written whole or not at
    all.
    """
    with suppress(Exception):  # the signal may have come in the middle of a flush
        sys.stdout.flush()
    os.write(2, said)
    os._exit(INTERRUPTED)
