"""Verdicts, the properties that they are about, and what reads files of others."""

from howsmooth.verification.onnx_network import read_module as read_module
from howsmooth.verification.onnx_network import read_onnx as read_onnx
from howsmooth.verification.properties import Property as Property
from howsmooth.verification.properties import read_vnnlib as read_vnnlib
from howsmooth.verification.verdicts import Verdict as Verdict
from howsmooth.verification.verdicts import verify as verify

__all__: list[str]
