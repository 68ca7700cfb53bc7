/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands share: the connection to the service, errors for a person, exit statuses. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "wire/run_view.h"

struct http_local;

/* 0: as wanted; 1: failed; otherwise one of these, or that of a run. */
enum { STATUS_USAGE = 2, STATUS_UNREACHABLE = 3, STATUS_TIMED_OUT = 124, STATUS_CANCELLED = 130 };

struct client {
	const char *socket;
	struct http_local *http;               /* NULL until the first call */
	void (*before_message)(void *context); /* what takes away a bar of progress, or NULL */
	void *message_context;
	bool completing; /* a subcommand only tells how its words may go on */
};

void client_release(struct client *client);
/* "dtrain: message" on stderr; returns status, so that `return client_fail(…)` reads well. */
int client_fail(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One call. 0 and *answer (may be NULL; owned by the caller), or the exit status after the error was
 * printed. */
int client_json(struct client *client, const char *method, const char *target, const json_t *body,
                json_t **answer);
/* The same for a change that comes to the same when it is asked for twice: where the answer was lost it is
 * repeated, for up to a minute. */
int client_change(struct client *client, const char *method, const char *target, const json_t *body);
/* The same, but silent: a negative errno, *status as http_local_json has it. For callers that try again. */
int client_try(struct client *client, const char *method, const char *target, const json_t *body, int *status,
               json_t **answer, struct error *err);

/* POST /v1/runs, repeated likewise. 0 and the run's number, and the answer itself (owned by the caller) where
 * it is wanted; or the exit status after the error was printed. */
int client_submit(struct client *client, json_t *config, int64_t *id, json_t **raw);

/* A service that restarts leaves runs alone: these wait for it to come back, up to a minute. */
/* The run once it has ended (change false), or once its version is above `version`; to be released by the
 * caller. raw: the answer itself, owned by the caller; NULL: it is not wanted. */
int client_wait_run(struct client *client, int64_t id, bool change, int64_t version, struct run_view *run,
                    json_t **raw);
typedef int (*client_piece_fn)(void *context, const char *data, size_t len, struct error *err);
/* A streaming answer (stream.h), which is asked for again after a broken connection. */
struct client_stream {
	/* Of the first request, and of each after it; owned by the caller. NULL: out of memory. */
	char *(*target)(void *context, bool again);
	client_piece_fn piece; /* the body, as it comes */
	void *context;
};
/* 0, or the exit status for the error in err. */
int client_try_stream(struct client *client, const struct client_stream *stream, struct error *err);

/* While this process waits for a run: an interrupt (or TERM) cancels it, or says that it goes on; then
 * exits. */
int client_on_interrupt(const struct client *client, int64_t id, bool cancel);

/* "17" -> 17; -1 after a usage error was printed. */
int64_t client_run_id(const char *text);
/* False after a usage error was printed. words: ends with NULL, as argv does. */
bool client_are_run_ids(char *const *words);
/* The run that an argument names; NULL: the newest of the caller's, `generate` runs left out. 0 and *id, or
 * the exit status after the error was printed. */
int client_run_argument(struct client *client, const char *text, int64_t *id);
bool client_is_generate(const struct run_view *run); /* a short run of `dtrain generate` */
/* The exit status of a run that has ended; why is printed where it did not succeed, with the last lines of
 * the log of the rank that failed first unless they were printed already: those of `shown` (-1: of none). */
int client_run_status(const struct run_view *run, int shown);
int client_print_json(const json_t *json); /* on stdout, with indents; 0 */
/* "NODE", or "NODE:N" with N from min (at least 0) to max: the node as a segment of a path, owned by the
 * caller, NULL: out of memory; and the number, -1: there is none. */
char *client_node_argument(const char *text, int64_t min, int64_t max, int64_t *number);
