/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by cuDNN, where that library is installed: which calls cuDNN computes, the plans of these calls,
 * and how the documents of a call are described to it. The kernels of this directory compute all other calls;
 * they can compute any. Forward and backward are decided separately, since both keep lse in the layout of
 * device.h.
 *
 * The decision depends on the shape of the call, the shapes of the run, the kind of the GPU and the library
 * alone, never on a clock or on earlier calls, so that the same run gives the same bits, resumed or not. For
 * this reason all plans of a run are made before its first step (attention_cudnn_scratch). They are few: the
 * number of documents and the length of the longest are rounded up to the next of a few bounds. cuDNN never
 * computes a call that is larger than the largest bound.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/attention/cudnn_attention.h"
#include "engine/device/cuda/attention/cudnn_plan.h"

/* The bounds of the number of documents of a call and of their rows; each bound is four times the one before.
 * There is a plan for each pair of bounds. Making a plan takes tenths of a second to a second. */
#define LEAST_DOCUMENTS 8
#define LEAST_ROWS      256
#define MOST_DOCUMENTS  2048

/*
 * With "auto", cuDNN is used on Hopper and Blackwell where the documents have at least this many rows on
 * average. The bound comes from published figures, not from measurements of dtrain: on an H200, in bf16,
 * causal, with heads of 128, cuDNN 9.19 reaches 484 and 370 TFLOP/s forward and backward at 2048 rows, and
 * 591 and 474 at 4096 rows; mma.sync, which the kernels of this directory use, reaches about 60 % of the
 * speed of the tensor cores there. tests/gpu/bench_attention measures both.
 */
#define AUTO_ROWS 1024

/* Whether it is Hopper, or Blackwell for data centres. */
static bool is_known(int major)
{
	return major == 9 || major == 10;
}

struct entry {
	struct cudnn_shape shape;
	struct cudnn_plan *plan; /* NULL: cuDNN has none for this shape */
};

struct attention_cudnn {
	enum device_attention_choice choice;
	struct cudnn_target target;
	bool backward;            /* false before cuDNN 9.28 and on other GPUs */
	int64_t tokens, sequence; /* of the shapes of the run; 0: not known yet */
	struct entry *entries;    /* all plans of the run */
	int count;
};

/* -ELIBBAD, too, where the library has errors in attention, as NVIDIA's cudnn-frontend says. */
static int load(struct error *err)
{
	int r = cudnn_load(err);
	size_t v = r < 0 ? 0 : cudnnGetVersion();

	if (v == 91000 || v == 91001)
		return error_set(err, -ELIBBAD,
		                 "cuDNN 9.10.%zu computes attention wrongly: install 9.10.2 or newer",
		                 v % 100);
	return r;
}

int attention_cudnn_create(struct device *dev, enum device_attention_choice choice, struct error *err)
{
	bool must = choice == DEVICE_ATTENTION_CUDNN;
	struct error words = ERROR_INIT;
	struct attention_cudnn *c;
	cudnnHandle_t handle = NULL;
	cudnnStatus_t status;
	int r;

	if (choice == DEVICE_ATTENTION_OWN || (!must && !is_known(dev->major)))
		return 0;
	r = load(&words);
	if (r < 0 && must)
		return error_set(err, r, "train.attention = \"cudnn\": %s", words.message);
	if (r < 0) {
		dev->cudnn_missing = r == -ENOENT ? "no cuDNN" : "cuDNN too old or broken";
		return 0;
	}
	status = cudnnCreate(&handle);
	if (!status)
		status = cudnnSetStream(handle, dev->stream);
	if (status && must)
		r = error_set(err, -EIO, "train.attention = \"cudnn\": cuDNN does not start: %s",
		              cudnnGetErrorString(status));
	if (status) {
		dev->cudnn_missing = "cuDNN does not start";
		if (handle)
			(void)cudnnDestroy(handle);
		return r;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		(void)cudnnDestroy(handle);
		return error_oom(err);
	}
	c->choice = choice;
	c->backward = cudnnGetVersion() >= CUDNN_BACKWARD && is_known(dev->major);
	c->target = (struct cudnn_target){.handle = handle, .major = dev->major};
	dev->cudnn = c;
	return 0;
}

static void forget_plans(struct attention_cudnn *c)
{
	for (int i = 0; i < c->count; i++)
		cudnn_plan_destroy(c->entries[i].plan);
	free(c->entries);
	c->entries = NULL;
	c->count = 0;
}

void attention_cudnn_destroy(struct device *dev)
{
	struct attention_cudnn *c = dev->cudnn;

	if (!c)
		return;
	forget_plans(c);
	(void)cudnnDestroy(c->target.handle);
	free(c);
	dev->cudnn = NULL;
}

const char *attention_cudnn_describe(const struct device *dev, char *text, size_t size)
{
	const struct attention_cudnn *c = dev->cudnn;
	size_t v = c ? cudnnGetVersion() : 0;
	char where[64] = "";

	if (c && c->choice == DEVICE_ATTENTION_AUTO)
		snprintf(where, sizeof(where), " for documents of %d tokens and more", AUTO_ROWS);
	if (c)
		snprintf(text, size, "attention: cuDNN %zu.%zu%s%s", v / 10000, v / 100 % 100,
		         c->backward ? "" : " forward", where);
	else
		snprintf(text, size, "attention: own%s%s%s", dev->cudnn_missing ? " (" : "",
		         dev->cudnn_missing ? dev->cudnn_missing : "", dev->cudnn_missing ? ")" : "");
	return text;
}

/* ---- shapes ---- */
static int64_t bound(int64_t n, int64_t least)
{
	while (least < n)
		least *= 4;
	return least;
}

/* No document is longer than the longest row of the run. */
static int64_t rows_bound(const struct attention_cudnn *c, int64_t longest)
{
	return MIN(bound(longest, LEAST_ROWS), c->sequence);
}

static bool group_of(const struct device_attention *a)
{
	return a->heads > a->kv_heads;
}

/* Whether all documents are whole rows of the longest length, and are one row or all rows of a micro-batch.
 * All other calls are ragged. */
static bool is_dense(const struct attention_cudnn *c, const struct device_attention *a)
{
	for (int i = 0; i < a->documents; i++)
		if (a->host_starts[i + 1] - a->host_starts[i] != c->sequence)
			return false;
	return c->sequence > 1 && (a->documents == 1 || a->documents == c->tokens / c->sequence);
}

static struct cudnn_shape shape_of(const struct attention_cudnn *c, const struct device_attention *a,
                                   bool backward)
{
	struct cudnn_shape s = {.backward = backward,
	                        .ragged = !is_dense(c, a),
	                        .window = a->window > 0,
	                        .heads = a->heads,
	                        .kv_heads = a->kv_heads,
	                        .head_dim = a->head_dim,
	                        .batch = a->documents,
	                        .rows = a->tokens / a->documents,
	                        .ld_q = a->ld_q,
	                        .ld_k = a->ld_k,
	                        .ld_v = a->ld_v,
	                        .ld_o = a->ld_o,
	                        .ld_d_k = backward ? a->ld_k : 0,
	                        .ld_d_v = backward ? a->ld_v : 0};
	int64_t longest = 0;

	if (!s.ragged)
		return s;
	for (int i = 0; i < a->documents; i++)
		longest = MAX(longest, (int64_t)a->host_starts[i + 1] - a->host_starts[i]);
	s.batch = bound(a->documents, LEAST_DOCUMENTS);
	s.total = c->tokens;
	s.rows = rows_bound(c, longest);
	/* cuDNN first computes the gradients of keys and values for each query head, with the row stride that
	 * is given here. The stride of a row of q, k and v would take three times the memory. */
	if (backward && group_of(a))
		s.ld_d_k = s.ld_d_v = (int64_t)a->kv_heads * a->head_dim;
	return s;
}

static bool is_same(const struct cudnn_shape *a, const struct cudnn_shape *b)
{
	return a->backward == b->backward && a->ragged == b->ragged && a->window == b->window &&
	       a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
	       a->batch == b->batch && a->rows == b->rows && a->total == b->total && a->ld_q == b->ld_q &&
	       a->ld_k == b->ld_k && a->ld_v == b->ld_v && a->ld_o == b->ld_o && a->ld_d_k == b->ld_d_k &&
	       a->ld_d_v == b->ld_d_v;
}

/* The entry of this shape; NULL: there is none. */
static struct entry *find_plan(const struct attention_cudnn *c, const struct cudnn_shape *s)
{
	for (int i = 0; i < c->count; i++)
		if (is_same(&c->entries[i].shape, s))
			return c->entries[i].plan ? &c->entries[i] : NULL;
	return NULL;
}

/* Adds an entry for the shape, without a plan where cuDNN has none for it. NULL: out of memory. */
static struct entry *make_plan(struct attention_cudnn *c, const struct cudnn_shape *s)
{
	struct entry *e = realloc(c->entries, ((size_t)c->count + 1) * sizeof(*e));
	struct error why;

	if (!e)
		return NULL;
	c->entries = e;
	e += c->count++;
	*e = (struct entry){.shape = *s};
	if (cudnn_plan_create(&c->target, s, &e->plan, &why) < 0)
		e->plan = NULL;
	return e;
}

/* ---- scratch ---- */
#define OFFSETS (CUDNN_TENSOR_LENGTHS - CUDNN_TENSOR_OFFSETS_Q)

/* The distance between the offsets of two tensors: each tensor begins at a multiple of 16 bytes. */
static int64_t offsets_stride(const struct cudnn_shape *s)
{
	return (int64_t)round_up((size_t)s->batch + 1, 2);
}

/* The part of a call in the scratch of the device; all members are offsets in bytes. */
struct layout {
	size_t offsets, lengths, statistics, d_k, d_v, workspace, bytes;
};

static size_t take(size_t *at, size_t bytes)
{
	size_t from = *at;

	*at += round_up(bytes, 256);
	return from;
}

static struct layout layout_of(const struct cudnn_shape *s, int64_t tokens, bool gather, size_t workspace)
{
	size_t rows = (size_t)tokens, width = (size_t)s->kv_heads * (size_t)s->head_dim * 2, at = 0;
	struct layout l = {0};

	if (s->ragged) {
		l.offsets = take(&at, OFFSETS * (size_t)offsets_stride(s) * sizeof(int64_t));
		l.lengths = take(&at, (size_t)s->batch * sizeof(int32_t));
		l.statistics = take(&at, rows * (size_t)s->heads * sizeof(float));
	}
	if (gather) {
		l.d_k = take(&at, rows * width);
		l.d_v = take(&at, rows * width);
	}
	l.workspace = take(&at, workspace);
	l.bytes = at;
	return l;
}

static bool can_do(const struct attention_cudnn *c, enum dtype type, int head_dim, bool backward)
{
	return type == DTYPE_BF16 && (head_dim == 64 || head_dim == 96 || head_dim == 128) &&
	       (!backward || c->backward);
}

static bool is_auto(int major, int64_t rows)
{
	return is_known(major) && rows >= AUTO_ROWS;
}

static bool is_wanted(const struct attention_cudnn *c, int64_t rows)
{
	return c->choice == DEVICE_ATTENTION_CUDNN || is_auto(c->target.major, rows);
}

/* The shape that shape_of makes of each call with at most `documents` documents of at most `rows` rows. */
struct variant {
	bool backward, window, dense;
	int64_t documents, rows;
};

/* Makes the plan of a shape, and returns the scratch that its largest call needs. */
static size_t add_variant(struct attention_cudnn *c, const struct device_shapes *need,
                          const struct variant *v)
{
	int64_t ld =
	    need->ld_qkv ? need->ld_qkv : (int64_t)(need->heads + 2 * need->kv_heads) * need->head_dim;
	struct device_attention a = {.heads = need->heads, .kv_heads = need->kv_heads};
	struct cudnn_shape s = {.backward = v->backward,
	                        .ragged = !v->dense,
	                        .window = v->window,
	                        .heads = need->heads,
	                        .kv_heads = need->kv_heads,
	                        .head_dim = need->head_dim,
	                        .batch = v->documents,
	                        .rows = v->rows,
	                        .total = v->dense ? 0 : c->tokens,
	                        .ld_q = ld,
	                        .ld_k = ld,
	                        .ld_v = ld,
	                        .ld_o = need->ld_o ? need->ld_o : (int64_t)need->heads * need->head_dim,
	                        .ld_d_k = v->backward ? ld : 0,
	                        .ld_d_v = v->backward ? ld : 0};
	bool gather = s.ragged && s.backward && group_of(&a);
	struct entry *e;

	if (gather)
		s.ld_d_k = s.ld_d_v = (int64_t)need->kv_heads * need->head_dim;
	e = make_plan(c, &s);
	return e && e->plan ? layout_of(&s, c->tokens, gather, cudnn_plan_workspace(e->plan)).bytes : 0;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Makes all variants of one pass and one kind of mask. */
static size_t add_variants(struct attention_cudnn *c, const struct device_shapes *need, bool backward,
                           bool window)
{
	struct variant v = {.backward = backward, .window = window, .dense = true, .rows = c->sequence};
	bool named = c->choice == DEVICE_ATTENTION_CUDNN;
	int64_t batch = c->tokens / c->sequence, most_documents, documents, rows;
	size_t most = 0;

	for (v.documents = 1; v.rows > 1 && v.documents <= batch; v.documents += MAX(batch - 1, 1))
		most = larger(most, add_variant(c, need, &v));
	/* With "auto", documents have AUTO_ROWS rows on average, so the longest has at least as many. */
	most_documents = named ? MIN(c->tokens, MOST_DOCUMENTS) : c->tokens / AUTO_ROWS;
	v.dense = false;
	for (documents = LEAST_DOCUMENTS;; documents *= 4) {
		for (rows = named ? LEAST_ROWS : AUTO_ROWS;; rows *= 4) {
			v.documents = documents;
			v.rows = rows_bound(c, rows);
			most = larger(most, add_variant(c, need, &v));
			if (rows >= c->sequence)
				break;
		}
		if (documents >= most_documents)
			break;
	}
	return most;
}

size_t attention_cudnn_scratch(const struct device *dev, const struct device_shapes *shapes)
{
	const struct device_shapes attended = device_attended(shapes), *need = &attended;
	bool all_before = need->all_before || !need->windowed;
	struct attention_cudnn *c = dev->cudnn;
	size_t most = 0;

	if (!c)
		return 0;
	forget_plans(c);
	c->tokens = c->sequence = 0;
	if (need->capped || need->tokens < 1 || need->max_sequence < 1 || need->tokens > INT32_MAX ||
	    !is_wanted(c, MIN(need->tokens, need->max_sequence)))
		return 0;
	c->tokens = need->tokens;
	c->sequence = MIN(need->tokens, need->max_sequence);
	for (int backward = 0; backward < 2; backward++)
		for (int window = 0; window < 2; window++)
			if (can_do(c, need->type, need->head_dim, backward) &&
			    (window ? need->windowed : all_before))
				most = larger(most, add_variants(c, need, backward, window));
	return most;
}

/* ---- the calls ---- */
struct call {
	const struct device_attention *a;
	struct entry *entry;
	struct layout at;
	bool gather;
	void *pointers[CUDNN_TENSOR_COUNT];
};

static bool prepare(struct device *dev, const struct device_attention *a, bool backward, struct call *call)
{
	struct attention_cudnn *c = dev->cudnn;
	struct cudnn_shape s;

	if (!c || !can_do(c, a->type, a->head_dim, backward) || a->documents < 1 || a->tokens > c->tokens ||
	    !is_wanted(c, a->tokens / a->documents))
		return false;
	s = shape_of(c, a, backward);
	call->a = a;
	call->gather = s.ragged && backward && group_of(a);
	call->entry = find_plan(c, &s);
	if (!call->entry)
		return false;
	call->at = layout_of(&s, a->tokens, call->gather, cudnn_plan_workspace(call->entry->plan));
	return call->at.bytes <= dev->base.scratch_size;
}

bool attention_cudnn_takes(struct device *dev, const struct device_attention *a, bool backward)
{
	struct call call = {0};

	return prepare(dev, a, backward, &call);
}

bool attention_cudnn_by_auto(const struct device *dev, const struct device_attention *a)
{
	return is_auto(dev->major, a->tokens / a->documents);
}

/* Writes the positions of the documents in each tensor. */
static void tell_documents(struct device *dev, struct call *call)
{
	const struct cudnn_shape *s = &call->entry->shape;
	int64_t *offsets = (int64_t *)(dev->base.scratch + call->at.offsets);
	struct attention_places places = {.offsets = offsets,
	                                  .lengths = (int32_t *)(dev->base.scratch + call->at.lengths),
	                                  .stride = offsets_stride(s),
	                                  .batch = (int)s->batch};
	const int64_t ld[OFFSETS] = {s->ld_q, s->ld_k, s->ld_v, s->ld_o, s->heads, s->ld_d_k, s->ld_d_v};

	places.count = s->backward ? OFFSETS : OFFSETS - 2;
	memcpy(places.ld, ld, sizeof(ld));
	for (int i = 0; i < places.count; i++)
		call->pointers[CUDNN_TENSOR_OFFSETS_Q + i] = offsets + i * places.stride;
	call->pointers[CUDNN_TENSOR_LENGTHS] = places.lengths;
	attention_places(dev, &places, call->a->starts, call->a->documents);
}

static void run(struct device *dev, struct call *call)
{
	struct attention_cudnn *c = dev->cudnn;
	struct error why = ERROR_INIT;

	if (cudnn_plan_run(call->entry->plan, c->target.handle, call->pointers, call->a->scale,
	                   call->a->window, dev->base.scratch + call->at.workspace, &why) == 0)
		return;
	/* A fault, not the other kernels: they would give other bits from here on, which a resumed run would
	 * not repeat. */
	device_fault(dev, -EIO, "%.110s (train.attention = \"own\" does without cuDNN)", why.message);
}

bool attention_cudnn_forward(struct device *dev, const struct device_attention *a, void *o, float *lse,
                             const void *q, const void *k, const void *v)
{
	struct call call = {0};
	bool ragged;

	if (!lse || !prepare(dev, a, false, &call))
		return false;
	ragged = call.entry->shape.ragged;
	call.pointers[CUDNN_TENSOR_Q] = (void *)q;
	call.pointers[CUDNN_TENSOR_K] = (void *)k;
	call.pointers[CUDNN_TENSOR_V] = (void *)v;
	call.pointers[CUDNN_TENSOR_O] = o;
	call.pointers[CUDNN_TENSOR_STATISTICS] =
	    ragged ? dev->base.scratch + call.at.statistics : (void *)lse;
	if (ragged)
		tell_documents(dev, &call);
	run(dev, &call);
	if (ragged)
		attention_transpose(dev, lse, call.pointers[CUDNN_TENSOR_STATISTICS], a->tokens, a->heads);
	return true;
}

static void spread(struct device *dev, void *to, int64_t ld, const void *from,
                   const struct device_attention *a)
{
	size_t width = (size_t)a->kv_heads * (size_t)a->head_dim * 2;
	cudaError_t status = cudaMemcpy2DAsync(to, (size_t)ld * 2, from, width, width, (size_t)a->tokens,
	                                       cudaMemcpyDeviceToDevice, dev->stream);

	if (status)
		device_fault(dev, -EIO, "attention_backward: copy: %s", cudaGetErrorString(status));
}

bool attention_cudnn_backward(struct device *dev, const struct device_attention *a, void *d_q, void *d_k,
                              void *d_v, const void *d_o, const void *o, const float *lse, const void *q,
                              const void *k, const void *v)
{
	struct call call = {0};

	if (!prepare(dev, a, true, &call))
		return false;
	call.pointers[CUDNN_TENSOR_Q] = (void *)q;
	call.pointers[CUDNN_TENSOR_K] = (void *)k;
	call.pointers[CUDNN_TENSOR_V] = (void *)v;
	call.pointers[CUDNN_TENSOR_O] = (void *)o;
	call.pointers[CUDNN_TENSOR_STATISTICS] = (void *)lse;
	call.pointers[CUDNN_TENSOR_D_O] = (void *)d_o;
	call.pointers[CUDNN_TENSOR_D_Q] = d_q;
	call.pointers[CUDNN_TENSOR_D_K] = call.gather ? dev->base.scratch + call.at.d_k : d_k;
	call.pointers[CUDNN_TENSOR_D_V] = call.gather ? dev->base.scratch + call.at.d_v : d_v;
	if (call.entry->shape.ragged) {
		float *statistics = (float *)(dev->base.scratch + call.at.statistics);

		call.pointers[CUDNN_TENSOR_STATISTICS] = statistics;
		attention_transpose(dev, statistics, lse, a->heads, a->tokens);
		tell_documents(dev, &call);
	}
	run(dev, &call);
	if (call.gather) {
		spread(dev, d_k, a->ld_k, call.pointers[CUDNN_TENSOR_D_K], a);
		spread(dev, d_v, a->ld_v, call.pointers[CUDNN_TENSOR_D_V], a);
	}
	return true;
}
