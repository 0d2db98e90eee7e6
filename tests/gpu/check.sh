#!/usr/bin/env bash
# Tests and benchmarks on a machine with a GPU, with programs that were built on one without.
#
#   bash tests/gpu/check.sh build          builds into build/gpu-check, which holds all that the other machine needs
#   bash tests/gpu/check.sh run [OUT]      there: runs the tests with the label "gpu", and the benchmarks; writes
#                                          OUT/tests.log, OUT/tests.json and OUT/bench-*.json (OUT: build/gpu-out)
#
# Where the programs do not start there (another C library), `run` builds them there first, which needs this project's
# packages (cmake/debian-packages.txt). Environment of `run`:
#   SECONDS_LEFT=570       when to stop, counted from the start
#   SHAPES="llama-2-7b llama-3-8b"   models of random weights that are made and measured; 110m is quick
#   SANITIZER=1            also runs the tests of kernels, and of attention over selections, under compute-sanitizer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=build/gpu-check
tests="gpu_kernels_test gpu_attention_test gpu_backend_test gpu_graphs_test gpu_session_test gpu_sampling_test"

build() { # BUILD_DIRECTORY
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90a-real \
    -DQUIRE_BENCH=ON -DQUIRE_EXAMPLES=OFF -DQUIRE_UNITY=ON >/dev/null
  cmake --build "$1" --target quire_cuda $tests quire_bench_device
}

collect() { # BUILD_DIRECTORY
  rm -rf "$folder"
  mkdir -p "$folder"
  cp "$1"/lib/abi/libquire-cuda.so "$1"/tests/bench/quire_bench_device $(printf "$1/tests/gpu/%s " $tests) "$folder"
  strip --strip-debug "$folder"/*
  # The tests read models and adapters of the source tree, by a path of the machine that built them.
  echo "$PWD" >"$folder/source"
  du -sm "$folder" | sed 's/\t.*/ MiB in '"${folder//\//\\/}"'/'
}

start=$SECONDS
left() { echo $((${SECONDS_LEFT:-570} - (SECONDS - start))); }

run() { # OUT
  local out=$1 failed=0 passed=0 rows=""
  mkdir -p "$out"
  if ! "$folder/gpu_attention_test" --gtest_list_tests >/dev/null 2>&1; then
    echo "the programs of $folder do not start here: building them"
    build build/gpu-here >"$out/build.log" 2>&1 || { tail -30 "$out/build.log"; exit 1; }
    collect build/gpu-here
  fi
  # Where the programs look for the source tree there is a link to this one.
  local source
  source=$(cat "$folder/source")
  [ -e "$source" ] || { mkdir -p "$(dirname "$source")" && ln -s "$PWD" "$source"; }
  export QUIRE_CUDA_PLUGIN="$PWD/$folder/libquire-cuda.so" QUIRE_REQUIRE_GPU=1
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine"
  : >"$out/tests.log"
  for name in $tests; do
    local rc=0
    QUIRE_TEST_DEVICE=cuda timeout "$(left)" "$folder/$name" --gtest_output="json:$out/$name.json" >>"$out/tests.log" 2>&1 || rc=$?
    [ "$rc" = 0 ] && passed=$((passed + 1)) || failed=$((failed + 1))
    rows+="${rows:+, }{\"test\": \"$name\", \"status\": $rc}"
    echo "$name: status $rc"
  done
  if [ "${SANITIZER:-0}" = 1 ]; then
    for tool in memcheck racecheck synccheck; do
      local rc=0
      QUIRE_TEST_DEVICE=cuda timeout "$(left)" compute-sanitizer --tool "$tool" --error-exitcode 9 "$folder/gpu_kernels_test" >"$out/$tool.log" 2>&1 || rc=$?
      [ "$rc" = 0 ] && passed=$((passed + 1)) || failed=$((failed + 1))
      rows+=", {\"test\": \"$tool\", \"status\": $rc}"
      echo "$tool: status $rc"
    done
  fi
  echo "{\"passed\": $passed, \"failed\": $failed, \"tests\": [$rows]}" >"$out/tests.json"
  for shape in ${SHAPES-llama-2-7b llama-3-8b}; do
    [ "$(left)" -gt 90 ] || { echo "no time is left for $shape"; break; }
    [ -f "build/gpu-models/$shape/model.safetensors" ] ||
      python3 tests/bench/make_model.py "build/gpu-models/$shape" tests/data/tokenizers/bpe_bytes.model "$shape"
    for weights in load q8 q4; do
      timeout "$(left)" "$folder/quire_bench_device" "build/gpu-models/$shape" --device cuda:0 --weights "$weights" \
        --strategy full --strategy dca --strategy longheads --depth 4096 --depth 32768 --depth 131072 \
        $([ "$weights" = load ] && echo --prefill 4096 --prefill 32768) --json "$out/bench-$shape-$weights.json" ||
        failed=$((failed + 1))
    done
  done
  tail -40 "$out/tests.log" | grep -E "FAILED|PASSED" || true
  return $((failed > 0))
}

case "${1:-}" in
  build) build build/gpu && collect build/gpu ;;
  run) run "${2:-build/gpu-out}" ;;
  *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
