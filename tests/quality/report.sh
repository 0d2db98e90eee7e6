#!/usr/bin/env bash
# Writes tests/quality/report.md: what each paper shows, on models trained here. About twenty minutes on two cores.
# Arguments go to the report (--check, --quick, --only GROUP; see tests/quality/report/__main__.py); without any, what
# longheads reads is counted anew too (report/kv_read.json).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake --preset release >/dev/null
cmake --build --preset release --target quire_command quire_shared
if [ ! -x build/report/bin/python ]; then
  python3 -m venv build/report
  build/report/bin/pip install --quiet -r tests/quality/report/requirements.txt
fi
library=build/release/lib/abi/libquire.so
[ $# -gt 0 ] || build/report/bin/python tests/quality/report/kv_read.py --library $library
build/report/bin/python tests/quality/report --quire build/release/bin/quire --library $library "$@"
