"""The commands by name, each imported when it is called; what goes wrong in one ends in a sentence and exit code 2."""

import importlib
import io
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from howsmooth import __version__
from howsmooth.cli.memory_errors import too_large
from howsmooth.cli.printing import in_options, one_line, options_by_keyword, say
from howsmooth.errors import AssumptionError, HowsmoothError

# What ``howsmooth --help`` lists, without importing any of them.
COMMANDS = {
    "measure": "Measure how smooth each attention layer of a model is on a text.",
    "sweep": "Run a study file: a grid of measurements, here or on a cluster.",
    "paper": "Repeat the experiments of the paper, from the definition.",
    "runs": "List the runs in a folder.",
    "show": "Show the answer of a run again.",
    "compare": "Compare two runs: which layers differ, by how much, and what of it is real.",
    "report": "Write the report of a run: one HTML file that needs no network.",
    "figure": "Draw one figure of a run.",
    "export": "Write the records of a run as one table.",
    "models": "List what can be measured here.",
    "demo": "Measure a layer with random weights at random tokens.",
    "bounds": "Bound the constant of a layer on n tokens in a ball: every theorem.",
    "worst-case": "Find n tokens in a ball where a layer is least smooth.",
    "attack": "Attack a map of a model: what is attained, predicted and allowed.",
    "certify": "Certify a classifier: how far words may move before it could change its mind.",
    "split": "Tell whether cutting atoms in two beats moving them.",
    "swap": "Find the words to replace, and by which, that move the output of a model most.",
    "regimes": "Follow the worst constant of a head from few tokens to a measure.",
    "audit": "Search for an input where a layer exceeds the constant that is claimed for it.",
    "lab": "Write the lab: a page to see, by hand, why attention is not smooth.",
}


# Commands that share a file.
FILES = {
    **dict.fromkeys(("measure", "attack", "certify"), "run_commands"),
    **dict.fromkeys(("runs", "show", "compare", "report", "figure", "export"), "stored_runs"),
    **dict.fromkeys(("demo", "models", "lab"), "first_steps"),
    **dict.fromkeys(("bounds", "regimes"), "layer_bounds"),
}


class Commands(TyperGroup):
    """The group of all commands; the one that is called takes the place of its line in the help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called."""
        name = args[0]
        options_by_keyword.clear()
        if name in COMMANDS:
            command = load(name)
            self.add_command(command, name)
            options_by_keyword.update(
                {parameter.name: _longest(parameter) for parameter in command.params if parameter.name}
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an option that cannot be read is refused in one sentence, as every other mistake."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            command = getattr(error.ctx, "command_path", "howsmooth")
            said = error.format_message().rstrip(".")
            raise AssumptionError(f"{said}; see {command} --help.") from error


def _longest(parameter: Any) -> str:
    """Return how the command line calls a parameter: its longest option, or the capitals of an argument."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def load(name: str) -> Any:
    """Import the file of a command and return what typer makes of it."""
    function = name.replace("-", "_")
    module = importlib.import_module(f"howsmooth.cli.{FILES.get(name, function)}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # a command without a function of its own is declared by its kind of question
    alone.command(name)(getattr(module, function, None) or module.declared_command(name))
    return typer.main.get_command(alone)


def _stand_in(name: str) -> Any:
    """Return a function with one line of help, which stands for a command that is not imported."""

    def stand_in() -> None:
        pass

    stand_in.__doc__ = COMMANDS[name]
    return stand_in


MISUSE = 2

app = typer.Typer(
    cls=Commands,
    help="How smooth is attention? Measure, bound and attack its Lipschitz constant.\n\nExample: howsmooth measure",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name in COMMANDS:
    app.command(name)(_stand_in(name))


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
) -> None:
    """Hold the options that come before a command."""


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
        app(prog_name="howsmooth")
    except HowsmoothError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None:
            raise  # of a stream and not of a file, as when nobody reads what is printed
        _refuse(f"{error.filename!r} cannot be used: {error.strerror}.")
    except (MemoryError, OverflowError, RuntimeError) as error:  # RecursionError is a RuntimeError
        sentence = too_large(error)
        if sentence is None:
            raise
        _refuse(sentence)


def _refuse(sentence: str) -> None:
    say(f"howsmooth: {one_line(in_options(sentence))}", err=True)
    sys.exit(MISUSE)
