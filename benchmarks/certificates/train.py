"""Train small classifiers of film reviews: 3, 6 or 12 layers, d = 64 or 128, ReLU or GELU, standard LayerNorm.

    python benchmarks/certificates/train.py --layers 3 --width 64 --activation gelu

The sentences are the rated snippets in the source distribution of vaderSentiment 3.3.2 (MIT), which is downloaded once
into the cache folder; a label is the sign of the rating. Networks are kept there too, and are not trained twice.
"""

import argparse
import collections
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

CACHE = Path(os.environ.get("HOWSMOOTH_CACHE", Path.home() / ".cache" / "howsmooth" / "certificates"))
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LONGEST = 32


def reviews() -> list[tuple[str, int]]:
    """Return sentences and labels: one for a good film, zero for a bad one."""
    kept = CACHE / "reviews.tsv"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(_downloaded())
    rows = [line.split("\t", 2) for line in kept.read_text(encoding="latin-1").splitlines()]
    return [(text, int(float(rating) > 0)) for _number, rating, text in rows if float(rating) != 0]


def _downloaded() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        how = ("pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "vaderSentiment==3.3.2")
        subprocess.run([sys.executable, "-m", *how, "--dest", folder], check=True)
        (package,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(package) as outer:
            (inner,) = (name for name in outer.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
            packed = outer.extractfile(inner)
            assert packed is not None
            with tarfile.open(fileobj=io.BytesIO(packed.read())) as archive:
                (name,) = (n for n in archive.getnames() if n.endswith("movieReviewSnippets_GroundTruth.txt"))
                found = archive.extractfile(name)
                assert found is not None
                return found.read()


def words(text: str) -> list[str]:
    """Cut a sentence into lower-case words and signs."""
    return re.findall(r"[a-z0-9']+|[^\sa-z0-9']", text.lower())


def vocabulary(texts: list[str], size: int) -> dict[str, int]:
    """Number the most frequent words, special ones first."""
    counts = collections.Counter(word for text in texts for word in words(text))
    return {word: i for i, word in enumerate((*SPECIAL, *(word for word, _count in counts.most_common(size))))}


def encode(text: str, numbers: dict[str, int]) -> list[int]:
    """Return the numbers of the words of a sentence between its two marks."""
    unknown = numbers["[UNK]"]
    found = [numbers.get(word, unknown) for word in words(text)][: LONGEST - 2]
    return [numbers["[CLS]"], *found, numbers["[SEP]"]]


def tokenizer(numbers: dict[str, int]) -> Any:
    """Return the same as a tokenizer of the transformers library."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    found = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    found.normalizer = normalizers.Lowercase()
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r"[a-z0-9']+|[^\sa-z0-9']"), behavior="isolated"),
        ]
    )
    ends = [(mark, numbers[mark]) for mark in ("[CLS]", "[SEP]")]
    found.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    marks = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=found, model_max_length=LONGEST, **marks)


def network(layers: int, width: int, activation: str, size: int) -> Any:
    """Return a network that knows nothing yet."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=LONGEST,
        hidden_act=activation,
        id2label={0: "bad", 1: "good"},
        label2id={"bad": 0, "good": 1},
        hidden_dropout_prob=0.2,
    )
    return BertForSequenceClassification(config)


def trained(layers: int, width: int, activation: str, *, vocabulary_size: int = 4000, epochs: int = 4) -> Path:
    """Train a network, or find the one that was trained before, and return its folder."""
    home = CACHE / f"{layers}x{width}-{activation}-{vocabulary_size}"
    if (home / "config.json").exists():
        return home
    torch.manual_seed(0)
    rows = reviews()
    order = torch.randperm(len(rows)).tolist()
    rows = [rows[i] for i in order]
    held_out, rows = rows[:1000], rows[1000:]
    numbers = vocabulary([text for text, _label in rows], vocabulary_size)
    module = network(layers, width, activation, len(numbers))
    steps = epochs * (len(rows) // 32)
    # with norms behind the residual sums, six layers learn nothing at the rate of three
    rate = 3e-3 / max(3, layers)
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps + 1)
    module.train()
    for epoch in range(epochs):
        total = 0.0
        for batch in _batches(rows, numbers):
            loss = module(**batch).loss
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        print(
            f"epoch {epoch}: loss {32 * total / len(rows):.3f}, right {accuracy(module, held_out, numbers):.3f}",
            flush=True,
        )
    module.save_pretrained(home)
    tokenizer(numbers).save_pretrained(home)
    return home


def accuracy(module: Any, rows: list[tuple[str, int]], numbers: dict[str, int]) -> float:
    """Return the share of sentences that are told right."""
    module.eval()
    with torch.no_grad():
        right = sum(
            int((module(**batch).logits.argmax(-1) == batch["labels"]).sum()) for batch in _batches(rows, numbers, 1)
        )
    module.train()
    return right / len(rows)


def _batches(
    rows: list[tuple[str, int]], numbers: dict[str, int], least: int = 32
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of sentences of about the same length, in a random order."""
    rows = sorted(rows, key=lambda row: len(words(row[0])))
    starts = range(0, len(rows) - least + 1, 32)
    for i in torch.randperm(len(starts)).tolist():
        part = rows[starts[i] : starts[i] + 32]
        ids = [encode(text, numbers) for text, _label in part]
        longest = max(map(len, ids))
        yield {
            "input_ids": torch.tensor([x + [0] * (longest - len(x)) for x in ids]),
            "attention_mask": torch.tensor([[1] * len(x) + [0] * (longest - len(x)) for x in ids]),
            "labels": torch.tensor([label for _text, label in part]),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--activation", choices=["relu", "gelu"], default="gelu")
    asked = parser.parse_args()
    print(trained(asked.layers, asked.width, asked.activation))
