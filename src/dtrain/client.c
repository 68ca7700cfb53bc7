/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands share: the connection to the service, and its errors for a person. */
#include "dtrain/client.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "base/str.h"
#include "http/local.h"
#include "wire/submission_key.h"

static const double RESTART_TIMEOUT = 60.0; /* seconds that a restart of the service may take */
static const double HELD = 10.0;            /* a call that lasted so long had found the service there */

void client_release(struct client *client)
{
	http_local_close(client->http);
	client->http = NULL;
}

int client_fail(int status, const char *fmt, ...)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	va_list ap;

	fflush(stdout);
	va_start(ap, fmt);
	strbuf_addv(&text, fmt, ap);
	va_end(ap);
	/* It may quote what another user's program wrote: nothing for the terminal to obey. */
	fprintf(stderr, "dtrain: %s\n", text.data ? str_make_plain(text.data) : fmt);
	return status;
}

static int connect_service(struct client *client, struct error *err)
{
	return client->http ? 0 : http_local_open(client->socket, &client->http, err);
}

static int call(struct client *client, const char *method, const char *target, const char *header,
                const json_t *body, int *status, json_t **answer, struct error *err)
{
	int r = connect_service(client, err);

	*status = 0;
	if (r == 0)
		r = http_local_json(client->http, method, target, header, body, status, answer, err);
	if (r < 0 && *status == 0)
		client_release(client);
	return r;
}

int client_try(struct client *client, const char *method, const char *target, const json_t *body, int *status,
               json_t **answer, struct error *err)
{
	return call(client, method, target, NULL, body, status, answer, err);
}

/* No answer; or (502, 503) the local service is there, but the controller is not. */
static bool is_away(int status)
{
	return status == 0 || status == 502 || status == 503;
}

/* After an answer: the one that counts, of the controller, may have been lost. */
static bool is_lost(const struct client *client)
{
	const char *code = http_local_error_code(client->http);

	return str_eq(code, "no-answer") || str_eq(code, "stopping");
}

static int fail_call(int status, const struct error *err)
{
	return client_fail(is_away(status) ? STATUS_UNREACHABLE : EXIT_FAILURE, "%s", err->message);
}

int client_json(struct client *client, const char *method, const char *target, const json_t *body,
                json_t **answer)
{
	struct error err = ERROR_INIT;
	int status;

	if (client_try(client, method, target, body, &status, answer, &err) == 0)
		return 0;
	return fail_call(status, &err);
}

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){0, 200000000}, NULL);
}

/* After a call without an answer: is it worth another try? `since` is when the service went away, 0: now, as
 * it is where the call, begun at `begun`, was held for a while. */
static bool try_again(const struct client *client, double begun, double *since, const struct error *err)
{
	if (clock_monotonic() - begun > HELD)
		*since = 0;
	if (*since == 0) {
		*since = clock_monotonic();
		if (client->before_message)
			client->before_message(client->message_context);
		client_fail(0, "%s; waiting for it to come back", err->message);
	}
	if (err->code == -EACCES || clock_monotonic() - *since > RESTART_TIMEOUT)
		return false;
	pause_briefly();
	return true;
}

/* A change that may be asked for twice. Where the request has left, but its answer was lost, it is repeated,
 * for as long as a restart of the service may take. A submission has a key (header), by which it is known. 0,
 * or the exit status after the error was printed. */
static int change(struct client *client, const char *method, const char *target, const char *header,
                  const json_t *body, json_t **answer)
{
	double since = 0;

	for (bool repeated = false;; repeated = true) {
		double begun = clock_monotonic();
		struct error err = ERROR_INIT;
		bool sent = connect_service(client, &err) == 0;
		int status = 0, r = err.code;

		if (sent)
			r = call(client, method, target, header, body, &status, answer, &err);
		/* A run that has ended since then was ended by the first request. */
		if (r == 0 ||
		    (repeated && status == 409 && str_eq(http_local_error_code(client->http), "ended")))
			return 0;
		if (repeated ? !is_away(status) : !sent || (status != 0 && !is_lost(client)))
			return fail_call(status, &err);
		if (!try_again(client, begun, &since, &err))
			return client_fail(STATUS_UNREACHABLE, "%s; whether it was done is not known",
			                   err.message);
	}
}

int client_change(struct client *client, const char *method, const char *target, const json_t *body)
{
	return change(client, method, target, NULL, body, NULL);
}

int client_submit(struct client *client, json_t *config, int64_t *id, json_t **raw)
{
	_cleanup_json_ json_t *body = submit_request_encode(&(struct submit_request){config}), *answer = NULL;
	struct run_accepted accepted = {0};
	char key[33], header[sizeof(SUBMISSION_KEY_HEADER ": ") + sizeof(key)]; /* 128 random bits */
	struct error err = ERROR_INIT;
	int status;

	if (!body)
		return client_fail(EXIT_FAILURE, "out of memory");
	status = random_hex(key, sizeof(key));
	if (status < 0)
		return client_fail(EXIT_FAILURE, "cannot make a random key: %s", strerror(-status));
	snprintf(header, sizeof(header), SUBMISSION_KEY_HEADER ": %s", key);
	status = change(client, "POST", "/v1/runs", header, body, &answer);
	if (status != 0)
		return status;
	if (run_accepted_decode(answer, &accepted, &err) < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	*id = accepted.id;
	if (raw)
		*raw = steal_pointer(answer);
	return 0;
}

int client_wait_run(struct client *client, int64_t id, bool change, int64_t version, struct run_view *run,
                    json_t **raw)
{
	_cleanup_free_ char *target =
	    change ? str_printf("/v1/runs/%lld?wait=change&version=%lld", (long long)id, (long long)version)
	           : str_printf("/v1/runs/%lld?wait=1", (long long)id);
	double since = 0;

	if (!target)
		return client_fail(EXIT_FAILURE, "out of memory");
	for (;;) {
		_cleanup_json_ json_t *answer = NULL;
		struct error err = ERROR_INIT;
		double begun = clock_monotonic();
		int status, r = client_try(client, "GET", target, NULL, &status, &answer, &err);

		if (r == 0 && run_view_decode(answer, run, &err) < 0)
			return client_fail(EXIT_FAILURE, "%s", err.message);
		if (r == 0) {
			if (raw)
				*raw = steal_pointer(answer);
			return 0;
		}
		if (!is_away(status))
			return client_fail(EXIT_FAILURE, "%s", err.message);
		if (!try_again(client, begun, &since, &err))
			return client_fail(STATUS_UNREACHABLE, "%s", err.message);
	}
}

struct stream {
	const struct client_stream *what;
	size_t taken;
	bool refused; /* by piece: not the connection's fault */
};

static int on_piece(void *context, const char *data, size_t len, struct error *err)
{
	struct stream *s = context;
	int r = s->what->piece(s->what->context, data, len, err);

	s->taken += len;
	s->refused = r < 0;
	return r;
}

int client_try_stream(struct client *client, const struct client_stream *what, struct error *err)
{
	struct stream s = {.what = what};
	double since = 0;

	for (bool first = true;; first = false) {
		_cleanup_free_ char *target = what->target(what->context, !first);
		double start = clock_monotonic();
		size_t before = s.taken;
		bool away;
		int r;

		*err = (struct error){0};
		if (!target) {
			error_oom(err);
			return EXIT_FAILURE;
		}
		r = connect_service(client, err);
		if (r == 0)
			r = http_local_stream(client->http, "GET", target, on_piece, &s, err);
		if (r >= 0)
			return 0;
		/* The local service is there, but not the controller. */
		away = r == -EREMOTEIO &&
		       (str_eq(http_local_error_code(client->http), "unreachable") || is_lost(client));
		first = first && (!client->http || r == -EREMOTEIO);
		client_release(client);
		if (s.refused || (r == -EREMOTEIO && (first || !away)))
			return away ? STATUS_UNREACHABLE : EXIT_FAILURE;
		if (s.taken > before)
			since = 0;
		if (first || !try_again(client, start, &since, err))
			return STATUS_UNREACHABLE;
	}
}

struct interrupt {
	char *socket;
	int64_t id;
	bool cancel;
	sigset_t signals;
};

static void *wait_for_interrupt(void *context)
{
	struct interrupt *in = context;
	struct client client = {.socket = in->socket};
	_cleanup_free_ char *target = str_printf("/v1/runs/%lld", (long long)in->id);
	struct error err = ERROR_INIT;
	int sig, status;

	sigwait(&in->signals, &sig);
	fputc('\n', stderr);
	if (!in->cancel)
		client_fail(0, "run %lld goes on; \"dtrain cancel %lld\" ends it", (long long)in->id,
		            (long long)in->id);
	else if (!target || client_try(&client, "DELETE", target, NULL, &status, NULL, &err) < 0)
		client_fail(0, "run %lld may go on: %s", (long long)in->id, err.message);
	_exit(STATUS_CANCELLED);
}

int client_on_interrupt(const struct client *client, int64_t id, bool cancel)
{
	struct interrupt *in = calloc(1, sizeof *in); /* the thread's, which lasts as long as the process */
	pthread_attr_t attributes;
	pthread_t thread;
	int r;

	if (!in || !(in->socket = strdup(client->socket)))
		return client_fail(EXIT_FAILURE, "out of memory");
	in->id = id;
	in->cancel = cancel;
	sigemptyset(&in->signals);
	sigaddset(&in->signals, SIGINT);
	sigaddset(&in->signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &in->signals, NULL);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attributes, wait_for_interrupt, in);
	pthread_attr_destroy(&attributes);
	if (r == 0)
		return 0;
	free(in->socket);
	free(in);
	return client_fail(EXIT_FAILURE, "cannot start a thread: %s", strerror(r));
}

int64_t client_run_id(const char *text)
{
	int64_t id;

	if (str_to_int64(text, 1, INT64_MAX, &id) == 0)
		return id;
	client_fail(0, "\"%s\" is not the number of a run; \"dtrain runs\" lists them", text);
	return -1;
}

bool client_are_run_ids(char *const *words)
{
	for (; *words; words++)
		if (client_run_id(*words) < 0)
			return false;
	return true;
}

/* The length of "node n1: " where both begin with it: it is printed once. */
static size_t same_node(const char *reason, const char *detail)
{
	const char *end = strstr(reason, ": ");
	size_t n = end ? (size_t)(end - reason) + 2 : 0;

	return n > 0 && str_starts(reason, "node ") && !strncmp(reason, detail, n) ? n : 0;
}

int client_run_status(const struct run_view *run, int shown)
{
	const char *reason = run->reason ? run->reason : "no reason is known";
	const char *detail = run->detail ? run->detail : "";
	_cleanup_free_ char *rank = str_printf("rank %d ", shown);
	long long id = run->id;

	if (run->state == RUN_SUCCEEDED)
		return EXIT_SUCCESS;
	if (run->state == RUN_CANCELLED)
		return client_fail(STATUS_CANCELLED, "run %lld was cancelled", id);
	if (run->state == RUN_TIMED_OUT)
		return client_fail(STATUS_TIMED_OUT, "run %lld has ended: %s", id, reason);
	if (run->state == RUN_OTHER)
		return client_fail(EXIT_FAILURE,
		                   "run %lld has ended in a state that this version does not know: %s", id,
		                   reason);
	if (rank && str_starts(reason, rank) && strchr(detail, '\n')) /* its log was shown */
		detail = "";
	detail += same_node(reason, detail);
	return client_fail(run->exit_status > 0 && run->exit_status < 256 ? (int)run->exit_status
	                                                                  : EXIT_FAILURE,
	                   "run %lld %s: %s%s%s", id, run_states[run->state], reason,
	                   !*detail               ? ""
	                   : strchr(detail, '\n') ? "\n"
	                                          : ": ",
	                   detail);
}

int client_print_json(const json_t *json)
{
	_cleanup_free_ char *text = json_to_text(json, 2);

	if (!text)
		return client_fail(EXIT_FAILURE, "out of memory");
	puts(text);
	return 0;
}

char *client_node_argument(const char *text, int64_t min, int64_t max, int64_t *number)
{
	const char *colon = strrchr(text, ':');
	_cleanup_free_ char *node = NULL;

	/* An IPv6 address as a name has more than one. */
	if (!colon || strchr(text, ':') != colon || str_to_int64(colon + 1, min, max, number) < 0) {
		*number = -1;
		return http_escape(text);
	}
	node = strndup(text, (size_t)(colon - text));
	return node ? http_escape(node) : NULL;
}
