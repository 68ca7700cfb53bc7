# SPDX-License-Identifier: Apache-2.0
# DTRAIN_CUDA: --with-cuda[=DIR|no]: the CUDA engine where the toolkit is: nvcc that compiles for the architectures named below,
# the static runtime, and the headers of cuBLASLt and NCCL (their libraries are loaded at run time). By default it is built where
# all of that is found, and left out where anything is missing.
# Sets HAVE_CUDA and HAVE_HOPPER (conditionals), NVCC, NVCCFLAGS, CUDA_CFLAGS, CUDA_LIBS.
# Headers elsewhere than in the toolkit: ./configure CUDA_CFLAGS=-I….

# The architectures, one -gencode each (brackets would die in m4: code= has none): machine code for the data centre's A100, H100 and
# H200, B200; sm_80's also runs on 8.6 and 8.9. Every other and later card compiles the PTX at its first use, once. That of
# compute_80 is enough: the kernels have no instruction that came later, so a newer PTX would only be larger.
m4_define([DTRAIN_CUDA_GENCODE], [-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 dnl
-gencode arch=compute_100,code=sm_100 -gencode arch=compute_80,code=compute_80])

AC_DEFUN([DTRAIN_CUDA], [
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [build the CUDA engine with the toolkit in DIR (default: look for it)])],
	[], [with_cuda=check])
AC_ARG_VAR([NVCC], [the CUDA compiler])
AC_ARG_VAR([NVCC_ARCH], [its -gencode options])
AC_ARG_VAR([CUDA_CFLAGS], [where cublasLt.h, nccl.h are, if not in the toolkit: -I…])
AC_ARG_VAR([CUDA_LIBS], [where libcudart_static.a is, if not in the toolkit: -L…])
have_cuda=no
have_hopper=no
have_cudnn_headers=no
cuda_missing=
AS_CASE([$with_cuda],
	[no], [NVCC=],
	[check|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin:/usr/local/cuda-13/bin:/usr/lib/cuda/bin])],
	[AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
AS_IF([test "x$with_cuda" = xno], [cuda_missing="--without-cuda"],
	[test -z "$NVCC"], [cuda_missing="no nvcc"],
	[
	: ${NVCC_ARCH="DTRAIN_CUDA_GENCODE"}
	# Quiet about nothing: the compiler's own remarks are switched on for the host's half.
	NVCCFLAGS="-std=c++17 -O3 -lineinfo -Xcompiler -Wall"
	AS_IF([test "x$enable_werror" = xyes], [NVCCFLAGS="$NVCCFLAGS --Werror all-warnings -Xcompiler -Werror"])
	AC_MSG_CHECKING([whether $NVCC compiles for $(echo "$NVCC_ARCH" | grep -o 'code=@<:@a-z@:>@*_@<:@0-9@:>@*' | cut -d= -f2 | tr '\n' ' ')])
	cat >conftest.cu <<_ACEOF
#include <cuda_runtime.h>
#include <cuda_bf16.h>
__global__ void k(float *x) { x@<:@threadIdx.x@:>@ *= 2; }
_ACEOF
	# Where nvcc itself looks: it may be a script that starts one elsewhere.
	cuda_home=$($NVCC --dryrun -c -o conftest.$OBJEXT conftest.cu 2>&1 | sed -n 's/^.* TOP=//p')
	AS_IF([test -d "$cuda_home/include"], [CUDA_CFLAGS="$CUDA_CFLAGS -isystem $cuda_home/include"])
	for cuda_dir in "$cuda_home/lib64" "$cuda_home/lib"; do
		AS_IF([test -e "$cuda_dir/libcudart_static.a"], [CUDA_LIBS="$CUDA_LIBS -L$cuda_dir"; break])
	done
	AS_IF([$NVCC $NVCC_ARCH $NVCCFLAGS -c -o conftest.$OBJEXT conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
		[AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no]); cuda_missing="nvcc that compiles (config.log says why not)"])
	# Kernels for Hopper alone, where its architecture is asked for and nvcc knows its instructions (CUDA 12).
	AS_CASE([$NVCC_ARCH], [*compute_90*], [
		AC_MSG_CHECKING([whether $NVCC compiles for sm_90a])
		cat >conftest.cu <<_ACEOF
#include <cuda.h>
__global__ void k(const __grid_constant__ CUtensorMap map) { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;" ::"l"(&map)); }
_ACEOF
		AS_IF([$NVCC -gencode arch=compute_90a,code=sm_90a -std=c++17 -c -o conftest.$OBJEXT conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
			[have_hopper=yes; NVCCFLAGS="$NVCCFLAGS -DHAVE_HOPPER"])
		AC_MSG_RESULT([$have_hopper])])
	rm -f conftest.cu conftest.$OBJEXT
	cuda_save_CPPFLAGS=$CPPFLAGS
	cuda_save_LIBS=$LIBS
	CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
	LIBS="$CUDA_LIBS $LIBS"
	AS_IF([test -z "$cuda_missing"],
		[AC_CHECK_HEADER([cublasLt.h], [], [cuda_missing="cublasLt.h (apt install libcublas-dev-13-0)"])])
	AS_IF([test -z "$cuda_missing"], [
		# With registered buffers: 2.19.
		AC_CHECK_DECL([ncclCommRegister], [], [cuda_missing="nccl.h of NCCL 2.19 or newer (apt install libnccl-dev)"],
			[[#include <nccl.h>]])])
	AS_IF([test -z "$cuda_missing"],
		[AC_CHECK_LIB([cudart_static], [cudaGetDeviceCount], [have_cuda=yes],
			[cuda_missing="libcudart_static.a (apt install cuda-cudart-dev-13-0)"], [-lpthread -ldl -lrt])])
	# cuDNN is loaded at run time and needs no headers; where they are, its constants are compared with them.
	AS_IF([test -z "$cuda_missing"], [AC_CHECK_HEADER([cudnn_graph.h], [have_cudnn_headers=yes])])
	CPPFLAGS=$cuda_save_CPPFLAGS
	LIBS=$cuda_save_LIBS
	CUDA_LIBS="$CUDA_LIBS -lcudart_static -lpthread -ldl -lrt -lstdc++"
	])
AC_MSG_CHECKING([for the CUDA engine])
AS_IF([test $have_cuda = yes], [AC_MSG_RESULT([yes])],
	[AC_MSG_RESULT([no: $cuda_missing])
	 AS_CASE([$with_cuda], [no|check], [], [AC_MSG_ERROR([--with-cuda=$with_cuda: missing: $cuda_missing])])])
AS_IF([test $have_cuda = yes],
	[dtrain_summary_cuda="yes: $NVCC"
	 dtrain_summary_nccl="yes (the library is loaded at run time)"
	 dtrain_summary_cudnn="$have_cudnn_headers (optional; the library is loaded at run time)"],
	[dtrain_summary_cuda="no: $cuda_missing"
	 dtrain_summary_nccl="not looked for: no CUDA engine"
	 dtrain_summary_cudnn="not looked for: no CUDA engine"])
AC_SUBST([NVCCFLAGS])
AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
AM_CONDITIONAL([HAVE_HOPPER], [test $have_hopper = yes])
])

# DTRAIN_CXX: a C++ compiler for tests/simt, which runs the CUDA kernels on the host. Sets HAVE_CXX.
AC_DEFUN([DTRAIN_CXX], [
AC_LANG_PUSH([C++])
AC_MSG_CHECKING([whether $CXX works])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <vector>]], [[std::vector<int> v; auto f = [&] { return v.size(); }; return (int)f();]])],
	[have_cxx=yes], [have_cxx=no])
AC_MSG_RESULT([$have_cxx])
AC_LANG_POP([C++])
AM_CONDITIONAL([HAVE_CXX], [test $have_cxx = yes])
])
