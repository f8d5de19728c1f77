"""What a measurement of a model returns: every record, and the answer for each layer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from howsmooth.markup import frame
from howsmooth.studies.json_values import to_json
from howsmooth.studies.kinds.text import BOUND_COLUMNS, TextRecord
from howsmooth.studies.runs.result_table import ResultTable
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import at_most, count, percent


@dataclass(frozen=True, kw_only=True, repr=False)
class Measurement(ResultTable):
    """How smooth each attention layer of a model is on a text.

    Attributes:
        model: Which model.
        text: Which text.
        map: Which part of each layer.
        records: One for each layer, length and window, in that order.
        heads: Likewise for single heads, if they were asked for; the map of an ask says which head.
        layers: The answer for each layer.
        notes: What the reader has to know: quantised weights, maps without a closed form, and the like.
        tokens: The tokens of the first window of the longest length, in words.
        openings: The first few tokens of each window, by length and index.
        run: The folder with the records; none if they were not kept.
        planned: How many records there will be when all is done.
        commands: What to type to measure the same again.
    """

    EXPENDABLE = ("R", "range", "95 %", *BOUND_COLUMNS.values(), "longest", "any input", "exponent", "typical 95 %")
    ALIKE = ("n", "windows")
    model: str
    text: str
    map: str
    records: tuple[TextRecord, ...]
    heads: tuple[TextRecord, ...] = ()
    layers: tuple[LayerSummary, ...]
    notes: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    openings: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    run: str | None = None
    planned: int
    commands: tuple[str, ...] = ()

    def at(self, *, layer: int | None = None, length: int | None = None) -> tuple[TextRecord, ...]:
        """Return the records of a layer, or of a length, or of both."""
        return tuple(r for r in self.records if layer in (None, r.ask.layer) and length in (None, r.ask.length))

    def chart(self, name: str = "length", *, layer: int | None = None) -> Any:
        """Draw one chart, as ``howsmooth figure`` names them: ``length``, ``radius``, ``layers``, ``heads``, ….

        Args:
            name: Which chart; a part of its name is enough.
            layer: Which layer, for charts of one layer; the least smooth by default.
        """
        return self._drawn(name=name, layer=layer)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that were measured."""
        return tuple(sorted({record.ask.length for record in self.records}))

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.records[0].ask.metric if self.records else "total"

    @property
    def missing(self) -> int:
        """How many records are planned and not there."""
        return max(0, self.planned - len(self.records) - len(self.heads))

    @property
    def complete(self) -> bool:
        """Whether everything that was planned is done."""
        return self.missing == 0

    @property
    def comparable(self) -> bool:
        """Whether all layers were measured at one length in common."""
        return len({layer.length for layer in self.layers}) <= 1

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        lengths = {layer.lengths for layer in self.layers}
        sizes = f"n = {lengths.pop()} tokens" if len(lengths) == 1 else "the longest windows of each layer"
        counts = {layer.windows for layer in self.layers}
        windows = f"{count(counts.pop(), self.thing)} of " if len(counts) == 1 and "n = " in sizes else ""
        metric = "" if self.metric == "total" else f", metric {self.metric}"
        return f"{self.model} on {self.text}: {self.map!r} at {windows}{sizes}{metric}"

    @property
    def thing(self) -> str:
        """What was measured at, such as a window of a text, a sentence or a picture."""
        window = self.records[0].ask.window if self.records else None
        if window is None or not window.whole:
            return "window"
        return {"sentence": "sentence", "sentences": "sentence", "images": "picture"}.get(window.source, "sequence")

    def meaning(self, columns: Sequence[str]) -> str:
        """Say what the columns that are shown mean and what the numbers are worth."""
        gains = [layer.typical for layer in self.layers if layer.typical is not None]
        at = f"this {self.thing}" if all(layer.windows == 1 for layer in self.layers) else f"these {self.thing}s"
        interval = f", with its 95 % interval over random directions at {at}" if all(g.low for g in gains) else ""
        said = {
            "typical": f"Typical: what random perturbations are multiplied by{interval}.",
            "worst": f"Worst: what the worst one is multiplied by{self._mean}; attained at each {self.thing}"
            f"{self._closeness}.",
            "relative": "Relative: by how many percent the output changes, at worst, for each percent of the input "
            "(the condition number); unlike worst, it compares layers whose tokens have other sizes.",
            "R": "R: the mean norm of these tokens.",
            "any input": "Any input: the smallest proven bound for as many tokens, none longer than the longest here.",
            "exponent": "The worst grows like n^exponent; a question mark says that no power law describes it.",
        }
        return " ".join(meaning for column, meaning in said.items() if column in columns)

    @property
    def _mean(self) -> str:
        return f" (geometric mean over {self.thing}s)" if any(layer.windows > 1 for layer in self.layers) else ""

    @property
    def accuracy(self) -> str:
        """How near the constants are to the truth, in a sentence."""
        return f"Every constant is attained at its window{self._closeness}."

    @property
    def _closeness(self) -> str:
        ends = [(record.answer.lower, record.answer.upper) for record in self.records]
        if not all(high is not None and (low > 0 or high == 0) for low, high in ends):
            return "; from above, not all of them are known"
        widest = max((high / low for low, high in ends if high and low), default=1.0)
        worth = percent(self.records[0].ask.solver.confidence) if self.records else "—"
        return f", and within a factor of {at_most(widest)} of the truth ({worth} each)"

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is not there yet, to be told before any number."""
        said = []
        if not self.complete:
            said.append(f"unfinished: {self.missing} of {self.planned} records are missing; the same command goes on")
        if not self.comparable:
            said.append("the layers were not measured at one length in common, so they cannot be compared yet")
        return tuple(said)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What to know of the numbers that are there."""
        said = list(self.notes)
        if len(self.commands) > 1:
            said.append(
                f"{len(self.commands)} commands asked for these records, at other layers or windows each; all of them "
                "are summed up together"
            )
        open_ends = sum(r.answer.status not in ("converged", "invariant", "zero") for r in self.records)
        if open_ends and self.records[0].ask.solver.certify:
            said.append(f"{open_ends} of {len(self.records)} brackets did not close: their upper ends are loose")
        said += [f"layer {s.layer}: {s.growth.note}" for s in self.layers if s.growth is not None and s.growth.note]
        return tuple(said)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        return self.gaps + self.doubts

    @property
    def cells(self) -> list[dict[str, str]]:
        """One row for each layer; one window has a bracket, and several have a range."""
        rows = [layer.cells for layer in self.layers]
        if any(layer.windows > 1 for layer in self.layers):
            return rows
        return [{"bracket" if name == "range" else name: cell for name, cell in row.items()} for row in rows]

    def to_json(self) -> str:
        """Return one JSON object; a number without end is null."""
        return to_json(
            {
                **{
                    name: getattr(self, name)
                    for name in ("model", "text", "map", "run", "planned", "complete", "notes")
                },
                "layers": [layer.as_row() for layer in self.layers],
                "records": [as_row(record) for record in self.records],
                "heads": [as_row(record) for record in self.heads],
            }
        )

    def to_frame(self) -> Any:
        """Return all records as a DataFrame of pandas: a row for each layer, length and window."""
        return frame(as_row(record) for record in (*self.records, *self.heads))


def as_row(record: TextRecord) -> dict[str, Any]:
    """Return the fields of a record at a text that the command line prints as JSON."""
    ask, answer = record.ask, record.answer
    row = {
        "layer": ask.layer,
        "map": ask.map,
        "length": ask.length,
        "window": ask.window.index,
        "metric": ask.metric,
        "lower": answer.lower,
        "upper": answer.upper,
        "confidence": ask.solver.confidence,
        "steps": answer.steps,
        "status": answer.status,
        "radius": answer.mean_radius,
        **{name: getattr(answer, name) for name in ("reach", "relative", "typical", "typical_low", "typical_high")},
        **{name: getattr(answer, name) for name in BOUND_COLUMNS},
    }
    return row | ({"released": answer.released_quantity} if ask.released else {})


def least_smooth(layers: Sequence[LayerSummary]) -> LayerSummary:
    """Return the layer with the largest constant."""
    return max(layers, key=lambda layer: layer.constant)
