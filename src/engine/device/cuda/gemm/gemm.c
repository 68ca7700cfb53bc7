/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLASLt, with fp32 sums and without TF32. A shape that is new gets its algorithm once:
 * the one that was chosen for it (choices.c), otherwise the library's first suggestion, so that the same
 * shape gives the same bits. The library's workspace is the device's scratch; after it in memory is a fused
 * gradient of a bias, until that is added.
 *
 * Where the library has an algorithm for that, the product adds the bias, and the product for the gradient of
 * the weights sums up the gradient of the bias. Where it has none, or a kernel of this engine was measured to
 * be faster, that does it.
 */
#include "engine/device/cuda/gemm/gemm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

const char *gemm_describe(char *text, size_t size)
{
	unsigned v = (unsigned)cublasLtGetVersion();

	snprintf(text, size, "cuBLASLt %u.%u.%u", v / 10000, v / 100 % 100, v % 100);
	return text;
}

int gemm_create(struct device *dev, struct error *err)
{
	/* Sums of a split k in the output's type would round 16-bit results twice. */
	uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	struct gemm_cache *g = calloc(1, sizeof(*g));
	cublasStatus_t s;

	if (!g)
		return error_oom(err);
	dev->gemm = g;
	if ((s = cublasLtCreate(&g->handle)) || (s = cublasLtMatmulPreferenceCreate(&g->preference)) ||
	    (s = cublasLtMatmulPreferenceSetAttribute(
	         g->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions))))
		return error_set(err, -EIO, "GPU %d: cuBLASLt cannot be set up: %s", dev->index,
		                 gemm_status(s));
	return 0;
}

void gemm_destroy(struct device *dev)
{
	struct gemm_cache *g = dev->gemm;

	if (!g)
		return;
	gemm_cache_clear(g);
	if (g->preference)
		cublasLtMatmulPreferenceDestroy(g->preference);
	if (g->handle)
		cublasLtDestroy(g->handle);
	free(g->choices);
	free(g);
	dev->gemm = NULL;
}

/* The first suggestion. */
static cublasStatus_t entry_try(struct gemm_cache *g, struct gemm_entry *e, const struct gemm_work *w,
                                bool plain)
{
	cublasLtMatmulHeuristicResult_t result;
	cublasStatus_t s = gemm_entry_describe(e, w, plain);
	int found;

	if (s || (s = gemm_suggest(g, e, 1, &result, &found)))
		return s;
	if (found == 0)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	e->algorithm = result.algo;
	return result.state; /* each has its own */
}

/* Chooses the algorithm again, without an epilogue. */
static cublasStatus_t entry_make_plain(struct gemm_cache *g, struct gemm_entry *e, const struct gemm_work *w)
{
	bool used = e->used;
	cublasStatus_t s;

	gemm_entry_clear(e);
	s = entry_try(g, e, w, true);
	e->used = used;
	return s;
}

/* What has been chosen; false: nothing, or the library does not accept it for so many rows. */
static bool entry_take_choice(struct gemm_cache *g, struct gemm_entry *e, const struct gemm_work *w)
{
	const struct device_gemm_choice *choice;
	struct device_gemm_shape shape;

	device_gemm_shape(w->product, &shape);
	choice = gemm_choice_find(g, &shape);
	if (!choice)
		return false;
	if (gemm_entry_describe(e, w, choice->separate) == CUBLAS_STATUS_SUCCESS) {
		memcpy(&e->algorithm, choice->algorithm, sizeof(e->algorithm));
		e->chosen = gemm_accepts(g, e, &e->algorithm);
		if (e->chosen)
			return true;
	}
	gemm_entry_clear(e);
	return false;
}

static cublasStatus_t entry_take_suggestion(struct gemm_cache *g, struct gemm_entry *e,
                                            const struct gemm_work *w)
{
	cublasStatus_t s = entry_try(g, e, w, false);

	return s && w->epilogue != CUBLASLT_EPILOGUE_DEFAULT ? entry_make_plain(g, e, w) : s;
}

static cublasStatus_t entry_fill(struct device *dev, struct gemm_entry *e, const struct gemm_work *w)
{
	/* What is never fused has not been measured so. */
	if (!dev->unfused && entry_take_choice(dev->gemm, e, w))
		return CUBLAS_STATUS_SUCCESS;
	return entry_take_suggestion(dev->gemm, e, w);
}

static cublasStatus_t cache_find(struct device *dev, const struct gemm_work *w, struct gemm_entry **out)
{
	struct gemm_cache *g = dev->gemm;
	const struct gemm_key *key = &w->key;
	const unsigned char *bytes = (const unsigned char *)key;
	uint64_t hash = 14695981039346656037u;
	struct gemm_entry *e;
	cublasStatus_t s;

	for (size_t i = 0; i < sizeof(*key); i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	for (;; hash++) {
		e = &g->entry[hash % GEMM_SLOTS];
		if (!e->used)
			break;
		if (!memcmp(&e->key, key, sizeof(*key))) {
			*out = e;
			return CUBLAS_STATUS_SUCCESS;
		}
	}
	if (g->count > GEMM_SLOTS / 2) {
		/* The cache is full, as generation has ever new shapes; it is emptied. */
		gemm_cache_clear(g);
		e = &g->entry[hash % GEMM_SLOTS];
	}
	s = entry_fill(dev, e, w);
	if (s) {
		gemm_entry_clear(e);
		return s;
	}
	e->used = true;
	g->count++;
	*out = e;
	return s;
}

static bool is_refusal(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE;
}

/* Runs the product. The library may still refuse an algorithm that it has offered, or accepted, before it
 * changes anything: then its first suggestion takes the place of a choice, and a kernel that of an
 * epilogue. */
static cublasStatus_t multiply(struct device *dev, const struct gemm_work *w, struct gemm_entry *e)
{
	cublasStatus_t s = gemm_multiply(dev, w, e);

	if (is_refusal(s) && e->chosen) {
		gemm_entry_clear(e);
		s = entry_take_suggestion(dev->gemm, e, w);
		e->used = true;
		if (s == CUBLAS_STATUS_SUCCESS)
			s = gemm_multiply(dev, w, e);
	}
	if (is_refusal(s) && w->bias && !e->plain) {
		s = entry_make_plain(dev->gemm, e, w);
		if (s == CUBLAS_STATUS_SUCCESS)
			s = gemm_multiply(dev, w, e);
	}
	return s;
}

void device_gemm(struct device *dev, const struct device_gemm *d)
{
	struct gemm_entry *e = NULL;
	struct gemm_work w;
	cublasStatus_t s;

	if (d->m <= 0 || d->n <= 0)
		return;
	if (d->c_type != d->ab_type && d->c_type != DTYPE_F32) {
		device_fault(dev, -EOPNOTSUPP, "gemm does not work from %s to %s", dtype_name(d->ab_type),
		             dtype_name(d->c_type));
		return;
	}
	if (d->fp8_a && (d->transpose_a || !d->transpose_b || d->d_bias || d->n % FP8_MULTIPLE ||
	                 d->k % FP8_MULTIPLE || d->lda % FP8_MULTIPLE || d->ldb % FP8_MULTIPLE ||
	                 device_alignment(d->scale_a, FP8_SCALE_ALIGNMENT) < FP8_SCALE_ALIGNMENT ||
	                 device_alignment(d->scale_b, FP8_SCALE_ALIGNMENT) < FP8_SCALE_ALIGNMENT)) {
		device_fault(dev, -EINVAL, "gemm: no product of fp8 for %lld x %lld x %lld", (long long)d->m,
		             (long long)d->n, (long long)d->k);
		return;
	}
	if (d->d_bias && !d->transpose_a) {
		device_fault(dev, -EINVAL, "gemm: the gradient of a bias needs transpose_a");
		return;
	}
	gemm_work_init(dev, d, &w);
	if (!device_scratch(dev, w.scratch, "gemm"))
		return;
	gemm_work_place(dev, &w);
	s = cache_find(dev, &w, &e);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = multiply(dev, &w, e);
	if (s)
		device_fault(dev, -EIO, "gemm of %lld x %lld x %lld in %s: %s", (long long)d->m,
		             (long long)d->n, (long long)d->k, dtype_name(d->ab_type), gemm_status(s));
	else
		gemm_finish(dev, &w, e);
}
