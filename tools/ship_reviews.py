"""Write the built-in classifier ``reviews`` into the package: trained on rated sentences, kept in half precision.

    python tools/ship_reviews.py

The network is the one that ``benchmarks/certificates/train.py`` trains (3 layers, d = 64, GELU); nothing of the
sentences is shipped but the words that are frequent in them.
"""

import json
import runpy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "src" / "howsmooth" / "models" / "data" / "reviews"
LARGEST = 2 * 2**20
NOTICE = """\
A small classifier of film reviews: BERT's architecture, 3 layers, 4 heads, d = 64, 4,004 words, in half precision.

Trained by tools/ship_reviews.py on the rated sentences about films in the source distribution of vaderSentiment 3.3.2
(C. J. Hutto and E. E. Gilbert, MIT licence), 9,568 of them; a label is the sign of the mean rating. Of 1,000 sentences
that were held out it tells {right:.1%} right. The weights and the list of words are part of howsmooth, and have its
licence.
"""


def main() -> None:
    train = runpy.run_path(str(ROOT / "benchmarks" / "certificates" / "train.py"))
    trained = Path(train["trained"](3, 64, "gelu"))
    HOME.mkdir(parents=True, exist_ok=True)
    weights = {name: value.half() for name, value in load_file(trained / "model.safetensors").items()}
    save_file(weights, HOME / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        found = json.loads((trained / name).read_text(encoding="utf-8"))
        if name == "config.json":
            found["dtype"] = "float16"
        (HOME / name).write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    right = held_out(train)
    (HOME / "NOTICE").write_text(NOTICE.format(right=right), encoding="utf-8")
    size = sum(file.stat().st_size for file in HOME.iterdir())
    print(f"{HOME.relative_to(ROOT)}: {size:,} bytes, {right:.1%} right of what was held out")
    if size > LARGEST:
        raise SystemExit("the built-in classifier must stay below 2 MB")


def held_out(train: dict) -> float:
    """Return the share of held-out sentences that the network tells right, as it is shipped."""
    from transformers import AutoModelForSequenceClassification

    module = AutoModelForSequenceClassification.from_pretrained(HOME, dtype=torch.float32)
    numbers = json.loads((HOME / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    torch.manual_seed(0)  # as in training
    rows = train["reviews"]()
    rows = [rows[i] for i in torch.randperm(len(rows)).tolist()[:1000]]
    return float(train["accuracy"](module, rows, numbers))


if __name__ == "__main__":
    main()
