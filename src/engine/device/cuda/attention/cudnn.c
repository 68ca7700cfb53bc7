/* SPDX-License-Identifier: Apache-2.0 */
/* Loads cuDNN and defines its functions, which call those of the library. */
#include "engine/device/cuda/attention/cudnn.h"

#include "base/cleanup.h"
#include "engine/device/cuda/library.h"

/* All have the operations that cudnn_composite.c makes the forward pass of. */
#define MINIMUM 90000

/* clang-format off */
#define FUNCTIONS(F) \
	F(size_t, cudnnGetVersion, (void), ()) \
	F(const char *, cudnnGetErrorString, (cudnnStatus_t status), (status)) \
	F(void, cudnnGetLastErrorString, (char *message, size_t size), (message, size)) \
	F(cudnnStatus_t, cudnnCreate, (cudnnHandle_t *handle), (handle)) \
	F(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), (handle)) \
	F(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream)) \
	F(cudnnStatus_t, cudnnBackendCreateDescriptor, \
	  (int type, cudnnBackendDescriptor_t *descriptor), (type, descriptor)) \
	F(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor)) \
	F(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor)) \
	F(cudnnStatus_t, cudnnBackendSetAttribute, \
	  (cudnnBackendDescriptor_t descriptor, int name, int type, int64_t count, const void *elements), \
	  (descriptor, name, type, count, elements)) \
	F(cudnnStatus_t, cudnnBackendGetAttribute, \
	  (cudnnBackendDescriptor_t descriptor, int name, int type, int64_t wanted, int64_t *count, \
	   void *elements), \
	  (descriptor, name, type, wanted, count, elements)) \
	F(cudnnStatus_t, cudnnBackendExecute, \
	  (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), \
	  (handle, plan, pack))
/* clang-format on */

LIBRARY_DEFINE(FUNCTIONS)

static int version(void *function)
{
	return (int)((size_t(*)(void))function)();
}

int cudnn_load(struct error *err)
{
	static const struct library l = {.title = "cuDNN",
	                                 .soname = "libcudnn.so.9",
	                                 .package = "libcudnn9-cuda-13",
	                                 .minimum = MINIMUM,
	                                 .version_symbol = "cudnnGetVersion",
	                                 .version = version,
	                                 .symbols = symbols,
	                                 .symbol_count = ARRAY_SIZE(symbols)};

	return real.cudnnCreate ? 0 : library_load(&l, NULL, err);
}
