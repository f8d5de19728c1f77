"""Numbers as they are written on the command line: lists of whole ones, and seeds."""

from howsmooth.errors import AssumptionError

LARGEST_SEED = 2**63 - 1
# More tokens than this are no index of a tensor; what fits into memory is far less.
LARGEST = 2**53


def whole_numbers(text: str, option: str, *, least: int = 0) -> list[int]:
    """Read ``0,2,5``.

    Args:
        text: The numbers, with commas between them.
        option: The option they were given to, as in ``--layers``.
        least: The smallest number that makes sense there.

    Raises:
        AssumptionError: If there is anything else, or a number is out of range.

    Example:
        >>> whole_numbers("8,16", "--lengths")
        [8, 16]
    """
    field = option.lstrip("-").replace("-", "_")
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise AssumptionError(
            f"{option} takes whole numbers with commas between them, as in 0,2,5, got {text!r}.", field=field
        ) from None
    if min(numbers) < least:
        raise AssumptionError(f"{option} must be at least {least}, got {min(numbers)}.", field=field)
    if max(numbers) > LARGEST:
        raise AssumptionError(f"{option} must be at most 2^53, got {max(numbers)}.", field=field)
    return numbers


def numbers(text: str, option: str) -> list[float]:
    """Read ``0.01,1,10``.

    Raises:
        AssumptionError: If there is anything else.

    Example:
        >>> numbers("0.1,1", "--eps")
        [0.1, 1.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise AssumptionError(
            f"{option} takes numbers with commas between them, as in 0.1,1,10, got {text!r}.",
            field=option.lstrip("-").replace("-", "_"),
        ) from None


def require_seed(seed: int) -> None:
    """Refuse what no source of randomness can begin with."""
    if not 0 <= seed <= LARGEST_SEED:
        raise AssumptionError(f"--seed must be between 0 and 2^63 - 1, got {seed}.", field="seed")
