/* SPDX-License-Identifier: Apache-2.0 */
/* A store whose commits a test can hold back, count and make fail, around a real one: held_store.h. */
#include "held_store.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "cluster/store_backend.h"
#include "unit.h"

struct held_store {
	const struct store_backend *inner;
	void *self;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hold, held, closed, endless;
	int fail, begun, copies;
	int64_t refused;
	int refusals;
};

struct held_copy {
	struct held_store *store;
	void *inner;
};

static int apply(void *self, const struct store_batch *b, struct error *err)
{
	struct held_store *h = self;
	bool fail;

	pthread_mutex_lock(&h->lock);
	h->begun++;
	h->held = h->hold;
	pthread_cond_broadcast(&h->changed);
	while (h->hold)
		pthread_cond_wait(&h->changed, &h->lock);
	h->held = false;
	fail = h->fail > 0;
	h->fail -= fail;
	pthread_mutex_unlock(&h->lock);
	return fail ? error_set(err, -EIO, "the disk is gone") : h->inner->apply(h->self, b, err);
}

static int refuse(void *self, struct store_batch *b, struct error *err)
{
	struct held_store *h = self;
	int64_t id;

	pthread_mutex_lock(&h->lock);
	id = h->refused;
	pthread_mutex_unlock(&h->lock);
	for (size_t i = 0; i < b->run_count; i++) {
		if (b->runs[i].run.id != id)
			continue;
		b->runs[i].refused = strdup("it is too large");
		b->refused++;
	}
	pthread_mutex_lock(&h->lock);
	h->refusals += b->refused > 0;
	pthread_mutex_unlock(&h->lock);
	return 0;
}

static void copy_failed(void *self, const struct error *err)
{
}

static void close_nothing(void *self)
{
}

static int backup_begin(void *self, const char *path, void **backup, struct error *err)
{
	struct held_store *h = self;
	struct held_copy *copy = calloc(1, sizeof(*copy));
	int r = h->inner->backup_begin(h->self, path, &copy->inner, err);

	if (r < 0) {
		free(copy);
		return r;
	}
	copy->store = h;
	*backup = copy;
	pthread_mutex_lock(&h->lock);
	h->copies++;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

static int backup_step(void *backup, bool *finished, struct error *err)
{
	struct held_copy *copy = backup;
	struct held_store *h = copy->store;
	bool endless;

	pthread_mutex_lock(&h->lock);
	endless = h->endless;
	pthread_mutex_unlock(&h->lock);
	*finished = false;
	return endless ? 0 : h->inner->backup_step(copy->inner, finished, err);
}

static void backup_free(void *backup)
{
	struct held_copy *copy = backup;
	struct held_store *h = copy->store;

	h->inner->backup_free(copy->inner);
	pthread_mutex_lock(&h->lock);
	h->copies--;
	pthread_mutex_unlock(&h->lock);
	free(copy);
}

static int get(void *self, int64_t id, struct run **out, struct error *err)
{
	struct held_store *h = self;

	return h->inner->get(h->self, id, out, err);
}

static int config(void *self, int64_t id, char **text, struct error *err)
{
	struct held_store *h = self;

	return h->inner->config(h->self, id, text, err);
}

static int find_key(void *self, int64_t uid, const char *key, int64_t *id, struct error *err)
{
	struct held_store *h = self;

	return h->inner->find_key(h->self, uid, key, id, err);
}

static int list(void *self, const struct run_query *query,
                int (*each)(void *context, struct run *r, struct error *err), void *context,
                struct error *err)
{
	struct held_store *h = self;

	return h->inner->list(h->self, query, each, context, err);
}

static int counts(void *self, int64_t numbers[RUN_STATES], struct error *err)
{
	struct held_store *h = self;

	return h->inner->counts(h->self, numbers, err);
}

static bool drained(void *self, const char *node, char **reason)
{
	struct held_store *h = self;

	return h->inner->drained(h->self, node, reason);
}

static bool has_epoch(void *self, int64_t epoch)
{
	struct held_store *h = self;

	return h->inner->has_epoch(h->self, epoch);
}

static void close_inner(void *self)
{
	struct held_store *h = self;

	ck_assert_int_eq(h->copies, 0);
	h->inner->close(h->self);
	h->closed = true;
}

void held_store_open(const char *path, struct held_store **held, struct store **store)
{
	static struct store_backend backend = {
	    .apply = apply,
	    .backup_begin = backup_begin,
	    .backup_step = backup_step,
	    .backup_free = backup_free,
	    .get = get,
	    .config = config,
	    .find_key = find_key,
	    .list = list,
	    .counts = counts,
	    .drained = drained,
	    .has_epoch = has_epoch,
	    .close = close_inner,
	};
	static const struct store_primary refusing = {
	    .apply = refuse, .copy_failed = copy_failed, .close = close_nothing};
	struct held_store *h = calloc(1, sizeof(*h));
	struct store_start start = {0};
	struct error err = ERROR_INIT;

	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->changed, NULL);
	ck_ok(store_sqlite_open(path, &h->inner, &h->self, &start, &err), &err);
	ck_ok(store_create(&backend, h, &start, store, &err), &err);
	free(start.cluster);
	store_set_primary(*store, &refusing, h);
	*held = h;
}

void held_store_free(struct held_store *h)
{
	ck_assert(h->closed);
	pthread_cond_destroy(&h->changed);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

static void set_hold(struct held_store *h, bool hold)
{
	pthread_mutex_lock(&h->lock);
	h->hold = hold;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

void held_store_hold(struct held_store *h)
{
	set_hold(h, true);
}

void held_store_release(struct held_store *h)
{
	set_hold(h, false);
}

void held_store_begin_endless_copy(struct held_store *h, struct store *s, const char *path)
{
	struct store_backup *b;
	struct error err = ERROR_INIT;

	h->endless = true; /* no copy is under way */
	ck_ok(store_backup_begin(s, path, NULL, NULL, &b, &err), &err);
	pthread_mutex_lock(&h->lock);
	while (h->copies == 0)
		pthread_cond_wait(&h->changed, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

void held_store_fail(struct held_store *h, int count)
{
	pthread_mutex_lock(&h->lock);
	h->fail = count;
	pthread_mutex_unlock(&h->lock);
}

void held_store_refuse(struct held_store *h, int64_t id)
{
	pthread_mutex_lock(&h->lock);
	h->refused = id;
	pthread_mutex_unlock(&h->lock);
}

int held_store_refusals(struct held_store *h)
{
	int n;

	pthread_mutex_lock(&h->lock);
	n = h->refusals;
	pthread_mutex_unlock(&h->lock);
	return n;
}

int held_store_begun(struct held_store *h)
{
	int n;

	pthread_mutex_lock(&h->lock);
	n = h->begun;
	pthread_mutex_unlock(&h->lock);
	return n;
}

void held_store_await_held(struct held_store *h)
{
	pthread_mutex_lock(&h->lock);
	while (!h->held)
		pthread_cond_wait(&h->changed, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

void held_store_await_done(const struct store *s)
{
	ck_assert_int_eq(poll(&(struct pollfd){.fd = store_fd(s), .events = POLLIN}, 1, 60000), 1);
}

bool held_store_is_drained(struct held_store *h, const char *node)
{
	_cleanup_free_ char *reason = NULL;

	return h->inner->drained(h->self, node, &reason);
}
