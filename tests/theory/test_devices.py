import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.backend_registration

import howsmooth as hs
from howsmooth.errors import DeviceError

META = {"device": "meta", "dtype": torch.float64}


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot pretend to have a second device",
)
def test_the_theory_answers_on_another_device_as_on_the_cpu():
    # in a process of its own: a device that is registered stays
    script = Path(__file__).parent / "on_another_device.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("answers")


@pytest.mark.parametrize(
    "ask",
    [
        lambda f: hs.bounds.sharp_upper(f, n=3, radius=1.0),
        lambda f: hs.bounds.table(f, n=3, radius=1.0),
        lambda f: hs.bounds.sharp_mean_field_lower(f, radius=1.0),
        lambda f: hs.bounds.local_upper(f, torch.ones(3, 2, **META)),
        lambda f: hs.inputs.tied_pair(f, 3, 1.0),
        lambda f: hs.inputs.equal_tokens(f, 3, 1.0),
        lambda f: hs.bracket(f, n=3, radius=1.0),
    ],
)
def test_weights_without_numbers_are_refused_in_one_sentence(ask):
    f = hs.Attention.single_head(A=torch.ones(2, 2, **META), V=torch.ones(2, 2, **META))
    with pytest.raises(DeviceError, match="meta device, which holds none") as refusal:
        ask(f)
    assert refusal.value.field in ("attention", "X")
