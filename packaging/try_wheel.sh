#!/usr/bin/env bash
# Install a wheel into an empty environment and let it do what a new user would: try_wheel.sh WHEEL [PIP OPTION …]
set -euo pipefail
wheel=$(realpath "$1")
shift
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
cd "$home" # nothing of the sources beside us
python3 -m venv empty
# torch for the CPU first: elsewhere it comes with gigabytes for other hardware
empty/bin/pip install --quiet torch --extra-index-url https://download.pytorch.org/whl/cpu "$@"
empty/bin/pip install --quiet "$wheel" "$@"
empty/bin/howsmooth --version
empty/bin/howsmooth measure reviews --lengths 8 --sequences 2 --out run
test -s run/report.html
began=$SECONDS
empty/bin/howsmooth card reviews --out card
for file in howsmooth.json smoothness.md card.html .eval_results/howsmooth.yaml; do test -s "card/$file"; done
echo "The card took $((SECONDS - began)) seconds."
empty/bin/python - <<'PYTHON'
import torch

import howsmooth as hs

layer = hs.Attention.random(heads=2, d=8)
tokens = torch.randn(5, 8)
found = hs.local_lipschitz(layer, tokens)
assert 0 < float(found.lower) <= float(found.upper)
print(found)
PYTHON
echo "The wheel works alone."
