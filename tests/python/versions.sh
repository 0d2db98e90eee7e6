#!/bin/sh
# The tests of the Python binding on each CPython from 3.9 on that is found, in PATH or by pyenv; those that are
# free-threaded too. 77 (skipped) where there is none.
#
#   versions.sh          QUIRE_LIBRARY and PYTHONPATH say what is tested
here=$(dirname "$0")
tested="" failed=""
for version in 3.9 3.10 3.11 3.12 3.13 3.13t 3.14 3.14t; do
  # pyenv's programs in PATH may be there and name no version, so the question is whether it runs.
  for python in "python$version" $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"python$version" 2>/dev/null); do
    "$python" -c "import ctypes" 2>/dev/null || continue
    echo "== $("$python" -VV)"
    tested="$tested $version"
    "$python" "$here/run.py" || failed="$failed $version"
    break
  done
done
[ -n "$tested" ] || { echo "skipped: no CPython from 3.9 on"; exit 77; }
echo "tested on$tested"
[ -z "$failed" ] || { echo "failed on$failed"; exit 1; }
