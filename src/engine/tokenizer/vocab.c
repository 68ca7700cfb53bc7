/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of a model: reads it, and finds ids by string with open addressing. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

uint64_t tokenizer_hash_bytes(const void *data, size_t len, uint64_t seed)
{
	const unsigned char *p = data;
	uint64_t h = seed ^ (len * 0x9e3779b97f4a7c15u), w;

	while (len >= 8) {
		memcpy(&w, p, 8);
		h = (h ^ w) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
		p += 8;
		len -= 8;
	}
	if (len) {
		w = 0;
		memcpy(&w, p, len);
		h = (h ^ w) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	h *= 0xc4ceb9fe1a85ec53u;
	return h ^ h >> 29;
}

int strmap_init(struct strmap *m, size_t entries)
{
	size_t n = 16;

	while (n < entries * 2)
		n *= 2;
	m->slots = malloc(n * sizeof(*m->slots));
	if (!m->slots)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		m->slots[i].id = TOKEN_NONE;
	m->mask = (uint32_t)(n - 1);
	return 0;
}

static int32_t map_find(const struct strmap *m, const struct token_span *span, const char *pool,
                        const char *s, size_t len)
{
	uint32_t h = (uint32_t)tokenizer_hash_bytes(s, len, 0);

	for (uint32_t i = h & m->mask;; i = (i + 1) & m->mask) {
		int32_t id = m->slots[i].id;

		if (id == TOKEN_NONE)
			return TOKEN_NONE;
		if (m->slots[i].hash == h && span[id].len == len && !memcmp(pool + span[id].off, s, len))
			return id;
	}
}

static void map_put(struct strmap *m, const char *s, size_t len, int32_t id)
{
	uint32_t h = (uint32_t)tokenizer_hash_bytes(s, len, 0);
	uint32_t i = h & m->mask;

	while (m->slots[i].id != TOKEN_NONE)
		i = (i + 1) & m->mask;
	m->slots[i].hash = h;
	m->slots[i].id = id;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t len)
{
	return v->size ? map_find(&v->by_string, v->token, v->pool.data, s, len) : TOKEN_NONE;
}

int32_t vocab_find_raw(const struct vocab *v, const char *s, size_t len)
{
	return v->size ? map_find(&v->by_raw, v->raw, v->raw_pool.data, s, len) : TOKEN_NONE;
}

/* The highest id + 1. Ids may have gaps, but a vocabulary with almost only gaps is refused, since the table
 * of its ids would need much memory. */
static int vocab_size(const json_t *object, const char *where, int32_t *size, struct error *err)
{
	json_int_t limit = (json_int_t)json_object_size(object) * 2 + 65536;
	const char *key;
	json_t *value;

	*size = 0;
	json_object_foreach((json_t *)object, key, value)
	{
		json_int_t id = json_integer_value(value);

		if (!json_is_integer(value) || id < 0)
			return error_set(err, -EINVAL,
			                 "%s: model.vocab: the id of \"%s\" is not a whole number from 0 on",
			                 where, key);
		if (id >= limit)
			return error_set(
			    err, -EINVAL,
			    "%s: model.vocab: \"%s\" has the id %lld, far beyond the %zu tokens there are",
			    where, key, (long long)id, json_object_size(object));
		if (id >= *size)
			*size = (int32_t)id + 1;
	}
	return 0;
}

static int vocab_fill(struct vocab *v, const json_t *object, const char *where, struct error *err)
{
	const char *key;
	json_t *value;

	for (int32_t i = 0; i < v->size; i++)
		v->token[i].len = v->raw[i].len = UINT32_MAX;
	json_object_foreach((json_t *)object, key, value)
	{
		int32_t id = (int32_t)json_integer_value(value);
		size_t len = strlen(key), at = v->raw_pool.len;

		if (v->token[id].len != UINT32_MAX)
			return error_set(err, -EINVAL,
			                 "%s: model.vocab: \"%s\" and \"%s\" have the same id %d; each token "
			                 "needs its own",
			                 where, v->pool.data + v->token[id].off, key, id);
		if (v->pool.len + len >= UINT32_MAX / 2)
			return error_set(err, -EFBIG, "%s: model.vocab: more than 2 GiB of tokens", where);
		v->token[id] = (struct token_span){(uint32_t)v->pool.len, (uint32_t)len};
		strbuf_add(&v->pool, key, len + 1);
		if (bytelevel_decode(&v->raw_pool, key, len)) {
			v->raw[id] = (struct token_span){(uint32_t)at, (uint32_t)(v->raw_pool.len - at)};
		}
		if (v->pool.failed || v->raw_pool.failed)
			return error_oom(err);
	}
	strbuf_addc(&v->raw_pool, 0);
	for (int32_t i = 0; i < v->size; i++) {
		if (v->token[i].len != UINT32_MAX)
			map_put(&v->by_string, v->pool.data + v->token[i].off, v->token[i].len, i);
		if (v->raw[i].len != UINT32_MAX)
			map_put(&v->by_raw, v->raw_pool.data + v->raw[i].off, v->raw[i].len, i);
	}
	return v->raw_pool.failed ? error_oom(err) : 0;
}

int vocab_parse(struct vocab *v, const json_t *object, const char *where, struct error *err)
{
	int r;

	if (!json_is_object(object))
		return error_set(err, -EINVAL, "%s: model.vocab: %s; an object of token: id is needed", where,
		                 object ? "not an object" : "missing");
	r = vocab_size(object, where, &v->size, err);
	if (r < 0 || !v->size)
		return r;
	v->token = calloc((size_t)v->size, sizeof(*v->token));
	v->raw = calloc((size_t)v->size, sizeof(*v->raw));
	if (!v->token || !v->raw || strmap_init(&v->by_string, json_object_size(object)) < 0 ||
	    strmap_init(&v->by_raw, json_object_size(object)) < 0)
		return error_oom(err);
	return vocab_fill(v, object, where, err);
}

void vocab_release(struct vocab *v)
{
	strbuf_free(&v->pool);
	strbuf_free(&v->raw_pool);
	free(v->token);
	free(v->raw);
	free(v->by_string.slots);
	free(v->by_raw.slots);
}
