/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA runtime that device/cuda uses, with memory of the host: everything is done at once. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorNoDevice = 100,
	cudaErrorNotReady = 600
} cudaError_t;
enum {
	cudaErrorInsufficientDriver = 35,
	cudaErrorDevicesUnavailable = 46,
	cudaErrorSystemNotReady = 802,
	cudaErrorSystemDriverMismatch = 803,
	cudaErrorNoKernelImageForDevice = 209
};
typedef struct simt_stream *cudaStream_t;
typedef struct simt_event *cudaEvent_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };

struct cudaDeviceProp {
	char name[256];
	int major, minor, multiProcessorCount;
	size_t totalGlobalMem, sharedMemPerBlockOptin;
};

/* simt.cc: the shared memory that a block may have: SIMT_SHARED KiB, by default as on an H200. */
#ifdef __cplusplus
extern "C" {
#endif
size_t simt_shared_most(void);
/* stream.c: the last error of the calling thread, including "not ready", as in the real runtime. */
cudaError_t cudaGetLastError(void);
#ifdef __cplusplus
}
#endif

static inline const char *cudaGetErrorString(cudaError_t e)
{
	return e == cudaErrorNotReady                          ? "not ready"
	       : e == (cudaError_t)cudaErrorDevicesUnavailable ? "busy or unavailable"
	       : e                                             ? "an error"
	                                                       : "no error";
}
static inline cudaError_t cudaDriverGetVersion(int *v)
{
	*v = 13000;
	return cudaSuccess;
}
static inline cudaError_t cudaRuntimeGetVersion(int *v)
{
	*v = 13000;
	return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceCount(int *n)
{
	*n = 1;
	return cudaSuccess;
}
/* SIMT_COMPUTE_MODE: 3 is EXCLUSIVE_PROCESS, in which the processes that one with the device starts do not
 * get it. */
enum { cudaComputeModeDefault = 0, cudaComputeModeExclusive = 1, cudaComputeModeExclusiveProcess = 3 };
enum { cudaDevAttrComputeMode = 20 };
static inline cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int i)
{
	*value = getenv("SIMT_COMPUTE_MODE") ? atoi(getenv("SIMT_COMPUTE_MODE")) : cudaComputeModeDefault;
	return attribute == cudaDevAttrComputeMode ? cudaSuccess : cudaErrorInvalidValue;
}
static inline cudaError_t cudaSetDevice(int i)
{
	const char *holder = getenv("SIMT_HOLDER");
	char own[16];
	int mode = 0;

	cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, i);
	if (mode != cudaComputeModeExclusiveProcess)
		return cudaSuccess;
	snprintf(own, sizeof(own), "%d", (int)getpid());
	if (holder && strcmp(holder, own) != 0)
		return (cudaError_t)cudaErrorDevicesUnavailable;
	return setenv("SIMT_HOLDER", own, 1) ? cudaErrorInvalidValue : cudaSuccess;
}
static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int i)
{
	memset(p, 0, sizeof(*p));
	strcpy(p->name, "SIMT emulator");
	p->major = getenv("SIMT_MAJOR") ? atoi(getenv("SIMT_MAJOR")) : 9; /* of the compute capability */
	p->multiProcessorCount = 1;
	p->totalGlobalMem = (size_t)1 << 30;
	p->sharedMemPerBlockOptin = simt_shared_most();
	return cudaSuccess;
}
/*
 * Device memory. With SIMT_PROTECT set, the host can access it only through the calls below, and these calls
 * and kernels can access nothing else: a wrong pointer ends the program. simt_enter and simt_leave enclose
 * all work of the device.
 */
#ifdef __cplusplus
extern "C" {
#endif
void *simt_malloc(size_t bytes);
void simt_free(void *p);
void simt_enter(cudaStream_t s); /* waits for the work that s has to wait for */
void simt_leave(void);
void simt_check(const void *p, const char *what);
void simt_count_read(void);
int simt_reads(void); /* copies to the host so far */
int simt_stream_late(cudaStream_t s);
void simt_stream_copy(cudaStream_t s, void *to, const void *from, size_t n); /* of a late stream */
#ifdef __cplusplus
}
#endif

static inline cudaError_t cudaMalloc(void **p, size_t n)
{
	*p = simt_malloc(n);
	return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
static inline cudaError_t cudaFree(void *p)
{
	simt_free(p);
	return cudaSuccess;
}
static inline cudaError_t cudaMallocHost(void **p, size_t n)
{
	*p = malloc(n);
	return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
static inline cudaError_t cudaFreeHost(void *p)
{
	free(p);
	return cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	*available = *total = (size_t)1 << 30;
	return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k,
                                          cudaStream_t s)
{
	if (k != cudaMemcpyDeviceToHost)
		simt_check(to, "the target of a copy");
	if (k != cudaMemcpyHostToDevice)
		simt_check(from, "the source of a copy");
	if (k == cudaMemcpyDeviceToHost)
		simt_count_read();
	if (simt_stream_late(s)) {
		simt_stream_copy(s, to, from, n);
		return cudaSuccess;
	}
	simt_enter(s);
	memmove(to, from, n);
	simt_leave();
	return cudaSuccess;
}
static inline cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                            size_t width, size_t height, enum cudaMemcpyKind k,
                                            cudaStream_t s)
{
	cudaError_t r = cudaSuccess;

	for (size_t i = 0; i < height && !r; i++)
		r = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, k,
		                    s);
	return r;
}
static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
	simt_check(p, "what is set");
	simt_enter(s);
	memset(p, value, n);
	simt_leave();
	return cudaSuccess;
}
static inline cudaError_t cudaMemset(void *p, int value, size_t n)
{
	return cudaMemsetAsync(p, value, n, NULL);
}

/* stream.c: a stream has unfinished work while a collective of tests/simt/nccl.c is in progress on it, or
 * while it waits for one. A stream that is made with a priority is late: its kernels and copies run once
 * another stream or the host waits for them, and not before, so that a wait that is missing gives other
 * results. */
#ifdef __cplusplus
extern "C" {
#endif
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
/* For the stand-in of NCCL: a collective begins on s; a collective is done. */
void simt_stream_begin(cudaStream_t s);
void simt_stream_end(cudaStream_t s);
void simt_stream_settle(cudaStream_t s);
void simt_stream_finish(cudaStream_t s); /* waits for all of its work */
/* How often the host has waited for a stream, or for an event. */
int simt_waits(int for_streams);
/* Streams that this thread makes from now on are late without a priority, too: those of transfers, where a
 * test sets it once there is a device. */
void simt_late_streams(int late);
/* The next work of a late stream. run(context) is called once, possibly in another thread. */
void simt_stream_defer(cudaStream_t s, void (*run)(void *context), void *context);
int simt_stream_waits(cudaStream_t s); /* for work on another stream */
void simt_refuse_timing(int refuse);   /* no event with a time can be made while this is set */
/* The device spends so many seconds with what was queued last: events that are recorded from now on are as
 * much later. Nobody waits. */
void simt_spend(double seconds);
/* The number of plans that the stand-in for cuDNN has run. */
int simt_cudnn_executions(void);
#ifdef __cplusplus
}
#endif
