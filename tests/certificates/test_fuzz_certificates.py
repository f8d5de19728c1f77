"""A share of the attacks of ``fuzz.py``, which by hand takes as long as it is given."""

import pytest
from certificates.fuzz import attack


# the last two are wild, and trained
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 2, 9])
def test_nothing_contradicts_what_is_proven(seed):
    found = attack(seed, radii=(1.0, 6.0), steps=4)
    assert found.points > 300
    assert found.certified > 0
    assert found.worst >= 0, found.what
    assert found.shares.worst <= 1, (found.what, found.shares.largest)
