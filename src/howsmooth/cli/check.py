"""``howsmooth check``: does a proof file prove what it claims?"""

from pathlib import Path
from typing import Annotated

import typer

from howsmooth.cli.options import OptionJson
from howsmooth.cli.printing import print_json, say
from howsmooth.errors import FileError
from howsmooth.files import require_size

# The gravest outcome decides.
CODES = {"checked": 0, "replayed": 0, "cannot check": 3, "refuted": 1}

HINTS = {"compared with no property": "; --property FILE does", "compared with no sentence": "; --sentence TEXT does"}


def check(
    proof: Annotated[Path, typer.Argument(metavar="PROOF.json", help="What .save wrote.")],
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="What it is about: a model, an .onnx file, or a .npz or .safetensors file with the arrays of a layer.",
        ),
    ],
    property: Annotated[  # noqa: A002
        Path | None,
        typer.Option(
            "--property",
            metavar="PROPERTY.vnnlib",
            help="What verdicts and counterexamples must be about.",
        ),
    ] = None,
    sentence: Annotated[
        str | None,
        typer.Option("--sentence", metavar="TEXT", help="What certificates must be about, as the model reads it."),
    ] = None,
    deployed: Annotated[
        str | None,
        typer.Option(
            "--deployed",
            metavar="float32",
            help="Margins of certificates must also cover the rounding errors of a forward pass in float32.",
        ),
    ] = None,
    json: OptionJson = False,
) -> None:
    """Check a proof file in ball arithmetic, without trusting the program that wrote it.

    What it proves is printed; with a property or a sentence, it must prove that.

    Exit code 0 if every claim is checked, 1 if one is refuted, 3 if one cannot be checked.

    Example: howsmooth check proof.json --model network.onnx --property wanted.vnnlib
    """
    if proof.is_dir():
        raise FileError(f"{str(proof)!r} is a folder; name the proof file in it that .save wrote.", field="proof")
    for path, field in ((proof, "proof"), (property, "property")):
        if path is not None and not path.is_file():
            raise FileError(f"there is no file {str(path)!r}.", field=field)
        if path is not None:
            require_size(path, field, field=field)
    from howsmooth.check import check_proof

    outcomes = check_proof(proof, model, deployed=deployed, property=property, sentence=sentence)
    if json:
        print_json([vars(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            say(f"{outcome}.")
            for asked in outcome.asked:
                say(f"Asked: {asked}{HINTS.get(asked, '')}.")
        for assumed in dict.fromkeys(each for outcome in outcomes for each in outcome.assumed):
            say(f"Assumed: {assumed}.")
    found = {outcome.status for outcome in outcomes}
    raise typer.Exit(
        CODES["refuted" if "refuted" in found else "cannot check" if "cannot check" in found else "checked"]
    )
