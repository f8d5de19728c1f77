"""Names of the library, found where readers reach them: annotations name the home of a class, pages its front door."""

import re
import sys
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import howsmooth as hs

# hs.bounds is an attribute, loaded on first use; autodoc wants a module of that name.
for name in ("bounds", "errors", "inputs"):
    sys.modules[f"howsmooth.{name}"] = getattr(hs, name)


def at_the_front_door(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Lead a reference to where its object is documented, whatever name it goes by."""
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    known: dict[str, Any] = domain.objects  # type: ignore[attr-defined]
    wanted = node["reftarget"].removeprefix("hs.").split(".")
    for start in range(len(wanted)):
        tail = ".".join(wanted[start:])
        for full in (f"howsmooth.{tail}", *sorted(known)):
            if full in known and (full == f"howsmooth.{tail}" or full.endswith(f".{tail}")):
                return domain.resolve_any_xref(env, node["refdoc"], app.builder, full, node, text)[0][1]
    return None


def shortened(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write signatures that a reader would write: Float[Tensor, "n d"] without its module, a default without <>."""
    if signature is None:
        return signature, returns
    return re.sub(r"~?jaxtyping\.", "", signature).replace("<factory>", "..."), returns


def cited(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn the keys that docstrings write in brackets into citations."""
    lines[:] = [re.sub(r"\[([a-z]+\d{4})\](?!_)", r":cite:t:`\1`", line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("missing-reference", at_the_front_door)
    app.connect("autodoc-process-signature", shortened)
    app.connect("autodoc-process-docstring", cited)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
