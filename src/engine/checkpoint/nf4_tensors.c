/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the tensors in which bitsandbytes stores a weight in NF4. */
#include "engine/checkpoint/nf4_tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/device/nf4.h"

const char *const nf4_suffixes[NF4_MEMBERS] = {
    [NF4_STATE] = ".quant_state.bitsandbytes__nf4",
    [NF4_ABSMAX] = ".absmax",
    [NF4_MAP] = ".quant_map",
    [NF4_NESTED_ABSMAX] = ".nested_absmax",
    [NF4_NESTED_MAP] = ".nested_quant_map",
};

static float float_at(const void *data, int64_t i)
{
	float f;

	memcpy(&f, (const char *)data + i * (int64_t)sizeof(f), sizeof(f));
	return f;
}

/* A member that is there with that type and number of elements. */
static int need_member(const struct tensor *const members[NF4_MEMBERS], int which, enum tensor_type type,
                       int64_t count, const char *weight, const char *where, struct error *err)
{
	const struct tensor *t = members[which];

	if (!t)
		return error_set(err, -EINVAL, "%s: tensor %s%s is missing", where, weight,
		                 nf4_suffixes[which]);
	if (t->type != type || tensor_elements(t) != count)
		return error_set(err, -EINVAL,
		                 "%s: tensor %s: %" PRId64 " elements of %s; %" PRId64 " of %s are needed",
		                 where, t->name, tensor_elements(t), tensor_type_name(t->type), count,
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

int nf4_tensor_read(const struct tensor *const members[NF4_MEMBERS], const char *where, struct tensor *weight,
                    struct tensor_nf4 *out, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	const struct tensor *state = members[NF4_STATE];
	const char *name = weight->name;
	struct nf4_tables tables;
	int64_t blocks;
	bool nested;
	int r;

	if ((r = json_parse(state->data, state->bytes, state->name, &json, err)) < 0 ||
	    (r = read_state(json, where, state->name, &nested, &out->offset, err)) < 0 ||
	    (r = read_shape(json, where, state->name, weight, err)) < 0)
		return r;
	weight->type = TENSOR_NF4;
	weight->nf4 = out;
	blocks = (tensor_elements(weight) + NF4_BLOCK - 1) / NF4_BLOCK;
	nf4_tables_fill(&tables);
	if ((r = need_member(members, NF4_ABSMAX, nested ? TENSOR_U8 : TENSOR_F32, blocks, name, where,
	                     err)) < 0 ||
	    (r = need_member(members, NF4_MAP, TENSOR_F32, 16, name, where, err)) < 0 ||
	    (r = check_table(members[NF4_MAP], tables.code, 16, where, err)) < 0)
		return r;
	out->absmax = nested ? NULL : members[NF4_ABSMAX]->data;
	out->absmax8 = nested ? members[NF4_ABSMAX]->data : NULL;
	if (!nested)
		return 0;
	if ((r = need_member(members, NF4_NESTED_ABSMAX, TENSOR_F32, (blocks + NF4_SCALES - 1) / NF4_SCALES,
	                     name, where, err)) < 0 ||
	    (r = need_member(members, NF4_NESTED_MAP, TENSOR_F32, 256, name, where, err)) < 0 ||
	    (r = check_table(members[NF4_NESTED_MAP], tables.map, 256, where, err)) < 0)
		return r;
	out->nested_absmax = members[NF4_NESTED_ABSMAX]->data;
	return 0;
}
