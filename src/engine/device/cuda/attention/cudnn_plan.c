/* SPDX-License-Identifier: Apache-2.0 */
/* Builds cuDNN's graph for one shape of attention, and the plan that runs it. */
#include "engine/device/cuda/attention/cudnn_plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define DESCRIPTORS 160
#define CONFIGS     8
#define KNOBS       32
#define ALIGNMENT   16

/* The tensors that are passed by value, in the memory of the host, and those that are never in memory. */
enum {
	SCALE = CUDNN_TENSOR_COUNT,
	AHEAD,  /* the score of a key that is ahead of its query: -inf */
	BEHIND, /* the score of a key that is behind the window */
	WINDOW,
	SCORES,
	CAUSAL,
	BANDED,
	SOFTMAX_IN,
	SOFTMAX_OUT
};

struct cudnn_plan {
	struct cudnn_shape shape;
	cudnnBackendDescriptor_t descriptors[DESCRIPTORS], execution;
	size_t count, workspace;
};

/* Keeps the first error; after it, nothing more is built. */
struct builder {
	struct cudnn_plan *plan;
	const struct cudnn_target *target;
	struct error *err;
	cudnnBackendDescriptor_t properties, graph;
	int r;
};

static int failed(cudnnStatus_t status, const char *what, struct error *err)
{
	char words[256] = "";

	cudnnGetLastErrorString(words, sizeof(words));
	return error_set(err, -EOPNOTSUPP, "cuDNN: %s: %s%s%s", what, cudnnGetErrorString(status),
	                 *words ? ": " : "", words);
}

static void check(struct builder *b, cudnnStatus_t status, const char *what)
{
	if (b->r == 0 && status)
		b->r = failed(status, what, b->err);
}

static cudnnBackendDescriptor_t make(struct builder *b, int type, const char *what)
{
	cudnnBackendDescriptor_t d = NULL;

	if (b->r == 0 && b->plan->count == DESCRIPTORS)
		b->r = error_set(b->err, -EOVERFLOW, "cuDNN: %s: a graph of too many parts", what);
	if (b->r < 0)
		return NULL;
	check(b, cudnnBackendCreateDescriptor(type, &d), what);
	if (b->r == 0)
		b->plan->descriptors[b->plan->count++] = d;
	return d;
}

static void set(struct builder *b, cudnnBackendDescriptor_t d, int name, int type, int64_t count,
                const void *elements, const char *what)
{
	if (b->r == 0)
		check(b, cudnnBackendSetAttribute(d, name, type, count, elements), what);
}

static void set_part(struct builder *b, cudnnBackendDescriptor_t d, int name, cudnnBackendDescriptor_t part,
                     const char *what)
{
	set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part, what);
}

static void set_number(struct builder *b, cudnnBackendDescriptor_t d, int name, int64_t x, const char *what)
{
	set(b, d, name, CUDNN_TYPE_INT64, 1, &x, what);
}

static void finish(struct builder *b, cudnnBackendDescriptor_t d, const char *what)
{
	if (b->r == 0)
		check(b, cudnnBackendFinalize(d), what);
}

/* ---- tensors ---- */
enum kind { IN_MEMORY, BY_VALUE, NOWHERE };

static cudnnBackendDescriptor_t tensor(struct builder *b, int64_t uid, int type, const int64_t *dims,
                                       const int64_t *strides, enum kind kind,
                                       cudnnBackendDescriptor_t offsets)
{
	cudnnBackendDescriptor_t d = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
	bool yes = true;

	set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "a tensor's type");
	set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims, "a tensor's size");
	set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides, "a tensor's strides");
	set_number(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid, "a tensor's number");
	set_number(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, ALIGNMENT, "a tensor's alignment");
	if (kind == BY_VALUE)
		set(b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, "a value");
	if (kind == NOWHERE)
		set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes, "a virtual tensor");
	if (offsets)
		set_part(b, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets, "a tensor's offsets");
	finish(b, d, "a tensor");
	return d;
}

static cudnnBackendDescriptor_t value(struct builder *b, int64_t uid)
{
	static const int64_t one[4] = {1, 1, 1, 1};

	return tensor(b, uid, CUDNN_DATA_FLOAT, one, one, BY_VALUE, NULL);
}

/* A tensor of scores, which are never in memory. */
static cudnnBackendDescriptor_t scores(struct builder *b, int64_t uid)
{
	const struct cudnn_shape *s = &b->plan->shape;
	int64_t dims[4] = {s->batch, s->heads, s->rows, s->rows};
	int64_t strides[4] = {s->heads * s->rows * s->rows, s->rows * s->rows, s->rows, 1};

	return tensor(b, uid, CUDNN_DATA_FLOAT, dims, strides, NOWHERE, NULL);
}

static cudnnBackendDescriptor_t per_document(struct builder *b, int64_t uid, int type, int64_t n)
{
	int64_t dims[4] = {n, 1, 1, 1}, strides[4] = {1, 1, 1, 1};

	return tensor(b, uid, type, dims, strides, IN_MEMORY, NULL);
}

static cudnnBackendDescriptor_t offsets(struct builder *b, int64_t uid)
{
	const struct cudnn_shape *s = &b->plan->shape;

	return s->ragged ? per_document(b, uid, CUDNN_DATA_INT64, s->batch + 1) : NULL;
}

/* A tensor of `heads` heads in a matrix of tokens whose rows are ld elements apart. */
static cudnnBackendDescriptor_t matrix(struct builder *b, int64_t uid, int heads, int64_t ld,
                                       cudnnBackendDescriptor_t at)
{
	const struct cudnn_shape *s = &b->plan->shape;
	int64_t dims[4] = {s->batch, heads, s->rows, s->head_dim};
	int64_t strides[4] = {s->rows * ld, s->head_dim, ld, 1};

	return tensor(b, uid, CUDNN_DATA_BFLOAT16, dims, strides, IN_MEMORY, at);
}

static cudnnBackendDescriptor_t statistics(struct builder *b)
{
	const struct cudnn_shape *s = &b->plan->shape;
	int64_t dims[4] = {s->batch, s->heads, s->rows, 1};
	int64_t dense[4] = {s->rows, s->batch * s->rows, 1, 1};
	int64_t ragged[4] = {s->heads * s->rows, 1, s->heads, 1};

	return tensor(b, CUDNN_TENSOR_STATISTICS, CUDNN_DATA_FLOAT, dims, s->ragged ? ragged : dense,
	              IN_MEMORY, offsets(b, CUDNN_TENSOR_OFFSETS_STATISTICS));
}

/* ---- the graph ---- */
/* Compares the positions of a score. Where `by` is NULL: query >= key, otherwise: key + by > query. */
static cudnnBackendDescriptor_t mask(struct builder *b, cudnnBackendDescriptor_t from,
                                     cudnnBackendDescriptor_t to, int64_t instead,
                                     cudnnBackendDescriptor_t by)
{
	static const char what[] = "the mask";
	int mode = by ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE;
	cudnnBackendDescriptor_t d = make(b, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, what);

	set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, from, what);
	set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, value(b, instead), what);
	if (by)
		set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, by, what);
	set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, to, what);
	set(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
	    &mode, what);
	finish(b, d, what);
	return d;
}

/* The operations on the scores before the softmax. */
static cudnnBackendDescriptor_t masks(struct builder *b)
{
	bool window = b->plan->shape.window;
	cudnnBackendDescriptor_t causal = scores(b, CAUSAL), operations[2], d;

	operations[0] = mask(b, scores(b, SCORES), causal, AHEAD, NULL);
	if (window)
		operations[1] = mask(b, causal, scores(b, BANDED), BEHIND, value(b, WINDOW));
	d = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the masks");
	set(b, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1 + window, operations,
	    "the masks");
	finish(b, d, "the masks");
	return d;
}

static cudnnBackendDescriptor_t forward(struct builder *b)
{
	static const char what[] = "attention";
	const struct cudnn_shape *s = &b->plan->shape;
	cudnnBackendDescriptor_t softmax = make(b, CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, "softmax"), d;

	set_part(b, softmax, CUDNN_ATTR_OPERATION_SOFTMAX_XDESC, scores(b, SOFTMAX_IN), "softmax");
	set_part(b, softmax, CUDNN_ATTR_OPERATION_SOFTMAX_YDESC, scores(b, SOFTMAX_OUT), "softmax");
	set_part(b, softmax, CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC, statistics(b), "softmax");
	finish(b, softmax, "softmax");

	d = make(b, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
	         matrix(b, CUDNN_TENSOR_Q, s->heads, s->ld_q, offsets(b, CUDNN_TENSOR_OFFSETS_Q)), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
	         matrix(b, CUDNN_TENSOR_K, s->kv_heads, s->ld_k, offsets(b, CUDNN_TENSOR_OFFSETS_K)), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
	         matrix(b, CUDNN_TENSOR_V, s->kv_heads, s->ld_v, offsets(b, CUDNN_TENSOR_OFFSETS_V)), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
	         matrix(b, CUDNN_TENSOR_O, s->heads, s->ld_o, offsets(b, CUDNN_TENSOR_OFFSETS_O)), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC, softmax, what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, value(b, SCALE), what);
	if (s->ragged) {
		cudnnBackendDescriptor_t lengths =
		    per_document(b, CUDNN_TENSOR_LENGTHS, CUDNN_DATA_INT32, s->batch);

		set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, lengths, what);
		set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, lengths, what);
	}
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, masks(b), what);
	set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, SCORES, what);
	set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, s->window ? BANDED : CAUSAL,
	           what);
	finish(b, d, what);
	return d;
}

static cudnnBackendDescriptor_t backward(struct builder *b)
{
	static const char what[] = "attention's backward";
	const struct cudnn_shape *s = &b->plan->shape;
	cudnnBackendDescriptor_t at_q = offsets(b, CUDNN_TENSOR_OFFSETS_Q);
	cudnnBackendDescriptor_t at_o = offsets(b, CUDNN_TENSOR_OFFSETS_O);
	cudnnBackendDescriptor_t d = make(b, CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, what);

	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC,
	         matrix(b, CUDNN_TENSOR_Q, s->heads, s->ld_q, at_q), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC,
	         matrix(b, CUDNN_TENSOR_K, s->kv_heads, s->ld_k, offsets(b, CUDNN_TENSOR_OFFSETS_K)), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC,
	         matrix(b, CUDNN_TENSOR_V, s->kv_heads, s->ld_v, offsets(b, CUDNN_TENSOR_OFFSETS_V)), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC,
	         matrix(b, CUDNN_TENSOR_O, s->heads, s->ld_o, at_o), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, statistics(b), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC, value(b, SCALE), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC,
	         matrix(b, CUDNN_TENSOR_D_O, s->heads, s->ld_o, at_o), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC,
	         matrix(b, CUDNN_TENSOR_D_Q, s->heads, s->ld_q, at_q), what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC,
	         matrix(b, CUDNN_TENSOR_D_K, s->kv_heads, s->ld_d_k, offsets(b, CUDNN_TENSOR_OFFSETS_D_K)),
	         what);
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC,
	         matrix(b, CUDNN_TENSOR_D_V, s->kv_heads, s->ld_d_v, offsets(b, CUDNN_TENSOR_OFFSETS_D_V)),
	         what);
	if (s->ragged) {
		cudnnBackendDescriptor_t lengths =
		    per_document(b, CUDNN_TENSOR_LENGTHS, CUDNN_DATA_INT32, s->batch);

		set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC, lengths, what);
		set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, lengths, what);
		/* Without it, the workspace would be large enough for `rows` rows of every sequence. */
		set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q, s->total, what);
		set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV, s->total, what);
	}
	set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH, masks(b), what);
	set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, SCORES, what);
	set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, s->window ? BANDED : CAUSAL,
	           what);
	finish(b, d, what);
	return d;
}

static void build_graph(struct builder *b)
{
	static const char what[] = "the graph";
	cudnnBackendDescriptor_t operation = b->plan->shape.backward ? backward(b) : forward(b);

	b->graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
	if (b->target->handle)
		set(b, b->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->target->handle,
		    what);
	set_part(b, b->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation, what);
	finish(b, b->graph, what);
}

/* ---- the plan ---- */
/*
 * In the backward pass all blocks of an engine add to d_q, in the order in which they finish. The knob STAGES
 * makes this order fixed, with the value 4 on Hopper and 2 on Blackwell, which cudnn-frontend sets for its
 * deterministic algorithm. An engine that cannot fix the order refuses the knob or the value.
 */
static int64_t ordered_stages(int major)
{
	return major == 9 ? 4 : major == 10 ? 2 : 0;
}

static cudnnBackendDescriptor_t ordered(struct builder *b, cudnnBackendDescriptor_t config)
{
	static const char what[] = "a backward in a fixed order";
	cudnnBackendDescriptor_t chosen, engine, knob, result, knobs[KNOBS + 1];
	int stages = CUDNN_KNOB_TYPE_STAGES, type;
	int64_t count = 0, index = 0, kept = 0, n;

	chosen = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what);
	for (int i = 0; i < KNOBS; i++)
		knobs[i] = make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what);
	if (b->r < 0)
		return NULL;
	check(b,
	      cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
	                               &n, &chosen),
	      what);
	check(
	    b,
	    cudnnBackendGetAttribute(chosen, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &index),
	    what);
	check(b,
	      cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
	                               CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS, &count, knobs),
	      what);
	for (int64_t i = 0; i < count && b->r == 0; i++) {
		check(b,
		      cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
		                               CUDNN_TYPE_KNOB_TYPE, 1, &n, &type),
		      what);
		if (type != stages)
			knobs[kept++] = knobs[i];
	}
	knob = make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what);
	set(b, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &stages, what);
	set_number(b, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, ordered_stages(b->target->major), what);
	finish(b, knob, what);
	knobs[kept++] = knob;

	engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what);
	set_part(b, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, b->graph, what);
	set_number(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index, what);
	if (b->properties)
		set_part(b, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, b->properties, what);
	finish(b, engine, what);
	result = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
	set_part(b, result, CUDNN_ATTR_ENGINECFG_ENGINE, engine, what);
	set(b, result, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, kept, knobs, what);
	finish(b, result, what);
	return result;
}

static void build_execution(struct builder *b, cudnnBackendDescriptor_t config)
{
	static const char what[] = "the plan";
	struct cudnn_plan *p = b->plan;
	int64_t n, size = 0;

	if (p->shape.backward)
		config = ordered(b, config);
	p->execution = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what);
	if (b->target->handle)
		set(b, p->execution, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
		    &b->target->handle, what);
	else
		set_part(b, p->execution, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, b->properties, what);
	set_part(b, p->execution, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, what);
	finish(b, p->execution, what);
	if (b->r == 0)
		check(b,
		      cudnnBackendGetAttribute(p->execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
		                               CUDNN_TYPE_INT64, 1, &n, &size),
		      what);
	p->workspace = (size_t)size;
}

/* Takes the first choice of the heuristics from which a plan can be made. */
static void build_plan(struct builder *b)
{
	static const char what[] = "the choice of an engine";
	cudnnBackendDescriptor_t heuristics, configs[CONFIGS];
	int mode = CUDNN_HEUR_MODE_A;
	int64_t count = 0;

	heuristics = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
	set_part(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, b->graph, what);
	set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
	if (b->properties)
		set_part(b, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, b->properties, what);
	finish(b, heuristics, what);
	for (int i = 0; i < CONFIGS; i++)
		configs[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
	if (b->r == 0)
		check(b,
		      cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
		                               CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &count, configs),
		      what);
	if (b->r == 0 && count <= 0)
		b->r = error_set(b->err, -EOPNOTSUPP, "cuDNN has no engine for this attention");
	for (int64_t i = 0; i < count; i++) {
		size_t used = b->plan->count;

		build_execution(b, configs[i]);
		if (b->r == 0 || i + 1 == count)
			return;
		b->r = 0;
		while (b->plan->count > used)
			(void)cudnnBackendDestroyDescriptor(b->plan->descriptors[--b->plan->count]);
	}
}

int cudnn_plan_create(const struct cudnn_target *target, const struct cudnn_shape *shape,
                      struct cudnn_plan **out, struct error *err)
{
	static const char what[] = "the GPU's description";
	struct builder b = {.target = target, .err = err};

	if (shape->backward && !ordered_stages(target->major))
		return error_set(err, -EOPNOTSUPP,
		                 "cuDNN has no backward that sums in a fixed order for sm_%d0",
		                 target->major);
	b.plan = calloc(1, sizeof(*b.plan));
	if (!b.plan)
		return error_oom(err);
	b.plan->shape = *shape;
	if (!target->handle) {
		b.properties = make(&b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, what);
		set(&b, b.properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
		    (int64_t)strlen(target->description) + 1, target->description, what);
		finish(&b, b.properties, what);
	}
	build_graph(&b);
	build_plan(&b);
	if (b.r < 0)
		cudnn_plan_destroy(b.plan);
	else
		*out = b.plan;
	return b.r;
}

void cudnn_plan_destroy(struct cudnn_plan *p)
{
	if (!p)
		return;
	while (p->count > 0)
		(void)cudnnBackendDestroyDescriptor(p->descriptors[--p->count]);
	free(p);
}

size_t cudnn_plan_workspace(const struct cudnn_plan *p)
{
	return p->workspace;
}

/* ---- running it ---- */
static bool has(const struct cudnn_shape *s, int uid)
{
	switch (uid) {
	case CUDNN_TENSOR_D_O:
	case CUDNN_TENSOR_D_Q:
	case CUDNN_TENSOR_D_K:
	case CUDNN_TENSOR_D_V:
		return s->backward;
	case CUDNN_TENSOR_OFFSETS_D_K:
	case CUDNN_TENSOR_OFFSETS_D_V:
		return s->backward && s->ragged;
	default:
		return uid < CUDNN_TENSOR_OFFSETS_Q || s->ragged;
	}
}

int cudnn_plan_run(const struct cudnn_plan *p, cudnnHandle_t handle, void *const *pointers, float scale,
                   int window, void *workspace, struct error *err)
{
	float infinity = -INFINITY, width = (float)window;
	int64_t uids[WINDOW + 1], n = 0;
	void *data[WINDOW + 1];
	cudnnBackendDescriptor_t pack = NULL;
	cudnnStatus_t status;

	for (int uid = CUDNN_TENSOR_Q; uid < CUDNN_TENSOR_COUNT; uid++) {
		if (!has(&p->shape, uid))
			continue;
		uids[n] = uid;
		data[n++] = pointers[uid];
	}
	uids[n] = SCALE;
	data[n++] = &scale;
	uids[n] = AHEAD;
	data[n++] = &infinity;
	if (p->shape.window) {
		uids[n] = BEHIND;
		data[n++] = &infinity;
		uids[n] = WINDOW;
		data[n++] = &width;
	}
	status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
	if (!status)
		status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
		                                  n, uids);
	if (!status)
		status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
		                                  CUDNN_TYPE_VOID_PTR, n, data);
	if (!status)
		status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
		                                  CUDNN_TYPE_VOID_PTR, 1, &workspace);
	if (!status)
		status = cudnnBackendFinalize(pack);
	if (!status)
		status = cudnnBackendExecute(handle, p->execution, pack);
	if (pack)
		(void)cudnnBackendDestroyDescriptor(pack);
	return status ? failed(status, "attention", err) : 0;
}
