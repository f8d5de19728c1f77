"""``howsmooth split`` and ``howsmooth regimes``, as a new user would call them."""

import json

import numpy as np
import pytest
import torch

import howsmooth as hs


@pytest.fixture
def line(tmp_path):
    path = tmp_path / "line.npz"
    np.savez(path, A=-np.eye(1), V=np.eye(1))
    return str(path)


@pytest.fixture
def atoms(tmp_path):
    path = tmp_path / "mu.json"
    path.write_text('{"points": [[-5.3], [-0.5]], "weights": [0.5, 0.5]}', encoding="utf-8")
    return str(path)


def test_the_answer_is_the_first_line(howsmooth, line, atoms):
    done = howsmooth("split", line, "--measure", atoms)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "The measure splits at atom 1: split 1.7569, move 1.1978, constant 1.7569."


def test_a_measure_saved_as_tensors_is_read(howsmooth, line, tmp_path):
    path = str(tmp_path / "mu.safetensors")
    hs.transport.DiscreteMeasure(torch.tensor([[-5.3], [-0.5]]).double()).save(path)
    done = howsmooth("split", line, "--measure", path)
    assert done.out.startswith("The measure splits at atom 1"), done.err


def test_json_is_all_there_is(howsmooth, line, atoms):
    found = json.loads(howsmooth("split", line, "--measure", atoms, "--json").out)
    assert found["splits"]
    assert found["splitting"]["split"] == pytest.approx(1.7569, abs=1e-4)
    rows = json.loads(howsmooth("regimes", line, "--radius", "2", "--lengths", "10,100", "--json").out)["rows"]
    assert [row["n"] for row in rows] == [10, 100]


@pytest.mark.slow
def test_figures_are_drawn(howsmooth, line, tmp_path):
    done = howsmooth("split", "--map-1d", "A=-1,V=1", "--figure", str(tmp_path / "map.svg"))
    assert done.out.splitlines()[0] == "8.3 % of the pairs in [−6, 6]² split (A = −1, V = 1)"
    assert (tmp_path / "map.svg").read_text(encoding="utf-8").startswith("<svg")
    done = howsmooth("regimes", line, "--radius", "2", "--lengths", "10,100,3000", "--figure", str(tmp_path / "r.svg"))
    assert done.out.startswith("At n = 3,000 the largest constant found is ")
    assert "with atoms as light as one token of 8,944; no measure exceeds " in done.out
    assert (tmp_path / "r.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["split", "--map-1d", "B=1"], "A=-1,V=1"),
        (["split", "--map-1d", "V=1"], "needs A"),
        (["split", "--map-1d", "A=-1", "--figure", "x.bmp"], "change the ending"),
        (["split", "--map-1d", "A=-1", "--figure", "nowhere/x.svg"], "no folder"),
        (["split", "LINE"], "--measure"),
        (["split", "LINE", "--measure", "nothing.json"], "is not there"),
        (["split", "LINE", "--measure", "LINE"], ".json or .safetensors"),
        (["split", "LINE", "--measure", "ATOMS", "--eps", "0"], "eps must be positive"),
        (["split", "LINE", "--measure", "ATOMS", "--figure", "x.svg"], "nothing to draw"),
        (["regimes", "LINE", "--radius", "0"], "radius"),
        (["regimes", "LINE", "--radius", "2", "--lengths", "3,x"], "whole numbers"),
        (["regimes", "LINE", "--radius", "2", "--lengths", "1"], "at least 3"),
        (["regimes", "--radius", "2"], "give a model and its --layer"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_sentence_and_exit_code_two(howsmooth, arguments, words, line, atoms, tmp_path):
    done = howsmooth(*(part.replace("LINE", line).replace("ATOMS", atoms) for part in arguments))
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["line.npz", "mu.json"]
