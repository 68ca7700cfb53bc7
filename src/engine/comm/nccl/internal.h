/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside comm over NCCL. Collectives run on a stream of their own, each behind an event of the compute
 * stream; comm_wait makes the compute stream wait for the collective's event. NCCL reports no dead peer on
 * the same host and no stall: a thread watches for both and aborts the communicator, which ends the kernels
 * that hang and so frees whoever waits for the GPU.
 *
 * NCCL is called only under `lock`, and never blocks there: the communicator is made with blocking = 0. Only
 * ncclCommAbort blocks; it is called without the lock, after `failed` has been set, which keeps all other
 * threads from the communicator. CUDA calls that could wait are also made without the lock: if a stream has
 * too much queued behind a collective that hangs, the watching thread must still be able to end that
 * collective.
 *
 * The communicators of a family fail together (struct family). All of them are aborted at once, each from a
 * thread of its own: ncclCommAbort may wait until the GPU is idle, which it becomes only when no kernel of
 * another communicator hangs.
 *
 * NCCL sums bf16 in fp32 within a step of its rings and rounds between the steps; gradients travel in fp32.
 *
 * The stream has the highest priority: the few blocks of a collective's kernel get multiprocessors as soon as
 * some are free, and need not wait until a product has been computed that was queued before it.
 */
#pragma once

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/comm/comm.h"
#include "engine/comm/nccl/stall.h"
#include "engine/device/cuda/cuda.h"

enum {
	EVENTS = 1024,    /* collectives that have an event each; older ones are done when these are */
	BUFFERS = 4096,   /* the most buffers that can be registered */
	WINDOWS = 16,     /* the most windows */
	WAITS_MAX = 4096, /* the most waits of the compute stream that are measured at a time */
	GROUP_MAX = 16,   /* collectives that start together; one more starts them */
	POLL_NS = 20 * 1000,
};

enum kind {
	KIND_ALL_REDUCE,
	KIND_REDUCE_SCATTER,
	KIND_ALL_GATHER,
	KIND_ALL_TO_ALL,
	KIND_BROADCAST,
	KIND_BARRIER
};

struct collective {
	enum kind kind;
	void *buffer;
	/* NULL: in buffer; else of all_gather a shard, of reduce_scatter and all_to_all all shards */
	const void *input;
	size_t count; /* elements: all, or a shard */
	ncclDataType_t type;
	size_t size; /* of an element */
	ncclRedOp_t op;
	int root;
};

/* Of the computing thread: collectives that have tickets and start together (comm_group_begin). */
struct held {
	bool open;
	int n;
	struct collective collective[GROUP_MAX];
};

/* Only the computing thread uses it. */
struct waits {
	cudaEvent_t events[WAITS_MAX][2]; /* on the compute stream, before and after */
	uint64_t made, first, next; /* pairs made; those under way: first <= i < next, at i % WAITS_MAX */
	double seconds;             /* of the waits before `first` */
};

/* A communicator and those that have been split from it; the last one that is destroyed frees it. Its lock is
 * taken before that of a communicator, never after. */
struct family {
	pthread_mutex_t lock;
	struct comm *members; /* linked by `sibling` */
	int count;            /* members */
	struct error failure; /* the first one; it never changes after `failed` is set */
	_Atomic bool failed;
};

struct comm {
	struct device *dev;
	int rank, size, timeout_s;
	struct family *family;
	struct comm *sibling;
	int *numbers; /* [size]: the ranks' numbers in the family's first communicator */
	/* What comm_split needs: the options of comm_create, and how often it has been called. */
	struct kv_store store;
	char *group, *node;
	int splits;
	char *lane; /* for messages: " of communicator 1.0"; "": the first one */
	bool (*stopping)(void *context);
	void *stopping_context;
	struct stall stall;
	char description[64];
	ncclComm_t nccl; /* NULL: a single rank; not to be used once `failed` is set */
	cudaStream_t stream;
	cudaEvent_t computed; /* the end of the computation that the next collective has to wait for */
	double *token;        /* on the device: the element that a barrier sums */
	struct held held;
	struct waits waits;
	int events; /* made so far */
	/* This GPU has reached the collective: the computation before it is done. */
	cudaEvent_t begun[EVENTS];
	cudaEvent_t event[EVENTS]; /* the collective is done */
	enum kind kind[EVENTS];

	pthread_mutex_t lock; /* of everything below, and of nccl */
	pthread_cond_t wake;  /* wakes the watching thread, which otherwise looks every WATCH_NS */
	pthread_t watcher;
	bool watching, ending;
	uint64_t queued, completed;
	const char
	    *call;     /* for messages: the call other than collectives that NCCL carries out; NULL: none */
	bool entering; /* NCCL has not yet accepted the collective queued + 1, and those of its group */
	/* The last time that a collective completed, that one was queued while none was, or that this GPU
	 * reached the next one. */
	double last_progress_at;
	double started_at; /* when this GPU was first seen to have reached the next collective; 0: not yet */
	double longest_wait; /* the longest time that a collective has waited for other ranks so far */
	enum progress_state reported;
	uint64_t reported_at;
	int aborting; /* threads inside ncclCommAbort */
	int failed;
	struct error failure;
	void *registered[BUFFERS]; /* handles */
	int buffers;
	void *window[WINDOWS]; /* as long as the communicator, which ends them */
	int windows;

	struct allocation *allocations; /* comm_alloc's */
	bool foreign;                   /* NCCL did not allocate all of them: nothing is registered */
};

/* waits.c */
/* Makes the compute stream wait for the event, and measures for how long. */
cudaError_t waits_queue(struct waits *w, cudaStream_t stream, cudaEvent_t event);
double waits_seconds(struct waits *w); /* the sum of all waits that are over */
void waits_release(struct waits *w);

/* buffers.c */
void comm_deregister(struct comm *c, int first); /* handles from `first` on; under lock, none in use */
void comm_free_buffers(struct comm *c);          /* once nothing is under way */

/* watch.c; all under lock */
void comm_pause(struct comm *c); /* releases the lock for POLL_NS */
/* Fails the family, where it has not failed yet, and stops the kernels of its communicators; releases the
 * lock meanwhile. */
void comm_fail(struct comm *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void comm_fail_nccl(struct comm *c, const char *what, ncclResult_t r);
/* Waits until NCCL has carried out a call that returned r, or until the deadline; releases the lock
 * meanwhile. The state of the communicator decides: not every call that is in progress says so. */
ncclResult_t comm_settle(struct comm *c, ncclResult_t r, double deadline);
/* Records what has completed or failed since the last call. */
void comm_look(struct comm *c);
/* Whether a collective is queued that is not done, or that NCCL has not yet accepted. */
bool comm_pending(const struct comm *c);
const char *comm_kind_name(enum kind kind);
void *comm_watch(void *comm); /* the thread; not under lock */

/* family.c */
/* Makes c a member of `family`, NULL: of a new one. It takes the family's failure over. Not under lock. */
int family_join(struct comm *c, struct family *family, struct error *err);
void family_leave(struct comm *c); /* not under lock */
/* Fails all members with this failure, unless they have one. Not under lock. */
void family_fail(struct family *f, const struct error *failure);
