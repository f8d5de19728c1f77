"""``howsmooth certify --synonyms``: whether any combination of replacements changes what a classifier says."""

from typing import TYPE_CHECKING, Any

from howsmooth.cli.printing import print_json, say
from howsmooth.errors import AssumptionError
from howsmooth.models.loading.names import RANDOM
from howsmooth.studies.json_values import default_of
from howsmooth.studies.kinds.certified_radii import Certifying
from howsmooth.tokens.swap_settings import read_candidates
from howsmooth.wording import at_least, count, number

if TYPE_CHECKING:
    from howsmooth.certificates.synonyms import Synonyms
    from howsmooth.models.transformer import Transformer

FOUND = 1
# What does not go with words that are replaced.
OTHERS = ("word", "together", "metric", "at", "layer")


def certify_synonyms(certifying: Certifying, file: str, as_json: bool) -> int:
    """Certify all combinations of replacements in every sentence; return the exit code: 1 if one changes a prediction.

    Raises:
        AssumptionError: If options are given that say how embeddings move.
    """
    for name in OTHERS:
        if getattr(certifying, name) != default_of(Certifying, name):
            raise AssumptionError(f"--synonyms says how words move; leave out --{name}.", field=name)
    if certifying.model.startswith(RANDOM):
        raise AssumptionError(f"{certifying.model!r} knows no words; give a model that reads.", field="model")
    candidates, labelled = read_candidates(file), certifying.labelled

    import howsmooth as hs
    from howsmooth.studies.kinds.certified_radii import by_their_labels
    from howsmooth.studies.resources import Resources

    model = Resources().transformer(certifying.model, reading=certifying.reading)
    sentences, wrong = by_their_labels(model, labelled)
    for said in wrong:
        say(said, err=True)
    rows, changed = [], False
    for sentence in sentences:
        found = hs.certify_synonyms(model, sentence, candidates)
        changed |= found.changed is not None
        rows.append(_row(model, sentence, found))
        if not as_json:
            _print(rows[-1])
    if as_json:
        print_json({"model": model.name, "sentences": rows})
    return FOUND if changed else 0


def _row(model: "Transformer", sentence: str, found: "Synonyms") -> dict[str, Any]:
    from howsmooth.certificates.sentences import tokenizer_of

    tokenizer = tokenizer_of(model)
    words = tokenizer.pieces(found.tokens)
    changed = None if found.changed is None else tokenizer.pieces(found.changed)
    return {
        "text": sentence,
        "predicted": found.labels[found.predicted],
        "certified": found.certified,
        "combinations": found.combinations,
        "covered": found.covered,
        "proven": found.proven,
        "tried": found.tried,
        "share": found.share,
        "choices": [
            {"token": i, "word": words[i], "others": tokenizer.pieces(others)}
            for i, others in zip(found.places, found.choices, strict=True)
        ],
        "changed": changed and [word for i, word in enumerate(changed) if _is_word(model, found.tokens, i)],
        "seconds": found.seconds,
    }


def _is_word(model: "Transformer", tokens: tuple[int, ...], place: int) -> bool:
    from howsmooth.certificates.sentences import ordinary_positions

    return place in ordinary_positions(model, tokens)


def _print(row: dict[str, Any]) -> None:
    from howsmooth.report.drawing.token_text import running_text

    text, predicted, every = row["text"], row["predicted"], count(row["combinations"], "combination")
    if row["certified"]:
        how = "proven at once" if row["proven"] == row["combinations"] else f"{row['tried']:,} of them run one by one"
        say(f"{text!r} is classified as {predicted!r} with every one of {every}: {how}.")
    else:
        say(
            f"{text!r} is classified as {predicted!r}; {row['covered']:,} of {every} cannot change that "
            f"({row['proven']:,} proven, {row['tried']:,} others run)."
        )
    if row["changed"] is not None:
        say(f"  changed by: {running_text(row['changed'])}")
    share = "all the way" if row["share"] == 1 else f"{at_least(100 * row['share'], 3)} % of the way"
    say(f"  proven {share} to all replacements at once; {number(row['seconds'], 2)} s.")
