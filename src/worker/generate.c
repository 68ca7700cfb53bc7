/* SPDX-License-Identifier: Apache-2.0 */
/* The task generate: a prompt's continuation on stdout as it comes, or those of a file of prompts as JSON
 * lines. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"
#include "engine/chat/template.h"
#include "engine/checkpoint/elsewhere.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/merge.h"
#include "engine/checkpoint/parameters.h"
#include "engine/model/generate.h"
#include "options/options.h"
#include "options/precision_names.h"
#include "worker/precision.h"
#include "worker/prompts.h"
#include "worker/tasks.h"

DEFINE_CLEANUP(struct device *, device_destroy)

struct generation {
	const struct run_config *c;
	struct device *dev;
	struct tokenizer *tok;
	struct template_choice template; /* of a chat */
	struct model_config model;
	struct generator *generator;
	struct token_list stops; /* ids that end the answer */
	struct prompts file;     /* of generate.prompts */
	struct sequence *sequences;
	size_t n;
};

/* A prompt, and its text as it grows. */
struct sequence {
	struct token_list ids; /* prompt, then what was generated */
	size_t prompt;         /* of them are the prompt's */
	size_t begin;          /* bytes of the prompt's text */
	char *text;            /* of all ids; `done` of its bytes count */
	size_t done;
	int64_t made;                      /* tokens that were generated */
	bool ended_by_id, ended_by_string; /* else it is as long as it may be */
	bool finished;
};

#define NONE SIZE_MAX

/* The sequences that are generated at once. */
struct batch {
	int n;
	size_t *prompt; /* which prompt each sequence of the generator works on; NONE */
	int *sequences; /* and those that get one more token, with the token */
	int32_t *ids;
};

static void batch_free(struct batch *b)
{
	free(b->prompt);
	free(b->sequences);
	free(b->ids);
}

static int batch_init(struct batch *b, int n, struct error *err)
{
	b->n = n;
	b->prompt = calloc((size_t)n, sizeof(*b->prompt));
	b->sequences = calloc((size_t)n, sizeof(*b->sequences));
	b->ids = calloc((size_t)n, sizeof(*b->ids));
	if (!b->prompt || !b->sequences || !b->ids)
		return error_oom(err);
	for (int i = 0; i < n; i++)
		b->prompt[i] = NONE;
	return 0;
}

static void generation_free(struct generation *g)
{
	generator_freep(&g->generator);
	tokenizer_freep(&g->tok);
	template_choice_clear(&g->template);
	device_destroyp(&g->dev);
	token_list_free(&g->stops);
	for (size_t i = 0; g->sequences && i < g->n; i++) {
		token_list_free(&g->sequences[i].ids);
		free(g->sequences[i].text);
	}
	free(g->sequences);
	prompts_free(&g->file);
}

static int add_stop(struct generation *g, int32_t id)
{
	return id < 0 ? 0 : token_list_add(&g->stops, &id, 1);
}

/* eos_token_id is a number or a list of them. */
static int add_stops_of(struct generation *g, const char *directory, const char *name, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	_cleanup_json_ json_t *j = NULL;
	const json_t *eos, *v;
	size_t i;
	int r = 0;

	if (!path)
		return error_oom(err);
	if (!file_exists(path))
		return 0;
	r = json_read_python(path, &j, err);
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

	if ((r = add_stops_of(g, g->c->model.path, "generation_config.json", err)) < 0 ||
	    (r = add_stops_of(g, g->c->model.path, "config.json", err)) < 0 ||
	    (g->c->generate.adapter &&
	     (r = add_stops_of(g, g->c->generate.adapter, "generation_config.json", err)) < 0))
		return r;
	if (add_stop(g, tokenizer_eos(g->tok)) < 0)
		return error_oom(err);
	return g->c->generate.chat ? template_stops(g->tok, &g->template.template, &g->stops, err) : 0;
}

static int choose_template(struct generation *g, struct error *err)
{
	int r;

	if (!g->c->generate.chat)
		return 0;
	r = template_choose(g->c->data.template_, g->tok, &g->template, err);
	if (r == 0 && g->template.source == TEMPLATE_FALLBACK)
		fprintf(stderr,
		        "warning: the tokenizer has no chat template, and data.template is not set: the "
		        "template \"%s\" is taken, which the model may not have been trained with\n",
		        g->template.template.name);
	return r;
}

/* `where` names the prompt in errors. */
static int encode_prompt(struct generation *g, const char *text, const char *where, struct sequence *s,
                         struct error *err)
{
	int r = g->c->generate.chat
	            ? template_prompt(g->tok, &g->template.template, g->c->data.system, text, &s->ids, err)
	            : tokenizer_encode(g->tok, text, strlen(text), true, &s->ids, err);

	if (r < 0)
		return r;
	/* An empty prompt begins with what a document begins with. */
	if (s->ids.len == 0 && tokenizer_bos(g->tok) >= 0 &&
	    token_list_add(&s->ids, &(int32_t){tokenizer_bos(g->tok)}, 1) < 0)
		return error_oom(err);
	if (s->ids.len == 0)
		return error_set(err, -EINVAL,
		                 "%s: the tokenizer makes no token of it; a longer one is needed", where);
	if ((int64_t)s->ids.len >= g->model.max_positions)
		return error_set(err, -E2BIG, "%s has %zu tokens; the model takes %" PRId64, where,
		                 s->ids.len, g->model.max_positions);
	s->prompt = s->ids.len;
	return 0;
}

static int encode_prompts(struct generation *g, struct error *err)
{
	const char *path = g->c->generate.prompts;
	int r = path ? prompts_read(path, &g->file, err) : 0;

	if (r < 0)
		return r;
	g->n = path ? g->file.n : 1;
	g->sequences = calloc(g->n, sizeof(*g->sequences));
	if (!g->sequences)
		return error_oom(err);
	for (size_t i = 0; i < g->n && r == 0; i++) {
		_cleanup_free_ char *where =
		    path ? str_printf("%s: prompt %zu", path, i + 1) : strdup("generate.prompt");

		r = where ? encode_prompt(g, path ? g->file.items[i].text : g->c->generate.prompt, where,
		                          &g->sequences[i], err)
		          : error_oom(err);
	}
	return r;
}

/* Sequences that are generated at once. */
static int batch_size(const struct generation *g)
{
	return (int)MIN((size_t)g->c->generate.batch, g->n);
}

/* With the adapter in the weights. */
static int create_merged(struct generation *g, const struct generator_options *o, struct safetensors *st,
                         struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(merged_model_closep) struct merged_model *merged = NULL;
	struct model_config untied = g->model;
	int r;

	untied.tied = false;
	if ((r = model_layout_create(&untied, &layout, err)) < 0 ||
	    (r = merged_model_open(g->c->generate.adapter, layout, st, &merged, err)) < 0)
		return r;
	g->model.tied = g->model.tied && !merged_model_unties(merged);
	return generator_create(g->dev, &g->model, o, merged_model_fill, merged, &g->generator, err);
}

static int load(struct generation *g, struct error *err)
{
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_free_ char *config = options_config(g->c), *tokenizer = options_tokenizer(g->c);
	struct device_options dev = {.threads = g->c->resources.threads,
	                             /* the only attention that knows a cache */
	                             .attention = DEVICE_ATTENTION_OWN};
	struct generator_options o = {0};
	int r;

	if (!config || !tokenizer)
		return error_oom(err);
	if ((r = model_config_read(config, &g->model, err)) < 0) {
		checkpoint_say_elsewhere(g->c->model.path, err);
		return r;
	}
	if ((r = hf_choose_head(&g->model, false, g->c->model.path, err)) < 0 ||
	    (r = tokenizer_load(tokenizer, &g->tok, err)) < 0 || (r = choose_template(g, err)) < 0 ||
	    (r = collect_stops(g, err)) < 0 || (r = encode_prompts(g, err)) < 0)
		return r;
	o.ids = tokenizer_vocab_size(g->tok);
	for (size_t i = 0; i < g->n; i++)
		o.max_tokens = MAX(o.max_tokens, (int64_t)g->sequences[i].prompt);
	o.max_tokens = MIN(o.max_tokens + g->c->generate.max_new_tokens, g->model.max_positions);
	o.sequences = batch_size(g);
	o.sampling = (struct sampling){.temperature = g->c->generate.temperature,
	                               .top_k = g->c->generate.top_k,
	                               .top_p = g->c->generate.top_p,
	                               .min_p = g->c->generate.min_p};
	o.logits = g->c->generate.repetition_penalty != 1;
	if ((r = device_create(&dev, &g->dev, err)) < 0)
		return r;
	o.type = precision_of_device(g->dev);
	precision_parse(g->c->train.precision, &o.type);
	if ((r = model_layout_create(&g->model, &layout, err)) < 0 ||
	    (r = safetensors_open(g->c->model.path, &st, err)) < 0 ||
	    (r = parameters_check(layout, st, g->c->model.path, err)) < 0)
		return r;
	return g->c->generate.adapter
	           ? create_merged(g, &o, st, err)
	           : generator_create(g->dev, &g->model, &o, parameters_fill, st, &g->generator, err);
}

/* Bytes of text that will not change when more ids come: an unfinished character decodes as U+FFFD. */
static size_t settled(const char *text, size_t len)
{
	while (len >= 3 && !memcmp(text + len - 3, "\xef\xbf\xbd", 3))
		len -= 3;
	return len;
}

/* Decodes all ids anew each time, so that what a decoder does at the start (it takes a space off) and between
 * tokens is done as for the whole text; the prompt's part is not printed. Text that may be the beginning of a
 * stop string waits. */
static int decode(struct generation *g, struct sequence *s, bool last, struct error *err)
{
	char *const *stop = g->c->generate.stop;
	_cleanup_free_ char *text = NULL;
	size_t len, at;
	int r = tokenizer_decode(g->tok, s->ids.ids, s->ids.len, true, &text, &len, err);

	if (r < 0)
		return r;
	if (!last)
		len = settled(text, len);
	/* The text before s->done has been searched. */
	if (len > s->done && stop_find(stop, text, s->done, len, &at)) {
		len = at;
		s->ended_by_string = true;
	} else if (len > s->done && !last) {
		len -= stop_pending(stop, text, s->done, len);
	}
	if (len > s->done) {
		if (!g->c->generate.prompts)
			fwrite(text + s->done, 1, len - s->done, stdout);
		s->done = len;
	}
	free(s->text);
	s->text = steal_pointer(text);
	if (fflush(stdout) != 0)
		return error_errno(err, -errno, "cannot write to stdout");
	return 0;
}

/* The prompt goes through the model. */
static int begin(struct generation *g, size_t index, int sequence, struct error *err)
{
	struct sequence *q = &g->sequences[index];
	_cleanup_free_ char *prompt = NULL;
	int r = tokenizer_decode(g->tok, q->ids.ids, q->ids.len, true, &prompt, &q->done, err);

	q->begin = q->done;
	generator_reset(g->generator, sequence, (uint64_t)g->c->generate.seed + index);
	return r < 0 ? r : generator_feed(g->generator, sequence, q->ids.ids, q->ids.len, err);
}

/* Chooses the next token. */
static int advance(struct generation *g, size_t index, int sequence, struct error *err)
{
	const struct run_config *c = g->c;
	struct sequence *q = &g->sequences[index];
	/* Without a string to wait for, the text of a file's prompt is needed at its end only. */
	bool watch = !c->generate.prompts || c->generate.stop;
	int32_t id;
	int r = 0;

	if (c->generate.repetition_penalty != 1)
		generator_penalize(g->generator, sequence, q->ids.ids, q->ids.len,
		                   c->generate.repetition_penalty);
	id = generator_choose(g->generator, sequence);
	q->ended_by_id = token_list_has(&g->stops, id);
	if (!q->ended_by_id) {
		if (token_list_add(&q->ids, &id, 1) < 0)
			return error_oom(err);
		q->made++;
		if (watch)
			r = decode(g, q, false, err);
	}
	q->finished = q->ended_by_id || q->ended_by_string || q->made >= c->generate.max_new_tokens ||
	              (int64_t)q->ids.len >= g->model.max_positions;
	return r == 0 && q->finished && !q->ended_by_string ? decode(g, q, true, err) : r;
}

/* The answer to a prompt of a file. */
static int print_answer(struct generation *g, size_t index, struct error *err)
{
	struct sequence *s = &g->sequences[index];
	json_t *object = g->file.items[index].object;
	size_t len = s->done - s->begin;
	_cleanup_free_ char *answer = malloc(len + 1);
	_cleanup_strbuf_ struct strbuf line = {0};
	const char *reason = s->ended_by_id || s->ended_by_string ? "stop" : "length";

	if (!answer)
		return error_oom(err);
	memcpy(answer, s->text + s->begin, len);
	answer[len] = '\0';
	/* A model may write any character, also the one that ends a string of C. */
	for (size_t at = 0; at < len; at += strlen(answer + at) + 1)
		str_make_utf8(answer + at);
	if (json_object_set_new(object, "completion", json_stringn(answer, len)) < 0 ||
	    json_object_set_new(object, "finish_reason", json_string(reason)) < 0)
		return error_oom(err);
	exact_json_dump(object, -1, &line);
	if (line.failed)
		return error_oom(err);
	if (puts(line.data) < 0 || fflush(stdout) != 0)
		return error_errno(err, -errno, "cannot write to stdout");
	return 0;
}

/* One more token for each sequence; a sequence whose text has ended goes on with the next prompt. */
static int advance_all(struct generation *g, struct batch *b, size_t *next, struct error *err)
{
	int count = 0, r = 0;

	for (int i = 0; i < b->n && r == 0; i++) {
		while (r == 0 && (b->prompt[i] != NONE || *next < g->n)) {
			if (b->prompt[i] == NONE) {
				b->prompt[i] = (*next)++;
				r = begin(g, b->prompt[i], i, err);
			}
			if (r == 0)
				r = advance(g, b->prompt[i], i, err);
			if (r < 0 || !g->sequences[b->prompt[i]].finished)
				break;
			b->prompt[i] = NONE;
		}
		if (r == 0 && b->prompt[i] != NONE) {
			const struct token_list *ids = &g->sequences[b->prompt[i]].ids;

			b->sequences[count] = i;
			b->ids[count++] = ids->ids[ids->len - 1];
		}
	}
	return r < 0 ? r : generator_step(g->generator, b->sequences, b->ids, count, err);
}

static int generate_all(struct generation *g, struct error *err)
{
	_cleanup_(batch_free) struct batch b = {0};
	size_t next = 0, printed = 0;
	int r = batch_init(&b, batch_size(g), err);

	while (r == 0 && printed < g->n) {
		r = advance_all(g, &b, &next, err);
		for (; r == 0 && printed < g->n && g->sequences[printed].finished; printed++)
			r = g->c->generate.prompts ? print_answer(g, printed, err) : 0;
	}
	return r;
}

int generate_task(const struct run_config *c, const struct environment *env, struct error *err)
{
	_cleanup_(generation_free) struct generation g = {.c = c};
	int r;

	if (env->world_size != 1)
		return error_set(err, -EINVAL, "generate runs on one device, not on %d", env->world_size);
	if ((r = load(&g, err)) < 0 || (r = generate_all(&g, err)) < 0)
		return r;
	if (!c->generate.prompts && (putchar('\n') < 0 || fflush(stdout) != 0))
		return error_errno(err, -errno, "cannot write to stdout");
	return 0;
}
