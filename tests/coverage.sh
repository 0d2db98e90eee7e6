#!/usr/bin/env bash
# What the fast tests run of lib/ and kernels/: lines and branches, as gcc counts them.
#
#   bash tests/coverage.sh           build, run the fast tests, report
#   bash tests/coverage.sh --report  report again on what the last run counted
#
# Prints a table by file and the totals; build/coverage/uncovered.txt lists, by file, the lines that never ran and the
# branches that were never taken. Not counted as branches: exceptions (each call has one), lines without code of their
# own, and lines with QUIRE_TRY or QUIRE_ASSIGN, whose other way is to pass a failure on (a condition before the macro
# is left out with the line). Counted, though no test can take them: the failing way of an assert, and some branches that
# the optimiser makes (-O1: the tests would be too slow without). Other people's sources are left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  "" | --report) ;;
  *) echo "usage: bash tests/coverage.sh [--report]" >&2; exit 2 ;;
esac

build=build/coverage
jobs=$(nproc)
gcovr=build/gcovr/bin/gcovr
if [ ! -x "$gcovr" ]; then
  python3 -m venv build/gcovr
  build/gcovr/bin/pip install --quiet gcovr==8.8
fi

if [ "${1:-}" != --report ]; then
  cmake --preset coverage >/dev/null
  cmake --build --preset coverage -j "$jobs" | tail -n 1
  find "$build" -name '*.gcda' -delete
  ctest --test-dir "$build" -L fast --output-on-failure --no-tests=error -j "$jobs"
fi

"$gcovr" --root . "$build/lib" "$build/kernels" --filter 'lib/' --filter 'kernels/' --exclude 'lib/third_party/' \
  --exclude-throw-branches --exclude-unreachable-branches --exclude-branches-by-pattern '.*QUIRE_(TRY|ASSIGN)\(.*' \
  --gcov-ignore-parse-errors all -j "$jobs" --json "$build/coverage.json" --txt - --txt-metric branch \
  --print-summary
python3 tests/uncovered.py "$build/coverage.json" >"$build/uncovered.txt"
echo "What is not covered, by file: $build/uncovered.txt"
