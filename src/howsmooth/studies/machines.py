"""With what a number was computed."""

import functools
import os
import platform
from importlib import metadata

from howsmooth.studies.values import Value


class Machine(Value, frozen=True, kw_only=True):
    """Versions, hardware and threads.

    Attributes:
        howsmooth: The version of this library.
        torch: The version of torch.
        transformers: The version of transformers.
        python: The version of Python.
        processor: The kind of processor and how many cores it has.
        threads: How many threads a product used: sums in another order differ in the last bit.
    """

    howsmooth: str
    torch: str
    transformers: str
    python: str
    processor: str
    threads: int


def here() -> Machine:
    """Describe this process."""
    import torch

    return _described(torch.get_num_threads())


@functools.cache
def _described(threads: int) -> Machine:
    return Machine(
        howsmooth=metadata.version("howsmooth"),
        torch=metadata.version("torch"),
        transformers=metadata.version("transformers"),
        python=platform.python_version(),
        processor=f"{platform.machine()}, {os.cpu_count()} cores",
        threads=threads,
    )
