"""Commands answer before one looks away: seconds to the first line, to the answer, and to the same answer again.

Each command runs in an empty folder, then once more in the same one; of three such pairs the minimum counts, of two for
commands that may take longer than a quarter of a minute. Processor seconds, of all its processes, stand beside those of
the clock, and the speed of a matrix product says what the machine gave at the time. The lesser of both is held against
what is promised: other programs lengthen the one, work on several cores the other.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import torch
from claims import options, verdict
from timing import best_times

REPEATS, REPEATS_OF_LONG, LONG = 3, 2, 15.0


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of the clock and of processors."""

    clock: float
    cpu: float

    @property
    def least(self) -> float:
        """The lesser of both."""
        return min(self.clock, self.cpu)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, and within how many seconds it has to answer, and to answer again."""

    words: tuple[str, ...]
    answer: float
    again: float = float("inf")


def command(line: str, answer: float, again: float = float("inf"), last: str = "") -> Command:
    return Command(words=(*line.split(), *([last] if last else [])), answer=answer, again=again)


IMPORTS = 2.0  # what commands may take before they begin, if they need torch
COMMANDS = [
    command("--help", 0.3),
    command("compare no such", 0.3),
    command("bounds minilm --layer 4 --n 64 --radius 13.7", 5 + IMPORTS, 1),
    command("bounds --kind l2 minilm --layer 4 -n 64 -r 9", 8 + IMPORTS, 1),
    command("worst-case minilm --layer 4 --n 64 --radius 13.7", 5 + IMPORTS),
    command("certify reviews --sentence", 18, last="a gripping film"),
    command("swap minilm --sentence", 12, last="The cat sat on the mat."),
    command("attack minilm --layer 4 --eps 0.1,1,10 --lengths 16", 60),
    command("measure minilm --lengths 16 --sequences 1", 15, 8),
    command("measure smollm2 --lengths 16 --sequences 1", 45, 8),
    command("measure", 40, 8),
]


def run(words: tuple[str, ...], folder: str) -> tuple[Seconds, Seconds]:
    """Run a command; return what it took to its first line, and to its end."""
    threads, cache = os.environ.get("OMP_NUM_THREADS", "1"), os.path.join(folder, "cache")
    environment = os.environ | {"OMP_NUM_THREADS": threads, "HOWSMOOTH_CACHE": cache}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "howsmooth", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    first = Seconds(clock=time.perf_counter() - started, cpu=used(process.pid))
    while os.read(process.stdout.fileno(), 65536):
        pass
    _pid, _status, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return first, Seconds(clock=time.perf_counter() - started, cpu=usage.ru_utime + usage.ru_stime)


def used(pid: int) -> float:
    """Return the processor seconds of a process so far, as Linux tells them."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            _before, _closed, fields = file.read().rpartition(")")
    except OSError:
        return float("nan")
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def least(some: list[Seconds]) -> Seconds:
    return Seconds(clock=min(each.clock for each in some), cpu=min(each.cpu for each in some))


def measured(words: tuple[str, ...], repeats: int) -> tuple[Seconds, Seconds, Seconds]:
    """Return the least seconds to the first line, to the answer, and to the same answer again."""
    firsts, answers, again = [], [], []
    for _repeat in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            first, answer = run(words, folder)
            firsts.append(first)
            answers.append(answer)
            _first, answer = run(words, folder)
            again.append(answer)
    return least(firsts), least(answers), least(again)


def speed() -> float:
    """Return how many billions of operations a second a matrix product does on one thread."""
    torch.set_num_threads(1)
    A = torch.randn(768, 768)
    seconds = best_times({"product": lambda: A @ A}, seconds=0.3, clock=time.process_time)
    return 2e-9 * 768**3 / seconds["product"]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="commands that contain this")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    chosen = COMMANDS[:2] if arguments.quick else [c for c in COMMANDS if arguments.only in " ".join(c.words)]
    print("processor seconds (clock)      first line          answer           again   GFLOP/s   command", flush=True)
    claims = {}
    for each in chosen:
        name = " ".join(each.words)
        repeats = min(arguments.repeats, REPEATS_OF_LONG) if each.answer > LONG else arguments.repeats
        first, answer, again = measured(each.words, 1 if arguments.quick else repeats)
        cells = "".join(f"{some.cpu:9.2f} ({some.clock:6.2f})" for some in (first, answer, again))
        print(f"{'':24}{cells}   {speed():7.0f}   howsmooth {name}", flush=True)
        claims[f"howsmooth {name} answers within {each.answer:g} s"] = answer.least <= each.answer
        claims[f"howsmooth {name} says something within 3 s"] = first.least <= 3
        if each.again < float("inf"):
            claims[f"howsmooth {name} answers again within {each.again:g} s"] = again.least <= each.again
    verdict(claims, quick=arguments.quick)


if __name__ == "__main__":
    main()
