"""What every benchmark prints at its end, and how it is called."""

import argparse
import sys


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the one option that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="the smallest size, to see that the script runs")
    return parser


def quick(description: str | None) -> bool:
    """Parse the one option that every benchmark has."""
    return bool(options(description).parse_args().quick)


def verdict(claims: dict[str, bool], *, quick: bool) -> None:
    """Print which claims hold; exit with 1 if one does not (timings at the smallest size prove nothing)."""
    for claim, holds in claims.items():
        print(f"{'holds ' if holds else 'FAILS '} {claim}")
    if not quick and not all(claims.values()):
        sys.exit(1)
