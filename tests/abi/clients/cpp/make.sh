#!/bin/sh
# Stores the client in C++ as that of VERSION: make.sh VERSION BUILD
set -eu
here=$(realpath "$(dirname "$0")")
root=$(realpath "$here/../../../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${CXX:-c++}" -std=c++17 -Os -s -I"$root/include" "$here/client.cc" "$2/lib/abi/libquire.so.0" -o "$folder/client"
"$here/../store.sh" "$1" cpp "$folder" ./client '[ "$(uname -m)" = x86_64 ]' 'an x86-64 machine'
