"""``howsmooth show``: the answer of a run again."""

import json
from typing import Annotated

import typer

from howsmooth.cli.options import OptionJson
from howsmooth.cli.printing import print_json, say


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")], as_json: OptionJson = False
) -> None:
    """Show the answer of a run again: constants, growth and bounds of each layer, and every other kind of record.

    Example: howsmooth show runs/minilm-attention-1a2b3c
    """
    from howsmooth.cli.answers import print_answer, print_records, say_failures
    from howsmooth.studies.runs.export import flat
    from howsmooth.studies.runs.reading import read_run

    found = read_run(run)
    told = {record.ask.key for m in found.measurements for record in (*m.records, *m.heads)}
    others = [record for record in found.records if record.ask.key not in told]
    if as_json:
        measured = [json.loads(measurement.to_json()) for measurement in found.measurements]
        print_json({"measurements": measured, "records": [flat(record) for record in others]})
        return
    for measurement in found.measurements:
        print_answer(measurement)
    for kind in sorted({record.ask.kind for record in others}):
        print_records(kind, [record for record in others if record.ask.kind == kind])
    if not found.records:
        say(f"Nothing in {run} is answered yet; of {found.planned} planned.")
    say_failures(found.failures)
