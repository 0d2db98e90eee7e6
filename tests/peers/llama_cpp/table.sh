#!/usr/bin/env bash
# Measures all that is compared with llama.cpp, on the models of make_models.sh; some hours on two quiet cores. What was
# measured before is left alone, so that a run that was stopped goes on.
#
#   table.sh PYTHON MODELS RESULTS [NAME...]      PYTHON has llama-cpp-python; NAME: of the measurements below
#
# QUIRE_LIBRARY names the library. Each measurement is RESULTS/NAME.json; page.py makes a page of them.
set -euo pipefail

python=${1:?usage: table.sh PYTHON MODELS RESULTS [NAME...]}
models=${2:?usage: table.sh PYTHON MODELS RESULTS [NAME...]}
results=${3:?usage: table.sh PYTHON MODELS RESULTS [NAME...]}
shift 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$results"

# measure NAME PROGRAM ARGUMENT...: unless others were asked for.
asked=("$@")
measure() {
  local name=$1 program=$2
  shift 2
  [ ${#asked[@]} -eq 0 ] || [[ " ${asked[*]} " = *" $name "* ]] || return 0
  [ ! -f "$results/$name.json" ] || return 0
  echo "== $name"
  "$python" "$here/$program" "$@" --json "$results/$name.json"
}
# files PREFIX TYPE...: paths of models.
files() {
  local prefix=$1
  shift
  printf "$models/$prefix-%s.gguf\n" "$@"
}

mapfile -t all < <(files 1.1b bf16 q8_0 q4_0 f32 q4_k_m)
mapfile -t few < <(files 1.1b q4_0 iq4_xs q3_k_m q2_k)
mapfile -t real < <(files smollm2 q4_1 q8_0 q4_0)
big=$models/1.1b-q8_0.gguf
small=$models/110m-q8_0.gguf
grouped='longheads(chunk=256, chunks=16, select=group)'
by_head='longheads(chunk=256, chunks=16, select=head)'

measure read speed.py "${all[@]}" --depths 0 --works read --rounds 3
measure decode speed.py "${all[@]}" --depths 128 --works generate
measure few_bits speed.py "${few[@]}" --depths 128 --read 256 --rounds 3
measure real speed.py "${real[@]}" --depths 128 2048 8192 --rounds 3
measure deep speed.py "$big" --threads 1 --depths 8192 32768 --rounds 3
measure deep_2 speed.py "$big" --threads 2 --depths 8192 32768 --rounds 3
measure deepest speed.py "$big" --threads 1 --depths 131072 --works generate --rounds 3
measure deep_110m speed.py "$small" --depths 8192 32768 --rounds 3
measure longheads speed.py "$big" --threads 1 --depths 32768 --rounds 3 --strategy "$grouped"
measure longheads_by_depth speed.py "$big" --threads 1 --depths 0 4096 8192 16384 32768 --works read --rounds 1 --strategy "$grouped"
measure longheads_whole speed.py "$small" --threads 2 --depths 0 --works read --read 32768 --rounds 1 --strategy "$grouped"
measure longheads_deepest speed.py "$big" --threads 1 --depths 131072 --works generate --rounds 3 --strategy "$grouped"
measure longheads_by_head speed.py "$big" --threads 1 --depths 32768 131072 --works generate --rounds 3 --strategy "$by_head"
measure dca speed.py "$big" "$small" --threads 1 --depths 8192 --strategy dca --against full --rounds 9
measure selected_reading speed.py "$models/smollm2-q4_1.gguf" --threads 2 --depths 0 --works read --read 32768 --rounds 1 \
  --strategy 'dca_topk(reading=selected)' --against dca
measure int8 speed.py "$big" "$small" --threads 1 --depths 8192 --kv int8 --rounds 3
measure start machine.py start "$models/1.1b-q4_0.gguf"
measure first_start machine.py first_start "$models/1.1b-q4_0.gguf"
measure together machine.py together "$models/1.1b-q4_0.gguf"
measure neighbour machine.py neighbour "$big"
measure memory_mapped machine.py memory_mapped "$big" --depth 32768
measure memory machine.py memory "$big" --depth 32768
