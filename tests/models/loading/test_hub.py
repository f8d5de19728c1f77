"""Hubs out of reach: told within seconds, and no obstacle to what lies in the local cache."""

import os
import socket
import subprocess
import sys
import time
from textwrap import indent

import pytest
import transformers
from models.small_models import CONFIGS

SAY = """
import time, sys
from howsmooth.models.loading.names import check_model
import howsmooth as hs
begin = time.monotonic()
try:
    {call}
except hs.errors.HowsmoothError as error:
    print(error.field, error)
print(time.monotonic() - begin, "torch" in sys.modules)
"""


@pytest.fixture
def silent():
    """A server that takes every call and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed():
    """An address where nobody listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def run(call, *, endpoint, cache, **more):
    """Run a call in a process that knows no other hub; return what it said and how long it took there."""
    left_out = ("HF_", "TRANSFORMERS_", "HUGGINGFACE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    env = kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "OMP_NUM_THREADS": "1"} | more
    program = SAY.format(call=indent(call, "    ").lstrip())
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    *words, last = done.stdout.splitlines()
    seconds, torch = last.split()
    return "\n".join(words), float(seconds), torch == "True"


@pytest.mark.slow
@pytest.mark.parametrize("hub", ["silent", "closed"])
@pytest.mark.clock("a hub is given up within seconds")
def test_an_unknown_id_is_refused_within_seconds_and_without_torch(hub, request, tmp_path):
    endpoint = request.getfixturevalue(hub)
    begin = time.monotonic()
    words, seconds, torch = run("check_model('nobody/nothing')", endpoint=endpoint, cache=tmp_path)
    assert time.monotonic() - begin < 8
    assert seconds < 5
    assert not torch
    assert words.startswith("model no model 'nobody/nothing': ")
    assert f"{endpoint} does not answer" in words


@pytest.mark.clock("a hub is given up within seconds")
def test_no_hub_is_asked_where_that_is_forbidden(silent, tmp_path):
    words, seconds, _torch = run("check_model('nobody/nothing')", endpoint=silent, cache=tmp_path, HF_HUB_OFFLINE="1")
    assert seconds < 2
    assert "HF_HUB_OFFLINE is set" in words


LOAD = """
from transformers import AutoModel, AutoTokenizer, BertModel
for name in ("somebody/small", "nobody/nothing"):
    begin = time.monotonic()
    try:
        model = hs.load(name)
        print(len(model.layers), model.notes)
    finally:
        print(time.monotonic() - begin)
"""


@pytest.mark.slow
@pytest.mark.clock("a hub is given up within seconds")
def test_of_a_silent_hub_the_local_cache_is_loaded_and_an_unknown_id_refused_within_seconds(silent, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "hub" / "models--somebody--small"
    transformers.AutoModel.from_config(CONFIGS["bert"]()).save_pretrained(home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    words, _seconds, _torch = run(LOAD, endpoint=silent, cache=tmp_path)
    loaded, seconds, refused_within, refusal = words.splitlines()
    assert loaded == "2 (\"no hub was within reach: 'somebody/small' is the copy in the local cache\",)"
    assert float(seconds) < 20  # the hub's client would try for a minute for each file
    assert float(refused_within) < 8
    assert refusal.startswith("model no model 'nobody/nothing': ")
    assert f"{silent} does not answer" in refusal
