/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h: collectives between the ranks of one attempt. ucx/ (CPU) and nccl/ (CUDA) each implement all of
 * it.
 *
 * Every rank calls the same collectives in the same order with the same counts. A collective is queued and
 * runs behind the computation on a thread (CPU) or stream (CUDA) of its own; it starts after all work queued
 * on the device before the call, and its buffers belong to the communicator until comm_wait. Collectives of
 * one communicator complete in order. Reductions give the same bits on all ranks, and the same bits in every
 * run at the same world size.
 *
 * A peer that died, a connection that broke, comm_abort from another thread, or a collective that makes no
 * progress for timeout_s: comm_wait returns -ECONNRESET, -ECANCELED or -ETIMEDOUT with the rank and the
 * collective named; the communicator is unusable from then on and only comm_destroy may follow. The same is
 * true of every communicator of its family: those that comm_split has made from it, from each other, and the
 * one that comm_create has made. All of them give the first failure, with the same message.
 *
 * On CUDA the device waits, not the host. A failure ends the device's wait, too, and it goes on with whatever
 * lies in the buffers: what the host has read from the device is a result only once comm_check has returned 0
 * after the read.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/device/device.h"
#include "engine/device/dtype.h"

/* How ranks find each other: a small key-value store that all ranks of this attempt share. Both calls return
 * 0 or a negative errno with err filled; get waits until the key is there (or timeout_ms, then -ETIMEDOUT);
 * *data is malloc'ed. */
struct kv_store {
	void *context;
	int (*put)(void *context, const char *key, const void *data, size_t len, struct error *err);
	int (*get)(void *context, const char *key, int timeout_ms, void **data, size_t *len,
	           struct error *err);
};

struct comm;

struct comm_options {
	int rank, world_size;
	int timeout_s; /* of a collective without progress; also of the bootstrap at start */
	/* May be NULL when world_size is 1. Its context has to outlive the communicator, which may call it
	 * from a thread of its own. */
	const struct kv_store *store;
	/* Prefix of the keys in the store; communicators of one attempt have distinct ones. */
	const char *group;
	const char *node; /* what messages call this machine; NULL: by its host name */
	/* May be NULL. Returns true once this process has been asked to end. A collective that makes no
	 * progress is then given up within seconds (-ECANCELED), since all ranks are asked to end when one
	 * has died. */
	bool (*stopping)(void *context);
	void *stopping_context;
};

int comm_create(struct device *dev, const struct comm_options *options, struct comm **out, struct error *err);
/* comm may be NULL. Returns at once after a failure or in the middle of a collective; otherwise within a
 * second, in which peers may still read the last data. */
void comm_destroy(struct comm *comm);
void comm_abort(struct comm *comm); /* from any thread: every wait of the family returns -ECANCELED */
/*
 * Makes a communicator of those ranks that call it with the same color, in the order of their keys, and of
 * their ranks in `comm` where keys are equal. Color < 0: this rank is in none, and *out is NULL. It has a
 * lane of its own, that is, a queue and a thread (CPU) or a stream (CUDA): what is queued on one communicator
 * does not wait for what is queued on another, and each of them starts after all work that was queued on the
 * device before its call. An idle one takes no time of a processor. With one color for all ranks it is a
 * second lane of the same ranks.
 *
 * A collective of `comm`: all of its ranks call it, whatever their colors, and it waits for what is queued on
 * `comm`. It may take as long as the bootstrap at start, and belongs there. Node, time-out, store and
 * `stopping` are those of `comm`. The caller destroys *out, before or after `comm` and in the same order on
 * all ranks. If it fails on one rank, the family has failed.
 *
 * Messages name ranks by their numbers in the communicator that comm_create has made. On CUDA two ranks
 * have to call the collectives that they have in common in the same order, also those of different
 * communicators of a family, since a GPU may not run two of them at once.
 */
int comm_split(struct comm *comm, int color, int key, struct comm **out, struct error *err);
int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
/* "ucx 1.13: shared memory" / "ucx 1.13: tcp": what carries the data, for the log. */
const char *comm_describe(const struct comm *comm);
/* Zeroed device memory for the buffers of collectives, of the kind with which the library is fastest. It
 * belongs to the communicator and is freed with it. */
int comm_alloc(struct comm *comm, size_t bytes, void **out, struct error *err);
struct comm_buffer {
	void *data;
	size_t bytes;
};
/* Registers (pins) buffers that collectives will use often; optional, at the start. It is a collective: every
 * rank calls it with the same number of buffers in the same order, and waits for the others. Returns 1 where
 * they are registered on every rank, 0 where they are on none, which is slower but no error. A negative
 * errno: the family has failed, also where the library has tried and met an error, behind which NCCL accepts
 * no more calls; the message says how to do without. */
int comm_register(struct comm *comm, const struct comm_buffer *buffers, int n, struct error *err);

enum comm_op { COMM_SUM, COMM_MAX };

/* A ticket names a queued collective: comm_wait(ticket) returns once it and all before it are done. 0 is
 * always done. On CUDA comm_wait makes the compute stream wait, not the host; comm_flush waits on the host
 * for all. */
typedef uint64_t comm_ticket;

/* In place. Types: fp32, bf16, and DOUBLE through comm_all_reduce_f64.
 *
 * A sum of bf16 moves half the bytes of one of fp32. Every rank's values are rounded to bf16 by the caller
 * (relative error up to 2^-9 each). On CPUs they are then summed in fp32, in one order, and the sum is
 * rounded to bf16 once; NCCL rounds after each addition along its rings or trees, so up to world_size - 1
 * times. */
comm_ticket comm_all_reduce(struct comm *comm, void *buffer, int64_t count, enum dtype type, enum comm_op op);
comm_ticket comm_all_reduce_f64(struct comm *comm, double *buffer, int64_t count, enum comm_op op);
/* buffer [world_size · shard]: afterwards this rank's shard (at rank · shard) holds the sum; the rest is
 * undefined. */
comm_ticket comm_reduce_scatter(struct comm *comm, void *buffer, int64_t shard, enum dtype type,
                                enum comm_op op);
/* buffer [world_size · shard]: this rank's shard is input; afterwards all shards are there. */
comm_ticket comm_all_gather(struct comm *comm, void *buffer, int64_t shard, enum dtype type);
/* The same between two buffers. all [world_size · shard], own [shard]; own may be this rank's place in all,
 * and must not overlap all elsewhere.
 * all_gather_into: own is input, and all ranks' are in all afterwards.
 * reduce_scatter_into: all is input and stays as it is; own holds the sum afterwards. On CPUs the sum of an
 * element is taken in the order of the ranks. */
comm_ticket comm_all_gather_into(struct comm *comm, void *all, const void *own, int64_t shard,
                                 enum dtype type);
comm_ticket comm_reduce_scatter_into(struct comm *comm, void *own, const void *all, int64_t shard,
                                     enum dtype type, enum comm_op op);
/* in [world_size · count]: the elements at r · count go to rank r, and are in its out [world_size · count] at
 * (this rank) · count. in stays as it is; the two do not overlap. Any type. */
comm_ticket comm_all_to_all(struct comm *comm, void *out, const void *in, int64_t count, enum dtype type);
comm_ticket comm_broadcast(struct comm *comm, void *buffer, size_t bytes, int root);
comm_ticket comm_barrier(struct comm *comm);

/* What is queued between these two starts together, after all work queued on the device before
 * comm_group_end: on a GPU with one kernel, where a small collective costs hardly more than its data. It also
 * starts once it is waited for, which ends the group. All ranks have the same groups. A second begin, and an
 * end without a begin, have no effect; on CPUs neither has. */
void comm_group_begin(struct comm *comm);
void comm_group_end(struct comm *comm);

int comm_wait(struct comm *comm, comm_ticket ticket, struct error *err);
int comm_flush(struct comm *comm, struct error *err);
/* How many seconds the computation has waited in comm_wait so far. On CUDA it is the compute stream that
 * waits, and the number is complete after device_synchronize or device_read. Called by the thread that calls
 * comm_wait. */
double comm_waited_seconds(struct comm *comm);
/* After device_synchronize, device_read or device_event_finish: 0 where every collective that the device has
 * waited for has ended in order, else why the communicator has failed. Does not wait. */
int comm_check(struct comm *comm, struct error *err);
