/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libcuda.so.1 that cuDNN needs to make plans for a GPU that does not exist. */
#define EXPORT __attribute__((visibility("default")))

enum { NO_DEVICE = 100 };

#define FAILS(name)                                                                                          \
	EXPORT int name(void);                                                                               \
	EXPORT int name(void)                                                                                \
	{                                                                                                    \
		return NO_DEVICE;                                                                            \
	}
#define SUCCEEDS(name)                                                                                       \
	EXPORT int name(void);                                                                               \
	EXPORT int name(void)                                                                                \
	{                                                                                                    \
		return 0;                                                                                    \
	}
#define GIVES(name)                                                                                          \
	EXPORT int name(void **out);                                                                         \
	EXPORT int name(void **out)                                                                          \
	{                                                                                                    \
		*out = "";                                                                                   \
		return 0;                                                                                    \
	}

FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuDriverGetVersion)
FAILS(cuInit)
FAILS(cuKernelGetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuTensorMapEncodeIm2col)
SUCCEEDS(cuTensorMapEncodeTiled)
GIVES(cuKernelGetFunction)
GIVES(cuLibraryGetKernel)
GIVES(cuLibraryLoadData)
GIVES(cuModuleGetFunction)
GIVES(cuModuleLoadData)

EXPORT int cuGetErrorName(int code, const char **text);
EXPORT int cuGetErrorName(int code, const char **text)
{
	*text = "CUDA_ERROR_NO_DEVICE";
	return 0;
}

EXPORT int cuGetErrorString(int code, const char **text);
EXPORT int cuGetErrorString(int code, const char **text)
{
	*text = "no device";
	return 0;
}
