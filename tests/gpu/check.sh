#!/usr/bin/env bash
# Tests and benchmarks on a machine with a GPU, with programs that were built on one without.
#
#   bash tests/gpu/check.sh build          builds all that the other machine needs into build/gpu-check, and packs it as
#                                          build/gpu-check.tar.xz (some 6 MB)
#   bash tests/gpu/check.sh run [OUT]      there, in the same source tree with one of the two: runs the tests with the
#                                          label "gpu", all at once, and then the benchmarks. Writes OUT/TEST.log,
#                                          OUT/tests.json, OUT/bench-*.json and OUT/torch-*.json (OUT: build/gpu-out)
#
# Where the programs do not start there (another C library), `run` builds them there first, which needs this project's
# packages (cmake/debian-packages.txt). Environment of `run`:
#   SECONDS_LEFT=570       when to stop, counted from the start
#   SHAPES="llama-2-7b llama-3-8b"   models of random weights that are made and measured; 110m is quick
#   LAYERS=4               layers of these models, fewer than they have: for a look that takes little time
#   TORCH=python           with PyTorch, which is measured on the same shapes (torch_peer.py)
#   SANITIZER=1            also runs the tests of kernels and of attention under compute-sanitizer (65 s on an H200)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=build/gpu-check
tests="gpu_kernels_test gpu_attention_test gpu_backend_test gpu_graphs_test gpu_session_test gpu_sampling_test gpu_offload_test"

build() { # BUILD_DIRECTORY
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON -DQUIRE_CUDA_ARCHITECTURES=90a-real \
    -DQUIRE_BENCH=ON -DQUIRE_EXAMPLES=OFF -DQUIRE_UNITY=ON >/dev/null
  cmake --build "$1" --target quire_cuda $tests quire_bench_device
}

collect() { # BUILD_DIRECTORY
  rm -rf "$folder"
  mkdir -p "$folder"
  cp "$1"/lib/abi/libquire-cuda.so "$1"/tests/bench/quire_bench_device $(printf "$1/tests/gpu/%s " $tests) "$folder"
  strip --strip-all "$folder"/*_test "$folder/quire_bench_device"
  strip --strip-debug "$folder/libquire-cuda.so"
  # The tests read models and adapters of the source tree, by a path of the machine that built them.
  echo "$PWD" >"$folder/source"
  # The programs have much in common, which only a large dictionary finds.
  XZ_OPT=-9 tar -C build -cJf "$folder.tar.xz" "${folder##*/}"
  du -m "$folder.tar.xz"
}

start=$SECONDS
left() { echo $((${SECONDS_LEFT:-570} - (SECONDS - start))); }

# Where cuBLASLt is if the loader does not find it: of the toolkit, or of PyTorch.
find_blas() {
  local python="${TORCH:-python3}" file
  for file in /usr/local/cuda/lib64/libcublasLt.so.13 \
    $("$python" -c 'import glob, sys; print(*(f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib/libcublasLt.so.13")))'); do
    if [ -e "$file" ]; then
      export QUIRE_CUBLASLT="$file"
      return
    fi
  done
}

run() { # OUT
  local out=$1 name rc
  mkdir -p "$out"
  [ -d "$folder" ] || [ ! -f "$folder.tar.xz" ] || tar -C build -xJf "$folder.tar.xz"
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
  find_blas
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine"
  rm -f "$out"/*.status
  for name in $tests; do
    check "$out" "$name" "$folder/$name" --gtest_brief=1 --gtest_output="json:$out/$name.json" &
  done
  make_models &
  wait
  if [ "${SANITIZER:-0}" = 1 ]; then
    for name in memcheck racecheck synccheck; do
      check "$out" "$name" compute-sanitizer --tool "$name" --error-exitcode 9 "$folder/gpu_kernels_test" --gtest_brief=1 &
    done
    check "$out" memcheck-attention compute-sanitizer --tool memcheck --error-exitcode 9 "$folder/gpu_attention_test" \
      --gtest_brief=1 &
    wait
  fi
  for shape in $shapes; do measure "$out" "$shape"; done
  local failed=0 runs=""
  for name in "$out"/*.status; do
    rc=$(cat "$name")
    [ "$rc" = 0 ] || failed=$((failed + 1))
    name=${name##*/}
    runs+="${runs:+, }{\"name\": \"${name%.status}\", \"status\": $rc}"
  done
  echo "{\"failed\": $failed, \"runs\": [$runs]}" >"$out/tests.json"
  rm "$out"/*.status
  return $((failed > 0))
}

# Runs a command in what is left of the time; its output goes to OUT/NAME.log, and its status to OUT/NAME.status.
check() { # OUT NAME COMMAND...
  local out=$1 name=$2 rc=0
  shift 2
  if [ "$(left)" -lt 10 ]; then
    rc=124
  else
    QUIRE_TEST_DEVICE=cuda timeout "$(left)" "$@" >"$out/$name.log" 2>&1 || rc=$?
  fi
  echo "$rc" >"$out/$name.status"
  printf '[%3d s] %s: status %d\n' $((SECONDS - start)) "$name" "$rc"
  [ "$rc" = 0 ] || grep -E "FAILED|ERROR SUMMARY" "$out/$name.log" 2>&1 | head -20 || true
}

shapes=${SHAPES-llama-2-7b llama-3-8b}
model_of() { echo "build/gpu-models/$1${LAYERS:+-$LAYERS}"; } # SHAPE
make_models() {
  for shape in $shapes; do
    [ -f "$(model_of "$shape")/model.safetensors" ] ||
      python3 tests/bench/make_model.py "$(model_of "$shape")" tests/data/tokenizers/bpe_bytes.model "$shape" ${LAYERS:-}
  done
}

measure() { # OUT SHAPE
  local model bench="$folder/quire_bench_device" depths="--depth 4096 --depth 32768 --depth 131072"
  local prefills="--prefill 4096 --prefill 32768 --prefill 131072"
  model=$(model_of "$2")
  check "$1" "bench-$2-bf16" "$bench" "$model" --device cuda:0 --strategy full --strategy dca --strategy longheads $depths \
    $prefills --json "$1/bench-$2-bf16.json"
  [ -z "${TORCH:-}" ] || check "$1" "torch-$2" "$TORCH" tests/gpu/torch_peer.py --shape "$2" ${LAYERS:+--layers $LAYERS} \
    $depths $prefills --json "$1/torch-$2.json"
  for weights in q8 q4; do
    check "$1" "bench-$2-$weights" "$bench" "$model" --device cuda:0 --weights "$weights" --strategy full $depths \
      --prefill 4096 --json "$1/bench-$2-$weights.json"
  done
  check "$1" "bench-$2-offload" "$bench" "$model" --device cuda:0 --strategy full --strategy longheads --depth 131072 \
    --offload 0.25 --json "$1/bench-$2-offload.json"
}

case "${1:-}" in
  build) build build/gpu && collect build/gpu ;;
  run) run "${2:-build/gpu-out}" ;;
  *) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
