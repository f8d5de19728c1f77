"""``howsmooth split`` and ``howsmooth regimes``, as a new user would call them."""

import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture
def line(tmp_path):
    path = tmp_path / "line.npz"
    np.savez(path, A=-np.eye(1), V=np.eye(1), tokens=np.array([[-5.3], [-0.5]]), masses=np.array([0.5, 0.5]))
    return str(path)


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "howsmooth", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


def test_the_answer_is_the_first_line(line):
    done = run("split", "--A", line, "--V", line, "--tokens", line, "--masses", line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "The measure splits at atom 1: split 1.7569, move 1.1978, constant 1.7569."


def test_a_saved_measure_is_read(line, tmp_path):
    path = tmp_path / "mu.json"
    path.write_text('{"points": [[-5.3], [-0.5]], "weights": [0.5, 0.5]}', encoding="utf-8")
    done = run("split", "--A", line, "--measure", str(path))
    assert done.stdout.startswith("The measure splits at atom 1"), done.stderr


def test_json_is_all_there_is(line):
    found = json.loads(run("split", "--A", line, "--tokens", line, "--json").stdout)
    assert found["splits"]
    assert found["splitting"]["split"] == pytest.approx(1.7569, abs=1e-4)
    rows = json.loads(run("regimes", "--A", line, "--radius", "2", "--lengths", "10,100", "--json").stdout)["rows"]
    assert [row["n"] for row in rows] == [10, 100]


def test_figures_are_drawn(line, tmp_path):
    done = run("split", "--map-1d", "A=-1,V=1", "--figure", str(tmp_path / "map.svg"))
    assert done.stdout.splitlines()[0] == "8.3 % of the pairs in [-6, 6]² split (A = -1, V = 1)"
    assert (tmp_path / "map.svg").read_text(encoding="utf-8").startswith("<svg")
    done = run("regimes", "--A", line, "--radius", "2", "--lengths", "10,100,3000", "--figure", str(tmp_path / "r.svg"))
    assert done.stdout.startswith("The constant stops growing near n = 2981")
    assert (tmp_path / "r.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["split", "--map-1d", "B=1"], "A=-1,V=1"),
        (["split", "--map-1d", "V=1"], "needs A"),
        (["split", "--map-1d", "A=-1", "--figure", "x.bmp"], "change the ending"),
        (["split", "--map-1d", "A=-1", "--figure", "nowhere/x.svg"], "no folder"),
        (["split", "--A", "LINE"], "--tokens"),
        (["split", "--A", "LINE", "--tokens", "nothing.npz"], "no file"),
        (["split", "--A", "LINE", "--tokens", "LINE:token"], "did you mean 'tokens'"),
        (["split", "--A", "LINE", "--tokens", "LINE", "--masses", "LINE:A"], "weights"),
        (["split", "--A", "LINE", "--measure", "nothing.json"], "no file"),
        (["split", "--A", "LINE", "--measure", "LINE"], ".json or .safetensors"),
        (["split", "--A", "LINE", "--measure", "x.json", "--tokens", "LINE"], "either"),
        (["split", "--A", "LINE", "--tokens", "LINE", "--eps", "0"], "eps must be positive"),
        (["split", "--A", "LINE", "--tokens", "LINE", "--figure", "x.svg"], "nothing to draw"),
        (["regimes", "--A", "LINE", "--radius", "0"], "radius"),
        (["regimes", "--A", "LINE", "--radius", "2", "--lengths", "3,x"], "whole numbers"),
        (["regimes", "--A", "LINE", "--radius", "2", "--lengths", "1"], "at least 3"),
        (["regimes", "--radius", "2"], "give the weights"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_sentence_and_exit_code_two(arguments, words, line, tmp_path):
    done = run(*(part.replace("LINE", line) for part in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["line.npz"]
