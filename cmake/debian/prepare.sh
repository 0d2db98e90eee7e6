#!/usr/bin/env bash
# Puts a debian/ folder into a source tree, for dpkg-buildpackage: a copy of this folder, with what follows from the
# tree's version, its list of symbols and its licences written out.
#
#   prepare.sh SOURCE VERSION_OF_PACKAGE SECONDS
#
# SECONDS: the time of the commit, since 1970, which is that of the changelog's entry. The number in the SONAME and in the
# library package's name is the project's major version (PACKAGING.md).
set -euo pipefail
cd "$1"
package_version=$2 seconds=$3
from=cmake/debian

version=$(sed -n 's/^project(quire VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
[ -n "$version" ] || { echo "CMakeLists.txt says no version" >&2; exit 1; }
IFS=. read -r major minor _ <<<"$version"
library=libquire$major

mkdir -p debian
cp -R "$from"/{rules,source,tests,not-installed} "$from"/quire.* "$from"/libquire-* debian/
for file in "$from"/library.*; do
  sed "s/@SOVERSION@/$major/g" "$file" >"debian/$library.${file##*.}"
done
sed "s/@SOVERSION@/$major/g" "$from/control.in" >debian/control

# A program needs the version that brought the last of the functions that it calls. Until 1.0 a minor version may change
# anything, and so a program needs the same one.
{
  printf 'libquire.so.%s %s #MINVER#' "$major" "$library"
  if [ "$major" = 0 ]; then printf ', %s (<< 0.%d~)' "$library" $((minor + 1)); fi
  printf '\n* Build-Depends-Package: libquire-dev\n'
  sed -n 's/^\(quire_[a-z0-9_]*\) \([0-9.]*\)$/ \1@Base \2/p' lib/abi/symbols.txt
} >"debian/$library.symbols"

# license FILE [TITLE]: a text as a field of debian/copyright has it. Of a file with several, the part with that title.
license() {
  local text
  text=$(awk -v title="${2:-}" '
    /^=====/ { getline heading; inside = (heading == title); getline; next }
    title == "" || inside { print }
  ' "$1")
  sed 's/^$/./; s/^/ /' <<<"$text"
}
while IFS= read -r line; do
  if [[ $line =~ ^@([^:]*)(: (.*))?@$ ]]; then
    text=$(license "${BASH_REMATCH[1]}" "${BASH_REMATCH[3]}")
    [ "$text" != " ." ] || { echo "$line: there is no such text" >&2; exit 1; }
    printf '%s\n' "$text"
  else
    printf '%s\n' "$line"
  fi
done <"$from/copyright.in" >debian/copyright

cat >debian/changelog <<END
quire ($package_version) unstable; urgency=medium

  * Packages of the project itself, version $version. Its own changelog says
    what is new.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(date -u -R -d "@$seconds")
END
