/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes, decodes and releases any message by its table of fields. */
#include "wire/message.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

enum { WHERE_MAX = 200, WORDS_MAX = 300 };

static const char VERSION[] = "version";

/* A field's place in the struct, as what it is. */
#define AT(type, value, offset) (*(type *)((char *)(value) + (offset)))
#define IN(type, value, offset) (*(type const *)((const char *)(value) + (offset)))

static const struct field *find_field(const struct message *m, const char *name)
{
	for (size_t i = 0; i < m->count; i++) {
		const struct field *f = &m->fields[i];

		if (f->type == FIELD_MEMBERS)
			f = find_field(f->message, name);
		else if (strcmp(f->name, name) != 0)
			f = NULL;
		if (f)
			return f;
	}
	return NULL;
}

int message_word(const char *const *names, const char *word)
{
	for (int i = 0; names[i]; i++)
		if (strcmp(names[i], word) == 0)
			return i;
	return -1;
}

/* ---- encoding ---- */

static json_t *encode_object(const struct message *m, const void *value);

static bool is_absent(const struct field *f, const void *value)
{
	switch (f->type) {
	case FIELD_STRING:
		return !IN(char *, value, f->offset);
	case FIELD_INT:
	case FIELD_COUNT:
		return IN(int64_t, value, f->offset) == f->absent;
	case FIELD_NUMBER:
		return !isfinite(IN(double, value, f->offset)) ||
		       (f->absent != FIELD_NAN && IN(double, value, f->offset) == (double)f->absent);
	case FIELD_BOOL:
		return !IN(bool, value, f->offset);
	case FIELD_ENUM:
		return IN(int, value, f->offset) == (int)f->absent;
	case FIELD_INTS:
	case FIELD_STRUCTS:
		return IN(size_t, value, f->count_offset) == 0;
	case FIELD_STRINGS:
	case FIELD_STRUCT:
	case FIELD_MEMBERS:
	case FIELD_CODED:
	case FIELD_OBJECT:
		return !IN(void *, value, f->offset);
	}
	return true;
}

static json_t *encode_ints(const int64_t *list, size_t count)
{
	_cleanup_json_ json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(array, json_integer(list[i])) < 0)
			return NULL;
	return steal_pointer(array);
}

static json_t *encode_strings(char *const *list)
{
	_cleanup_json_ json_t *array = json_array();

	for (; list && *list; list++)
		if (json_array_append_new(array, **list ? json_string(*list) : json_null()) < 0)
			return NULL;
	return steal_pointer(array);
}

static json_t *encode_structs(const struct message *m, const char *list, size_t count)
{
	_cleanup_json_ json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(array, encode_object(m, list + i * m->size)) < 0)
			return NULL;
	return steal_pointer(array);
}

static json_t *encode_field(const struct field *f, const void *value)
{
	switch (f->type) {
	case FIELD_STRING:
		return json_string(IN(char *, value, f->offset));
	case FIELD_INT:
	case FIELD_COUNT:
		return json_integer(IN(int64_t, value, f->offset));
	case FIELD_NUMBER:
		return json_real(IN(double, value, f->offset));
	case FIELD_BOOL:
		return json_boolean(IN(bool, value, f->offset));
	case FIELD_ENUM:
		return json_string(f->names[IN(int, value, f->offset)]);
	case FIELD_INTS:
		return encode_ints(IN(int64_t *, value, f->offset), IN(size_t, value, f->count_offset));
	case FIELD_STRINGS:
		return encode_strings(IN(char **, value, f->offset));
	case FIELD_STRUCT:
	case FIELD_MEMBERS:
		return encode_object(f->message, IN(void *, value, f->offset));
	case FIELD_STRUCTS:
		return encode_structs(f->message, IN(char *, value, f->offset),
		                      IN(size_t, value, f->count_offset));
	case FIELD_CODED:
		return f->codec->encode(IN(void *, value, f->offset));
	case FIELD_OBJECT:
		return json_incref(IN(json_t *, value, f->offset));
	}
	return NULL;
}

static json_t *encode_object(const struct message *m, const void *value)
{
	_cleanup_json_ json_t *json = json_object();

	for (size_t i = 0; i < m->count; i++) {
		const struct field *f = &m->fields[i];
		bool absent =
		    (f->presence == FIELD_OPTIONAL || f->presence == FIELD_NULL) && is_absent(f, value);

		if (absent && f->presence == FIELD_OPTIONAL)
			continue;
		if (f->type == FIELD_MEMBERS) {
			_cleanup_json_ json_t *members = encode_field(f, value);

			if (!members || json_object_update(json, members) < 0)
				return NULL;
			continue;
		}
		if (json_object_set_new(json, f->name, absent ? json_null() : encode_field(f, value)) < 0)
			return NULL;
	}
	return steal_pointer(json);
}

json_t *message_encode(const struct message *m, const void *value)
{
	_cleanup_json_ json_t *json = encode_object(m, value);

	if (json && m->strictness == MESSAGE_VERSIONED && !find_field(m, VERSION) &&
	    json_object_set_new(json, VERSION, json_string(DTRAIN_VERSION)) < 0)
		return NULL;
	return steal_pointer(json);
}

json_t *message_encode_list(const struct message *m, const void *list, size_t count)
{
	_cleanup_json_ json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(array, message_encode(m, (const char *)list + i * m->size)) < 0)
			return NULL;
	return steal_pointer(array);
}

/* ---- decoding ---- */

static const char *const type_words[] = {
    [FIELD_STRING] = "a string",         [FIELD_INT] = "an integer",
    [FIELD_COUNT] = "an integer",        [FIELD_NUMBER] = "a number",
    [FIELD_BOOL] = "true or false",      [FIELD_ENUM] = "a string",
    [FIELD_INTS] = "a list of integers", [FIELD_STRINGS] = "a list of strings",
    [FIELD_STRUCT] = "an object",        [FIELD_STRUCTS] = "a list of objects",
    [FIELD_MEMBERS] = "an object",       [FIELD_CODED] = "an object",
    [FIELD_OBJECT] = "an object",
};

/* Of a message; each has what the one before has. */
enum leniency {
	EXACT,
	LENIENT, /* unknown fields are left out */
	OPEN,    /* a word that is not known is field.other */
};

/* `where` begins every error: "report: ranks[1]." */
static int decode_object(const struct message *m, const json_t *json, void *value, const char *where,
                         enum leniency leniency, struct error *err);

static int wrong_type(const struct field *f, const char *where, struct error *err)
{
	return error_set(err, -EINVAL, "%s%s: %s is needed", where, f->name, type_words[f->type]);
}

static int check_range(const struct field *f, int64_t value, const char *where, struct error *err)
{
	if ((f->min == 0 && f->max == 0) || (value >= f->min && value <= f->max))
		return 0;
	return error_set(err, -ERANGE, "%s%s: %lld is out of range; it has to be within %lld and %lld", where,
	                 f->name, (long long)value, (long long)f->min, (long long)f->max);
}

static int decode_string(const struct field *f, const json_t *json, void *value, const char *where,
                         struct error *err)
{
	size_t len = json_string_length(json);
	char *copy;

	if (!json_is_string(json))
		return wrong_type(f, where, err);
	if (strlen(json_string_value(json)) != len)
		return error_set(err, -EINVAL, "%s%s: a NUL byte in a string", where, f->name);
	if ((int64_t)len < f->min)
		return error_set(err, -EINVAL, "%s%s: it is empty", where, f->name);
	if (f->max > 0 && (int64_t)len > f->max)
		return error_set(err, -EINVAL, "%s%s: %zu bytes; at most %lld are possible", where, f->name,
		                 len, (long long)f->max);
	copy = strdup(json_string_value(json));
	if (!copy)
		return error_oom(err);
	AT(char *, value, f->offset) = copy;
	return 0;
}

static int decode_int(const struct field *f, const json_t *json, void *value, const char *where,
                      struct error *err)
{
	int64_t n = json_integer_value(json);

	if (f->type == FIELD_COUNT && json_is_array(json))
		n = (int64_t)json_array_size(json);
	else if (!json_is_integer(json))
		return wrong_type(f, where, err);
	AT(int64_t, value, f->offset) = n;
	return check_range(f, n, where, err);
}

static int decode_enum(const struct field *f, const json_t *json, void *value, const char *where,
                       enum leniency leniency, struct error *err)
{
	const char *word = json_string_value(json);
	char words[WORDS_MAX] = "";
	int index;

	if (!word)
		return wrong_type(f, where, err);
	index = message_word(f->names, word);
	if (index < 0 && leniency == OPEN && f->other > 0)
		index = f->other;
	AT(int, value, f->offset) = MAX(index, 0);
	if (index >= 0)
		return 0;
	for (int i = 0; f->names[i]; i++)
		snprintf(words + strlen(words), sizeof(words) - strlen(words), "%s%s", i ? ", " : "",
		         f->names[i]);
	return error_set(err, -EINVAL, "%s%s: \"%.60s\" is not known; expected one of %s", where, f->name,
	                 word, words);
}

static int decode_ints(const struct field *f, const json_t *json, void *value, const char *where,
                       struct error *err)
{
	size_t count = json_array_size(json);
	int64_t *list = calloc(count + 1, sizeof(*list));
	int r = 0;

	if (!list)
		return error_oom(err);
	AT(int64_t *, value, f->offset) = list;
	AT(size_t, value, f->count_offset) = count;
	if (!json_is_array(json))
		return wrong_type(f, where, err);
	for (size_t i = 0; i < count && r == 0; i++) {
		if (!json_is_integer(json_array_get(json, i)))
			return wrong_type(f, where, err);
		list[i] = json_integer_value(json_array_get(json, i));
		r = check_range(f, list[i], where, err);
	}
	return r;
}

static int decode_strings(const struct field *f, const json_t *json, void *value, const char *where,
                          struct error *err)
{
	size_t count = json_array_size(json);
	char **list = calloc(count + 1, sizeof(*list));

	if (!list)
		return error_oom(err);
	AT(char **, value, f->offset) = list;
	if (!json_is_array(json))
		return wrong_type(f, where, err);
	for (size_t i = 0; i < count; i++) {
		const json_t *element = json_array_get(json, i);
		const char *s = json_is_null(element) ? "" : json_string_value(element);

		if (!s || (*s && strlen(s) != json_string_length(element)))
			return wrong_type(f, where, err);
		list[i] = strdup(s);
		if (!list[i])
			return error_oom(err);
	}
	return 0;
}

static int decode_struct(const struct field *f, const json_t *json, void *value, const char *where,
                         enum leniency leniency, struct error *err)
{
	void *inner = calloc(1, f->message->size);
	char place[WHERE_MAX];

	if (!inner)
		return error_oom(err);
	AT(void *, value, f->offset) = inner;
	if (!json_is_object(json))
		return wrong_type(f, where, err);
	snprintf(place, sizeof(place), "%s%s.", where, f->name);
	return decode_object(f->message, json, inner, place, leniency, err);
}

/* The fields of the inner message are those of `json` itself, where the first of them is there. */
static int decode_members(const struct field *f, const json_t *json, void *value, const char *where,
                          enum leniency leniency, struct error *err)
{
	const json_t *first = json_object_get(json, f->message->fields[0].name);
	void *inner;

	if (!first || json_is_null(first))
		return 0;
	inner = calloc(1, f->message->size);
	if (!inner)
		return error_oom(err);
	AT(void *, value, f->offset) = inner;
	return decode_object(f->message, json, inner, where, MAX(leniency, LENIENT), err);
}

static int decode_structs(const struct field *f, const json_t *json, void *value, const char *where,
                          enum leniency leniency, struct error *err)
{
	size_t count = json_array_size(json);
	char *list = calloc(count + 1, f->message->size), place[WHERE_MAX];
	int r = 0;

	if (!list)
		return error_oom(err);
	AT(void *, value, f->offset) = list;
	AT(size_t, value, f->count_offset) = count;
	if (!json_is_array(json))
		return wrong_type(f, where, err);
	if (f->max > 0 && (int64_t)count > f->max)
		return error_set(err, -EINVAL, "%s%s: %zu elements; at most %lld are possible", where,
		                 f->name, count, (long long)f->max);
	for (size_t i = 0; i < count && r == 0; i++) {
		if (!json_is_object(json_array_get(json, i)))
			return wrong_type(f, where, err);
		snprintf(place, sizeof(place), "%s%s[%zu].", where, f->name, i);
		r = decode_object(f->message, json_array_get(json, i), list + i * f->message->size, place,
		                  leniency, err);
	}
	return r;
}

static int decode_coded(const struct field *f, const json_t *json, void *value, const char *where,
                        enum leniency leniency, struct error *err)
{
	char place[WHERE_MAX];

	if (!json_is_object(json))
		return wrong_type(f, where, err);
	snprintf(place, sizeof(place), "%s%s", where, f->name);
	return f->codec->decode(json, place, leniency >= LENIENT, &AT(void *, value, f->offset), err);
}

static int decode_field(const struct field *f, const json_t *json, void *value, const char *where,
                        enum leniency leniency, struct error *err)
{
	switch (f->type) {
	case FIELD_STRING:
		return decode_string(f, json, value, where, err);
	case FIELD_INT:
	case FIELD_COUNT:
		return decode_int(f, json, value, where, err);
	case FIELD_NUMBER:
		AT(double, value, f->offset) = json_number_value(json);
		return json_is_number(json) ? 0 : wrong_type(f, where, err);
	case FIELD_BOOL:
		AT(bool, value, f->offset) = json_is_true(json);
		return json_is_boolean(json) ? 0 : wrong_type(f, where, err);
	case FIELD_ENUM:
		return decode_enum(f, json, value, where, leniency, err);
	case FIELD_INTS:
		return decode_ints(f, json, value, where, err);
	case FIELD_STRINGS:
		return decode_strings(f, json, value, where, err);
	case FIELD_STRUCT:
		return decode_struct(f, json, value, where, leniency, err);
	case FIELD_STRUCTS:
		return decode_structs(f, json, value, where, leniency, err);
	case FIELD_MEMBERS:
		return decode_members(f, json, value, where, leniency, err);
	case FIELD_CODED:
		return decode_coded(f, json, value, where, leniency, err);
	case FIELD_OBJECT:
		if (!json_is_object(json))
			return wrong_type(f, where, err);
		AT(json_t *, value, f->offset) = json_incref((json_t *)json);
		return 0;
	}
	return 0;
}

static int set_absent(const struct field *f, void *value, const char *where, struct error *err)
{
	if (f->presence == FIELD_REQUIRED)
		return error_set(err, -EINVAL, "%s%s: missing; %s is needed", where, f->name,
		                 type_words[f->type]);
	if (f->type == FIELD_INT || f->type == FIELD_COUNT)
		AT(int64_t, value, f->offset) = f->absent;
	else if (f->type == FIELD_NUMBER)
		AT(double, value, f->offset) = f->absent == FIELD_NAN ? NAN : (double)f->absent;
	else if (f->type == FIELD_ENUM)
		AT(int, value, f->offset) = (int)f->absent;
	return 0;
}

static int decode_object(const struct message *m, const json_t *json, void *value, const char *where,
                         enum leniency leniency, struct error *err)
{
	const char *name;
	json_t *member;
	int r = 0;

	for (size_t i = 0; i < m->count && r == 0; i++) {
		const struct field *f = &m->fields[i];

		member = f->type == FIELD_MEMBERS ? (json_t *)json : json_object_get(json, f->name);
		if (!member || json_is_null(member))
			r = set_absent(f, value, where, err);
		else
			r = decode_field(f, member, value, where, leniency, err);
	}
	if (r < 0 || leniency >= LENIENT)
		return r;
	json_object_foreach((json_t *)json, name, member)
	{
		/* A message inside of another has a version, too, where it is one that is also sent alone. */
		if (!find_field(m, name) && !(m->strictness == MESSAGE_VERSIONED && str_eq(name, VERSION)))
			return error_set(err, -EINVAL, "%s%.60s: unknown field", where, name);
	}
	return 0;
}

static enum leniency leniency_of(const struct message *m, const json_t *json)
{
	switch (m->strictness) {
	case MESSAGE_VERSIONED:
		return str_eq(json_get_string(json, VERSION, NULL), DTRAIN_VERSION) ? EXACT : LENIENT;
	case MESSAGE_STRICT:
		return EXACT;
	case MESSAGE_OPEN:
		return OPEN;
	}
	return EXACT;
}

int message_decode(const struct message *m, const json_t *json, void *value, struct error *err)
{
	char where[WHERE_MAX];
	int r;

	memset(value, 0, m->size);
	if (!json_is_object(json))
		return error_set(err, -EINVAL, "%s: an object is needed", m->name);
	snprintf(where, sizeof(where), "%s: ", m->name);
	r = decode_object(m, json, value, where, leniency_of(m, json), err);
	if (r < 0)
		message_release(m, value);
	return r;
}

int message_decode_list(const struct message *m, const json_t *json, void **list, size_t *count,
                        struct error *err)
{
	size_t n = json_array_size(json);
	char *values = calloc(n + 1, m->size);
	int r = 0;

	*list = NULL;
	*count = 0;
	if (!values)
		return error_oom(err);
	if (!json_is_array(json))
		r = error_set(err, -EINVAL, "%s: a list of objects is needed", m->name);
	for (size_t i = 0; i < n && r == 0; i++)
		r = message_decode(m, json_array_get(json, i), values + i * m->size, err);
	if (r < 0) {
		message_free_list(m, values, n);
		return r;
	}
	*list = values;
	*count = n;
	return 0;
}

/* ---- release ---- */

void message_free_list(const struct message *m, void *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++)
		message_release(m, (char *)list + i * m->size);
	free(list);
}

void message_release(const struct message *m, void *value)
{
	for (size_t i = 0; i < m->count; i++) {
		const struct field *f = &m->fields[i];
		void *pointer;

		switch (f->type) {
		case FIELD_STRING:
		case FIELD_INTS:
			free(AT(void *, value, f->offset));
			break;
		case FIELD_STRINGS:
			str_list_free(AT(char **, value, f->offset));
			break;
		case FIELD_STRUCT:
		case FIELD_MEMBERS:
			pointer = AT(void *, value, f->offset);
			message_free_list(f->message, pointer, pointer ? 1 : 0);
			break;
		case FIELD_STRUCTS:
			message_free_list(f->message, AT(void *, value, f->offset),
			                  AT(size_t, value, f->count_offset));
			break;
		case FIELD_CODED:
			f->codec->release(AT(void *, value, f->offset));
			break;
		case FIELD_OBJECT:
			json_decref(AT(json_t *, value, f->offset));
			break;
		default:
			break;
		}
	}
	memset(value, 0, m->size);
}
