"""The commands by name, each imported when it is called; what goes wrong in one ends in a sentence and exit code 2."""

import importlib
import io
import logging
import re
import sys
import tomllib
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from howsmooth import __version__
from howsmooth.cli import torchrun
from howsmooth.cli.memory_errors import too_large
from howsmooth.cli.printing import in_options, one_line, options_by_keyword, say, saying_stages
from howsmooth.errors import AssumptionError, ClusterError, FileError, HowsmoothError, nearest

# What ``howsmooth --help`` lists, by the question that it answers, without importing any of them.
QUESTIONS = {
    "How smooth is a model?": {
        "measure": "Measure how smooth each attention layer of a model is on a text.",
        "card": "Write the card of a model: its smoothness by a fixed protocol.",
        "compare": "Compare two runs, or cards: what differs, by how much, and what of it is real.",
        "budget": "Tell where a model tolerates an error: rounded weights, a rounded cache.",
        "models": "List what can be measured here.",
    },
    "How unsmooth can a layer be, and what is proven?": {
        "bounds": "Bound the constant of a layer on n tokens in a ball: every theorem.",
        "worst-case": "Find n tokens in a ball, or near a text, where a layer is least smooth.",
        "regimes": "Follow the worst constant of a head from few tokens to a measure.",
        "split": "Tell whether cutting atoms in two beats moving them.",
        "audit": "Search for an input where a layer exceeds the constant that is claimed for it.",
    },
    "What can an attacker do, and what can nobody do?": {
        "attack": "Attack a map of a model: what is attained, predicted and allowed.",
        "swap": "Find the words to replace, and by which, that move the output of a model most.",
        "certify": "Certify a classifier: how far words may move before its prediction could change.",
        "verify": "Prove a property of a network on a box of inputs, or find an input that violates it.",
        "check": "Check a proof file in ball arithmetic, without trusting what wrote it.",
    },
    "Many questions at once": {
        "sweep": "Run a study file: a grid of measurements, here or on a cluster.",
        "paper": "Repeat the experiments of the paper, from the definition.",
    },
    "What was found?": {
        "runs": "List the runs in a folder.",
        "show": "Print the answer of a run again.",
        "report": "Write the report of a run: one HTML file that needs no network.",
        "figure": "Draw one figure of a run.",
        "export": "Write the records of a run as one table.",
        "lab": "Write the lab: a page to see, by hand, why attention is not smooth.",
    },
}
COMMANDS = {name: said for commands in QUESTIONS.values() for name, said in commands.items()}

# Commands that share a file.
FILES = {
    **dict.fromkeys(("measure", "attack", "certify", "budget"), "run_commands"),
    **dict.fromkeys(("sweep", "paper"), "study_commands"),
    **dict.fromkeys(("runs", "show", "compare", "report", "figure", "export"), "stored_runs"),
    **dict.fromkeys(("models", "lab"), "first_steps"),
    **dict.fromkeys(("bounds", "regimes"), "layer_bounds"),
}
# How wide the names of options may be in a help text of 80 columns: longer ones have their description below.
NAMES, WIDTH = 26, 100
# Python's names of types, as typer writes them, and ours.
TYPES = {r"<(int|float)( range)?>": "<number>", "<str>": "<text>"}
# What typer raises for a command line that it cannot read, of which it exports one kind alone.
UsageError: Any = typer.BadParameter.__base__
# Where defaults of options are kept: a file of ours, or a section of pyproject.toml.
DEFAULTS, SECTION = "howsmooth.toml", ("tool", "howsmooth")
SETTINGS = {"help_option_names": ["--help", "-h"], "max_content_width": WIDTH}


def found_defaults(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest file that holds defaults, and what it holds; none if there is none."""
    for place in (folder, *folder.parents):
        for file, section in ((place / DEFAULTS, ()), (place / "pyproject.toml", SECTION)):
            if not file.is_file():
                continue
            try:
                found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                if section:
                    continue  # another tool's file, and another tool's trouble
                raise FileError(f"{str(file)!r} cannot be read: {error}.") from error
            for key in section:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, dict):
                return file, found
    return None


def defaults_for(name: str, parameters: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return the defaults of one command: those at the top for every command that has the option, then its own.

    Args:
        name: The command.
        parameters: Its parameters, by every name that a file may call them.
        folder: Where the search for a file begins.
    """
    read = found_defaults(folder)
    if read is None:
        return {}
    file, found = read
    own = found.get(name, {})
    keys = {key.replace("-", "_"): value for key, value in own.items()} if isinstance(own, dict) else {}
    if unknown := [key for key in keys if key not in parameters]:
        raise FileError(
            f"{str(file)!r}: howsmooth {name} has no option {unknown[0]!r}{nearest(unknown[0], parameters)}"
        )
    common = {key.replace("-", "_"): value for key, value in found.items() if not isinstance(value, dict)}
    chosen = {parameters[key]: value for key, value in (common | keys).items() if key in parameters}
    return {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in chosen.items()}


def _plain(names: str, description: str) -> tuple[str, str]:
    """Write what an option takes, and its range, in words."""
    if not names.startswith("-"):
        names = re.sub(r" <\S+>$", "", names)
    for python, ours in TYPES.items():
        names = re.sub(python, ours, names)
    return names, re.sub(r"\bx>=(\S+)\]$", r"at least \1]", description)


class Command(TyperCommand):
    """A command whose help lists its options under their headings, with room for descriptions to be sentences."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options, and the options of each heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                common = "Options" if parameter.param_type_name == "option" else "Arguments"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or common, []).append(_plain(*record))
        for heading in sorted(sections, key=lambda heading: heading == "Options"):
            with formatter.section(heading):
                formatter.write_dl(sections[heading], col_max=NAMES)


class Commands(TyperGroup):
    """The group of all commands; the one that is called takes the place of its line in the help."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the options before the command; nothing at all asks for help, what cannot be read is refused."""
        try:
            return super().make_context(info_name, args or ["--help"], parent, **extra)
        except UsageError as error:
            raise _refused(error) from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called."""
        name = args[0]
        torchrun.refuse(name)
        options_by_keyword.clear()
        if name in COMMANDS:
            command = load(name)
            self.add_command(command, name)
            ctx.default_map = {name: defaults_for(name, _names(command), Path.cwd())}
            options_by_keyword.update({parameter.name: _written(parameter) for parameter in command.params})
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the questions that they answer."""
        for question, commands in QUESTIONS.items():
            formatter.write(f"\n{question}\n")
            with formatter.indentation():
                formatter.write_dl(list(commands.items()))

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what cannot be read is refused in one sentence, as every other mistake."""
        try:
            with saying_stages():
                return super().invoke(ctx)
        except UsageError as error:
            raise _refused(error) from error


# What typer's reader of numbers says, and what we say.
NOT_A_NUMBER = {
    "Input should be a valid integer, unable to parse string as an integer": "it must be one whole number",
    "Input should be a valid number, unable to parse string as a number": "it must be one number",
}


# What a missing argument is, and where to find one.
WHERE_FOUND = {
    "argument 'RUN": "the folder of a run, and howsmooth runs lists those there are",
    "argument 'NAME'": "a figure of the report, as constant_against_length, layers_by_length or bounds_ladder",
    "argument 'MODEL'": "a folder, a .gguf file or a hub id, and howsmooth models lists those that are built in",
}


def _refused(error: Any) -> AssumptionError:
    said, where = error.format_message().rstrip("."), getattr(error.ctx, "command_path", "howsmooth")
    for pydantic, ours in NOT_A_NUMBER.items():
        said = said.replace(pydantic, ours)
    said += next((f": {where_found}" for missing, where_found in WHERE_FOUND.items() if missing in said), "")
    return AssumptionError(f"{said}{'' if said.endswith('?') else '.'} See {where} --help.")


def _names(command: Any) -> dict[str, str]:
    """Return the parameters of a command by their names, and by those of their long options without the hyphens."""
    found = {parameter.name: parameter.name for parameter in command.params}
    for parameter in command.params:
        long = (option[2:].replace("-", "_") for option in parameter.opts if option.startswith("--"))
        found |= dict.fromkeys(long, parameter.name)
    return found


def _written(parameter: Any) -> str:
    """Return how a parameter is written: its first option; the capitals of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(parameter.opts[0])


def load(name: str) -> Any:
    """Import the file of a command and return what typer makes of it."""
    function = name.replace("-", "_")
    module = importlib.import_module(f"howsmooth.cli.{FILES.get(name, function)}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    # a command without a function of its own is declared by its kind of question
    called = getattr(module, function, None) or module.declared_command(name)
    alone.command(name, cls=Command, context_settings=SETTINGS)(called)
    return typer.main.get_command(alone)


# What ends in a sentence, and what is a fault of the library (EX_SOFTWARE).
MISUSE, FAULT = 2, 70

app = typer.Typer(
    cls=Commands,
    help="How smooth is attention? Measure, bound and attack its Lipschitz constant.\n\nExample: howsmooth measure",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)
for name, said in COMMANDS.items():
    app.command(name, help=said)(lambda: None)  # stands for a command that is not imported


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"howsmooth {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what is done meanwhile: models that are loaded, files, cells.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""
    if verbose:
        logging.basicConfig(level=logging.INFO, format="howsmooth: %(message)s")


def _show_warning(message: Warning | str, *_where: object, **_place: object) -> None:
    """Say what a warning says, not where in the code it was raised."""
    say(f"howsmooth: {in_options(str(message))}", err=True)


def run() -> None:
    """Run the command line; a mistake, or more than the machine can do, ends in one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ≤ shows a question mark
    warnings.showwarning = _show_warning
    try:
        with torchrun.silence():
            app(prog_name="howsmooth")
    except HowsmoothError as error:
        _refuse(str(error), lost=isinstance(error, ClusterError))
    except OSError as error:
        if error.filename is None:
            raise  # of a stream and not of a file, as when nobody reads what is printed
        _refuse(f"{error.filename!r} cannot be used: {error.strerror}.")
    except (MemoryError, OverflowError, RuntimeError) as error:  # RecursionError is a RuntimeError
        sentence = too_large(error)
        if sentence is None:
            _fail()
        _refuse(sentence)
    except Exception:
        _fail()


def _fail() -> NoReturn:
    """End by a code of its own where the library itself fails: 1 is the answer of some commands."""
    traceback.print_exc()
    sys.exit(FAULT)


def _refuse(sentence: str, *, lost: bool = False) -> None:
    """Say why a command ends, and end it; of processes that were started together all say that one is lost."""
    said = f"howsmooth: {one_line(in_options(sentence))}"
    if lost or torchrun.first():
        say(said, err=True)
    torchrun.explain(said)
    if lost and torchrun.started():
        torchrun.leave(MISUSE)
    sys.exit(MISUSE)
