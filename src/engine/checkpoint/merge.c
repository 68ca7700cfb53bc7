/* SPDX-License-Identifier: Apache-2.0 */
/* Computes weights with an adapter in them. */
#include "engine/checkpoint/merge.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/checkpoint/parameters.h"

/* Row i of the sum is W[i] + scale · Σ left[i][k] · right[k]: of [out, in], left is B and right is A; of what
 * is stored the other way round, left is Aᵀ and right is Bᵀ. */
struct merge {
	const struct safetensors *base;
	const struct tensor *w;
	int64_t rows, columns, rank;
	float scale;
	float *left, *right, *delta;
	float *magnitude; /* NULL: not DoRA */
	double *norm;     /* of each column, where the columns are what DoRA scales; NULL: the rows are */
};

/* A tensor in fp32, on request transposed: [columns, rows]. */
static int load(const struct safetensors *st, const struct tensor *t, bool transposed, float **out,
                struct error *err)
{
	int64_t n = tensor_elements(t), rows = t->dims == 2 ? t->shape[0] : 1, columns = rows ? n / rows : 0;
	_cleanup_free_ float *plain = malloc(MAX((size_t)n, 1) * sizeof(*plain));
	_cleanup_free_ float *turned = NULL;
	int r;

	if (!plain)
		return error_oom(err);
	if ((r = tensor_to_f32(t, 0, n, plain, err)) < 0 ||
	    (r = parameters_check_finite(t->name, safetensors_file(st, t), 0, plain, n, err)) < 0)
		return r;
	if (!transposed) {
		*out = steal_pointer(plain);
		return 0;
	}
	turned = malloc(MAX((size_t)n, 1) * sizeof(*turned));
	if (!turned)
		return error_oom(err);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++)
			turned[j * rows + i] = plain[i * columns + j];
	*out = steal_pointer(turned);
	return 0;
}

/* The row without DoRA's scaling. */
static int sum_row(struct merge *m, int64_t row, float *out, struct error *err)
{
	const float *left = m->left + row * m->rank;
	int r = tensor_to_f32(m->w, row * m->columns, m->columns, out, err);

	if (r < 0 || (r = parameters_check_finite(m->w->name, safetensors_file(m->base, m->w),
	                                          row * m->columns, out, m->columns, err)) < 0)
		return r;
	for (int64_t j = 0; j < m->columns; j++)
		m->delta[j] = 0;
	for (int64_t k = 0; k < m->rank; k++) {
		const float *right = m->right + k * m->columns;

		for (int64_t j = 0; j < m->columns; j++)
			m->delta[j] += left[k] * right[j];
	}
	for (int64_t j = 0; j < m->columns; j++)
		out[j] += m->scale * m->delta[j];
	return 0;
}

static int column_norms(struct merge *m, struct error *err)
{
	_cleanup_free_ float *row = malloc((size_t)m->columns * sizeof(*row));
	int r = 0;

	m->norm = calloc((size_t)m->columns, sizeof(*m->norm));
	if (!row || !m->norm)
		return error_oom(err);
	for (int64_t i = 0; i < m->rows && r == 0; i++) {
		r = sum_row(m, i, row, err);
		for (int64_t j = 0; j < m->columns && r == 0; j++)
			m->norm[j] += (double)row[j] * row[j];
	}
	for (int64_t j = 0; j < m->columns; j++)
		m->norm[j] = sqrt(m->norm[j]);
	return r;
}

int merge_create(const struct safetensors *base, const struct tensor *w, const struct peft_adapter *a,
                 const struct peft_module *p, struct merge **out, struct error *err)
{
	_cleanup_(merge_freep) struct merge *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return error_oom(err);
	*m = (struct merge){.base = base,
	                    .w = w,
	                    .rows = w->shape[0],
	                    .columns = w->shape[1],
	                    .rank = p->rank,
	                    .scale = (float)p->scale};
	m->delta = malloc(MAX((size_t)m->columns, 1) * sizeof(*m->delta));
	if (!m->delta)
		return error_oom(err);
	if ((r = load(a->tensors, p->transposed ? p->a : p->b, p->transposed, &m->left, err)) < 0 ||
	    (r = load(a->tensors, p->transposed ? p->b : p->a, p->transposed, &m->right, err)) < 0 ||
	    (p->magnitude && (r = load(a->tensors, p->magnitude, false, &m->magnitude, err)) < 0) ||
	    (p->magnitude && p->transposed && (r = column_norms(m, err)) < 0))
		return r;
	*out = steal_pointer(m);
	return 0;
}

void merge_free(struct merge *m)
{
	if (!m)
		return;
	free(m->left);
	free(m->right);
	free(m->delta);
	free(m->magnitude);
	free(m->norm);
	free(m);
}

int merge_check(const struct peft_adapter *a, const char *directory, struct error *err)
{
	if (a->config.init == PEFT_INIT_PISSA)
		return error_set(err, -ENOTSUP,
		                 "%s: init_lora_weights: \"pissa\": such an adapter belongs to weights that "
		                 "PiSSA changed, not to those of the base: save it with "
		                 "path_initial_model_for_weight_conversion first",
		                 directory);
	for (size_t i = 0; i < a->n_modules; i++)
		if (a->modules[i].magnitude &&
		    (str_ends(a->modules[i].name, "embed_tokens") || str_ends(a->modules[i].name, "wte")))
			return error_set(err, -ENOTSUP, "%s: %s: DoRA of an embedding is not supported",
			                 directory, a->modules[i].name);
	return 0;
}

bool merge_is_embedding_or_head(const char *weight)
{
	return str_ends(weight, "embed_tokens.weight") || str_ends(weight, "wte.weight") ||
	       str_eq(weight, "lm_head.weight") || str_eq(weight, "language_model.lm_head.weight");
}

int merge_row(struct merge *m, int64_t row, float *out, struct error *err)
{
	double sum = 0;
	int r = sum_row(m, row, out, err);

	if (r < 0 || !m->magnitude)
		return r;
	if (m->norm) {
		for (int64_t j = 0; j < m->columns; j++)
			out[j] *= m->norm[j] > 0 ? (float)(m->magnitude[j] / m->norm[j]) : 0;
		return 0;
	}
	for (int64_t j = 0; j < m->columns; j++)
		sum += (double)out[j] * out[j];
	for (int64_t j = 0; j < m->columns; j++)
		out[j] *= sum > 0 ? (float)(m->magnitude[row] / sqrt(sum)) : 0;
	return 0;
}

/* ---- a whole model ---- */

struct merged_model {
	const struct model_layout *layout;
	struct safetensors *base;
	struct peft_adapter *adapter;
	const struct peft_module **module; /* of each parameter; NULL: none */
	const struct tensor **whole;       /* in place of each parameter; NULL: none */
	bool unties;
	/* The parameter that was asked for last. */
	const struct model_parameter *merging;
	struct merge *merge;
	float *row;
};

/* The head of an adapter of a reward model gives a score, and no logits. */
static int check_task(const char *adapter, struct error *err)
{
	struct peft_config c = {0};
	int r = peft_config_read(adapter, &c, err);

	if (r == 0 && str_eq(c.task_type, "SEQ_CLS"))
		r = hf_refuse_scores(adapter, true, err);
	peft_config_free(&c);
	return r;
}

int merged_model_open(const char *adapter, const struct model_layout *layout, struct safetensors *base,
                      struct merged_model **out, struct error *err)
{
	_cleanup_(merged_model_closep) struct merged_model *m = calloc(1, sizeof(*m));
	size_t n = (size_t)layout->parameters;
	_cleanup_free_ struct hf_parameter *tensors = calloc(n, sizeof(*tensors));
	int r;

	if (!m || !tensors)
		return error_oom(err);
	if ((r = check_task(adapter, err)) < 0)
		return r;
	m->layout = layout;
	m->base = base;
	m->module = calloc(n, sizeof(*m->module));
	m->whole = calloc(n, sizeof(*m->whole));
	if (!m->module || !m->whole)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct model_parameter *p = &layout->parameter[i];

		tensors[i] = (struct hf_parameter){
		    .name = p->name, .dims = p->dims, .shape = {p->shape[0], p->shape[1], p->shape[2]}};
	}
	if ((r = peft_adapter_open(adapter, tensors, n, &m->adapter, err)) < 0 ||
	    (r = merge_check(m->adapter, adapter, err)) < 0)
		return r;
	for (size_t i = 0; i < m->adapter->n_modules; i++)
		m->module[m->adapter->modules[i].base] = &m->adapter->modules[i];
	for (size_t i = 0; i < m->adapter->n_wholes; i++)
		m->whole[m->adapter->wholes[i].base] = m->adapter->wholes[i].tensor;
	for (size_t i = 0; i < n; i++)
		m->unties |=
		    (m->module[i] || m->whole[i]) && merge_is_embedding_or_head(layout->parameter[i].name);
	*out = steal_pointer(m);
	return 0;
}

void merged_model_close(struct merged_model *m)
{
	if (!m)
		return;
	peft_adapter_close(m->adapter);
	merge_free(m->merge);
	free(m->row);
	free(m->module);
	free(m->whole);
	free(m);
}

bool merged_model_unties(const struct merged_model *m)
{
	return m->unties;
}

static const struct model_parameter *find_parameter(const struct model_layout *l, const char *name)
{
	for (int i = 0; i < l->parameters; i++)
		if (str_eq(l->parameter[i].name, name))
			return &l->parameter[i];
	return NULL;
}

/* The parameter under whose name the base has the weights of p: of an embedding and the head that is tied to
 * it, files may have one. */
static const struct model_parameter *stored(const struct merged_model *m, const struct model_parameter *p)
{
	enum parameter_role other = p->role == PARAMETER_HEAD ? PARAMETER_EMBEDDING : PARAMETER_HEAD;

	if ((p->role == PARAMETER_HEAD || p->role == PARAMETER_EMBEDDING) && !hf_find(m->base, p->name))
		for (int i = 0; i < m->layout->parameters; i++)
			if (m->layout->parameter[i].role == other)
				return &m->layout->parameter[i];
	return p;
}

int merged_model_fill(void *merged_model, const struct model_parameter *p, int64_t first, int64_t n,
                      float *out, struct error *err)
{
	struct merged_model *m = merged_model;
	/* The model that is filled may have a layout of its own, which is the same. */
	const struct model_parameter *ours = find_parameter(m->layout, p->name);
	size_t index = ours ? (size_t)(ours - m->layout->parameter) : 0;
	const struct tensor *whole = m->whole[index], *w;
	int r;

	if (!ours)
		return error_set(err, -EINVAL, "%s is missing", p->name);
	if (!m->module[index] && !whole)
		return parameters_fill(m->base, stored(m, ours), first, n, out, err);
	if (!m->module[index]) {
		r = tensor_to_f32(whole, first, n, out, err);
		return r < 0 ? r
		             : parameters_check_finite(whole->name,
		                                       safetensors_file(m->adapter->tensors, whole), first,
		                                       out, n, err);
	}
	if (m->merging != ours) {
		merge_free(steal_pointer(m->merge));
		free(steal_pointer(m->row));
		m->merging = NULL;
		w = whole ? whole : hf_find(m->base, stored(m, ours)->name);
		if (!w || w->dims != 2 || w->shape[0] != p->shape[0] || w->shape[1] != p->shape[1])
			return error_set(err, -ENOTSUP, "an adapter of %s is not supported", p->name);
		m->row = malloc((size_t)p->shape[1] * sizeof(*m->row));
		if (!m->row)
			return error_oom(err);
		if ((r = merge_create(whole ? m->adapter->tensors : m->base, w, m->adapter, m->module[index],
		                      &m->merge, err)) < 0)
			return r;
		m->merging = ours;
	}
	while (n > 0) {
		int64_t row = first / p->shape[1], from = first % p->shape[1], k = MIN(p->shape[1] - from, n);

		if ((r = merge_row(m->merge, row, m->row, err)) < 0)
			return r;
		memcpy(out, m->row + from, (size_t)k * sizeof(*out));
		first += k;
		n -= k;
		out += k;
	}
	return 0;
}
