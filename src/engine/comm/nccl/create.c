/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, splits and destroys communicators over NCCL. internal.h says how the parts go together. */
#include "engine/comm/nccl/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "engine/comm/nccl/library.h"
#include "engine/comm/split.h"

/* ---- bootstrap ---- */
static int share_id(const struct comm_options *o, ncclUniqueId *id, struct error *err)
{
	_cleanup_free_ void *data = NULL;
	char key[200];
	ncclResult_t r;
	size_t len = 0;
	int e;

	snprintf(key, sizeof(key), "%s/nccl-id", o->group ? o->group : "world");
	if (o->rank == 0) {
		r = ncclGetUniqueId(id);
		if (r != ncclSuccess)
			return error_set(err, -EIO, "NCCL cannot listen for the other ranks: %s",
			                 ncclGetLastError(NULL));
		return o->store->put(o->store->context, key, id, sizeof(*id), err);
	}
	e = o->store->get(o->store->context, key, o->timeout_s * 1000, &data, &len, err);
	if (e == -ETIMEDOUT)
		return error_prefix(err, "rank 0 has not published its NCCL id within %d s", o->timeout_s);
	if (e < 0)
		return e;
	if (len != sizeof(*id))
		return error_set(err, -EPROTO,
		                 "rank 0 has another version of NCCL: its id has %zu bytes, not %zu", len,
		                 sizeof(*id));
	memcpy(id, data, sizeof(*id));
	return 0;
}

/* c->nccl is being made: waits until it is. Under lock. */
static int settle_new(struct comm *c, ncclResult_t n, struct error *err)
{
	char words[480];

	n = comm_settle(c, n, clock_monotonic() + c->timeout_s);
	if (n == ncclInProgress) {
		stall_ask(&c->stall, 0, "", words, sizeof(words));
		comm_fail(c, -ETIMEDOUT, "the %d ranks did not all connect within %d s: %s", c->size,
		          c->timeout_s, words);
	} else if (n != ncclSuccess) {
		comm_fail_nccl(c, "connecting to the other ranks", n);
	}
	c->last_progress_at = clock_monotonic();
	if (c->failed && err)
		*err = c->failure;
	return c->failed;
}

static int bootstrap(struct comm *c, const struct comm_options *o, struct error *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	int r;

	if ((r = stall_report(&c->stall, BOOTSTRAPPING, 0, "", err)) < 0 || (r = share_id(o, &id, err)) < 0)
		return r;
	c->reported = PROGRESSING; /* the state that this rank is in after the bootstrap */
	config.blocking = 0;
	pthread_mutex_lock(&c->lock);
	r = settle_new(c, ncclCommInitRankConfig(&c->nccl, c->size, id, c->rank, &config), err);
	pthread_mutex_unlock(&c->lock);
	return r;
}

static int open_stream(struct comm *c, struct error *err)
{
	int least = 0, greatest = 0;
	cudaError_t s;

	if ((s = cudaDeviceGetStreamPriorityRange(&least, &greatest)) ||
	    (s = cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, greatest)) ||
	    (s = cudaEventCreateWithFlags(&c->computed, cudaEventDisableTiming)) ||
	    (s = cudaMalloc((void **)&c->token, sizeof(*c->token))))
		return device_cuda_error(c->dev, s, "cannot make the communicator's stream", err);
	/* On the compute stream, which a collective waits for: the default stream is ordered with neither. */
	device_zero(c->dev, c->token, sizeof(*c->token));
	for (; c->events < EVENTS; c->events++)
		if ((s = cudaEventCreateWithFlags(&c->event[c->events], cudaEventDisableTiming)) ||
		    (s = cudaEventCreateWithFlags(&c->begun[c->events], cudaEventDisableTiming)))
			return device_cuda_error(c->dev, s, "cannot make the communicator's events", err);
	return 0;
}

static int start_watching(struct comm *c, struct error *err)
{
	int version = 0, r;

	(void)ncclGetVersion(&version);
	snprintf(c->description, sizeof(c->description), "NCCL %d.%d.%d", version / 10000,
	         version / 100 % 100, version % 100);
	r = -pthread_create(&c->watcher, NULL, comm_watch, c);
	c->watching = r == 0;
	return r < 0 ? error_errno(err, r, "cannot start a thread") : 0;
}

/* Without a connection to other ranks. numbers: of the ranks; NULL: their ranks are their numbers. */
static int create(struct device *dev, const struct comm_options *options, struct family *family,
                  const int *numbers, const char *lane, struct comm **out, struct error *err)
{
	pthread_condattr_t attr;
	struct comm *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return error_oom(err);
	c->dev = dev;
	c->rank = options->rank;
	c->size = options->world_size;
	c->timeout_s = options->timeout_s;
	c->stopping = options->stopping;
	c->stopping_context = options->stopping_context;
	strcpy(c->description, "a single rank");
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &attr);
	pthread_condattr_destroy(&attr);
	if (options->store)
		c->store = *options->store;
	c->group = strdup(options->group ? options->group : "world");
	c->node = options->node ? strdup(options->node) : NULL;
	c->lane = strdup(lane);
	c->numbers = calloc(c->size, sizeof(*c->numbers));
	r = !c->group || (options->node && !c->node) || !c->lane || !c->numbers ? error_oom(err)
	                                                                        : family_join(c, family, err);
	for (int i = 0; r >= 0 && i < c->size; i++)
		c->numbers[i] = numbers ? numbers[i] : i;
	stall_init(&c->stall, options, c->numbers);
	if (r >= 0 && c->size > 1)
		r = open_stream(c, err);
	if (r < 0)
		comm_destroy(c);
	else
		*out = c;
	return r;
}

int comm_create(struct device *dev, const struct comm_options *options, struct comm **out, struct error *err)
{
	struct comm *c;
	int r = 0;

	*out = NULL;
	if (options->world_size < 1 || options->rank < 0 || options->rank >= options->world_size ||
	    options->timeout_s < 1 || (options->world_size > 1 && !options->store))
		return error_set(err, -EINVAL, "rank %d of %d with a time-out of %d s: no such communicator",
		                 options->rank, options->world_size, options->timeout_s);
	if (options->world_size > 1)
		r = nccl_load(err);
	if (r >= 0)
		r = create(dev, options, NULL, NULL, "", &c, err);
	if (r < 0)
		return r;
	if (c->size > 1)
		r = bootstrap(c, options, err);
	if (r >= 0 && c->size > 1)
		r = start_watching(c, err);
	if (r < 0)
		comm_destroy(c);
	else
		*out = c;
	return r;
}

/* ---- splitting ---- */
/* Gathers the choices of all ranks through `buffer`, which is on the device. */
static int gather_choices(struct comm *c, struct split_choice *all, void *buffer, struct error *err)
{
	size_t bytes = (size_t)c->size * sizeof(*all);
	int r;

	if ((r = device_write(c->dev, buffer, all, bytes, err)) < 0 ||
	    (r = comm_wait(c, comm_all_gather(c, buffer, sizeof(*all) / sizeof(float), DTYPE_F32), err)) <
	        0 ||
	    (r = comm_flush(c, err)) < 0)
		return r;
	return device_read(c->dev, all, buffer, bytes, err);
}

/* What every rank has called comm_split with: [size]. */
static int exchange_choices(struct comm *c, struct split_choice own, struct split_choice *all,
                            struct error *err)
{
	void *buffer;
	int r;

	all[c->rank] = own;
	if (c->size == 1)
		return comm_check(c, err);
	if ((r = device_alloc(c->dev, (size_t)c->size * sizeof(*all), &buffer, err)) < 0)
		return r;
	r = gather_choices(c, all, buffer, err);
	device_free(c->dev, buffer);
	return r;
}

/* Makes the communicator of the `size` ranks `members` of c, in which this rank is `rank`; not yet NCCL's. */
static int create_part(struct comm *c, int color, int rank, const int *members, int size, struct comm **out,
                       struct error *err)
{
	_cleanup_free_ char *group = str_printf("%s/%d.%d", c->group, c->splits, color);
	_cleanup_free_ char *lane =
	    str_printf("%s %d.%d", *c->lane ? c->lane : " of communicator", c->splits, color);
	_cleanup_free_ int *numbers = calloc((size_t)size, sizeof(*numbers));
	struct comm_options options = {.rank = rank,
	                               .world_size = size,
	                               .timeout_s = c->timeout_s,
	                               .store = &c->store,
	                               .group = group,
	                               .node = c->node,
	                               .stopping = c->stopping,
	                               .stopping_context = c->stopping_context};

	if (!group || !lane || !numbers)
		return error_oom(err);
	for (int i = 0; i < size; i++)
		numbers[i] = c->numbers[members[i]];
	return create(c->dev, &options, c->family, numbers, lane, out, err);
}

/* Every rank of c calls it; a part of one rank, or of none, needs nothing of NCCL. Where c is made without
 * blocking, `part` is there once c is no longer in progress. */
static int split_nccl(struct comm *c, struct comm *part, int color, struct error *err)
{
	bool joins = part && part->size > 1;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t none = NULL;
	ncclResult_t n;
	int r;

	config.blocking = 0;
	if (joins && (r = stall_report(&part->stall, BOOTSTRAPPING, 0, "", err)) < 0)
		return r;
	pthread_mutex_lock(&c->lock);
	if (!c->failed) {
		n = ncclCommSplit(c->nccl, joins ? color : NCCL_SPLIT_NOCOLOR, joins ? part->rank : 0,
		                  joins ? &part->nccl : &none, &config);
		n = comm_settle(c, n, clock_monotonic() + c->timeout_s);
		if (n == ncclInProgress)
			comm_fail(c, -ETIMEDOUT, "the %d ranks did not all split it within %d s", c->size,
			          c->timeout_s);
		else if (n != ncclSuccess)
			comm_fail_nccl(c, "splitting a communicator", n);
	}
	r = c->failed;
	if (r < 0 && err)
		*err = c->failure;
	pthread_mutex_unlock(&c->lock);
	if (r < 0 || !joins)
		return r;
	part->reported = PROGRESSING; /* the state that this rank is in after the bootstrap */
	pthread_mutex_lock(&part->lock);
	r = settle_new(part, ncclInProgress, err);
	pthread_mutex_unlock(&part->lock);
	return r < 0 ? r : start_watching(part, err);
}

int comm_split(struct comm *c, int color, int key, struct comm **out, struct error *err)
{
	_cleanup_free_ struct split_choice *choices = calloc((size_t)c->size, sizeof(*choices));
	_cleanup_free_ int *members = calloc((size_t)c->size, sizeof(*members));
	struct error failure = ERROR_INIT;
	struct comm *part = NULL;
	int rank = 0, size = 0, r;

	*out = NULL;
	if (!choices || !members)
		return error_oom(err);
	c->splits++;
	r = exchange_choices(c, (struct split_choice){color, key}, choices, &failure);
	if (r >= 0)
		size = split_members(choices, c->size, c->rank, members, &rank);
	if (size)
		r = create_part(c, color, rank, members, size, &part, &failure);
	if (r >= 0 && c->size > 1)
		r = split_nccl(c, part, color, &failure);
	if (r >= 0) {
		*out = part;
		return 0;
	}
	comm_destroy(part);
	/* The other ranks do not wait for this one. */
	pthread_mutex_lock(&c->lock);
	comm_fail(c, r, "%s", failure.message);
	pthread_mutex_unlock(&c->lock);
	if (err)
		*err = failure;
	return r;
}

/* ---- ending ---- */
static void close_nccl(struct comm *c)
{
	ncclResult_t n = ncclSuccess;

	pthread_mutex_lock(&c->lock);
	while (c->aborting)
		comm_pause(c);
	comm_look(c);
	pthread_mutex_unlock(&c->lock);
	/* What follows may wait until the GPU is idle, so that a failure of the others must not wait for
	 * it. */
	family_leave(c);
	pthread_mutex_lock(&c->lock);
	/* While a collective is under way its buffers stay registered; the abort below deregisters them. */
	if (c->nccl && c->completed == c->queued) {
		comm_deregister(c, 0);
		n = comm_settle(c, ncclCommFinalize(c->nccl), clock_monotonic() + 1);
	}
	if (c->nccl && c->completed == c->queued && n == ncclSuccess)
		ncclCommDestroy(c->nccl);
	else if (c->nccl)
		ncclCommAbort(c->nccl);
	c->nccl = NULL;
	pthread_mutex_unlock(&c->lock);
}

void comm_destroy(struct comm *c)
{
	if (!c)
		return;
	if (c->watching) {
		pthread_mutex_lock(&c->lock);
		c->ending = true;
		pthread_cond_signal(&c->wake);
		pthread_mutex_unlock(&c->lock);
		pthread_join(c->watcher, NULL);
	}
	close_nccl(c);
	comm_free_buffers(c);
	for (int i = 0; i < EVENTS; i++) {
		if (c->event[i])
			(void)cudaEventDestroy(c->event[i]);
		if (c->begun[i])
			(void)cudaEventDestroy(c->begun[i]);
	}
	waits_release(&c->waits);
	if (c->computed)
		(void)cudaEventDestroy(c->computed);
	if (c->stream)
		(void)cudaStreamDestroy(c->stream);
	(void)cudaFree(c->token);
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->lock);
	free(c->numbers);
	free(c->group);
	free(c->node);
	free(c->lane);
	free(c);
}
