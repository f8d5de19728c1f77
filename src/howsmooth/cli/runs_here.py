"""What commands that fill a run share: where it lies, who does the work, and when its page is written anew."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from howsmooth.studies.plans.attacking import Attacking
    from howsmooth.studies.plans.certifying import Certifying
    from howsmooth.studies.plans.measuring import Measuring


def run_folder(asked: "Measuring | Attacking | Certifying", out: str | None) -> Path:
    """Return where the run lies, after a look whether it can be written there."""
    from howsmooth.studies.runs.folders import check_writable

    check_writable(Path("runs") if out is None else Path(out))
    return asked.folder if out is None else Path(out)


def hands(asked: "Measuring | Attacking | Certifying", workers: int, scheduler: str | None) -> dict[str, Any]:
    """Return who does the work, as an executor takes it; other processes have one thread each unless told."""
    alone = scheduler is None and not workers
    return {"workers": workers, "scheduler": scheduler, "threads": asked.where.threads or (None if alone else 1)}


def page(folder: Path, *, new: bool) -> Path:
    """Return where the page of a run is; one of the same records would be the same, byte by byte."""
    from howsmooth.report.page import FILE, write_report

    if new or not (folder / FILE).is_file():
        write_report(folder)
    return folder / FILE
