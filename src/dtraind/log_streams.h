/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of ranks as answers: from files here, from other nodes, or several of them merged. */
#pragma once

#include "dtraind/daemon.h"

struct log_streams; /* the readers of files here that follow an attempt */

int log_streams_create(struct daemon *d, struct log_streams **out, struct error *err);
void log_streams_destroy(struct log_streams *s);
/* The attempt has ended here: who follows it reads what is left, and ends. */
void log_streams_finish(struct log_streams *s, int64_t run, int64_t attempt);

struct log_query {
	int64_t run, attempt, rank; /* rank -1: all */
	int64_t tail;               /* -1: from the start */
	bool follow;
	bool positions; /* the answer is frames, as of wire/frame.h, of the lines of each rank; file: the
	                   attempt */
	int64_t offset; /* -1: as tail has it; otherwise from this byte of the log, whatever tail is */
};

/* Answers from this node's own files. */
void logs_serve_local(struct daemon *d, struct http_request *r, const struct log_query *q);

/* Where a rank's log is. address NULL: here. */
struct log_place {
	int64_t rank;
	const char *node, *address;
	int port;
};

/* Answers with the lines of all ranks, "[rank] " before each. */
void logs_serve_merged(struct daemon *d, struct http_request *r, const struct log_query *q,
                       const struct log_place *places, size_t count);
/* "/v1/peer/logs?…", owned by the caller. */
char *logs_target(const struct log_query *q, int64_t rank);
