#!/usr/bin/env bash
# clang-format must have nothing to change anywhere; clang-tidy, with a short list of checks that find mistakes, runs over
# the library's and the command's own sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find lib kernels include examples tests bindings -path lib/third_party -prune -o \
  \( -name '*.h' -o -name '*.cc' -o -name '*.c' -o -name '*.cu' \) -print0 | xargs -0 clang-format --dry-run --Werror

[ -f build/clang/compile_commands.json ] || cmake --preset clang >/dev/null

checks='-*,bugprone-use-after-move,bugprone-dangling-handle,bugprone-infinite-loop,bugprone-sizeof-expression'
checks+=',bugprone-undelegated-constructor,bugprone-unused-raii,clang-analyzer-core.*,clang-analyzer-cplusplus.*'
checks+=',misc-unused-using-decls,performance-for-range-copy,performance-implicit-conversion-in-loop'
find lib examples/cli -name '*.cc' -print0 |
  xargs -0 -P "$(nproc)" -n 4 clang-tidy -p build/clang --quiet --warnings-as-errors='*' --checks="$checks"
