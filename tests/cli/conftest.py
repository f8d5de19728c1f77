"""What every test of a command may use: the command line, and a head in a file."""

import functools

import pytest
import torch
from command_line import howsmooth as howsmooth
from safetensors.torch import save_file
from small import bounds_once as bounds_once

import howsmooth as hs


@pytest.fixture
def matrices(rng):
    """A head of the theory: A = −I bent a little, and a rectangular V."""
    A = -torch.eye(4, dtype=torch.float64) + 0.1 * torch.randn(4, 4, dtype=torch.float64, generator=rng)
    return {"A": A, "V": torch.randn(3, 4, dtype=torch.float64, generator=rng)}


@pytest.fixture
def layer(rng):
    """Two heads of four dimensions on tokens of eight."""
    return hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)


@pytest.fixture
def head(matrices, howsmooth):
    """The arguments that name a good file in the current folder."""
    save_file(matrices, "head.safetensors")
    return ["head.safetensors"]


@pytest.fixture(scope="session")
def kept_models():
    from howsmooth.studies import resources

    return functools.cache(resources.load)


@pytest.fixture
def loaded_once(kept_models, monkeypatch):
    """Let commands share the models that they load from folders that do not change."""
    monkeypatch.setattr("howsmooth.studies.resources.load", kept_models)


@pytest.fixture
def blank_page(monkeypatch):
    """Leave out what stands on a page, which has tests of its own and takes longer than a small measurement."""
    monkeypatch.setattr("howsmooth.report.page.render", lambda run: "<!doctype html>\n")
