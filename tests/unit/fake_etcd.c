/* SPDX-License-Identifier: Apache-2.0 */
/* etcd within the test program: fake_etcd.h. Each test has a process of its own, so there is one. */
#include "fake_etcd.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"

enum { KEYS = 4096, LEASES = 64, FAILURES = 16, PAUSES = 8, OPERATIONS_MAX = 128, REQUEST_MAX = 3 << 19 };

struct key {
	char *name, *value;
	int64_t made, changed, version, lease;
};

struct lease {
	int64_t id, ttl;
	double until;
};

/* The newest one on a condition variable. */
struct pause {
	const pthread_cond_t *cond;
	double until;
};

static struct {
	pthread_mutex_t lock; /* of all here */
	pthread_cond_t paused;
	bool simulated;
	double now;
	struct key keys[KEYS]; /* by name */
	size_t key_count;
	struct lease leases[LEASES];
	size_t lease_count;
	int64_t revision, next_lease;
	struct fake_failure failures[FAILURES];
	size_t failure_count;
	struct {
		const char *path;
		int count;
	} calls[5];
	struct pause pauses[PAUSES];
	int pause_count;
	double last_pause;
	int operations_max;
	size_t bytes_max, limit;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .paused = PTHREAD_COND_INITIALIZER,
          .calls = {{FAKE_RANGE, 0}, {FAKE_TXN, 0}, {FAKE_GRANT, 0}, {FAKE_REVOKE, 0}, {FAKE_KEEPALIVE, 0}}};

static char *no_urls[] = {(char *)"fake", NULL};
const struct etcd_place fake_etcd_place = {.urls = no_urls};

/* Time. */

int __real_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_nanosleep(const struct timespec *duration, struct timespec *left);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __real_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);

static void end_leases(void);

/* With the lock. */
static void set_time(double now)
{
	fake.now = now;
	end_leases();
}

void fake_etcd_begin(void)
{
	struct timespec now;

	/* Check measures its tests by the same clock. */
	__real_clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&fake.lock);
	fake.simulated = true;
	fake.now = (double)now.tv_sec + 1;
	fake.revision = 1;
	fake.limit = REQUEST_MAX;
	fake.next_lease = 7000000000000000001;
	pthread_mutex_unlock(&fake.lock);
}

int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
	bool simulated;
	double now;

	if (id != CLOCK_MONOTONIC && id != CLOCK_BOOTTIME)
		return __real_clock_gettime(id, out);
	pthread_mutex_lock(&fake.lock);
	simulated = fake.simulated;
	now = fake.now;
	pthread_mutex_unlock(&fake.lock);
	if (!simulated)
		return __real_clock_gettime(id, out);
	out->tv_sec = (time_t)now;
	out->tv_nsec = (long)((now - (double)out->tv_sec) * 1e9);
	return 0;
}

int __wrap_nanosleep(const struct timespec *duration, struct timespec *left)
{
	pthread_mutex_lock(&fake.lock);
	set_time(fake.now + (double)duration->tv_sec + (double)duration->tv_nsec * 1e-9);
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

/* The one on this condition variable, or a free place. */
static struct pause *find_pause(const pthread_cond_t *cond)
{
	struct pause *place = NULL;

	for (size_t i = 0; i < PAUSES; i++) {
		struct pause *p = &fake.pauses[i];

		if (p->cond == cond)
			return p;
		if (!p->cond)
			place = p;
	}
	ck_assert_ptr_nonnull(place);
	return place;
}

/* Simulated time wakes no thread: a waiter looks at it each millisecond, and its caller at what it waits for.
 */
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until)
{
	double end = (double)until->tv_sec + (double)until->tv_nsec * 1e-9;
	struct timespec soon;
	struct pause *p;
	bool over;

	pthread_mutex_lock(&fake.lock);
	p = find_pause(cond);
	if (!p->cond || p->until != end) {
		*p = (struct pause){cond, end};
		fake.pause_count++;
		fake.last_pause = end - fake.now;
		pthread_cond_broadcast(&fake.paused);
	}
	over = end <= fake.now;
	pthread_mutex_unlock(&fake.lock);
	if (over)
		return ETIMEDOUT;
	__real_clock_gettime(CLOCK_MONOTONIC, &soon);
	soon.tv_nsec += 1000000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	__real_pthread_cond_timedwait(cond, lock, &soon);
	return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
	pthread_mutex_lock(&fake.lock);
	find_pause(cond)->cond = NULL;
	pthread_mutex_unlock(&fake.lock);
	return __real_pthread_cond_destroy(cond);
}

void fake_etcd_pass(double seconds)
{
	pthread_mutex_lock(&fake.lock);
	set_time(fake.now + seconds);
	pthread_mutex_unlock(&fake.lock);
}

double fake_etcd_await_pause(int n)
{
	double seconds;

	pthread_mutex_lock(&fake.lock);
	while (fake.pause_count < n)
		pthread_cond_wait(&fake.paused, &fake.lock);
	seconds = fake.last_pause;
	pthread_mutex_unlock(&fake.lock);
	return seconds;
}

int fake_etcd_pauses(void)
{
	int count;

	pthread_mutex_lock(&fake.lock);
	count = fake.pause_count;
	pthread_mutex_unlock(&fake.lock);
	return count;
}

void fake_etcd_step(double seconds)
{
	int before = fake_etcd_pauses();

	fake_etcd_pass(seconds);
	fake_etcd_await_pause(before + 1);
}

double fake_etcd_time(void)
{
	double now;

	pthread_mutex_lock(&fake.lock);
	now = fake.now;
	pthread_mutex_unlock(&fake.lock);
	return now;
}

/* Keys. All below is called with the lock, unless it takes it. */

static size_t find_place(const char *name)
{
	size_t low = 0, high = fake.key_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (strcmp(fake.keys[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct key *find_key(const char *name)
{
	size_t i = find_place(name);

	return i < fake.key_count && str_eq(fake.keys[i].name, name) ? &fake.keys[i] : NULL;
}

static void put_key(const char *name, const char *value, int64_t lease)
{
	struct key *k = find_key(name);

	if (!k) {
		size_t i = find_place(name);

		ck_assert_uint_lt(fake.key_count, KEYS);
		k = &fake.keys[i];
		memmove(k + 1, k, (fake.key_count++ - i) * sizeof(*k));
		*k = (struct key){.name = strdup(name), .made = fake.revision};
	}
	str_replace(&k->value, value);
	k->version++;
	k->changed = fake.revision;
	k->lease = lease;
}

static void remove_key(const char *name)
{
	struct key *k = find_key(name);

	if (!k)
		return;
	free(k->name);
	free(k->value);
	memmove(k, k + 1, (char *)(fake.keys + --fake.key_count) - (char *)k);
}

static struct lease *find_lease(int64_t id)
{
	for (size_t i = 0; i < fake.lease_count; i++)
		if (fake.leases[i].id == id)
			return &fake.leases[i];
	return NULL;
}

static void end_lease(struct lease *l)
{
	fake.revision++;
	for (size_t i = fake.key_count; i-- > 0;)
		if (fake.keys[i].lease == l->id)
			remove_key(fake.keys[i].name);
	*l = fake.leases[--fake.lease_count];
}

static void end_leases(void)
{
	for (size_t i = fake.lease_count; i-- > 0;)
		if (fake.leases[i].until <= fake.now)
			end_lease(&fake.leases[i]);
}

/* The JSON of the gateway. */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* NULL: the member is absent. */
static char *get_text(const json_t *object, const char *member)
{
	const char *in = json_string_value(json_object_get(object, member));
	size_t len = in ? strcspn(in, "=") : 0, n = 0;
	char *out = in ? calloc(1, len + 1) : NULL;
	uint32_t bits = 0;

	for (size_t i = 0; i < len; i++) {
		bits = bits << 6 | (uint32_t)(strchr(digits, in[i]) - digits);
		if (i % 4 > 0)
			out[n++] = (char)(bits >> (6 - 2 * (i % 4)));
	}
	return out;
}

static json_t *make_text(const char *text)
{
	size_t len = strlen(text);
	_cleanup_strbuf_ struct strbuf out = {0};

	for (size_t i = 0; i < len; i += 3) {
		uint32_t bits = (uint32_t)(uint8_t)text[i] << 16;

		bits |= i + 1 < len ? (uint32_t)(uint8_t)text[i + 1] << 8 : 0;
		bits |= i + 2 < len ? (uint32_t)(uint8_t)text[i + 2] : 0;
		for (size_t k = 0; k < 4; k++)
			strbuf_add(&out, i + k > len ? "=" : &digits[bits >> (18 - 6 * k) & 63], 1);
	}
	return json_string(out.data ? out.data : "");
}

static int64_t get_number(const json_t *object, const char *member)
{
	const char *text = json_string_value(json_object_get(object, member));

	return text ? strtoll(text, NULL, 10) : 0;
}

static json_t *make_number(int64_t value)
{
	_cleanup_free_ char *text = str_printf("%lld", (long long)value);

	return json_string(text);
}

static json_t *header(void)
{
	return json_pack("{s:o}", "revision", make_number(fake.revision));
}

static json_t *do_range(const json_t *request)
{
	_cleanup_free_ char *key = get_text(request, "key"), *end = get_text(request, "range_end");
	int64_t limit = get_number(request, "limit"), count = 0;
	json_t *list = json_array();
	bool more = false;

	for (size_t i = find_place(key); i < fake.key_count; i++) {
		const struct key *k = &fake.keys[i];

		if (end ? strcmp(k->name, end) >= 0 : !str_eq(k->name, key))
			break;
		if (limit > 0 && count == limit) {
			more = true;
			break;
		}
		count++;
		json_array_append_new(list, json_pack("{s:o,s:o,s:o}", "key", make_text(k->name), "value",
		                                      make_text(k->value), "create_revision",
		                                      make_number(k->made)));
	}
	return json_pack("{s:o,s:o,s:b}", "header", header(), "kvs", list, "more", more);
}

static bool in_range(const char *key, const char *from, const char *end)
{
	return end ? strcmp(key, from) >= 0 && strcmp(key, end) < 0 : str_eq(key, from);
}

/* etcd refuses a transaction that writes and removes a key. */
static void check_removal(const json_t *list, const char *from, const char *end)
{
	const json_t *operation;
	size_t i;

	json_array_foreach(list, i, operation)
	{
		_cleanup_free_ char *key = get_text(json_object_get(operation, "request_put"), "key");

		ck_assert(!key || !in_range(key, from, end));
	}
}

static void remove_range(const char *from, const char *end)
{
	for (size_t i = fake.key_count; i-- > 0;)
		if (in_range(fake.keys[i].name, from, end))
			remove_key(fake.keys[i].name);
}

/* Of what etcd compares with its limit: keys and values. */
static size_t txn_bytes(const json_t *request)
{
	const json_t *list = json_object_get(request, "success"), *operation;
	size_t i, bytes = 0;

	json_array_foreach(list, i, operation)
	{
		const json_t *put = json_object_get(operation, "request_put");

		bytes += json_string_length(json_object_get(put, "key")) / 4 * 3 +
		         json_string_length(json_object_get(put, "value")) / 4 * 3;
	}
	return bytes;
}

static bool is_too_large(const char *path, const json_t *request)
{
	return str_eq(path, FAKE_TXN) &&
	       (txn_bytes(request) > fake.limit ||
	        json_array_size(json_object_get(request, "success")) > OPERATIONS_MAX);
}

static json_t *do_txn(const json_t *request)
{
	const json_t *compare = json_array_get(json_object_get(request, "compare"), 0);
	const json_t *list = json_object_get(request, "success"), *operation;
	_cleanup_free_ char *condition = get_text(compare, "key");
	const struct key *k = find_key(condition);
	bool holds = get_number(compare, "create_revision") == (k ? k->made : 0);
	size_t i, bytes = 0;

	ck_assert_str_eq(json_string_value(json_object_get(compare, "target")), "CREATE");
	fake.operations_max = MAX(fake.operations_max, (int)json_array_size(list));
	if (holds)
		fake.revision++;
	json_array_foreach(list, i, operation)
	{
		const json_t *put = json_object_get(operation, "request_put");
		const json_t *range = json_object_get(operation, "request_delete_range");
		_cleanup_free_ char *key = get_text(put ? put : range, "key");
		_cleanup_free_ char *value = get_text(put, "value"), *end = get_text(range, "range_end");

		bytes += strlen(key) + (value ? strlen(value) : 0);
		/* etcd refuses a transaction that writes a key twice. */
		ck_assert(!find_key(key) || !holds || find_key(key)->changed < fake.revision);
		if (holds && put)
			put_key(key, value, get_number(put, "lease"));
		else if (holds) {
			check_removal(list, key, end);
			remove_range(key, end);
		}
	}
	fake.bytes_max = MAX(fake.bytes_max, bytes);
	return json_pack("{s:o,s:b}", "header", header(), "succeeded", holds);
}

static json_t *do_grant(const json_t *request)
{
	struct lease *l = &fake.leases[fake.lease_count++];

	ck_assert_uint_le(fake.lease_count, LEASES);
	l->id = fake.next_lease++;
	l->ttl = get_number(request, "TTL");
	l->until = fake.now + (double)l->ttl;
	return json_pack("{s:o,s:o,s:o}", "header", header(), "ID", make_number(l->id), "TTL",
	                 make_number(l->ttl));
}

static json_t *do_keepalive(const json_t *request)
{
	struct lease *l = find_lease(get_number(request, "ID"));
	json_t *result =
	    json_pack("{s:o,s:o}", "header", header(), "ID", make_number(get_number(request, "ID")));

	if (l) {
		l->until = fake.now + (double)l->ttl;
		json_object_set_new(result, "TTL", make_number(l->ttl));
	}
	return json_pack("{s:o}", "result", result);
}

static json_t *do_revoke(const json_t *request)
{
	struct lease *l = find_lease(get_number(request, "ID"));

	if (l)
		end_lease(l);
	return json_pack("{s:o}", "header", header());
}

static json_t *do_call(const char *path, const json_t *request)
{
	static const struct {
		const char *path;
		json_t *(*work)(const json_t *request);
	} calls[] = {{FAKE_RANGE, do_range},
	             {FAKE_TXN, do_txn},
	             {FAKE_GRANT, do_grant},
	             {FAKE_REVOKE, do_revoke},
	             {FAKE_KEEPALIVE, do_keepalive}};

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
		if (str_eq(calls[i].path, path))
			return calls[i].work(request);
	ck_abort_msg("etcd has no %s", path);
	return NULL;
}

static bool take_failure(const char *path, struct fake_failure *out)
{
	for (size_t i = 0; i < fake.failure_count; i++) {
		struct fake_failure *f = &fake.failures[i];

		if (!str_eq(f->path, path) || f->count == 0)
			continue;
		if (f->skip > 0) {
			f->skip--;
			continue;
		}
		f->count--;
		*out = *f;
		f->before = NULL;
		return true;
	}
	return false;
}

/* The calls of cluster/etcd.h. */

struct etcd {
	int unused;
};

int __wrap_etcd_open(const struct etcd_place *place, struct etcd **out, struct error *err);
void __wrap_etcd_close(struct etcd *e);
const char *__wrap_etcd_member(const struct etcd *e);
int __wrap_etcd_call(struct etcd *e, const char *path, json_t *request, double seconds, json_t **answer,
                     struct error *err);

int __wrap_etcd_open(const struct etcd_place *place, struct etcd **out, struct error *err)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : error_oom(err);
}

const char *__wrap_etcd_member(const struct etcd *e)
{
	return fake_etcd_place.urls[0];
}

void __wrap_etcd_close(struct etcd *e)
{
	free(e);
}

static int answer_call(const char *path, json_t *request, double seconds, json_t **answer, struct error *err)
{
	struct fake_failure failure = {0};
	json_t *result = NULL;
	bool fails, too_large;

	pthread_mutex_lock(&fake.lock);
	for (size_t i = 0; i < ARRAY_SIZE(fake.calls); i++)
		fake.calls[i].count += str_eq(fake.calls[i].path, path);
	fails = take_failure(path, &failure);
	pthread_mutex_unlock(&fake.lock);
	if (failure.before)
		failure.before();
	pthread_mutex_lock(&fake.lock);
	too_large = !fails && is_too_large(path, request);
	if (!too_large && (!fails || failure.code == 0 || failure.applied))
		result = do_call(path, request);
	if (failure.seconds > 0)
		set_time(fake.now + MIN(failure.seconds, seconds));
	pthread_mutex_unlock(&fake.lock);
	if (fails && failure.answer) {
		json_decref(result);
		result = json_loads(failure.answer, 0, NULL);
	}
	if (too_large)
		return error_set(err, -EMSGSIZE, "etcd at fake: etcdserver: request is too large");
	if (fails && failure.code < 0) {
		json_decref(result);
		return error_set(err, failure.code, "cannot reach etcd");
	}
	*answer = result;
	return 0;
}

static void (*enter)(bool begin);

int __wrap_etcd_call(struct etcd *e, const char *path, json_t *request, double seconds, json_t **answer,
                     struct error *err)
{
	_cleanup_json_ json_t *taken = request;
	int r;

	if (!taken)
		return error_oom(err);
	if (enter)
		enter(true);
	r = answer_call(path, taken, seconds, answer, err);
	if (enter)
		enter(false);
	return r;
}

/* For the test. */

void fake_etcd_on_call(void (*fn)(bool begin))
{
	enter = fn;
}

void fake_etcd_fail(const struct fake_failure *failure)
{
	pthread_mutex_lock(&fake.lock);
	ck_assert_uint_lt(fake.failure_count, FAILURES);
	fake.failures[fake.failure_count++] = *failure;
	pthread_mutex_unlock(&fake.lock);
}

int fake_etcd_calls(const char *path)
{
	int count = -1;

	pthread_mutex_lock(&fake.lock);
	for (size_t i = 0; i < ARRAY_SIZE(fake.calls); i++)
		if (str_eq(fake.calls[i].path, path)) {
			count = fake.calls[i].count;
			fake.calls[i].count = 0;
		}
	pthread_mutex_unlock(&fake.lock);
	return count;
}

void fake_etcd_put(const char *key, const char *value)
{
	pthread_mutex_lock(&fake.lock);
	fake.revision++;
	put_key(key, value, 0);
	pthread_mutex_unlock(&fake.lock);
}

void fake_etcd_remove(const char *key)
{
	pthread_mutex_lock(&fake.lock);
	fake.revision++;
	remove_key(key);
	pthread_mutex_unlock(&fake.lock);
}

static struct key get_key(const char *key)
{
	const struct key *k;
	struct key copy;

	pthread_mutex_lock(&fake.lock);
	k = find_key(key);
	copy = k ? *k : (struct key){0};
	pthread_mutex_unlock(&fake.lock);
	return copy;
}

const char *fake_etcd_value(const char *key)
{
	return get_key(key).value;
}

int64_t fake_etcd_made(const char *key)
{
	return get_key(key).made;
}

int64_t fake_etcd_changed(const char *key)
{
	return get_key(key).changed;
}

int64_t fake_etcd_version(const char *key)
{
	return get_key(key).version;
}

bool fake_etcd_leased(const char *key)
{
	return get_key(key).lease != 0;
}

int fake_etcd_count(const char *prefix)
{
	int count = 0;

	pthread_mutex_lock(&fake.lock);
	for (size_t i = find_place(prefix); i < fake.key_count; i++) {
		if (strncmp(fake.keys[i].name, prefix, strlen(prefix)) != 0)
			break;
		count++;
	}
	pthread_mutex_unlock(&fake.lock);
	return count;
}

int fake_etcd_leases(void)
{
	int count;

	pthread_mutex_lock(&fake.lock);
	count = (int)fake.lease_count;
	pthread_mutex_unlock(&fake.lock);
	return count;
}

int fake_etcd_operations_max(void)
{
	return fake.operations_max;
}

void fake_etcd_limit(size_t bytes)
{
	pthread_mutex_lock(&fake.lock);
	fake.limit = bytes;
	pthread_mutex_unlock(&fake.lock);
}

size_t fake_etcd_bytes_max(void)
{
	return fake.bytes_max;
}
