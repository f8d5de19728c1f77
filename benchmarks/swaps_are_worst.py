"""Comparing all swaps of a token takes a fiftieth of running the model for each, and finds the worst.

MiniLM, attention of the first layer, at the first tokens of a book: every position, the whole vocabulary. A candidate
costs what its row and its column of the scores cost. Against it: the model for each sequence, one at a time and in
batches; and the same with nothing but the embeddings and the first attention, which a user would have to take apart.
Seconds of processor time on one thread. The worst swap is held against random ones by the model itself.
"""

import time
from collections.abc import Callable

import torch
from claims import quick, verdict

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.models.parts.ends import entrance

# How many sequences go through the model together.
TOGETHER = 64


def changed(tokens: torch.Tensor, count: int, generator: torch.Generator, size: int) -> torch.Tensor:
    """Return the sequence with one random token swapped at a random place, so many times."""
    rows = tokens.repeat(count, 1)
    places = torch.randint(len(tokens), (count,), generator=generator)
    rows[torch.arange(count), places] = torch.randint(1000, size, (count,), generator=generator)
    return rows


def by_model(model: hs.Transformer, rows: torch.Tensor) -> torch.Tensor:
    f, X = model.activations(rows).at(0, "attention")
    return f(X)


def by_first_layer(model: hs.Transformer, rows: torch.Tensor) -> torch.Tensor:
    X = model.embed(rows)
    for g in entrance(model, "attention"):
        X = g(X)
    return model.layers[0].closed_form(X)


def microseconds(run: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, together: int) -> float:
    """Return what a sequence takes."""
    run(rows[:together])
    start = time.process_time()
    for part in rows.split(together):
        run(part)
    return 1e6 * (time.process_time() - start) / len(rows)


@torch.no_grad()
def main() -> None:
    small = quick(__doc__)
    torch.set_num_threads(1)
    model, generator = hs.load("minilm"), torch.Generator().manual_seed(0)
    (tokens,) = model.windows(read_text(), length=4 if small else 16, count=1)
    size = 2000 if small else 30522
    start = time.process_time()
    found = hs.swap(model, tokens, candidates=range(size))
    seconds = time.process_time() - start
    ours = 1e6 * seconds / found.tried
    print(f"{found.tried:,} swaps compared in {seconds:.1f} s: {ours:.1f} µs each; {found}")
    rows = changed(tokens, 64 if small else 512, generator, size)
    ways = {
        "the model, one at a time": microseconds(lambda part: by_model(model, part), rows[: len(rows) // 4], 1),
        f"the model, {TOGETHER} together": microseconds(lambda part: by_model(model, part), rows, TOGETHER),
        "the first attention, one at a time": microseconds(lambda part: by_first_layer(model, part), rows, 1),
        f"the first attention, {TOGETHER} together": microseconds(
            lambda part: by_first_layer(model, part), rows, TOGETHER
        ),
    }
    for way, each in ways.items():
        print(f"{way}: {each:,.0f} µs each, {each / ours:.1f} times as much")
    (at_text,) = by_model(model, tokens[None])
    random = (by_model(model, rows) - at_text).flatten(1).norm(dim=1)
    worst = float((by_model(model, found.swapped[None]) - at_text).norm())
    median, most = float(random.median()), float(random.max())
    print(f"worst swap {worst:.3f}; of {len(rows)} random ones: median {median:.3f}, most {most:.3f}")
    alone, batched, *_rest = ways.values()
    verdict(
        {
            "the worst swap moves the output as far as it says, to 1e-3": abs(worst / found.displacement - 1) < 1e-3,
            "no random swap moves it further": most <= worst * (1 + 1e-4),
            "at least 50 times cheaper than the model, one at a time": alone >= 50 * ours,
            "at least 50 times cheaper than the model in batches": batched >= 50 * ours,
            "all swaps of 16 tokens within a minute": seconds < 60,
        },
        quick=small,
    )


if __name__ == "__main__":
    main()
