/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of struct device on CUDA, shared by the files of this directory and by comm/nccl, which needs
 * the stream. The operations of device.h are implemented together with their kernels, in the .cu files: each
 * queues its kernels on `stream` and returns; if that fails, device_fault keeps the error.
 *
 * tests/simt compiles the same files for the host, with stand-ins for the headers of CUDA.
 */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/device/cuda/parts.h"
#include "engine/device/fault.h"

/* Partial sums are cut by shape alone: never by the number of multiprocessors. */
#define REDUCE_PARTS 1024
#define STAGING      ((size_t)4 << 20) /* of both halves together */

struct gemm_cache;
struct attention_cudnn;

struct device {
	struct device_base base;
	int index, major, minor, multiprocessors;
	int64_t memory;     /* bytes */
	size_t shared_most; /* bytes of shared memory that a block may ask for */
	bool stream_made;
	int unfused; /* enum device_unfused */
	cudaStream_t stream;
	cudaStream_t transfers; /* these two: made with the first host memory, NULL before */
	cudaEvent_t computed;   /* what a transfer begins after */
	/* Within device_aside_begin, `stream` is the second of these two, which is made at the first one. */
	cudaStream_t compute, aside;
	cudaEvent_t before_aside;
	struct gemm_cache *gemm;
	struct attention_cudnn *cudnn; /* NULL: our own attention alone */
	const char *cudnn_missing;     /* why, where it was looked for */
	double *parts;                 /* [REDUCE_PARTS] */
	void *tensor_map_encode;       /* the driver's cuTensorMapEncodeTiled; NULL: not looked for */
	bool attention_hopper[DEVICE_ATTENTION_PASSES]; /* a pass of attention is Hopper's kernel's where it
	                                                   can */
	/* Pinned: small writes leave from here, so that the caller need not wait. The halves are used in
	 * turn; left: behind the last write of a half. */
	char *staging;
	cudaEvent_t left[2];
	int half;
	size_t staged; /* bytes of the half that have been used */
	char description[256];
	char gemm_kind[160];
};

/* Called after a launch: keeps its error. */
void device_launched(struct device *dev, const char *kernel);
/* Fills err from an error of the runtime; "cuda:0: what: the runtime's words". */
int device_cuda_error(const struct device *dev, cudaError_t status, const char *what, struct error *err);

/* gemm.c */
int gemm_create(struct device *dev, struct error *err);
void gemm_destroy(struct device *dev);
const char *gemm_describe(char *text, size_t size); /* "cuBLASLt 13.0.0", the library's version; text */

/* cublaslt.c: before the first of its functions; err names the library that is missing or too old. */
int cublaslt_load(struct error *err);

/* driver.c */
struct driver_report {
	int runtime, driver; /* 1000 · major + 10 · minor of CUDA: built with, supported; 0: no driver */
	int status;          /* cudaError_t of cudaGetDeviceCount */
	char module[32];     /* version of the kernel's module, "" unknown */
};
int driver_check(const struct driver_report *report, struct error *err);
int driver_check_gpu(const char *name, int major, int minor, struct error *err); /* compute capability */
/* From /proc/driver/nvidia/version; "" where there is none. */
void driver_module_version(const char *path, char *version, size_t size);

static inline size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

#ifdef __cplusplus
}
#endif
