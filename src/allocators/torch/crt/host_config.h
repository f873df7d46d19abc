/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for NVIDIA's file of this name, as host_defines.h: it refuses host compilers that nvcc does not support. */
