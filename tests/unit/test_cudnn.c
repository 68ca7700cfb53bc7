/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graphs and plans of attention by the installed cuDNN, for described GPUs: no GPU and no driver is
 * needed. The results of the plans are tested on a GPU (test_device_attention), and over a stand-in for
 * cuDNN.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "engine/device/cuda/attention/cudnn_plan.h"
#include "engine/device/cuda/library.h"
#include "unit.h"

#define MIB ((size_t)1 << 20)

static const struct {
	const char *name;
	int major, processors, shared;
} gpus[] = {{"A100", 8, 108, 166912}, {"H200", 9, 132, 232448}, {"B200", 10, 148, 232448}};
enum { A100, H200, B200 };

static char *describe(int gpu)
{
	char *json = NULL;

	ck_assert_int_gt(
	    asprintf(&json,
	             "{\"version\":1,\"deviceName\":\"%s\",\"maxGridSize\":[2147483647,65535,65535],"
	             "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":%d,"
	             "\"smCountOrigin\":0,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
	             "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,"
	             "\"oversizedSharedMemoryPerBlock\":0,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
	             "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"maxSharedMemoryPerSM\":%d,"
	             "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
	             "\"totalGlobalMem\":85899345920,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
	             "\"memoryBusWidth\":6144,\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,"
	             "\"l2CacheSize\":62914560}",
	             gpus[gpu].name, gpus[gpu].processors, gpus[gpu].shared, gpus[gpu].shared + 1024,
	             gpus[gpu].major * 100),
	    0);
	return json;
}

/* 0 or an error, and the workspace of the plan. */
static int plan(int gpu, struct cudnn_shape s, size_t *workspace, struct error *err)
{
	_cleanup_free_ char *json = describe(gpu);
	struct cudnn_target target = {.description = json, .major = gpus[gpu].major};
	struct cudnn_plan *p = NULL;
	int r;

	s.ld_q = s.ld_k = s.ld_v = (int64_t)(s.heads + 2 * s.kv_heads) * s.head_dim;
	s.ld_o = (int64_t)s.heads * s.head_dim;
	s.ld_d_k = s.ld_d_v = s.ragged && s.heads > s.kv_heads ? (int64_t)s.kv_heads * s.head_dim : s.ld_q;
	r = cudnn_plan_create(&target, &s, &p, err);
	*workspace = r == 0 ? cudnn_plan_workspace(p) : 0;
	cudnn_plan_destroy(p);
	return r;
}

static const struct cudnn_shape shapes[] = {
    {.heads = 32, .kv_heads = 8, .head_dim = 64, .batch = 1, .rows = 4096},
    {.heads = 32, .kv_heads = 8, .head_dim = 128, .batch = 2, .rows = 2048, .window = true},
    {.heads = 12, .kv_heads = 12, .head_dim = 96, .batch = 1, .rows = 1001},
    {.ragged = true, .heads = 32, .kv_heads = 8, .head_dim = 64, .batch = 64, .rows = 4096, .total = 4096},
    {.ragged = true, .heads = 16, .kv_heads = 16, .head_dim = 128, .batch = 8, .rows = 1024, .total = 8192},
    {.ragged = true,
     .heads = 12,
     .kv_heads = 4,
     .head_dim = 96,
     .batch = 16,
     .rows = 256,
     .total = 1000,
     .window = true},
};

static size_t rows_of(const struct cudnn_shape *s)
{
	return (size_t)(s->ragged ? s->total : s->batch * s->rows);
}

START_TEST(forward)
{
	for (int gpu = A100; gpu <= B200; gpu++) {
		for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
			struct error err = ERROR_INIT;
			size_t workspace;

			ck_ok(plan(gpu, shapes[i], &workspace, &err), &err);
			ck_assert_uint_le(workspace, MIB);
		}
	}
}
END_TEST

/* Plans have a fixed order of sums, and memory that grows with the rows, not with their square. */
START_TEST(backward)
{
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct cudnn_shape s = shapes[i];
		struct error err = ERROR_INIT;
		size_t workspace, row = (size_t)(s.heads + 2 * s.kv_heads) * (size_t)s.head_dim;

		s.backward = true;
		ck_ok(plan(H200, s, &workspace, &err), &err);
		ck_assert_uint_le(workspace, rows_of(&s) * row * 8 + 4 * MIB);
	}
}
END_TEST

/* Cases that the kernels of the engine compute. */
START_TEST(backward_elsewhere)
{
	struct cudnn_shape s = shapes[0];
	struct error err = ERROR_INIT;
	size_t workspace;

	s.backward = true;
	ck_assert_int_eq(plan(A100, s, &workspace, &err), -EOPNOTSUPP);
	ck_ok(plan(B200, s, &workspace, &err), &err);
	s = shapes[0];
	s.kv_heads = 5;
	ck_assert_int_eq(plan(H200, s, &workspace, &err), -EOPNOTSUPP);
}
END_TEST

static Suite *suite_make(void)
{
	Suite *suite = suite_create("cuDNN");
	TCase *tc = tcase_create("plans");

	tcase_set_timeout(tc, 300);
	tcase_add_test(tc, forward);
	if (cudnnGetVersion() >= CUDNN_BACKWARD) {
		tcase_add_test(tc, backward);
		tcase_add_test(tc, backward_elsewhere);
	} else {
		printf("skipped: the backward: cuDNN %zu has no engines for it\n", cudnnGetVersion());
	}
	suite_add_tcase(suite, tc);
	return suite;
}

static int version(void *function)
{
	return (int)((size_t(*)(void))function)();
}

/* cuDNN opens it by name, and finds what is open already. */
static int load_cublaslt(struct error *err)
{
	static const struct library l = {.title = "cuBLASLt",
	                                 .soname = "libcublasLt.so.13",
	                                 .package = "libcublas-13-0",
	                                 .version_symbol = "cublasLtGetVersion",
	                                 .version = version};

	return library_load(&l, NULL, err);
}

int main(void)
{
	struct error err = ERROR_INIT;

#ifdef __SANITIZE_ADDRESS__
	/* Its dlopen does not know the directory in which cuDNN looks for its parts. */
	printf("skipped: cuDNN does not find its parts under ASan\n");
	return 77;
#endif
	if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) &&
	    !dlopen("tests/unit/libfake-cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
		fprintf(stderr, "error: %s\n", dlerror());
		return EXIT_FAILURE;
	}
	if (cudnn_load(&err) < 0 || load_cublaslt(&err) < 0) {
		printf("skipped: %s\n", err.message);
		return 77;
	}
	return unit_run(suite_make());
}
