/* SPDX-License-Identifier: Apache-2.0 */
/* Exports models and adapters: what is written, and from which tensors. */
#include "engine/checkpoint/export.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/merge.h"
#include "engine/checkpoint/output.h"
#include "engine/checkpoint/peft.h"
#include "engine/model/families.h"
#include "engine/model/model_config.h"
#include "engine/model/multimodal.h"

#define HEAD      "lm_head.weight"
#define EMBEDDING "model.embed_tokens.weight"
#define SCORE     "score.weight"
#define PIECE     4096 /* values that are converted at once */

/* A tensor that is written. */
struct entry {
	const char *name;
	const struct tensor *from;        /* of the model, or of the adapter where it replaces one */
	const struct safetensors *set;    /* that `from` is in */
	const struct peft_module *module; /* whose adapter is merged into it; NULL: none */
	enum tensor_type type;            /* as written */
};

struct export
{
	const struct export_options *o;
	struct safetensors *model;
	struct peft_adapter *adapter;
	struct entry *entries;
	size_t n;
	const struct multimodal *multimodal; /* NULL: it is a model of text */
	char other[TENSOR_NAME_SIZE];
	bool untie;
	bool added; /* the last entry: the embedding or the head, of which the files of a tied model have one
	             */
	struct tensor score;    /* of an adapter that has a head of scores; name NULL: it has none */
	enum tensor_type plain; /* of weights that were quantized, unless a type is asked for */
	bool quantized;
	uint64_t done, total;
	/* The tensor that is being merged. */
	size_t merging;
	struct merge *merge;
	float *row;
};

static void export_free(struct export *x)
{
	merge_free(x->merge);
	free(x->row);
	free(x->entries);
	peft_adapter_close(x->adapter);
	safetensors_close(x->model);
}

static bool is_float(enum tensor_type type)
{
	return type == TENSOR_F64 || type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

/* ---- the bytes of a tensor ---- */

/* Values of the tensor in its type: elements [first, first + n) of entry e, which are `in`. */
static int store(const struct entry *e, int64_t first, int64_t n, const float *in, void *out,
                 struct error *err)
{
	uint16_t *half = out;

	switch (e->type) {
	case TENSOR_F32:
		memcpy(out, in, (size_t)n * sizeof(*in));
		return 0;
	case TENSOR_F64:
		for (int64_t i = 0; i < n; i++)
			((double *)out)[i] = in[i];
		return 0;
	case TENSOR_BF16:
		for (int64_t i = 0; i < n; i++)
			half[i] = bf16_from_float(in[i]);
		return 0;
	default:
		for (int64_t i = 0; i < n; i++) {
			half[i] = f16_from_float(in[i]);
			if (isfinite(in[i]) && isinf(f16_to_float(half[i])))
				return error_set(err, -ERANGE,
				                 "tensor %s: element %" PRId64
				                 " is %g, which fp16 cannot hold: "
				                 "use bf16 or fp32",
				                 e->name, first + i, in[i]);
		}
		return 0;
	}
}

static int fill_merged(struct export *x, size_t index, int64_t first, int64_t n, char *out, struct error *err)
{
	const struct entry *e = &x->entries[index];
	int64_t columns = e->from->shape[1];
	size_t size = tensor_type_size(e->type);
	int r;

	if (!x->merge || x->merging != index) {
		merge_free(steal_pointer(x->merge));
		free(steal_pointer(x->row));
		x->row = malloc((size_t)columns * sizeof(*x->row));
		x->merging = index;
		if (!x->row)
			return error_oom(err);
		r = merge_create(e->set, e->from, x->adapter, e->module, &x->merge, err);
		if (r < 0)
			return r;
	}
	while (n > 0) {
		int64_t row = first / columns, from = first % columns, k = MIN(columns - from, n);

		if ((r = merge_row(x->merge, row, x->row, err)) < 0 ||
		    (r = store(e, first, k, x->row + from, out, err)) < 0)
			return r;
		first += k;
		n -= k;
		out += (size_t)k * size;
	}
	return 0;
}

static int fill_converted(const struct entry *e, int64_t first, int64_t n, char *out, struct error *err)
{
	size_t size = tensor_type_size(e->type);
	float piece[PIECE];
	int r;

	for (int64_t k; n > 0; first += k, n -= k, out += (size_t)k * size) {
		k = MIN(n, PIECE);
		if ((r = tensor_to_f32(e->from, first, k, piece, err)) < 0 ||
		    (r = store(e, first, k, piece, out, err)) < 0)
			return r;
	}
	return 0;
}

static int fill(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	struct export *x = context;
	const struct entry *e = &x->entries[index];
	size_t size = tensor_type_size(e->type);
	int64_t first = (int64_t)(offset / size), n = (int64_t)(len / size);
	int r = 0;

	if (e->module)
		r = fill_merged(x, index, first, n, buf, err);
	else if (e->type == e->from->type)
		memcpy(buf, (const char *)e->from->data + offset, len);
	else
		r = fill_converted(e, first, n, buf, err);
	if (r < 0)
		return error_prefix(err, "%s", safetensors_file(e->set, e->from));
	safetensors_release(e->set, e->from, first, n);
	x->done += len;
	if (x->o->progress)
		x->o->progress(x->o->context, x->done, x->total);
	return 0;
}

/* ---- what is written ---- */

static enum tensor_type written_type(const struct export *x, enum tensor_type type)
{
	if (x->o->convert && (is_float(type) || type == TENSOR_NF4))
		return tensor_type_of(x->o->type);
	return type == TENSOR_NF4 ? x->plain : type;
}

static void add_entry(struct export *x, const char *name, const struct tensor *t)
{
	x->entries[x->n++] =
	    (struct entry){.name = name, .from = t, .set = x->model, .type = written_type(x, t->type)};
}

/* The head of scores that an adapter of a reward model brings, in place of the head of its base. */
static int find_score(struct export *x, struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_free_ char *path = str_path_join(x->o->adapter, PEFT_WEIGHTS_STEM ".safetensors"),
	                    *name = peft_tensor_name(SCORE, PEFT_WHOLE);
	const struct tensor *t;
	int r;

	if (!path || !name)
		return error_oom(err);
	if (safetensors_find(x->model, SCORE) || !file_exists(path))
		return 0;
	if ((r = safetensors_open(path, &st, err)) < 0 || !(t = safetensors_find(st, name)))
		return r;
	if (t->dims != 2 || t->shape[0] != 1)
		return error_set(err, -ENOTSUP,
		                 "%s: %s has %" PRId64
		                 " labels; only a head of one, of a reward model, can be "
		                 "merged",
		                 x->o->adapter, name, t->dims == 2 ? t->shape[0] : 0);
	x->score = *t;
	x->score.name = SCORE;
	return 0;
}

/* The tensors of the model, and of one that ties the head to the embedding the one that its files lack: an
 * adapter may have one for it alone. */
static int list_entries(struct export *x, bool tied, const struct family *family, struct error *err)
{
	size_t n = safetensors_count(x->model);
	const struct tensor *head = hf_find(x->model, HEAD), *embedding = NULL;
	int r = x->o->adapter ? find_score(x, err) : 0;

	if (r < 0)
		return r;
	x->entries = calloc(n + 1, sizeof(*x->entries));
	if (!x->entries)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct tensor *t = safetensors_at(x->model, i);

		if (!x->score.name || !str_eq(t->name, HEAD))
			add_entry(x, t->name, t);
		if (merge_is_embedding_or_head(t->name) && t != head)
			embedding = t;
	}
	if (x->score.name)
		add_entry(x, SCORE, &x->score); /* until the adapter is open */
	else if (x->o->adapter && tied && !head != !embedding) {
		if (x->multimodal)
			multimodal_saved_name(x->multimodal->naming, embedding ? HEAD : EMBEDDING, x->other,
			                      sizeof(x->other));
		add_entry(x,
		          x->multimodal                                  ? x->other
		          : embedding                                    ? HEAD
		          : family && family->naming == MODEL_NAMES_GPT2 ? "transformer.wte.weight"
		                                                         : EMBEDDING,
		          embedding ? embedding : head);
		x->added = true;
	}
	return 0;
}

static int open_adapter(struct export *x, bool tied, struct error *err)
{
	_cleanup_free_ struct hf_parameter *base = calloc(x->n + 1, sizeof(*base));
	_cleanup_free_ char(*names)[TENSOR_NAME_SIZE] = calloc(x->multimodal ? x->n : 1, sizeof(*names));
	const struct peft_adapter *a;
	bool touched = false;
	int r;

	if (!base || !names)
		return error_oom(err);
	for (size_t i = 0; i < x->n; i++) {
		const struct tensor *t = x->entries[i].from;

		base[i] = (struct hf_parameter){.name = x->entries[i].name, .dims = t->dims};
		/* As an adapter names it. */
		if (x->multimodal && multimodal_parameter_name(base[i].name, names[i], sizeof(names[i])))
			base[i].name = names[i];
		memcpy(base[i].shape, t->shape, sizeof(base[i].shape));
	}
	if ((r = peft_adapter_open(x->o->adapter, base, x->n, &x->adapter, err)) < 0 ||
	    (r = merge_check(x->adapter, x->o->adapter, err)) < 0)
		return r;
	a = x->adapter;
	for (size_t i = 0; i < a->n_wholes; i++) {
		struct entry *e = &x->entries[a->wholes[i].base];

		e->from = a->wholes[i].tensor;
		e->set = a->tensors;
		e->type = x->o->convert ? tensor_type_of(x->o->type) : e->type;
		touched |= merge_is_embedding_or_head(e->name);
	}
	for (size_t i = 0; i < a->n_modules; i++) {
		const struct peft_module *m = &a->modules[i];
		struct entry *e = &x->entries[m->base];

		if (!is_float(e->from->type) && e->from->type != TENSOR_NF4)
			return error_set(err, -ENOTSUP, "%s: tensor %s is %s; expected one of F32, BF16, F16",
			                 x->o->model, e->name, tensor_type_name(e->from->type));
		e->module = m;
		touched |= merge_is_embedding_or_head(e->name);
	}
	x->untie = tied && touched;
	if (x->added && !touched)
		x->n--;
	return 0;
}

static int write_weights(struct export *x, const char *directory, const char *stem, uint64_t max_bytes,
                         struct error *err)
{
	_cleanup_free_ struct tensor_source *sources = calloc(x->n + 1, sizeof(*sources));

	if (!sources)
		return error_oom(err);
	for (size_t i = 0; i < x->n; i++) {
		const struct entry *e = &x->entries[i];

		sources[i] = (struct tensor_source){.name = e->name,
		                                    .type = e->type,
		                                    .dims = e->from->dims,
		                                    .fill = fill,
		                                    .context = x,
		                                    .index = i};
		memcpy(sources[i].shape, e->from->shape, sizeof(sources[i].shape));
		x->total += (uint64_t)tensor_elements(e->from) * tensor_type_size(e->type);
	}
	return safetensors_write(directory, stem, sources, x->n, max_bytes, err);
}

/* ---- models ---- */

/* The number format that a config.json names for what is not quantized; bf16 where it names none. */
static enum tensor_type named_type(const json_t *config, const json_t *language)
{
	const char *inner = json_get_string(language, "dtype", json_get_string(language, "torch_dtype", "")),
	           *name = json_get_string(config, "dtype", json_get_string(config, "torch_dtype", inner));

	return str_eq(name, dtype_name(DTYPE_F32))   ? TENSOR_F32
	       : str_eq(name, dtype_name(DTYPE_F16)) ? TENSOR_F16
	                                             : TENSOR_BF16;
}

static int read_config(struct export *x, const char *path, json_t **out, struct error *err)
{
	_cleanup_json_ json_t *config = NULL;
	const struct family *family;
	const json_t *q, *language;
	const char *method;
	int r = json_read_python(path, &config, err);

	if (r < 0)
		return r;
	if (!json_is_object(config))
		return error_set(err, -EINVAL, "%s: a JSON object is needed", path);
	language = json_object_get(config, "text_config");
	q = json_object_get(config, "quantization_config");
	if (!q)
		q = json_object_get(language, "quantization_config");
	if (json_is_object(q)) {
		method = json_get_string(q, "quant_method", "bitsandbytes");
		if (!str_eq(method, "bitsandbytes") || !json_get_bool(q, "load_in_4bit", false) ||
		    !str_eq(json_get_string(q, "bnb_4bit_quant_type", "fp4"), "nf4"))
			return error_set(err, -ENOTSUP,
			                 "%s: the weights are quantized (quantization_config: quant_method: "
			                 "%.40s); expected fp32, bf16, fp16, or NF4 of bitsandbytes",
			                 x->o->model, method);
		family = family_find(json_get_string(config, "model_type", ""));
		if (family && family->transposed)
			return error_set(err, -ENOTSUP,
			                 "%s: the matrices of %s in 4 bits are stored transposed, and cannot "
			                 "be exported; export the model that was quantized",
			                 x->o->model, family->name);
		x->quantized = true;
		x->plain = named_type(config, language);
	}
	*out = steal_pointer(config);
	return 0;
}

/* The number format that config.json names. */
static enum dtype main_type(const struct export *x)
{
	for (size_t i = 0; i < x->n; i++)
		if (is_float(x->entries[i].type) && x->entries[i].from->dims == 2)
			return x->entries[i].type == TENSOR_BF16  ? DTYPE_BF16
			       : x->entries[i].type == TENSOR_F16 ? DTYPE_F16
			                                          : DTYPE_F32;
	return DTYPE_F32;
}

/* What the weights are no more: tied, or quantized. */
static int change_config(const struct export *x, const char *directory, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "config.json");
	_cleanup_json_ json_t *config = NULL;
	int r = path ? json_read_file(path, &config, err) : error_oom(err);

	if (r < 0)
		return r;
	if (x->untie && json_object_set_new(config, "tie_word_embeddings", json_false()) < 0)
		return error_oom(err);
	if (x->quantized) {
		json_object_del(config, "quantization_config");
		json_object_del(json_object_get(config, "text_config"), "quantization_config");
	}
	return json_write_file(path, config, 2, true, err);
}

static bool has_tokenizer(const char *directory)
{
	return directory && file_exists_in(directory, "tokenizer.json");
}

static int write_model(struct export *x, const char *directory, struct error *err)
{
	const struct export_options *o = x->o;
	_cleanup_free_ char *config = str_path_join(o->model, "config.json");
	_cleanup_free_ int32_t *stops = NULL;
	struct hf_save_options files = {.config = config,
	                                .source = o->model,
	                                .tokenizer = o->tokenizer                ? o->tokenizer
	                                             : has_tokenizer(o->adapter) ? o->adapter
	                                                                         : o->model,
	                                .scores = x->score.name != NULL,
	                                .type = main_type(x),
	                                .bos = -1,
	                                .eos = -1,
	                                .pad = -1};
	int r;

	if (!config)
		return error_oom(err);
	if (o->adapter && (r = hf_read_stops(o->adapter, &stops, &files.n_stops, err)) < 0)
		return r;
	files.stops = stops;
	/* The configuration comes last: without it nothing takes the directory for a model. */
	if ((r = write_weights(x, directory, "model", o->max_shard_bytes, err)) < 0 ||
	    (r = hf_save_files(directory, &files, err)) < 0)
		return r;
	return x->untie || x->quantized ? change_config(x, directory, err) : 0;
}

static int open_model(struct export *x, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(x->o->model, "config.json");
	_cleanup_json_ json_t *config = NULL;
	const struct family *family;
	struct model_config language;
	bool tied;
	int r;

	if (!path)
		return error_oom(err);
	if ((r = read_config(x, path, &config, err)) < 0 ||
	    (r = safetensors_open(x->o->model, &x->model, err)) < 0)
		return r;
	family = family_find(json_get_string(config, "model_type", ""));
	x->multimodal = multimodal_find(json_get_string(config, "model_type", ""));
	/* transformers leaves the key out where it has the family's default. Of a family that dtrain does not
	 * know, the files tell. */
	tied = json_get_bool(config, "tie_word_embeddings",
	                     family ? family->tied : !safetensors_find(x->model, HEAD));
	if (x->multimodal) {
		if ((r = model_config_read(x->o->model, &language, err)) < 0)
			return r;
		tied = language.tied;
	}
	if ((r = list_entries(x, tied, family, err)) < 0)
		return r;
	return x->o->adapter ? open_adapter(x, tied, err) : 0;
}

/* ---- adapters that are not merged ---- */

static int open_alone(struct export *x, struct error *err)
{
	int r;

	if (x->o->adapter)
		return error_set(err, -EINVAL, "%s is an adapter; expected a model to merge %s into",
		                 x->o->model, x->o->adapter);
	r = peft_adapter_open(x->o->model, NULL, 0, &x->adapter, err);
	if (r < 0)
		return r;
	x->entries = calloc(safetensors_count(x->adapter->tensors) + 1, sizeof(*x->entries));
	if (!x->entries)
		return error_oom(err);
	for (size_t i = 0; i < safetensors_count(x->adapter->tensors); i++) {
		const struct tensor *t = safetensors_at(x->adapter->tensors, i);

		add_entry(x, t->name, t);
		x->entries[i].set = x->adapter->tensors;
	}
	return 0;
}

static int write_alone(struct export *x, const char *directory, struct error *err)
{
	_cleanup_free_ char *from = str_path_join(x->o->model, PEFT_CONFIG_FILE),
	                    *to = str_path_join(directory, PEFT_CONFIG_FILE), *text = NULL;
	_cleanup_free_ int32_t *stops = NULL;
	const char *tokenizer = x->o->tokenizer ? x->o->tokenizer : x->o->model;
	size_t len, n;
	int r;

	if (!from || !to)
		return error_oom(err);
	if ((r = write_weights(x, directory, PEFT_WEIGHTS_STEM, INT64_MAX, err)) < 0 ||
	    (r = hf_save_tokenizer(directory, tokenizer, err)) < 0 ||
	    (r = hf_read_stops(x->o->model, &stops, &n, err)) < 0 ||
	    (r = hf_save_stops(directory, stops, n, err)) < 0 ||
	    (r = file_read(from, 0, &text, &len, err)) < 0)
		return r;
	return file_write_atomic(to, text, len, 0644, err);
}

int export_run(const struct export_options *o, struct export_result *result, struct error *err)
{
	_cleanup_(export_free) struct export x = {.o = o};
	_cleanup_(output_freep) struct output *output = NULL;
	const char *const inputs[] = {o->model, o->adapter, o->tokenizer};
	bool alone = peft_is_adapter(o->model);
	int r = alone ? open_alone(&x, err) : open_model(&x, err);

	if (r < 0 ||
	    (r = output_create(o->output, o->overwrite, inputs, ARRAY_SIZE(inputs), &output, err)) < 0)
		return r;
	r = alone ? write_alone(&x, output_directory(output), err)
	          : write_model(&x, output_directory(output), err);
	if (r < 0 || (r = output_publish(output, err)) < 0)
		return r;
	*result = (struct export_result){.bytes = x.total,
	                                 .tensors = x.n,
	                                 .merged = o->adapter ? x.adapter->n_modules : 0,
	                                 .untied = x.untie};
	return 0;
}
