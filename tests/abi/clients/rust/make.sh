#!/bin/sh
# Stores the client in Rust as that of VERSION: make.sh VERSION BUILD
set -eu
here=$(realpath "$(dirname "$0")")
root=$(realpath "$here/../../../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
QUIRE_LIB_DIR=$(realpath "$2/lib/abi") RUSTFLAGS="--remap-path-prefix=$root=." cargo build --quiet --offline --release \
  --manifest-path "$here/Cargo.toml" --target-dir "$folder/target"
mkdir "$folder/client"
cp "$folder/target/release/client" "$folder/client"
"$here/../store.sh" "$1" rust "$folder/client" ./client '[ "$(uname -m)" = x86_64 ]' 'an x86-64 machine'
