/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the buffers of a plan in a first pass, and places them in one piece of memory in a second pass. */
#include "engine/memory/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const class_names[BUFFER_CLASSES] = {[BUFFER_WEIGHTS] = "weights",
                                                        [BUFFER_GRADIENTS] = "gradients",
                                                        [BUFFER_OPTIMIZER] = "optimizer",
                                                        [BUFFER_SLOTS] = "slots",
                                                        [BUFFER_ACTIVATIONS] = "activations",
                                                        [BUFFER_LOGITS] = "logits",
                                                        [BUFFER_SCRATCH] = "scratch",
                                                        [BUFFER_INPUT] = "input",
                                                        [BUFFER_CACHE] = "cache"};

const char *buffer_class_name(enum buffer_class c)
{
	return class_names[c];
}

static struct arena_buffer *arena_add(struct arena *a)
{
	if (a->n == a->cap) {
		size_t cap = a->cap ? 2 * a->cap : 64;
		struct arena_buffer *grown = realloc(a->buffers, cap * sizeof(*grown));

		if (!grown) {
			a->failed = true;
			return NULL;
		}
		a->buffers = grown;
		a->cap = cap;
	}
	return &a->buffers[a->n++];
}

void *arena_take(struct arena *a, enum buffer_class class_, size_t bytes, const char *fmt, ...)
{
	size_t offset = a->used;

	if (bytes == 0)
		return NULL;
	a->used += arena_round(bytes);
	if (!a->base) {
		struct arena_buffer *b = arena_add(a);
		va_list ap;

		if (!b)
			return NULL;
		va_start(ap, fmt);
		vsnprintf(b->name, sizeof(b->name), fmt, ap);
		va_end(ap);
		b->class_ = class_;
		b->offset = offset;
		b->bytes = bytes;
		return NULL;
	}
	return a->base + offset;
}

void *arena_at(const struct arena *a, size_t offset)
{
	return a->base ? a->base + offset : NULL;
}

void arena_note(struct arena *a, enum buffer_class class_, size_t bytes, const char *name)
{
	struct arena_buffer *b;

	if (a->base || !(b = arena_add(a)))
		return;
	snprintf(b->name, sizeof(b->name), "%s", name);
	b->class_ = class_;
	b->offset = SIZE_MAX;
	b->bytes = bytes;
	a->extra += bytes;
}

void arena_bind(struct arena *a, void *base)
{
	a->base = base;
	a->used = 0;
}

void arena_free(struct arena *a)
{
	free(a->buffers);
	*a = (struct arena){0};
}

size_t arena_total(const struct arena *a)
{
	return a->used + a->extra;
}

int arena_to_json(const struct arena *a, json_t **out, struct error *err)
{
	json_t *buffers = json_array(), *classes = json_object(), *all = NULL;
	size_t sums[BUFFER_CLASSES] = {0};
	int failed = 0;

	for (size_t i = 0; i < a->n; i++) {
		const struct arena_buffer *b = &a->buffers[i];
		json_t *o = json_pack("{s:s,s:s,s:I}", "name", b->name, "class", class_names[b->class_],
		                      "bytes", (json_int_t)b->bytes);

		if (b->offset != SIZE_MAX)
			failed |= json_object_set_new(o, "offset", json_integer((json_int_t)b->offset));
		failed |= json_array_append_new(buffers, o);
		sums[b->class_] += b->bytes;
	}
	for (int c = 0; c < BUFFER_CLASSES; c++)
		failed |= json_object_set_new(classes, class_names[c], json_integer((json_int_t)sums[c]));
	all = json_pack("{s:I,s:o,s:o}", "total", (json_int_t)arena_total(a), "classes", classes, "buffers",
	                buffers);
	if (!all || failed || a->failed) {
		json_decref(all);
		return error_oom(err);
	}
	*out = all;
	return 0;
}
