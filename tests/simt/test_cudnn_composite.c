/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass of attention as older versions of cuDNN compute it, over the stand-in for the library: its
 * results are those of the engine's own kernels, and the backward pass is left to these.
 */
#include <cuda_runtime_api.h>

#include "test_device.h"

static const struct {
	int heads, kv_heads, head_dim, window, documents;
	int32_t starts[4];
	const char *version;
} cases[] = {
    {2, 1, 64, 0, 1, {0, 20}, "91900"},
    {2, 2, 64, 7, 1, {0, 20}, "91900"},
    {4, 2, 64, 0, 3, {0, 9, 10, 30}, "91900"},
    {2, 1, 96, 5, 2, {0, 17, 30}, "90100"},
};

struct sizes {
	int64_t tokens, ld, ld_o;
};

static struct sizes sizes_of(int i)
{
	return (struct sizes){cases[i].starts[cases[i].documents],
	                      (cases[i].heads + 2 * cases[i].kv_heads) * cases[i].head_dim,
	                      cases[i].heads * cases[i].head_dim};
}

/* One pass with attention by `choice`; the caller frees o, lse and the gradients. */
static void compute(int i, enum device_attention_choice choice, double *values[3], int *executions)
{
	struct error err = ERROR_INIT;
	struct sizes n = sizes_of(i);
	int64_t at_k = n.ld_o, at_v = at_k + cases[i].kv_heads * cases[i].head_dim;
	struct device_attention a = {.tokens = n.tokens,
	                             .heads = cases[i].heads,
	                             .kv_heads = cases[i].kv_heads,
	                             .head_dim = cases[i].head_dim,
	                             .scale = 0.125f,
	                             .window = cases[i].window,
	                             .documents = cases[i].documents,
	                             .host_starts = cases[i].starts,
	                             .ld_q = n.ld,
	                             .ld_k = n.ld,
	                             .ld_v = n.ld,
	                             .ld_o = n.ld_o,
	                             .type = DTYPE_BF16};
	struct device_shapes need = {.tokens = n.tokens,
	                             .max_sequence = n.tokens,
	                             .heads = a.heads,
	                             .kv_heads = a.kv_heads,
	                             .head_dim = a.head_dim,
	                             .type = DTYPE_BF16,
	                             .windowed = a.window > 0,
	                             .ld_qkv = n.ld,
	                             .ld_o = n.ld_o};
	double *x = test_values(n.tokens * n.ld, 1), *d_x = test_values(n.tokens * n.ld_o, 2);
	double *zeros = calloc((size_t)(n.tokens * n.ld), sizeof(*zeros));
	struct device *dev = NULL;
	uint16_t *qkv, *o, *d_o, *d_qkv;
	int before = simt_cudnn_executions();
	float *lse;

	ck_ok(device_create(&(struct device_options){.attention = choice}, &dev, &err), &err);
	ck_ok(device_reserve_scratch(dev, 64 << 20, &err), &err);
	ck_assert(device_scratch_bytes(dev, &need) < 64 << 20);
	qkv = test_buffer(dev, x, n.tokens * n.ld, DTYPE_BF16);
	d_o = test_buffer(dev, d_x, n.tokens * n.ld_o, DTYPE_BF16);
	o = test_buffer(dev, zeros, n.tokens * n.ld_o, DTYPE_BF16);
	d_qkv = test_buffer(dev, zeros, n.tokens * n.ld, DTYPE_BF16);
	lse = test_buffer(dev, zeros, n.tokens * a.heads, DTYPE_F32);
	a.starts = test_put(dev, cases[i].starts, sizeof(cases[i].starts));
	device_attention_forward(dev, &a, o, lse, qkv, qkv + at_k, qkv + at_v);
	device_attention_backward(dev, &a, d_qkv, d_qkv + at_k, d_qkv + at_v, d_o, o, lse, qkv, qkv + at_k,
	                          qkv + at_v);
	ck_ok(device_synchronize(dev, &err), &err);
	values[0] = test_fetch_values(dev, o, n.tokens * n.ld_o, DTYPE_BF16);
	values[1] = test_fetch_values(dev, lse, n.tokens * a.heads, DTYPE_F32);
	values[2] = test_fetch_values(dev, d_qkv, n.tokens * n.ld, DTYPE_BF16);
	*executions = simt_cudnn_executions() - before;
	void *const buffers[] = {qkv, d_o, o, d_qkv, lse, (void *)a.starts};
	for (size_t b = 0; b < sizeof(buffers) / sizeof(buffers[0]); b++)
		device_free(dev, buffers[b]);
	device_destroy(dev);
	free(x);
	free(d_x);
	free(zeros);
}

static double apart(const double *a, const double *b, int64_t n)
{
	double worst = 0;

	for (int64_t i = 0; i < n; i++)
		worst = fmax(worst, fabs(a[i] - b[i]));
	return worst;
}

START_TEST(forward)
{
	struct sizes n = sizes_of(_i);
	double *own[3], *cudnn[3];
	int executions;

	setenv("SIMT_CUDNN_VERSION", cases[_i].version, 1);
	compute(_i, DEVICE_ATTENTION_OWN, own, &executions);
	ck_assert_int_eq(executions, 0);
	compute(_i, DEVICE_ATTENTION_CUDNN, cudnn, &executions);
	ck_assert_int_eq(executions, 1); /* not the backward pass */
	ck_assert_double_lt(apart(own[0], cudnn[0], n.tokens * n.ld_o), 3e-2);
	ck_assert_double_lt(apart(own[1], cudnn[1], n.tokens * cases[_i].heads), 1e-3);
	ck_assert_double_lt(apart(own[2], cudnn[2], n.tokens * n.ld), 6e-2);
	for (int i = 0; i < 3; i++) {
		free(own[i]);
		free(cudnn[i]);
	}
}
END_TEST

/* A version with errors: refused where cuDNN is named, left aside with "auto". */
START_TEST(wrong_version)
{
	struct device *dev = NULL;
	struct error err = ERROR_INIT;

	setenv("SIMT_CUDNN_VERSION", "91001", 1);
	ck_assert_int_eq(
	    device_create(&(struct device_options){.attention = DEVICE_ATTENTION_CUDNN}, &dev, &err),
	    -ELIBBAD);
	ck_assert(strstr(err.message, "install 9.10.2 or newer"));
	ck_ok(device_create(&(struct device_options){.attention = DEVICE_ATTENTION_AUTO}, &dev, &err), &err);
	ck_assert(strstr(device_describe(dev), "attention: own"));
	device_destroy(dev);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuDNN before 9.21");
	TCase *tc = tcase_create("composite");

	tcase_set_timeout(tc, 300);
	tcase_add_loop_test(tc, forward, 0, sizeof(cases) / sizeof(cases[0]));
	tcase_add_test(tc, wrong_version);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
