import subprocess
import sys

import pytest
import torch

import howsmooth as hs
from howsmooth.errors import AssumptionError
from howsmooth.spectral.solver_settings import check_solver

pytestmark = pytest.mark.untyped

BAD = [
    ("rtol", None, "a number between 0 and 1"),
    ("rtol", "1e-3", "a number between 0 and 1"),
    ("rtol", True, "a number between 0 and 1"),
    ("rtol", 1e-300, "at least 7.1e-15 in float64"),
    ("rtol", 0.0, "at least 7.1e-15"),
    ("rtol", -1.0, "at least 7.1e-15"),
    ("rtol", float("nan"), "at least 7.1e-15"),
    ("rtol", 1.0, "less than 1"),
    ("rtol", float("inf"), "less than 1"),
    ("confidence", None, "strictly between 0 and 1, got None"),
    ("confidence", "0.9", "strictly between 0 and 1, got '0.9'"),
    ("confidence", 1.0, "strictly between 0 and 1"),
    ("confidence", 0.0, "strictly between 0 and 1"),
    ("confidence", float("nan"), "strictly between 0 and 1"),
    ("confidence", 1 - 2**-53, "at most 1 - 1e-15"),
    ("max_steps", None, "a whole number, at least 1, got None"),
    ("max_steps", 0, "at least 1, got 0"),
    ("max_steps", -1, "at least 1, got -1"),
    ("max_steps", 3.0, "at least 1, got 3.0"),
    ("max_steps", "9", "at least 1, got '9'"),
    ("max_steps", True, "at least 1, got True"),
]


@pytest.mark.parametrize(("field", "value", "told"), BAD)
def test_a_setting_that_cannot_be_is_refused_by_its_name(field, value, told):
    with pytest.raises(AssumptionError, match=told) as refusal:
        check_solver(**{field: value})
    assert refusal.value.field == field


@pytest.mark.parametrize(("field", "value", "told"), BAD)
def test_a_measurement_refuses_before_the_map_is_evaluated(field, value, told):
    def never(X):
        raise RuntimeError("evaluated")

    with pytest.raises(AssumptionError, match=told) as refusal:
        hs.local_lipschitz(never, torch.ones(2, 2), **{field: value})
    assert refusal.value.field == field


@pytest.mark.parametrize("solve", [hs.spectral_norm, hs.singular_values])
@pytest.mark.parametrize(("field", "value", "told"), BAD)
def test_every_solver_refuses_alike(solve, field, value, told):
    with pytest.raises(AssumptionError, match=told):
        solve(hs.maps.Dense(torch.eye(3, dtype=torch.float64)), **{field: value})


def test_what_float64_can_reach_float32_may_not():
    check_solver(rtol=1e-10)
    with pytest.raises(AssumptionError, match="in float32, got 1e-10; use float64") as refusal:
        hs.spectral_norm(hs.maps.Dense(torch.eye(3)), rtol=1e-10)
    assert refusal.value.field == "rtol"


def test_the_extremes_that_are_allowed_work(rng):
    matrix = torch.diag(torch.arange(1.0, 7.0, dtype=torch.float64))
    found = hs.spectral_norm(hs.maps.Dense(matrix), rtol=1e-13, confidence=1 - 1e-15, max_steps=200, seed=rng)
    assert float(found.lower) <= 6 * (1 + 1e-15) <= float(found.upper) * (1 + 1e-14)


def test_settings_are_checked_without_torch():
    code = "import sys; from howsmooth.spectral.solver_settings import check_solver as c; c(rtol=1e-3); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
