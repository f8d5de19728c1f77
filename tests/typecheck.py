"""The type checker of the tests: beartype, for which a whole number is a float, as for every other checker."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
