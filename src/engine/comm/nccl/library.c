/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NCCL and defines its functions, which call those of the library. It is loaded only where there are
 * several ranks, so that a single rank runs without it. */
#include <nccl.h>

#include "base/cleanup.h"
#include "engine/comm/nccl/library.h"
#include "engine/device/cuda/library.h"

/* NCCL's header has no prototypes of these. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

/* clang-format off */
#define FUNCTIONS(F) \
	F(const char *, ncclGetErrorString, (ncclResult_t result), (result)) \
	F(const char *, ncclGetLastError, (ncclComm_t comm), (comm)) \
	F(ncclResult_t, ncclGetVersion, (int *version), (version)) \
	F(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *id), (id)) \
	F(ncclResult_t, ncclCommInitRankConfig, \
	  (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config), \
	  (comm, ranks, id, rank, config)) \
	F(ncclResult_t, ncclCommSplit, \
	  (ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *config), \
	  (comm, color, key, part, config)) \
	F(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *result), (comm, result)) \
	F(ncclResult_t, ncclCommFinalize, (ncclComm_t comm), (comm)) \
	F(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm)) \
	F(ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm)) \
	F(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buffer, size_t size, void **handle), \
	  (comm, buffer, size, handle)) \
	F(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle), (comm, handle)) \
	F(ncclResult_t, ncclMemAlloc, (void **memory, size_t size), (memory, size)) \
	F(ncclResult_t, ncclMemFree, (void *memory), (memory)) \
	F(ncclResult_t, ncclGroupStart, (void), ()) \
	F(ncclResult_t, ncclGroupEnd, (void), ()) \
	F(ncclResult_t, ncclAllReduce, \
	  (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, \
	   cudaStream_t stream), \
	  (from, to, count, type, op, comm, stream)) \
	F(ncclResult_t, ncclReduceScatter, \
	  (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, \
	   cudaStream_t stream), \
	  (from, to, count, type, op, comm, stream)) \
	F(ncclResult_t, ncclAllGather, \
	  (const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream), \
	  (from, to, count, type, comm, stream)) \
	F(ncclResult_t, ncclBroadcast, \
	  (const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, \
	   cudaStream_t stream), \
	  (from, to, count, type, root, comm, stream)) \
	F(ncclResult_t, ncclSend, \
	  (const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, \
	   cudaStream_t stream), \
	  (from, count, type, peer, comm, stream)) \
	F(ncclResult_t, ncclRecv, \
	  (void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream), \
	  (to, count, type, peer, comm, stream))
/* clang-format on */

LIBRARY_DEFINE(FUNCTIONS)

/* Of the ABI of all libraries named libnccl.so.2: ncclWindow_t is a pointer. */
enum { WIN_COLL_SYMMETRIC = 1 };

static struct {
	ncclResult_t (*add)(ncclComm_t comm, void *memory, size_t size, void **window, int flags);
	ncclResult_t (*remove)(ncclComm_t comm, void *window);
} windows;

bool nccl_has_windows(void)
{
	return windows.add && windows.remove;
}

ncclResult_t nccl_window_register(ncclComm_t comm, void *memory, size_t size, void **window)
{
	return windows.add(comm, memory, size, window, WIN_COLL_SYMMETRIC);
}

ncclResult_t nccl_window_deregister(ncclComm_t comm, void *window)
{
	return windows.remove(comm, window);
}

static int version(void *function)
{
	int v = 0;

	return ((ncclResult_t(*)(int *))function)(&v) == ncclSuccess ? v : -1;
}

int nccl_load(struct error *err)
{
	static const struct library_symbol optional[] = {
	    {"ncclCommWindowRegister", (void **)&windows.add},
	    {"ncclCommWindowDeregister", (void **)&windows.remove}};
	/* ncclConfig_t has its own size and version, so that an older library reads only the fields that it
	 * knows. */
	static const struct library l = {.title = "NCCL",
	                                 .soname = "libnccl.so.2",
	                                 .package = "libnccl2",
	                                 .minimum = 21900, /* buffers are registered, and memory handed out */
	                                 .version_symbol = "ncclGetVersion",
	                                 .version = version,
	                                 .symbols = symbols,
	                                 .symbol_count = ARRAY_SIZE(symbols),
	                                 .optional = optional,
	                                 .optional_count = ARRAY_SIZE(optional)};

	return real.ncclCommInitRankConfig ? 0 : library_load(&l, NULL, err);
}
