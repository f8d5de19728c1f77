"""Notebooks as pages: cells and their stored outputs, as the page that names the notebook is read."""

import base64
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PLACE = re.compile(r"<!-- notebook: (\S+) -->")


def page(notebook: dict[str, Any]) -> str:
    """Write the cells of a notebook as Markdown; its title becomes a heading below that of the page."""
    return "\n\n".join(_cell(cell) for cell in notebook["cells"])


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return re.sub(r"^# ", "## ", source)
    return "\n\n".join([f"```python\n{source}\n```", *(_output(output) for output in cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/svg+xml" in data:
        # inside the page, so that no file has to be written where Sphinx does not look for one
        picture = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return f'<img alt="The chart that this cell draws" src="data:image/svg+xml;base64,{picture}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def write(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the notebook in its place."""
    found = PLACE.search(source[0])
    if found:
        path = Path(app.env.doc2path(docname)).parent / found[1]
        app.env.note_dependency(str(path))
        source[0] = source[0].replace(found[0], page(json.loads(path.read_text(encoding="utf-8"))))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
