"""Runs to report on, made once by the command line itself and shared by every test and worker."""

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tokenizers
import torch
import transformers

from howsmooth.studies.records import Failure, Record
from howsmooth.studies.store import Store

PATIENCE = 240.0
LAYERS, LENGTHS, WINDOWS = (0, 2, 5), (8, 16, 32), 3
FIGURES = ("regimes", "measures")

# As names of files they may not hold a slash; everything else goes.
HOSTILE_MODEL = '<img src=x onerror="window.pwned=1" class=pwned>'
HOSTILE_TEXT = '<b class="pwned">&"x.txt'
HOSTILE_ERROR = "RuntimeError: no room left </script><script>window.pwned=1</script><b class=pwned>"
HOSTILE_TOKENS = (
    "<script>window.pwned=1</script>",
    "</script><img src=x onerror=window.pwned=1 class=pwned>",
    "<!--",
    "<!--<script>",
    "]]>",
    '"><svg onload=window.pwned=1 class=pwned>',
    "'><b class=pwned>",
    "</title></style></textarea><i class=pwned>",
    "&lt;b&gt;&#x3c;",
    "\\u003cb class=pwned>",
    "{{7*7}}",
    "${window.pwned=1}",
    "javascript:window.pwned=1",
    "__proto__",
    "constructor",
    "a\u2028b",
    "\u202eevil",
    "W" * 300,
)


def howsmooth(*arguments: str, cwd: Path | None = None) -> str:
    """Run the command line in a process of its own; return what it prints."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "howsmooth"), *arguments],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "300"},
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"howsmooth {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def _measure(folder: Path, *options: str) -> None:
    asked = {"layers": LAYERS, "lengths": LENGTHS}
    grid = [word for name, values in asked.items() for word in (f"--{name}", ",".join(map(str, values)))]
    howsmooth("measure", "minilm", *grid, "--sequences", str(WINDOWS), *options, "--out", str(folder))


def _small(folder: Path, _runs: "Runs") -> None:
    """Three layers of a real model on a real text, every head too."""
    _measure(folder, "--per-head", "--released-estimator")


def _two_maps(folder: Path, runs: "Runs") -> None:
    """The same, and another map beside it."""
    shutil.copytree(runs.folder("small"), folder)
    _measure(folder, "--map", "residual")


def _single(folder: Path, _runs: "Runs") -> None:
    """One layer, one length, one window: nothing grows."""
    howsmooth(*("measure", "minilm", "--layers", "0", "--lengths", "16", "--sequences", "1"), "--out", str(folder))


def _hostile(folder: Path, _runs: "Runs") -> None:
    """Names, tokens and a folder made of HTML and script tags."""
    place = folder.parent / "hostile things"
    place.mkdir(exist_ok=True)
    vocabulary = {token: number for number, token in enumerate(("[UNK]", *HOSTILE_TOKENS))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("\n", "removed")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 16}
    torch.manual_seed(0)
    model = transformers.BertModel(
        transformers.BertConfig(**sizes, vocab_size=len(vocabulary), max_position_embeddings=40)
    )
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape)
    model.save_pretrained(place / HOSTILE_MODEL)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        place / HOSTILE_MODEL
    )
    (place / HOSTILE_TEXT).write_text("\n".join(HOSTILE_TOKENS * 5), encoding="utf-8")
    asked = ("--lengths", "8,32", "--sequences", "2", "--per-head", "--out", str(folder))
    howsmooth("measure", HOSTILE_MODEL, "--text", HOSTILE_TEXT, *asked, cwd=place)


def _paper(folder: Path, _runs: "Runs") -> None:
    """Two cheap figures of the paper."""
    howsmooth("paper", *FIGURES, "--quick", "--out", str(folder))


def _interrupted(folder: Path, runs: "Runs") -> None:
    """The small run, stopped before its end: the longest windows of layer 5 are missing, one of them failed."""
    shutil.copytree(runs.folder("small"), folder)
    (folder / "report.html").unlink(missing_ok=True)
    with Store(folder) as store:
        lost = [record.task for record in store.records() if record.task.layer == 5 and record.task.length == 32]
    with sqlite3.connect(folder / "records.sqlite") as database:
        database.executemany("DELETE FROM records WHERE key = ?", [(task.key,) for task in lost])
    database.close()
    whole = next(task for task in lost if task.map == "attention" and task.window == 0)
    with Store(folder) as store:
        store.add([Failure(task=whole, error=HOSTILE_ERROR)])
    howsmooth("report", str(folder))


KINDS: dict[str, Callable[[Path, "Runs"], None]] = {
    "small": _small,
    "two maps": _two_maps,
    "single": _single,
    "hostile": _hostile,
    "paper": _paper,
    "interrupted": _interrupted,
}
MEASURED = tuple(name for name in KINDS if name != "paper")


@dataclass(frozen=True)
class Runs:
    """Where the runs are; each is made by the first that asks for it, while others wait."""

    place: Path

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        self.place.mkdir(exist_ok=True)
        folder, made = self.place / f"run {name} #1 &amp; 100%", self.place / f"{name}.made"
        with (self.place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)
                KINDS[name](folder, self)
                made.touch()
        return folder

    def report(self, name: str) -> Path:
        """Return the page that the command wrote beside the records."""
        path = self.folder(name) / "report.html"
        assert path.is_file(), f"the command left no report.html in the folder of the run {name!r}"
        return path

    def records(self, name: str) -> tuple[Record, ...]:
        """Return the records of a run."""
        return records_in(self.folder(name))

    def tokens(self, name: str) -> tuple[str, ...]:
        """Return the tokens of the window that was kept for show."""
        with Store(self.folder(name)) as store:
            database = sqlite3.connect(self.folder(name) / "records.sqlite")
            (key,) = database.execute("SELECT key FROM windows").fetchone()
            database.close()
            return store.window(key)


@cache
def records_in(folder: Path) -> tuple[Record, ...]:
    """Return the records in a folder."""
    with Store(folder) as store:
        return tuple(store.records())
