/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h over UCX: creating, queueing and waiting. internal.h says who owns what. */
#include "engine/comm/ucx/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "engine/comm/split.h"

static comm_ticket enqueue(struct comm *c, const struct operation *o)
{
	uint64_t ticket = c->queued + 1;

	if (c->size == 1) {
		c->queued = c->completed = ticket;
		return ticket;
	}
	if (ticket - c->completed > QUEUE_MAX - 1)
		comm_wait(c, ticket - (QUEUE_MAX - 1), NULL);
	c->queue[ticket % QUEUE_MAX] = *o;
	atomic_store(&c->queued, ticket);
	if (c->asleep)
		family_wake(c);
	return ticket;
}

static int watch(int epoll, int fd, uint32_t who)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = who};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int open_epolls(struct comm *c, struct error *err)
{
	int ucx_fd, r;

	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->control_epoll = epoll_create1(EPOLL_CLOEXEC);
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (c->wake_fd < 0 || c->control_epoll < 0 || c->epoll < 0)
		return error_errno(err, -errno, "eventfd, epoll");
	if (ucp_worker_get_efd(c->worker, &ucx_fd) != UCS_OK)
		return error_set(err, -ENODEV,
		                 "UCX's transports cannot wake a sleeping thread: is UCX_TLS set?");
	r = watch(c->control_epoll, c->wake_fd, c->rank);
	for (int i = 0; i < c->size && r >= 0; i++)
		if (i != c->rank)
			r = watch(c->control_epoll, c->peers[i].fd, i);
	if (r < 0 || (r = watch(c->epoll, c->control_epoll, 0)) < 0 || (r = watch(c->epoll, ucx_fd, 0)) < 0)
		return error_errno(err, r, "epoll");
	return 0;
}

static int open_ucx(struct comm *c, const struct comm_options *options, struct error *err)
{
	_cleanup_free_ void *address = NULL;
	size_t len;
	int r;

	c->peers = calloc(c->size, sizeof(*c->peers));
	c->transfers = calloc(transfers_max(c->size), sizeof(*c->transfers));
	c->scratch = aligned_alloc(HUGE_PAGE, SCRATCH_BYTES);
	c->parts = calloc(c->size, sizeof(*c->parts));
	c->streams = calloc(c->size, sizeof(*c->streams));
	if (!c->streams || !c->peers || !c->transfers || !c->scratch || !c->parts)
		return error_oom(err);
	/* This is only advice: a failure changes nothing. */
	(void)madvise(c->scratch, SCRATCH_BYTES, MADV_HUGEPAGE);
	memset(c->scratch, 0, SCRATCH_BYTES);
	for (int i = 0; i < c->size; i++)
		c->peers[i].fd = c->peers[i].stream_fd = -1;
	if ((r = transport_open(c, &address, &len, err)) < 0 ||
	    (r = bootstrap_connect(c, options, address, len, c->peers, err)) < 0)
		return r;
	for (int i = 0; !*c->lane && i < c->size; i++)
		strcpy(c->family->hosts[i], c->peers[i].host);
	if ((r = open_epolls(c, err)) < 0 || (r = transport_connect(c, err)) < 0 ||
	    (r = progress_start(c, collective_run, err)) < 0)
		return r;
	return comm_wait(c, enqueue(c, &(struct operation){.kind = KIND_BOOTSTRAP}), err);
}

/* numbers: of the ranks; NULL: their ranks are their numbers. */
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
	c->wake_fd = c->control_epoll = c->epoll = -1;
	strcpy(c->description, "a single rank");
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_cond_init(&c->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (options->store)
		c->store = *options->store;
	c->group = strdup(options->group && *options->group ? options->group : "comm");
	c->lane = strdup(lane);
	c->node = options->node ? strdup(options->node) : NULL;
	c->numbers = calloc(c->size, sizeof(*c->numbers));
	r = !c->group || !c->lane || (options->node && !c->node) || !c->numbers ? error_oom(err)
	                                                                        : family_join(c, family, err);
	for (int i = 0; r >= 0 && i < c->size; i++)
		c->numbers[i] = numbers ? numbers[i] : i;
	if (r >= 0 && c->size > 1)
		r = open_ucx(c, options, err);
	if (r < 0)
		comm_destroy(c);
	else
		*out = c;
	return r;
}

int comm_create(struct device *dev, const struct comm_options *options, struct comm **out, struct error *err)
{
	*out = NULL;
	if (options->world_size < 1 || options->world_size > 65535 || options->rank < 0 ||
	    options->rank >= options->world_size || options->timeout_s < 1 ||
	    (options->world_size > 1 && !options->store))
		return error_set(err, -EINVAL, "rank %d of %d with a time-out of %d s: no such communicator",
		                 options->rank, options->world_size, options->timeout_s);
	return create(dev, options, NULL, NULL, "", out, err);
}

/* Makes the communicator of the `size` ranks `members` of c, in which this rank is `rank`. */
static int create_part(struct comm *c, int color, int rank, const int *members, int size, struct comm **out,
                       struct error *err)
{
	_cleanup_free_ char *group = str_printf("%s/%d.%d", c->group, c->splits, color);
	_cleanup_free_ char *lane =
	    str_printf("%s %d.%d", *c->lane ? c->lane : " of communicator", c->splits, color);
	_cleanup_free_ int *numbers = calloc(size, sizeof(*numbers));
	struct comm_options options = {.rank = rank,
	                               .world_size = size,
	                               .timeout_s = c->timeout_s,
	                               .store = &c->store,
	                               .group = group,
	                               .node = c->node};

	if (!group || !lane || !numbers)
		return error_oom(err);
	for (int i = 0; i < size; i++)
		numbers[i] = c->numbers[members[i]];
	return create(c->dev, &options, c->family, numbers, lane, out, err);
}

int comm_split(struct comm *c, int color, int key, struct comm **out, struct error *err)
{
	_cleanup_free_ struct split_choice *choices = calloc(c->size, sizeof(*choices));
	_cleanup_free_ int *members = calloc(c->size, sizeof(*members));
	struct error failure = ERROR_INIT;
	int rank = 0, size, r;

	*out = NULL;
	if (!choices || !members)
		return error_oom(err);
	c->splits++;
	choices[c->rank] = (struct split_choice){color, key};
	r = comm_wait(c, comm_all_gather(c, choices, sizeof(*choices) / 4, DTYPE_F32), &failure);
	if (r >= 0)
		r = comm_check(c, &failure);
	size = split_members(choices, c->size, c->rank, members, &rank);
	if (r >= 0 && size)
		r = create_part(c, color, rank, members, size, out, &failure);
	if (r < 0) {
		/* The other ranks do not wait for this one. */
		comm_fail(c, r, c->numbers[c->rank], "%s", failure.message);
		if (err)
			*err = failure;
	}
	return r;
}

void comm_destroy(struct comm *c)
{
	if (!c)
		return;
	if (c->thread_started) {
		atomic_store(&c->stopping, true);
		family_wake(c);
		pthread_join(c->thread, NULL);
	}
	family_leave(c);
	transport_close(c);
	streams_close(c);
	for (int r = 0; c->peers && r < c->size; r++)
		peer_close(&c->peers[r]);
	closep(&c->wake_fd);
	closep(&c->control_epoll);
	closep(&c->epoll);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c->peers);
	free(c->transfers);
	free(c->scratch);
	free(c->parts);
	free(c->streams);
	free(c->numbers);
	free(c->group);
	free(c->lane);
	free(c->node);
	for (int i = 0; i < c->allocated; i++)
		device_free(c->dev, c->allocations[i]);
	free(c->allocations);
	free(c);
}

void comm_abort(struct comm *c)
{
	comm_fail(c, -ECANCELED, c->numbers[c->rank], "the communicator was aborted");
}

int comm_rank(const struct comm *c)
{
	return c->rank;
}

int comm_size(const struct comm *c)
{
	return c->size;
}

const char *comm_describe(const struct comm *c)
{
	return c->description;
}

int comm_alloc(struct comm *c, size_t bytes, void **out, struct error *err)
{
	void **list = realloc(c->allocations, ((size_t)c->allocated + 1) * sizeof(*list));
	int r;

	if (!list)
		return error_oom(err);
	c->allocations = list;
	if ((r = device_alloc(c->dev, bytes, out, err)) < 0)
		return r;
	list[c->allocated++] = *out;
	return 0;
}

int comm_register(struct comm *c, const struct comm_buffer *buffers, int n, struct error *err)
{
	return 0; /* UCX registers memory itself where the hardware needs it, and keeps it registered */
}

/* The type that is added up; fails the communicator where there is none. */
static enum element element_of(struct comm *c, enum kind kind, enum dtype type)
{
	if (type == DTYPE_F16)
		comm_fail(c, -EINVAL, c->numbers[c->rank],
		          "%s: float16 is not carried between CPU ranks, use bfloat16",
		          collective_name(kind));
	return type == DTYPE_F32 ? ELEMENT_F32 : ELEMENT_BF16;
}

comm_ticket comm_all_reduce(struct comm *c, void *buffer, int64_t count, enum dtype type, enum comm_op op)
{
	return enqueue(c, &(struct operation){.kind = KIND_ALL_REDUCE,
	                                      .type = element_of(c, KIND_ALL_REDUCE, type),
	                                      .op = op,
	                                      .buffer = buffer,
	                                      .count = count});
}

comm_ticket comm_all_reduce_f64(struct comm *c, double *buffer, int64_t count, enum comm_op op)
{
	return enqueue(
	    c, &(struct operation){
	           .kind = KIND_ALL_REDUCE, .type = ELEMENT_F64, .op = op, .buffer = buffer, .count = count});
}

static comm_ticket reduce_scatter(struct comm *c, void *buffer, const void *input, int64_t shard,
                                  enum dtype type, enum comm_op op)
{
	return enqueue(c, &(struct operation){.kind = KIND_REDUCE_SCATTER,
	                                      .type = element_of(c, KIND_REDUCE_SCATTER, type),
	                                      .op = op,
	                                      .buffer = buffer,
	                                      .input = input,
	                                      .count = shard});
}

comm_ticket comm_reduce_scatter(struct comm *c, void *buffer, int64_t shard, enum dtype type, enum comm_op op)
{
	return reduce_scatter(c, buffer, NULL, shard, type, op);
}

comm_ticket comm_reduce_scatter_into(struct comm *c, void *own, const void *all, int64_t shard,
                                     enum dtype type, enum comm_op op)
{
	if (c->size == 1 && own != all)
		memcpy(own, all, shard * dtype_size(type));
	return reduce_scatter(c, own, all, shard, type, op);
}

static comm_ticket all_gather(struct comm *c, void *buffer, const void *input, int64_t shard, enum dtype type)
{
	return enqueue(c, &(struct operation){.kind = KIND_ALL_GATHER,
	                                      .type = ELEMENT_BYTE,
	                                      .buffer = buffer,
	                                      .input = input,
	                                      .count = shard * (int64_t)dtype_size(type)});
}

comm_ticket comm_all_gather(struct comm *c, void *buffer, int64_t shard, enum dtype type)
{
	return all_gather(c, buffer, NULL, shard, type);
}

comm_ticket comm_all_gather_into(struct comm *c, void *all, const void *own, int64_t shard, enum dtype type)
{
	if (c->size == 1 && own != all)
		memcpy(all, own, shard * dtype_size(type));
	return all_gather(c, all, own, shard, type);
}

comm_ticket comm_all_to_all(struct comm *c, void *out, const void *in, int64_t count, enum dtype type)
{
	if (c->size == 1)
		memcpy(out, in, count * dtype_size(type));
	return enqueue(c, &(struct operation){.kind = KIND_ALL_TO_ALL,
	                                      .type = ELEMENT_BYTE,
	                                      .buffer = out,
	                                      .input = in,
	                                      .count = count * (int64_t)dtype_size(type)});
}

comm_ticket comm_broadcast(struct comm *c, void *buffer, size_t bytes, int root)
{
	return enqueue(c, &(struct operation){.kind = KIND_BROADCAST,
	                                      .type = ELEMENT_BYTE,
	                                      .buffer = buffer,
	                                      .count = (int64_t)bytes,
	                                      .root = root});
}

comm_ticket comm_barrier(struct comm *c)
{
	return enqueue(c, &(struct operation){.kind = KIND_BARRIER});
}

/* A small collective is a message or two, which nothing is saved by holding back. */
void comm_group_begin(struct comm *c)
{
}

void comm_group_end(struct comm *c)
{
}

int comm_wait(struct comm *c, comm_ticket ticket, struct error *err)
{
	double begun, spin_until;
	int r = 0;

	if (!ticket || (c->completed >= ticket && c->failed != -ECANCELED))
		return 0;
	atomic_fetch_add(&c->waiters, 1);
	begun = clock_monotonic();
	for (spin_until = begun + SPIN_BEHIND_COMPUTE; clock_monotonic() < spin_until; relax())
		if (c->completed >= ticket || c->failed)
			break;
	pthread_mutex_lock(&c->lock);
	while (c->completed < ticket && !c->failed)
		pthread_cond_wait(&c->changed, &c->lock);
	if (c->completed < ticket || c->failed == -ECANCELED) {
		r = c->failed;
		if (err)
			*err = c->failure;
	}
	c->waited += clock_monotonic() - begun;
	pthread_mutex_unlock(&c->lock);
	atomic_fetch_sub(&c->waiters, 1);
	return r;
}

double comm_waited_seconds(struct comm *c)
{
	return c->waited;
}

int comm_flush(struct comm *c, struct error *err)
{
	return comm_wait(c, c->queued, err);
}

int comm_check(struct comm *c, struct error *err)
{
	return family_check(c, err);
}
