/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_dump MODEL BATCH OUT [recompute | selective | outputs] [bf16] [fp8] [smoothed | dft] [ADAPTER]: loads
 * a Hugging Face directory, runs one micro-batch forward and backward, and writes the results as
 * OUT/model.safetensors: every gradient under its parameter's name, losses [tokens], logits [tokens, vocab]
 * (fp32 only) and loss [1], the mean of what is trained: with label smoothing by 0.1, or DFT's. BATCH is
 * JSON:
 * {"documents":[[id, …], …], "masked":[n, …]}: the first n tokens of a document do not count in the loss.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/peft.h"
#include "model_fixture.h"

struct dump {
	const float **data;
	struct tensor_source *sources;
	size_t n;
};

static int fill(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	memcpy(buf, (const char *)((struct dump *)context)->data[index] + offset, len);
	return 0;
}

static void add(struct dump *d, const char *name, const float *data, int dims, const int64_t shape[3])
{
	d->data[d->n] = data;
	d->sources[d->n] = (struct tensor_source){.name = name,
	                                          .type = TENSOR_F32,
	                                          .dims = dims,
	                                          .shape = {shape[0], shape[1], shape[2]},
	                                          .fill = fill,
	                                          .context = d,
	                                          .index = d->n};
	d->n++;
}

struct batch {
	int32_t *ids, *targets, *starts;
	struct model_batch b;
	int64_t counted, longest;
};

static void read_batch(const json_t *o, struct batch *out)
{
	const json_t *documents = json_object_get(o, "documents"), *masked = json_object_get(o, "masked");
	size_t n = json_array_size(documents), at = 0;

	out->starts = calloc(n + 1, sizeof(int32_t));
	for (size_t d = 0; d < n; d++)
		out->starts[d + 1] = out->starts[d] + (int32_t)json_array_size(json_array_get(documents, d));
	out->ids = calloc((size_t)out->starts[n], sizeof(int32_t));
	out->targets = calloc((size_t)out->starts[n], sizeof(int32_t));
	for (size_t d = 0; d < n; d++) {
		const json_t *ids = json_array_get(documents, d);
		size_t length = json_array_size(ids);
		size_t skip = masked ? (size_t)json_integer_value(json_array_get(masked, d)) : 0;

		for (size_t t = 0; t < length; t++, at++) {
			out->ids[at] = (int32_t)json_integer_value(json_array_get(ids, t));
			out->targets[at] = t + 1 < length && t + 1 >= skip
			                       ? (int32_t)json_integer_value(json_array_get(ids, t + 1))
			                       : -100;
			out->counted += out->targets[at] >= 0;
		}
		out->longest = MAX(out->longest, (int64_t)length);
	}
	out->b = (struct model_batch){.tokens = out->starts[n],
	                              .ids = out->ids,
	                              .targets = out->targets,
	                              .documents = (int)n,
	                              .starts = out->starts};
}

/* The model's files, and those of the adapter, if there is one. */
struct files {
	struct safetensors *model;
	struct peft_adapter *adapter;
};

static void files_close(struct files *f)
{
	safetensors_close(f->model);
	peft_adapter_close(f->adapter);
}

static int fill_all(void *files, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err)
{
	const struct files *f = files;

	return f->adapter && !p->frozen ? parameters_fill_saved(f->adapter->tensors, p, first, n, out, err)
	                                : parameters_fill(f->model, p, first, n, out, err);
}

static int run(const char *path, const char *batch_path, const char *out, const struct model_options *how,
               const char *adapter, struct error *err)
{
	_cleanup_(files_close) struct files files = {0};
	struct model_tuning tuning = {.kind = TUNE_LORA};
	_cleanup_json_ json_t *o = NULL;
	struct model_options options = *how;
	_cleanup_(model_fixture_free) struct model_fixture fixture = {0};
	_cleanup_free_ float *losses = NULL, *logits = NULL;
	struct model_config c;
	bool bf16 = how->type == DTYPE_BF16;
	struct batch b = {0};
	struct dump d = {0};
	double loss;
	float mean;
	int r;

	if ((r = model_config_read(path, &c, err)) < 0 || (r = json_read_file(batch_path, &o, err)) < 0 ||
	    (r = safetensors_open(path, &files.model, err)) < 0 ||
	    (adapter && (r = peft_adapter_open(adapter, NULL, 0, &files.adapter, err)) < 0))
		return r;
	options.router_loss = c.router_loss;
	if (adapter) {
		const struct peft_config *a = &files.adapter->config;

		tuning.rank = a->rank;
		tuning.alpha = a->alpha;
		tuning.rslora = a->rslora;
		tuning.dora = a->dora;
		tuning.target = a->targets;
		tuning.saved = a->modules_to_save;
		options.tuning = &tuning;
	}
	read_batch(o, &b);
	options.max_tokens = b.b.tokens;
	options.max_sequence = b.longest;
	if ((r = model_fixture_create(&fixture, &c, &options, fill_all, &files, err)) < 0 ||
	    (r = parameters_check(fixture.layout, files.model, path, err)) < 0 ||
	    (adapter &&
	     (r = parameters_check_adapter(fixture.layout, files.adapter->tensors, adapter, err)) < 0))
		return r;
	losses = calloc((size_t)b.b.tokens, sizeof(float));
	logits = calloc((size_t)(b.b.tokens * c.vocab), sizeof(float));
	if ((r = model_evaluate(fixture.model, &b.b, fixture.loss, losses, err)) < 0 ||
	    (!bf16 && (r = model_logits(fixture.model, &b.b, logits, err)) < 0) ||
	    (r = model_fixture_gradients(&fixture, &b.b, 1.0f / (float)b.counted, true, &loss, err)) < 0)
		return r;
	mean = (float)(loss / (double)b.counted);
	d.data = calloc((size_t)fixture.layout->parameters + 3, sizeof(*d.data));
	d.sources = calloc((size_t)fixture.layout->parameters + 3, sizeof(*d.sources));
	for (int i = 0; i < fixture.layout->parameters; i++) {
		const struct model_parameter *p = &fixture.layout->parameter[i];
		size_t bytes = (size_t)p->count * sizeof(float);
		float *g = p->frozen ? NULL : malloc(bytes);

		if (p->frozen)
			continue;
		if (!g)
			return error_oom(err);
		add(&d, p->name, g, p->dims, p->shape);
		if ((r = device_read(fixture.dev, g, fixture.g[p->unit] + p->offset, bytes, err)) < 0)
			return r;
	}
	add(&d, "loss", &mean, 1, (int64_t[]){1, 0, 0});
	add(&d, "losses", losses, 1, (int64_t[]){b.b.tokens, 0, 0});
	if (!bf16)
		add(&d, "logits", logits, 2, (int64_t[]){b.b.tokens, c.vocab, 0});
	if ((r = file_mkdirs(out, 0755, err)) < 0 ||
	    (r = safetensors_write(out, "model", d.sources, d.n, 0, err)) < 0)
		return r;
	for (size_t i = 0; i < d.n; i++)
		if (d.data[i] != &mean && d.data[i] != losses && d.data[i] != logits)
			free((void *)d.data[i]);
	free(d.data);
	free(d.sources);
	free(b.ids);
	free(b.targets);
	free(b.starts);
	return 0;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;
	struct model_options how = {.type = DTYPE_F32, .training = true, .logits_rows = 7};
	const char *adapter = NULL;

	for (int i = 4; i < argc; i++) {
		if (strchr(argv[i], '/'))
			adapter = argv[i];
		if (str_eq(argv[i], "recompute"))
			how.recompute = MODEL_RECOMPUTE_BLOCK;
		else if (str_eq(argv[i], "selective"))
			how.recompute = MODEL_RECOMPUTE_SELECTIVE;
		else if (str_eq(argv[i], "outputs"))
			how.kept_outputs = INT_MAX;
		else if (str_eq(argv[i], "bf16"))
			how.type = DTYPE_BF16;
		else if (str_eq(argv[i], "smoothed"))
			how.label_smoothing = 0.1;
		how.fp8 |= str_eq(argv[i], "fp8");
		how.dft |= str_eq(argv[i], "dft");
	}
	if (argc < 4) {
		fprintf(stderr, "usage: grad_dump MODEL BATCH OUT [recompute | selective | outputs] [bf16] "
		                "[fp8] [smoothed | dft] [ADAPTER]\n");
		return 2;
	}
	if (run(argv[1], argv[2], argv[3], &how, adapter, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	return 0;
}
