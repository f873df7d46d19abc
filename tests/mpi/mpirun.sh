#!/bin/sh
# Runs a test with so many ranks of MPI, as examples/mpi does, one rank too: mpirun.sh RANKS PROGRAM [ARGUMENT...].
set -eu
# MPI's modules leak, and are unloaded by the time that leaks are looked for: they could not be told from others
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
exec "$(dirname "$0")/../../examples/mpi" -m "$@"
