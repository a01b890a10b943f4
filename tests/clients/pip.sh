#!/bin/sh
# URL: installs openshell-tiny from the simple index at URL, and uses it.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_RETRIES=0
"${PYTHON:-python3}" -m pip install -q --target "$directory" --index-url "$1" openshell-tiny
PYTHONPATH="$directory" "${PYTHON:-python3}" -c 'import openshell_tiny; print(openshell_tiny.REACHED, "pip")'
