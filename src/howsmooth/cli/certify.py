"""``howsmooth certify``: how far words may move before a classifier could change its mind, proven."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from howsmooth.cli.declared import takes
from howsmooth.cli.options import (
    ArgumentModel,
    OptionJson,
    OptionOut,
    OptionRetry,
    OptionScheduler,
    OptionTls,
    OptionWorkers,
)
from howsmooth.cli.printing import say
from howsmooth.cli.runs_here import fill, hands, run_folder, tell_results
from howsmooth.studies.plans.certifying import Certifying

if TYPE_CHECKING:
    from howsmooth.studies.plans.certify import PlannedCertificates
    from howsmooth.studies.records import Record
    from howsmooth.studies.resources import Resources

OptionSynonyms = Annotated[
    str | None,
    typer.Option(
        "--synonyms",
        metavar="FILE",
        help='Certify every combination of replacements instead, JSON: {"film": ["movie"]}.',
    ),
]


@takes(Certifying, argument=("model", ArgumentModel))
def certify(
    certifying: Certifying,
    synonyms: OptionSynonyms = None,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    tls: OptionTls = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: OptionOut = None,
) -> None:
    """Certify a classifier at a sentence: how far each word may move before it could change its mind, proven.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

    Example: howsmooth certify reviews --text "a gripping film"
    """
    certifying.check()
    if synonyms is not None:
        from howsmooth.cli.synonyms import certify_synonyms

        sys.exit(certify_synonyms(certifying, synonyms, as_json))
    folder = run_folder(certifying, out)

    def plan(resources: "Resources") -> "PlannedCertificates":
        from howsmooth.studies.plans.certify import planned_certificates

        made = planned_certificates(certifying, resources)
        for said in made.wrong:
            say(said, err=True)
        return made

    def tell(records: "list[Record]") -> None:
        from howsmooth.studies.runs.certificates import certified

        tell_results(certified(records), folder, records=len(records), name="certificates", as_json=as_json)

    who = hands(certifying, workers, scheduler, tls)
    fill(plan, folder, who, retry_failed=retry_failed, tell=tell, done="certified")
