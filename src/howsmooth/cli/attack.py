"""``howsmooth attack``: what an adversary attains, beside what the constant predicts and what the theory allows."""

from typing import TYPE_CHECKING

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
from howsmooth.cli.runs_here import fill, hands, run_folder, tell_results
from howsmooth.studies.plans.attacking import Attacking

if TYPE_CHECKING:
    from howsmooth.studies.plans.attack import PlannedAttacks
    from howsmooth.studies.records import Record
    from howsmooth.studies.resources import Resources


@takes(Attacking, argument=("model", ArgumentModel))
def attack(
    attacking: Attacking,
    workers: OptionWorkers = 0,
    scheduler: OptionScheduler = None,
    tls: OptionTls = None,
    retry_failed: OptionRetry = False,
    as_json: OptionJson = False,
    out: OptionOut = None,
) -> None:
    """Attack a map of a model at real text: what is attained, predicted and allowed, for each unit of eps.

    Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

    Example: howsmooth attack minilm --layer 4 --eps 0.1,1,10 --norm token --lengths 16 --sequences 5
    """
    attacking.check()
    folder = run_folder(attacking, out)

    def plan(resources: "Resources") -> "PlannedAttacks":
        from howsmooth.studies.plans.attack import planned_attacks

        return planned_attacks(attacking, resources)

    def tell(records: "list[Record]") -> None:
        from howsmooth.studies.runs.attacks import attacked

        tell_results(attacked(records), folder, records=len(records), name="attacks", as_json=as_json)

    who = hands(attacking, workers, scheduler, tls)
    fill(plan, folder, who, retry_failed=retry_failed, tell=tell, done="attacked")
