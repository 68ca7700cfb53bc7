/* SPDX-License-Identifier: Apache-2.0 */
/* A number that stands for what a message says: FNV-1a over its fields, in the order of its table. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "wire/message.h"

static const uint64_t START = 0xcbf29ce484222325, PRIME = 0x100000001b3;

#define IN(type, value, offset) (*(type const *)((const char *)(value) + (offset)))

static uint64_t add(uint64_t digest, const void *data, size_t len)
{
	const unsigned char *bytes = data;

	for (size_t i = 0; i < len; i++)
		digest = (digest ^ bytes[i]) * PRIME;
	return digest;
}

static uint64_t add_int(uint64_t digest, int64_t n)
{
	return add(digest, &n, sizeof(n));
}

/* With its end, which no string has within. */
static uint64_t add_string(uint64_t digest, const char *text)
{
	digest = add_int(digest, text != NULL);
	return text ? add(digest, text, strlen(text) + 1) : digest;
}

static uint64_t add_strings(uint64_t digest, char *const *list)
{
	for (; list && *list; list++)
		digest = add_string(digest, *list);
	return add_int(digest, 0);
}

/* Without memory it is another digest than with it. */
static uint64_t add_json(uint64_t digest, json_t *taken)
{
	char *text = taken ? json_dumps(taken, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

	digest = add_string(digest, text);
	free(text);
	json_decref(taken);
	return digest;
}

static uint64_t add_object(uint64_t digest, const struct message *m, const void *value);

static uint64_t add_structs(uint64_t digest, const struct message *m, const char *list, size_t count)
{
	digest = add_int(digest, (int64_t)count);
	for (size_t i = 0; list && i < count; i++)
		digest = add_object(digest, m, list + i * m->size);
	return digest;
}

static uint64_t add_coded(uint64_t digest, const struct field_codec *codec, const void *member)
{
	return member ? add_json(digest, codec->encode(member)) : add_int(digest, 0);
}

static uint64_t add_field(uint64_t digest, const struct field *f, const void *value)
{
	void *member;

	switch (f->type) {
	case FIELD_STRING:
		return add_string(digest, IN(char *, value, f->offset));
	case FIELD_INT:
	case FIELD_COUNT:
		return add_int(digest, IN(int64_t, value, f->offset));
	case FIELD_NUMBER:
		return add(digest, &IN(double, value, f->offset), sizeof(double));
	case FIELD_BOOL:
		return add_int(digest, IN(bool, value, f->offset));
	case FIELD_ENUM:
		return add_int(digest, IN(int, value, f->offset));
	case FIELD_INTS:
		digest = add_int(digest, (int64_t)IN(size_t, value, f->count_offset));
		return add(digest, IN(int64_t *, value, f->offset),
		           IN(size_t, value, f->count_offset) * sizeof(int64_t));
	case FIELD_STRINGS:
		return add_strings(digest, IN(char **, value, f->offset));
	case FIELD_STRUCT:
	case FIELD_MEMBERS:
		member = IN(void *, value, f->offset);
		return add_structs(digest, f->message, member, member ? 1 : 0);
	case FIELD_STRUCTS:
		return add_structs(digest, f->message, IN(char *, value, f->offset),
		                   IN(size_t, value, f->count_offset));
	case FIELD_CODED:
		return add_coded(digest, f->codec, IN(void *, value, f->offset));
	case FIELD_OBJECT:
		return add_json(digest, json_incref(IN(json_t *, value, f->offset)));
	}
	return digest;
}

static uint64_t add_object(uint64_t digest, const struct message *m, const void *value)
{
	for (size_t i = 0; i < m->count; i++)
		if (!m->fields[i].varies)
			digest = add_field(digest, &m->fields[i], value);
	return digest;
}

uint64_t message_digest(const struct message *m, const void *value)
{
	return add_object(START, m, value);
}
