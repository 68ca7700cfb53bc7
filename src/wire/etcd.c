/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of etcd's gateway. */
#include "wire/etcd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *encode(const char *text)
{
	size_t len = strlen(text), n = 0;
	const unsigned char *in = (const unsigned char *)text;
	char *out = malloc(len / 3 * 4 + 5);

	if (!out)
		return NULL;
	for (size_t i = 0; i < len; i += 3) {
		size_t have = MIN(len - i, 3);
		uint32_t bits = (uint32_t)in[i] << 16 | (have > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
		                (have > 2 ? in[i + 2] : 0);

		for (size_t k = 0; k < 4; k++)
			out[n++] = k <= have ? digits[bits >> (18 - 6 * k) & 63] : '=';
	}
	out[n] = '\0';
	return out;
}

/* NULL: not base64 of a text, or out of memory. */
static char *decode(const char *text)
{
	size_t len = strlen(text), n = 0;
	char *out = malloc(len / 4 * 3 + 1);
	uint32_t bits = 0;
	bool right = out && len % 4 == 0;

	for (size_t i = 0; right && i < len; i++) {
		const char *digit = strchr(digits, text[i]);
		size_t padding = i + 2 >= len ? strspn(text + i, "=") : 0;

		if (padding > 0 && i + padding == len) {
			/* One byte is in two digits, two are in three. */
			bits <<= 6 * padding;
			out[n++] = (char)(bits >> 16);
			if (padding == 1)
				out[n++] = (char)(bits >> 8);
			break;
		}
		right = digit != NULL;
		if (!right)
			break;
		bits = bits << 6 | (uint32_t)(digit - digits);
		if (i % 4 < 3)
			continue;
		for (int k = 16; k >= 0; k -= 8)
			out[n++] = (char)(bits >> k);
		bits = 0;
	}
	right = right && memchr(out, '\0', n) == NULL;
	if (right)
		out[n] = '\0';
	else {
		free(out);
		out = NULL;
	}
	return out;
}

/* A member that is the base64 of a text; takes neither. */
static int set_text(json_t *object, const char *member, const char *text)
{
	_cleanup_free_ char *encoded = encode(text);

	return encoded ? json_object_set_new(object, member, json_string(encoded)) : -1;
}

static int set_number(json_t *object, const char *member, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)value);
	return json_object_set_new(object, member, json_string(text));
}

/* What is 0 is left out by the gateway. */
static int read_number(const json_t *object, const char *member, int64_t *out, struct error *err)
{
	const json_t *value = json_object_get(object, member);

	*out = 0;
	if (!value)
		return 0;
	if (json_is_integer(value)) {
		*out = json_integer_value(value);
		return 0;
	}
	if (!json_is_string(value) || str_to_int64(json_string_value(value), INT64_MIN, INT64_MAX, out) < 0)
		return error_set(err, -EINVAL, "etcd: %s: not a number", member);
	return 0;
}

void etcd_pairs_clear(struct etcd_pairs *pairs)
{
	for (size_t i = 0; i < pairs->count; i++) {
		free(pairs->list[i].key);
		free(pairs->list[i].value);
	}
	free(pairs->list);
	*pairs = (struct etcd_pairs){0};
}

json_t *etcd_range_request(const char *key, const char *end, int64_t limit)
{
	_cleanup_json_ json_t *request = json_object();

	if (!request || set_text(request, "key", key) < 0 ||
	    (end && set_text(request, "range_end", end) < 0) ||
	    (limit > 0 && set_number(request, "limit", limit) < 0))
		return NULL;
	return steal_pointer(request);
}

static int read_pair(const json_t *json, struct etcd_pair *out, struct error *err)
{
	out->key = decode(json_get_string(json, "key", ""));
	out->value = decode(json_get_string(json, "value", ""));
	if (!out->key || !*out->key || !out->value)
		return error_set(err, -EINVAL, "etcd: a key or a value is no base64 of a text");
	return read_number(json, "create_revision", &out->create_revision, err);
}

int etcd_range_read(const json_t *answer, struct etcd_pairs *out, struct error *err)
{
	const json_t *list = json_object_get(answer, "kvs");
	int r = 0;

	*out = (struct etcd_pairs){.more = json_get_bool(answer, "more", false)};
	if (!json_is_object(answer) || (list && !json_is_array(list)))
		return error_set(err, -EINVAL, "etcd: the answer to a range is of an unknown form");
	out->list = calloc(json_array_size(list) + 1, sizeof(*out->list));
	if (!out->list)
		return error_oom(err);
	for (size_t i = 0; i < json_array_size(list) && r == 0; i++)
		r = read_pair(json_array_get(list, i), &out->list[out->count++], err);
	if (r < 0)
		etcd_pairs_clear(out);
	return r;
}

json_t *etcd_txn_request(const char *key, int64_t create_revision)
{
	_cleanup_json_ json_t *txn = json_pack("{s:[{s:s}],s:[]}", "compare", "target", "CREATE", "success");
	json_t *compare = json_array_get(json_object_get(txn, "compare"), 0);

	if (!txn || set_text(compare, "key", key) < 0 ||
	    set_number(compare, "create_revision", create_revision) < 0)
		return NULL;
	return steal_pointer(txn);
}

static int add_operation(json_t *txn, const char *kind, json_t *operation)
{
	return json_array_append_new(json_object_get(txn, "success"), json_pack("{s:o}", kind, operation));
}

int etcd_txn_put(json_t *txn, const char *key, const char *value, int64_t lease)
{
	_cleanup_json_ json_t *put = json_object();

	if (!put || set_text(put, "key", key) < 0 || set_text(put, "value", value) < 0 ||
	    (lease != 0 && set_number(put, "lease", lease) < 0))
		return -ENOMEM;
	return add_operation(txn, "request_put", steal_pointer(put)) < 0 ? -ENOMEM : 0;
}

int etcd_txn_take(json_t *txn, const json_t *other, size_t i)
{
	json_t *operation = json_array_get(json_object_get(other, "success"), i);

	return json_array_append(json_object_get(txn, "success"), operation) < 0 ? -ENOMEM : 0;
}

int etcd_txn_delete(json_t *txn, const char *key, const char *end)
{
	_cleanup_json_ json_t *range = json_object();

	if (!range || set_text(range, "key", key) < 0 || (end && set_text(range, "range_end", end) < 0))
		return -ENOMEM;
	return add_operation(txn, "request_delete_range", steal_pointer(range)) < 0 ? -ENOMEM : 0;
}

int etcd_txn_read(const json_t *answer, bool *done, int64_t *revision, struct error *err)
{
	*done = json_get_bool(answer, "succeeded", false);
	if (!json_is_object(json_object_get(answer, "header")))
		return error_set(err, -EINVAL, "etcd: the answer to a transaction is of an unknown form");
	return read_number(json_object_get(answer, "header"), "revision", revision, err);
}

json_t *etcd_lease_request(int64_t id, int64_t seconds)
{
	_cleanup_json_ json_t *request = json_object();

	if (!request || (id != 0 && set_number(request, "ID", id) < 0) ||
	    (seconds > 0 && set_number(request, "TTL", seconds) < 0))
		return NULL;
	return steal_pointer(request);
}

/* Renewals are a stream there: each answer is the member of an object. */
int etcd_lease_read(const json_t *answer, int64_t *id, int64_t *seconds, struct error *err)
{
	const json_t *result = json_object_get(answer, "result");
	int r;

	if (result)
		answer = result;
	if (!json_is_object(json_object_get(answer, "header")))
		return error_set(err, -EINVAL, "etcd: the answer about a lease is of an unknown form");
	r = read_number(answer, "ID", id, err);
	return r < 0 ? r : read_number(answer, "TTL", seconds, err);
}

const char *etcd_error(const json_t *answer)
{
	const json_t *error = json_object_get(answer, "error");

	if (json_is_object(error))
		return json_get_string(error, "message", "an error");
	return error ? json_get_string(answer, "error", json_get_string(answer, "message", "an error"))
	             : NULL;
}
