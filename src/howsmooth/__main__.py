"""``python -m howsmooth``: the command line."""

from howsmooth.cli.app import main

main()
