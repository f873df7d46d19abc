#!/bin/sh
# Runs a program with so many ranks of MPI: mpirun.sh RANKS PROGRAM [ARGUMENT...]. Also as root and with more ranks than cores, which
# Open MPI refuses by itself.
set -eu
if ! command -v mpirun >/dev/null 2>&1; then
    echo "mpirun is not installed"
    exit 77
fi
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# the same for version 5
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# containers that do not let a process read another's memory
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_mpi_yield_when_idle=1
# does not look for networks, which takes most of a short program's time
export OMPI_MCA_pml=ob1
# MPI's modules leak, and are unloaded by the time that leaks are looked for: they could not be told from others
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
exec mpirun -n "$ranks" "$@"
