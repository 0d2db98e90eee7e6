#!/bin/sh
# Runs the tests of the Lua binding: run.sh luajit|lua5.4 SOURCE LIBRARY FOLDER [sanitized]. 77 (skipped) where that Lua is
# missing, or for 5.4 a compiler or Lua's headers. FOLDER is where the C module is built; sanitized: with ASan (leaks included)
# and UBSan, for the tests in all.lua alone.
lua=$1 source=$2 library=$3 folder=$4 sanitized=$5
command -v "$lua" > /dev/null || { echo "there is no $lua"; exit 77; }
"$lua" -e 'require("dkjson")' 2> /dev/null || { echo "$lua has no dkjson"; exit 77; }
python3 "$source/bindings/lua/generate.py" --check || exit 1

if [ "$lua" = lua5.4 ]; then
  command -v cc > /dev/null && [ -e /usr/include/lua5.4/lua.h ] || { echo 'there are no headers of Lua 5.4'; exit 77; }
  mkdir -p "$folder/quire" || exit 1
  flags='-std=c11 -O2 -Wall -Wextra -Wpedantic -Werror -shared -fPIC -I/usr/include/lua5.4'
  [ -z "$sanitized" ] || flags="$flags -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
  cc $flags -I"$source/include" "$source"/bindings/lua/src/*.c "$library" -o "$folder/quire/native.so" || exit 1
  cc $flags "$source/tests/lua/clock.c" -o "$folder/quire_test_clock.so" || exit 1
fi

export QUIRE_SOURCE="$source" QUIRE_LIBRARY="$library" LD_LIBRARY_PATH="$(dirname "$library"):$LD_LIBRARY_PATH"
export LUA_PATH="$source/bindings/lua/?.lua;$source/bindings/lua/?/init.lua;$source/tests/lua/?.lua;;" LUA_CPATH="$folder/?.so;;"
if [ "$sanitized" ]; then # a small quarantine: one test looks at the process's memory
  runtime=$(cc -print-file-name=libasan.so)
  [ -e "$runtime" ] || { echo 'there is no libasan'; exit 77; }
  ASAN_OPTIONS=quarantine_size_mb=1 LD_PRELOAD="$runtime" exec "$lua" "$source/tests/lua/all.lua"
fi
"$lua" "$source/tests/lua/all.lua" || exit 1
sh "$source/tests/lua/test_examples.sh" "$lua" || { echo 'an example fails'; exit 1; }
timed=$(echo | "$lua" "$source/tests/lua/overhead.lua" "$source/examples/embedded_model/model" 8) || exit 1
case $timed in *'"tokens":8,'*) ;; *) echo "$timed"; exit 1 ;; esac
for i in 1 2 3 4 5; do # with work under way and nothing closed
  left=$("$lua" "$source/tests/lua/leave.lua" "$source/examples/embedded_model/model" 2>&1) || { echo "$left"; exit 1; }
  [ "$left" = leaving ] || { echo "$left"; exit 1; }
done
