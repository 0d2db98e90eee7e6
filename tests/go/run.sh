#!/bin/sh
# Tests the Go binding. 77: skipped.
#
#   run.sh binding      what is generated, vet, gofmt, and all tests; and that they call every function of quire.h
#   run.sh examples     the examples and the program that times overhead; the server is asked by curl
#   run.sh race         all tests with Go's race detector
#   run.sh cgocheck     all tests, each pointer that goes to C's memory checked
#   run.sh openai       the server with a real model, asked by the openai package
#
# QUIRE_INCLUDE is the folder with quire/quire.h, QUIRE_LIBRARY_DIR that with libquire.so, QUIRE_GO_BUILD one to build in.
# Compiled packages are kept where Go keeps them for its user: to compile the standard library anew takes a minute.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
. "$here/find_go.sh"

build=$QUIRE_GO_BUILD
export GOPATH="$build/path" GOTOOLCHAIN=local GOPROXY=off GOWORK=off GODEBUG=cgocheck=1
export CGO_ENABLED=1 LD_LIBRARY_PATH="$QUIRE_LIBRARY_DIR"
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$build/bin"
cd "$here"

# As installed: with pkg-config. Where it is missing, and in two of the tests: as a library that is not installed is found.
if command -v pkg-config >/dev/null 2>&1; then
  printf 'Name: quire\nDescription: not installed\nVersion: 0\nLibs: -L%s -lquire -Wl,-rpath,%s\nCflags: -I%s\n' "$QUIRE_LIBRARY_DIR" \
    "$QUIRE_LIBRARY_DIR" "$QUIRE_INCLUDE" >"$build/quire.pc"
  export PKG_CONFIG_PATH="$build"
else
  uninstalled=yes
fi
case $1 in race | cgocheck) uninstalled=yes ;; esac
if [ "${uninstalled:-}" = yes ]; then
  export GOFLAGS=-tags=quire_uninstalled CGO_CFLAGS="-O2 -I$QUIRE_INCLUDE" CGO_LDFLAGS="-L$QUIRE_LIBRARY_DIR"
fi

case $1 in
  binding)
    python3 "$source/bindings/go/generate.py" --check
    unformatted=$("$("$go" env GOROOT)/bin/gofmt" -l "$source/bindings/go" "$source/tests/go" "$source/examples/go")
    [ -z "$unformatted" ] || { echo "not as gofmt writes it: $unformatted"; exit 1; }
    (cd "$source/bindings/go" && "$go" vet ./...)
    "$go" vet ./...
    "$go" test -count=1 -timeout 600s -coverpkg=quire.dev/go -coverprofile="$build/cover.out" .
    python3 called.py "$source/bindings/interface.json" "$source/bindings/go" "$build/cover.out"
    ;;
  examples)
    "$go" build -o "$build/bin/" ./overhead
    (cd "$source/examples/go" && "$go" vet ./... && "$go" build -o "$build/bin/" ./...)
    echo | "$build/bin/overhead" "$source/examples/embedded_model/model" 20 | grep -q '"tokens":20'
    cc -shared -fPIC "$source/tests/abi/other_version.c" -o "$build/other_version.so"
    said=$(LD_PRELOAD="$build/other_version.so" "$build/bin/overhead" "$source/examples/embedded_model/model" 20 2>&1 </dev/null) || true
    case $said in
      *"libquire.so is of version 0.2.0; this package needs 0.1.0, or"*) ;;
      *) echo "a library with another ABI: $said"; exit 1 ;;
    esac
    python3 check_examples.py "$build/bin" "$go"
    python3 check_server.py "$build/bin/server"
    ;;
  race) "$go" test -race -count=1 -timeout 1200s . ;;
  cgocheck) GOEXPERIMENT=cgocheck2 "$go" test -count=1 -timeout 1200s . ;;
  openai)
    model=$(bash "$source/examples/get_model.sh") || { echo "the model cannot be fetched"; exit 77; }
    (cd "$source/examples/go" && "$go" build -o "$build/bin/" ./server)
    [ -d "$build/venv" ] || python3 -m venv "$build/venv" || { echo "no python3-venv"; exit 77; }
    "$build/venv/bin/python" -m pip install --quiet --disable-pip-version-check openai ||
      { echo "the package openai cannot be fetched"; exit 77; }
    "$build/venv/bin/python" check_openai.py "$build/bin/server" "$model"
    ;;
  *) echo "an unknown test: $1"; exit 2 ;;
esac
