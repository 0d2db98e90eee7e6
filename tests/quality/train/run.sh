#!/usr/bin/env bash
# Trains every model of tests/quality/models again and prints what came out. One thread, fixed seeds.
#     bash tests/quality/train/run.sh            PYTHON=... for another Python than python3
set -euo pipefail
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
for script in pose sparse_lora long_lora; do
    "${PYTHON:-python3}" "$script.py"
done
"${PYTHON:-python3}" beacon.py
"${PYTHON:-python3}" beacon.py --evaluate --json ../models/beacon/evaluation.json
