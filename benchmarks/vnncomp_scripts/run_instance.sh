#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY NETWORK.onnx PROPERTY.vnnlib RESULTS TIMEOUT: write sat, unsat, unknown or error to RESULTS.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "Expected the version v1 as the first argument, got '${1:-}'." >&2; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
code=0
"${PYTHON:-$root/.venv/bin/python}" -m howsmooth verify "$3" "$4" --results "$5" --timeout "$6" || code=$?
# 0 proven, 1 falsified, 3 unknown; anything else left no result
case $code in
0 | 1 | 3) ;;
*) echo error >"$5" ;;
esac
