#!/usr/bin/env bash
# Installs a build, moves what was installed, and builds and runs programs against it.
#
#   run.sh BUILD SOURCE C_COMPILER CXX_COMPILER LIBRARY_FOLDER
set -euo pipefail
build=$1 source=$2 compiler=$3 cxx_compiler=$4 libraries=$5

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --prefix "$folder/first" >/dev/null
mv "$folder/first" "$folder/moved"
installed=$folder/moved
if grep -rq "$folder/first" "$installed" --include=quire*.pc --include='*.cmake'; then
  echo "an installed file names the folder that it was installed in" >&2
  exit 1
fi

# The program answers a question about a text of several times the model's length.
ask() { [ -n "$("$1" "$source/examples/embedded_model/model" "$source/examples/quickstart.txt" "What is it?" dca)" ]; }

export PKG_CONFIG_PATH=$installed/$libraries/pkgconfig
read -r -a flags < <(pkg-config --cflags --libs quire)
"$compiler" "$source/examples/c_minimal/main.c" -o "$folder/by_pkg_config" "${flags[@]}"
LD_LIBRARY_PATH=$installed/$libraries ask "$folder/by_pkg_config"
# The C++ header finds the others that it includes.
echo '#include <quire/quire.hpp>' >"$folder/header.cc"
"$cxx_compiler" -std=c++17 -fsyntax-only "$folder/header.cc" "${flags[@]}"
[ "$(pkg-config --modversion quire)" = "$("$installed/bin/quire" --version | grep -o '[0-9][0-9.]*' | head -n 1)" ]

cmake -S "$source/tests/install/consumer" -B "$folder/consumer" -DCMAKE_C_COMPILER="$compiler" \
  -DCMAKE_PREFIX_PATH="$installed" -DEXAMPLE="$source/examples/c_minimal/main.c" >/dev/null
cmake --build "$folder/consumer" >/dev/null
ask "$folder/consumer/consumer"

"$installed/bin/quire" strategies >"$folder/strategies"
grep -q dca "$folder/strategies"
echo "installed, moved, and found by pkg-config and find_package"
