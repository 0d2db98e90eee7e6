#!/usr/bin/env bash
# Installs the Debian packages of the named groups of debian-packages.txt that are not there yet.
#   bash cmake/debian-packages.sh build [test] [all]
set -euo pipefail

list="$(dirname "${BASH_SOURCE[0]}")/debian-packages.txt"
[ $# -gt 0 ] || { echo "usage: $0 GROUP..." >&2; exit 2; }

wanted=()
for group in "$@"; do
  while read -r package; do wanted+=("$package"); done < <(awk -v g="$group" '!/^#/ && $2 == g { print $1 }' "$list")
done

if ! command -v dpkg-query >/dev/null; then
  echo "This is no Debian system; please provide: ${wanted[*]}" >&2
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "Please install as root: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "Installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}
if ! install >"$log" 2>&1; then
  cat "$log" >&2
  echo "Installing the packages failed." >&2
  exit 1
fi
