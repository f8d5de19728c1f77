#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY NETWORK.onnx PROPERTY.vnnlib: an exit code other than 0 skips the instance.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "Expected the version v1 as the first argument, got '${1:-}'." >&2; exit 1; }
for file in "$3" "$4"; do
	[ -r "$file" ] || { echo "There is no file $file." >&2; exit 1; }
done
