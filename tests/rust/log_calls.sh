#!/bin/sh
# Runs a test program so that the dynamic linker writes to $QUIRE_CALLS.PID which functions it calls.
LD_DEBUG=bindings LD_DEBUG_OUTPUT="$QUIRE_CALLS" exec "$@"
