#!/bin/sh
# Runs the examples with the Lua that is named, on the embedded model: an answer, one that Ctrl-C ends, and two at once.
set -e
lua=$1
model=$QUIRE_SOURCE/examples/embedded_model/model
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd "$QUIRE_SOURCE/examples/lua"
printf 'The pass key is 4217. Remember it. 4217 is the pass key. The grass is green. The sky is blue.' > "$folder/text"

"$lua" ask.lua "$model" "$folder/text" ' What is the pass key? The pass key is' 8 > "$folder/answer" 2> "$folder/progress"
grep -q '^ 4217' "$folder/answer"
grep -q 'tokens read' "$folder/progress"

# Reading this would take minutes: it is interrupted once it has begun.
yes "$(cat "$folder/text")" | head -n 100000 > "$folder/long"
mkfifo "$folder/pipe"
env --default-signal=INT "$lua" ask.lua "$model" "$folder/long" 'Go on.' 2> "$folder/pipe" > "$folder/rest" &
process=$!
{
  dd bs=1 count=1 of="$folder/first" 2> /dev/null
  kill -INT $process
  cat > "$folder/errors"
} < "$folder/pipe"
wait $process || { cat "$folder/errors"; exit 1; }
grep -q '^(cancelled, ' "$folder/rest"

"$lua" forks.lua "$model" "$folder/text" ' What is the pass key? The pass key is' ' The grass is' 6 > "$folder/both"
grep -q '^ 4217' "$folder/both"
grep -q '^ The grass is$' "$folder/both"
