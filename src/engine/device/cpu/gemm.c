/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products. OpenBLAS multiplies fp32. oneDNN multiplies bf16 where the processor has instructions for
 * it; elsewhere bf16, and fp16 everywhere, is widened and multiplied in fp32. Both libraries use the threads
 * of libgomp that the kernels use. A oneDNN primitive is made at the first use of a shape and then kept,
 * together with its own scratch memory.
 */
#include <cblas.h>
#include <dnnl.h>
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/sizes.h"

#define CACHE_ENTRIES 256

struct gemm_key {
	int64_t m, n, k, lda, ldb, ldc;
	float alpha, beta;
	int32_t transpose_a, transpose_b, c_type, unused;
};

struct gemm_entry {
	struct gemm_key key;
	dnnl_primitive_t primitive;
	dnnl_memory_t a, b, c;
	uint64_t used;
};

struct gemm_cache {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	bool native; /* the processor has bf16 dot products */
	uint64_t clock;
	int count;
	struct gemm_entry entry[CACHE_ENTRIES];
};

const char *gemm_describe(void)
{
#define DNNL_STR_(a, b, c) "oneDNN " #a "." #b "." #c
#define DNNL_STR(a, b, c)  DNNL_STR_(a, b, c)
	return DNNL_STR(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
}

bool gemm_native_bf16(const struct device *dev)
{
	return dev->gemm->native;
}

int gemm_create(struct device *dev, struct error *err)
{
	dev->gemm = calloc(1, sizeof(*dev->gemm));
	if (!dev->gemm)
		return error_oom(err);
	dev->gemm->native = dev->kernels->bf16_dot;
	if (dnnl_engine_create(&dev->gemm->engine, dnnl_cpu, 0) != dnnl_success ||
	    dnnl_stream_create(&dev->gemm->stream, dev->gemm->engine, dnnl_stream_default_flags) !=
	        dnnl_success)
		return error_set(err, -EIO, "oneDNN cannot set up its CPU engine");
	return 0;
}

static void entry_clear(struct gemm_entry *e)
{
	if (e->primitive)
		dnnl_primitive_destroy(e->primitive);
	if (e->a)
		dnnl_memory_destroy(e->a);
	if (e->b)
		dnnl_memory_destroy(e->b);
	if (e->c)
		dnnl_memory_destroy(e->c);
	memset(e, 0, sizeof(*e));
}

void gemm_destroy(struct device *dev)
{
	struct gemm_cache *g = dev->gemm;

	if (!g)
		return;
	for (int i = 0; i < g->count; i++)
		entry_clear(&g->entry[i]);
	if (g->stream)
		dnnl_stream_destroy(g->stream);
	if (g->engine)
		dnnl_engine_destroy(g->engine);
	free(g);
	dev->gemm = NULL;
}

static bool matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, int64_t ld, bool transpose,
                   dnnl_data_type_t type)
{
	dnnl_dims_t dims = {rows, cols}, strides = {transpose ? 1 : ld, transpose ? ld : 1};

	return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides) == dnnl_success;
}

/*
 * oneDNN lists its implementations from the one that it prefers. With A transposed (the gradient of a weight)
 * its blocked kernels for AVX512_BF16 copy A, which makes them 12 % slower than the older gemm:jit. With AMX
 * the first implementation is the fastest.
 */
static bool choose_implementation(dnnl_primitive_desc_iterator_t it, bool transpose_a,
                                  dnnl_primitive_desc_t *out)
{
	dnnl_primitive_desc_t pd = dnnl_primitive_desc_iterator_fetch(it);
	const char *name = NULL;

	*out = pd;
	if (!pd || !transpose_a ||
	    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success ||
	    !str_eq(name, "brg:avx512_core_bf16"))
		return pd != NULL;
	while (dnnl_primitive_desc_iterator_next(it) == dnnl_success) {
		pd = dnnl_primitive_desc_iterator_fetch(it);
		if (!pd)
			break;
		if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
		    str_eq(name, "gemm:jit")) {
			dnnl_primitive_desc_destroy(*out);
			*out = pd;
			return true;
		}
		dnnl_primitive_desc_destroy(pd);
	}
	return true;
}

static bool entry_fill(struct gemm_cache *g, struct gemm_entry *e)
{
	const struct gemm_key *k = &e->key;
	dnnl_memory_desc_t a, b, c;
	dnnl_matmul_desc_t desc;
	dnnl_primitive_attr_t attr = NULL;
	dnnl_post_ops_t sum = NULL;
	dnnl_primitive_desc_iterator_t it = NULL;
	dnnl_primitive_desc_t pd = NULL;
	bool ok;

	ok = matrix(&a, k->m, k->k, k->lda, k->transpose_a, dnnl_bf16) &&
	     matrix(&b, k->k, k->n, k->ldb, k->transpose_b, dnnl_bf16) &&
	     matrix(&c, k->m, k->n, k->ldc, false, k->c_type == DTYPE_F32 ? dnnl_f32 : dnnl_bf16) &&
	     dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c) == dnnl_success &&
	     dnnl_primitive_attr_create(&attr) == dnnl_success;
	if (ok && k->alpha != 1)
		ok = dnnl_primitive_attr_set_output_scales(attr, 1, 0, &k->alpha) == dnnl_success;
	if (ok && k->beta != 0)
		ok = dnnl_post_ops_create(&sum) == dnnl_success &&
		     dnnl_post_ops_append_sum(sum, k->beta) == dnnl_success &&
		     dnnl_primitive_attr_set_post_ops(attr, sum) == dnnl_success;
	ok = ok && dnnl_primitive_desc_iterator_create(&it, &desc, attr, g->engine, NULL) == dnnl_success &&
	     choose_implementation(it, k->transpose_a, &pd) &&
	     dnnl_primitive_create(&e->primitive, pd) == dnnl_success &&
	     dnnl_memory_create(&e->a, &a, g->engine, DNNL_MEMORY_NONE) == dnnl_success &&
	     dnnl_memory_create(&e->b, &b, g->engine, DNNL_MEMORY_NONE) == dnnl_success &&
	     dnnl_memory_create(&e->c, &c, g->engine, DNNL_MEMORY_NONE) == dnnl_success;
	if (pd)
		dnnl_primitive_desc_destroy(pd);
	if (it)
		dnnl_primitive_desc_iterator_destroy(it);
	if (sum)
		dnnl_post_ops_destroy(sum);
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	return ok;
}

/* The primitive for a shape. Where the cache is full, a new one replaces the least recently used. */
static struct gemm_entry *entry_find(struct gemm_cache *g, const struct gemm_key *key)
{
	struct gemm_entry *e = &g->entry[0];

	for (int i = 0; i < g->count; i++) {
		if (!memcmp(&g->entry[i].key, key, sizeof(*key))) {
			g->entry[i].used = ++g->clock;
			return &g->entry[i];
		}
		if (g->entry[i].used < e->used)
			e = &g->entry[i];
	}
	if (g->count < CACHE_ENTRIES)
		e = &g->entry[g->count++];
	entry_clear(e);
	e->key = *key;
	e->used = ++g->clock;
	if (entry_fill(g, e))
		return e;
	/* The key is then all zeros, which matches no product. */
	entry_clear(e);
	return NULL;
}

static void gemm_dnnl(struct device *dev, const struct device_gemm *g)
{
	struct gemm_key key = {.m = g->m,
	                       .n = g->n,
	                       .k = g->k,
	                       .lda = g->lda,
	                       .ldb = g->ldb,
	                       .ldc = g->ldc,
	                       .alpha = g->alpha,
	                       .beta = g->beta,
	                       .transpose_a = g->transpose_a,
	                       .transpose_b = g->transpose_b,
	                       .c_type = g->c_type};
	struct gemm_entry *e = entry_find(dev->gemm, &key);
	dnnl_exec_arg_t args[3];

	if (!e) {
		device_fault(dev, -EIO, "oneDNN has no bf16 product for %lld x %lld x %lld", (long long)g->m,
		             (long long)g->n, (long long)g->k);
		return;
	}
	/* oneDNN takes pointers to writable memory for inputs, too; it does not write to A and B. */
	dnnl_memory_set_data_handle(e->a, (void *)(uintptr_t)g->a);
	dnnl_memory_set_data_handle(e->b, (void *)(uintptr_t)g->b);
	dnnl_memory_set_data_handle(e->c, g->c);
	args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, e->a};
	args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, e->b};
	args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, e->c};
	if (dnnl_primitive_execute(e->primitive, dev->gemm->stream, 3, args) != dnnl_success)
		device_fault(dev, -EIO, "oneDNN failed in a product of %lld x %lld x %lld", (long long)g->m,
		             (long long)g->n, (long long)g->k);
}

static void gemm_blas(const struct device_gemm *g)
{
	cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
	            g->transpose_b ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n, (blasint)g->k,
	            g->alpha, g->a, (blasint)g->lda, g->b, (blasint)g->ldb, g->beta, g->c, (blasint)g->ldc);
}

/* ---- 16 bits without instructions for them: widened, multiplied in fp32, rounded ---- */
/* The elements that a widened matrix takes in the scratch memory. */
static int64_t widened(int64_t rows, int64_t ld)
{
	return (int64_t)round_up((size_t)(rows * ld), 16);
}

static void gemm_widened(struct device *dev, const struct device_gemm *g)
{
	struct device_gemm f = *g;
	int64_t rows_a = g->transpose_a ? g->k : g->m, rows_b = g->transpose_b ? g->n : g->k;
	int64_t cols_a = g->transpose_a ? g->m : g->k, cols_b = g->transpose_b ? g->k : g->n;
	int64_t size_a = widened(rows_a, cols_a), size_b = widened(rows_b, cols_b);
	int64_t size_c = g->c_type != DTYPE_F32 ? widened(g->m, g->n) : 0;
	float *a = device_scratch(dev, (size_t)(size_a + size_b + size_c) * sizeof(float), "gemm"), *b, *c;

	if (!a)
		return;
	b = a + size_a;
	c = b + size_b;
	f.a = a;
	f.b = b;
	f.lda = cols_a;
	f.ldb = cols_b;
	dev->kernels->cast_rows(dev, a, DTYPE_F32, cols_a, g->a, g->ab_type, g->lda, rows_a, cols_a);
	dev->kernels->cast_rows(dev, b, DTYPE_F32, cols_b, g->b, g->ab_type, g->ldb, rows_b, cols_b);
	if (g->c_type != DTYPE_F32) {
		f.c = c;
		f.ldc = g->n;
		if (g->beta != 0)
			dev->kernels->cast_rows(dev, c, DTYPE_F32, g->n, g->c, g->c_type, g->ldc, g->m, g->n);
	}
	gemm_blas(&f);
	if (g->c_type != DTYPE_F32)
		dev->kernels->cast_rows(dev, g->c, g->c_type, g->ldc, c, DTYPE_F32, g->n, g->m, g->n);
}

static void product(struct device *dev, const struct device_gemm *g);

/* What has no kernel for few rows computes each row by itself. */
static void each_row(struct device *dev, const struct device_gemm *g)
{
	for (int64_t r = 0; r < g->m; r++) {
		struct device_gemm row = *g;

		row.m = 1;
		row.a = (const char *)g->a + (size_t)(r * g->lda) * dtype_size(g->ab_type);
		row.c = (char *)g->c + (size_t)(r * g->ldc) * dtype_size(g->c_type);
		product(dev, &row);
	}
}

static void product(struct device *dev, const struct device_gemm *g)
{
	/* The libraries use as many threads as omp_get_max_threads() allows the calling thread. */
	if (omp_get_max_threads() != dev->threads)
		omp_set_num_threads(dev->threads);
	if ((g->m <= CPU_SMALL_ROWS || g->by_rows) && !g->transpose_a && g->transpose_b)
		dev->kernels->gemv(dev, g);
	else if (g->by_rows && g->m > 1 && !g->transpose_a)
		each_row(dev, g);
	else if (g->ab_type == DTYPE_F32)
		gemm_blas(g);
	else if (g->ab_type == DTYPE_BF16 && g->k > 0 && dev->gemm->native)
		gemm_dnnl(dev, g);
	else
		gemm_widened(dev, g);
}

void device_gemm(struct device *dev, const struct device_gemm *g)
{
	if (g->m <= 0 || g->n <= 0)
		return;
	if (g->c_type != DTYPE_F32 && g->c_type != g->ab_type) {
		device_fault(dev, -EOPNOTSUPP, "no product of %s into %s on this engine",
		             dtype_name(g->ab_type), dtype_name(g->c_type));
		return;
	}
	if (g->d_bias && !g->transpose_a) {
		device_fault(dev, -EINVAL, "gemm: the gradient of a bias needs transpose_a");
		return;
	}
	if (g->fp8_a)
		fp8_gemm(dev, g);
	else
		product(dev, g);
	if (g->bias)
		device_bias_forward(dev, g->c, g->bias, g->m, g->n, g->ldc, g->c_type);
	if (g->d_bias)
		device_bias_backward(dev, g->d_bias, DTYPE_F32, g->a, g->k, g->m, g->lda, g->ab_type);
}
