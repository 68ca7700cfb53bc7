/* SPDX-License-Identifier: Apache-2.0 */
/* As much of NCCL as comm/nccl.c asks of it, between threads of one process; nccl.c beside simt.cc. */
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

/* The stand-in's own. What an aborted collective leaves in its buffer: this byte, or with -1 what lay there.
 */
void simt_nccl_abort_fills(int byte);
/* The rank's process has died: the others' communicators say so when they are asked. */
void simt_nccl_die(ncclComm_t c);
/* That rank can register so many buffers and no more; -1: nobody is refused. */
void simt_nccl_refuse(int rank, int after);
int simt_nccl_registered(ncclComm_t c);
int simt_nccl_allocated(void); /* pieces of ncclMemAlloc's memory that are not freed yet */

const char *ncclGetErrorString(ncclResult_t r);
const char *ncclGetLastError(ncclComm_t c);
ncclResult_t ncclGetVersion(int *v);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int n, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r);
ncclResult_t ncclCommFinalize(ncclComm_t c);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclCommRegister(ncclComm_t c, void *p, size_t n, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t c, void *handle);
ncclResult_t ncclMemAlloc(void **p, size_t n);
ncclResult_t ncclMemFree(void *p);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s);
