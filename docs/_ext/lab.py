"""The lab, written into the site as it is built."""

from pathlib import Path

from sphinx.application import Sphinx

from howsmooth.lab.page import write_lab


def write(app: Sphinx, exception: Exception | None) -> None:
    """Put the page beside the other files that are served as they are."""
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir) / "_static"
        folder.mkdir(exist_ok=True)
        write_lab(folder / "lab.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
