/* SPDX-License-Identifier: Apache-2.0 */
/* Included in every source of the wheel (wheel.py): glibc 2.29 has new versions of these functions, which differ in the handling of errors by
 * the long obsolete _LIB_VERSION only. With the older versions the wheel runs with glibc 2.28. */
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver log2, log2@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
