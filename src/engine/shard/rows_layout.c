/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the rows of a tied embedding's gradients travel by themselves (rows.c), and where. Nothing in this
 * file needs a device. */
#include "engine/shard/rows.h"

bool shard_gathers_rows(const struct shard *s)
{
	return s->rows.hidden > 0;
}

/* The same on all ranks. The sum that is no longer waited for moves the table, in fp32, twice; the gather
 * moves the rows once: where they are half of the table, a quarter of that. */
static bool pays(const struct shard *s, const struct model_parameter *table)
{
	double rows = (double)s->o.world_size * (double)s->o.max_tokens * (double)dtype_size(s->o.type);

	return 2 * rows <= (double)table->shape[0] * sizeof(float);
}

void rows_create(struct shard *s, const struct model_layout *layout)
{
	const struct model_unit *u = &layout->unit[0];

	if (s->o.strategy != SHARD_DDP || s->o.world_size == 1 || !s->tied || u->frozen ||
	    u->companion >= 0 || s->o.max_tokens == 0)
		return;
	for (int i = 0; i < layout->parameters; i++) {
		const struct model_parameter *p = &layout->parameter[i];

		if (p->unit == 0 && p->role != PARAMETER_EMBEDDING) {
			s->rows = (struct shard_rows){0};
			return; /* learned positions are summed with the table */
		}
		if (p->unit == 0 && pays(s, p))
			s->rows = (struct shard_rows){
			    .hidden = p->shape[1], .vocab = p->shape[0], .place = p->offset};
	}
}

void rows_place(struct shard *s, struct arena *a)
{
	struct shard_rows *w = &s->rows;
	size_t all = (size_t)s->o.world_size * (size_t)(s->o.max_tokens * w->hidden) * dtype_size(s->o.type);
	size_t ids = (size_t)s->o.max_tokens * sizeof(int32_t);

	if (!shard_gathers_rows(s))
		return;
	w->ids = arena_take(a, BUFFER_SCRATCH, ids, "tokens of a rank");
	w->bytes = all;
	w->all = all <= s->reusable_bytes
	             ? s->reusable
	             : arena_take(a, BUFFER_SCRATCH, all, "gradients of the ranks' tokens");
}
