/* SPDX-License-Identifier: Apache-2.0 */
/* Included in every source of the wheel (wheel.py): glibc 2.29 has new versions of these functions, which differ in the handling of errors by
 * the long obsolete _LIB_VERSION only. With the older versions the wheel runs with glibc 2.28. */
#ifdef __aarch64__
#define OLDEST "GLIBC_2.17"
#else
#define OLDEST "GLIBC_2.2.5"
#endif
__asm__(".symver exp, exp@" OLDEST);
__asm__(".symver log, log@" OLDEST);
__asm__(".symver log2, log2@" OLDEST);
__asm__(".symver pow, pow@" OLDEST);
