#!/bin/sh
# Runs one part of the tests of the Rust binding. 77 (skipped): there is no cargo, one that is too old, or no such tool.
#
#   run.sh PART BUILD_DIR
#
#   binding    the tests on tiny models, the conformance suite and the examples; all functions of quire.h are called
#   docs       the examples in the documentation, and that it has no broken links
#   style      rustfmt and clippy
#   sanitizer  the tests under AddressSanitizer, which finds leaks too
#   installed  a program that finds an installed library by pkg-config
#   package    the packages of both crates: a program that has them from there, with a library that is named
#   source     the same, where the package builds the library (some minutes)
set -eu
part=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
crates=$root/bindings/rust
scratch=$build/tests/rust/$part

skip() { echo "skipped: $*"; exit 77; }
command -v cargo >/dev/null 2>&1 || skip "there is no cargo"
minor=$(rustc --version | sed 's/^rustc 1\.\([0-9]*\)\..*/\1/')
[ "$minor" -ge 78 ] 2>/dev/null || skip "rustc 1.78 or newer is needed; here is $(rustc --version)"

export CARGO_TARGET_DIR="$build/tests/rust/target" CARGO_NET_OFFLINE=true QUIRE_CUDA_PLUGIN=none RUST_BACKTRACE=0
export QUIRE_LIB_DIR="$build/lib/abi" LD_LIBRARY_PATH="$build/lib/abi"
# Functions are looked up when they are first called: what LD_DEBUG lists was called. Programs find the library by
# themselves, such as the one that tests/overhead starts.
export RUSTFLAGS="-C relro-level=partial -C link-arg=-Wl,-rpath,$build/lib/abi"
rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"

# program CRATES: a project that uses the crates in the folder CRATES as if they came from a registry.
program() {
  mkdir -p program/src
  cp "$root/examples/rust/src/bin/forks.rs" program/src/main.rs
  cat >program/Cargo.toml <<TOML
[package]
name = "program"
version = "0.1.0"
edition = "2021"
[dependencies]
quire = "0.1"
[patch.crates-io]
quire = { path = "$1/quire-$version" }
quire-sys = { path = "$1/quire-sys-$version" }
[workspace]
TOML
}

# answer COMMAND...: the command answers a question about a document.
answer() {
  echo "The grass is green. The pass key is 41728. Remember it. 41728 is the pass key." >document.txt
  "$@" "$root/examples/embedded_model/model" document.txt document.txt "What is the pass key? The pass key is" >answer.txt
  cat answer.txt
  [ "$(grep -c 'The pass key is 41728\.$' answer.txt)" = 2 ]
}

packages() {
  [ "$minor" -ge 90 ] || skip "cargo 1.90 or newer is needed to package crates that depend on each other"
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$crates/quire/Cargo.toml")
  cargo package --quiet --manifest-path "$crates/Cargo.toml" --workspace --no-verify --allow-dirty --target-dir packages
  for crate in quire-sys quire; do tar -xzf "packages/package/$crate-$version.crate"; done
  program "$scratch"
}

case $part in
  binding)
    cargo build --quiet --manifest-path "$root/examples/rust/Cargo.toml"
    QUIRE_CALLS="$scratch/calls" cargo --config "target.'cfg(all())'.runner = '$here/log_calls.sh'" test --quiet \
      --manifest-path "$here/Cargo.toml" --tests
    python3 "$here/check_calls.py" "$root/bindings/interface.json" "$scratch"
    cargo build --quiet --release --manifest-path "$here/Cargo.toml" --bin overhead
    # A library with another ABI is refused.
    cc -shared -fPIC "$root/tests/abi/other_version.c" -o other_version.so
    said=$(LD_PRELOAD=$PWD/other_version.so "$CARGO_TARGET_DIR/release/overhead" model 1 2>&1) || true
    case $said in
      *"libquire.so is of version 0.2.0; this crate needs 0.1.0, or"*) ;;
      *) echo "a library with another ABI: $said"; exit 1 ;;
    esac ;;
  docs)
    cargo test --quiet --manifest-path "$crates/Cargo.toml"
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --manifest-path "$crates/Cargo.toml" ;;
  style)
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || skip "there is no rustfmt or clippy"
    for project in "$crates" "$here" "$root/examples/rust"; do
      cargo fmt --all --manifest-path "$project/Cargo.toml" --check
      cargo clippy --quiet --manifest-path "$project/Cargo.toml" --all-targets -- -D warnings
    done ;;
  sanitizer)
    host=$(rustc -vV | sed -n 's/^host: //p')
    ls "$(rustc --print sysroot)/lib/rustlib/$host/lib/"librustc*_rt.asan.a >/dev/null 2>&1 || skip "no AddressSanitizer"
    # The option is an unstable one, which this variable allows to stable compilers too. A test whose panic panics again
    # leaks what Rust gives no way to drop.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/asan" cargo test --quiet \
      --manifest-path "$here/Cargo.toml" --target "$host" --test binding -- --skip a_log_that_panics ;;
  installed)
    command -v pkg-config >/dev/null 2>&1 || skip "there is no pkg-config"
    cmake --install "$build" --prefix "$scratch/a prefix" >install.log
    pc=$(find "$scratch/a prefix" -name quire.pc)
    unset QUIRE_LIB_DIR RUSTFLAGS
    export PKG_CONFIG_PATH="${pc%/*}" LD_LIBRARY_PATH="${pc%/pkgconfig/*}" CARGO_TARGET_DIR="$scratch/target"
    cargo build --quiet --manifest-path "$root/examples/rust/Cargo.toml"
    grep -q "search=native=$LD_LIBRARY_PATH\$" target/debug/build/quire-sys-*/output
    answer target/debug/forks
    mv "$LD_LIBRARY_PATH/pkgconfig" . # a libdir that is not there
    ! PKG_CONFIG_PATH=$PWD/pkgconfig CARGO_TARGET_DIR=other cargo build --quiet --manifest-path "$root/examples/rust/Cargo.toml" 2>build.log
    grep -q "pkg-config knows quire, but its libdir" build.log ;;
  package)
    packages
    unset RUSTFLAGS
    export CARGO_TARGET_DIR="$scratch/target"
    cargo build --quiet --manifest-path program/Cargo.toml
    answer target/debug/program
    for folder in lib/abi "$scratch/none"; do # a relative path, and a folder that is not there
      ! QUIRE_LIB_DIR=$folder cargo build --quiet --manifest-path program/Cargo.toml 2>build.log
      grep -q "QUIRE_LIB_DIR is \"$folder\"" build.log
    done ;;
  source)
    packages
    unset QUIRE_LIB_DIR LD_LIBRARY_PATH RUSTFLAGS
    export PKG_CONFIG_LIBDIR="$scratch" CARGO_TARGET_DIR="$scratch/target" # where there is no quire.pc
    answer cargo run --quiet --manifest-path program/Cargo.toml -- ;;
  *) echo "no such part: $part" >&2; exit 2 ;;
esac
