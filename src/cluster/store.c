/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store as the event loop sees it: it collects changes into a batch, and a thread commits one batch at a
 * time with the functions of the kind of store.
 *
 *            store_commit            applied by the thread          store_dispatch
 *   IDLE ------------------> WRITING ----------------------> WRITTEN --------------> IDLE, callback
 *
 * The thread touches nothing but the batch in flight, the backups, and the writing side of the store; `lock`
 * guards these states. Whatever else is here belongs to the event loop. What a failed commit must not lose
 * (drains, the epoch, the run numbers) is in the next batch again; the runs are the caller's.
 */
#include "cluster/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "cluster/store_backend.h"

enum commit_state { IDLE, WRITING, WRITTEN };

struct store {
	const struct store_backend *backend;
	void *self;
	const struct store_primary *primary; /* NULL: there is none */
	void *primary_self;
	char *cluster;
	int64_t epoch, highest; /* on disk */
	int64_t newest_epoch, newest_highest;
	int64_t least_epoch; /* that may begin */
	bool replaces;       /* newest_epoch does, the one on disk */
	struct store_batch next;
	const struct store_batch *finished; /* while its callback is called; NULL otherwise */
	store_done_fn done;
	void *context;
	int event_fd;
	pthread_t thread;
	bool has_thread;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum commit_state state;
	struct store_batch flight;
	int code; /* of the commit that is WRITTEN */
	struct error err;
	struct store_backup *backups;
	bool closing;
};

struct store_backup {
	struct store *store;
	struct store_backup *next;
	store_done_fn done;
	void *context;
	char *path;
	void *copy; /* the thread's; NULL: not begun, or ended */
	bool ended, called, freed;
	int code;
	struct error err;
};

static void notify(struct store *s)
{
	uint64_t one = 1;

	pthread_cond_broadcast(&s->changed);
	if (write(s->event_fd, &one, sizeof(one)) < 0)
		log_err("store: cannot wake the event loop: %m");
}

static int apply(struct store *s, struct store_batch *b, struct error *err)
{
	int code = b->failed ? error_oom(err) : s->primary ? s->primary->apply(s->primary_self, b, err) : 0;

	if (code < 0)
		return code;
	code = s->backend->apply(s->self, b, err);
	if (code < 0 && s->primary)
		s->primary->copy_failed(s->primary_self, err);
	return code;
}

/* The functions of the thread are called with the lock, and give it away while they write. */
static void apply_flight(struct store *s)
{
	struct error err = ERROR_INIT;
	int code;

	pthread_mutex_unlock(&s->lock);
	code = apply(s, &s->flight, &err);
	pthread_mutex_lock(&s->lock);
	s->code = code;
	s->err = err;
	s->state = WRITTEN;
	notify(s);
}

static void backup_end(struct store_backup *b, int code)
{
	if (b->copy)
		b->store->backend->backup_free(b->copy);
	b->copy = NULL;
	b->code = code;
	b->ended = true;
}

static void backup_slice(struct store_backup *b)
{
	struct store *s = b->store;
	bool finished = false;
	int code = 0;

	pthread_mutex_unlock(&s->lock);
	if (!b->copy)
		code = s->backend->backup_begin(s->self, b->path, &b->copy, &b->err);
	if (code == 0)
		code = s->backend->backup_step(b->copy, &finished, &b->err);
	pthread_mutex_lock(&s->lock);
	if (code < 0 || finished) {
		backup_end(b, code);
		notify(s);
	}
}

/* One slice of a backup, or the end of one that was freed. False: there is nothing to do. */
static bool work_on_backups(struct store *s)
{
	for (struct store_backup **at = &s->backups; *at; at = &(*at)->next) {
		struct store_backup *b = *at;

		if (b->freed) {
			*at = b->next;
			backup_end(b, 0);
			free(b->path);
			free(b);
			return true;
		}
		if (!b->ended) {
			backup_slice(b);
			return true;
		}
	}
	return false;
}

static void *thread_main(void *context)
{
	struct store *s = context;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		if (s->state == WRITING)
			apply_flight(s);
		else if (s->closing && !s->backups)
			break;
		else if (!work_on_backups(s))
			pthread_cond_wait(&s->changed, &s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int start_thread(struct store *s, struct error *err)
{
	int r;

	s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->event_fd < 0)
		return error_errno(err, -errno, "cannot set up the store");
	r = thread_start(&s->thread, thread_main, s);
	s->has_thread = r == 0;
	return r < 0 ? error_errno(err, r, "cannot start the store's thread") : 0;
}

int store_create(const struct store_backend *backend, void *self, const struct store_start *start,
                 struct store **out, struct error *err)
{
	_cleanup_(store_closep) struct store *s = calloc(1, sizeof(*s));
	int r;

	if (!s) {
		backend->close(self);
		return error_oom(err);
	}
	s->backend = backend;
	s->self = self;
	s->event_fd = -1;
	s->epoch = s->newest_epoch = start->epoch;
	s->highest = s->newest_highest = start->highest;
	s->least_epoch = start->least_epoch;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->cluster = strdup(start->cluster);
	if (!s->cluster)
		return error_oom(err);
	r = start_thread(s, err);
	if (r < 0)
		return r;
	*out = steal_pointer(s);
	return 0;
}

void store_set_primary(struct store *s, const struct store_primary *primary, void *self)
{
	pthread_mutex_lock(&s->lock);
	s->primary = primary;
	s->primary_self = self;
	pthread_mutex_unlock(&s->lock);
}

int store_open(const char *path, struct store **out, struct error *err)
{
	const struct store_backend *backend;
	struct store_start start = {0};
	void *self;
	int r = store_sqlite_open(path, &backend, &self, &start, err);

	if (r == 0)
		r = store_create(backend, self, &start, out, err);
	free(start.cluster);
	return r;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->closing = true;
	for (struct store_backup *b = s->backups; b; b = b->next)
		b->freed = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	if (s->has_thread)
		pthread_join(s->thread, NULL);
	if (s->primary)
		s->primary->close(s->primary_self);
	s->backend->close(s->self);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	closep(&s->event_fd);
	store_batch_clear(&s->flight);
	store_batch_clear(&s->next);
	free(s->cluster);
	free(s);
}

int store_insert(struct store *s, struct run *r, const char *config, struct error *err)
{
	r->id = s->newest_highest + 1;
	if (store_batch_add_run(&s->next, r, config) < 0)
		return error_oom(err);
	s->newest_highest = r->id;
	return 0;
}

int store_check(struct store *s, const struct run *r, const char *config, struct error *err)
{
	return s->primary && s->primary->check ? s->primary->check(s->primary_self, r, config, err) : 0;
}

void store_update(struct store *s, const struct run *r)
{
	if (store_batch_add_run(&s->next, r, NULL) < 0)
		s->next.failed = true;
}

int store_set_drained(struct store *s, const char *node, bool drained, const char *reason, struct error *err)
{
	return store_batch_set_drained(&s->next, node, drained, reason) < 0 ? error_oom(err) : 0;
}

void store_begin_epoch(struct store *s, int64_t above, bool replace)
{
	/* One that is in no batch yet is never written, and replaces nothing for the one after it. */
	bool in_no_batch = s->newest_epoch > MAX(s->epoch, s->flight.epoch);

	s->replaces = replace && (s->replaces || !in_no_batch);
	s->newest_epoch = MAX(MAX(s->newest_epoch, above) + 1, s->least_epoch);
}

void store_lift(struct store *s, int64_t highest)
{
	s->newest_highest = MAX(s->newest_highest, highest);
}

bool store_is_busy(const struct store *s)
{
	struct store *locked = (struct store *)s;
	bool busy;

	pthread_mutex_lock(&locked->lock);
	busy = s->state != IDLE;
	pthread_mutex_unlock(&locked->lock);
	return busy;
}

void store_commit(struct store *s, store_done_fn done, void *context)
{
	if (s->newest_epoch > s->epoch) {
		s->next.epoch = s->newest_epoch;
		s->next.replaced = s->replaces ? s->epoch : 0;
	}
	if (s->newest_highest > s->highest)
		s->next.highest = s->newest_highest;
	s->done = done;
	s->context = context;
	pthread_mutex_lock(&s->lock);
	s->flight = s->next;
	s->state = WRITING;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	s->next = (struct store_batch){0};
}

/* The drains of a failed batch, where nothing newer is known of the node. */
static void keep_drains(struct store *s, const struct store_batch *failed)
{
	for (size_t i = 0; i < failed->drain_count; i++) {
		const struct stored_drain *d = &failed->drains[i];

		if (!store_batch_find_drain(&s->next, d->node) &&
		    store_batch_set_drained(&s->next, d->node, d->drained, d->reason) < 0)
			log_err("store: node %s: out of memory", d->node);
	}
}

static void finish_commit(struct store *s)
{
	struct store_batch batch = {0};
	store_done_fn done = s->done;
	struct error err = ERROR_INIT;
	int code = 0;
	bool written;

	pthread_mutex_lock(&s->lock);
	written = s->state == WRITTEN;
	if (written) {
		batch = s->flight;
		s->flight = (struct store_batch){0};
		s->state = IDLE;
		code = s->code;
		err = s->err;
	}
	pthread_mutex_unlock(&s->lock);
	if (!written)
		return;
	if (code < 0) {
		keep_drains(s, &batch);
		s->replaces = s->replaces && (batch.epoch == 0 || batch.replaced > 0);
	} else {
		s->epoch = MAX(s->epoch, batch.epoch);
		s->highest = MAX(s->highest, batch.highest);
	}
	s->done = NULL;
	s->finished = &batch;
	if (done)
		done(s->context, code, &err);
	s->finished = NULL;
	store_batch_clear(&batch);
}

const char *store_refusal(const struct store *s, int64_t id)
{
	const struct store_batch *b = s->finished;

	for (size_t i = 0; b && b->refused > 0 && i < b->run_count; i++)
		if (b->runs[i].run.id == id && b->runs[i].refused)
			return b->runs[i].refused;
	return NULL;
}

static struct store_backup *next_ended(struct store *s)
{
	struct store_backup *b;

	pthread_mutex_lock(&s->lock);
	for (b = s->backups; b && (!b->ended || b->called || b->freed);)
		b = b->next;
	if (b)
		b->called = true;
	pthread_mutex_unlock(&s->lock);
	return b;
}

void store_dispatch(struct store *s)
{
	struct store_backup *b;
	uint64_t count;

	while (read(s->event_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	finish_commit(s);
	while ((b = next_ended(s))) {
		struct error err = b->err; /* the callback frees b */

		b->done(b->context, b->code, &err);
	}
}

int store_fd(const struct store *s)
{
	return s->event_fd;
}

void store_wait(struct store *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->state == WRITING)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
	finish_commit(s);
}

static void take_error(void *context, int code, const struct error *err)
{
	*(struct error *)context = *err;
}

int store_commit_epoch(struct store *s, struct error *err)
{
	struct error result = ERROR_INIT;

	store_begin_epoch(s, 0, false);
	store_commit(s, take_error, &result);
	store_wait(s);
	return result.code < 0 ? error_set(err, result.code, "%s", result.message) : 0;
}

int store_get(struct store *s, int64_t id, struct run **out, struct error *err)
{
	return s->backend->get(s->self, id, out, err);
}

int store_config(struct store *s, int64_t id, char **text, struct error *err)
{
	return s->backend->config(s->self, id, text, err);
}

int store_find_key(struct store *s, int64_t uid, const char *key, int64_t *id, struct error *err)
{
	return s->backend->find_key(s->self, uid, key, id, err);
}

int store_list(struct store *s, const struct run_query *query,
               int (*each)(void *context, struct run *r, struct error *err), void *context, struct error *err)
{
	return s->backend->list(s->self, query, each, context, err);
}

int store_counts(struct store *s, int64_t counts[RUN_STATES], struct error *err)
{
	return s->backend->counts(s->self, counts, err);
}

/* The batch in flight is not changed by the thread. */
bool store_drained(struct store *s, const char *node, char **reason)
{
	const struct stored_drain *d = store_batch_find_drain(&s->next, node);

	if (!d)
		d = store_batch_find_drain(&s->flight, node);
	if (!d)
		return s->backend->drained(s->self, node, reason);
	*reason = d->drained && d->reason ? strdup(d->reason) : NULL;
	return d->drained;
}

const char *store_cluster(const struct store *s)
{
	return s->cluster;
}

int64_t store_epoch(const struct store *s)
{
	return s->epoch;
}

int64_t store_newest_epoch(const struct store *s)
{
	return s->newest_epoch;
}

bool store_has_epoch(struct store *s, int64_t epoch)
{
	/* Each report names one, nearly always this one. */
	return (epoch > 0 && epoch == s->epoch) || s->backend->has_epoch(s->self, epoch);
}

int64_t store_highest(const struct store *s)
{
	return s->highest;
}

int64_t store_newest_highest(const struct store *s)
{
	return s->newest_highest;
}

int store_backup_begin(struct store *s, const char *path, store_done_fn done, void *context,
                       struct store_backup **out, struct error *err)
{
	struct store_backup *b = calloc(1, sizeof(*b));

	if (!b)
		return error_oom(err);
	*b = (struct store_backup){.store = s, .done = done, .context = context, .path = strdup(path)};
	if (!b->path) {
		free(b);
		return error_oom(err);
	}
	pthread_mutex_lock(&s->lock);
	b->next = s->backups;
	s->backups = b;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	*out = b;
	return 0;
}

void store_backup_free(struct store_backup *b)
{
	struct store *s;

	if (!b)
		return;
	s = b->store;
	pthread_mutex_lock(&s->lock);
	b->freed = true; /* the copy is the thread's to end */
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}
