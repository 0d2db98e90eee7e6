#!/bin/sh
# Stores the client in Go as that of VERSION: make.sh VERSION BUILD
set -eu
here=$(realpath "$(dirname "$0")")
root=$(realpath "$here/../../../..")
. "$root/tests/go/find_go.sh"
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOCACHE="$folder/cache" GOPATH="$folder/path" GOTOOLCHAIN=local GOPROXY=off GOWORK=off CGO_ENABLED=1
export CGO_CFLAGS="-O2 -I$root/include" CGO_LDFLAGS="-L$(realpath "$2/lib/abi")"
(cd "$here" && "$go" build -tags quire_uninstalled -trimpath -ldflags '-s -w' -buildvcs=false -o "$folder/client/client" .)
"$here/../store.sh" "$1" go "$folder/client" ./client '[ "$(uname -m)" = x86_64 ]' 'an x86-64 machine'
