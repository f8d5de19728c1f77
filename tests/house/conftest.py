"""Documents and examples call the command line too."""

from command_line import howsmooth as howsmooth
