/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys, all below /dtrain/:
 *
 *     controller     the election's
 *     cluster        the id of the cluster
 *     highest        the last number of a run
 *     epochs/N       each epoch, empty
 *     drains/NODE    why the node is drained; it is empty where no reason is known
 *     runs/N         struct run_entry as JSON; N has 20 digits, so that keys are in the order of runs
 *     origins/N      struct run_origin as JSON: what never changes of the run
 *
 * A batch may be more than one transaction of etcd can hold. Its transactions are repeated until etcd has
 * done or refused them, or the election is lost: all of them are put under the condition that the election's
 * key is ours, and to repeat one changes nothing. New runs of a batch that etcd refuses in its middle are
 * removed again.
 */
#include "cluster/store_etcd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/store_backend.h"
#include "wire/etcd.h"
#include "wire/run_entry.h"

enum {
	OPERATIONS_MAX = 100,     /* of a transaction; etcd's default is 128 */
	BYTES_MAX = 1000 * 1000,  /* of one; etcd's default is 1.5 MiB */
	ORIGIN_MAX = 1200 * 1000, /* a single one may be longer than that */
	ENDED_MAX = 500,          /* runs that have ended are kept there */
	PAGE = 100,               /* keys that are read at once */
	VERSION_BITS = 20,
};

static const double CALL_SECONDS = 2.0, READ_SECONDS = 20.0;

/* What etcd has of a run that has not ended: what differs in its progress alone is not written. */
struct written {
	int64_t id;
	uint64_t hash;
};

struct etcd_store {
	struct etcd *etcd;
	struct election *election;
	struct written *written; /* by id */
	size_t written_count;
	int64_t ended[ENDED_MAX]; /* a ring: the oldest one is at ended_count % ENDED_MAX, once there are so
	                             many */
	size_t ended_count;
};

#define KEY_SIZE 320

static void run_key(char key[KEY_SIZE], const char *kind, int64_t id)
{
	snprintf(key, KEY_SIZE, ETCD_PREFIX "%s/%020lld", kind, (long long)id);
}

/* Writing: the store's thread. */

/* A transaction that is being made. */
struct txn {
	json_t *json;
	size_t operations, bytes;
	char *keys[OPERATIONS_MAX]; /* etcd takes each key once */
};

static void txn_clear(struct txn *t)
{
	for (size_t i = 0; i < t->operations; i++)
		free(t->keys[i]);
	json_decref(t->json);
	*t = (struct txn){0};
}

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){0, 200000000}, NULL);
}

/* Until etcd has done or refused it. -ESTALE: we are no controller any more. */
static int send_txn(struct etcd_store *s, struct txn *t, struct error *err)
{
	bool done = false;
	int64_t revision;
	int r = -EHOSTUNREACH;

	while (r == -EHOSTUNREACH) {
		_cleanup_json_ json_t *answer = NULL;

		if (!election_holds(s->election)) {
			election_lose(s->election,
			              err->message[0] ? err->message : "its lease in etcd has run out");
			r = error_set(err, -ESTALE, "this node is not the controller any more");
			break;
		}
		r = etcd_call(s->etcd, "/v3/kv/txn", json_incref(t->json), CALL_SECONDS, &answer, err);
		if (r == 0)
			r = etcd_txn_read(answer, &done, &revision, err);
		if (r == -EHOSTUNREACH)
			pause_briefly();
	}
	txn_clear(t);
	if (r == 0 && !done) {
		election_lose(s->election, "another node has taken its place");
		r = error_set(err, -ESTALE, "this node is not the controller any more");
	}
	return r;
}

static bool has_key(const struct txn *t, const char *key)
{
	for (size_t i = 0; i < t->operations; i++)
		if (str_eq(t->keys[i], key))
			return true;
	return false;
}

/* Room for an operation of so many bytes: where there is none, what there is is sent. */
static int make_room(struct etcd_store *s, struct txn *t, const char *key, size_t bytes, struct error *err)
{
	char *copy;

	if (t->operations == OPERATIONS_MAX || (t->bytes > 0 && t->bytes + bytes > BYTES_MAX) ||
	    has_key(t, key)) {
		int r = send_txn(s, t, err);

		if (r < 0)
			return r;
	}
	if (!t->json)
		t->json = etcd_txn_request(election_key(s->election), election_revision(s->election));
	copy = strdup(key);
	if (!t->json || !copy) {
		free(copy);
		return error_oom(err);
	}
	t->keys[t->operations++] = copy;
	t->bytes += bytes;
	return 0;
}

static int put(struct etcd_store *s, struct txn *t, const char *key, const char *value, struct error *err)
{
	int r = make_room(s, t, key, strlen(key) + strlen(value), err);

	if (r < 0)
		return r;
	return etcd_txn_put(t->json, key, value, 0) < 0 ? error_oom(err) : 0;
}

static int remove_key(struct etcd_store *s, struct txn *t, const char *key, struct error *err)
{
	int r = make_room(s, t, key, strlen(key), err);

	if (r < 0)
		return r;
	return etcd_txn_delete(t->json, key) < 0 ? error_oom(err) : 0;
}

static char *entry_text(const struct stored_run *stored)
{
	const struct run *r = &stored->run;
	const struct run_entry entry = {
	    .id = r->id,
	    .attempt = r->attempt,
	    .uid = r->uid,
	    .gid = r->gid,
	    .state = r->state,
	    .submitted = r->submitted,
	    .started = r->started,
	    .ended = r->ended,
	    .reason = r->reason,
	    .detail = r->detail,
	    .exit_status = r->exit_status,
	    .cancelled = r->cancelled,
	    .failed = r->failed,
	    .requeue = r->requeue,
	    .nodes = r->nodes,
	    .per_node = r->per_node,
	    .ranks = stored->ranks,
	    .under_way = stored->under_way,
	};
	_cleanup_json_ json_t *json = run_entry_encode(&entry);

	return json_to_string(json);
}

static char *origin_text(const struct stored_run *stored)
{
	const struct run *r = &stored->run;
	const struct run_origin origin = {.name = r->name,
	                                  .user = r->user,
	                                  .task = r->task,
	                                  .directory = r->directory,
	                                  .output = r->output,
	                                  .key = r->key,
	                                  .config = stored->config};
	_cleanup_json_ json_t *json = run_origin_encode(&origin);

	return json_to_string(json);
}

static int compare_written(const void *a, const void *b)
{
	const struct written *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

static struct written *find_written(struct etcd_store *s, int64_t id)
{
	struct written key = {.id = id};

	return s->written_count ? bsearch(&key, s->written, s->written_count, sizeof(key), compare_written)
	                        : NULL;
}

/* Without memory it is written once more than needed, no harm. Numbers grow: what is new comes last. */
static void note_written(struct etcd_store *s, int64_t id, uint64_t hash)
{
	struct written *w = find_written(s, id), *list = s->written;

	if (w) {
		w->hash = hash;
		return;
	}
	if (s->written_count > 0 && s->written[s->written_count - 1].id > id)
		return;
	if ((s->written_count & (s->written_count - 1)) == 0)
		list = reallocarray(list, s->written_count ? 2 * s->written_count : 1, sizeof(*list));
	if (!list)
		return;
	s->written = list;
	list[s->written_count++] = (struct written){id, hash};
}

static void forget_written(struct etcd_store *s, int64_t id)
{
	struct written *w = find_written(s, id);

	if (!w)
		return;
	memmove(w, w + 1, (char *)(s->written + --s->written_count) - (char *)w);
}

/* The oldest one that has ended makes room for this one. */
static int note_ended(struct etcd_store *s, struct txn *t, int64_t id, struct error *err)
{
	int64_t *place = &s->ended[s->ended_count % ENDED_MAX], oldest = *place;
	char key[KEY_SIZE];
	int r;

	*place = id;
	s->ended_count++;
	if (s->ended_count <= ENDED_MAX)
		return 0;
	run_key(key, "runs", oldest);
	r = remove_key(s, t, key, err);
	if (r < 0)
		return r;
	run_key(key, "origins", oldest);
	return remove_key(s, t, key, err);
}

static int put_origin(struct etcd_store *s, struct txn *t, const struct stored_run *stored, struct error *err)
{
	_cleanup_free_ char *text = origin_text(stored);
	char key[KEY_SIZE];

	if (!text)
		return error_oom(err);
	if (strlen(text) > ORIGIN_MAX)
		return error_set(err, -E2BIG,
		                 "the configuration has %zu bytes with its environment, and etcd takes %d",
		                 strlen(text), ORIGIN_MAX);
	run_key(key, "origins", stored->run.id);
	return put(s, t, key, text, err);
}

static int put_run(struct etcd_store *s, struct txn *t, const struct stored_run *stored, struct error *err)
{
	_cleanup_free_ char *text = entry_text(stored);
	int64_t id = stored->run.id;
	const struct written *before = find_written(s, id);
	char key[KEY_SIZE];
	uint64_t hash;
	int r;

	if (!text)
		return error_oom(err);
	hash = hash_bytes(text, strlen(text), 0);
	if (before && before->hash == hash)
		return 0;
	/* The origin comes first: an entry without it would be none. */
	if (stored->config && (r = put_origin(s, t, stored, err)) < 0)
		return r;
	run_key(key, "runs", id);
	r = put(s, t, key, text, err);
	if (r < 0)
		return r;
	if (!run_state_final(stored->run.state)) {
		note_written(s, id, hash);
		return 0;
	}
	forget_written(s, id);
	return note_ended(s, t, id, err);
}

static int put_drain(struct etcd_store *s, struct txn *t, const struct stored_drain *d, struct error *err)
{
	char key[KEY_SIZE];

	snprintf(key, sizeof(key), ETCD_PREFIX "drains/%s", d->node);
	return d->drained ? put(s, t, key, d->reason ? d->reason : "", err) : remove_key(s, t, key, err);
}

static int put_epoch(struct etcd_store *s, struct txn *t, const struct store_batch *b, struct error *err)
{
	char key[KEY_SIZE];
	int r;

	if (b->replaced > 0) {
		run_key(key, "epochs", b->replaced);
		r = remove_key(s, t, key, err);
		if (r < 0)
			return r;
	}
	run_key(key, "epochs", b->epoch);
	return put(s, t, key, "", err);
}

static int put_highest(struct etcd_store *s, struct txn *t, int64_t highest, struct error *err)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)highest);
	return put(s, t, ETCD_PREFIX "highest", text, err);
}

/* What is committed of new runs whose submitters are told that they are not. */
static void undo(struct etcd_store *s, const struct store_batch *b)
{
	_cleanup_(txn_clear) struct txn t = {0};
	struct error err = ERROR_INIT;
	int r = 0;

	for (size_t i = 0; i < b->run_count && r == 0; i++) {
		int64_t id = b->runs[i].run.id;
		char key[KEY_SIZE];

		forget_written(s, id); /* what is not new is written again */
		if (!b->runs[i].config)
			continue;
		run_key(key, "runs", id);
		r = remove_key(s, &t, key, &err);
		if (r < 0)
			break;
		run_key(key, "origins", id);
		r = remove_key(s, &t, key, &err);
	}
	if (r == 0 && t.json)
		r = send_txn(s, &t, &err);
	if (r < 0)
		election_lose(s->election, err.message);
}

static int etcd_apply(void *self, const struct store_batch *b, struct error *err)
{
	struct etcd_store *s = self;
	_cleanup_(txn_clear) struct txn t = {0};
	int r = 0;

	if (b->epoch > 0)
		r = put_epoch(s, &t, b, err);
	if (r == 0 && b->highest > 0)
		r = put_highest(s, &t, b->highest, err);
	for (size_t i = 0; i < b->drain_count && r == 0; i++)
		r = put_drain(s, &t, &b->drains[i], err);
	for (size_t i = 0; i < b->run_count && r == 0; i++)
		r = put_run(s, &t, &b->runs[i], err);
	if (r == 0 && t.json)
		r = send_txn(s, &t, err);
	if (r < 0 && r != -ESTALE)
		undo(s, b);
	return r;
}

static void etcd_copy_failed(void *self, const struct error *err)
{
	election_lose(((struct etcd_store *)self)->election, err->message);
}

static void etcd_store_close(void *self)
{
	struct etcd_store *s = self;

	etcd_close(s->etcd);
	free(s->written);
	free(s);
}

static const struct store_primary etcd_primary = {etcd_apply, etcd_copy_failed, etcd_store_close};

/* Taking up what is there: before there is a thread. */

/* Calls `each` for all keys below /dtrain/KIND/, with what follows that. */
static int read_all(struct etcd_store *s, const char *kind,
                    int (*each)(void *context, const char *name, const char *value, struct error *err),
                    void *context, struct error *err)
{
	_cleanup_free_ char *from = str_printf(ETCD_PREFIX "%s/", kind);
	_cleanup_free_ char *end = str_printf(ETCD_PREFIX "%s0", kind); /* '0' follows '/' */
	size_t prefix = from ? strlen(from) : 0;
	int64_t page = PAGE;
	bool more = true;
	int r = from && end ? 0 : error_oom(err);

	while (more && r == 0) {
		_cleanup_(etcd_pairs_clear) struct etcd_pairs found = {0};
		_cleanup_json_ json_t *answer = NULL;

		r = etcd_call(s->etcd, "/v3/kv/range", etcd_range_request(from, end, page), READ_SECONDS,
		              &answer, err);
		/* An answer may be longer than the gateway takes. */
		if (r == -EREMOTEIO && page > 1) {
			page = MAX(page / 10, 1);
			r = 0;
			continue;
		}
		if (r == 0)
			r = etcd_range_read(answer, &found, err);
		for (size_t i = 0; i < found.count && r == 0; i++)
			r = each(context, found.list[i].key + prefix, found.list[i].value, err);
		more = r == 0 && found.more && found.count > 0;
		if (more) {
			/* The least key behind the last one. */
			free(from);
			from = str_printf("%s\x01", found.list[found.count - 1].key);
			r = from ? 0 : error_oom(err);
		}
	}
	return r;
}

/* The value of one key, owned by the caller; NULL: it is not there. */
static int read_value(struct etcd_store *s, const char *key, char **out, struct error *err)
{
	_cleanup_(etcd_pairs_clear) struct etcd_pairs found = {0};
	_cleanup_json_ json_t *answer = NULL;
	int r =
	    etcd_call(s->etcd, "/v3/kv/range", etcd_range_request(key, NULL, 0), READ_SECONDS, &answer, err);

	if (r == 0)
		r = etcd_range_read(answer, &found, err);
	if (r < 0)
		return r;
	*out = found.count ? steal_pointer(found.list[0].value) : NULL;
	return 0;
}

struct loading {
	struct etcd_store *store;
	struct store_batch batch;
	int64_t *epochs;
	size_t epoch_count, next; /* next: the run whose origin is looked for */
	int64_t version;          /* of all runs: above what the controllers before have given */
};

static int take_epoch(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	int64_t epoch, *list = reallocarray(l->epochs, l->epoch_count + 1, sizeof(*list));

	if (!list)
		return error_oom(err);
	l->epochs = list;
	if (str_to_int64(name, 1, INT64_MAX, &epoch) == 0)
		list[l->epoch_count++] = epoch;
	return 0;
}

static int take_drain(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;

	return store_batch_set_drained(&l->batch, name, true, *value ? value : NULL) < 0 ? error_oom(err) : 0;
}

static int take_entry(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	_cleanup_(run_entry_release) struct run_entry entry = {0};
	_cleanup_json_ json_t *json = NULL;
	struct stored_run *list, *out;

	if (json_parse(value, strlen(value), "etcd", &json, err) < 0 ||
	    run_entry_decode(json, &entry, err) < 0) {
		/* One run that cannot be read is no reason not to serve the others. */
		log_err("run %s in etcd: %s", name, err->message);
		return 0;
	}
	list = reallocarray(l->batch.runs, l->batch.run_count + 1, sizeof(*list));
	if (!list)
		return error_oom(err);
	l->batch.runs = list;
	out = &list[l->batch.run_count++];
	*out = (struct stored_run){
	    .run = {.id = entry.id,
	            .attempt = entry.attempt,
	            .version = l->version,
	            .uid = entry.uid,
	            .gid = entry.gid,
	            .state = entry.state,
	            .submitted = entry.submitted,
	            .started = entry.started,
	            .ended = entry.ended,
	            .reason = steal_pointer(entry.reason),
	            .detail = steal_pointer(entry.detail),
	            .exit_status = (int)entry.exit_status,
	            .nodes = entry.nodes,
	            .per_node = entry.per_node,
	            .cancelled = entry.cancelled,
	            .failed = entry.failed,
	            .requeue = entry.requeue},
	    .ranks = steal_pointer(entry.ranks),
	    .under_way = steal_pointer(entry.under_way),
	};
	if (run_state_final(out->run.state))
		l->store->ended[l->store->ended_count++ % ENDED_MAX] = out->run.id;
	return 0;
}

/* Both lists are in the order of runs. */
static int take_origin(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	_cleanup_(run_origin_release) struct run_origin origin = {0};
	_cleanup_json_ json_t *json = NULL;
	struct stored_run *run;
	int64_t id;

	if (str_to_int64(name, 1, INT64_MAX, &id) < 0)
		return 0;
	while (l->next < l->batch.run_count && l->batch.runs[l->next].run.id < id)
		l->next++;
	run = l->next < l->batch.run_count ? &l->batch.runs[l->next] : NULL;
	if (!run || run->run.id != id)
		return 0;
	if (json_parse(value, strlen(value), "etcd", &json, err) < 0 ||
	    run_origin_decode(json, &origin, err) < 0) {
		log_err("run %s in etcd: %s", name, err->message);
		return 0;
	}
	run->run.name = steal_pointer(origin.name);
	run->run.user = steal_pointer(origin.user);
	run->run.task = steal_pointer(origin.task);
	run->run.directory = steal_pointer(origin.directory);
	run->run.output = steal_pointer(origin.output);
	run->run.key = steal_pointer(origin.key);
	run->config = steal_pointer(origin.config);
	return 0;
}

/* An entry without its origin, of a batch that was not complete, is left out. */
static void leave_out_incomplete(struct store_batch *b)
{
	struct store_batch without = {.runs = NULL};
	size_t kept = 0;

	without.runs = calloc(b->run_count + 1, sizeof(*without.runs));
	if (!without.runs) {
		b->failed = true;
		return;
	}
	for (size_t i = 0; i < b->run_count; i++)
		if (b->runs[i].config)
			b->runs[kept++] = b->runs[i];
		else
			without.runs[without.run_count++] = b->runs[i];
	b->run_count = kept;
	store_batch_clear(&without);
}

static int read_highest(struct loading *l, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	const struct store_batch *b = &l->batch;
	int r = read_value(l->store, ETCD_PREFIX "highest", &text, err);

	if (r < 0)
		return r;
	if (text && str_to_int64(text, 0, INT64_MAX, &l->batch.highest) < 0)
		return error_set(err, -EINVAL, "etcd: " ETCD_PREFIX "highest is not a number");
	if (b->run_count > 0)
		l->batch.highest = MAX(b->highest, b->runs[b->run_count - 1].run.id);
	return 0;
}

/* The id of the cluster, which the first controller makes. */
static int read_cluster(struct etcd_store *s, char **out, struct error *err)
{
	_cleanup_(txn_clear) struct txn t = {0};
	unsigned char random[16];
	char *text;
	int r = read_value(s, ETCD_PREFIX "cluster", out, err);

	if (r < 0 || *out)
		return r;
	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return error_errno(err, -EIO, "cannot get random bytes");
	text = *out = malloc(2 * sizeof(random) + 1);
	if (!text)
		return error_oom(err);
	for (size_t i = 0; i < sizeof(random); i++)
		snprintf(text + 2 * i, 3, "%02x", random[i]);
	r = put(s, &t, ETCD_PREFIX "cluster", text, err);
	return r < 0 ? r : send_txn(s, &t, err);
}

static int load(struct loading *l, struct error *err)
{
	struct etcd_store *s = l->store;
	int r;

	l->version = election_revision(s->election) << VERSION_BITS;
	if ((r = read_all(s, "runs", take_entry, l, err)) < 0 ||
	    (r = read_all(s, "origins", take_origin, l, err)) < 0 || (r = read_highest(l, err)) < 0 ||
	    (r = read_all(s, "drains", take_drain, l, err)) < 0 ||
	    (r = read_all(s, "epochs", take_epoch, l, err)) < 0)
		return r;
	leave_out_incomplete(&l->batch);
	return l->batch.failed ? error_oom(err) : 0;
}

/* The store of this machine, with all that etcd has. Takes nothing. */
static int open_copy(const struct loading *l, const char *directory, struct store_start *start,
                     struct store **out, struct error *err)
{
	_cleanup_free_ char *path = str_printf("%s/history-%.64s.db", directory, start->cluster);
	const struct store_import import = {start->cluster, &l->batch, l->epochs, l->epoch_count};
	struct store_start own = {0};
	const struct store_backend *backend;
	void *self;
	int r;

	if (!path)
		return error_oom(err);
	r = store_sqlite_open(path, &backend, &self, &own, err);
	free(own.cluster);
	if (r < 0)
		return r;
	r = store_sqlite_import(self, &import, err);
	if (r < 0) {
		backend->close(self);
		return r;
	}
	start->highest = MAX(own.highest, l->batch.highest);
	for (size_t i = 0; i < l->epoch_count; i++)
		start->epoch = MAX(start->epoch, l->epochs[i]);
	return store_create(backend, self, start, out, err);
}

static int open_all(struct etcd_store *s, const char *directory, struct store **out, struct error *err)
{
	struct store_start start = {.least_epoch = election_revision(s->election)};
	struct loading l = {.store = s};
	int r = read_cluster(s, &start.cluster, err);

	if (r == 0 && (strlen(start.cluster) > 64 || strspn(start.cluster, "0123456789abcdef") == 0 ||
	               start.cluster[strspn(start.cluster, "0123456789abcdef")]))
		r = error_set(err, -EINVAL, "etcd: " ETCD_PREFIX "cluster is not the id of a cluster");
	if (r == 0)
		r = load(&l, err);
	if (r == 0)
		r = open_copy(&l, directory, &start, out, err);
	store_batch_clear(&l.batch);
	free(l.epochs);
	free(start.cluster);
	return r;
}

int store_etcd_open(const struct etcd_place *place, struct election *election, const char *directory,
                    struct store **out, struct error *err)
{
	struct etcd_store *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return error_oom(err);
	s->election = election;
	r = etcd_open(place, &s->etcd, err);
	if (r == 0)
		r = open_all(s, directory, out, err);
	if (r < 0) {
		etcd_store_close(s);
		return r;
	}
	store_set_primary(*out, &etcd_primary, s);
	return 0;
}
