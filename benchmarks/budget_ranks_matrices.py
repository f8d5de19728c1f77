"""A few backward passes rank the matrices of a language model by what rounding each of them truly costs.

SmolLM2 at windows of a book, and a small decoder like Llama that is trained here on the same book; every matrix rounded
to nearest in groups of 64, by one scheme after the other. The truth is one run of the model for each matrix and window.
Beside the budget stand the scores that people use instead: the gradient with the labels of the text, Σ(g∘δ)², as
sensitivity scores have it; the size of the error, absolute and relative; the kurtosis of the weights; and the rule that
the first and last two layers are the delicate ones. Seconds of processor time on one thread.
"""

import time

import torch
from claims import options, verdict
from decoders import held_out, trained
from scipy.stats import kurtosis, spearmanr

import howsmooth as hs
from howsmooth.budgets import scheme
from howsmooth.budgets.effects import effect
from howsmooth.budgets.subject import Subject
from howsmooth.models.inputs.text import read_text

LENGTH, WINDOWS, FEW, MANY = 32, 2, 8, 64
SCHEMES = ("int4:g64", "int3:g64")


def other_scores(model: hs.Transformer, tokens: torch.Tensor, label: str) -> dict[str, dict[str, float]]:
    """Return what other rules say of every matrix, by rule and name."""
    subject = Subject.of(model, tokens)
    weights = {name: p for name, p in subject.module.named_parameters() if "layers." in name and p.ndim == 2}
    for p in weights.values():
        p.requires_grad_(True)
    scores: dict[str, dict[str, float]] = {}
    for window, row in enumerate(tokens):
        z = subject.outputs(window)
        torch.nn.functional.cross_entropy(z[:-1], row[1:]).backward()
    depth = len(model.layers)
    for name, p in weights.items():
        W, layer = p.detach(), int(name.split("layers.")[1].split(".")[0])
        delta = scheme(label).error(W)
        assert p.grad is not None
        found = {
            "Σ(g∘δ)²": float((p.grad * delta).square().sum()),
            "|δ|²": float(delta.square().sum()),
            "|δ|²/|W|²": float(delta.square().sum() / W.square().sum()),
            "kurtosis": float(kurtosis(W.flatten().numpy())),
            "first and last two layers": float(layer < 2 or layer >= depth - 2),
        }
        for rule, value in found.items():
            scores.setdefault(rule, {})[name] = value
        p.grad = None
        p.requires_grad_(False)
    return scores


def ranked(
    called: str, model: hs.Transformer, tokens: torch.Tensor, many: int, *, rules: bool = True
) -> dict[str, bool]:
    """Print how estimates rank matrices, and return what is claimed of it."""
    claims = {}
    start = time.process_time()
    found = hs.budget(model, tokens, schemes=SCHEMES, passes=many)
    seconds = time.process_time() - start
    print(f"{len(tokens)} windows of {tokens.shape[1]} tokens, {many} passes for both schemes: {seconds:.0f} s")
    positions = found.products.positions
    for label in SCHEMES:
        names = found.names(label)
        start = time.process_time()
        truth = found.measured(*({name: label} for name in names))
        seconds = time.process_time() - start
        everything = float(found.measured(dict.fromkeys(names, label)))
        values = found.products.values[..., found.columns(dict.fromkeys(names, label))]
        effects = [effect(name, label, values[..., i], positions) for i, name in enumerate(names)]
        few = [effect(name, label, values[:, :FEW, i], positions).kl for i, name in enumerate(names)]
        whole, predicted = found.together(scheme=label), torch.tensor([each.kl for each in effects])
        inside = sum(e.low <= t <= e.high for e, t in zip(effects, truth.tolist(), strict=True)) / len(names)
        ratios = (truth / predicted).quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
        rank_few, rank_many = spearmanr(few, truth).statistic, spearmanr(predicted, truth).statistic
        print(f"{label}, {len(names)} matrices; the truth took {seconds:.0f} s")
        print(f"  rank correlation {rank_few:.3f} with {FEW} passes, {rank_many:.3f} with {many}")
        print(f"  true/predicted: {', '.join(f'{ratio:.2f}' for ratio in ratios)} (10 %, 50 %, 90 %)")
        print(f"  {inside:.0%} of the matrices inside of their intervals")
        print(f"  all at once: predicted {whole.kl:.3g} [{whole.low:.3g}, {whole.high:.3g}], measured {everything:.3g}")
        print(f"  alone they sum up to {predicted.sum():.3g}", flush=True)
        if rules:
            scores = other_scores(model, tokens, label)
            ranks = {rule: spearmanr([of[name] for name in names], truth).statistic for rule, of in scores.items()}
            print("  " + ", ".join(f"{rule}: {rank:.2f}" for rule, rank in ranks.items()), flush=True)
            claims[f"{called} {label}: ahead of every other rule"] = rank_many > max(ranks.values())
        claims[f"{called} {label}: {FEW} passes rank like the truth, at least 0.85"] = rank_few >= 0.85
        claims[f"{called} {label}: {many} passes at least 0.97"] = rank_many >= 0.97
    return claims


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2", "llama"], help="smollm2, and llama, which is trained")
    given = parser.parse_args()
    torch.set_num_threads(1)
    claims: dict[str, bool] = {}
    for name in ["reviews"] if given.quick else given.models:
        model = trained(name) if name == "llama" else hs.load(name)
        short = 8 if given.quick else LENGTH
        tokens = (
            held_out(2 * WINDOWS, 2 * LENGTH) if name == "llama" else model.windows(read_text(), length=short, count=2)
        )
        claims |= ranked(name, model, tokens, 16 if given.quick else MANY, rules=not given.quick)
    verdict(claims, quick=given.quick)


if __name__ == "__main__":
    main()
