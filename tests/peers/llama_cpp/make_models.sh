#!/usr/bin/env bash
# Makes the models of the comparison with llama.cpp: GGUF files of random weights (speed does not depend on the values) in
# two shapes of Llama, of 110 million and of 1.1 billion parameters, and the real SmolLM2-135M in Q8_0 and Q4_0. 12 GB.
#
#   make_models.sh QUIRE DIRECTORY [TYPE...]      types: bf16, q8_0, q4_0, f32, q4_k_m, iq4_xs, q3_k_m, q2_k; all if none is given
set -euo pipefail

quire=${1:?usage: make_models.sh QUIRE DIRECTORY [TYPE...]}
out=${2:?usage: make_models.sh QUIRE DIRECTORY [TYPE...]}
shift 2
[ $# -gt 0 ] || set -- bf16 q8_0 q4_0 f32 q4_k_m iq4_xs q3_k_m q2_k
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
mkdir -p "$out"

# quantized MODEL NAME TYPE...
quantized() {
  local model=$1 name=$2 type
  shift 2
  for type in "$@"; do
    [ -f "$out/$name-$type.gguf" ] || "$quire" quantize -q -t "$type" "$model" "$out/$name-$type.gguf"
  done
}

for shape in 110m 1.1b; do
  [ -d "$out/$shape" ] ||
    python3 "$root/tests/bench/make_model.py" "$out/$shape" "$root/tests/data/tokenizers/bpe_bytes.model" "$shape"
  quantized "$out/$shape" "$shape" "$@"
done
if real=$(bash "$root/examples/get_model.sh"); then
  cp "$real" "$out/smollm2-q4_1.gguf"
  quantized "$real" smollm2 q8_0 q4_0
fi
