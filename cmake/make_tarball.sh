#!/usr/bin/env bash
# Packs a finished build into archives that run from any folder: PACKAGING.md says what is in them.
#
#   bash cmake/make_tarball.sh BUILD FOLDER
#
# FOLDER gets quire-VERSION-linux-MACHINE.tar.gz, and where the build has the CUDA plugin quire-cuda-..., which is unpacked
# beside it, into the same folder. The same build gives the same bytes, whoever packs it: names are sorted, owners and modes
# fixed, and times those of SOURCE_DATE_EPOCH (seconds since 1970), of the commit where that is not set.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 BUILD FOLDER" >&2; exit 2; }
build=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)

# cached NAME: a variable of the build's configuration.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

source=$(cached CMAKE_HOME_DIRECTORY)
version=$(cached CMAKE_PROJECT_VERSION)
seconds=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct)}
for option in QUIRE_SANITIZE QUIRE_COVERAGE; do
  case $(cached $option) in
    "" | OFF) ;;
    *) echo "$build is instrumented: $option" >&2; exit 1 ;;
  esac
done

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
name=quire-$version-linux-$(uname -m)

# pack ARCHIVE COMPONENT...
pack() {
  local archive=$1
  shift
  rm -rf "${staging:?}/$name"
  local component
  for component in "$@"; do
    cmake --install "$build" --prefix "$staging/$name" --component "$component" --strip >/dev/null
  done
  # Where a component was not built.
  if [ ! -d "$staging/$name" ]; then return; fi
  tar -C "$staging" --format=ustar --sort=name --mtime="@$seconds" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX -cf - "$name" | gzip -9n >"$folder/$archive.tar.gz"
  (cd "$folder" && sha256sum "$archive.tar.gz" >"$archive.tar.gz.sha256")
  echo "$folder/$archive.tar.gz"
}
pack "$name" runtime development command
# A plugin for some GPUs alone says so in its archive's name.
architectures=$(cached QUIRE_CUDA_ARCHITECTURES)
pack "quire-cuda-${name#quire-}${architectures:+-for-${architectures//;/-}}" cuda
