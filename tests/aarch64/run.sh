#!/usr/bin/env bash
# Builds the CPU kernels for aarch64 (NEON) by a cross compiler and runs their tests in QEMU: the bits of the scalar
# references there too. Wants Debian's g++-aarch64-linux-gnu, qemu-user-static and googletest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake -S tests/aarch64 -B build/aarch64 -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
cmake --build build/aarch64
qemu-aarch64-static build/aarch64/quire_kernels_test --gtest_brief=1
