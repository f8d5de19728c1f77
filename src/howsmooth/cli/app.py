"""Where the command line begins: nothing is imported before Ctrl-C ends it quietly."""

from howsmooth.cli.interrupts import ending_quietly


def main() -> None:
    """Run the command line."""
    with ending_quietly():
        from howsmooth.cli.parser import run

        run()
