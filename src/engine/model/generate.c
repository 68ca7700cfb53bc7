/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its weights and a cache of keys and values; its sequences are fed a prompt each, and then one
 * token at a time. */
#include "engine/model/generate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/sizes.h"
#include "engine/model/whole.h"

/* Tokens of a prompt that go through the model at once. */
#define PREFILL 256

struct generator {
	struct device *dev;
	struct model_config c;
	struct whole_model whole;
	struct arena arena;
	void *memory;
	int sequences;
	int64_t max_tokens, ids, *length; /* of each sequence */
	struct sampling sampling;
	uint64_t *seed;  /* of each sequence */
	float *logits;   /* host, of each sequence; NULL: the device chooses */
	void *work;      /* with these */
	int32_t *chosen; /* of each sequence; else */
	struct model_part *parts;
	double *uniform; /* of each part, and the id that is chosen by it */
	int32_t *next;
};

/* The bytes that each sequence adds: keys and values of its tokens, and its logits, which a CPU may have in
 * the same memory a second time. */
static int64_t sequence_bytes(const struct generator *g, enum dtype type, bool twice)
{
	const struct model_config *c = &g->c;
	int64_t row = 2 * (int64_t)c->kv_heads * c->head_dim * (int64_t)dtype_size(type), bytes = 0;

	for (int l = 0; l < c->layers; l++)
		bytes += model_config_is_linear(c, l)
		             ? (int64_t)c->delta_value_heads * c->delta_key_dim * c->delta_value_dim *
		                       (int64_t)sizeof(float) +
		                   (c->conv_width - 1) * model_config_channels(c) * (int64_t)dtype_size(type)
		             : row * g->max_tokens;
	return bytes + (twice ? 2 : 1) * c->vocab * (int64_t)sizeof(float);
}

/* Called before anything is allocated: on a CPU, the system would end a process when more memory is written
 * than the machine has. */
static int check_memory(const struct generator *g, const struct generator_options *o, size_t scratch,
                        struct error *err)
{
	int64_t bytes = (int64_t)(g->arena.used + scratch), each, memory, fit;
	struct device_sizing sizing;
	bool cpu;

	device_get_sizing(g->dev, &sizing, &memory);
	cpu = sizing.engine == DEVICE_ENGINE_CPU;
	each = sequence_bytes(g, o->type, cpu && o->logits);
	if (cpu && o->logits)
		bytes += g->sequences * g->c.vocab * (int64_t)sizeof(float);
	if (memory <= 0 || bytes <= memory)
		return 0;
	fit = g->sequences - (bytes - memory + each - 1) / each;
	if (fit < 1)
		return error_set(
		    err, -ENOMEM, "the model and its cache for %lld tokens take %.1f GiB; %s %.1f GiB",
		    (long long)g->max_tokens, (double)bytes / (1 << 30),
		    cpu ? "this machine has no more than" : "the device has", (double)memory / (1 << 30));
	return error_set(err, -ENOMEM,
	                 "the model and its cache for %d sequences of %lld tokens take %.1f GiB; %s "
	                 "%.1f GiB, enough for %lld at a time (generate.batch)",
	                 g->sequences, (long long)g->max_tokens, (double)bytes / (1 << 30),
	                 cpu ? "this machine has no more than" : "the device has", (double)memory / (1 << 30),
	                 (long long)fit);
}

/* On the host. */
static int allocate(struct generator *g, bool logits, struct error *err)
{
	size_t n = (size_t)g->sequences, vocab = (size_t)g->c.vocab;

	g->length = calloc(n, sizeof(*g->length));
	g->seed = calloc(n, sizeof(*g->seed));
	g->parts = calloc(n, sizeof(*g->parts));
	g->chosen = calloc(n, sizeof(*g->chosen));
	g->uniform = calloc(n, sizeof(*g->uniform));
	g->next = calloc(n, sizeof(*g->next));
	if (logits) {
		g->logits = calloc(n, vocab * sizeof(*g->logits));
		g->work = malloc(vocab);
	}
	return g->length && g->seed && g->parts && g->chosen && g->uniform && g->next &&
	               (!logits || (g->logits && g->work))
	           ? 0
	           : error_oom(err);
}

int generator_create(struct device *dev, const struct model_config *c,
                     const struct generator_options *options, model_fill_fn fill, void *fill_context,
                     struct generator **out, struct error *err)
{
	_cleanup_(generator_freep) struct generator *g = calloc(1, sizeof(*g));
	struct model_options o = {.type = options->type, .logits_rows = 1};
	struct device_shapes shapes;
	size_t scratch;
	int r;

	if (!g)
		return error_oom(err);
	g->dev = dev;
	g->c = *c;
	g->max_tokens = options->max_tokens ? options->max_tokens : c->max_positions;
	g->ids = options->ids ? MIN(options->ids, c->vocab) : c->vocab;
	g->sequences = o.cache_sequences = MAX(options->sequences, 1);
	g->sampling = options->sampling;
	o.max_tokens = MAX(MIN(PREFILL, g->max_tokens), g->sequences);
	o.logits_bytes = device_logits_bytes();
	o.max_sequence = o.cache_tokens = g->max_tokens;
	if ((r = whole_model_create(dev, c, &o, &g->whole, err)) < 0)
		return r;
	whole_model_place(&g->whole, &g->arena, "unit");
	if (g->arena.failed)
		return error_oom(err);
	model_shapes(g->whole.model, &shapes);
	scratch = device_scratch_bytes(dev, &shapes);
	if ((r = check_memory(g, options, scratch, err)) < 0 || (r = allocate(g, options->logits, err)) < 0 ||
	    (r = device_alloc(dev, g->arena.used, &g->memory, err)) < 0)
		return r;
	arena_bind(&g->arena, g->memory);
	whole_model_place(&g->whole, &g->arena, "unit");
	if ((r = device_reserve_scratch(dev, scratch, err)) < 0 ||
	    (r = model_prepare(g->whole.model, err)) < 0 ||
	    (r = whole_model_load(&g->whole, fill, fill_context, err)) < 0)
		return r;
	*out = steal_pointer(g);
	return 0;
}

void generator_free(struct generator *g)
{
	if (!g)
		return;
	whole_model_clear(&g->whole);
	arena_free(&g->arena);
	if (g->memory)
		device_free(g->dev, g->memory);
	free(g->length);
	free(g->seed);
	free(g->parts);
	free(g->chosen);
	free(g->uniform);
	free(g->next);
	free(g->logits);
	free(g->work);
	free(g);
}

void generator_reset(struct generator *g, int sequence, uint64_t seed)
{
	model_decode_reset(g->whole.model, sequence);
	g->length[sequence] = 0;
	g->seed[sequence] = seed;
}

static float *logits_of(const struct generator *g, int sequence)
{
	return g->logits ? g->logits + (size_t)sequence * (size_t)g->c.vocab : NULL;
}

/* The next token of a sequence. */
static struct model_part last_part(const struct generator *g, int sequence, int n)
{
	return (struct model_part){sequence, n, logits_of(g, sequence), !g->logits};
}

/* What follows the parts of the last pass, whose sequences are as long as they are now. */
static int choose(struct generator *g, int count, struct error *err)
{
	int r;

	if (g->logits)
		return 0;
	for (int i = 0; i < count; i++) {
		int sequence = g->parts[i].sequence;

		g->uniform[i] = sampling_uniform(g->seed[sequence], (uint64_t)g->length[sequence]);
	}
	r = model_decode_choose(g->whole.model, &g->sampling, g->ids, count, false, g->uniform, g->next, err);
	for (int i = 0; i < count && r == 0; i++)
		g->chosen[g->parts[i].sequence] = g->next[i];
	return r;
}

static int check_room(const struct generator *g, int sequence, int64_t n, struct error *err)
{
	int64_t length = g->length[sequence] + n;

	return length <= g->max_tokens
	           ? 0
	           : error_set(err, -E2BIG, "%lld tokens are more than the %lld there is room for",
	                       (long long)length, (long long)g->max_tokens);
}

int generator_feed(struct generator *g, int sequence, const int32_t *ids, int64_t n, struct error *err)
{
	int r = check_room(g, sequence, n, err);

	for (int64_t first = 0; first < n && r == 0; first += PREFILL) {
		int count = (int)MIN(n - first, PREFILL);

		g->parts[0] = first + count == n ? last_part(g, sequence, count)
		                                 : (struct model_part){.sequence = sequence, .n = count};
		r = model_decode(g->whole.model, g->parts, 1, ids + first, err);
	}
	if (r < 0)
		return r;
	g->length[sequence] += n;
	return n > 0 ? choose(g, 1, err) : 0;
}

int generator_step(struct generator *g, const int *sequences, const int32_t *ids, int count,
                   struct error *err)
{
	int r = 0;

	for (int i = 0; i < count && r == 0; i++) {
		g->parts[i] = last_part(g, sequences[i], 1);
		r = check_room(g, sequences[i], 1, err);
	}
	if (r == 0 && count > 0)
		r = model_decode(g->whole.model, g->parts, count, ids, err);
	if (r < 0 || count == 0)
		return r;
	for (int i = 0; i < count; i++)
		g->length[sequences[i]]++;
	return choose(g, count, err);
}

const float *generator_logits(const struct generator *g, int sequence)
{
	return logits_of(g, sequence);
}

void generator_penalize(struct generator *g, int sequence, const int32_t *ids, size_t n, double penalty)
{
	sampling_penalize(logits_of(g, sequence), g->ids, ids, n, penalty, g->work);
}

int32_t generator_choose(struct generator *g, int sequence)
{
	struct sampling s = g->sampling;

	s.seed = g->seed[sequence];
	return g->logits ? sampling_choose(&s, logits_of(g, sequence), g->ids, g->length[sequence])
	                 : g->chosen[sequence];
}
