#!/bin/sh
# Installs both rocks into a tree of its own and runs a program that finds them there: rock.sh SOURCE LIBRARY FOLDER.
# 77 (skipped) where there is no luarocks.
source=$1 library=$2 folder=$3
command -v luarocks > /dev/null || { echo 'there is no luarocks'; exit 77; }
rm -rf "$folder" && mkdir -p "$folder" && cp -r "$source/bindings/lua" "$folder/source" && cd "$folder/source" || exit 1
luarocks lint quire-0.1.0-1.rockspec && luarocks lint quire-luajit-0.1.0-1.rockspec || exit 1

# Each file of the package is in the rocks.
for file in quire/*.lua src/*.c; do
  grep -q "\"$file\"" *.rockspec || { echo "no rockspec has $file"; exit 1; }
done

export QUIRE_LIBRARY="$library" LD_LIBRARY_PATH="$(dirname "$library"):$LD_LIBRARY_PATH"
# check LUA VERSION ROCKSPEC [VARIABLES]
check() {
  lua=$1 version=$2 rockspec=$3
  shift 3
  command -v "$lua" > /dev/null || { echo "there is no $lua"; exit 77; }
  luarocks --lua-version "$version" --tree "$folder/tree" make --deps-mode none "$rockspec" "$@" > "$folder/log" 2>&1 ||
    { cat "$folder/log"; exit 1; }
  (cd / && LUA_PATH="$folder/tree/share/lua/$version/?.lua;$folder/tree/share/lua/$version/?/init.lua;;" \
    LUA_CPATH="$folder/tree/lib/lua/$version/?.so;;" "$lua" -e 'assert(require("quire").version() == "0.1.0")') || exit 1
}
check luajit 5.1 quire-luajit-0.1.0-1.rockspec
check lua5.4 5.4 quire-0.1.0-1.rockspec QUIRE_INCDIR="$source/include" QUIRE_LIBDIR="$(dirname "$library")" LUA_INCDIR=/usr/include/lua5.4
