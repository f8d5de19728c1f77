"""Ctrl-C: whenever it comes, a command ends in one line and exit code 130; nothing but the standard library."""

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
# Set while a Ctrl-C waits for somebody who heeds it.
_waiting = threading.Event()


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Turn a Ctrl-C that nobody heeded into one line and an exit code, whatever became of it on its way.

    Imports that are interrupted raise errors of their own, and callbacks swallow them: what counts is that the key was
    pressed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return
    _waiting.clear()
    before, hook = signal.signal(signal.SIGINT, _pressed), sys.unraisablehook
    sys.unraisablehook = _complain(hook)
    try:
        yield
    except BaseException:
        if _waiting.is_set():
            _leave()
        raise
    finally:
        if not _waiting.is_set():
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, before)


def heard() -> None:
    """Say that a Ctrl-C was heeded: the command ends by itself now, unless there is another one."""
    _waiting.clear()


def _pressed(_number: int, frame: FrameType | None) -> None:
    _waiting.set()
    if _importing(frame):
        _leave()  # compiled modules that are interrupted while they are born abort the process
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether an import is under way anywhere below."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _complain(hook: "Any") -> "Any":
    """Say nothing about a Ctrl-C that came in a callback."""
    return lambda found: None if issubclass(found.exc_type, KeyboardInterrupt) else hook(found)


def _leave() -> None:
    # whoever cannot wait presses again while we go
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    print("Stopped.", file=sys.stderr, flush=True)
    # Why not sys.exit: on its way out the interpreter joins threads, and may end by the signal in place of our code.
    # Whatever is open was closed while the interrupt came up to here, and records are kept by transactions.
    os._exit(INTERRUPTED)
