/* SPDX-License-Identifier: Apache-2.0 */
/* Names of an adapter's tensors, and adapters as a whole: opened, and checked against their base. */
#include "engine/checkpoint/peft.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/model/multimodal.h"

#define PREFIX "base_model.model."
#define NONE   SIZE_MAX

/* The first of a role is written; the others are read, too. */
static const struct {
	enum peft_role role;
	const char *suffix;
} suffixes[] = {
    {PEFT_A, ".lora_A.weight"},
    {PEFT_B, ".lora_B.weight"},
    {PEFT_MAGNITUDE, ".lora_magnitude_vector"},
    {PEFT_MAGNITUDE, ".lora_magnitude_vector.weight"},
    {PEFT_EMBEDDING_A, ".lora_embedding_A"},
    {PEFT_EMBEDDING_B, ".lora_embedding_B"},
};

char *peft_tensor_name(const char *name, enum peft_role role)
{
	const char *suffix = "";

	for (size_t i = ARRAY_SIZE(suffixes); i-- > 0;)
		if (suffixes[i].role == role)
			suffix = suffixes[i].suffix;
	return str_printf(PREFIX "%s%s", name, suffix);
}

int peft_tensor_parse(const char *tensor, char **name, enum peft_role *role, struct error *err)
{
	static const char base[] = ".base_layer.";
	const char *rest = tensor + strlen(PREFIX), *inner;

	if (!str_starts(tensor, PREFIX) || !*rest)
		return error_set(err, -EINVAL, "tensor %.120s: its name does not begin with " PREFIX, tensor);
	for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++)
		if (str_ends(rest, suffixes[i].suffix) && strlen(rest) > strlen(suffixes[i].suffix)) {
			*role = suffixes[i].role;
			*name = strndup(rest, strlen(rest) - strlen(suffixes[i].suffix));
			return *name ? 0 : error_oom(err);
		}
	if (strstr(rest, ".lora_"))
		return error_set(err, -EINVAL, "tensor %.120s: this part of an adapter is not supported",
		                 tensor);
	*role = PEFT_WHOLE;
	/* PEFT also saves the weight that an embedding with an adapter has below it. */
	inner = strstr(rest, base);
	if (inner && (strchr(inner + strlen(base), '.') || inner == rest))
		return error_set(err, -EINVAL, "tensor %.120s: this part of an adapter is not supported",
		                 tensor);
	*name = inner ? str_printf("%.*s.%s", (int)(inner - rest), rest, inner + strlen(base)) : strdup(rest);
	return *name ? 0 : error_oom(err);
}

bool peft_is_adapter(const char *directory)
{
	return file_exists_in(directory, PEFT_CONFIG_FILE);
}

/* What is needed while an adapter is opened. */
struct opening {
	struct peft_adapter *a;
	const char *directory;
	const struct hf_parameter *base;
	size_t n_base;
	const struct hf_parameter **sorted; /* the base by name */
};

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct hf_parameter *const *)a)->name,
	              (*(const struct hf_parameter *const *)b)->name);
}

static size_t find_name(const struct opening *o, const char *name)
{
	const struct hf_parameter key = {.name = name}, *k = &key;
	const struct hf_parameter **hit = bsearch(&k, o->sorted, o->n_base, sizeof(*o->sorted), by_name);

	return hit ? (size_t)(*hit - o->base) : NONE;
}

/* The index of a tensor of the base, or NONE. The body of a causal model that was saved alone lacks the first
 * part of its names; and the language model of a multimodal one had other names before. */
static size_t find_base(const struct opening *o, const char *name)
{
	static const char *const bodies[] = {"", "model.", "transformer."};
	char now[TENSOR_NAME_SIZE];
	size_t found = NONE;

	for (size_t i = 0; o->base && found == NONE && i < ARRAY_SIZE(bodies); i++)
		if (str_starts(name, bodies[i]))
			found = find_name(o, name + strlen(bodies[i]));
	if (o->base && found == NONE && multimodal_parameter_name(name, now, sizeof(now)))
		found = find_name(o, now);
	return found;
}

static struct peft_module *find_module(struct peft_adapter *a, const char *name)
{
	for (size_t i = a->n_modules; i-- > 0;)
		if (str_eq(a->modules[i].name, name))
			return &a->modules[i];
	return NULL;
}

static int add_module(struct opening *o, const char *name, const struct tensor *t, struct peft_module **out,
                      struct error *err)
{
	struct peft_adapter *a = o->a;
	struct peft_module m = {0};
	_cleanup_free_ char *weight = str_printf("%s.weight", name);
	int r;

	if (!weight)
		return error_oom(err);
	m.base = find_base(o, weight);
	if (o->base && m.base == NONE)
		return error_set(err, -EINVAL, "%s: tensor %s: the base has no %s", o->directory, t->name,
		                 weight);
	r = peft_config_match(&a->config, name, &m.rank, &m.scale, err);
	if (r < 0)
		return error_prefix(err, "%s", o->directory);
	if (r == 0)
		return error_set(err, -EINVAL, "%s: tensor %s: target_modules of %s does not name %s",
		                 o->directory, t->name, PEFT_CONFIG_FILE, name);
	m.name = strdup(name);
	if (!m.name)
		return error_oom(err);
	*out = &a->modules[a->n_modules++];
	**out = m;
	return 0;
}

static int add_whole(struct opening *o, const char *name, const struct tensor *t, struct error *err)
{
	struct peft_whole w = {find_base(o, name), t};
	const struct hf_parameter *p = w.base == NONE ? NULL : &o->base[w.base];
	char is[192], needed[192];

	if (o->base && !p)
		return error_set(err, -EINVAL, "%s: tensor %s: the base has no %s", o->directory, t->name,
		                 name);
	if (p && (t->dims != p->dims || memcmp(t->shape, p->shape, (size_t)t->dims * sizeof(*t->shape)) != 0))
		return error_set(err, -EINVAL, "%s: tensor %s has shape %s; the base needs %s", o->directory,
		                 t->name, tensor_shape_text(is, sizeof(is), t->dims, t->shape),
		                 tensor_shape_text(needed, sizeof(needed), p->dims, p->shape));
	o->a->wholes[o->a->n_wholes++] = w;
	return 0;
}

/* Whether the tensor belongs to another part of a multimodal model, whose language model alone is the base:
 * what that computes does not depend on it. */
static int check_part(const struct opening *o, const char *name, enum peft_role role, bool *other,
                      struct error *err)
{
	_cleanup_free_ char *weight = NULL;
	char ours[TENSOR_NAME_SIZE];

	*other = false;
	if (!o->base || !hf_is_multimodal(o->base, o->n_base))
		return 0;
	weight = str_printf("%s%s", name, role == PEFT_WHOLE ? "" : ".weight");
	if (!weight)
		return error_oom(err);
	*other = find_base(o, weight) == NONE && !multimodal_parameter_name(weight, ours, sizeof(ours));
	return 0;
}

static int add_tensor(struct opening *o, const struct tensor *t, struct error *err)
{
	_cleanup_free_ char *name = NULL;
	struct peft_module *m;
	const struct tensor **place;
	enum peft_role role;
	bool other;
	int r = peft_tensor_parse(t->name, &name, &role, err);

	if (r < 0)
		return error_prefix(err, "%s", o->directory);
	if (t->type != TENSOR_F32 && t->type != TENSOR_BF16 && t->type != TENSOR_F16 && t->type != TENSOR_F64)
		return error_set(err, -EINVAL, "%s: tensor %s is %s; expected one of F32, BF16, F16",
		                 o->directory, t->name, tensor_type_name(t->type));
	if ((r = check_part(o, name, role, &other, err)) < 0 || other)
		return r;
	if (role == PEFT_WHOLE)
		return add_whole(o, name, t, err);
	m = find_module(o->a, name);
	if (!m && (r = add_module(o, name, t, &m, err)) < 0)
		return r;
	if (role == PEFT_EMBEDDING_A || role == PEFT_EMBEDDING_B)
		m->transposed = true;
	place = role == PEFT_MAGNITUDE                       ? &m->magnitude
	        : role == PEFT_A || role == PEFT_EMBEDDING_A ? &m->a
	                                                     : &m->b;
	if (*place)
		return error_set(err, -EINVAL, "%s: tensor %s: %s is there, too", o->directory, t->name,
		                 (*place)->name);
	*place = t;
	return 0;
}

static int wrong_shape(const struct opening *o, const struct tensor *t, const char *needs, int64_t first,
                       int64_t second, struct error *err)
{
	char is[192], wanted[192];

	return error_set(
	    err, -EINVAL, "%s: tensor %s has shape %s; %s needs %s", o->directory, t->name,
	    tensor_shape_text(is, sizeof(is), t->dims, t->shape), needs,
	    tensor_shape_text(wanted, sizeof(wanted), second < 0 ? 1 : 2, (int64_t[]){first, second}));
}

static int check_module(struct opening *o, struct peft_module *m, struct error *err)
{
	const struct hf_parameter *p = m->base == NONE ? NULL : &o->base[m->base];
	int64_t in, out;
	bool plain, turned;

	if (!m->a || !m->b)
		return error_set(err, -EINVAL, "%s: module %s lacks its matrix %c", o->directory, m->name,
		                 m->a ? 'B' : 'A');
	if (m->a->dims != 2 || m->a->shape[0] != m->rank)
		return wrong_shape(o, m->a, "its rank in " PEFT_CONFIG_FILE, m->rank,
		                   m->a->dims == 2 ? m->a->shape[1] : 0, err);
	if (m->b->dims != 2 || m->b->shape[1] != m->rank)
		return wrong_shape(o, m->b, "its rank in " PEFT_CONFIG_FILE,
		                   m->b->dims == 2 ? m->b->shape[0] : 0, m->rank, err);
	in = m->a->shape[1];
	out = m->b->shape[0];
	if (p) {
		plain = p->dims == 2 && p->shape[0] == out && p->shape[1] == in;
		turned = p->dims == 2 && p->shape[0] == in && p->shape[1] == out;
		if ((m->transposed && !turned) || (!plain && !turned)) {
			char is[192];

			return error_set(err, -EINVAL,
			                 "%s: the adapter of %s is for [%" PRId64 ", %" PRId64
			                 "]; the base has %s: it is another model",
			                 o->directory, m->name, m->transposed ? in : out,
			                 m->transposed ? out : in,
			                 tensor_shape_text(is, sizeof(is), p->dims, p->shape));
		}
		m->transposed = m->transposed || !plain || (turned && o->a->config.fan_in_fan_out);
	}
	if (o->a->config.dora != (m->magnitude != NULL))
		return error_set(err, -EINVAL, "%s: module %s %s a magnitude vector, but use_dora is %s",
		                 o->directory, m->name, m->magnitude ? "has" : "lacks",
		                 o->a->config.dora ? "true" : "false");
	/* Older versions of PEFT wrote it as [1, out]. */
	if (m->magnitude &&
	    (m->magnitude->dims < 1 || m->magnitude->dims > 2 ||
	     m->magnitude->shape[m->magnitude->dims - 1] != out || tensor_elements(m->magnitude) != out))
		return wrong_shape(o, m->magnitude, "the module", out, -1, err);
	return 0;
}

/* Each module that the config names has its matrices, and each one that is saved whole its tensors. */
static int check_complete(const struct opening *o, struct error *err)
{
	for (size_t i = 0; i < o->n_base; i++) {
		const struct hf_parameter *p = &o->base[i];
		size_t n = strlen(p->name), k;
		_cleanup_free_ char *module =
		    strndup(p->name, str_ends(p->name, ".weight") ? n - strlen(".weight") : n);
		int64_t rank;
		double scale;
		int r;

		if (!module)
			return error_oom(err);
		if (peft_config_saves(&o->a->config, module)) {
			for (k = 0; k < o->a->n_wholes && o->a->wholes[k].base != i; k++)
				;
			if (k == o->a->n_wholes && !p->optional)
				return error_set(err, -EINVAL,
				                 "%s: modules_to_save names %s, which is missing",
				                 o->directory, p->name);
		}
		for (k = 0; k < o->a->n_modules && o->a->modules[k].base != i; k++)
			;
		if (p->dims != 2 || !str_ends(p->name, ".weight") || k < o->a->n_modules)
			continue;
		r = peft_config_match(&o->a->config, module, &rank, &scale, err);
		if (r < 0)
			return error_prefix(err, "%s", o->directory);
		if (r > 0)
			return error_set(err, -EINVAL,
			                 "%s: target_modules names %s, whose matrices are missing",
			                 o->directory, module);
	}
	return 0;
}

static int module_order(const void *a, const void *b)
{
	const struct peft_module *x = a, *y = b;

	return x->base != y->base ? (x->base > y->base) - (x->base < y->base) : strcmp(x->name, y->name);
}

static int whole_order(const void *a, const void *b)
{
	const struct peft_whole *x = a, *y = b;

	return x->base != y->base ? (x->base > y->base) - (x->base < y->base)
	                          : strcmp(x->tensor->name, y->tensor->name);
}

static int open_tensors(struct opening *o, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(o->directory, PEFT_WEIGHTS_STEM ".safetensors"),
	                    *pickled = str_path_join(o->directory, PEFT_WEIGHTS_STEM ".bin");

	if (!path || !pickled)
		return error_oom(err);
	if (!file_exists(path) && file_exists(pickled))
		return error_set(err, -ENOTSUP,
		                 "%s is not read, since such a file can run code: save the adapter as "
		                 "safetensors (save_pretrained of PEFT does)",
		                 pickled);
	return safetensors_open(path, &o->a->tensors, err);
}

int peft_adapter_open(const char *directory, const struct hf_parameter *base, size_t n_base,
                      struct peft_adapter **out, struct error *err)
{
	_cleanup_(peft_adapter_closep) struct peft_adapter *a = calloc(1, sizeof(*a));
	_cleanup_free_ const struct hf_parameter **sorted = calloc(n_base + 1, sizeof(*sorted));
	struct opening o = {a, directory, base, base ? n_base : 0, sorted};
	size_t n;
	int r;

	if (!a || !sorted)
		return error_oom(err);
	for (size_t i = 0; i < o.n_base; i++)
		sorted[i] = &base[i];
	qsort(sorted, o.n_base, sizeof(*sorted), by_name);
	if ((r = peft_config_read(directory, &a->config, err)) < 0 || (r = open_tensors(&o, err)) < 0)
		return r;
	n = safetensors_count(a->tensors);
	a->modules = calloc(n + 1, sizeof(*a->modules));
	a->wholes = calloc(n + 1, sizeof(*a->wholes));
	if (!a->modules || !a->wholes)
		return error_oom(err);
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_tensor(&o, safetensors_at(a->tensors, i), err);
	for (size_t i = 0; i < a->n_modules && r == 0; i++)
		r = check_module(&o, &a->modules[i], err);
	if (r < 0 || (r = check_complete(&o, err)) < 0)
		return r;
	if (n == 0)
		return error_set(err, -EINVAL, "%s: the adapter has no tensors", directory);
	qsort(a->modules, a->n_modules, sizeof(*a->modules), module_order);
	qsort(a->wholes, a->n_wholes, sizeof(*a->wholes), whole_order);
	for (size_t i = 1; i < a->n_wholes; i++)
		if (a->wholes[i].base != NONE && a->wholes[i].base == a->wholes[i - 1].base)
			return error_set(err, -EINVAL, "%s: tensor %s: %s is there, too", directory,
			                 a->wholes[i].tensor->name, a->wholes[i - 1].tensor->name);
	*out = steal_pointer(a);
	return 0;
}

void peft_adapter_close(struct peft_adapter *a)
{
	if (!a)
		return;
	for (size_t i = 0; a->modules && i < a->n_modules; i++)
		free(a->modules[i].name);
	free(a->modules);
	free(a->wholes);
	safetensors_close(a->tensors);
	peft_config_free(&a->config);
	free(a);
}
