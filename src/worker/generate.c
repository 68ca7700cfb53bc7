/* SPDX-License-Identifier: Apache-2.0 */
/* The task generate: a prompt's continuation on stdout as it comes. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/chat/template.h"
#include "engine/checkpoint/parameters.h"
#include "engine/model/generate.h"
#include "options/options.h"
#include "options/precision_names.h"
#include "worker/precision.h"
#include "worker/tasks.h"

DEFINE_CLEANUP(struct device *, device_destroy)

struct generation {
	const struct run_config *c;
	struct device *dev;
	struct tokenizer *tok;
	struct model_config model;
	struct generator *generator;
	struct token_list ids;   /* prompt, then what was generated */
	struct token_list stops; /* ids that end the answer */
	size_t printed;          /* bytes of the text of ids that are out, the prompt's included */
};

static void generation_free(struct generation *g)
{
	generator_freep(&g->generator);
	tokenizer_freep(&g->tok);
	device_destroyp(&g->dev);
	token_list_free(&g->ids);
	token_list_free(&g->stops);
}

static int add_stop(struct generation *g, int32_t id)
{
	return id < 0 ? 0 : token_list_add(&g->stops, &id, 1);
}

/* eos_token_id is a number or a list of them. */
static int add_stops_of(struct generation *g, const char *name, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(g->c->model.path, name);
	_cleanup_json_ json_t *j = NULL;
	const json_t *eos, *v;
	size_t i;
	int r = 0;

	if (!path)
		return error_oom(err);
	if (!file_exists(path))
		return 0;
	r = json_read_file(path, &j, err);
	if (r < 0)
		return r;
	eos = json_object_get(j, "eos_token_id");
	if (json_is_integer(eos))
		r = add_stop(g, json_integer_value(eos));
	json_array_foreach(eos, i, v) if (r == 0 && json_is_integer(v)) r =
	    add_stop(g, json_integer_value(v));
	return r < 0 ? error_oom(err) : 0;
}

static int collect_stops(struct generation *g, struct error *err)
{
	int r;

	if ((r = add_stops_of(g, "generation_config.json", err)) < 0 ||
	    (r = add_stops_of(g, "config.json", err)) < 0)
		return r;
	if (add_stop(g, tokenizer_eos(g->tok)) < 0)
		return error_oom(err);
	return g->c->generate.chat ? template_stops(g->tok, g->c->data.template_, &g->stops, err) : 0;
}

static bool is_stop(const struct generation *g, int32_t id)
{
	for (size_t i = 0; i < g->stops.len; i++)
		if (g->stops.ids[i] == id)
			return true;
	return false;
}

static int load(struct generation *g, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_free_ char *config = options_config(g->c), *tokenizer = options_tokenizer(g->c);
	struct device_options dev = {.threads = g->c->resources.threads,
	                             .attention =
	                                 DEVICE_ATTENTION_OWN}; /* the only attention that knows a cache */
	struct generator_options o = {0};
	int r;

	if (!config || !tokenizer)
		return error_oom(err);
	if ((r = model_config_read(config, &g->model, err)) < 0 ||
	    (r = tokenizer_load(tokenizer, &g->tok, err)) < 0 || (r = collect_stops(g, err)) < 0)
		return r;
	r = g->c->generate.chat ? template_prompt(g->tok, g->c->data.template_, g->c->data.system,
	                                          g->c->generate.prompt, &g->ids, err)
	                        : tokenizer_encode(g->tok, g->c->generate.prompt,
	                                           strlen(g->c->generate.prompt), true, &g->ids, err);
	if (r < 0)
		return r;
	/* An empty prompt begins with what a document begins with. */
	if (g->ids.len == 0 && tokenizer_bos(g->tok) >= 0 &&
	    token_list_add(&g->ids, &(int32_t){tokenizer_bos(g->tok)}, 1) < 0)
		return error_oom(err);
	if (g->ids.len == 0)
		return error_set(
		    err, -EINVAL,
		    "generate.prompt: the tokenizer makes no token of it; a longer one is needed");
	o.ids = tokenizer_vocab_size(g->tok);
	o.max_tokens = MIN((int64_t)g->ids.len + g->c->generate.max_new_tokens, g->model.max_positions);
	if ((int64_t)g->ids.len >= g->model.max_positions)
		return error_set(err, -E2BIG, "generate.prompt has %zu tokens; the model takes %" PRId64,
		                 g->ids.len, g->model.max_positions);
	if ((r = device_create(&dev, &g->dev, err)) < 0)
		return r;
	o.type = precision_of_device(g->dev);
	precision_parse(g->c->train.precision, &o.type);
	if ((r = model_layout_create(&g->model, &layout, err)) < 0 ||
	    (r = safetensors_open(g->c->model.path, &st, err)) < 0 ||
	    (r = parameters_check(layout, st, g->c->model.path, err)) < 0)
		return r;
	return generator_create(g->dev, &g->model, &o, parameters_fill, st, &g->generator, err);
}

/* Bytes of text that will not change when more ids come: an unfinished character decodes as U+FFFD. */
static size_t settled(const char *text, size_t len)
{
	while (len >= 3 && !memcmp(text + len - 3, "\xef\xbf\xbd", 3))
		len -= 3;
	return len;
}

/* Decodes all ids anew each time, so that what a decoder does at the start (it takes a space off) and between
 * tokens is done as for the whole text; the prompt's part is not printed. */
static int print_new(struct generation *g, bool last, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r = tokenizer_decode(g->tok, g->ids.ids, g->ids.len, true, &text, &len, err);

	if (r < 0)
		return r;
	if (!last)
		len = settled(text, len);
	if (len > g->printed) {
		fwrite(text + g->printed, 1, len - g->printed, stdout);
		g->printed = len;
	}
	if (fflush(stdout) != 0)
		return error_errno(err, -errno, "cannot write to stdout");
	return 0;
}

static int generate(struct generation *g, struct error *err)
{
	const struct run_config *c = g->c;
	struct sampling s = {c->generate.temperature, c->generate.top_k, c->generate.top_p, c->generate.seed};
	_cleanup_free_ char *prompt = NULL;
	int r;

	r = tokenizer_decode(g->tok, g->ids.ids, g->ids.len, true, &prompt, &g->printed, err);
	if (r == 0)
		r = generator_feed(g->generator, g->ids.ids, g->ids.len, err);
	for (int64_t i = 0; i < c->generate.max_new_tokens && r == 0; i++) {
		int32_t id = generator_choose(g->generator, &s);

		if (is_stop(g, id))
			break;
		if (token_list_add(&g->ids, &id, 1) < 0)
			return error_oom(err);
		r = print_new(g, false, err);
		if ((int64_t)g->ids.len >= g->model.max_positions)
			break;
		if (r == 0 && i + 1 < c->generate.max_new_tokens)
			r = generator_feed(g->generator, &id, 1, err);
	}
	if (r == 0)
		r = print_new(g, true, err);
	return r;
}

int generate_task(const struct run_config *c, const struct environment *env, struct error *err)
{
	_cleanup_(generation_free) struct generation g = {.c = c};
	int r;

	if (env->world_size != 1)
		return error_set(err, -EINVAL, "generate runs on one device, not on %d", env->world_size);
	if ((r = load(&g, err)) < 0 || (r = generate(&g, err)) < 0)
		return r;
	if (putchar('\n') < 0 || fflush(stdout) != 0)
		return error_errno(err, -errno, "cannot write to stdout");
	return 0;
}
