/* SPDX-License-Identifier: Apache-2.0 */
/* Builds cuDNN's graph for one shape of attention, and the plan that runs it. */
#include "engine/device/cuda/attention/cudnn_plan.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/device/cuda/attention/cudnn_builder.h"

#define CONFIGS 8
#define KNOBS   32

/* ---- the graph ---- */
/* Compares the positions of a score. Where `by` is NULL: query >= key, otherwise: key + by > query. */
static cudnnBackendDescriptor_t mask(struct builder *b, cudnnBackendDescriptor_t from,
                                     cudnnBackendDescriptor_t to, int64_t instead,
                                     cudnnBackendDescriptor_t by)
{
	static const char what[] = "the mask";
	int mode = by ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE;
	cudnnBackendDescriptor_t d =
	    graph_make(b, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, what);

	graph_set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, from, what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, graph_value(b, instead), what);
	if (by)
		graph_set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, by, what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, to, what);
	graph_set(b, d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
	          &mode, what);
	graph_finish(b, d, what);
	return d;
}

/* The operations on the scores before the softmax. */
static cudnnBackendDescriptor_t masks(struct builder *b)
{
	bool window = b->plan->shape.window;
	cudnnBackendDescriptor_t causal = graph_scores(b, CAUSAL, CUDNN_DATA_FLOAT), operations[2], d;

	operations[0] = mask(b, graph_scores(b, SCORES, CUDNN_DATA_FLOAT), causal, AHEAD, NULL);
	if (window)
		operations[1] = mask(b, causal, graph_scores(b, BANDED, CUDNN_DATA_FLOAT), BEHIND,
		                     graph_value(b, WINDOW));
	d = graph_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the masks");
	graph_set(b, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1 + window, operations,
	          "the masks");
	graph_finish(b, d, "the masks");
	return d;
}

static cudnnBackendDescriptor_t forward(struct builder *b)
{
	static const char what[] = "attention";
	const struct cudnn_shape *s = &b->plan->shape;
	cudnnBackendDescriptor_t softmax =
	                             graph_make(b, CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, "softmax"),
	                         d;

	graph_set_part(b, softmax, CUDNN_ATTR_OPERATION_SOFTMAX_XDESC,
	               graph_scores(b, SOFTMAX_IN, CUDNN_DATA_FLOAT), "softmax");
	graph_set_part(b, softmax, CUDNN_ATTR_OPERATION_SOFTMAX_YDESC,
	               graph_scores(b, SOFTMAX_OUT, CUDNN_DATA_FLOAT), "softmax");
	graph_set_part(b, softmax, CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC, graph_statistics(b), "softmax");
	graph_finish(b, softmax, "softmax");

	d = graph_make(b, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
	               graph_matrix(b, CUDNN_TENSOR_Q, s->heads, s->ld_q, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_Q)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
	               graph_matrix(b, CUDNN_TENSOR_K, s->kv_heads, s->ld_k, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_K)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
	               graph_matrix(b, CUDNN_TENSOR_V, s->kv_heads, s->ld_v, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_V)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
	               graph_matrix(b, CUDNN_TENSOR_O, s->heads, s->ld_o, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_O)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC, softmax, what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, graph_value(b, SCALE), what);
	if (s->ragged) {
		cudnnBackendDescriptor_t lengths =
		    graph_per_document(b, CUDNN_TENSOR_LENGTHS, CUDNN_DATA_INT32, s->batch);

		graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, lengths, what);
		graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, lengths, what);
	}
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, masks(b), what);
	graph_set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, SCORES, what);
	graph_set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, s->window ? BANDED : CAUSAL,
	                 what);
	graph_finish(b, d, what);
	return d;
}

static cudnnBackendDescriptor_t backward(struct builder *b)
{
	static const char what[] = "attention's backward";
	const struct cudnn_shape *s = &b->plan->shape;
	cudnnBackendDescriptor_t at_q = graph_offsets(b, CUDNN_TENSOR_OFFSETS_Q);
	cudnnBackendDescriptor_t at_o = graph_offsets(b, CUDNN_TENSOR_OFFSETS_O);
	cudnnBackendDescriptor_t d = graph_make(b, CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, what);

	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC,
	               graph_matrix(b, CUDNN_TENSOR_Q, s->heads, s->ld_q, false, at_q), what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC,
	               graph_matrix(b, CUDNN_TENSOR_K, s->kv_heads, s->ld_k, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_K)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC,
	               graph_matrix(b, CUDNN_TENSOR_V, s->kv_heads, s->ld_v, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_V)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC,
	               graph_matrix(b, CUDNN_TENSOR_O, s->heads, s->ld_o, false, at_o), what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, graph_statistics(b), what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC, graph_value(b, SCALE), what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC,
	               graph_matrix(b, CUDNN_TENSOR_D_O, s->heads, s->ld_o, false, at_o), what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC,
	               graph_matrix(b, CUDNN_TENSOR_D_Q, s->heads, s->ld_q, false, at_q), what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC,
	               graph_matrix(b, CUDNN_TENSOR_D_K, s->kv_heads, s->ld_d_k, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_D_K)),
	               what);
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC,
	               graph_matrix(b, CUDNN_TENSOR_D_V, s->kv_heads, s->ld_d_v, false,
	                            graph_offsets(b, CUDNN_TENSOR_OFFSETS_D_V)),
	               what);
	if (s->ragged) {
		cudnnBackendDescriptor_t lengths =
		    graph_per_document(b, CUDNN_TENSOR_LENGTHS, CUDNN_DATA_INT32, s->batch);

		graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC, lengths, what);
		graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, lengths, what);
		/* Without it, the workspace would be large enough for `rows` rows of every sequence. */
		graph_set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q, s->total, what);
		graph_set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV, s->total, what);
	}
	graph_set_part(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH, masks(b), what);
	graph_set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, SCORES, what);
	graph_set_number(b, d, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, s->window ? BANDED : CAUSAL,
	                 what);
	graph_finish(b, d, what);
	return d;
}

static void build_graph(struct builder *b)
{
	static const char what[] = "the graph";
	cudnnBackendDescriptor_t operations[GRAPH_OPERATIONS];
	int count = 1;

	if (b->plan->shape.backward)
		operations[0] = backward(b);
	else if (cudnnGetVersion() >= CUDNN_ONE_OPERATION)
		operations[0] = forward(b);
	else
		count = graph_composite_forward(b, operations);
	b->graph = graph_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
	if (b->target->handle)
		graph_set(b, b->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
		          &b->target->handle, what);
	graph_set(b, b->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
	          operations, what);
	graph_finish(b, b->graph, what);
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

	chosen = graph_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what);
	for (int i = 0; i < KNOBS; i++)
		knobs[i] = graph_make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what);
	if (b->r < 0)
		return NULL;
	graph_check(b,
	            cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
	                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &chosen),
	            what);
	graph_check(
	    b,
	    cudnnBackendGetAttribute(chosen, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &index),
	    what);
	graph_check(b,
	            cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
	                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS, &count, knobs),
	            what);
	for (int64_t i = 0; i < count && b->r == 0; i++) {
		graph_check(b,
		            cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
		                                     CUDNN_TYPE_KNOB_TYPE, 1, &n, &type),
		            what);
		if (type != stages)
			knobs[kept++] = knobs[i];
	}
	knob = graph_make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what);
	graph_set(b, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &stages, what);
	graph_set_number(b, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, ordered_stages(b->target->major), what);
	graph_finish(b, knob, what);
	knobs[kept++] = knob;

	engine = graph_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what);
	graph_set_part(b, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, b->graph, what);
	graph_set_number(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index, what);
	if (b->properties)
		graph_set_part(b, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, b->properties, what);
	graph_finish(b, engine, what);
	result = graph_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
	graph_set_part(b, result, CUDNN_ATTR_ENGINECFG_ENGINE, engine, what);
	graph_set(b, result, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, kept, knobs,
	          what);
	graph_finish(b, result, what);
	return result;
}

static void build_execution(struct builder *b, cudnnBackendDescriptor_t config)
{
	static const char what[] = "the plan";
	struct cudnn_plan *p = b->plan;
	int64_t n, size = 0;

	if (p->shape.backward)
		config = ordered(b, config);
	p->execution = graph_make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what);
	if (b->target->handle)
		graph_set(b, p->execution, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
		          &b->target->handle, what);
	else
		graph_set_part(b, p->execution, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, b->properties, what);
	graph_set_part(b, p->execution, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, what);
	graph_finish(b, p->execution, what);
	if (b->r == 0)
		graph_check(b,
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

	heuristics = graph_make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
	graph_set_part(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, b->graph, what);
	graph_set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
	if (b->properties)
		graph_set_part(b, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, b->properties, what);
	graph_finish(b, heuristics, what);
	for (int i = 0; i < CONFIGS; i++)
		configs[i] = graph_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
	if (b->r == 0)
		graph_check(b,
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
		b.properties = graph_make(&b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, what);
		graph_set(&b, b.properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
		          (int64_t)strlen(target->description) + 1, target->description, what);
		graph_finish(&b, b.properties, what);
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
	float infinity = cudnnGetVersion() < CUDNN_INFINITY ? -FLT_MAX : -INFINITY, width = (float)window;
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
		if (cudnnGetVersion() >= CUDNN_ONE_OPERATION) {
			uids[n] = BEHIND;
			data[n++] = &infinity;
		}
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
	return status ? graph_failed(status, "attention", err) : 0;
}
