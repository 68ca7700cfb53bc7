/* SPDX-License-Identifier: Apache-2.0 */
/* A stage for the ranks of a test: real processes, forked, which meet in a directory. */
#pragma once

#include <stdatomic.h>
#include <sys/types.h>

#include "engine/comm/comm.h"
#include "kv_store.h"
#include "unit.h"

enum { RANKS_MAX = 8 };

/* Shared memory of the processes of one test. */
struct stage {
	int size, timeout_s;
	char directory[256];
	const char *group;
	_Atomic double moment; /* the time of the event that is tested */
	int gate[2];           /* a pipe that the parent closes so that waiting ranks continue */
	int told[2];           /* a pipe through which ranks notify each other */
};

typedef void (*rank_fn)(struct stage *stage, int rank);

/* In a rank: fails the test with a message and an exit status that the parent checks. */
#define rank_assert(expr, ...)                                                                               \
	do {                                                                                                 \
		if (!(expr)) {                                                                               \
			fprintf(stderr, "rank %d, line %d: %s: ", rank, __LINE__, #expr);                    \
			fprintf(stderr, __VA_ARGS__);                                                        \
			fputc('\n', stderr);                                                                 \
			exit(9);                                                                             \
		}                                                                                            \
	} while (0)

#define rank_ok(expr)                                                                                        \
	do {                                                                                                 \
		int r_ = (expr);                                                                             \
		rank_assert(r_ == 0, "%d %s", r_, err.message);                                              \
	} while (0)

struct stage *stage_open(int size, int timeout_s);
void stage_close(struct stage *s);
pid_t spawn(struct stage *s, int rank, rank_fn fn);
void spawn_all(struct stage *s, rank_fn fn, pid_t *pids);
/* Waits for all ranks except `except` (-1: all) and checks that they succeeded. */
void expect_all(struct stage *s, const pid_t *pids, int except);
void run_ranks(int size, int timeout_s, rank_fn fn);
struct comm *join_group(struct stage *s, int rank, const char *group);
struct comm *join_stage(struct stage *s, int rank);
void wait_at_gate(struct stage *s);
/* Before a rank causes the failure, it waits until the others have finished the common part, without comm. */
void let_others_come(struct stage *s, int rank, int harmful);
/* The transport of the ranks that are forked later: 0 as UCX chooses, 1 tcp, 2 shared memory. */
void use_transport(int i);

/* Checks every element of the results. */
double value(int rank, int64_t i);
double expected(int size, int64_t i, enum comm_op op);
void check_all_reduce(struct comm *comm, int64_t count, enum dtype type, enum comm_op op);
void rank_collectives(struct stage *s, int rank);
