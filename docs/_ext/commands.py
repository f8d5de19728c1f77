"""The reference of the command line, written from the commands themselves."""

import functools
import re
from typing import Any

from sphinx.application import Sphinx

from howsmooth.cli.commands import COMMANDS, QUESTIONS, load

PLACE = "<!-- commands -->"


@functools.cache
def commands() -> dict[str, Any]:
    """Return every command by name; what it takes is in its ``params``."""
    return {name: load(name) for name in COMMANDS}


def reference() -> str:
    """Describe every command under the question that it answers: what it does, its arguments and options."""
    parts = []
    for question, names in QUESTIONS.items():
        parts += [f"## {question}\n", *(_command(name, commands()[name]) for name in names)]
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    usage = " ".join(["howsmooth", name, *(_argument(p) for p in shown if not _is_option(p)), "[OPTIONS]"])
    rows = "\n".join(_row(parameter) for parameter in shown)
    table = f"| option | meaning |\n|:---|:---|\n{rows}\n" if shown else ""
    return f"### {name}\n\n```text\n{usage}\n```\n\n{_prose(command.help or '')}\n\n{table}"


def _prose(text: str) -> str:
    """Turn the example lines of a help text into code; the rest is sentences."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(re.sub(r"^(Example|First): (.*)$", r"\1:\n\n```text\n\2\n```", part) for part in paragraphs)


def _is_option(parameter: Any) -> bool:
    return parameter.param_type_name == "option"


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()).strip("{}")
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _row(parameter: Any) -> str:
    if not _is_option(parameter):
        names = f"`{_argument(parameter)}`"
    elif parameter.is_flag:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    else:
        *others, last = sorted(parameter.opts, key=len)
        number = re.search("int|float", str(parameter.type_descriptor.annotation))
        value = parameter.metavar or ("NUMBER" if number else "TEXT")
        names = ", ".join([*(f"`{name}`" for name in others), f"`{last} {value}`"])
    meaning = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| {names} | {meaning}{_default(parameter)} |"


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return " Required."
    if parameter.show_default is False:
        return ""
    if getattr(parameter, "is_flag", False):
        if not parameter.secondary_opts:
            return ""
        default = parameter.opts[0] if default else parameter.secondary_opts[0]
    return "" if default in (None, "") or callable(default) else f" Default: `{default}`."


def write(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the reference in its place, as the page is read."""
    if PLACE in source[0]:
        source[0] = source[0].replace(PLACE, reference())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
