/* SPDX-License-Identifier: Apache-2.0 */
/* The gated delta rule, forward, chunk by chunk (delta_chunk.h). A thread computes a head of a document. */
#include "engine/device/cpu/delta_chunk.h"

#include "engine/device/cpu/parallel.h"

/* o of the chunk, from the state before it. */
static void chunk_output(const struct delta_task *t, struct delta_scratch *s, const float *state, int head,
                         int64_t first, int n, void *o)
{
	const struct device_delta *d = t->d;

	multiply(s->o, s->lv, s->q, s->lk, 1, state, s->lv, n, s->lv, d->key_dim, 1, false);
	for (int i = 0; i < n; i++)
		scale_row(s->o + i * s->lv, s->o + i * s->lv, s->decay[i], s->lv);
	multiply(s->o, s->lv, s->p, CHUNK, 1, s->n, s->lv, n, s->lv, n, 1, true);
	for (int i = 0; i < n; i++)
		for (int j = 0; j < d->value_dim; j++)
			s_store(o, (first + i) * d->ld_o + head * d->value_dim + j, d->type,
			        s->o[i * s->lv + j]);
}

static void forward_head(const struct delta_task *t, struct delta_scratch *s, float *state, int64_t first,
                         int64_t end, int head, void *o)
{
	while (first < end) {
		int n = chunk_tokens(first, end);

		prepare_chunk(t, s, head, first, n);
		update_values(s, t->d, state, n);
		chunk_output(t, s, state, head, first, n, o);
		update_state(s, t->d, state, n);
		first += n;
	}
}

/* A head's state, dense, to rows lv apart, or back. */
static void load_state(float *to, const float *from, const struct device_delta *d, int lv)
{
	for (int i = 0; i < d->key_dim; i++) {
		memcpy(to + i * lv, from + i * d->value_dim, (size_t)d->value_dim * sizeof(float));
		memset(to + i * lv + d->value_dim, 0, (size_t)(lv - d->value_dim) * sizeof(float));
	}
}

static void store_state(float *to, const float *from, const struct device_delta *d, int lv)
{
	for (int i = 0; i < d->key_dim; i++)
		memcpy(to + i * d->value_dim, from + i * lv, (size_t)d->value_dim * sizeof(float));
}

/* states NULL: a document begins with zeros, and what is behind it is not wanted. */
void KERNEL(delta_forward)(struct device *dev, const struct device_delta *d, float *states,
                           const int32_t *sequences, void *o, const void *q, const void *k, const void *v,
                           const void *b, const void *a)
{
	const struct delta_task t = {d, q, k, v, b, a};
	size_t floats = delta_thread_floats(d->key_dim, d->value_dim, false),
	       room = round_up(floats * sizeof(float), CACHE_LINE);
	char *scratch = device_scratch(dev, room * (size_t)dev->threads, "delta_forward");
	int64_t tasks = (int64_t)d->documents * d->value_heads, size = (int64_t)d->key_dim * d->value_dim;

	if (!scratch)
		return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads) if (tasks > 1)
	for (int64_t i = 0; i < tasks; i++) {
		int document = (int)(i / d->value_heads), head = (int)(i % d->value_heads);
		float *base = (float *)(scratch + room * (size_t)omp_get_thread_num());
		struct delta_scratch s = delta_scratch(base, d, false);
		float *state = base + floats - (size_t)d->key_dim * (size_t)s.lv, *kept = NULL;

		memset(state, 0, (size_t)d->key_dim * (size_t)s.lv * sizeof(float));
		if (states) {
			kept = states +
			       ((int64_t)sequences[d->host_starts[document]] * d->value_heads + head) * size;
			load_state(state, kept, d, s.lv);
		}
		forward_head(&t, &s, state, d->host_starts[document], d->host_starts[document + 1], head, o);
		if (kept)
			store_state(kept, state, d, s.lv);
	}
}
