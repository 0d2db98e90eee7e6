#!/usr/bin/env bash
# Builds the documentation site: examples/guide/build.sh OUTDIR [QUIRE]
#
# OUTDIR/site/index.html can be opened in a browser as it is; the search works where a server serves the folder
# (python3 -m http.server -d OUTDIR/site). QUIRE is the command (default: that of the release build),
# which draws the pictures and says what its options are. The packages come from PyPI, into OUTDIR/venv; exit status 77:
# there is no venv (Debian: python3-venv), or pip could not fetch them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?"usage: build.sh OUTDIR [QUIRE]"}
quire=$(realpath "${2:-$here/../../build/release/bin/quire}")
mkdir -p "$out"
out=$(cd "$out" && pwd)

if ! cmp -s "$here/requirements.txt" "$out/venv/requirements.txt"; then
  rm -rf "$out/venv"
  python3 -m venv "$out/venv" || exit 77
  "$out/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" || exit 77
  cp "$here/requirements.txt" "$out/venv/"
fi
(cd "$here" && PYTHONDONTWRITEBYTECODE=1 python3 -m generate "$quire" "$out/pages")
QUIRE_GUIDE_PAGES=$out/pages QUIRE_GUIDE_SITE=$out/site NO_MKDOCS_2_WARNING=1 \
  "$out/venv/bin/mkdocs" build --strict --clean --config-file "$here/mkdocs.yml"
