/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside comm over UCX. A communicator has one progress thread, which takes the queued operations in order
 * and runs each to its end. Once comm_create or comm_split has returned, only that thread uses UCX and the
 * lifelines. It shares with the caller's threads the queue (which has one producer), `completed`, and what
 * `lock` protects. The communicators of a family share struct family alone.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <ucp/api/ucp.h>

#include "base/cleanup.h"
#include "engine/comm/comm.h"
#include "engine/comm/ucx/lifeline.h"
#include "engine/comm/ucx/reduce.h"

/* The thread spins for so many seconds without work before it sleeps. It spins longer while a caller waits,
 * since the caller's core is free then. */
#define SPIN_BEHIND_COMPUTE 20e-6
#define SPIN_AWAITED        200e-6

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

enum kind {
	KIND_NONE,
	KIND_BOOTSTRAP, /* the first of all: every rank receives from every other */
	KIND_ALL_REDUCE,
	KIND_REDUCE_SCATTER,
	KIND_ALL_GATHER,
	KIND_ALL_TO_ALL,
	KIND_BROADCAST,
	KIND_BARRIER,
};

struct operation {
	enum kind kind;
	enum element type;
	enum comm_op op;
	int root;
	void *buffer;
	/* NULL: in buffer; else of all_gather a shard, of reduce_scatter and all_to_all all shards */
	const void *input;
	int64_t count; /* elements: all of them (all_reduce, broadcast) or a shard (the others) */
};

/* Runs an operation from its first message to its last, on the progress thread; a negative return means that
 * the communicator has failed. */
typedef int collective_run_fn(struct comm *c, uint64_t ticket, const struct operation *o);

/* One message under way. It lives in struct comm, since UCX may still refer to it after a failure. */
struct transfer {
	bool done;
	int peer;
	size_t expected;
	struct comm *comm;
	/* Of a message of a stream; data NULL: of UCX. */
	char *data;
	uint64_t tag;
	struct transfer *next;
};

struct stream_header {
	uint64_t tag, len;
};

/* Messages to and from a peer over a TCP connection, each behind a header, in the order of the calls. */
struct stream {
	bool used;
	bool differs;   /* what has come is not what is expected: the ranks' calls differ */
	uint32_t armed; /* the events that c->epoll waits for */
	struct transfer *sends, *last_send, *receives, *last_receive;
	struct stream_header out, in;
	size_t out_done, in_done; /* bytes of the message that is sent, received, with its header */
	bool sends_ack;           /* what is sent is an acknowledgement, and not the first of `sends` */
	uint64_t acks_due;        /* messages received that the peer wants acknowledged */
	/* Messages of which the kernel has been given the pages, not a copy: stream.c. */
	int pipe[2];          /* {0, 0}: not opened yet */
	size_t in_pipe;       /* bytes in it, of the first of `sends` */
	bool no_pipe;         /* that does not work here */
	bool by_pages;        /* the message that is sent */
	uint64_t unconfirmed; /* messages that the peer has not acknowledged yet */
};

enum {
	QUEUE_MAX = 256,
	CHUNK_BYTES = 512 * 1024, /* the largest chunk that a ring sends */
	WINDOW_MAX = 32,          /* the most chunks of a ring under way at a time */
	SCRATCH_BYTES = 4 << 20,  /* the memory for the chunks that a ring receives */
	EXCHANGE_WINDOW = 6,      /* chunks from every other rank */
	CHAIN_WINDOW = 4,         /* chunks of a broadcast under way at a time */
	HUGE_PAGE = 2 << 20,
	FLAT_BYTES = 16 * 1024, /* up to here all send all to all: one latency instead of 2 (n - 1) */
};

/* A communicator and those that have been split from it; the last one that is destroyed frees it. Its lock is
 * taken before that of a communicator, never after. */
struct family {
	pthread_mutex_t lock;
	struct comm *members; /* linked by `sibling` */
	int count;            /* members */
	struct error failure; /* the first one; code 0: none */
	int failed_rank;      /* that it is about */
	int size;             /* of the first communicator */
	char (*hosts)[65];    /* by its ranks */
};

/* Transfers under way at once; see exchange_reduce for the second. */
static inline int transfers_max(int size)
{
	return 2 * MAX(WINDOW_MAX, 2 * size);
}

struct comm {
	struct device *dev;
	int rank, size, timeout_s;
	char description[96];

	struct family *family;
	struct comm *sibling;
	int *numbers; /* [size]: the ranks' numbers in the family's first communicator */
	/* What comm_split needs: the options of comm_create, and how often it has been called. */
	struct kv_store store;
	char *group, *node;
	int splits;
	char *lane; /* for messages: " of communicator 1.0"; "": the first one */

	/* The queue. Ticket t is at queue[t % QUEUE_MAX]. */
	struct operation queue[QUEUE_MAX];
	_Atomic uint64_t queued, completed;
	pthread_mutex_t lock; /* of failure, and for the conditions */
	pthread_cond_t changed;
	_Atomic int failed;    /* 0 or the code in failure */
	struct error failure;  /* the family's; under lock */
	int failed_rank;       /* the number of the rank that has failed; under lock */
	_Atomic bool stopping; /* comm_destroy */
	_Atomic bool asleep;   /* the thread waits in epoll and wants wake_fd */
	_Atomic int waiters;   /* threads inside comm_wait, whose cores are free */
	double waited;         /* seconds inside comm_wait; under lock */
	pthread_t thread;
	collective_run_fn *run; /* what the thread does with an operation */
	_Atomic bool thread_started;

	/* The progress thread's own. */
	struct peer *peers; /* [size] */
	int wake_fd, control_epoll, epoll;
	uint64_t running; /* ticket, 0: idle */
	enum kind running_kind;
	uint64_t begun; /* the ticket begun last, and its kind */
	enum kind begun_kind;
	uint64_t progress;      /* counts messages done */
	uint64_t progress_seen; /* its value when the clock below was set */
	double progress_at;     /* the last time that a message was done */
	double idle_since, control_at, pinged_at;
	int pings; /* sent since then */
	bool departing;

	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h *endpoints; /* [size] */
	int ucx_error;       /* a ucs_status_t that a message ended with, and whose */
	int ucx_error_peer;

	struct stream *streams;     /* [size] */
	struct transfer *transfers; /* [transfers_max] */
	char *scratch;              /* [SCRATCH_BYTES], 64-byte aligned */
	void **parts;               /* [size]: what a reduction adds up */

	void **allocations; /* comm_alloc's: [allocated] */
	int allocated;
};

/* transport.c */
int transport_open(struct comm *c, void **address, size_t *address_len, struct error *err);
int transport_connect(struct comm *c, struct error *err);
void transport_describe(struct comm *c);
void transport_close(struct comm *c);
/* A message that fails is done too; the next comm_step returns its error. */
void transport_send(struct comm *c, int peer, uint64_t tag, const void *data, size_t len, struct transfer *t);
void transport_receive(struct comm *c, int peer, uint64_t tag, void *data, size_t len, struct transfer *t);

/* Whether UCX carries messages to that rank over TCP. */
bool transport_is_tcp(struct comm *c, int rank);

/* transfer.c */
/* A message is done, and how; the first error is kept. */
void transfer_end(struct transfer *t, ucs_status_t status, size_t len);

/* stream.c */
/* Whether streams may be used at all. */
bool streams_allowed(void);
void stream_send(struct comm *c, struct transfer *t);
void stream_receive(struct comm *c, struct transfer *t);
/* The peers have received all that was sent so far, so that the buffers are the caller's again; and they know
 * the same. Otherwise comm_step has to be called until it is so. */
bool streams_settled(const struct comm *c);
void streams_close(struct comm *c);
/* Moves what can be moved without waiting; false: nothing. */
bool streams_progress(struct comm *c);
/* Makes c->epoll wait for what the streams wait for. */
void streams_arm(struct comm *c);

/* progress.c */
/* Starts the progress thread, which passes each queued operation to run. */
int progress_start(struct comm *c, collective_run_fn *run, struct error *err);
/* Lets UCX work, looks after the lifelines, spins or sleeps; returns after anything may have changed.
 * Negative: the communicator has failed, and the operation has to be left at once. */
int comm_step(struct comm *c);

/* family.c */
/* Makes c a member of `family`, NULL: of a new one. It takes the family's failure over. */
int family_join(struct comm *c, struct family *family, struct error *err);
void family_leave(struct comm *c);
/* 0, or the code of the family's failure. From any thread. */
int family_check(struct comm *c, struct error *err);
void family_wake(struct comm *c); /* wakes the progress thread of c; from any thread */
/* Fails the family, where it has not failed yet; returns the code of its failure. `number` is the rank that
 * it is about, and is sent to the peers. From any thread. */
int comm_fail(struct comm *c, int code, int number, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* collectives.c */
collective_run_fn collective_run;
/* collective_names.c */
const char *collective_name(enum kind kind);
