/* SPDX-License-Identifier: Apache-2.0 */
/* A small key-value store for each attempt under way; a get may wait for its key. */
#include "cluster/rendezvous.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/list.h"
#include "base/str.h"

enum { BUCKETS = 256 };

struct entry {
	struct entry *next;
	size_t len;
	char *value;
	char key[];
};

struct rendezvous_waiter {
	struct attempt *attempt;
	struct rendezvous_waiter *prev, *next;
	void (*done)(void *context, const void *value, size_t len);
	void *context;
	char key[];
};

struct attempt {
	struct attempt *next;
	int64_t run, number;
	size_t bytes;
	struct entry *buckets[BUCKETS];
	struct rendezvous_waiter *waiters;
};

struct rendezvous {
	struct attempt *attempts; /* few at a time: those of the runs that run */
};

static unsigned bucket(const char *key)
{
	unsigned h = 2166136261u;

	for (; *key; key++)
		h = (h ^ (unsigned char)*key) * 16777619u;
	return h % BUCKETS;
}

int rendezvous_create(struct rendezvous **out, struct error *err)
{
	struct rendezvous *r = calloc(1, sizeof(*r));

	if (!r)
		return error_oom(err);
	*out = r;
	return 0;
}

void rendezvous_unwait(struct rendezvous_waiter *w)
{
	list_remove(w->attempt->waiters, w);
	free(w);
}

static void tell(struct rendezvous_waiter *w, const void *value, size_t len)
{
	void (*done)(void *context, const void *value, size_t len) = w->done;
	void *context = w->context;

	rendezvous_unwait(w);
	done(context, value, len);
}

static void attempt_clear(struct attempt *a)
{
	for (size_t i = 0; i < BUCKETS; i++)
		while (a->buckets[i]) {
			struct entry *e = a->buckets[i];

			a->buckets[i] = e->next;
			free(e->value);
			free(e);
		}
	a->bytes = 0;
	while (a->waiters)
		tell(a->waiters, NULL, 0);
}

void rendezvous_drop(struct rendezvous *r, int64_t run)
{
	for (struct attempt **p = &r->attempts; *p; p = &(*p)->next) {
		struct attempt *a = *p;

		if (a->run != run)
			continue;
		*p = a->next;
		attempt_clear(a);
		free(a);
		return;
	}
}

void rendezvous_destroy(struct rendezvous *r)
{
	if (!r)
		return;
	while (r->attempts)
		rendezvous_drop(r, r->attempts->run);
	free(r);
}

/* The attempt, made where it is new; an older one of the same run makes room for it. */
static int find_attempt(struct rendezvous *r, int64_t run, int64_t number, struct attempt **out,
                        struct error *err)
{
	struct attempt *a = r->attempts;

	while (a && a->run != run)
		a = a->next;
	if (a && number < a->number)
		return error_set(err, -ESTALE, "attempt %lld of run %lld is over: attempt %lld is under way",
		                 (long long)number, (long long)run, (long long)a->number);
	if (a && number > a->number) {
		attempt_clear(a);
		a->number = number;
	}
	if (!a) {
		a = calloc(1, sizeof(*a));
		if (!a)
			return error_oom(err);
		a->run = run;
		a->number = number;
		a->next = r->attempts;
		r->attempts = a;
	}
	*out = a;
	return 0;
}

static struct entry *find_entry(struct attempt *a, const char *key)
{
	struct entry *e = a->buckets[bucket(key)];

	while (e && strcmp(e->key, key) != 0)
		e = e->next;
	return e;
}

static int check_key(const char *key, struct error *err)
{
	size_t n = strlen(key);

	if (n == 0 || n > RENDEZVOUS_KEY_MAX)
		return error_set(err, -EINVAL, "rendezvous key of %zu characters: 1 to %d are possible", n,
		                 RENDEZVOUS_KEY_MAX);
	return 0;
}

/* What the attempt will hold with this key set. */
static size_t bytes_with(struct attempt *a, const char *key, size_t len)
{
	const struct entry *e = find_entry(a, key);

	return e ? a->bytes - e->len + len : a->bytes + sizeof(*e) + strlen(key) + len;
}

static int set_value(struct attempt *a, const char *key, const void *value, size_t len)
{
	struct entry *e = find_entry(a, key);
	char *copy = malloc(len ? len : 1);

	if (!copy)
		return -ENOMEM;
	if (!e) {
		e = calloc(1, sizeof(*e) + strlen(key) + 1);
		if (!e) {
			free(copy);
			return -ENOMEM;
		}
		strcpy(e->key, key);
		e->next = a->buckets[bucket(key)];
		a->buckets[bucket(key)] = e;
		a->bytes += strlen(key) + sizeof(*e);
	}
	memcpy(copy, value, len);
	a->bytes += len - e->len;
	free(e->value);
	e->value = copy;
	e->len = len;
	return 0;
}

int rendezvous_put(struct rendezvous *r, int64_t run, int64_t attempt, size_t max_bytes, const char *key,
                   const void *value, size_t len, struct error *err)
{
	struct rendezvous_waiter *w, *next;
	struct attempt *a;
	int code;

	code = check_key(key, err);
	if (code < 0)
		return code;
	if (len > RENDEZVOUS_VALUE_MAX)
		return error_set(err, -ENOSPC, "rendezvous value of %zu bytes: at most %d are possible", len,
		                 RENDEZVOUS_VALUE_MAX);
	code = find_attempt(r, run, attempt, &a, err);
	if (code < 0)
		return code;
	if (bytes_with(a, key, len) > max_bytes)
		return error_set(
		    err, -ENOSPC,
		    "the rendezvous of run %lld is full: %zu bytes are there, %zu more do not fit "
		    "into %zu",
		    (long long)run, a->bytes, len, max_bytes);
	if (set_value(a, key, value, len) < 0)
		return error_oom(err);
	for (w = a->waiters; w; w = next) {
		next = w->next;
		if (strcmp(w->key, key) == 0)
			tell(w, value, len);
	}
	return 0;
}

int rendezvous_get(struct rendezvous *r, int64_t run, int64_t attempt, const char *key, const void **value,
                   size_t *len, struct error *err)
{
	struct attempt *a;
	struct entry *e;
	int code = check_key(key, err);

	if (code == 0)
		code = find_attempt(r, run, attempt, &a, err);
	if (code < 0)
		return code;
	e = find_entry(a, key);
	if (!e)
		return error_set(err, -ENOENT, "run %lld has no key %s yet", (long long)run, key);
	*value = e->value;
	*len = e->len;
	return 0;
}

int rendezvous_wait(struct rendezvous *r, int64_t run, int64_t attempt, const char *key,
                    void (*done)(void *context, const void *value, size_t len), void *context,
                    struct rendezvous_waiter **out, struct error *err)
{
	struct rendezvous_waiter *w;
	struct attempt *a;
	int code = check_key(key, err);

	if (code == 0)
		code = find_attempt(r, run, attempt, &a, err);
	if (code < 0)
		return code;
	w = calloc(1, sizeof(*w) + strlen(key) + 1);
	if (!w)
		return error_oom(err);
	strcpy(w->key, key);
	w->attempt = a;
	w->done = done;
	w->context = context;
	list_push(a->waiters, w);
	*out = w;
	return 0;
}
