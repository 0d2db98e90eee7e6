#!/usr/bin/env bash
# Measures the strategies on a real model (examples/get_model.sh) and writes tests/quality/real.md. Goes on where it was
# stopped: `bash tests/quality/real.sh --minutes 60` once or many times. All of it takes days on two cores.
# Arguments go to tests/quality/real (--task, --strategy, --length, --rounds, --threads, --device; --minutes 0 only writes
# the page).
# The text is the Debian Administrator's Handbook, of Debian's package debian-handbook (11.20220922 in Debian 12), fetched
# to $QUIRE_CACHE, or else ~/.cache/quire.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=$(bash examples/get_model.sh)
cache=$(dirname "$model")
handbook=$cache/debian-handbook
if [ ! -d "$handbook" ]; then
  work=$(mktemp -d -- "$cache/fetching-XXXXXX")
  trap 'rm -rf -- "$work"' EXIT
  (cd "$work" && apt-get download debian-handbook)
  dpkg-deb -x "$work"/debian-handbook_*.deb "$work/files"
  mv -- "$work/files/usr/share/doc/debian-handbook/html/en-US" "$handbook"
fi
cmake --preset release >/dev/null
cmake --build --preset release --target quire_shared quire_chunk_ranks
if [ ! -x build/report/bin/python ]; then
  python3 -m venv build/report
  build/report/bin/pip install --quiet -r tests/quality/report/requirements.txt
fi
exec build/report/bin/python tests/quality/real --library build/release/lib/abi/libquire.so --model "$model" \
  --handbook "$handbook" --ranks build/release/bin/quire_chunk_ranks "$@"
