/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions of the shared store. One that is too large for this etcd, whose limits a site may have
 * lowered, is divided until it is not, or has one operation left. */
#include "cluster/store_etcd_txn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"
#include "wire/etcd.h"

static const double CALL_SECONDS = 2.0;

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){0, 200000000}, NULL);
}

void store_etcd_txn_clear(struct store_etcd_txn *t)
{
	for (size_t i = 0; i < t->operations; i++)
		free(t->keys[i]);
	json_decref(t->json);
	t->json = NULL;
	t->operations = t->bytes = 0;
}

static json_t *new_request(const struct store_etcd_txn *t)
{
	return etcd_txn_request(election_key(t->election), election_revision(t->election));
}

/* Until etcd has done or refused it. */
static int send_request(struct store_etcd_txn *t, json_t *request, struct error *err)
{
	struct error last = ERROR_INIT;
	bool done = false;
	int64_t revision;
	int r = -EHOSTUNREACH;

	while (r == -EHOSTUNREACH) {
		_cleanup_json_ json_t *answer = NULL;

		if (!election_holds(t->election)) {
			election_lose(t->election,
			              last.message[0] ? last.message : "its lease in etcd has run out");
			return error_set(err, -ESTALE, "this node is not the controller any more");
		}
		r = etcd_call(t->etcd, "/v3/kv/txn", json_incref(request), CALL_SECONDS, &answer, &last);
		if (r == 0)
			r = etcd_txn_read(answer, &done, &revision, &last);
		if (r == -EHOSTUNREACH)
			pause_briefly();
	}
	if (r < 0)
		return error_set(err, r, "%s", last.message);
	if (done)
		return 0;
	election_lose(t->election, "another node has taken its place");
	return error_set(err, -ESTALE, "this node is not the controller any more");
}

/* Neither is what follows of a new run that is refused. */
static bool is_refused(const struct store_etcd_txn *t, long run)
{
	const struct store_batch *b = t->batch;

	if (run == STORE_ETCD_NO_RUN || b->refused == 0)
		return false;
	for (long i = 0; i < run; i++)
		if (b->runs[i].refused && b->runs[i].config && b->runs[i].run.id == b->runs[run].run.id)
			return true;
	return b->runs[run].refused != NULL;
}

static int refuse(struct store_etcd_txn *t, long run, struct error *err)
{
	struct stored_run *refused = run == STORE_ETCD_NO_RUN ? NULL : &t->batch->runs[run];

	if (!refused)
		return -EMSGSIZE;
	refused->refused = strdup(err->message);
	if (!refused->refused)
		return error_oom(err);
	t->batch->refused++;
	*err = (struct error)ERROR_INIT;
	return 0;
}

/* So many of the operations, without those of runs that are refused. */
static int send_some(struct store_etcd_txn *t, size_t from, size_t count, struct error *err)
{
	_cleanup_json_ json_t *request = new_request(t);
	size_t taken = 0, last = from;
	int r;

	if (!request)
		return error_oom(err);
	for (size_t i = from; i < from + count; i++) {
		if (is_refused(t, t->runs[i]))
			continue;
		if (etcd_txn_take(request, t->json, i) < 0)
			return error_oom(err);
		last = i;
		taken++;
	}
	if (taken == 0)
		return 0;
	r = send_request(t, request, err);
	if (r != -EMSGSIZE)
		return r;
	if (taken == 1)
		return refuse(t, t->runs[last], err);
	r = send_some(t, from, count / 2, err);
	return r < 0 ? r : send_some(t, from + count / 2, count - count / 2, err);
}

int store_etcd_send(struct store_etcd_txn *t, struct error *err)
{
	int r = t->operations > 0 ? send_some(t, 0, t->operations, err) : 0;

	store_etcd_txn_clear(t);
	return r;
}

static bool has_key(const struct store_etcd_txn *t, const char *key)
{
	for (size_t i = 0; i < t->operations; i++)
		if (str_eq(t->keys[i], key))
			return true;
	return false;
}

/* Room for an operation of so many bytes. */
static int make_room(struct store_etcd_txn *t, const char *key, size_t bytes, struct error *err)
{
	char *copy;

	if (t->operations == STORE_ETCD_OPERATIONS_MAX ||
	    (t->bytes > 0 && t->bytes + bytes > STORE_ETCD_BYTES_MAX) || has_key(t, key)) {
		int r = store_etcd_send(t, err);

		if (r < 0)
			return r;
	}
	if (!t->json)
		t->json = new_request(t);
	copy = strdup(key);
	if (!t->json || !copy) {
		free(copy);
		return error_oom(err);
	}
	t->runs[t->operations] = t->run;
	t->keys[t->operations++] = copy;
	t->bytes += bytes;
	return 0;
}

int store_etcd_put(struct store_etcd_txn *t, const char *key, const char *value, struct error *err)
{
	int r = make_room(t, key, strlen(key) + strlen(value), err);

	if (r < 0)
		return r;
	return etcd_txn_put(t->json, key, value, 0) < 0 ? error_oom(err) : 0;
}

int store_etcd_remove(struct store_etcd_txn *t, const char *key, struct error *err)
{
	int r = make_room(t, key, strlen(key), err);

	if (r < 0)
		return r;
	return etcd_txn_delete(t->json, key, NULL) < 0 ? error_oom(err) : 0;
}

/* etcd refuses a transaction that writes a key of the range, too: what there is goes before. */
int store_etcd_remove_range(struct store_etcd_txn *t, const char *from, const char *end, struct error *err)
{
	int r = store_etcd_send(t, err);

	if (r == 0)
		r = make_room(t, from, strlen(from) + strlen(end), err);
	if (r < 0)
		return r;
	return etcd_txn_delete(t->json, from, end) < 0 ? error_oom(err) : 0;
}
