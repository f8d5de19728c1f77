#!/usr/bin/env bash
# install_tool.sh v1: set the tool up. Needs Python 3.11 and make.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "Expected the version v1 as the first argument, got '${1:-}'." >&2; exit 1; }
make --directory "$(dirname "$0")/../.." setup
