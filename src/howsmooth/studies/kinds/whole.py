"""A model from end to end: each block by itself, all blocks up to each layer, and all from each layer on."""

from typing import Annotated

from howsmooth.studies.json_values import NOT_IN_KEY
from howsmooth.studies.kinds import text
from howsmooth.studies.kinds.text import Answer as Answer
from howsmooth.studies.kinds.text import run as run
from howsmooth.studies.records import Record

# A block is attention and a feed-forward part, which takes twice as long.
BLOCK = 3.0


class Ask(text.Ask, frozen=True, kw_only=True, tag="whole"):
    """How far the output of some consecutive blocks can move at one window: ``block``, ``to:3`` or ``from:3``.

    Attributes:
        blocks: How many blocks these are; the map says it, if one knows the model.
    """

    blocks: Annotated[int, NOT_IN_KEY] = 1

    @property
    def share(self) -> float:
        """That of all blocks."""
        return BLOCK * self.blocks


WholeRecord = Record[Ask, Answer]
