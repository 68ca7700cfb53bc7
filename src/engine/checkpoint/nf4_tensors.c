/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the tensors in which bitsandbytes stores a weight in NF4. */
#pragma GCC optimize("fp-contract=off")
#include "engine/checkpoint/nf4_tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/device/nf4.h"

#define NAME_MAX_BYTES 512

static float float_at(const void *data, int64_t i)
{
	float f;

	memcpy(&f, (const char *)data + i * (int64_t)sizeof(f), sizeof(f));
	return f;
}

/* A member of the weight that is there with that type and number of elements. */
static int need_member(const struct safetensors *st, const char *weight, const char *suffix,
                       enum tensor_type type, int64_t count, const char *where, const struct tensor **out,
                       struct error *err)
{
	char name[NAME_MAX_BYTES];

	snprintf(name, sizeof(name), "%s%s", weight, suffix);
	*out = safetensors_find(st, name);
	if (!*out)
		return error_set(err, -EINVAL, "%s: tensor %s is missing beside %s", where, name, weight);
	if ((*out)->type != type || tensor_elements(*out) != count)
		return error_set(err, -EINVAL,
		                 "%s: tensor %s: %" PRId64 " elements of %s; %" PRId64 " of %s are needed",
		                 where, name, tensor_elements(*out), tensor_type_name((*out)->type), count,
		                 tensor_type_name(type));
	return 0;
}

/* The tables are fixed; versions of PyTorch may differ in a last bit of the larger one. */
static int check_table(const struct tensor *t, const float *want, int n, const char *where, struct error *err)
{
	for (int i = 0; i < n; i++)
		if (!(fabsf(float_at(t->data, i) - want[i]) <= 1e-6f))
			return error_set(err, -EINVAL, "%s: tensor %s: not the table of nf4", where, t->name);
	return 0;
}

static int read_shape(const json_t *state, const char *where, const char *name, struct tensor *weight,
                      struct error *err)
{
	const json_t *shape = json_object_get(state, "shape");
	size_t dims = json_array_size(shape);
	int64_t n = 1;

	if (!json_is_array(shape) || dims < 1 || dims > TENSOR_MAX_DIMS)
		return error_set(err, -EINVAL, "%s: tensor %s: shape: a list of sizes is needed", where,
		                 name);
	for (size_t d = 0; d < dims; d++) {
		const json_t *v = json_array_get(shape, d);

		if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		    __builtin_mul_overflow(n, (int64_t)json_integer_value(v), &n) || n > INT64_MAX / 8)
			return error_set(err, -EINVAL, "%s: tensor %s: shape: a list of sizes is needed",
			                 where, name);
		weight->shape[d] = json_integer_value(v);
	}
	weight->dims = (int)dims;
	if (weight->type != TENSOR_U8 || (int64_t)weight->bytes != (n + 1) / 2)
		return error_set(
		    err, -EINVAL,
		    "%s: tensor %s: %zu bytes of %s; %" PRId64 " elements in 4 bits need %" PRId64 " of U8",
		    where, weight->name, weight->bytes, tensor_type_name(weight->type), n, (n + 1) / 2);
	return 0;
}

static int read_state(const json_t *state, const char *where, const char *name, bool *nested, float *offset,
                      struct error *err)
{
	const char *type = json_get_string(state, "quant_type", "");
	int64_t block = json_get_int(state, "blocksize", 0);

	*nested = json_object_get(state, "nested_blocksize") != NULL;
	if (!json_is_object(state) || !str_eq(type, "nf4") || block != NF4_BLOCK ||
	    (*nested && json_get_int(state, "nested_blocksize", 0) != NF4_SCALES))
		return error_set(
		    err, -EINVAL,
		    "%s: tensor %s: quant_type nf4 with a blocksize of %d and a nested_blocksize of "
		    "%d is needed",
		    where, name, NF4_BLOCK, NF4_SCALES);
	*offset = (float)json_get_number(state, "nested_offset", 0);
	return 0;
}

int nf4_tensor_read(const struct safetensors *st, const struct tensor *state, const char *where,
                    struct tensor *weight, struct tensor_nf4 *out, const struct tensor *members[NF4_MEMBERS],
                    size_t *n, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	struct nf4_tables tables;
	char name[NAME_MAX_BYTES];
	size_t len = strlen(state->name) - strlen(NF4_STATE_SUFFIX);
	const struct tensor *codes;
	bool nested;
	int64_t blocks;
	int r;

	if (len + 64 > sizeof(name))
		return error_set(err, -EINVAL, "%s: tensor %.60s…: the name is too long", where, state->name);
	snprintf(name, sizeof(name), "%.*s", (int)len, state->name);
	codes = safetensors_find(st, name);
	if (!codes)
		return error_set(err, -EINVAL, "%s: tensor %s is missing beside %s", where, name,
		                 state->name);
	*weight = *codes;
	if ((r = json_parse(state->data, state->bytes, state->name, &json, err)) < 0 ||
	    (r = read_state(json, where, state->name, &nested, &out->offset, err)) < 0 ||
	    (r = read_shape(json, where, state->name, weight, err)) < 0)
		return r;
	weight->type = TENSOR_NF4;
	weight->nf4 = out;
	blocks = (tensor_elements(weight) + NF4_BLOCK - 1) / NF4_BLOCK;
	nf4_tables_fill(&tables);
	members[0] = state;
	if ((r = need_member(st, name, ".absmax", nested ? TENSOR_U8 : TENSOR_F32, blocks, where, &members[1],
	                     err)) < 0 ||
	    (r = need_member(st, name, ".quant_map", TENSOR_F32, 16, where, &members[2], err)) < 0 ||
	    (r = check_table(members[2], tables.code, 16, where, err)) < 0)
		return r;
	*n = 3;
	out->absmax = nested ? NULL : members[1]->data;
	out->absmax8 = nested ? members[1]->data : NULL;
	if (!nested)
		return 0;
	if ((r = need_member(st, name, ".nested_absmax", TENSOR_F32, (blocks + NF4_SCALES - 1) / NF4_SCALES,
	                     where, &members[3], err)) < 0 ||
	    (r = need_member(st, name, ".nested_quant_map", TENSOR_F32, 256, where, &members[4], err)) < 0 ||
	    (r = check_table(members[4], tables.map, 256, where, err)) < 0)
		return r;
	*n = 5;
	out->nested_absmax = members[3]->data;
	return 0;
}

void nf4_tensor_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out)
{
	const struct tensor_nf4 *q = t->nf4;
	const uint8_t *codes = t->data;
	struct nf4_tables tables;

	nf4_tables_fill(&tables);
	for (int64_t at = first; at < first + n;) {
		int64_t b = at / NF4_BLOCK, end = MIN((b + 1) * NF4_BLOCK, first + n);
		float scale =
		    q->absmax
		        ? float_at(q->absmax, b)
		        : tables.map[q->absmax8[b]] * float_at(q->nested_absmax, b / NF4_SCALES) + q->offset;

		for (; at < end; at++)
			*out++ = tables.code[codes[at / 2] >> (at % 2 ? 0 : 4) & 15] * scale;
	}
}
