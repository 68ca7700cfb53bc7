/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the local service: the key-value store of its rendezvous, events, and reports in a thread of their
 * own. The controller has the keys in memory only, and loses them when it is restarted or another node takes
 * its place. A second thread therefore puts again what this rank has put, for as long as another rank may
 * wait for it.
 */
#include "worker/service_client.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "base/thread.h"
#include "http/local.h"
#include "wire/error_answer.h"
#include "wire/error_file.h"
#include "wire/worker_event.h"

#define QUEUE_MAX 256

static const double CLOSE_GRACE = 2.0;     /* seconds for the last reports, */
static const double FAILOVER_GRACE = 15.0; /* where the service is there, and no controller is */
static const double PUT_SECONDS = 60.0;    /* for which a key is tried to be put */
static const double KEEP_SECONDS = 600.0;  /* after the last put */

/* A key that this rank has put. */
struct kept {
	char *key;
	void *data;
	size_t len;
};

struct service_client {
	const struct environment *env;
	struct kv_store store;
	bool has_failed;         /* the error was reported */
	struct http_local *idle; /* connection of the last call that is over, for the next; under lock */

	/* Reports: rank 0's main thread adds lines, the sender removes them. */
	pthread_t sender;
	bool has_sender;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	char *queue[QUEUE_MAX]; /* a ring: count lines from first on */
	size_t first, count;
	bool closing, done;
	double closing_since;

	/* The keeper of keys. */
	pthread_t keeper;
	bool has_keeper, keeper_done;
	double kept_since;    /* the last put */
	pthread_mutex_t puts; /* one at a time, so that a newer value is not replaced by an older one */
	struct kept *kept;    /* under puts */
	size_t kept_count;
};

/* ---- the service's rendezvous ---- */

static int call(struct http_local **conn, const char *socket, const char *method, const char *target,
                const void *body, size_t len, double timeout, int *status, char **answer, size_t *answer_len,
                struct error *err)
{
	int r = *conn ? 0 : http_local_open(socket, conn, err);

	if (r == 0)
		r = http_local_bytes(*conn, method, target, "application/octet-stream", body, len, timeout,
		                     status, answer, answer_len, err);
	if (r < 0 && *conn)
		http_local_close(steal_pointer(*conn));
	return r;
}

static char *rendezvous_target(const struct service_client *service, const char *key, const char *more)
{
	return str_printf("/v1/runs/%s/rendezvous/%s?attempt=%lld%s", service->env->run_id, key,
	                  (long long)service->env->attempt, more);
}

/* Each call has a connection to itself: communicators are made in one thread and watch ranks in another. */
static struct http_local *take_connection(struct service_client *service)
{
	struct http_local *conn;

	pthread_mutex_lock(&service->lock);
	conn = steal_pointer(service->idle);
	pthread_mutex_unlock(&service->lock);
	return conn;
}

static void give_connection(struct service_client *service, struct http_local *conn)
{
	pthread_mutex_lock(&service->lock);
	if (!service->idle)
		service->idle = steal_pointer(conn);
	pthread_mutex_unlock(&service->lock);
	if (conn)
		http_local_close(conn);
}

/* One call, repeated until the deadline while the service or (502, 503) the controller cannot be reached,
 * since both may be restarting. */
static int rendezvous_call(struct service_client *service, const char *method, const char *key,
                           const char *more, const void *body, size_t len, double timeout, double deadline,
                           int *status, char **answer, size_t *answer_len, struct error *err)
{
	_cleanup_free_ char *target = rendezvous_target(service, key, more);
	struct http_local *conn;
	int r;

	if (!target)
		return error_oom(err);
	for (conn = take_connection(service);; usleep(100000)) {
		r = call(&conn, service->env->socket, method, target, body, len, timeout, status, answer,
		         answer_len, err);
		if ((r == 0 && *status != 502 && *status != 503) || r == -EACCES ||
		    clock_monotonic() > deadline)
			break;
		if (r == 0)
			free(steal_pointer(*answer));
	}
	give_connection(service, conn);
	return r;
}

static int remote_error(const char *key, int status, const char *answer, struct error *err)
{
	_cleanup_json_ json_t *j = NULL;
	struct error_answer e;

	if (answer)
		json_parse(answer, strlen(answer), "answer", &j, NULL);
	error_answer_read(j, &e);
	return error_set(err, -EREMOTEIO, "rendezvous %s: the service answered %d%s%s", key, status,
	                 e.message ? ": " : "", e.message ? e.message : "");
}

static int put_key(struct service_client *service, const char *key, const void *data, size_t len,
                   double seconds, struct error *err)
{
	_cleanup_free_ char *answer = NULL;
	size_t answer_len;
	int status = 0, r;

	r = rendezvous_call(service, "PUT", key, "", data, len, 10, clock_monotonic() + seconds, &status,
	                    &answer, &answer_len, err);
	if (r < 0)
		return r;
	return status / 100 == 2 ? 0 : remote_error(key, status, answer, err);
}

/* Keeps the newest value of each key. */
static int keep(struct service_client *service, const char *key, const void *data, size_t len)
{
	struct kept *list = service->kept, *k = list;
	void *copy = malloc(len ? len : 1);

	if (!copy)
		return -ENOMEM;
	memcpy(copy, data, len);
	while (k < list + service->kept_count && strcmp(k->key, key) != 0)
		k++;
	if (k == list + service->kept_count) {
		char *name = strdup(key);

		list = name ? reallocarray(list, service->kept_count + 1, sizeof(*list)) : NULL;
		if (!list) {
			free(name);
			free(copy);
			return -ENOMEM;
		}
		service->kept = list;
		k = &list[service->kept_count++];
		*k = (struct kept){.key = name};
	}
	free(k->data);
	k->data = copy;
	k->len = len;
	return 0;
}

/* The keys are lost all together: one of them tells of all. */
static void restore_keys(struct service_client *service)
{
	_cleanup_free_ char *answer = NULL;
	size_t len;
	int status = 0, r;

	pthread_mutex_lock(&service->puts);
	r = rendezvous_call(service, "GET", service->kept[0].key, "", NULL, 0, 2, 0, &status, &answer, &len,
	                    NULL);
	for (size_t i = 0; i < service->kept_count && r == 0 && status == 404; i++)
		r = put_key(service, service->kept[i].key, service->kept[i].data, service->kept[i].len, 0,
		            NULL);
	pthread_mutex_unlock(&service->puts);
}

/* Waits until the keys are due to be looked at: often after they were put, when all ranks wait for them, and
 * ever less often. False: this is being closed. With the lock. */
static bool wait_for_check(struct service_client *service)
{
	double checked = clock_monotonic();

	while (!service->closing) {
		double age = clock_monotonic() - service->kept_since;
		double due = checked + MAX(1.0, age / 4);
		struct timespec until = {(time_t)due, (long)((due - floor(due)) * 1e9)};

		if (age > KEEP_SECONDS)
			pthread_cond_wait(&service->changed, &service->lock);
		else if (pthread_cond_timedwait(&service->changed, &service->lock, &until) == ETIMEDOUT)
			return true;
	}
	return false;
}

static void *keep_keys(void *context)
{
	struct service_client *service = context;

	pthread_mutex_lock(&service->lock);
	while (wait_for_check(service)) {
		pthread_mutex_unlock(&service->lock);
		restore_keys(service);
		pthread_mutex_lock(&service->lock);
	}
	service->keeper_done = true;
	pthread_cond_broadcast(&service->changed);
	pthread_mutex_unlock(&service->lock);
	return NULL;
}

static int service_put(void *context, const char *key, const void *data, size_t len, struct error *err)
{
	struct service_client *service = context;
	int r;

	pthread_mutex_lock(&service->puts);
	r = put_key(service, key, data, len, PUT_SECONDS, err);
	if (r == 0 && keep(service, key, data, len) < 0)
		r = error_oom(err);
	pthread_mutex_lock(&service->lock);
	service->kept_since = clock_monotonic();
	if (r == 0 && !service->has_keeper) {
		r = thread_start(&service->keeper, keep_keys, service);
		if (r < 0)
			error_errno(err, r, "cannot start a thread");
		service->has_keeper = r == 0;
	}
	pthread_mutex_unlock(&service->lock);
	pthread_mutex_unlock(&service->puts);
	return r;
}

/* The service or the controller could not be reached until the deadline of one get: whoever calls may try
 * again, as for a key that is not there. */
static int away_error(const char *key, int timeout_ms, int r, int status, const char *answer,
                      struct error *err)
{
	struct error why = ERROR_INIT;

	if (r < 0 && err)
		why = *err;
	else
		remote_error(key, status, answer, &why);
	return error_set(err, -ETIMEDOUT, "rendezvous %s: timed out after %d s: %s", key, timeout_ms / 1000,
	                 why.message);
}

static bool is_away(int r, int status)
{
	return r < 0 ? r != -EACCES && r != -ENOMEM : status == 502 || status == 503;
}

static int service_get(void *context, const char *key, int timeout_ms, void **data, size_t *len,
                       struct error *err)
{
	struct service_client *service = context;
	double deadline = clock_monotonic() + timeout_ms / 1000.0;

	for (;;) {
		double left = deadline - clock_monotonic(), wait = left < 0 ? 0 : MIN(left, 20);
		_cleanup_free_ char *answer = NULL, *more = str_printf("&wait=%.3f", wait);
		size_t answer_len = 0;
		int status = 0, r;

		if (!more)
			return error_oom(err);
		r = rendezvous_call(service, "GET", key, more, NULL, 0, wait + 10, deadline, &status, &answer,
		                    &answer_len, err);
		if (timeout_ms > 0 && is_away(r, status))
			return away_error(key, timeout_ms, r, status, answer, err);
		if (r < 0)
			return r;
		if (status == 200) {
			*data = steal_pointer(answer);
			*len = answer_len;
			return 0;
		}
		if (status != 404)
			return remote_error(key, status, answer, err);
		if (clock_monotonic() >= deadline)
			return error_set(err, -ETIMEDOUT, "rendezvous %s: timed out after %d s", key,
			                 timeout_ms / 1000);
	}
}

/* ---- files in its place ---- */

static char *file_of_key(const struct service_client *service, const char *key)
{
	_cleanup_free_ char *name = str_printf("%lld-%s", (long long)service->env->attempt, key);

	for (char *c = name; c && *c; c++)
		if (*c == '/')
			*c = '_';
	return name ? str_path_join(service->env->rendezvous_dir, name) : NULL;
}

static int files_put(void *context, const char *key, const void *data, size_t len, struct error *err)
{
	_cleanup_free_ char *path = file_of_key(context, key);

	return path ? file_write_atomic(path, data, len, 0600, err) : error_oom(err);
}

static int files_get(void *context, const char *key, int timeout_ms, void **data, size_t *len,
                     struct error *err)
{
	_cleanup_free_ char *path = file_of_key(context, key);
	double deadline = clock_monotonic() + timeout_ms / 1000.0;

	if (!path)
		return error_oom(err);
	while (!file_exists(path)) {
		if (clock_monotonic() > deadline)
			return error_set(err, -ETIMEDOUT, "rendezvous %s: timed out after %d s", path,
			                 timeout_ms / 1000);
		usleep(2000);
	}
	return file_read(path, 0, (char **)data, len, err);
}

/* ---- reports ---- */

/* The queued lines as one body, NULL: none and closing. */
static char *take_lines(struct service_client *service)
{
	struct strbuf b = {0};

	pthread_mutex_lock(&service->lock);
	while (!service->count && !service->closing)
		pthread_cond_wait(&service->changed, &service->lock);
	for (; service->count; service->count--, service->first = (service->first + 1) % QUEUE_MAX) {
		strbuf_adds(&b, service->queue[service->first]);
		strbuf_addc(&b, '\n');
		free(service->queue[service->first]);
	}
	pthread_mutex_unlock(&service->lock);
	return b.len ? strbuf_steal(&b) : NULL;
}

static bool may_try_again(struct service_client *service, bool reached)
{
	bool may;

	pthread_mutex_lock(&service->lock);
	may = !service->closing ||
	      clock_monotonic() < service->closing_since + (reached ? FAILOVER_GRACE : CLOSE_GRACE);
	pthread_mutex_unlock(&service->lock);
	return may;
}

/* False: it is not known whether the controller has it. reached: the service is there. */
static bool deliver(struct service_client *service, struct http_local **conn, const char *target,
                    const char *body, bool *reached)
{
	_cleanup_free_ char *answer = NULL;
	size_t len;
	int status = 0, r;

	r = call(conn, service->env->socket, "POST", target, body, strlen(body), 10, &status, &answer, &len,
	         NULL);
	*reached = r == 0;
	return r == 0 && status != 502 && status != 503;
}

static void *send_reports(void *context)
{
	struct service_client *service = context;
	_cleanup_free_ char *target = str_printf("/v1/runs/%s/metrics?attempt=%lld", service->env->run_id,
	                                         (long long)service->env->attempt);
	_cleanup_(http_local_closep) struct http_local *conn = NULL;
	bool reached;
	char *body;

	while (target && (body = take_lines(service))) {
		/* Tries until the service has it, since that may be restarting. Newer lines wait meanwhile;
		 * where they are too many, the oldest are dropped. */
		while (!deliver(service, &conn, target, body, &reached) && may_try_again(service, reached))
			usleep(500000);
		free(body);
	}
	pthread_mutex_lock(&service->lock);
	service->done = true;
	pthread_cond_broadcast(&service->changed);
	pthread_mutex_unlock(&service->lock);
	return NULL;
}

void service_client_report(struct service_client *service, const char *line)
{
	char *copy;

	if (!service->has_sender || !(copy = strdup(line)))
		return;
	pthread_mutex_lock(&service->lock);
	if (service->count == QUEUE_MAX) {
		free(service->queue[service->first]);
		service->first = (service->first + 1) % QUEUE_MAX;
		service->count--;
	}
	service->queue[(service->first + service->count++) % QUEUE_MAX] = copy;
	pthread_cond_broadcast(&service->changed);
	pthread_mutex_unlock(&service->lock);
}

void service_client_event(struct service_client *service, const char *kind, const char *message)
{
	_cleanup_(http_local_closep) struct http_local *conn = NULL;
	_cleanup_json_ json_t *j = NULL;
	_cleanup_free_ char *target = NULL, *body = NULL, *answer = NULL;
	size_t len;
	int status;

	if (!service->env->socket)
		return;
	j = worker_event_encode(&(struct worker_event){service->env->rank, (char *)kind, (char *)message});
	body = j ? json_to_string(j) : NULL;
	target = str_printf("/v1/runs/%s/events?attempt=%lld", service->env->run_id,
	                    (long long)service->env->attempt);
	if (body && target)
		call(&conn, service->env->socket, "POST", target, body, strlen(body), 2, &status, &answer,
		     &len, NULL);
}

void service_client_error(struct service_client *service, const struct error *err)
{
	/* A consequence; the cause is what that peer reports, or how it ended. */
	bool lost_peer = err->code == -ECONNRESET || err->code == -ECANCELED;
	const char *path = service->env->error_file;
	_cleanup_json_ json_t *file = NULL;

	if (service->has_failed)
		return;
	service->has_failed = true;
	file = path ? error_file_make(err->message, lost_peer) : NULL;
	if (file)
		json_dump_file(file, path, JSON_COMPACT);
	service_client_event(service, lost_peer ? WORKER_PEER_LOST : WORKER_ERROR, err->message);
}

const struct kv_store *service_client_store(const struct service_client *service)
{
	return service->store.put ? &service->store : NULL;
}

int service_client_create(const struct environment *env, struct service_client **out, struct error *err)
{
	_cleanup_(service_client_destroyp) struct service_client *service = calloc(1, sizeof(*service));
	pthread_condattr_t monotonic;

	if (!service)
		return error_oom(err);
	service->env = env;
	pthread_mutex_init(&service->lock, NULL);
	pthread_mutex_init(&service->puts, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&service->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (env->rendezvous_dir)
		service->store = (struct kv_store){service, files_put, files_get};
	else if (env->socket)
		service->store = (struct kv_store){service, service_put, service_get};
	if (env->socket && env->rank == 0) {
		int r = thread_start(&service->sender, send_reports, service);

		if (r < 0)
			return error_errno(err, r, "cannot start a thread");
		service->has_sender = true;
	}
	*out = steal_pointer(service);
	return 0;
}

/* Waits for the threads. False: they still use all of it, and the process is about to end. */
static bool end_threads(struct service_client *service)
{
	struct timespec until;
	bool done;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)FAILOVER_GRACE;
	pthread_mutex_lock(&service->lock);
	service->closing = true;
	service->closing_since = clock_monotonic();
	pthread_cond_broadcast(&service->changed);
	for (;;) {
		done =
		    (!service->has_sender || service->done) && (!service->has_keeper || service->keeper_done);
		if (done || pthread_cond_timedwait(&service->changed, &service->lock, &until) != 0)
			break;
	}
	pthread_mutex_unlock(&service->lock);
	if (done && service->has_sender)
		pthread_join(service->sender, NULL);
	if (done && service->has_keeper)
		pthread_join(service->keeper, NULL);
	return done;
}

void service_client_destroy(struct service_client *service)
{
	if (!service || !end_threads(service))
		return;
	if (service->idle)
		http_local_close(service->idle);
	for (; service->count; service->count--, service->first = (service->first + 1) % QUEUE_MAX)
		free(service->queue[service->first]);
	for (size_t i = 0; i < service->kept_count; i++) {
		free(service->kept[i].key);
		free(service->kept[i].data);
	}
	free(service->kept);
	pthread_cond_destroy(&service->changed);
	pthread_mutex_destroy(&service->lock);
	pthread_mutex_destroy(&service->puts);
	free(service);
}
