#!/bin/sh
# Stores the client in Python, with the binding's raw layer, as that of VERSION: make.sh VERSION
set -eu
here=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/client.py" "$here/../../../../bindings/python/quire/_ffi.py" "$folder"
"$here/../store.sh" "$1" python "$folder" 'python3 client.py' 'command -v python3' python3
