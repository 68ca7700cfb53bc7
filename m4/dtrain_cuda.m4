# SPDX-License-Identifier: Apache-2.0
# DTRAIN_CUDA: --with-cuda[=DIR|no]; looks for nvcc in the usual places. Sets HAVE_CUDA, NVCC, CUDA_CFLAGS, CUDA_LIBS.
AC_DEFUN([DTRAIN_CUDA], [
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [build the CUDA engine with the toolkit in DIR (default: look for it)])],
	[], [with_cuda=check])
AC_ARG_VAR([NVCC], [the CUDA compiler])
have_cuda=no
AS_CASE([$with_cuda], [no], [],
	[check|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin:/usr/lib/cuda/bin])],
	[AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
AS_IF([test -n "$NVCC"], [have_cuda=yes],
	[AS_IF([test "x$with_cuda" != xcheck && test "x$with_cuda" != xno], [AC_MSG_ERROR([no nvcc found for --with-cuda=$with_cuda])])])
])
