"""A share of the attacks of ``fuzz.py``, which by hand takes as long as it is given."""

import pytest
from certificates.fuzz import attack


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_margin_is_below_what_is_proven(seed):
    found = attack(seed)
    assert found.points > 1000
    assert found.certified > 0
    assert found.worst >= 0, found.what
