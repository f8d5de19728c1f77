"""Claim: of the vision transformers of VNN-COMP 2023 more properties are proven, on two cores, than by any tool there.

The files are not ours to ship: ``--folder`` is ``benchmarks/vit`` of the repository of the competition's benchmarks of
2023, unpacked. Every instance has 100 seconds. Published verdicts on the same files: alpha-beta-CROWN 42 + 37, NeuralSAT
49 + 18, PyRAT 29 + 54 (each with a GPU, or more cores).
"""

import argparse
import csv
import gzip
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from timing import report_header  # type: ignore[import-not-found]

import howsmooth as hs
from howsmooth.verification import read_onnx, read_vnnlib

PUBLISHED = {"alpha-beta-CROWN": (42, 37), "NeuralSAT": (49, 18), "PyRAT": (29, 54)}
NETWORKS = ("pgd_2_3_16", "ibp_3_3_8")
