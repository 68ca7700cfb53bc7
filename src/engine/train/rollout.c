/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions of prompts, by the model that is trained as it is between two steps. The completions of a step
 * are generated some at a time, in waves. A wave begins with its prompts, of which each goes through the
 * model once for all of its completions; then each sequence gets a token in every pass, until all have ended.
 *
 * Which token is chosen depends on the seed, the number of the set of completions, the row of the data and
 * the place alone: neither on the ranks, nor on what is generated at the same time, as far as logits do not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/model/sampling.h"
#include "engine/train/internal.h"

/* The prompt of a row is all that comes before its answer, or all of it. */
static int64_t prompt_length(const struct dataset_row *row)
{
	for (int64_t i = 0; i < row->length && row->counted > 0; i++)
		if (row->targets[i] >= 0)
			return i + 1;
	return row->length;
}

static int64_t longest_prompt(const struct dataset *data)
{
	int64_t longest = 0;

	for (int64_t i = 0; data && i < dataset_rows(data); i++) {
		struct dataset_row row;

		dataset_row(data, i, &row);
		longest = MAX(longest, prompt_length(&row));
	}
	if (data)
		dataset_release(data);
	return longest;
}

int64_t train_longest_row(const struct train_options *o, const struct model_config *c,
                          const struct dataset *train, const struct dataset *eval)
{
	int64_t longest;

	if (!o->policy.generations)
		return MAX(dataset_max_row(train), eval ? dataset_max_row(eval) : 0);
	longest = MAX(longest_prompt(train), longest_prompt(eval));
	return MAX(MIN(longest + o->policy.max_tokens, c->max_positions), longest + 1);
}

/* ---- a pass ---- */

/* The next tokens of `count` sequences; of none where other ranks have some. */
static int pass(struct trainer *t, int count, const int32_t *ids, struct error *err)
{
	if (count > 0)
		return model_decode(t->plan->model, t->policy.parts, count, ids, err);
	return shard_has_slots(t->plan->shard) ? model_decode_nothing(t->plan->model, err) : 0;
}

/* Whether any rank has sequences that go on, `own` of them this one, and whether completions are abandoned:
 * where ranks share weights, all take part in each pass, and agree on both. */
static int any_goes_on(struct trainer *t, int own, bool *any, struct error *err)
{
	double sums[] = {own, policy_abandons(t)};
	int r = 0;

	if (shard_has_slots(t->plan->shard)) {
		r = trainer_sum(t, policy_device_totals(t), sums, ARRAY_SIZE(sums), err);
		t->policy.abandoned = sums[1] > 0;
	}
	*any = sums[0] > 0 && !t->policy.abandoned;
	return r;
}

/* ---- a wave: the completions from `first` on, each in the sequence of its place in the wave ---- */

struct wave {
	int64_t first;
	int count;  /* of this rank, */
	int places; /* of as many as all ranks may have */
};

static bool is_stop(const struct policy_options *o, int32_t id)
{
	for (int64_t i = 0; i < o->stop_count; i++)
		if (o->stops[i] == id)
			return true;
	return false;
}

static bool has_ended(const struct trainer *t, const struct rollout *one)
{
	return one->finished || one->length >= t->o.policy.max_tokens ||
	       one->prompt + one->length >= t->max_row;
}

/* The random number by which a sequence's next token is chosen. */
static double uniform_of(const struct trainer *t, const struct wave *w, int sequence)
{
	int64_t index = w->first + sequence;
	const struct rollout *one = &t->policy.rollouts[index];
	const int64_t key[] = {t->policy.number, one->row, index % t->policy.generations};

	return sampling_uniform(hash_bytes(key, sizeof(key), t->o.seed),
	                        (uint64_t)(one->prompt + one->length));
}

/* Adds a token to each of `count` completions, whose sequences are those of the first parts: chosen by the
 * logits of these, or of the first of them alone. */
static int choose(struct trainer *t, const struct wave *w, int count, bool of_first, struct error *err)
{
	const struct policy_options *o = &t->o.policy;
	struct policy_work *p = &t->policy;
	/* The model has divided by the temperature. */
	struct sampling s = {.temperature = 1, .top_k = o->top_k, .top_p = o->top_p, .min_p = o->min_p};
	int64_t ids = o->ids > 0 ? MIN(o->ids, t->c.vocab) : t->c.vocab;
	int r;

	for (int i = 0; i < count; i++)
		p->uniform[i] = uniform_of(t, w, p->parts[i].sequence);
	r = model_decode_choose(t->plan->model, &s, ids, count, of_first, p->uniform, p->chosen, err);
	for (int i = 0; i < count && r == 0; i++) {
		int64_t index = w->first + p->parts[i].sequence;
		struct rollout *one = &p->rollouts[index];

		p->ids[index * t->max_row + one->prompt + one->length++] = p->chosen[i];
		one->finished = is_stop(o, p->chosen[i]);
	}
	return r;
}

/* A prompt goes through the model for the first of its completions in the wave, which is sequence `from`; the
 * others get copies. Each gets its first token. */
static int begin_prompt(struct trainer *t, const struct wave *w, int from, int end, struct error *err)
{
	struct policy_work *p = &t->policy;
	const struct rollout *one = &p->rollouts[w->first + from];
	int count = MAX(MIN(end, w->count) - from, 0), r;

	if (count > 0)
		model_decode_reset(t->plan->model, from);
	p->parts[0] = (struct model_part){.sequence = from, .n = (int)one->prompt, .chosen = true};
	if ((r = pass(t, count > 0, one->ids, err)) < 0 || count == 0)
		return r;
	for (int i = 0; i < count; i++) {
		p->parts[i].sequence = from + i;
		if (i > 0)
			model_decode_copy(t->plan->model, from, from + i);
	}
	return choose(t, w, count, true, err);
}

static int begin_wave(struct trainer *t, const struct wave *w, struct error *err)
{
	int64_t generations = t->policy.generations;
	bool any = true;
	int r = 0;

	for (int from = 0, end; from < w->places && r == 0; from = end) {
		if ((r = any_goes_on(t, 1, &any, err)) < 0 || !any)
			return r;
		end = (int)MIN(from + generations - (w->first + from) % generations, w->places);
		r = begin_prompt(t, w, from, end, err);
	}
	return r;
}

static int run_wave(struct trainer *t, const struct wave *w, struct error *err)
{
	struct policy_work *p = &t->policy;
	int r = begin_wave(t, w, err);

	while (r == 0 && !p->abandoned) {
		int live = 0;
		bool any;

		for (int i = 0; i < w->count; i++) {
			const struct rollout *one = &p->rollouts[w->first + i];

			if (has_ended(t, one))
				continue;
			p->parts[live] = (struct model_part){.sequence = i, .n = 1, .chosen = true};
			p->next[live++] = one->ids[one->prompt + one->length - 1];
		}
		if ((r = any_goes_on(t, live, &any, err)) < 0 || !any)
			return r;
		r = pass(t, live, p->next, err);
		if (r == 0 && live > 0)
			r = choose(t, w, live, false, err);
	}
	return r;
}

/* ---- completions of prompts ---- */

/* p->generations completions of each prompt in t->rows, which are rows of data. */
static int begin_rollouts(struct trainer *t, const struct dataset *data, int64_t prompts, struct error *err)
{
	struct policy_work *p = &t->policy;

	p->count = 0;
	for (int64_t i = 0; i < prompts * p->generations; i++) {
		struct rollout *one = &p->rollouts[i];
		int32_t *ids = p->ids + i * t->max_row;
		struct dataset_row row;

		*one = (struct rollout){
		    .row = t->rows[i / p->generations], .ids = ids, .held_out = data != t->train};
		if (one->row < 0)
			continue;
		dataset_row(data, one->row, &row);
		one->prompt = prompt_length(&row);
		one->answer = row.ids + one->prompt;
		one->answers = row.length - one->prompt;
		if (one->prompt < 1 || one->prompt >= t->max_row)
			return error_set(err, -E2BIG,
			                 "a prompt of %lld tokens leaves no room for a completion",
			                 (long long)one->prompt);
		memcpy(ids, row.ids, (size_t)one->prompt * sizeof(*ids));
		p->count = i + 1;
	}
	return 0;
}

static int make(struct trainer *t, const struct dataset *data, int64_t prompts, struct error *err)
{
	int64_t all = prompts * t->policy.generations;
	int r;

	t->policy.abandoned = false;
	r = begin_rollouts(t, data, prompts, err);

	for (int64_t first = 0; first < all && r == 0 && !t->policy.abandoned; first += t->plan->sequences) {
		struct wave w = {.first = first, .places = (int)MIN(all - first, t->plan->sequences)};

		w.count = (int)MAX(MIN(t->policy.count - first, w.places), 0);
		r = run_wave(t, &w, err);
	}
	return r < 0 ? error_prefix(err, "completions") : 0;
}

int rollouts_make(struct trainer *t, int64_t number, struct error *err)
{
	sampler_step(&t->sampler, number, t->rows);
	t->policy.number = number;
	t->policy.generations = t->o.policy.generations;
	return make(t, t->train, train_prompts(&t->o), err);
}

int rollouts_hold_out(struct trainer *t, int64_t first, int64_t n, struct error *err)
{
	for (int64_t i = 0; i < n; i++) {
		int64_t row = first + i * t->world_size + t->rank;

		t->rows[i] = row < dataset_rows(t->eval) ? row : -1;
	}
	/* The same random numbers in every evaluation, and those of no step. */
	t->policy.number = -1;
	t->policy.generations = 1;
	return make(t, t->eval, n, err);
}

int rollouts_allocate(struct trainer *t, struct error *err)
{
	struct policy_work *p = &t->policy;
	size_t n = (size_t)train_completions(&t->o), most = (size_t)t->o.policy.max_tokens;

	if (!t->o.policy.generations)
		return 0;
	p->number = -1;
	p->rollouts = calloc(n, sizeof(*p->rollouts));
	p->ids = malloc(n * (size_t)t->max_row * sizeof(*p->ids));
	p->then = malloc(n * most * sizeof(*p->then));
	p->reference = malloc(n * most * sizeof(*p->reference));
	p->now = malloc(2 * most * sizeof(*p->now));
	p->losses = malloc(2 * (size_t)(t->o.micro_batch * t->max_row) * sizeof(*p->losses));
	p->rewards = calloc(2 * n, sizeof(*p->rewards));
	p->reward_parts.values = calloc(n * POLICY_PARTS_MOST, sizeof(*p->reward_parts.values));
	if (t->eval) {
		p->held_out.rollouts = calloc(n, sizeof(*p->rollouts));
		p->held_out.ids = malloc(n * (size_t)t->max_row * sizeof(*p->ids));
		p->held_out.rewards = calloc(n, sizeof(*p->rewards));
		p->held_out.reward_parts = calloc(n * POLICY_PARTS_MOST, sizeof(*p->held_out.reward_parts));
		if (!p->held_out.rollouts || !p->held_out.ids || !p->held_out.rewards ||
		    !p->held_out.reward_parts)
			return error_oom(err);
	}
	p->parts = calloc(n, sizeof(*p->parts));
	p->next = calloc(n, sizeof(*p->next));
	p->uniform = calloc(n, sizeof(*p->uniform));
	p->chosen = calloc(n, sizeof(*p->chosen));
	return p->rollouts && p->ids && p->then && p->reference && p->now && p->losses && p->rewards &&
	               p->reward_parts.values && p->parts && p->next && p->uniform && p->chosen
	           ? 0
	           : error_oom(err);
}

void rollouts_free(struct trainer *t)
{
	struct policy_work *p = &t->policy;

	free(p->rollouts);
	free(p->ids);
	free(p->then);
	free(p->reference);
	free(p->now);
	free(p->losses);
	free(p->rewards);
	free(p->reward_parts.values);
	free(p->held_out.rollouts);
	free(p->held_out.ids);
	free(p->held_out.rewards);
	free(p->held_out.reward_parts);
	free(p->parts);
	free(p->next);
	free(p->uniform);
	free(p->chosen);
}
