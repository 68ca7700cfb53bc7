# SPDX-License-Identifier: Apache-2.0
# DTRAIN_CPU: whether the CPU engine's kernels are also compiled for the levels of x86-64 (chosen at run time).
AC_DEFUN([DTRAIN_CPU], [
AC_MSG_CHECKING([for x86-64-v3, -v4 and AVX512_BF16 in the compiler])
dtrain_save_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS -march=x86-64-v4 -mavx512bf16"
AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#include <immintrin.h>
#if !defined __x86_64__ || !defined __AVX512BF16__
#error no
#endif
__m512 f(__m512 a, __m512bh b) { return _mm512_dpbf16_ps(a, b, b); }
]])], [dtrain_kernels_x86=yes], [dtrain_kernels_x86=no])
CFLAGS=$dtrain_save_CFLAGS
AC_MSG_RESULT([$dtrain_kernels_x86])
AS_IF([test $dtrain_kernels_x86 = yes],
	[dtrain_summary_kernels="x86-64, x86-64-v3, x86-64-v4 and AVX512_BF16, chosen when a worker starts"],
	[dtrain_summary_kernels="the compiler's target alone"])
AM_CONDITIONAL([KERNELS_X86], [test "x$dtrain_kernels_x86" = xyes])
])
