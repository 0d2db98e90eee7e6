#!/bin/sh
# Stores the client for LuaJIT, with the binding's declarations, as that of VERSION: make.sh VERSION
set -eu
here=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/client.lua" "$here/../../../../bindings/lua/quire/interface.lua" "$folder"
"$here/../store.sh" "$1" luajit "$folder" 'luajit client.lua' 'command -v luajit' luajit
