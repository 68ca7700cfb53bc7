/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys, all below /dtrain/:
 *
 *     controller     the election's
 *     cluster        the id of the cluster
 *     highest        the last number of a run
 *     epochs/N       each epoch, empty
 *     drains/NODE    why the node is drained; it is empty where no reason is known. NODE is as the hosts file
 *                    spelt it then; a key with another spelling is of the same node
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
#include <time.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "base/str.h"
#include "cluster/store_backend.h"
#include "cluster/store_etcd_load.h"
#include "wire/etcd.h"
#include "wire/run_entry.h"

enum {
	OPERATIONS_MAX = 100,     /* of a transaction; etcd's default is 128 */
	BYTES_MAX = 1000 * 1000,  /* of one; etcd's default is 1.5 MiB */
	ORIGIN_MAX = 1200 * 1000, /* a single one may be longer than that */
	ENDED_MAX = 500,          /* runs that have ended are kept there */
	VERSION_BITS = 20, /* of a version that are below the epoch: a new controller gives higher ones */
	CLUSTER_SIZE = 33, /* the id of a cluster, 128 random bits in hexadecimal, and a NUL */
};

static const double CALL_SECONDS = 2.0;

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
	/* The names of all keys of drains that have been there. */
	char **drains;
	size_t drain_count;
	/* a ring: the oldest one is at ended_count % ENDED_MAX, once there are so many */
	int64_t ended[ENDED_MAX];
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

static int make_origin(const struct stored_run *stored, char **text, struct error *err)
{
	*text = origin_text(stored);
	if (!*text)
		return error_oom(err);
	if (strlen(*text) > ORIGIN_MAX)
		return error_set(err, -E2BIG,
		                 "the configuration has %zu bytes with its environment, and etcd takes %d",
		                 strlen(*text), ORIGIN_MAX);
	return 0;
}

static int etcd_check(void *self, const struct run *r, const char *config, struct error *err)
{
	const struct stored_run stored = {.run = *r, .config = (char *)config};
	_cleanup_free_ char *text = NULL;

	return make_origin(&stored, &text, err);
}

static int put_origin(struct etcd_store *s, struct txn *t, const struct stored_run *stored, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	char key[KEY_SIZE];
	int r = make_origin(stored, &text, err);

	if (r < 0)
		return r;
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

/* The other spellings go last: the node is drained in between, too. */
static int put_drain(struct etcd_store *s, struct txn *t, const struct stored_drain *d, struct error *err)
{
	char key[KEY_SIZE];
	int r;

	if (d->drained && store_etcd_add_name(&s->drains, &s->drain_count, d->node) < 0)
		return error_oom(err);
	snprintf(key, sizeof(key), ETCD_PREFIX "drains/%s", d->node);
	r = d->drained ? put(s, t, key, d->reason ? d->reason : "", err) : remove_key(s, t, key, err);
	for (size_t i = 0; i < s->drain_count && r == 0; i++) {
		if (str_eq(s->drains[i], d->node) || !str_eq_host(s->drains[i], d->node))
			continue;
		snprintf(key, sizeof(key), ETCD_PREFIX "drains/%s", s->drains[i]);
		r = remove_key(s, t, key, err);
	}
	return r;
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
	store_etcd_free_names(s->drains, s->drain_count);
	free(s->written);
	free(s);
}

static const struct store_primary etcd_primary = {etcd_apply, etcd_check, etcd_copy_failed, etcd_store_close};

/* Taking up what is there: before there is a thread. */

/* The id of the cluster, which the first controller makes. */
static int read_cluster(struct etcd_store *s, char **out, struct error *err)
{
	_cleanup_(txn_clear) struct txn t = {0};
	int r = store_etcd_read_value(s->etcd, ETCD_PREFIX "cluster", out, err);

	if (r < 0 || *out)
		return r;
	*out = malloc(CLUSTER_SIZE);
	if (!*out)
		return error_oom(err);
	r = random_hex(*out, CLUSTER_SIZE);
	if (r < 0)
		return error_errno(err, r, "cannot make a random id of the cluster");
	r = put(s, &t, ETCD_PREFIX "cluster", *out, err);
	return r < 0 ? r : send_txn(s, &t, err);
}

/* The store of this machine, with all that etcd has. Takes nothing. */
static int open_copy(const struct store_etcd_contents *l, const char *directory, struct store_start *start,
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

/* Takes the names of the drains. */
static void note_loaded(struct etcd_store *s, struct store_etcd_contents *contents)
{
	const struct store_batch *b = &contents->batch;

	s->drains = steal_pointer(contents->drains);
	s->drain_count = contents->drain_count;
	contents->drain_count = 0;
	for (size_t i = 0; i < b->run_count; i++)
		if (run_state_final(b->runs[i].run.state))
			s->ended[s->ended_count++ % ENDED_MAX] = b->runs[i].run.id;
}

static int open_all(struct etcd_store *s, const char *directory, struct store **out, struct error *err)
{
	struct store_start start = {.least_epoch = election_revision(s->election)};
	struct store_etcd_contents contents = {.epochs = NULL};
	int r = read_cluster(s, &start.cluster, err);

	if (r == 0 && (strlen(start.cluster) > 64 || strspn(start.cluster, "0123456789abcdef") == 0 ||
	               start.cluster[strspn(start.cluster, "0123456789abcdef")]))
		r = error_set(err, -EINVAL, "etcd: " ETCD_PREFIX "cluster is not the id of a cluster");
	if (r == 0)
		r = store_etcd_load(s->etcd, start.least_epoch << VERSION_BITS, &contents, err);
	note_loaded(s, &contents);
	if (r == 0)
		r = open_copy(&contents, directory, &start, out, err);
	store_etcd_contents_clear(&contents);
	free(start.cluster);
	return r;
}

int store_etcd_open(const struct etcd_place *place, struct election *election, const char *directory,
                    struct store **out, struct error *err)
{
	struct etcd_store *s = calloc(1, sizeof(*s));
	struct etcd_place from = *place;
	int r;

	if (!s)
		return error_oom(err);
	s->election = election;
	/* A member that has gone with the controller before is not asked first. */
	from.first = election_member(election);
	r = etcd_open(&from, &s->etcd, err);
	if (r == 0)
		r = open_all(s, directory, out, err);
	if (r < 0) {
		etcd_store_close(s);
		return r;
	}
	store_set_primary(*out, &etcd_primary, s);
	return 0;
}
