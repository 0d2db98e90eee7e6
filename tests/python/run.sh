#!/bin/sh
# Runs a Python test; 77 (skipped) where there is no python3.
command -v python3 >/dev/null 2>&1 || exit 77
exec python3 "$@"
