/* SPDX-License-Identifier: Apache-2.0 */
/* The routes of a service whose memory runs out: each allocation of its event loop fails once for each
 * request. The answer then says so, or is what it would have been, and the service goes on. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "daemon_fixture.h"
#include "dtraind/daemon.h"
#include "failing_memory.h"

struct row {
	const char *method, *target, *body;
	int status; /* where memory suffices */
	enum {
		USER,
		STREAM, /* of the answer only the head is read */
		PEER,   /* over TLS, as a service */
		OTHER,  /* the same, for a user whose run it is not */
		CALL,   /* sent on to a node that cannot be reached */
	} kind;
};

/* Run 1 has one of the two slots, run 2 has ended. */
static const struct row rows[] = {
    {"GET", "/v1/version", NULL, 200, USER},
    {"GET", "/v1/devices", NULL, 200, USER},
    {"GET", "/v1/devices?local=1", NULL, 200, USER},
    {"GET", "/v1/nodes", NULL, 200, USER},
    {"GET", "/v1/local/runs", NULL, 200, USER},
    {"DELETE", "/v1/local/runs/99", NULL, 404, USER},
    {"GET", "/metrics", NULL, 200, USER},
    {"GET", "/v1/events", NULL, 200, STREAM},
    {"GET", "/v1/backup", NULL, 200, STREAM},
    {"GET", "/v1/runs", NULL, 200, USER},
    {"GET", "/v1/runs?state=succeeded&limit=5", NULL, 200, USER},
    {"GET", "/v1/runs/1", NULL, 200, USER},
    {"GET", "/v1/runs/2", NULL, 200, USER},
    {"GET", "/v1/runs/2?wait=1", NULL, 200, USER},
    {"GET", "/v1/runs/99", NULL, 404, USER},
    {"DELETE", "/v1/runs/2", NULL, 409, USER},
    {"DELETE", "/v1/runs/1", NULL, 403, OTHER},
    {"POST", "/v1/runs/1/metrics", "{\"step\":1}\n", 200, USER},
    {"GET", "/v1/runs/2/metrics", NULL, 200, USER},
    {"GET", "/v1/runs/1/metrics?follow=1", NULL, 200, STREAM},
    {"GET", "/v1/runs/2/logs", NULL, 200, USER},
    {"GET", "/v1/runs/2/logs?rank=all", NULL, 200, USER},
    {"GET", "/v1/runs/2/logs?rank=all&positions=1", NULL, 200, USER},
    {"GET", "/v1/runs/2/metrics?positions=1&file=1&offset=0", NULL, 200, USER},
    {"GET", "/v1/runs/1/logs?follow=1", NULL, 200, STREAM},
    {"POST", "/v1/runs/1/events", "{\"kind\":\"error\",\"rank\":0,\"message\":\"m\"}", 200, USER},
    {"PUT", "/v1/runs/1/rendezvous/key", "value", 200, USER},
    {"GET", "/v1/runs/1/rendezvous/key", NULL, 200, USER},
    {"GET", "/v1/runs/1/rendezvous/nix?wait=0.001", NULL, 404, USER},
    {"POST", "/v1/nodes/n1/drain", "{\"keep_runs\":true,\"reason\":\"a new fan\"}", 200, USER},
    {"POST", "/v1/nodes/n1/resume", NULL, 200, USER},
    {"POST", "/v1/nodes/n1/devices/1/drain", "{\"reason\":\"a new fan\"}", 200, USER},
    {"POST", "/v1/nodes/n1/devices/1/resume", NULL, 200, USER},
    {"POST", "/v1/nodes/n2/devices/0/drain", NULL, 502, CALL},
    {"POST", "/v1/nodes/n1/fence", NULL, 409, USER},
    {"POST", "/v1/nodes/n1/cancel-foreign", NULL, 404, USER},
    {"POST", "/v1/prune", "{\"dry_run\":true,\"days\":1}", 200, USER},
    {"POST", "/v1/runs",
     "{\"config\":{\"task\":\"command\",\"command\":[\"true\"],\"directory\":\"/\","
     "\"resources\":{\"devices_per_node\":2}}}",
     201, USER},
    {"POST", "/v1/peer/stop", "{\"run\":99,\"attempt\":1}", 200, PEER},
    {"POST", "/v1/peer/devices/1/drain", "{\"reason\":\"a new fan\"}", 200, PEER},
    {"POST", "/v1/peer/devices/1/resume", NULL, 200, PEER},
    {"POST", "/v1/peer/reports", "[]", 200, PEER},
    {"POST", "/v1/peer/heartbeat", "{\"node\":\"n3\"}", 400, PEER},
    {"POST", "/v1/peer/heartbeat/short", "{\"node\":\"n2\",\"instance\":\"i\",\"sequence\":1,\"whole\":1}",
     409, PEER},
    {"GET", "/v1/peer/active-runs", NULL, 200, PEER},
    {"GET", "/v1/peer/logs?run=2&attempt=1&rank=0", NULL, 200, PEER},
    {"GET", "/v1/peer/logs?run=2&attempt=1&rank=0&positions=1&offset=1", NULL, 200, PEER},
};

struct service {
	char *dir, *socket;
	struct identity *id;
	struct daemon *daemon;
	int answered; /* wakes the event loop */
	int port;
};

/* A client blocks: it is in a thread. */
struct client {
	const struct service *service;
	const struct row *row;
	struct raw_answer answer;
	bool done;
};

static void *ask(void *context)
{
	struct client *c = context;
	struct raw_request q = {.method = c->row->method,
	                        .target = c->row->target,
	                        .header = c->row->kind == OTHER ? "Dtrain-User: 70001:70001:other" : NULL,
	                        .body = c->row->body,
	                        .head_only = c->row->kind == STREAM};
	const struct identity *id = c->service->id;

	c->answer = c->row->kind == PEER || c->row->kind == OTHER
	                ? raw_ask_tls(raw_connect_tcp(c->service->port), id->certificate, id->key, &q)
	                : raw_ask(raw_connect_unix(c->service->socket), &q);
	__atomic_store_n(&c->done, true, __ATOMIC_RELEASE);
	eventfd_write(c->service->answered, 1);
	return NULL;
}

static int on_answered(sd_event_source *source, int fd, uint32_t events, void *context)
{
	eventfd_t n;

	eventfd_read(fd, &n);
	return 0;
}

/* Times, counters and ports differ from answer to answer: every number becomes a 0. */
static void blur(char *text)
{
	char *to = text;

	for (const char *p = text; *p; p++)
		if (*p < '0' || *p > '9')
			*to++ = *p;
		else if (to == text || to[-1] != '0')
			*to++ = '0';
	*to = '\0';
}

/* The answer to the request with the n-th allocation refused; 0: none. */
static struct raw_answer answer_to(struct service *s, const struct row *row, long n)
{
	struct client c = {.service = s, .row = row};
	pthread_t thread;

	mark_point();
	ck_assert_int_eq(pthread_create(&thread, NULL, ask, &c), 0);
	memory_refused = false;
	memory_left = n;
	while (!__atomic_load_n(&c.done, __ATOMIC_ACQUIRE))
		ck_assert_int_ge(sd_event_run(s->daemon->event, UINT64_MAX), 0);
	memory_left = 0;
	pthread_join(thread, NULL);
	if (row->kind != STREAM)
		blur(c.answer.body);
	return c.answer;
}

/* An answer that cannot be given, or not to its end: an error, a line that says so, or a body that is cut
 * off. */
static bool tells_of_failure(const struct raw_answer *a, const struct raw_answer *whole)
{
	static const char end[] = "\r\n0\r\n\r\n";

	if (a->status != 200)
		return a->status == 0 || a->status == 500 || a->status == 503;
	return strstr(a->body, "out of memory") || (strstr(whole->body, end) && !strstr(a->body, end));
}

static void check_row(struct service *s, const struct row *row)
{
	/* What libcurl then waits for ends with its time limit. */
	long most = row->kind == CALL ? 12 : LONG_MAX;
	struct raw_answer whole = answer_to(s, row, 0);
	bool refused = true;

	ck_assert_msg(whole.status == row->status, "%s %s: %d, expected %d: %s", row->method, row->target,
	              whole.status, row->status, whole.body);
	for (long n = 1; refused && n <= most; n++) {
		struct raw_answer a = answer_to(s, row, n);
		bool same = a.status == whole.status && (row->kind == STREAM || str_eq(a.body, whole.body));

		refused = memory_refused;
		ck_assert_msg(same || (refused && tells_of_failure(&a, &whole)),
		              "%s %s, allocation %ld: %d: %s; expected %d: %s", row->method, row->target, n,
		              a.status, a.body, whole.status, whole.body);
		free(a.body);
	}
	free(whole.body);
}

static void run_until(struct service *s, const char *target)
{
	struct row row = {"GET", target, NULL, 200, USER};
	struct raw_answer a = answer_to(s, &row, 0);

	ck_assert_msg(a.status == 200, "GET %s: %d: %s", target, a.status, a.body);
	free(a.body);
}

static void submit(struct service *s, const char *script)
{
	_cleanup_free_ char *body =
	    str_printf("{\"config\":{\"task\":\"command\",\"command\":[\"sh\",\"-c\",\"%s\"],"
	               "\"directory\":\"/\"}}",
	               script);
	struct row row = {"POST", "/v1/runs", body, 201, USER};
	struct raw_answer a = answer_to(s, &row, 0);

	ck_assert_msg(a.status == 201, "%d: %s", a.status, a.body);
	free(a.body);
}

static void start(struct service *s)
{
	_cleanup_free_ char *cwd = getcwd(NULL, 0), *text = NULL, *config = NULL, *hosts = NULL, *key = NULL,
	                    *log = NULL, *two = NULL;
	struct error err = ERROR_INIT;
	int fd;

	*s = (struct service){.dir = unit_tmpdir(), .answered = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	s->port = daemon_fixture_port();
	s->socket = str_path_join(s->dir, "socket");
	two = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=1 addr=127.0.0.1 port=1\n", s->port);
	config = str_path_join(s->dir, "dtraind.conf");
	hosts = str_path_join(s->dir, "hosts");
	key = str_path_join(s->dir, "cluster.pem");
	log = str_path_join(s->dir, "service.log");
	ck_assert_int_eq(chmod(s->dir, 0755), 0);
	ck_ok(identity_make(key, false, &err), &err);
	ck_ok(identity_load(key, &s->id, &err), &err);
	text = str_printf("node = \"n1\"; hosts_file = \"%s/hosts\"; cluster_key = \"%s/cluster.pem\"; "
	                  "socket = \"%s\"; runtime_dir = \"%s/run\"; state_dir = \"%s/state\"; "
	                  "log_dir = \"%s/log\"; worker_dir = \"%s\"; group = \"\"; cpu_slots = 2; "
	                  "listen = \"127.0.0.1\"; port = %d; allow_root = true; launch = \"process\";\n",
	                  s->dir, s->dir, s->socket, s->dir, s->dir, s->dir, cwd, s->port);
	ck_ok(file_write_atomic(config, text, strlen(text), 0644, &err), &err);
	ck_ok(file_write_atomic(hosts, two, strlen(two), 0644, &err), &err);
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
	close(fd);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	ck_ok(daemon_create(config, &s->daemon, &err), &err);
	ck_assert_int_ge(sd_event_add_io(s->daemon->event, NULL, s->answered, EPOLLIN, on_answered, NULL), 0);
}

START_TEST(each_route_answers_where_memory_runs_out)
{
	struct row end = {"DELETE", "/v1/runs/1", NULL, 202, USER};
	struct service s;

	start(&s);
	submit(&s, "exec sleep 1000"); /* until it is ended */
	run_until(&s, "/v1/runs/1?wait=1&state=running");
	submit(&s, "echo out");
	run_until(&s, "/v1/runs/2?wait=1&state=succeeded");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		check_row(&s, &rows[i]);
	free(answer_to(&s, &end, 0).body);
	run_until(&s, "/v1/runs/1?wait=1");
	daemon_destroy(s.daemon);
	identity_free(s.id);
	close(s.answered);
	file_remove_tree(s.dir, NULL);
	free(s.dir);
	free(s.socket);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon_memory");
	TCase *c = tcase_create("daemon_memory");

	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, each_route_answers_where_memory_runs_out);
	return unit_run(s);
}
