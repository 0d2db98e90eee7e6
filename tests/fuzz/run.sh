#!/bin/sh
# Builds every fuzz target and runs each for SECONDS, as many at once as there are processors:
#   tests/fuzz/run.sh SECONDS [BUILD_DIR [TARGET]]          TARGET: that one alone, which is built
# Fails on the first finding; the input that showed it is then in BUILD_DIR/findings. New inputs are kept in
# BUILD_DIR/corpus, where the next run takes them up. Those that reach new code join the committed corpus by
#   BUILD_DIR/tests/fuzz/NAME -merge=1 -use_counters=0 -max_len=4096 tests/fuzz/corpus/NAME BUILD_DIR/corpus/NAME
set -eu
seconds=${1:?usage: run.sh SECONDS [BUILD_DIR [TARGET]]}
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=${2:-$source/build/fuzz}

if [ $# -lt 3 ]; then
  (cd "$source" && cmake --preset fuzz -B "$build" -DQUIRE_UNITY=ON)
  cmake --build "$build" --target quire_fuzz_targets
  mkdir -p "$build/findings"
  for file in "$here"/fuzz_*.cc; do basename "$file" .cc; done |
    xargs -n 1 -P "$(nproc)" sh "$here/run.sh" "$seconds" "$build"
  exit
fi

name=$3
mkdir -p "$build/corpus/$name"
# The first folder takes new inputs, the others only give seeds.
set -- "$build/corpus/$name" "$here/corpus/$name"
if [ "$name" = fuzz_tokenizer_model ]; then set -- "$@" "$source/tests/data/tokenizers"; fi
if [ -f "$here/corpus/$name.dict" ]; then set -- "$@" "-dict=$here/corpus/$name.dict"; fi
if ! "$build/tests/fuzz/$name" "$@" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$build/findings/$name-" >"$build/$name.log" 2>&1; then
  tail -n 60 "$build/$name.log"
  echo "$name: a finding" >&2
  exit 255  # by which xargs begins no other one
fi
echo "$name for $seconds s: $(sed -n 's/^stat:://p' "$build/$name.log" | grep -E 'number_of_executed_units|peak_rss_mb' | tr -s ' \n' ' ')"
