"""What four bits in the cache cost: keys against values, early and late layers, with scales by token and by channel."""

import argparse

import torch

import howsmooth as hs
from howsmooth.models.inputs.text import read_text

SCHEMES = ("kv:int4", "kv-channel:int4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--length", type=int, default=64, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--passes", type=int, default=16)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = hs.load(given.model)
    tokens = model.windows(read_text(), length=given.length, count=given.windows)
    budget = hs.budget(model, tokens, schemes=SCHEMES, passes=given.passes)
    for scheme in SCHEMES:
        parts = {
            kind: {each.name: each for each in budget.effects if each.scheme == scheme and each.kind == kind}
            for kind in ("key", "value")
        }
        keys, values = parts.values()
        worse = sum(each.kl > values[name.replace("key", "value")].kl for name, each in keys.items())
        print(f"{scheme}: keys cost more in {worse} of {len(keys)} heads")
        truth = budget.measured(*(dict.fromkeys(part, scheme) for part in parts.values())).tolist()
        for (kind, part), true in zip(parts.items(), truth, strict=True):
            whole = budget.together(list(part), scheme)
            depth = 1 + max(each.layer or 0 for each in part.values())
            by_layer = torch.zeros(depth, dtype=torch.float64)
            for each in part.values():
                by_layer[each.layer or 0] += each.kl
            share = by_layer / by_layer.sum()
            print(
                f"  {kind}s: predicted {whole.kl:.3f} ({whole.low:.3f} to {whole.high:.3f}), true {true:.3f}; "
                f"first two layers {share[:2].sum():.0%}, last two {share[-2:].sum():.0%}, "
                f"most in layer {int(share.argmax())}"
            )


if __name__ == "__main__":
    main()
