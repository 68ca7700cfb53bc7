/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the graph API of cuDNN, as strict about descriptors as the library was observed to be, and
 * stricter about the arguments of a plan: it stores all attributes, checks them when a descriptor is
 * finalized, and computes the attention that the descriptors describe in plain loops in float64.
 */
#include "engine/device/cuda/attention/cudnn.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/dtype.h"
#include "fake_cudnn.h"

enum { BAD_PARAM = 2000, NOT_SUPPORTED = 3000, ENGINE = 13, TILE_KNOB = 40, LENGTHS_MAX = 4096 };
#define SIZE_OF_WORKSPACE 4096

struct cudnnContext {
	cudaStream_t stream;
};

/* The last error message; the library has one, too. */
static char words[160];
static int executions;

/* SIMT_CUDNN=none: there is no engine for anything; SIMT_CUDNN=fails: plans do not run. */
static bool is_told(const char *what)
{
	const char *word = getenv("SIMT_CUDNN");

	return word && !strcmp(word, what);
}

int simt_cudnn_executions(void)
{
	return executions;
}

static cudnnStatus_t wrong(cudnnStatus_t status, const char *what)
{
	snprintf(words, sizeof(words), "%s", what);
	return status;
}

int cudnn_load(struct error *err)
{
	return 0;
}

size_t cudnnGetVersion(void)
{
	const char *version = getenv("SIMT_CUDNN_VERSION");

	return version ? strtoul(version, NULL, 10) : 92800;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
	return status == NOT_SUPPORTED ? "not supported" : status ? "a bad parameter" : "success";
}

void cudnnGetLastErrorString(char *message, size_t size)
{
	snprintf(message, size, "%s", words);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
	*handle = calloc(1, sizeof(**handle));
	return *handle ? CUDNN_STATUS_SUCCESS : BAD_PARAM;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
	free(handle);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
	handle->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */
cudnnStatus_t cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *out)
{
	struct descriptor *d;

	if (cudnnGetVersion() < CUDNN_ONE_OPERATION && type >= CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR &&
	    type <= CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR)
		return wrong(NOT_SUPPORTED, "this version has no such operation");
	d = calloc(1, sizeof(*d));
	d->type = type;
	*out = d;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
	free(((struct descriptor *)d)->own);
	free(d);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, int name, int type, int64_t count,
                                       const void *elements)
{
	struct descriptor *d = descriptor;
	struct attribute *a;

	if (!d || d->final || find(d, name) || d->count == ATTRIBUTES)
		return wrong(BAD_PARAM, "set twice, or too late");
	a = &d->attributes[d->count];
	if (count < 1 || (size_t)count * size_of(type) > sizeof(a->bytes))
		return wrong(BAD_PARAM, "too many elements");
	if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
		for (int64_t i = 0; i < count; i++) {
			const struct descriptor *part = ((const cudnnBackendDescriptor_t *)elements)[i];

			if (!part || !part->final)
				return wrong(BAD_PARAM, "a part is not finalized");
		}
	*a = (struct attribute){.name = name, .type = type, .count = count};
	memcpy(a->bytes, elements, (size_t)count * size_of(type));
	d->count++;
	return CUDNN_STATUS_SUCCESS;
}

/* ---- checks when a descriptor is finalized ---- */
static bool is_tensor(const struct descriptor *t, int type, int64_t a, int64_t b, int64_t c, int64_t d)
{
	const int64_t *n = t && t->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR ? dims(t) : NULL;

	return n && number(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == type && n[0] == a && n[1] == b && n[2] == c &&
	       n[3] == d;
}

static bool is_value(const struct descriptor *t)
{
	return is_tensor(t, CUDNN_DATA_FLOAT, 1, 1, 1, 1) && number(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE) == 1;
}

static cudnnStatus_t finalize_tensor(const struct descriptor *t)
{
	const struct attribute *n = find(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
	const struct attribute *s = find(t, CUDNN_ATTR_TENSOR_STRIDES);

	if (!n || !s || n->count != 4 || s->count != 4 || uid(t) < 0 ||
	    number(t, CUDNN_ATTR_TENSOR_DATA_TYPE) < 0 || number(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) < 4)
		return wrong(BAD_PARAM, "a tensor lacks something");
	for (int i = 0; i < 4; i++)
		if (dims(t)[i] <= 0 || strides(t)[i] <= 0)
			return wrong(BAD_PARAM, "a tensor's size");
	return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_mask(const struct descriptor *d)
{
	const struct descriptor *x = part(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC);
	const struct descriptor *y = part(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC);
	const struct descriptor *by = part(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
	int64_t mode = number(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE);

	if (!x || !y || !is_value(part(d, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC)) ||
	    mode != (by ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE) || (by && !is_value(by)) ||
	    memcmp(dims(x), dims(y), 4 * sizeof(int64_t)) != 0 || uid(x) == uid(y))
		return wrong(BAD_PARAM, "a mask");
	return CUDNN_STATUS_SUCCESS;
}

/* Attributes of the forward and of the backward operation, by index. */
struct names {
	int q, k, v, o, scale, lengths_q, lengths_kv, graph, in, out;
};
static const struct names names[2] = {
    {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID}};

static bool is_backward(const struct descriptor *d)
{
	return d->type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR;
}

static const struct descriptor *statistics_of(const struct descriptor *d)
{
	const struct descriptor *softmax;

	if (is_backward(d))
		return part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC);
	softmax = part(d, CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC);
	return softmax ? part(softmax, CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC) : NULL;
}

/* The masks lead from the operation's `in` to its `out`. */
static bool leads(const struct descriptor *d, const struct names *n)
{
	const struct descriptor *graph = part(d, n->graph);
	const struct attribute *a = graph ? find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS) : NULL;
	int64_t at = number(d, n->in);

	for (int64_t i = 0; a && i < a->count; i++) {
		const struct descriptor *mask = ((struct descriptor *const *)a->bytes)[i];

		if (mask->type != CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR ||
		    uid(part(mask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC)) != at)
			return false;
		at = uid(part(mask, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC));
	}
	return a && at == number(d, n->out);
}

static bool is_ragged_alike(const struct descriptor *t, const struct descriptor *lengths, int64_t batch)
{
	const struct descriptor *offsets = part(t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);

	return lengths ? is_tensor(offsets, CUDNN_DATA_INT64, batch + 1, 1, 1, 1) : !offsets;
}

static cudnnStatus_t finalize_attention(const struct descriptor *d)
{
	const struct names *n = &names[is_backward(d)];
	const struct descriptor *q = part(d, n->q), *k = part(d, n->k), *lengths = part(d, n->lengths_q);
	const struct descriptor *tensors[] = {q,
	                                      k,
	                                      part(d, n->v),
	                                      part(d, n->o),
	                                      part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC),
	                                      part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC),
	                                      part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC),
	                                      part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC)};
	static const bool of_keys[] = {false, true, true, false, false, false, true, true};
	const struct descriptor *statistics = statistics_of(d);
	int64_t b, h, s, hd, kv;

	if (!q || !k || !statistics || !is_value(part(d, n->scale)) || !leads(d, n) ||
	    lengths != part(d, n->lengths_kv))
		return wrong(BAD_PARAM, "attention lacks something");
	b = dims(q)[0], h = dims(q)[1], s = dims(q)[2], hd = dims(q)[3], kv = dims(k)[1];
	if (h % kv || hd % 8 || hd > 128 || (lengths && !is_tensor(lengths, CUDNN_DATA_INT32, b, 1, 1, 1)) ||
	    !is_tensor(statistics, CUDNN_DATA_FLOAT, b, h, s, 1) || !is_ragged_alike(statistics, lengths, b))
		return wrong(BAD_PARAM, "attention's shape");
	for (int i = 0; i < (is_backward(d) ? 8 : 4); i++)
		if (!is_tensor(tensors[i], CUDNN_DATA_BFLOAT16, b, of_keys[i] ? kv : h, s, hd) ||
		    !is_ragged_alike(tensors[i], lengths, b) || strides(tensors[i])[3] != 1 ||
		    strides(tensors[i])[2] % 8)
			return wrong(BAD_PARAM, "a tensor of attention");
	if (lengths && is_backward(d) && number(d, CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q) <= 0)
		return wrong(NOT_SUPPORTED, "a workspace of all rows of all sequences");
	return CUDNN_STATUS_SUCCESS;
}

/* Both passes have a plan; the backward one that takes its turns alone. */
static cudnnStatus_t finalize_plan(struct descriptor *p)
{
	const struct descriptor *config = part(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
	const struct descriptor *engine = config ? part(config, CUDNN_ATTR_ENGINECFG_ENGINE) : NULL;
	const struct descriptor *graph = engine ? part(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH) : NULL;
	const struct attribute *knobs = config ? find(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES) : NULL;
	int64_t stages = 0;

	if (!graph || !find(p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE))
		return wrong(BAD_PARAM, "a plan lacks something");
	for (int64_t i = 0; knobs && i < knobs->count; i++) {
		const struct descriptor *knob = ((struct descriptor *const *)knobs->bytes)[i];

		if (number(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) == CUDNN_KNOB_TYPE_STAGES)
			stages = number(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
	}
	if (is_backward(part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS)) && (stages != 4 || knobs->count < 2))
		return wrong(NOT_SUPPORTED, "sums in any order");
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
	struct descriptor *d = descriptor;
	cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

	if (!d || d->final)
		return wrong(BAD_PARAM, "finalized twice");
	switch (d->type) {
	case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
		status = finalize_tensor(d);
		break;
	case CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR:
		status = finalize_mask(d);
		break;
	case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
	case CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR:
		status = finalize_attention(d);
		break;
	case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
	case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
	case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
		status = fake_composite_check(d);
		if (status)
			return wrong(status, "an operation of a composite graph");
		break;
	case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
		status = part(d, CUDNN_ATTR_OPERATIONGRAPH_OPS) ? CUDNN_STATUS_SUCCESS : BAD_PARAM;
		break;
	case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
		status = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) &&
		                 find(part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
		                      CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
		             ? CUDNN_STATUS_SUCCESS
		             : BAD_PARAM;
		break;
	case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
		status = finalize_plan(d);
		break;
	}
	d->final = status == CUDNN_STATUS_SUCCESS;
	return status;
}

/* ---- choices of the library ---- */
static void fill(struct descriptor *d, int name, int type, const void *element)
{
	d->final = false;
	(void)cudnnBackendSetAttribute(d, name, type, 1, element);
	d->final = true;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, int name, int type,
                                       int64_t wanted, int64_t *count, void *elements)
{
	struct descriptor *d = descriptor, *to, *x, *graph;
	int64_t n = 0;
	int knob = TILE_KNOB;

	if (!d->final || wanted < 1)
		return wrong(BAD_PARAM, "asked too early");
	*count = 1;
	to = type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? *(struct descriptor **)elements : NULL;
	switch (name) {
	case CUDNN_ATTR_ENGINEHEUR_RESULTS:
		if (is_told("none")) {
			*count = 0;
			return CUDNN_STATUS_SUCCESS;
		}
		x = to->own = calloc(1, sizeof(*x));
		x->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
		graph = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
		n = ENGINE;
		fill(x, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &n);
		fill(x, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &graph);
		fill(to, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &x);
		return CUDNN_STATUS_SUCCESS;
	case CUDNN_ATTR_ENGINECFG_ENGINE:
		*to = *part(d, name);
		to->own = NULL;
		return CUDNN_STATUS_SUCCESS;
	case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
		to->count = 0;
		n = 2;
		fill(to, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &knob);
		fill(to, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, &n);
		return CUDNN_STATUS_SUCCESS;
	case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
	case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
		n = number(d, name);
		memcpy(elements, &n, size_of(type));
		return CUDNN_STATUS_SUCCESS;
	case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
		*(int64_t *)elements = SIZE_OF_WORKSPACE;
		return CUDNN_STATUS_SUCCESS;
	}
	return wrong(NOT_SUPPORTED, "an attribute that nobody asks for");
}

/* ---- the computation ---- */
static double dot(const struct view *x, int64_t i, const struct view *y, int64_t j, int64_t n)
{
	const uint16_t *a = (const uint16_t *)x->p + i, *b = (const uint16_t *)y->p + j;
	double sum = 0;

	for (int64_t d = 0; d < n; d++)
		sum += (double)bf16_to_float(a[d]) * bf16_to_float(b[d]);
	return sum;
}

static void add(double *to, double by, const struct view *x, int64_t i, int64_t n)
{
	for (int64_t d = 0; d < n; d++)
		to[d] += by * bf16_to_float(((const uint16_t *)x->p)[i + d]);
}

static void put(const struct view *x, int64_t i, const double *from, int64_t n)
{
	for (int64_t d = 0; d < n; d++)
		((uint16_t *)x->p)[i + d] = bf16_from_float((float)from[d]);
}

struct problem {
	int64_t b, h, s, hd, kv, group;
	const int32_t *lengths;
	float scale, window; /* 0: none */
	struct view q, k, v, o, statistics, d_o, d_q, d_k, d_v;
};

static bool sees(const struct problem *p, int64_t row, int64_t key)
{
	return row >= key && (p->window == 0 || (float)key + p->window > (float)row);
}

static void forward(struct problem *p, int64_t b, int64_t h, int64_t rows)
{
	double scores[LENGTHS_MAX], out[128];

	for (int64_t i = 0; i < rows; i++) {
		double max = -INFINITY, sum = 0;

		memset(out, 0, sizeof(out));
		for (int64_t j = 0; j < rows; j++) {
			scores[j] = sees(p, i, j) ? p->scale * dot(&p->q, at(&p->q, b, h, i), &p->k,
			                                           at(&p->k, b, h / p->group, j), p->hd)
			                          : -INFINITY;
			max = fmax(max, scores[j]);
		}
		for (int64_t j = 0; j < rows; j++)
			sum += exp(scores[j] - max);
		for (int64_t j = 0; j < rows; j++)
			add(out, exp(scores[j] - max) / sum, &p->v, at(&p->v, b, h / p->group, j), p->hd);
		put(&p->o, at(&p->o, b, h, i), out, p->hd);
		((float *)p->statistics.p)[at(&p->statistics, b, h, i)] = (float)(max + log(sum));
	}
}

static void backward(struct problem *p, int64_t b, int64_t kv, int64_t rows)
{
	double *d_k = calloc((size_t)(2 * rows * p->hd), sizeof(*d_k)), *d_v = d_k + rows * p->hd, d_q[128];

	for (int64_t h = kv * p->group; h < (kv + 1) * p->group; h++) {
		for (int64_t i = 0; i < rows; i++) {
			int64_t q = at(&p->q, b, h, i), g = at(&p->d_o, b, h, i);
			double delta = dot(&p->d_o, g, &p->o, at(&p->o, b, h, i), p->hd);
			double lse = ((float *)p->statistics.p)[at(&p->statistics, b, h, i)];

			memset(d_q, 0, sizeof(d_q));
			for (int64_t j = 0; j < rows; j++) {
				int64_t k = at(&p->k, b, kv, j), v = at(&p->v, b, kv, j);
				double e, ds;

				if (!sees(p, i, j))
					continue;
				e = exp(p->scale * dot(&p->q, q, &p->k, k, p->hd) - lse);
				ds = e * (dot(&p->d_o, g, &p->v, v, p->hd) - delta) * p->scale;
				add(d_q, ds, &p->k, k, p->hd);
				add(d_k + j * p->hd, ds, &p->q, q, p->hd);
				add(d_v + j * p->hd, e, &p->d_o, g, p->hd);
			}
			put(&p->d_q, at(&p->d_q, b, h, i), d_q, p->hd);
		}
	}
	for (int64_t j = 0; j < rows; j++) {
		put(&p->d_k, at(&p->d_k, b, kv, j), d_k + j * p->hd, p->hd);
		put(&p->d_v, at(&p->d_v, b, kv, j), d_v + j * p->hd, p->hd);
	}
	free(d_k);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant)
{
	const struct descriptor *config = part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), *d, *graph;
	const struct attribute *uids = find(variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS), *masks;
	const struct attribute *pointers = find(variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
	const struct attribute *given = find(variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
	const struct names *n;
	struct problem p = {0};
	cudnnStatus_t status;
	struct pack pack;

	graph = part(part(config, CUDNN_ATTR_ENGINECFG_ENGINE), CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
	d = part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	n = &names[is_backward(d)];
	if (is_told("fails"))
		return wrong(NOT_SUPPORTED, "told to fail");
	if (!uids || !pointers || uids->count != pointers->count || !given)
		return wrong(BAD_PARAM, "a variant pack lacks something");
	pack = (struct pack){(const int64_t *)uids->bytes, (void *const *)pointers->bytes, uids->count};
	if (fake_is_composite(d)) {
		simt_enter(handle->stream);
		status = fake_composite_run(&pack, graph);
		simt_leave();
		executions += status == CUDNN_STATUS_SUCCESS;
		return status ? wrong(status, "a composite graph") : status;
	}
	p.b = dims(part(d, n->q))[0], p.h = dims(part(d, n->q))[1], p.s = dims(part(d, n->q))[2];
	p.hd = dims(part(d, n->q))[3], p.kv = dims(part(d, n->k))[1], p.group = p.h / p.kv;
	p.q = view_of(&pack, part(d, n->q));
	p.k = view_of(&pack, part(d, n->k));
	p.v = view_of(&pack, part(d, n->v));
	p.o = view_of(&pack, part(d, n->o));
	p.statistics = view_of(&pack, statistics_of(d));
	if (is_backward(d)) {
		p.d_o = view_of(&pack, part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC));
		p.d_q = view_of(&pack, part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC));
		p.d_k = view_of(&pack, part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC));
		p.d_v = view_of(&pack, part(d, CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC));
	}
	p.lengths = part(d, n->lengths_q) ? pointer(&pack, part(d, n->lengths_q)) : NULL;
	p.scale = *(float *)pointer(&pack, part(d, n->scale));
	masks = find(part(d, n->graph), CUDNN_ATTR_OPERATIONGRAPH_OPS);
	for (int64_t i = 0; i < masks->count; i++) {
		const struct descriptor *m = ((struct descriptor *const *)masks->bytes)[i];
		const struct descriptor *by =
		    part(m, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);

		if (*(float *)pointer(&pack, part(m, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC)) !=
		    -INFINITY)
			return wrong(BAD_PARAM, "a mask of another value");
		if (by)
			p.window = *(float *)pointer(&pack, by);
	}
	simt_check(*(void *const *)given->bytes, "cuDNN's workspace");
	simt_enter(handle->stream);
	memset(*(void *const *)given->bytes, 0xff, SIZE_OF_WORKSPACE);
	for (int64_t b = 0; b < p.b; b++) {
		int64_t rows = p.lengths ? p.lengths[b] : p.s;

		if (rows > p.s || rows > LENGTHS_MAX)
			abort();
		for (int64_t h = 0; h < (is_backward(d) ? p.kv : p.h); h++)
			(is_backward(d) ? backward : forward)(&p, b, h, rows);
	}
	simt_leave();
	executions++;
	return CUDNN_STATUS_SUCCESS;
}
