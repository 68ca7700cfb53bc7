/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the file with the algorithms of matrix products. */
#include "engine/checkpoint/algorithms.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"

/* Without Hopper's kernels of attention it is written as version 1, and with that of the forward pass alone
 * as version 2, for older readers. */
#define VERSION      3
#define KINDS_MAX    64
#define PRODUCTS_MAX 8192
#define SIDE_MAX     ((int64_t)1 << 40)

static const char digits[] = "0123456789abcdef";

#define FIELD(name) #name, offsetof(struct device_gemm_shape, name)

/* The numbers of a product. wide: int64_t, else int32_t. */
static const struct field {
	const char *name;
	size_t at;
	bool wide;
	int64_t low, high;
	bool optional; /* left out where it is 0 */
} fields[] = {
    {FIELD(m), true, 1, SIDE_MAX, false},
    {FIELD(n), true, 1, SIDE_MAX, false},
    {FIELD(k), true, 1, SIDE_MAX, false},
    {FIELD(lda), true, 1, SIDE_MAX, false},
    {FIELD(ldb), true, 1, SIDE_MAX, false},
    {FIELD(ldc), true, 1, SIDE_MAX, false},
    {FIELD(transpose_a), false, 0, 1, false},
    {FIELD(transpose_b), false, 0, 1, false},
    {FIELD(ab_type), false, 0, DTYPE_F16, false},
    {FIELD(c_type), false, 0, DTYPE_F16, false},
    {FIELD(adds), false, 0, 1, false},
    {FIELD(bias), false, 0, 1, false},
    {FIELD(d_bias), false, 0, 1, false},
    {FIELD(align_a), false, 1, DEVICE_GEMM_ALIGNMENT, false},
    {FIELD(align_b), false, 1, DEVICE_GEMM_ALIGNMENT, false},
    {FIELD(align_c), false, 1, DEVICE_GEMM_ALIGNMENT, false},
    {FIELD(align_bias), false, 1, DEVICE_GEMM_ALIGNMENT, false},
    {FIELD(fp8), false, 0, FP8_E5M2 << 4 | FP8_E5M2, true},
};

#define ATTENTION(name) #name, offsetof(struct device_attention_shape, name)

static const struct field attention_fields[] = {
    {ATTENTION(tokens), true, 1, SIDE_MAX, false},   {ATTENTION(rows), true, 1, SIDE_MAX, false},
    {ATTENTION(heads), false, 1, 1 << 16, false},    {ATTENTION(kv_heads), false, 1, 1 << 16, false},
    {ATTENTION(head_dim), false, 1, 1 << 16, false}, {ATTENTION(window), false, 0, INT32_MAX, false},
    {ATTENTION(type), false, 0, DTYPE_F16, false},
};

_Static_assert(sizeof(enum dtype) == sizeof(int32_t), "a type is written as a number of 32 bits");

static const char *const kernels[] = {"portable", "hopper"};
static const char *const passes[DEVICE_ATTENTION_PASSES] = {"attention", "attention_backward"};

/* ---- out ---- */

static int put_field(json_t *j, const struct field *f, const void *from)
{
	const void *at = (const char *)from + f->at;
	int64_t value = f->wide ? *(const int64_t *)at : *(const int32_t *)at;

	return value || !f->optional ? json_object_set_new(j, f->name, json_integer(value)) : 0;
}

static json_t *product_json(const struct device_gemm_choice *c)
{
	char hex[2 * DEVICE_ALGORITHM + 1];
	json_t *j = json_object();
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
		r |= put_field(j, &fields[i], &c->shape);
	for (size_t i = 0; i < DEVICE_ALGORITHM; i++)
		snprintf(hex + 2 * i, 3, "%02x", c->algorithm[i]);
	r |= json_object_set_new(j, "separate", json_boolean(c->separate));
	r |= json_object_set_new(j, "algorithm", json_string(hex));
	if (r == 0)
		return j;
	json_decref(j);
	return NULL;
}

static json_t *attention_json(const struct algorithms_attention *a)
{
	json_t *j = json_pack("{s:s, s:I, s:I}", "kernel", kernels[a->hopper != 0], "portable_ns",
	                      (json_int_t)a->portable_ns, "hopper_ns", (json_int_t)a->hopper_ns);
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(attention_fields); i++)
		r |= put_field(j, &attention_fields[i], &a->shape);
	if (r == 0)
		return j;
	json_decref(j);
	return NULL;
}

static json_t *kind_json(const struct algorithms_of_kind *kind)
{
	json_t *products = json_array(), *j;

	for (size_t i = 0; i < kind->n; i++)
		if (json_array_append_new(products, product_json(&kind->choices[i])) < 0) {
			json_decref(products);
			return NULL;
		}
	j = json_pack("{s:s, s:o}", "name", kind->name, "products", products);
	for (int i = 0; i < DEVICE_ATTENTION_PASSES; i++)
		if (kind->attention[i].chosen &&
		    json_object_set_new(j, passes[i], attention_json(&kind->attention[i])) < 0) {
			json_decref(j);
			return NULL;
		}
	return j;
}

static bool make_hash(const json_t *devices, char hash[17])
{
	_cleanup_free_ char *text = json_to_string(devices);

	if (text)
		snprintf(hash, 17, "%016" PRIx64, hash_bytes(text, strlen(text), 0));
	return text != NULL;
}

char *algorithms_text(const struct algorithms *a)
{
	_cleanup_json_ json_t *devices = json_array(), *j = NULL;
	int version = 1;
	char hash[17];

	for (size_t i = 0; i < a->n; i++) {
		if (json_array_append_new(devices, kind_json(&a->kinds[i])) < 0)
			return NULL;
		for (int pass = 0; pass < DEVICE_ATTENTION_PASSES; pass++)
			if (a->kinds[i].attention[pass].hopper)
				version = MAX(version, 2 + pass);
	}
	if (!devices || !make_hash(devices, hash))
		return NULL;
	j = json_pack("{s:i, s:s, s:O}", "version", version, "hash", hash, "devices", devices);
	return json_to_text(j, 1);
}

/* ---- in ---- */

static bool take_field(const json_t *v, const struct field *f, void *out)
{
	void *to = (char *)out + f->at;
	int64_t value = json_integer_value(v);

	if (!v && f->optional)
		return true;
	if (!json_is_integer(v) || value < f->low || value > f->high)
		return false;
	if (f->wide)
		*(int64_t *)to = value;
	else
		*(int32_t *)to = (int32_t)value;
	return true;
}

static bool take_algorithm(const json_t *v, unsigned char *out)
{
	const char *text = json_string_value(v);

	if (!text || strlen(text) != 2 * DEVICE_ALGORITHM || text[strspn(text, digits)])
		return false;
	for (size_t i = 0; i < DEVICE_ALGORITHM; i++)
		out[i] = (unsigned char)((strchr(digits, text[2 * i]) - digits) << 4 |
		                         (strchr(digits, text[2 * i + 1]) - digits));
	return true;
}

static bool take_product(const json_t *v, struct device_gemm_choice *out)
{
	struct device_gemm_shape *s = &out->shape;
	const json_t *separate = json_object_get(v, "separate");

	*out = (struct device_gemm_choice){.separate = json_is_true(separate)};
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
		if (!take_field(json_object_get(v, fields[i].name), &fields[i], s))
			return false;
	/* Rows are within their strides, and the types are those that device_gemm takes. */
	return json_is_boolean(separate) && take_algorithm(json_object_get(v, "algorithm"), out->algorithm) &&
	       s->lda >= (s->transpose_a ? s->m : s->k) && s->ldb >= (s->transpose_b ? s->k : s->n) &&
	       s->ldc >= s->n && (s->c_type == s->ab_type || s->c_type == DTYPE_F32) &&
	       (!s->d_bias || s->transpose_a);
}

static bool take_attention(const json_t *v, enum device_attention_pass pass, struct algorithms_attention *out)
{
	const char *kernel = json_get_string(v, "kernel", "");

	*out = (struct algorithms_attention){.shape.pass = pass,
	                                     .chosen = v != NULL,
	                                     .hopper = str_eq(kernel, kernels[1]),
	                                     .portable_ns = json_get_int(v, "portable_ns", -1),
	                                     .hopper_ns = json_get_int(v, "hopper_ns", -1)};
	for (size_t i = 0; v && i < ARRAY_SIZE(attention_fields); i++)
		if (!take_field(json_object_get(v, attention_fields[i].name), &attention_fields[i],
		                &out->shape))
			return false;
	return !v ||
	       ((out->hopper || str_eq(kernel, kernels[0])) && out->portable_ns >= 0 && out->hopper_ns >= 0);
}

static int not_ours(const char *where, const char *what, struct error *err)
{
	return error_set(err, -EBADMSG, "%s: %s: not as dtrain writes it", where, what);
}

static int take_kind(const json_t *v, const char *where, struct algorithms *out, struct error *err)
{
	const char *name = json_get_string(v, "name", NULL);
	const json_t *products = json_object_get(v, "products");
	_cleanup_free_ struct device_gemm_choice *choices = NULL;
	struct algorithms_attention attention[DEVICE_ATTENTION_PASSES];
	size_t n = json_array_size(products);
	int r;

	if (!name || !*name || strlen(name) >= ALGORITHMS_NAME_MAX || algorithms_find(out, name))
		return not_ours(where, "the name of a device", err);
	if (!json_is_array(products) || n > PRODUCTS_MAX)
		return not_ours(where, "products", err);
	choices = calloc(n + 1, sizeof(*choices));
	if (!choices)
		return error_oom(err);
	for (size_t i = 0; i < n; i++)
		if (!take_product(json_array_get(products, i), &choices[i]))
			return not_ours(where, "a product", err);
	for (int i = 0; i < DEVICE_ATTENTION_PASSES; i++)
		if (!take_attention(json_object_get(v, passes[i]), (enum device_attention_pass)i,
		                    &attention[i]))
			return not_ours(where, passes[i], err);
	r = algorithms_add(out, name, choices, n, err);
	for (int i = 0; i < DEVICE_ATTENTION_PASSES && r == 0; i++)
		if (attention[i].chosen)
			r = algorithms_set_attention(out, name, &attention[i], err);
	return r;
}

static int take_all(const json_t *j, const char *where, struct algorithms *out, struct error *err)
{
	const json_t *devices = json_object_get(j, "devices");
	const char *hash = json_get_string(j, "hash", "");
	char again[17];
	int r = 0;

	if (json_get_int(j, "version", 0) > VERSION)
		return error_set(err, -EBADMSG, "%s: version %" PRId64 "; this dtrain reads %d", where,
		                 json_get_int(j, "version", 0), VERSION);
	if (json_get_int(j, "version", 0) < 1 || !json_is_array(devices) ||
	    json_array_size(devices) > KINDS_MAX)
		return not_ours(where, "devices", err);
	if (!make_hash(devices, again))
		return error_oom(err);
	if (!str_eq(hash, again))
		return error_set(err, -EBADMSG, "%s is not what was saved: the file is damaged", where);
	for (size_t i = 0; i < json_array_size(devices) && r == 0; i++)
		r = take_kind(json_array_get(devices, i), where, out, err);
	return r;
}

int algorithms_parse(const char *text, size_t len, const char *where, struct algorithms *out,
                     struct error *err)
{
	_cleanup_json_ json_t *j = NULL;
	struct error why = ERROR_INIT;
	int r;

	*out = (struct algorithms){0};
	if (json_parse(text, len, where, &j, &why) < 0)
		return error_set(err, -EBADMSG, "%s: the file is damaged", why.message);
	r = take_all(j, where, out, err);
	if (r < 0)
		algorithms_free(out);
	return r;
}

/* ---- the lists ---- */

void algorithms_free(struct algorithms *a)
{
	for (size_t i = 0; i < a->n; i++)
		free(a->kinds[i].choices);
	free(a->kinds);
	*a = (struct algorithms){0};
}

struct algorithms_of_kind *algorithms_find(const struct algorithms *a, const char *name)
{
	for (size_t i = 0; i < a->n; i++)
		if (str_eq(a->kinds[i].name, name))
			return &a->kinds[i];
	return NULL;
}

void algorithms_forget(struct algorithms *a, const char *name)
{
	struct algorithms_of_kind *kind = algorithms_find(a, name);

	if (kind)
		kind->n = 0;
}

static struct algorithms_of_kind *find_or_add(struct algorithms *a, const char *name)
{
	struct algorithms_of_kind *kind = algorithms_find(a, name), *more;

	if (kind)
		return kind;
	more = realloc(a->kinds, (a->n + 1) * sizeof(*more));
	if (!more)
		return NULL;
	a->kinds = more;
	kind = &a->kinds[a->n++];
	*kind = (struct algorithms_of_kind){0};
	snprintf(kind->name, sizeof(kind->name), "%s", name);
	return kind;
}

int algorithms_set_attention(struct algorithms *a, const char *name,
                             const struct algorithms_attention *attention, struct error *err)
{
	struct algorithms_of_kind *kind = find_or_add(a, name);

	if (!kind)
		return error_oom(err);
	kind->attention[attention->shape.pass] = *attention;
	return 0;
}

int algorithms_add(struct algorithms *a, const char *name, const struct device_gemm_choice *choices, size_t n,
                   struct error *err)
{
	struct algorithms_of_kind *kind = find_or_add(a, name);
	struct device_gemm_choice *more;

	if (!kind)
		return error_oom(err);
	more = realloc(kind->choices, (kind->n + n + 1) * sizeof(*more));
	if (!more)
		return error_oom(err);
	kind->choices = more;
	for (size_t i = 0; i < n; i++) {
		size_t at = 0;

		while (at < kind->n &&
		       memcmp(&kind->choices[at].shape, &choices[i].shape, sizeof(choices[i].shape)) != 0)
			at++;
		kind->choices[at] = choices[i];
		kind->n = MAX(kind->n, at + 1);
	}
	return 0;
}
