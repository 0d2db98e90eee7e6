#!/bin/sh
# mypy --strict over the Python package and typed_use.py. 77 (skipped) where mypy cannot be had.
#
#   types.sh FOLDER SOURCE      FOLDER keeps mypy and what it has seen
folder=$1 source=$2
python=$folder/venv/bin/python
if ! [ -x "$folder/venv/bin/mypy" ]; then
  rm -rf "$folder/venv"
  if ! { python3 -m venv "$folder/venv" && "$python" -m pip install -q 'mypy>=1.8' 'typing_extensions>=4.4'; } >"$folder.log" 2>&1; then
    rm -rf "$folder/venv"
    echo "skipped: mypy cannot be installed; see $folder.log"
    exit 77
  fi
fi
MYPYPATH=$source/bindings/python exec "$python" -m mypy --config-file "$source/bindings/python/pyproject.toml" --strict \
  --cache-dir "$folder/cache" "$source/bindings/python/quire" "$source/tests/python/typed_use.py"
