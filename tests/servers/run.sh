#!/bin/sh
# Checks the example server of a language: run.sh LANGUAGE SOURCE LIBRARY TESTS. TESTS is the folder in which the tests of
# the bindings have built modules and programs. 77 (skipped) where the language is missing, or what its binding's test
# builds.
language=$1 source=$2 library=$3 tests=$4
export QUIRE_LIBRARY="$library" LD_LIBRARY_PATH="$(dirname "$library"):$LD_LIBRARY_PATH"

# need WHAT COMMAND...: skips where the command fails.
need() {
  what=$1
  shift
  "$@" > /dev/null 2>&1 || { echo "skipped: there is no $what"; exit 77; }
}

need python3 command -v python3
export PYTHONPATH="$source/bindings/python" PYTHONDONTWRITEBYTECODE=1 RUBYLIB="$source/bindings/ruby/lib"
export NODE_PATH="$tests/node/node/node_modules"
export LUA_PATH="$source/bindings/lua/?.lua;$source/bindings/lua/?/init.lua;;" LUA_CPATH="$tests/lua/lua5.4/?.so;;"
case $language in
  cpp) set -- "$tests/cpp/cpp_server" ;;
  rust)
    set -- "$tests/rust/target/debug/server"
    need 'program that rust_binding builds' test -x "$1" ;;
  python) set -- python3 "$source/examples/python/server.py" ;;
  ruby)
    set -- ruby -w "$source/examples/ruby/server.rb"
    need 'ruby of 3.1 or newer' ruby -e 'exit RUBY_VERSION >= "3.1"' ;;
  node)
    set -- node "$source/examples/node/server.js"
    need 'module that node_binding builds' node -e 'require("quire")' ;;
  luajit | lua5.4)
    set -- "$language" "$source/examples/lua/server.lua"
    need "$language with dkjson and socket" "$language" -e 'require("dkjson") require("socket")'
    [ "$language" = luajit ] || need 'module that lua5.4_binding builds' "$language" -e 'require("quire")' ;;
  *) echo "no such language: $language" >&2; exit 2 ;;
esac
exec python3 "$source/tests/servers/check_server.py" "$@"
