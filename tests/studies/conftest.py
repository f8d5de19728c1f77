"""Small work for sweeps, and the command line in this process."""

import dataclasses
import sys
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
import transformers

from howsmooth.cli.app import main
from howsmooth.models.builtin import built_in_path
from howsmooth.models.text import read_text
from howsmooth.studies.records import Record
from howsmooth.studies.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def howsmooth(monkeypatch, capsys, tmp_path):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["howsmooth", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Result(code=stop.value.code or 0, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def untyped():
    """Let a test give what the annotations forbid."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def alice_tasks():
    """Return tasks on windows of Alice with MiniLM, which take milliseconds each."""

    def make(*, layers=(0,), lengths=(8,), maps=("head:0",), windows=2, **others):
        return [
            Task(
                model="minilm",
                text="alice",
                digest=read_text().digest,
                layer=layer,
                map=part,
                length=length,
                window=window,
                **others,
            )
            for layer in layers
            for length in lengths
            for part in maps
            for window in range(windows)
        ]

    return make


@pytest.fixture(scope="session")
def save_model():
    """Save a small model with random weights and MiniLM's tokenizer in a folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(built_in_path("minilm"))

    def save(folder, seed=0):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 16}
        model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=30522, max_position_embeddings=40))
        for parameter in model.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture
def untimed():
    """Return records by key, without what differs from run to run."""

    def strip(records: list[Record]) -> dict[str, Record]:
        return {record.task.key: dataclasses.replace(record, seconds=0.0) for record in records}

    return strip
