"""Results as tables: no wider than a terminal, in a notebook, and as plain text."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement as Width
from rich.table import Table
from rich.text import Text

from howsmooth.errors import AssumptionError
from howsmooth.markup import paragraph
from howsmooth.markup import table as table_html
from howsmooth.wording import aligned, visible

# What draws results, by the name of their type: ``howsmooth.report`` registers itself; nothing here depends on it.
DRAWERS: dict[str, Callable[..., Any]] = {}


class ResultTable(abc.ABC):
    """A result that shows itself as a table: a title, rows of cells, what they are worth, and what to know."""

    # Columns that leave a narrow terminal, the first ones first; the others always fit.
    EXPENDABLE: ClassVar[tuple[str, ...]] = ()
    # Columns that are left out where all rows agree: the title says it.
    ALIKE: ClassVar[tuple[str, ...]] = ()

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What the table shows, in a line."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns that have something to say."""
        rows = self.cells
        alike = {name for name in self.ALIKE if len({row[name] for row in rows}) == 1}
        names = list(rows[0]) if rows else []
        return [name for name in names if name not in alike and any(row[name] != "—" for row in rows)]

    @property
    @abc.abstractmethod
    def cells(self) -> list[dict[str, str]]:
        """The rows: what stands in each column."""

    @abc.abstractmethod
    def meaning(self, columns: Sequence[str]) -> str:
        """Say what the columns that are shown mean and what the numbers are worth."""

    @property
    def legend(self) -> str:
        """What all columns mean."""
        return self.meaning(self.columns)

    @property
    def lead(self) -> tuple[str, ...]:
        """What is said before the table."""
        return ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        return ()

    def _drawn(self, **options: Any) -> Any:
        if type(self).__name__ not in DRAWERS:
            raise AssumptionError("charts are drawn by howsmooth.report, which is not imported; import it first.")
        return DRAWERS[type(self).__name__](self, **options)

    @property
    def _rows(self) -> list[list[str]]:
        return [[row[name] for name in self.columns] for row in self.cells]

    def __repr__(self) -> str:
        """Show it as plain text."""
        notes = (f"Note: {remark}." for remark in self.remarks)
        return visible("\n".join((self.title, *self.lead, *aligned([self.columns, *self._rows]), *notes)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Render in a rich console; names may hold brackets, which are no markup."""
        yield from map(Text, self.lead)
        yield Text(self.title, style="bold")
        table = fitted(self.cells, self.columns, self.EXPENDABLE, console, options)
        yield table
        yield Text(self.meaning([str(column.header) for column in table.columns]), style="dim")
        yield from (Text(f"Note: {remark}.", style="yellow") for remark in self.remarks)

    def _repr_html_(self) -> str:
        said = (self.legend, *(f"Note: {remark}." for remark in self.remarks))
        table = table_html(self.columns, self._rows, caption=self.title)
        return "".join((*map(paragraph, self.lead), table, *map(paragraph, said)))


def fitted(
    rows: Sequence[dict[str, str]],
    columns: Sequence[str],
    expendable: Sequence[str],
    console: Console,
    options: ConsoleOptions,
) -> Table:
    """Return a table that is no wider than the terminal: columns leave before digits do."""
    kept = list(columns)
    leaving = [name for name in expendable if name in kept]
    while True:
        table = Table(box=None, padding=(0, 1, 0, 0))
        for name in kept:
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[name] for name in kept))
        wide = Width.get(console, options.update(max_width=10_000), table).maximum
        if wide <= options.max_width:
            return table
        if not leaving:
            # names go over several lines, and then numbers at their blanks, before digits leave
            names, *others = table.columns
            names.no_wrap, names.overflow = False, "fold"
            cells = [row[kept[0]] for row in rows]
            least = min(max((len(word) for cell in cells for word in cell.split()), default=1), options.max_width // 4)
            if wide - max(map(len, cells), default=0) + least > options.max_width:
                names.width = least
                for column in others:
                    column.no_wrap = False
            return table
        kept.remove(leaving.pop(0))
