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


def check(
    proof: Annotated[Path, typer.Argument(metavar="PROOF.json", help="What .save wrote.")],
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="What it is about: a model, or a .npz or .safetensors file with the arrays of a layer.",
        ),
    ],
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

    Exit code 0 if every claim is checked, 1 if one is refuted, 3 if one cannot be checked.

    Example: howsmooth check proof.json --model minilm
    """
    if proof.is_dir():
        raise FileError(f"{str(proof)!r} is a folder; name the proof file in it that .save wrote.", field="proof")
    if not proof.is_file():
        raise FileError(f"there is no file {str(proof)!r}.", field="proof")
    require_size(proof, "proof", field="proof")
    from howsmooth.check import check_proof

    outcomes = check_proof(proof, model, deployed=deployed)
    if json:
        print_json([vars(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            say(f"{outcome}.")
        for assumed in dict.fromkeys(each for outcome in outcomes for each in outcome.assumed):
            say(f"Assumed: {assumed}.")
    found = {outcome.status for outcome in outcomes}
    raise typer.Exit(
        CODES["refuted" if "refuted" in found else "cannot check" if "cannot check" in found else "checked"]
    )
