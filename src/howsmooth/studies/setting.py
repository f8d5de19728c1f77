"""Where and with what a number was computed."""

import functools
import os
import platform
from dataclasses import dataclass
from importlib import metadata

import torch


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Versions, hardware and threads.

    Attributes:
        howsmooth: The version of this library.
        torch: The version of torch.
        transformers: The version of transformers.
        python: The version of Python.
        machine: The kind of processor and how many cores it has.
        threads: How many threads a product used: sums in another order differ in the last bit.
    """

    howsmooth: str
    torch: str
    transformers: str
    python: str
    machine: str
    threads: int


def here() -> Setting:
    """Describe this process."""
    return _setting(torch.get_num_threads())


@functools.cache
def _setting(threads: int) -> Setting:
    return Setting(
        howsmooth=metadata.version("howsmooth"),
        torch=torch.__version__,
        transformers=metadata.version("transformers"),
        python=platform.python_version(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        threads=threads,
    )
