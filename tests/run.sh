#!/usr/bin/env bash
# Builds Quire and runs its tests.
#
#   bash tests/run.sh         release and ASan+UBSan builds, fast tests in both (the latter without the quire command and
#                             the CUDA kernels)
#   bash tests/run.sh --all   also these in the ASan+UBSan build, clang, TSan, the tests that take long in sanitized
#                             builds (labels "deferred" and "long"), the slow tests, fuzzing, clang-tidy, and the
#                             kernels for aarch64; and builds the benchmarks; some three hours on two cores
#
# Without --all it stops at the first failure with its status; otherwise the last lines are the CTest summary of the
# ASan+UBSan run. With --all it goes on after a failure; the last lines say how many steps failed, and which.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=false
case "${1:-}" in
  "") ;;
  --all) all=true ;;
  *) echo "usage: bash tests/run.sh [--all]" >&2; exit 2 ;;
esac
[ $# -le 1 ] || { echo "usage: bash tests/run.sh [--all]" >&2; exit 2; }

jobs=$(nproc)
step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

# check NAME COMMAND...: a step of the run.
failed=()
check() {
  local name=$1 status=0
  shift
  step "$name"
  "$@" || status=$?
  if [ $status -eq 0 ]; then return; fi
  echo "$name: failed with status $status" >&2
  $all || exit $status
  failed+=("$name")
}

# compile PRESET [OPTION...]: quiet unless it fails.
compile() {
  local log=build/$1.log
  mkdir -p build
  if ! { cmake --preset "$@" && cmake --build --preset "$1" -j "$jobs"; } >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "building preset $1 failed; all of its output is in $log" >&2
    return 1
  fi
}

build() { check "build $1" compile "$@"; }

# run_tests PRESET LABEL
run_tests() {
  check "ctest -L $2 ($1)" ctest --test-dir "build/$1" -L "$2" --output-on-failure --no-tests=error -j "$jobs"
}

# A fake stack of 128 KiB for frames of each size: the default of 1 MiB, mapped for each thread of each session, takes a
# fifth of the time.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:max_uar_stack_size_log=17:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}

if $all; then
  bash cmake/debian-packages.sh build test all
else
  bash cmake/debian-packages.sh build test
fi
# Debian's Go is too old for the binding. Where none can be had its tests are skipped, as those of other languages are.
(. tests/go/find_go.sh) >/dev/null || sh tests/go/get_go.sh >/dev/null || echo "no Go could be fetched" >&2

# Sources are compiled several at a time, which takes half the time; one that lacks an include is found by clang, which
# compiles each by itself. Without --all the CUDA kernels are compiled for one architecture: the next `cmake --preset release`
# has all of them again.
if $all; then
  build release -DQUIRE_UNITY=ON -DQUIRE_BENCH=ON
else
  build release -DQUIRE_UNITY=ON -DQUIRE_CUDA_ARCHITECTURES=90a-real
fi
run_tests release fast
build asan-ubsan -DQUIRE_EXAMPLES=$($all && echo ON || echo OFF) -DQUIRE_UNITY=ON
run_tests asan-ubsan fast
$all || exit 0

run_tests asan-ubsan 'deferred|long'
build clang -DQUIRE_UNITY=OFF -DQUIRE_AMX=ON -DQUIRE_CUDA_ARCHITECTURES=90a-real
run_tests clang fast
build tsan -DQUIRE_UNITY=ON
run_tests tsan fast
run_tests tsan 'deferred|long'
check "fuzzing" sh tests/fuzz/run.sh 30
check "clang-tidy" bash tests/tidy.sh
check "aarch64 kernels in QEMU" bash tests/aarch64/run.sh
run_tests release slow

step "${#failed[@]} of the steps failed"
if [ ${#failed[@]} -gt 0 ]; then
  printf '%s\n' "${failed[@]}"
  exit 1
fi
