"""From a study file to asks that were checked against its models and its text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.errors import HowsmoothError, StudyError
from howsmooth.studies.asks import AboutHead, Ask, AtText
from howsmooth.studies.json_values import from_settings
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.plans.at_text import ModelAndText, model_and_text
from howsmooth.studies.plans.study_file import Study
from howsmooth.studies.records import plan_of
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.run import measurement
from howsmooth.studies.runs.run_metadata import keep_ladders, keep_model, keep_words
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import command


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyPart:
    """The asks of a study that differ in layers and windows alone.

    Attributes:
        asks: What is asked.
        ground: The model and the text, for questions at a text.
    """

    asks: tuple[Ask, ...]
    ground: ModelAndText | None

    def begin(self, store: Store, words: Sequence[str]) -> None:
        """Keep what is known before any work: the model, the words of the windows, the plan."""
        if self.ground is not None:
            keep_model(store, self.ground.transformer, self.ground.inputs.notes)
            keep_words(store, [ask for ask in self.asks if isinstance(ask, AtText)], self.ground.inputs)
        store.keep_plan(plan_of(self.asks, command=command(*words)))


def parts(study: Study, resources: Resources) -> list[StudyPart]:
    """List what a study asks for; loads each model once.

    Raises:
        StudyError: If something cannot be had, with the line that asks for it.
    """
    ask = kind_named(study.kind).ask
    try:
        if issubclass(ask, AtText):
            return [_at_text(study, ask, point, resources) for point in study.points()]
        return [StudyPart(asks=tuple(_elsewhere(study, ask, resources)), ground=None)]
    except StudyError:
        raise
    except HowsmoothError as error:
        raise study.file.refusal(str(error), error.field) from error


def _elsewhere(study: Study, kind: type[Ask], resources: Resources) -> Iterator[Ask]:
    """Yield the asks of a kind that needs no text; a head that there is not is refused here, not once for each ask."""
    seen = set()
    for point in study.points():
        for layer in ({"layer": layer} for layer in study.layers) if study.layers is not None else ({},):
            ask = from_settings(kind, point | layer)
            if (
                isinstance(ask, AboutHead)
                and (head := (ask.model, ask.family, ask.layer, ask.map, ask.A, ask.V)) not in seen
            ):
                resources.attention(ask)
                seen.add(head)
            yield ask


def _at_text(study: Study, ask: type[AtText], point: dict[str, Any], resources: Resources) -> StudyPart:
    assert study.windows is not None
    probe = from_settings(ask, point | {"layer": 0, "digest": "", "length": 1})
    base = model_and_text(probe.model, study.windows, probe.where, probe.reading, resources, parts=[probe.map])
    layers = base.layers(study.layers, probe.map)
    others = {name: getattr(probe, name) for name in probe.__struct_fields__ if name not in AtText.__struct_fields__}
    return StudyPart(asks=tuple(base.each(ask, layers, probe.map, **others)), ground=base)


def keep_bounds(store: Store, made: Sequence[StudyPart]) -> None:
    """Keep the bounds of every layer that was measured at a text, so that the run can be read without its models."""
    for part in made:
        if part.ground is not None and part.asks[0].kind == "text":
            known = store.find(ask.key for ask in part.asks)
            if known:
                keep_ladders(store, measurement(store, [plan_of(part.asks)], known), part.ground.transformer)
