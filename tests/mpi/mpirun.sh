#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test with so many ranks of MPI, as examples/mpi does, one rank too: mpirun.sh RANKS PROGRAM [ARGUMENT...].
set -eu
# MPI's modules leak, and are unloaded by the time that leaks are looked for: they could not be told from others
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
# Runs that begin and end together race for one session folder ("mkdir: File exists"): each has its own, and removes those of runs that ended.
for folder in /tmp/bucketpool-mpi.*; do
    kill -0 "${folder##*.}" 2>/dev/null || rmdir "$folder" 2>/dev/null || true
done
folder=/tmp/bucketpool-mpi.$$
mkdir -p "$folder"
export OMPI_MCA_orte_tmpdir_base="$folder" PRTE_MCA_prte_tmpdir_base="$folder" # of version 4, of version 5
exec "$(dirname "$0")/../../examples/mpi" -m "$@"
