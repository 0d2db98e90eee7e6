#!/bin/sh
# Stores the client in C, what it prints, and the library, all of this commit, as those of VERSION.
#
#   make.sh VERSION BUILD
set -eu
version=$1 library=$(realpath "$2/lib/abi/libquire.so.0")
source=$(realpath "$(dirname "$0")")
clients=$(dirname "$source") root=$(realpath "$source/../../../..")
folder=$clients/$version
mkdir -p "$folder/c"
"${CC:-cc}" -std=c99 -O2 -s -I"$root/include" "$source/client.c" "$library" -o "$folder/c/client"
printf '#!/bin/sh\n[ "$(uname -m)" = x86_64 ] || { echo "the client is for x86-64"; exit 77; }\nexec "$(dirname "$0")/client" "$1"\n' >"$folder/c/run"
chmod +x "$folder/c/run"
LD_LIBRARY_PATH=$(dirname "$library") "$folder/c/run" "$root/examples/embedded_model/model" >"$folder/expected.txt"
strip -o "$folder/libquire.so" "$library"
chmod -x "$folder/libquire.so"
xz -9e -f "$folder/libquire.so"
