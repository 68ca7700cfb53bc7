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
 *     pieces/N/S/K   where that is too long for one value: its pieces, K from 0 on, and struct run_pieces in
 *                    its place. S, the series, grows each time, and has 20 digits, K has 6
 *     origins/N      struct run_origin as JSON: what never changes of the run
 *
 * A batch may be more than one transaction of etcd can hold (store_etcd_txn.h). New runs of a batch that etcd
 * refuses in its middle are removed again. The pieces of a run are written in front of what names their
 * series, in earlier transactions or the same one, and those of the series before it are removed behind that.
 * So whichever transaction is the last one of a controller that dies, what runs/N names is there whole; what
 * no entry names, the next controller removes.
 */
#include "cluster/store_etcd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "base/str.h"
#include "cluster/store_backend.h"
#include "cluster/store_etcd_ended.h"
#include "cluster/store_etcd_load.h"
#include "cluster/store_etcd_txn.h"
#include "wire/run_entry.h"

enum {
	ORIGIN_MAX = 1200 * 1000, /* etcd's default is 1.5 MiB for all of a transaction */
	ENTRY_MAX = 1000 * 1000,  /* a longer one is in pieces, */
	PIECE_BYTES = 100 * 1000, /* each of so many bytes but for the last */
	VERSION_BITS = 20, /* of a version that are below the epoch: a new controller gives higher ones */
	CLUSTER_SIZE = 33, /* the id of a cluster, 128 random bits in hexadecimal, and a NUL */
};

/* What etcd has of a run that has not ended: what differs in its progress alone is not written. */
struct written {
	int64_t id;
	uint64_t hash; /* 0: not known */
	bool pieces;   /* there may be some */
};

struct etcd_store {
	struct etcd *etcd;
	struct election *election;
	struct written *written; /* by id */
	size_t written_count;
	/* The names of all keys of drains that have been there. */
	char **drains;
	size_t drain_count;
	struct ended_runs ended;
	int64_t series; /* the next one, above all that controllers before have given */
};

#define KEY_SIZE 320

static void run_key(char key[KEY_SIZE], const char *kind, int64_t id)
{
	snprintf(key, KEY_SIZE, ETCD_PREFIX "%s/%020lld", kind, (long long)id);
}

/* Writing: the store's thread. */

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

/* Numbers grow: what is new comes last. Without memory a run is written once more than needed, or pieces of
 * it stay until the next controller removes them: no harm. */
static int note_written(struct etcd_store *s, int64_t id, uint64_t hash, bool pieces)
{
	struct written *w = find_written(s, id), *list = s->written;

	if (w) {
		w->hash = hash;
		w->pieces = w->pieces || pieces;
		return 0;
	}
	if (s->written_count > 0 && s->written[s->written_count - 1].id > id)
		return 0;
	if ((s->written_count & (s->written_count - 1)) == 0)
		list = reallocarray(list, s->written_count ? 2 * s->written_count : 1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	s->written = list;
	list[s->written_count++] = (struct written){id, hash, pieces};
	return 0;
}

static void forget_written(struct etcd_store *s, int64_t id)
{
	struct written *w = find_written(s, id);

	if (!w)
		return;
	memmove(w, w + 1, (char *)(s->written + --s->written_count) - (char *)w);
}

/* Those of all series so far but the newest, or of that, too. */
static int remove_pieces(struct etcd_store *s, struct store_etcd_txn *t, int64_t id, bool newest,
                         struct error *err)
{
	char from[KEY_SIZE], end[KEY_SIZE];

	snprintf(from, sizeof(from), ETCD_PREFIX "pieces/%020lld/", (long long)id);
	snprintf(end, sizeof(end), ETCD_PREFIX "pieces/%020lld/%020lld", (long long)id,
	         (long long)(s->series - !newest));
	return store_etcd_remove_range(t, from, end, err);
}

static int remove_run(struct etcd_store *s, struct store_etcd_txn *t, int64_t id, bool pieces,
                      struct error *err)
{
	char key[KEY_SIZE];
	int r;

	run_key(key, "runs", id);
	r = store_etcd_remove(t, key, err);
	if (r < 0)
		return r;
	run_key(key, "origins", id);
	r = store_etcd_remove(t, key, err);
	return r < 0 || !pieces ? r : remove_pieces(s, t, id, true, err);
}

/* The oldest ones that have ended make room for this one. One of a batch that has failed is there already. */
static int note_ended(struct etcd_store *s, struct store_etcd_txn *t, const struct ended_run *e,
                      struct error *err)
{
	struct ended_run oldest;

	if (ended_runs_update(&s->ended, e))
		return 0;
	t->run = STORE_ETCD_NO_RUN;
	while (ended_runs_make_room(&s->ended, e->bytes, &oldest)) {
		int r = remove_run(s, t, oldest.id, oldest.pieces, err);

		if (r < 0)
			return r;
	}
	ended_runs_add(&s->ended, e);
	return 0;
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

static int put_origin(struct etcd_store *s, struct store_etcd_txn *t, const struct stored_run *stored,
                      struct error *err)
{
	_cleanup_free_ char *text = NULL;
	char key[KEY_SIZE];
	int r = make_origin(stored, &text, err);

	if (r < 0)
		return r;
	run_key(key, "origins", stored->run.id);
	return store_etcd_put(t, key, text, err);
}

/* *named: what is in place of the text, to be freed. */
static int put_pieces(struct etcd_store *s, struct store_etcd_txn *t, int64_t id, const char *text,
                      char **named, struct error *err)
{
	struct run_pieces pieces = {.series = s->series++, .bytes = (int64_t)strlen(text)};
	_cleanup_json_ json_t *json = NULL;

	for (int64_t from = 0; from < pieces.bytes; from += PIECE_BYTES) {
		_cleanup_free_ char *piece = strndup(text + from, PIECE_BYTES);
		char key[KEY_SIZE];
		int r;

		if (!piece)
			return error_oom(err);
		snprintf(key, sizeof(key), ETCD_PREFIX "pieces/%020lld/%020lld/%06lld", (long long)id,
		         (long long)pieces.series, (long long)pieces.pieces++);
		r = store_etcd_put(t, key, piece, err);
		if (r < 0)
			return r;
	}
	json = run_pieces_encode(&pieces);
	*named = json ? json_to_string(json) : NULL;
	return *named ? 0 : error_oom(err);
}

/* The entry, and no pieces but its own. */
static int put_entry(struct etcd_store *s, struct store_etcd_txn *t, int64_t id, const char *text,
                     bool has_pieces, struct error *err)
{
	bool whole = strlen(text) <= ENTRY_MAX;
	_cleanup_free_ char *named = NULL;
	char key[KEY_SIZE];
	int r = whole ? 0 : put_pieces(s, t, id, text, &named, err);

	if (r < 0)
		return r;
	run_key(key, "runs", id);
	r = store_etcd_put(t, key, whole ? text : named, err);
	return r < 0 || !has_pieces ? r : remove_pieces(s, t, id, whole, err);
}

static int put_run(struct etcd_store *s, struct store_etcd_txn *t, const struct stored_run *stored,
                   struct error *err)
{
	_cleanup_free_ char *text = entry_text(stored);
	int64_t id = stored->run.id;
	const struct written *before = find_written(s, id);
	const struct ended_run *ended =
	    run_state_final(stored->run.state) ? ended_runs_find(&s->ended, id) : NULL;
	bool had_pieces = before ? before->pieces : ended && ended->pieces, pieces;
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
	pieces = had_pieces || strlen(text) > ENTRY_MAX;
	note_written(s, id, hash, pieces);
	r = put_entry(s, t, id, text, had_pieces, err);
	if (r < 0 || !run_state_final(stored->run.state))
		return r;
	forget_written(s, id);
	return note_ended(s, t, &(struct ended_run){id, strlen(text), pieces}, err);
}

/* The other spellings go last: the node is drained in between, too. */
static int put_drain(struct etcd_store *s, struct store_etcd_txn *t, const struct stored_drain *d,
                     struct error *err)
{
	char key[KEY_SIZE];
	int r;

	if (d->drained && store_etcd_add_name(&s->drains, &s->drain_count, d->node) < 0)
		return error_oom(err);
	snprintf(key, sizeof(key), ETCD_PREFIX "drains/%s", d->node);
	r = d->drained ? store_etcd_put(t, key, d->reason ? d->reason : "", err)
	               : store_etcd_remove(t, key, err);
	for (size_t i = 0; i < s->drain_count && r == 0; i++) {
		if (str_eq(s->drains[i], d->node) || !str_eq_host(s->drains[i], d->node))
			continue;
		snprintf(key, sizeof(key), ETCD_PREFIX "drains/%s", s->drains[i]);
		r = store_etcd_remove(t, key, err);
	}
	return r;
}

static int put_epoch(struct etcd_store *s, struct store_etcd_txn *t, const struct store_batch *b,
                     struct error *err)
{
	char key[KEY_SIZE];
	int r;

	if (b->replaced > 0) {
		run_key(key, "epochs", b->replaced);
		r = store_etcd_remove(t, key, err);
		if (r < 0)
			return r;
	}
	run_key(key, "epochs", b->epoch);
	return store_etcd_put(t, key, "", err);
}

static int put_highest(struct etcd_store *s, struct store_etcd_txn *t, int64_t highest, struct error *err)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)highest);
	return store_etcd_put(t, ETCD_PREFIX "highest", text, err);
}

/* What is committed of new runs whose submissions are answered with an error. What is not new is written
 * again. refused: only of those that etcd has refused. */
static void undo(struct etcd_store *s, const struct store_batch *b, bool refused)
{
	_cleanup_(store_etcd_txn_clear) struct store_etcd_txn t = {.etcd = s->etcd, .election = s->election};
	struct error err = ERROR_INIT;
	int r = 0;

	t.run = STORE_ETCD_NO_RUN;
	for (size_t i = 0; i < b->run_count && r == 0; i++) {
		int64_t id = b->runs[i].run.id;
		struct written *w = find_written(s, id);
		bool pieces = w && w->pieces;

		if (refused && !b->runs[i].refused)
			continue;
		if (w)
			w->hash = 0;
		if (!b->runs[i].config)
			continue;
		forget_written(s, id);
		r = remove_run(s, &t, id, pieces, &err);
	}
	if (r == 0)
		r = store_etcd_send(&t, &err);
	if (r < 0)
		election_lose(s->election, err.message);
}

/* Where something of a new run is refused, all that the batch has of it is. */
static int refuse_rest(struct store_batch *b, size_t new, struct error *err)
{
	const char *why = NULL;

	for (size_t i = new; i < b->run_count && !why; i++)
		if (b->runs[i].run.id == b->runs[new].run.id)
			why = b->runs[i].refused;
	for (size_t i = new; i < b->run_count &&why; i++) {
		if (b->runs[i].run.id != b->runs[new].run.id || b->runs[i].refused)
			continue;
		b->runs[i].refused = strdup(why);
		if (!b->runs[i].refused)
			return error_oom(err);
		b->refused++;
	}
	return 0;
}

static int refuse_new_runs(struct store_batch *b, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < b->run_count && r == 0; i++)
		if (b->runs[i].config)
			r = refuse_rest(b, i, err);
	return r;
}

static int etcd_apply(void *self, struct store_batch *b, struct error *err)
{
	struct etcd_store *s = self;
	_cleanup_(store_etcd_txn_clear) struct store_etcd_txn t = {
	    .etcd = s->etcd, .election = s->election, .batch = b, .run = STORE_ETCD_NO_RUN};
	int r = 0;

	if (b->epoch > 0)
		r = put_epoch(s, &t, b, err);
	if (r == 0 && b->highest > 0)
		r = put_highest(s, &t, b->highest, err);
	for (size_t i = 0; i < b->drain_count && r == 0; i++)
		r = put_drain(s, &t, &b->drains[i], err);
	for (size_t i = 0; i < b->run_count && r == 0; i++) {
		t.run = (long)i;
		r = put_run(s, &t, &b->runs[i], err);
	}
	if (r == 0)
		r = store_etcd_send(&t, err);
	if (r == 0 && b->refused > 0)
		r = refuse_new_runs(b, err);
	if ((r < 0 && r != -ESTALE) || (r == 0 && b->refused > 0))
		undo(s, b, r == 0);
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
	_cleanup_(store_etcd_txn_clear) struct store_etcd_txn t = {
	    .etcd = s->etcd, .election = s->election, .run = STORE_ETCD_NO_RUN};
	int r = store_etcd_read_value(s->etcd, ETCD_PREFIX "cluster", out, err);

	if (r < 0 || *out)
		return r;
	*out = malloc(CLUSTER_SIZE);
	if (!*out)
		return error_oom(err);
	r = random_hex(*out, CLUSTER_SIZE);
	if (r < 0)
		return error_errno(err, r, "cannot make a random id of the cluster");
	r = store_etcd_put(&t, ETCD_PREFIX "cluster", *out, err);
	return r < 0 ? r : store_etcd_send(&t, err);
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
static int note_loaded(struct etcd_store *s, struct store_etcd_contents *l, struct error *err)
{
	s->drains = steal_pointer(l->drains);
	s->drain_count = l->drain_count;
	l->drain_count = 0;
	for (size_t i = 0; i < l->batch.run_count; i++) {
		const struct stored_run *stored = &l->batch.runs[i];
		const struct ended_run e = {stored->run.id, l->sizes[i].bytes, l->sizes[i].pieces};

		if (!run_state_final(stored->run.state)) {
			if (note_written(s, e.id, 0, e.pieces) < 0)
				return error_oom(err);
			continue;
		}
		ended_runs_add(&s->ended, &e);
	}
	return 0;
}

/* Pieces that no entry names: those of a controller that has died before it could write that, or remove them.
 */
static int remove_stale(struct etcd_store *s, char *const *keys, struct error *err)
{
	_cleanup_(store_etcd_txn_clear) struct store_etcd_txn t = {
	    .etcd = s->etcd, .election = s->election, .run = STORE_ETCD_NO_RUN};
	int r = 0;

	for (; keys && *keys && r == 0; keys++)
		r = store_etcd_remove(&t, *keys, err);
	return r < 0 ? r : store_etcd_send(&t, err);
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
	s->series = start.least_epoch << VERSION_BITS;
	if (r == 0)
		r = note_loaded(s, &contents, err);
	if (r == 0)
		r = remove_stale(s, contents.stale, err);
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
