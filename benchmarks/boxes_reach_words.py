"""A box around a word is proven nearly as far as a ball in the maximum norm, through LayerNorm too.

For words of ``reviews`` and of random classifiers, as in BERT, GPT and T5: the radius in the maximum norm that
``hs.certify`` proves, the largest ε for which ``hs.verify`` proves the box around the word's embedding, and the
smallest change that an attack finds; with processor seconds. ``--home FOLDER`` adds a network that
``benchmarks/certificates/train.py`` has trained. Every decision of ``hs.verify`` may take ``--seconds``.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from claims import options, verdict

import howsmooth as hs
from howsmooth.certificates.sentence_certifier import SentenceCertifier
from howsmooth.certificates.sentences import classifier_at
from howsmooth.maps.protocols import Map
from howsmooth.models.inputs.model_inputs import read_sentence

SENTENCES = ("a gripping film", "the plot is thin and the jokes fall flat", "a warm , funny and moving story")
# Known up to this share; the first step from the radius of the ball, squared at every further one.
RTOL, STEP = 0.03, 1.1
# The two are of one order: neither is so many times the other.
FACTOR = 2.0


@dataclass(frozen=True)
class Shape:
    """A random classifier: its activation and norm, norms before or behind, tokens that see earlier ones only."""

    activation: str
    norm: type[hs.maps.LayerNorm] | type[hs.maps.RMSNorm]
    before: bool
    causal: bool

    def __str__(self) -> str:
        where = "before" if self.before else "behind"
        return f"{self.activation}, {self.norm.__name__} {where}{', causal' if self.causal else ''}"


SHAPES = (
    Shape("gelu", hs.maps.LayerNorm, before=False, causal=False),
    Shape("relu", hs.maps.LayerNorm, before=False, causal=False),
    Shape("gelu", hs.maps.LayerNorm, before=True, causal=True),
    Shape("silu", hs.maps.RMSNorm, before=True, causal=True),
)


def random_classifier(shape: Shape, *, layers: int = 2, d: int = 16, n: int = 6) -> tuple[hs.maps.Chain, torch.Tensor]:
    """Return a classifier with two classes, and tokens."""
    rng = torch.Generator().manual_seed(0)

    def gaussian(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=rng)

    def normed(*maps: Any) -> Any:
        norm = shape.norm(gain=1 + 0.1 * gaussian(d), bias=0.1 * gaussian(d), eps=1e-6)
        return [hs.maps.Residual(hs.maps.Chain(norm, *maps))] if shape.before else [hs.maps.Residual(*maps), norm]

    blocks = []
    for _layer in range(layers):
        q, key, value, out = (gaussian(2, d // 2, d) / d**0.5 for _ in range(4))
        places = hs.maps.Positions(causal=shape.causal)
        blocks += normed(hs.Attention(query=q, key=key, value=value, output=out.mT, positions=places))
        up, down = gaussian(2 * d, d) / d**0.5, gaussian(d, 2 * d) / (2 * d) ** 0.5
        blocks += normed(hs.maps.MLP(up=up, up_bias=gaussian(2 * d) / 4, down=down, activation=shape.activation))
    pooled = hs.maps.Pooling.last(n=n, like=up) if shape.causal else hs.maps.Pooling.first(n=n, like=up)
    return hs.maps.Chain(*blocks, pooled, hs.maps.Dense(gaussian(2, d) / d**0.5)), gaussian(n, d)


def box_radius(
    certifier: SentenceCertifier, word: int, begin: float, attacked: float, seconds: float
) -> tuple[float, float, int, float]:
    """Return the largest ε that is proven, the smallest that is not, how many were tried, and processor seconds."""
    moves = torch.zeros_like(certifier.embeddings)
    moves[word] = 1.0
    classes = 1 + len(certifier.rivals.margins)
    low, high, eps, step, tried, began = 0.0, attacked, begin, STEP, 0, time.process_time()
    while high > (1 + RTOL) * low and eps > 1e-3 * begin:
        wanted = hs.verification.Property.robust(
            certifier.embeddings, eps=eps * moves, label=certifier.predicted, classes=classes
        )
        found = hs.verify(certifier.classifier, wanted, timeout=seconds, clock=time.process_time)
        low, high, tried = (eps, high, tried + 1) if found.status == "proven" else (low, eps, tried + 1)
        # from the ball's radius outwards until it lies between two ends, then halfway in logarithms
        if low and high < attacked:
            eps = (low * high) ** 0.5
        else:
            eps, step = (min(eps * step, (eps * attacked) ** 0.5) if low else eps / step), step**2
    return low, high, tried, time.process_time() - began


def words(name: str, f: Map, X: torch.Tensor, places: range, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row for each word."""
    certifier = SentenceCertifier(f, X)
    for word in places:
        began = time.process_time()
        ball = certifier.radius([word], p=torch.inf)
        spent = time.process_time() - began  # with the table of the sentence for its first word
        low, high, tried, seconds = box_radius(certifier, word, ball.certified, ball.attacked, given.seconds)
        sizes = {"linear": ball.linear, "ball": ball.certified, "box": low, "not": high, "attacked": ball.attacked}
        times = {"ball seconds": round(spent, 2), "box seconds": round(seconds, 2), "decisions": tried}
        yield {"network": name, "word": word} | sizes | times


def rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of all networks, or of those asked for."""
    for shape in SHAPES[:1] if given.quick else SHAPES:
        f, X = random_classifier(shape, layers=1 if given.quick else 2)
        yield from words(str(shape), f, X, range(1 if given.quick else 3), given)
    if given.quick:
        return
    for name, home in [("reviews", "reviews"), *((home.name, str(home)) for home in given.home)]:
        model = hs.load(home)
        for sentence in SENTENCES[: given.sentences]:
            f, X = classifier_at(model, torch.tensor(read_sentence(model, sentence)), at="embeddings", layer=0)
            yield from words(name, f, X, range(1, min(len(X) - 1, 1 + given.words)), given)


def table(found: list[dict[str, Any]]) -> str:
    """Return one line for each network, as Markdown: medians of radii, of quotients and of seconds."""
    titles = ("network", "words", "first order", "ball", "box", "attacked", "box / ball", "ball, s", "box, s")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name in dict.fromkeys(row["network"] for row in found):
        mine = [row for row in found if row["network"] == name]
        middles = [
            f"{statistics.median(row[key] for row in mine):.3g}" for key in ("linear", "ball", "box", "attacked")
        ]
        shares = sorted(row["box"] / row["ball"] for row in mine)
        times = [f"{statistics.median(row[f'{kind} seconds'] for row in mine):.2g}" for kind in ("ball", "box")]
        cells = (name, len(mine), *middles, f"{shares[0]:.2f} to {shares[-1]:.2f}", *times)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Print every word, and a table."""
    parser = options(__doc__)
    parser.add_argument("--home", type=Path, nargs="*", default=[], help="folders of trained classifiers")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="how many of the sentences")
    parser.add_argument("--words", type=int, default=4, help="how many words of each sentence")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor seconds for each decision")
    parser.add_argument("--log", type=Path, help="a file to which every row is added as a line of JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for row in rows(given):
        found.append(row)
        print(json.dumps(row), flush=True)
        if given.log is not None:
            with given.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print(table(found))
    shares = [row["box"] / row["ball"] for row in found]
    claims = {
        f"boxes are proven to {min(shares):.2f} to {max(shares):.2f} of balls": max(shares) < FACTOR
        and min(shares) > 1 / FACTOR,
        "no attack flips inside of a box or a ball that is proven": all(
            max(row["box"], row["ball"]) < row["attacked"] for row in found
        ),
    }
    verdict(claims, quick=given.quick)


if __name__ == "__main__":
    main()
