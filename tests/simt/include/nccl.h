/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL that the engine uses, between threads of one process; tests/simt/nccl.c implements it. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

typedef enum {
	ncclSuccess,
	ncclUnhandledCudaError,
	ncclSystemError,
	ncclInternalError,
	ncclInvalidArgument,
	ncclInvalidUsage,
	ncclRemoteError,
	ncclInProgress
} ncclResult_t;
typedef enum { ncclSum, ncclMax = 2 } ncclRedOp_t;
typedef enum {
	ncclUint8 = 1,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9
} ncclDataType_t;
typedef struct fake_comm *ncclComm_t;
#define NCCL_SPLIT_NOCOLOR (-1)
typedef struct {
	char internal[128];
} ncclUniqueId;
typedef struct {
	int blocking;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                              \
	{                                                                                                    \
		1                                                                                            \
	}

/* Only in the stand-in. The contents of the buffer of an aborted collective: this byte, or with -1
 * unchanged. */
void simt_nccl_abort_fills(int byte);
/* The process of this rank has died: the communicators of the others report it when they are queried. */
void simt_nccl_die(ncclComm_t c);
/* This rank can register only that many buffers; -1: no limit. */
void simt_nccl_refuse(int rank, int after);
int simt_nccl_registered(ncclComm_t c);
/* The library has windows; refused: but makes none of the memory of this rank (-1: of all ranks). */
void simt_nccl_windows(int has, int refused);
/* Windows end in an error, which the communicator keeps. */
void simt_nccl_fail_windows(int fail);
int simt_nccl_window_count(ncclComm_t c);
int simt_nccl_grouped(void);   /* collectives so far that were in a group of two or more */
int simt_nccl_allocated(void); /* pieces of ncclMemAlloc's memory that are not freed yet */

const char *ncclGetErrorString(ncclResult_t r);
const char *ncclGetLastError(ncclComm_t c);
ncclResult_t ncclGetVersion(int *v);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int n, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *part, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r);
ncclResult_t ncclCommFinalize(ncclComm_t c);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclCommRegister(ncclComm_t c, void *p, size_t n, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t c, void *handle);
ncclResult_t ncclMemAlloc(void **p, size_t n);
ncclResult_t ncclMemFree(void *p);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s);
ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s);
