"""The commands by name: a command's file is imported when the command is called, and not before."""

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from howsmooth.errors import AssumptionError

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


class Commands(TyperGroup):
    """The group of all commands; the one that is called takes the place of its line in the help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called."""
        name = args[0]
        if name in COMMANDS:
            self.add_command(load(name), name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an option that cannot be read is refused in one sentence, as every other mistake."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            command = getattr(error.ctx, "command_path", "howsmooth")
            said = error.format_message().rstrip(".")
            raise AssumptionError(f"{said}; see {command} --help.") from error


def load(name: str) -> Any:
    """Import the file of a command and return what typer makes of it."""
    file = name.replace("-", "_")
    function = getattr(importlib.import_module(f"howsmooth.cli.{file}"), file)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(function)
    return typer.main.get_command(alone)


def listed(name: str) -> Any:
    """Return a stand-in with a name and one line of help."""

    def stand_in() -> None:
        pass

    stand_in.__doc__ = COMMANDS[name]
    return stand_in
