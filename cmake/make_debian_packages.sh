#!/usr/bin/env bash
# Builds the Debian packages of the commit that is checked out, unsigned: PACKAGING.md says which.
#
#   bash cmake/make_debian_packages.sh FOLDER
#
# FOLDER gets the packages. The CUDA plugin's is made where there is nvcc. DEB_BUILD_OPTIONS is dpkg-buildpackage's: "nocheck"
# leaves out the question that is asked of what was built, "parallel=N" says how many compilers run at a time.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(git show HEAD:CMakeLists.txt | sed -n 's/^project(quire VERSION \([0-9.]*\) .*/\1/p')
seconds=$(git log -1 --format=%ct)
# "-0quire1": a package of ours sorts below Debian's own of the same version.
package_version=$version-0quire1
if [ "$(git describe --tags --exact-match 2>/dev/null || true)" != "v$version" ]; then
  # Before its release: a version that sorts below it.
  package_version=$version~git$(date -u -d "@$seconds" +%Y%m%d).$(git rev-parse --short HEAD)-0quire1
fi
profiles=()
if command -v nvcc >/dev/null; then profiles=(-Ppkg.quire.cuda); fi

build=$folder/build
source=$build/quire-$version
rm -rf "$build"
mkdir -p "$build"
git archive --prefix="quire-$version/" HEAD | tar -x -C "$build"
bash "$source/cmake/debian/prepare.sh" "$source" "$package_version" "$seconds"

# debhelper gives the build an empty home, and so compilers an empty cache.
if command -v ccache >/dev/null; then
  CCACHE_DIR=${CCACHE_DIR:-$(ccache --get-config cache_dir)}
  export CCACHE_DIR
fi
cd "$source"
dpkg-buildpackage -b -us -uc "${profiles[@]}"
mv "$build"/*.{deb,buildinfo,changes} "$folder"
rm -rf "$build"
