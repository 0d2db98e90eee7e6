#!/usr/bin/env bash
# Builds the site, where a link to nowhere is an error, and looks whether its pages are there: test_build.sh OUTDIR QUIRE
set -euo pipefail
guide=$(cd "$(dirname "$0")/../../examples/guide" && pwd)
"$guide/build.sh" "$1" "$2" || { status=$?; [ $status != 77 ] || echo "skipped: no venv, or pip cannot fetch the packages"; exit $status; }

for page in $(cd "$1/pages" && find . -name '*.md' ! -name SUMMARY.md); do
  [ -s "$1/site/${page%.md}.html" ] || { echo "$page was not built"; exit 1; }
done
grep -q 'quire_session_feed_text' "$1/site/search/search_index.json"  # the search knows the reference

# The check of links is at work.
echo '[nowhere](nowhere.md)' >> "$1/pages/start.md"
if QUIRE_GUIDE_PAGES=$1/pages QUIRE_GUIDE_SITE=$1/broken "$1/venv/bin/mkdocs" build --strict \
    --config-file "$guide/mkdocs.yml" > /dev/null 2>&1; then
  echo "a broken link was built"
  exit 1
fi
