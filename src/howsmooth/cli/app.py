"""Where the command line begins: only the standard library is imported before Ctrl-C ends a command in one line."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TYPE_CHECKING = False  # as in howsmooth's own __init__: typing takes longer to import than all that stands here
if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130
# Set while a Ctrl-C waits for somebody who handles it.
_pending = threading.Event()


def main() -> None:
    """Run the command line."""
    with one_line_on_interrupt():
        from howsmooth.cli.commands import run

        run()


@contextmanager
def one_line_on_interrupt() -> Iterator[None]:
    """Turn a Ctrl-C that nobody handled into one line and exit code 130, whatever became of it on its way.

    Imports that are interrupted raise errors of their own, and callbacks swallow them: what counts is that the key was
    pressed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return
    _pending.clear()
    before, hook = signal.signal(signal.SIGINT, _pressed), sys.unraisablehook
    sys.unraisablehook = _without_interrupts(hook)
    try:
        yield
    except BaseException:
        if _pending.is_set():
            _exit()
        raise
    finally:
        if not _pending.is_set():
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, before)


def interrupt_handled() -> None:
    """Say that a Ctrl-C was handled: the command ends by itself now, unless there is another one."""
    _pending.clear()


def _pressed(_number: int, frame: FrameType | None) -> None:
    _pending.set()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _exit()  # an import is under way: compiled modules that are interrupted meanwhile abort the process
        frame = frame.f_back
    raise KeyboardInterrupt


def _without_interrupts(hook: "Any") -> "Any":
    """Print nothing about a Ctrl-C that came in a callback."""
    return lambda found: None if issubclass(found.exc_type, KeyboardInterrupt) else hook(found)


def _exit() -> None:
    # whoever cannot wait presses again meanwhile
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    print("Stopped.", file=sys.stderr, flush=True)
    # Why not sys.exit: on its way out the interpreter joins threads, and may end by the signal in place of our code.
    # Whatever is open was closed while the interrupt came up to here, and records are kept by transactions.
    os._exit(INTERRUPTED)
