"""What every question has: a key, a cost, a label, and with which others it is answered together."""

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from howsmooth.models.map_names import MapName
from howsmooth.studies.json_values import JsonValue, described, fingerprint
from howsmooth.studies.settings import Compute, ModelReading, Solver, Window

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources

Matrix = tuple[tuple[float, ...], ...]
# So many tokens of a text go through the model together: enough to be fast, few enough for the memory of a laptop.
TOKENS = 4096
# A map of many layers costs about so many times a part of one; how many layers there are the model knows alone.
MANY = 10.0
# Inputs of more tokens than this are products of large matrices, which torch's threads share without much waiting.
LONG = 512


class Ask(JsonValue, frozen=True, tag_field="kind"):
    """One thing to find out. Equal asks have equal keys, on every machine."""

    @property
    def key(self) -> str:
        """A stable hash of all that tells this ask apart."""
        return _key(self)

    @property
    def kind(self) -> str:
        """Which kind of question it is: the name of its file."""
        return str(self.__struct_config__.tag)

    @property
    def label(self) -> str:
        """What is asked, in a few words."""
        return self.kind

    @property
    def cost(self) -> float:
        """The work, up to a factor that depends on the kind, the model and the machine."""
        return 1.0

    @property
    def alone(self) -> bool:
        """Whether all threads work on it, and nothing beside it: what is very large, or changes its model."""
        return False

    @property
    def turn(self) -> int:
        """When it is done: asks of a lower number before those of a higher one."""
        return 0

    @property
    def batch(self) -> Hashable:
        """What asks that share their resources have in common; in which batch an ask is depends on nothing else."""
        return self

    @property
    def cell(self) -> Hashable:
        """What asks of a batch that are answered in one piece have in common: all or none of them are done."""
        return ()

    @property
    def rank(self) -> tuple[Any, ...]:
        """Where it stands among the asks of its batch."""
        return (self.key,)

    @property
    def prepared(self) -> tuple[Hashable, Hashable, float]:
        """What the first of some cells makes for all of them: what these cells share, this ask's part, and its cost."""
        return self.cell, (), 0.0


class Answer(JsonValue, frozen=True, kw_only=True):
    """What came of an ask; its numbers say by their names what they are worth."""


def one_by_one(answer: "Callable[[Any, Resources], Answer]") -> "Callable[..., list[Answer]]":
    """Return what answers the asks of a cell one after the other."""
    return lambda _batch, cell, resources: [answer(ask, resources) for ask in cell]


class AtText(Ask, frozen=True, kw_only=True):
    """A question about a part of a layer at one window of a text."""

    model: str  # a name or folder that ``hs.load`` understands
    layer: int  # which attention layer
    map: str = "attention"  # which part of it
    window: Window  # which tokens
    where: Compute = Compute()  # where to compute, and with which numbers
    reading: ModelReading = ModelReading()  # how the model is read, where its folder does not say

    @property
    def map_name(self) -> MapName:
        """The map, with what its name says."""
        return MapName.parse(self.map)

    @property
    def label(self) -> str:
        """The model, the layer or the map of many, and the length."""
        place = self.map if self.map_name.spans_layers else f"layer {self.layer}"
        return f"{self.model} {place}, {self.window.length} tokens"

    @property
    def cost(self) -> float:
        """Projections grow with the length, attention weights with its square."""
        return self.share * self.window.length * (500 + self.window.length)

    @property
    def share(self) -> float:
        """How many times the work of one attention layer the map takes."""
        return 0.3 if self.map_name.head is not None else MANY if self.map_name.spans_layers else 1.0

    @property
    def alone(self) -> bool:
        """Long inputs fill the memory and keep every core busy; other devices and streamed blocks have their ways."""
        return self.window.length > LONG or self.where.device not in ("", "cpu") or bool(self.where.streamed)

    @property
    def turn(self) -> int:
        """Layer by layer where blocks come one by one, so that each is read once for all windows."""
        return self.layer if self.where.streamed and not self.map_name.spans_layers else 0

    @property
    def batch(self) -> Hashable:
        """The windows that go through the model together, whatever layers and maps are asked for.

        Maps of many layers keep what every layer needs for its products, so that fewer windows go together.
        """
        whole = self.map_name.spans_layers
        together = max(1, (TOKENS // 4 if whole else TOKENS) // self.window.length)
        window = replace(self.window, index=self.window.index // together)
        return replace(self, layer=0, map="whole" if whole else "", window=window)

    @property
    def cell(self) -> Hashable:
        """All windows at one layer and map take one iteration; so do all heads of a layer."""
        return self.layer, "head" if self.map_name.head is not None else self.map

    @property
    def rank(self) -> tuple[Any, ...]:
        """Layer by layer, head by head, window by window."""
        name = self.map_name
        return self.layer, name.kind, name.head or sum(name.layers), self.window.index

    @property
    def length(self) -> int:
        """How many tokens the window has."""
        return self.window.length

    @property
    def group(self) -> "AtText":
        """What asks that belong to one measurement have in common: all but the layer and the window."""
        return replace(self, layer=0, window=replace(self.window, length=1, index=0))


class AboutHead(Ask, frozen=True, kw_only=True):
    """A question about attention itself, whatever its tokens: a part of a layer of a model, or matrices."""

    model: str = ""  # a name or folder that ``hs.load`` understands; or nothing, and then ``A`` and ``V`` are given
    layer: int = 0  # which attention layer
    map: str = "attention"  # which part of it
    biases: bool = True  # whether its biases are kept; the paper's inputs are built from heads without them
    A: Matrix = ()  # the form of a single head
    V: Matrix = ()  # its values
    length: int  # how many tokens the input has
    radius: Annotated[float, described(plural="radii")]  # the radius of the ball that they lie in
    # of which family the model is, where its config.json does not say
    family: Annotated[str, described(plural="families")] = ""
    solver: Solver = Solver()  # how well norms are to be known, and the seed

    @property
    def label(self) -> str:
        """The model and the layer, or that there is none, and the length."""
        where = f"{self.model} layer {self.layer}" if self.model else "explicit head"
        return f"{where}, {self.length} tokens"

    @property
    def cost(self) -> float:
        """Like that of a window as long."""
        return self.length * (500.0 + self.length)

    @property
    def alone(self) -> bool:
        """As with windows of a text."""
        return self.length > LONG


# keys are asked for many times on the way of an ask through a sweep
@functools.lru_cache(maxsize=100_000)
def _key(ask: Ask) -> str:
    return fingerprint(ask)
