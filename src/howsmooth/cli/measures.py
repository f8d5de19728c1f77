"""A discrete measure from files: tokens and masses, or one that was saved."""

from pathlib import Path
from typing import TYPE_CHECKING

from howsmooth.cli.matrices import read_matrix, split_source
from howsmooth.errors import AssumptionError, FileError, ShapeError
from howsmooth.files import read_bytes, require_size

if TYPE_CHECKING:
    from howsmooth.transport.measures import DiscreteMeasure

ENDINGS = (".json", ".safetensors")


def check_measure(tokens: str | None, masses: str | None, measure: str | None) -> None:
    """Refuse files that are missing or too many, before any is opened.

    Raises:
        AssumptionError: If the options contradict each other.
        FileError: If a file is not there, or of another kind.
    """
    if (tokens is None) == (measure is None):
        raise AssumptionError(
            "give the atoms, either --tokens FILE[:KEY], a sequence (n, d), or --measure FILE; "
            "or draw --map-1d A=-1,V=1.",
            field="tokens",
        )
    if masses is not None and measure is not None:
        raise AssumptionError("a saved measure has masses of its own; leave --masses out.", field="masses")
    for source in (tokens, masses):
        if source is not None:
            split_source(source)
    if measure is not None:
        _check_saved(Path(measure))


def read_measure(tokens: str | None, masses: str | None, measure: str | None, *, causal: bool) -> "DiscreteMeasure":
    """Read a measure; a sequence that masked attention sees has positions too."""
    from howsmooth.transport.measures import DiscreteMeasure

    if measure is not None:
        return _load(Path(measure))
    points = read_matrix(tokens or "", "tokens")
    if points.ndim != 2:
        raise ShapeError(f"tokens must be a sequence, (n, d), got the shape {tuple(points.shape)}.", field="tokens")
    weights = None if masses is None else read_matrix(masses, "masses").to(points)
    if weights is not None and weights.shape != points.shape[:1]:
        raise ShapeError(
            f"masses must have one entry for each of {len(points)} tokens, got {tuple(weights.shape)}.", field="masses"
        )
    return DiscreteMeasure(points, weights, DiscreteMeasure.from_sequence(points, causal=causal).positions)


def _check_saved(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise FileError(f"a measure is a {' or '.join(ENDINGS)} file, got {str(path)!r}.", field="measure")
    if not path.is_file():
        raise FileError(f"there is no file {str(path)!r}.", field="measure")


def _load(path: Path) -> "DiscreteMeasure":
    from howsmooth.transport.measures import DiscreteMeasure

    if path.suffix == ".safetensors":
        require_size(path, "a measure", field="measure")
        return DiscreteMeasure.load(path)
    try:
        return DiscreteMeasure.from_json(read_bytes(path, "a measure", field="measure").decode())
    except UnicodeDecodeError as error:
        raise FileError(f"{str(path)!r} cannot be read: {error}.", field="measure") from error
    except RecursionError as error:
        raise FileError(f"{str(path)!r} is nested too deeply for a measure.", field="measure") from error
    except (OverflowError, RuntimeError) as error:  # torch says it in one way or the other
        raise FileError(f"{str(path)!r} holds a number that is too large for a float.", field="measure") from error
