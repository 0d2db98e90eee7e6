#!/bin/sh
# Runs test_serve.py where nothing outside can be reached or reaches in: in namespaces that have a loopback interface alone,
# and whose processes end with the test. 77 (skipped) where pip cannot get Ray, or the system gives no such namespace.
#
#   run.sh FOLDER SOURCE      FOLDER keeps the environment that Ray is installed in
folder=$1 source=$2
python=$folder/venv/bin/python
unshare --map-root-user --net --pid --fork --mount-proc true 2>/dev/null || { echo "skipped: no namespaces for users"; exit 77; }
if ! "$python" -c "import ray.serve" 2>/dev/null; then
  rm -rf "$folder/venv"
  if ! { python3 -m venv "$folder/venv" && "$python" -m pip install -q -r "$source/examples/serve/requirements.txt"; } >"$folder/pip.log" 2>&1; then
    rm -rf "$folder/venv"
    echo "skipped: Ray cannot be installed; see $folder/pip.log"
    exit 77
  fi
fi
exec unshare --map-root-user --net --pid --fork --mount-proc "$python" "$source/tests/serve/test_serve.py"
