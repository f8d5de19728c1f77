"""What the words of a report mean and what its numbers are worth: only of those that it uses."""

from collections.abc import Collection
from dataclasses import dataclass

from howsmooth.studies.runs.measurement import Measurement
from howsmooth.theory.results import Side


@dataclass(frozen=True, kw_only=True)
class Term:
    """A word of the report.

    Attributes:
        key: How the page refers to it.
        name: The word.
        meaning: What it means.
        worth: What its numbers are worth, where that is not said already.
    """

    key: str
    name: str
    meaning: str
    worth: str = ""


TERMS = (
    Term(
        key="worst",
        name="Worst, or the constant",
        meaning=(
            "The local Lipschitz constant of one layer at one window of tokens: the largest factor by which a small "
            "perturbation of its input can grow, over all directions, with the Euclidean norm of all tokens together. "
            "1 leaves perturbations as they are; 30 lets the worst one grow thirty times. The smaller, the smoother. "
            "It is the norm of the Jacobian; the table holds the geometric mean over windows."
        ),
        worth=(
            "the lower end is attained by an explicit perturbation; the upper end holds with the stated probability, "
            "over the random start of the solver."
        ),
    ),
    Term(
        key="typical",
        name="Typical",
        meaning=(
            "What a random perturbation is multiplied by (root mean square over directions and windows). It is the "
            "scale for the worst: how much worse an adversary is than noise."
        ),
        worth=(
            "an average over a few random directions, beside what the worst one adds to it; the interval holds with "
            "95 %, over these directions, for these windows, and says nothing about others."
        ),
    ),
    Term(
        key="growth",
        name="Growth",
        meaning=(
            "The exponent α of the power law c·nᵅ fitted to all windows of all lengths. 0 means that more tokens "
            "change nothing; ½ is the most that the theory allows for many tokens of a fixed radius."
        ),
        worth=(
            "the interval is a 95 % bootstrap over windows, wider where neighbouring windows are alike; where a power "
            "law does not fit, that is said instead."
        ),
    ),
    Term(
        key="certificate",
        name="This text, or the certificate",
        meaning=(
            "A number that the constant at these windows provably does not exceed, from a formula without randomness "
            "(the mean over windows)."
        ),
        worth="a theorem, for these windows alone.",
    ),
    Term(
        key="any",
        name="Any input, or the smallest proven bound",
        meaning=(
            "It holds for every sequence of as many tokens, none longer than the longest token of the text (rounded up "
            "to four digits): for the text itself, and for any other in that ball."
        ),
        worth="a theorem.",
    ),
    Term(
        key="radius",
        name="Radius",
        meaning=(
            "The root mean square norm of the tokens that enter the layer. Against the radius stands a dot for each "
            "window: whether windows with longer tokens are less smooth."
        ),
    ),
    Term(
        key="inputs",
        name="Tied pair, two points, token at the origin",
        meaning=(
            "Explicit inputs that attain what is written beside them, so that no smaller bound for all inputs of that "
            "radius can hold. Tied pair: two tokens tie for the attention of all others, so that a small move tips the "
            "balance. Two points: one token far from all others. Token at the origin: it attends to all others equally."
        ),
    ),
    Term(
        key="tokens",
        name="Sensitivity and response",
        meaning=(
            "The worst perturbation has one vector for each token; its squared norm is the token's sensitivity, and "
            "the shares add up to one. The response is the same for the output. Often the first token of a window "
            "holds most of it, whatever word it is: models rest their attention there. With --special-tokens the "
            "model's own first token takes that place."
        ),
    ),
    Term(
        key="whole",
        name="Blocks alone and together",
        meaning=(
            "A block is attention and the feed-forward part behind it. The constant of many blocks in a row is at most "
            "the product of their constants, and far below it where the worst output of one is not the worst input of "
            "the next. From a layer to the end of the model, it says what becomes of an error that enters there."
        ),
        worth="attained, as every constant; blocks together are known to one percent.",
    ),
    Term(
        key="regimes",
        name="Regimes, plateau",
        meaning=(
            "With few tokens the worst constant grows like the square root of their number; with many they act like a "
            "measure, and it stays at a plateau. The crossing is the number of tokens at which the two meet."
        ),
    ),
    Term(
        key="splitting",
        name="Splitting",
        meaning=(
            "A token can also be cut in two whose halves move apart. Where that moves the output further than any "
            "small move of whole tokens, the constant between measures is larger than the one between sequences."
        ),
    ),
    Term(
        key="certified",
        name="Certified and attacked radius",
        meaning=(
            "How far the embedding of a word (the sum of the embeddings of word, position and type, before any norm) "
            "may move before the classifier could change its mind. Below the certified radius no perturbation does it; "
            "one as large as the attacked radius does. Between the two nothing is known. A word is fragile where a "
            "small move is enough."
        ),
        worth="the certified radius is a theorem, the attacked one an explicit perturbation.",
    ),
    Term(
        key="measures",
        name="Measures, atoms",
        meaning=(
            "Tokens with masses: places (atoms) of different weight. Attention acts on them too, and its constant is "
            "that between measures in the Wasserstein distance."
        ),
    ),
)


def terms(measurements: Collection[Measurement], kinds: Collection[str]) -> list[Term]:
    """Return the words that a report on these measurements and kinds of questions uses."""
    used = {kind for kind in kinds if kind in ("regimes", "splitting", "measures", "whole")}
    if measurements or set(kinds) & {"text", "extremal"}:
        used |= {"worst", "radius"}
    if "certificate" in kinds:
        used |= {"certified"}
    if set(kinds) & {"extremal", "bounds"}:
        used |= {"inputs", "any"}
    for m in measurements:
        used |= _of(m)
    return [term for term in TERMS if term.key in used]


def _of(m: Measurement) -> set[str]:
    layers = m.layers
    told = {
        "typical": any(layer.typical is not None for layer in layers),
        "growth": any(layer.growth is not None for layer in layers),
        "certificate": any(layer.local_upper is not None for layer in layers),
        "any": any(layer.any_input is not None for layer in layers),
        "inputs": any(bound.side is Side.LOWER for layer in layers for bound in layer.ladder.bounds),
        "tokens": bool(m.tokens),
    }
    return {key for key, used in told.items() if used}
