"""Tables of bounds have a version: nothing that they say changes without it."""

import json

import pytest
from theory.known_bounds import FILE, computed

from howsmooth.theory.tables import VERSION

CHANGED = (
    "what theorems say has changed: raise VERSION in theory/tables.py, so that bounds that runs keep are computed anew, "
    f"and write {FILE.name} anew (known_bounds.py says how)"
)
# Logarithms. Formulas agree to 1e-11 with any instructions and threads; where the search for a tied pair ends
# differs by up to 0.022 between processors.
ROUNDING, SEARCH = 1e-9, 0.05


@pytest.mark.slow
def test_no_bound_changes_without_the_version():
    known = json.loads(FILE.read_text(encoding="utf-8"))
    assert known["version"] == VERSION, CHANGED
    found = computed()
    assert found.keys() == known["bounds"].keys()
    for name, bounds in known["bounds"].items():
        assert found[name].keys() == bounds.keys(), (name, CHANGED)
        for theorem, value in bounds.items():
            tolerance = SEARCH if theorem == "sharp_lower" else ROUNDING
            assert found[name][theorem] == pytest.approx(value, rel=0, abs=tolerance), (name, theorem, CHANGED)
