"""Documents and examples call the command line too."""

from command_line import howsmooth as howsmooth
from documentation import as_readers_do as as_readers_do
