"""``howsmooth verify``: does a property in VNN-LIB hold for a network in ONNX?"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.options import OptionJson, OptionThreads, set_threads
from howsmooth.cli.printing import print_json, say
from howsmooth.errors import AssumptionError, FileError, UnsupportedModelError
from howsmooth.files import is_printed, require_size, whole
from howsmooth.wording import number

if TYPE_CHECKING:
    from howsmooth.verification import Verdict

# The words of the verification competition, and the exit codes.
WORDS = {"proven": "unsat", "falsified": "sat", "unknown": "unknown", "not read": "error"}
CODES = {"proven": 0, "falsified": 1, "unknown": 3, "not read": 3}


def verify(
    network: Annotated[Path, typer.Argument(metavar="NETWORK.onnx", help="A classifier.")],
    property: Annotated[  # noqa: A002
        Path, typer.Argument(metavar="PROPERTY.vnnlib", help="A box, and the outputs that are unsafe.")
    ],
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds (wall time) until the answer is unknown.")
    ] = 100.0,
    float32: Annotated[
        bool, typer.Option("--float32", help="Prove it of the network as it runs in float32, rounding errors included.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="FILE", help="Write the verdict there in the words of VNN-COMP."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE.json", help="Write the proof file that howsmooth check reads, checked."),
    ] = None,
    threads: OptionThreads = None,
    json: OptionJson = False,
) -> None:
    """Prove that a property holds on a whole box of inputs, or find an input that violates it.

    A proof is about the network in real arithmetic; an input that violates the property does so as the network runs.

    Exit code 0 for proven, 1 for falsified, 3 for unknown or a network that cannot be read.

    Example: howsmooth verify NETWORK.onnx PROPERTY.vnnlib --timeout 100
    """
    for path, field in ((network, "network"), (property, "property")):
        if not path.is_file():
            raise FileError(f"there is no file {str(path)!r}.", field=field)
        require_size(path, field, field=field)
    for target, field in ((results, "results"), (save, "save")):
        if target is not None and target.is_dir():
            raise FileError(f"--{field} must be a file, and {str(target)!r} is a folder.", field=field)
        if target is not None and not target.parent.is_dir():
            raise FileError(f"there is no folder {str(target.parent)!r} to write to; make it first.", field=field)
    if save is not None and save.suffix != ".json":
        raise FileError(f"--save writes a proof as .json, got {save.name!r}; change the ending.", field="save")
    printed = results is not None and is_printed(results)
    set_threads(threads)
    from howsmooth.verification import verify as run

    try:
        verdict = run(network, property, timeout=timeout, float32=float32)
    except UnsupportedModelError as error:
        if results is not None:
            with whole(results) as partial:
                partial.write_text(WORDS["not read"] + "\n", encoding="utf-8")
        if json:
            print_json({"status": "not read", "why": str(error)})
        else:
            say(f"Not read: {error}", err=printed)
        raise typer.Exit(CODES["not read"]) from error
    if results is not None:
        with whole(results) as partial:
            partial.write_text(competition_result(verdict), encoding="utf-8")
    if json:
        arrays = {name: getattr(verdict, name) for name in ("margins", "counterexample", "outputs")}
        lists = {name: None if array is None else array.tolist() for name, array in arrays.items()}
        cost = {"seconds": verdict.seconds, "pieces": verdict.nodes, "uses": verdict.uses}
        print_json({"status": verdict.status, "why": verdict.why} | lists | cost)
    else:
        for line in _sentences(verdict, results, "as the network runs in float32" if float32 else "in real arithmetic"):
            say(line, err=printed)
    if save is not None:
        _save(save, verdict, network, property, say_to_err=json)
    raise typer.Exit(CODES[verdict.status])


def _save(path: Path, verdict: "Verdict", network: Path, wanted: Path, *, say_to_err: bool) -> None:
    """Write a verdict as a proof file, and check it; one that does not check is not left."""
    from howsmooth.check import save_checked

    try:
        save_checked(path, lambda partial: verdict.save(partial, network, wanted), network, property=wanted)
    except AssumptionError as error:
        say(f"Not saved: {error}", err=True)
        raise typer.Exit(CODES["unknown"]) from error
    say(f"Saved and checked: {path}.", err=say_to_err)


def competition_result(verdict: "Verdict") -> str:
    """Return a verdict as the verification competition wants it: one word, and a counterexample behind ``sat``."""
    word = WORDS[verdict.status]
    if verdict.counterexample is None or verdict.outputs is None:
        return word + "\n"
    values = [f"(X_{k} {x!r})" for k, x in enumerate(verdict.counterexample.tolist())]
    values += [f"(Y_{k} {y!r})" for k, y in enumerate(verdict.outputs.tolist())]
    return word + "\n(" + "\n".join(values) + ")\n"


def _sentences(verdict: "Verdict", results: Path | None, how_run: str) -> list[str]:
    took = f"{verdict.seconds:.1f} s"
    if verdict.status == "falsified":
        where = f"It is in {results}." if results else "--results FILE writes it to a file, --json prints it."
        return [f"Falsified: an input of the box has an unsafe output ({took}). {where}"]
    least, uses = float(verdict.margins.min()), verdict.uses or {}
    if verdict.status == "proven":
        how = "" if verdict.nodes <= 1 else f", after splitting into {verdict.nodes} pieces"
        lines = [f"Proven {how_run}: no input of the box has an unsafe output ({took}{how})."]
    elif verdict.why:
        lines = [f"Unknown: {verdict.why} ({took})."]
    elif uses:
        missing = f"; {number(-least)} are missing" if -math.inf < least <= 0 else ""
        lines = [f"Unknown: neither a proof nor a counterexample ({took}){missing}."]
    else:
        lines = [f"Unknown: the time was over before there was any bound ({took}); give a larger --timeout."]
    if uses:
        taken = ", ".join(f"{name} {number(value)}" for name, value in uses.items() if name != "centre")
        lines.append(f"The tightest margin is {number(uses['centre'])} at the centre; {taken} may be taken off it.")
    return lines
