/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model's parameters in safetensors, and refuses what does not fit them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/checkpoint/hf.h"
#include "engine/model/multimodal.h"

#define HEAD          "lm_head.weight"
#define NAMED_AT_MOST 4
#define NAMES_AT_MOST 4 /* of one parameter */

/* Adds a name to an error message, which has the first few names and then the number of the others. */
static void add_name(struct strbuf *b, size_t count, const char *name)
{
	if (count < NAMED_AT_MOST)
		strbuf_addf(b, "%s%s", count ? ", " : "", name);
}

static void add_more(struct strbuf *b, size_t count)
{
	if (count > NAMED_AT_MOST)
		strbuf_addf(b, " and %zu more", count - NAMED_AT_MOST);
}

/* A name as the body of a causal model saved alone has it; NULL: it has no other. */
static const char *body_name(const char *name)
{
	static const char *const prefixes[] = {"model.", "transformer."};

	for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
		if (str_starts(name, prefixes[i]))
			return name + strlen(prefixes[i]);
	return NULL;
}

/* The i-th other name that files may have for a name. */
static bool other_name(const char *name, int i, char *buf, size_t size)
{
	const char *body = multimodal_is_named(name) ? NULL : body_name(name);

	if (!body)
		return multimodal_other_name(name, i, buf, size);
	snprintf(buf, size, "%s", body);
	return i == 0;
}

const struct tensor *hf_find(const struct safetensors *st, const char *name)
{
	const struct tensor *t = safetensors_find(st, name);
	char other[TENSOR_NAME_SIZE];

	for (int i = 0; !t && other_name(name, i, other, sizeof(other)); i++)
		t = safetensors_find(st, other);
	return t;
}

const struct tensor *hf_find_tied(const struct safetensors *st, const char *name, bool tied_embedding)
{
	const struct tensor *t = hf_find(st, name);

	return t || !tied_embedding ? t : hf_find(st, HEAD);
}

static const struct tensor *find(const struct safetensors *st, const struct hf_parameter *p)
{
	return hf_find_tied(st, p->name, p->tied_embedding);
}

/* Whether a tensor that the model does not need may be there: a table that is computed anyway, the output
 * layer of a model that ties it to the embedding, or what no pass over it uses. */
static bool harmless(const char *name)
{
	return str_eq(name, HEAD) || str_eq(name, "language_model." HEAD) ||
	       str_ends(name, ".rotary_emb.inv_freq") || str_ends(name, ".rotary_emb.cos_cached") ||
	       str_ends(name, ".rotary_emb.sin_cached") || str_ends(name, ".attn.masked_bias") ||
	       /* The causal mask of GPT-2. */
	       str_ends(name, ".attn.bias") ||
	       /* Layers that predict further tokens, which transformers ignores, too. */
	       str_starts(name, "mtp.");
}

static int check_missing(const char *path, const struct safetensors *st,
                         const struct hf_parameter *parameters, size_t n, struct error *err)
{
	_cleanup_strbuf_ struct strbuf names = {0};
	size_t missing = 0;

	for (size_t i = 0; i < n; i++)
		if (!parameters[i].optional && !find(st, &parameters[i]))
			add_name(&names, missing++, parameters[i].name);
	add_more(&names, missing);
	if (missing)
		return error_set(err, -EINVAL, "%s: %zu of the model's %zu tensors are missing: %s", path,
		                 missing, n, names.data ? names.data : "");
	return 0;
}

static int name_order(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* All names under which files may have the parameters, in order; the caller frees them. */
static int list_names(const struct hf_parameter *parameters, size_t n, char (**out)[TENSOR_NAME_SIZE],
                      size_t *count, struct error *err)
{
	char(*names)[TENSOR_NAME_SIZE] = calloc(n + 1, NAMES_AT_MOST * sizeof(*names));
	size_t k = 0;

	if (!names)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		snprintf(names[k++], sizeof(*names), "%s", parameters[i].name);
		for (int j = 0; other_name(parameters[i].name, j, names[k], sizeof(*names)); j++)
			k++;
	}
	qsort(names, k, sizeof(*names), name_order);
	*out = names;
	*count = k;
	return 0;
}

static int check_extra(const char *path, const struct safetensors *st, const struct hf_parameter *parameters,
                       size_t n, struct error *err)
{
	_cleanup_free_ char(*known)[TENSOR_NAME_SIZE] = NULL;
	_cleanup_strbuf_ struct strbuf names = {0};
	bool multimodal = hf_is_multimodal(parameters, n);
	size_t extra = 0, k = 0;
	int r = list_names(parameters, n, &known, &k, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < safetensors_count(st); i++) {
		const char *name = safetensors_at(st, i)->name;
		char ours[TENSOR_NAME_SIZE];

		if (!bsearch(name, known, k, sizeof(*known), name_order) && !harmless(name) &&
		    (!multimodal || multimodal_parameter_name(name, ours, sizeof(ours))))
			add_name(&names, extra++, name);
	}
	add_more(&names, extra);
	if (extra && !multimodal && n > 0 && strstr(parameters[0].name, "model.language_model."))
		return error_set(
		    err, -EINVAL,
		    "%s: the adapter has modules of other parts of the multimodal model, such as %s, "
		    "which are not trained; expected one of its language model alone",
		    path, names.data ? names.data : "");
	if (extra)
		return error_set(err, -EINVAL,
		                 "%s: %zu tensors that the model's config.json has no place for: %s", path,
		                 extra, names.data ? names.data : "");
	return 0;
}

bool hf_is_multimodal(const struct hf_parameter *parameters, size_t n)
{
	return n > 0 && multimodal_is_named(parameters[0].name);
}

static int check_shape(const char *path, const struct tensor *t, const struct hf_parameter *p,
                       struct error *err)
{
	char is[192], want[192];

	if (t->type != TENSOR_F32 && t->type != TENSOR_BF16 && t->type != TENSOR_F16 &&
	    t->type != TENSOR_F64 && t->type != TENSOR_NF4)
		return error_set(err, -EINVAL, "%s: tensor %s is %s; expected one of F32, BF16, F16", path,
		                 t->name, tensor_type_name(t->type));
	if (t->dims == p->dims && !memcmp(t->shape, p->shape, p->dims * sizeof(*p->shape)))
		return 0;
	return error_set(err, -EINVAL, "%s: tensor %s has shape %s; the model needs %s", path, t->name,
	                 tensor_shape_text(is, sizeof(is), t->dims, t->shape),
	                 tensor_shape_text(want, sizeof(want), p->dims, p->shape));
}

/* Whether two values are one; of different types, one may have been rounded to the other's. */
static bool same_value(float x, float y, bool rounded)
{
	return x == y || (rounded && fabsf(x - y) <= 0x1p-7f * fabsf(x) + 0x1p-24f);
}

/* Whether two tensors have the same values. */
static int compare_values(const struct safetensors *st, const struct tensor *a, const struct tensor *b,
                          bool *same, struct error *err)
{
	enum { PIECE = 1 << 20 };
	_cleanup_free_ float *x = malloc(PIECE * sizeof(*x)), *y = malloc(PIECE * sizeof(*y));
	int64_t n = tensor_elements(a);
	int r = 0;

	if (!x || !y)
		return error_oom(err);
	*same = a->dims == b->dims && !memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape));
	for (int64_t at = 0; at < n && *same && r == 0; at += PIECE) {
		int64_t piece = MIN(n - at, PIECE);

		if ((r = tensor_to_f32(a, at, piece, x, err)) < 0 ||
		    (r = tensor_to_f32(b, at, piece, y, err)) < 0)
			break;
		for (int64_t i = 0; i < piece && *same; i++)
			*same = same_value(x[i], y[i], a->type != b->type);
		safetensors_release(st, a, at, piece);
		safetensors_release(st, b, at, piece);
	}
	return r;
}

/* transformers 4 drops the head then, transformers 5 does not tie it. */
static int check_tied(const struct safetensors *st, const char *where, const char *embedding,
                      struct error *err)
{
	const struct tensor *t = hf_find(st, embedding), *head = hf_find(st, HEAD);
	bool same = false;
	int r;

	if (!t || !head)
		return 0;
	r = compare_values(st, t, head, &same, err);
	return r < 0 || same
	           ? r
	           : error_set(err, -EINVAL,
	                       "%s: tensor %s differs from %s, but tie_word_embeddings in the model's "
	                       "config.json makes them one; expected false there, or files without %s",
	                       where, HEAD, t->name, HEAD);
}

int hf_check(const struct safetensors *st, const char *where, const struct hf_parameter *parameters, size_t n,
             struct error *err)
{
	int r = check_missing(where, st, parameters, n, err);

	if (r < 0 || (r = check_extra(where, st, parameters, n, err)) < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		const struct tensor *t = find(st, &parameters[i]);

		if ((t && (r = check_shape(where, t, &parameters[i], err)) < 0) ||
		    (parameters[i].tied_embedding &&
		     (r = check_tied(st, where, parameters[i].name, err)) < 0))
			return r;
	}
	return 0;
}

int hf_load(const char *path, const struct hf_parameter *parameters, size_t n, hf_store_fn store,
            void *context, struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	int r;

	if ((r = safetensors_open(path, &st, err)) < 0 || (r = hf_check(st, path, parameters, n, err)) < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		const struct tensor *t = find(st, &parameters[i]);

		if (t && (r = store(context, i, t, err)) < 0)
			return r;
	}
	return 0;
}
