#!/bin/sh
# Stores the client for Node.js, with the binding's package, as that of VERSION: make.sh VERSION BUILD
set -eu
here=$(realpath "$(dirname "$0")")
root=$(realpath "$here/../../../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/quire"
(cd "$root/bindings/node" && cp -r package.json build.js lib src "$folder/quire")
CFLAGS=-s QUIRE_CFLAGS="-I$root/include" QUIRE_LIBS="-L$(realpath "$2/lib/abi") -lquire" node "$folder/quire/build.js"
cp "$here/client.js" "$folder"
rm -r "$folder/quire/src" "$folder/quire/build.js"
"$here/../store.sh" "$1" node "$folder" 'node client.js' \
  '[ "$(uname -m)" = x86_64 ] && node -e "process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)"' \
  'node of 18 or newer on an x86-64 machine'
