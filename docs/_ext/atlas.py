"""The atlas: cards of many models as one page, with what they teach; written into the site as it is built."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
from docutils import nodes
from scipy import stats
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from howsmooth.report.drawing.palette import BLUE, CONFIG, GREY, ORANGE, themed
from howsmooth.report.embedding import in_script, templates
from howsmooth.studies.cards import Card
from howsmooth.wording import number

HOME = Path(__file__).parents[1] / "atlas"
TRAINED, RANDOM, PENALISED = "trained", "random twin", "trained with a penalty"
COLOURS = {TRAINED: BLUE, RANDOM: GREY, PENALISED: ORANGE}
SHAPES = {
    "receptors": "circle",
    "films": "square",
    "English": "triangle-up",
    "reactions": "diamond",
    "antibodies": "cross",
}
# What may be drawn: up, numbers of a card; across, sizes of a model.
UP = {
    "worst layer": "worst gain of the least smooth attention layer",
    "whole worst": "worst gain of the whole model",
    "whole typical": "typical gain of the whole model",
    "whole relative": "percent out for a percent in, whole model",
}
# 200k, but 0.1 and not 100m.
SHORT = "format(datum.value, datum.value < 1 ? '~g' : '~s')"
ACROSS = {"width": "width", "layers": "layers", "parameters": "parameters"}
COLUMNS = (*UP, "growth exponent", "θ", "sink", "cost int8", "cost int4:g64", "certified radius")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A card, and what the atlas says about its model."""

    card: Card
    family: str
    training: str
    source: str

    @property
    def kind(self) -> str:
        """Whether it was trained, and how."""
        return self.training.partition(":")[0]

    def of(self, name: str) -> float:
        """Return a number of the card."""
        return self.card.numbers[name].value


def entries(folder: Path = HOME / "cards") -> list[Entry]:
    """Read all cards, by family and name."""
    found = []
    for file in sorted(folder.glob("*.json")):
        text = file.read_text(encoding="utf-8")
        about = json.loads(text)["atlas"]
        found.append(Entry(card=Card.from_json(text), **about))
    return sorted(found, key=lambda entry: (list(SHAPES).index(entry.family), entry.card.model.lower()))


def skipped() -> dict[str, str]:
    """Return why there is no card of some models."""
    return json.loads((HOME / "skipped.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times larger geometric means are, with an interval of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value, 2)} times [{number(self.low, 2)}, {number(self.high, 2)}]"


def ratio(these: Sequence[float], those: Sequence[float]) -> Ratio:
    """Compare two groups by Welch's interval of the difference of their logarithms."""
    logs = [[math.log(value) for value in group] for group in (these, those)]
    shares = [statistics.variance(group) / len(group) for group in logs]
    middle, error = statistics.mean(logs[0]) - statistics.mean(logs[1]), math.sqrt(sum(shares))
    freedom = sum(shares) ** 2 / sum(s**2 / (len(group) - 1) for s, group in zip(shares, logs, strict=True))
    half = float(stats.t.ppf(0.975, freedom)) * error
    return Ratio(value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half))


def power(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Fit a power of a size; return the exponent with its interval of 95 %."""
    line = stats.linregress([math.log(x) for x in sizes], [math.log(y) for y in values])
    half = float(stats.t.ppf(0.975, len(sizes) - 2)) * float(line.stderr)
    return float(line.slope), float(line.slope) - half, float(line.slope) + half


def group(found: Sequence[Entry], keep: Callable[[Entry], bool], name: str) -> list[float]:
    """Return a number of the cards that are kept."""
    return [entry.of(name) for entry in found if keep(entry) and name in entry.card.numbers]


def lessons(found: Sequence[Entry]) -> list[str]:
    """Say what the cards teach about training, width and whole models; every number from them, with its interval."""
    encoders = [entry for entry in found if entry.family == "receptors"]
    twins = [entry for entry in encoders if entry.kind == RANDOM]
    one_objective = [entry for entry in encoders if entry.training == f"{TRAINED}: contrastive"]
    layer, packages = "worst layer", len(others(found, "worst layer"))

    def over_twins(name: str) -> Ratio:
        return ratio(group(encoders, lambda entry: entry.kind == TRAINED, name), [twin.of(name) for twin in twins])

    def by_width(some: Sequence[Entry]) -> str:
        return spread(power([entry.card.sizes["width"] for entry in some], [entry.of(layer) for entry in some]))

    def in_packages(name: str) -> str:
        return str(paired(list(others(found, name).values())))

    return [
        f"Training is what makes attention rough: in {len(encoders) - len(twins)} encoders of one package, "
        "whatever their objective, the worst gain of the least smooth layer is "
        f"{over_twins(layer)} that of random twins, and {in_packages(layer)} in {packages} other packages.",
        "Width adds to it only through training: that gain grows like the width to the power "
        f"{by_width(one_objective)} in the {len(one_objective)} encoders of one objective, and "
        f"{by_width(twins)} at initial weights.",
        f"Whole models feel less of it, and noise least: through all layers the worst gain of those encoders is "
        f"{over_twins('whole worst')} that of their twins, and the gain of random perturbations "
        f"{over_twins('whole typical')}; in the other packages {in_packages('whole worst')}, which may be no change, "
        f"and {in_packages('whole typical')}, which is less than at initial weights.",
    ]


def others(found: Sequence[Entry], name: str) -> dict[str, float]:
    """Return how many times their random twin the trained models of each other package are, by geometric mean."""
    by_name = {entry.card.model: entry for entry in found}
    made: dict[str, list[float]] = {}
    for entry in found:
        package = entry.card.model.split()[0]
        start = by_name.get(f"{package} twin")
        if entry.kind == TRAINED and entry.family not in ("receptors", "films") and start is not None:
            made.setdefault(package, []).append(entry.of(name) / start.of(name))
    return {package: statistics.geometric_mean(ratios) for package, ratios in made.items()}


def paired(ratios: Sequence[float]) -> Ratio:
    """Return the geometric mean of ratios with its interval."""
    logs = [math.log(value) for value in ratios]
    middle = statistics.mean(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half))


def spread(fit: tuple[float, float, float]) -> str:
    """Write an exponent with its interval."""
    value, low, high = (f"{x:.2f}".replace("-", "−") for x in fit)
    return f"{value} [{low}, {high}]"


def rows(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return a row for each card: what the table shows and the chart draws."""
    made: list[dict[str, Any]] = []
    for entry in found:
        card = entry.card
        made.append(
            {
                "name": card.model,
                "family": entry.family,
                "kind": entry.kind,
                "training": entry.training,
                "source": entry.source,
                "sizes": card.sizes,
                "text": card.protocol.text,
                "digest": card.digest,
                "notes": card.notes,
                "numbers": {
                    name: {"value": x.value, "low": x.low, "high": x.high, "text": str(x)}
                    for name, x in card.numbers.items()
                    if name in COLUMNS
                },
                "layers": card.cells,
            }
        )
    return made


def chart(families: Sequence[str]) -> dict[str, Any]:
    """Return the specification of the scatter; the page fills in its points and the titles of its axes."""
    legend = alt.Legend(orient="top", direction="horizontal", columns=3, title=None, symbolOpacity=1)
    chosen = alt.selection_point(name="chosen", fields=["name"], on="click", empty=True)
    base = alt.Chart(alt.NamedData("points")).encode(
        x=alt.X(
            "x:Q",
            title="",
            scale=alt.Scale(type="log", nice=False, padding=24),
            axis=alt.Axis(labelExpr=SHORT, tickCount=6),
        ),
        color=alt.Color("kind:N", scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())), legend=legend),
        opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.15)),
    )
    scale = alt.Scale(type="log", nice=False, padding=12)
    ends = base.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("low:Q", title="", scale=scale, axis=alt.Axis(labelExpr=SHORT, tickCount=6)), y2="high:Q"
    )
    shapes = alt.Scale(domain=list(families), range=[SHAPES[name] for name in families])
    shape = alt.Shape("family:N", scale=shapes, legend=legend)
    points = base.mark_point(filled=True, size=80, cursor="pointer").encode(
        y="y:Q",
        shape=shape,
        tooltip=[alt.Tooltip(name) for name in ("name:N", "training:N", "layers:Q", "width:Q", "value:N")],
    )
    spec = alt.layer(ends, points.add_params(chosen)).properties(width=640, height=400).to_dict()
    spec.pop("config", None)
    return themed(spec)


def write_atlas(path: Path, folder: Path = HOME / "cards") -> Path:
    """Write the page of the atlas; return where it is."""
    found = entries(folder)
    families = list(dict.fromkeys(entry.family for entry in found))
    template = templates().from_string((HOME / "page.html").read_text(encoding="utf-8"))
    data = {
        "rows": rows(found),
        "spec": chart(families),
        "config": CONFIG,
        "up": UP,
        "across": ACROSS,
        "columns": COLUMNS,
    }
    page = template.render(
        title="Atlas: how smooth are real models?",
        lessons=lessons(found),
        count=len(found),
        up=UP,
        across=ACROSS,
        columns=COLUMNS,
        families=families,
        kinds=list(dict.fromkeys(entry.kind for entry in found)),
        skipped=skipped(),
        versions=sorted({entry.card.version for entry in found}),
        protocol=found[0].card.protocol.name,
        data=in_script(data),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


class Lessons(SphinxDirective):
    """What the cards teach, in sentences."""

    def run(self) -> list[nodes.Node]:
        """Return a paragraph for each."""
        return [nodes.paragraph("", lesson) for lesson in lessons(entries())]


class Skipped(SphinxDirective):
    """Why there is no card of some models."""

    def run(self) -> list[nodes.Node]:
        """Return a list."""
        items = (nodes.list_item("", nodes.paragraph("", f"{name}: {why}")) for name, why in skipped().items())
        return [nodes.bullet_list("", *items)]


def write(app: Sphinx, exception: Exception | None) -> None:
    """Put the page beside the other files that are served as they are."""
    if exception is None and app.builder.format == "html":
        write_atlas(Path(app.outdir) / "_static" / "atlas.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("atlas-lessons", Lessons)
    app.add_directive("atlas-skipped", Skipped)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
