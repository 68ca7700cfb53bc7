/* SPDX-License-Identifier: Apache-2.0 */
/* Two services with a certificate each: what they take from each other, and a rotation under a run. */
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "daemon_fixture.h"
#include "http/authority.h"

enum { DAY = 86400 };

struct cluster {
	char *dir; /* of the authorities "a" and "b", and of n1/ and n2/, which the services read */
	struct daemon_fixture one, two;
};

static char *read_text(const struct cluster *c, const char *name)
{
	_cleanup_free_ char *path = str_path_join(c->dir, name);
	struct error err = ERROR_INIT;
	char *text = NULL;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	return text;
}

static void put(const struct cluster *c, const char *node, const char *name, const char *text)
{
	_cleanup_free_ char *path = str_printf("%s/%s/%s", c->dir, node, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0600, &err), &err);
}

/* The node's own files are from this authority. */
static void put_certificate(const struct cluster *c, const char *node, const char *ca)
{
	_cleanup_free_ char *crt_name = str_printf("%s/nodes/%s.pem", ca, node),
	                    *key_name = str_printf("%s/nodes/%s.key", ca, node),
	                    *crt = read_text(c, crt_name), *key = read_text(c, key_name);

	put(c, node, "node.pem", crt);
	put(c, node, "node.key", key);
}

static void make_authority(const struct cluster *c, const char *name)
{
	_cleanup_free_ char *ca = str_path_join(c->dir, name);
	struct validity v = {time(NULL) - DAY, time(NULL) + 300 * DAY};
	struct error err = ERROR_INIT;

	ck_ok(authority_make(ca, v, false, &err), &err);
	ck_ok(authority_make_node(ca, "n1", v, false, &err), &err);
	ck_ok(authority_make_node(ca, "n2", v, false, &err), &err);
}

static void cluster_start(struct cluster *c)
{
	struct daemon_setup setup = {.port = daemon_fixture_port()}, other = {.name = "n2"};
	_cleanup_free_ char *hosts = NULL, *ca = NULL, *more[2] = {NULL, NULL};

	*c = (struct cluster){.dir = unit_tmpdir()};
	make_authority(c, "a");
	make_authority(c, "b");
	ca = read_text(c, "a/ca.pem");
	for (int i = 0; i < 2; i++) {
		const char *node = i ? "n2" : "n1";
		_cleanup_free_ char *path = str_path_join(c->dir, node);

		ck_assert_int_eq(mkdir(path, 0700), 0);
		put_certificate(c, node, "a");
		put(c, node, "ca.pem", ca);
		more[i] =
		    str_printf("certificate = \"%s/node.pem\"; certificate_key = \"%s/node.key\"; ca_file = "
		               "\"%s/ca.pem\"; heartbeat = 0.2; node_timeout = 2.0;",
		               path, path, path);
	}
	do
		other.port = daemon_fixture_port();
	while (other.port == setup.port);
	hosts = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d\n",
	                   setup.port, other.port);
	setup.hosts = other.hosts = hosts;
	setup.more = more[0];
	other.more = more[1];
	daemon_fixture_start(&c->one, &setup);
	daemon_fixture_start(&c->two, &other);
	free(more[1]);
}

static void cluster_stop(struct cluster *c)
{
	daemon_fixture_teardown(&c->two);
	daemon_fixture_teardown(&c->one);
	file_remove_tree(c->dir, NULL);
	free(c->dir);
}

#define STOP "{\"run\":7,\"attempt\":1,\"grace\":1.0,\"controller\":\"n1\"}"
#define HEARTBEAT(node, attempts)                                                                            \
	"{\"node\":\"" node                                                                                  \
	"\",\"hosts\":\"0\",\"instance\":\"i\",\"sequence\":1,\"version\":\"0\",\"devices\":[],"             \
	"\"attempts\":[" attempts "],\"ports\":[],\"port_range\":[0,0],\"shutting_down\":false}"
#define REPORT(node) "{\"run\":1,\"attempt\":1,\"node\":\"" node "\",\"state\":\"ended\",\"ranks\":[]}"

/* The certificate of n2 is in foreign hands. */
START_TEST(a_node_speaks_for_itself_alone)
{
	static const struct {
		const char *caller, *method, *target, *body;
		bool to_two;
		int status;
	} rows[] = {
	    {"n1", "POST", "/v1/peer/stop", STOP, true, 200},
	    {"n2", "POST", "/v1/peer/stop", STOP, true, 403},
	    {"n2", "POST", "/v1/peer/stop", STOP, false, 403},
	    {"n2", "POST", "/v1/peer/start", "{}", false, 403},
	    {"n1", "POST", "/v1/peer/start", "{}", true, 400},
	    {"n2", "POST", "/v1/peer/devices/0/drain", "{}", false, 403},
	    {"n2", "POST", "/v1/peer/devices/0/resume", "{}", false, 403},
	    {"n2", "GET", "/v1/peer/logs?run=1&attempt=1&rank=0", NULL, false, 403},
	    {"n2", "POST", "/v1/peer/heartbeat", HEARTBEAT("n1", ""), false, 403},
	    {"n2", "POST", "/v1/peer/heartbeat/short",
	     "{\"node\":\"n1\",\"instance\":\"i\",\"sequence\":1,\"whole\":1}", false, 403},
	    {"n2", "POST", "/v1/peer/heartbeat", HEARTBEAT("n2", REPORT("n1")), false, 403},
	    {"n2", "POST", "/v1/peer/reports", "[" REPORT("n2") "," REPORT("n1") "]", false, 403},
	    {"n2", "POST", "/v1/peer/reports", "[" REPORT("n2") "]", false, 200},
	    {"n2", "GET", "/v1/peer/active-runs", NULL, false, 200},
	    {"n1", "GET", "/v1/peer/active-runs", NULL, true, 421},
	    {"n2", "GET", "/v1/version", NULL, false, 200},
	};
	struct raw_request drain = {.method = "POST", .target = "/v1/nodes/n2/drain"};
	_cleanup_json_ json_t *run = NULL;
	struct raw_answer drained;
	struct cluster c;

	cluster_start(&c);
	/* Run 1 is on n1. */
	drained = daemon_ask(&c.one, NULL, &drain);
	ck_assert_msg(drained.status == 200, "%d: %s", drained.status, drained.body);
	free(drained.body);
	daemon_submit(&c.one, NULL, "exec sleep 60", 1, 1);
	daemon_await(&c.one, 1, "running");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		_cleanup_free_ char *crt_name = str_printf("a/nodes/%s.pem", rows[i].caller),
		                    *key_name = str_printf("a/nodes/%s.key", rows[i].caller),
		                    *crt = read_text(&c, crt_name), *key = read_text(&c, key_name);
		struct raw_request q = {
		    .method = rows[i].method, .target = rows[i].target, .body = rows[i].body};
		struct raw_answer a =
		    raw_ask_tls(raw_connect_tcp(rows[i].to_two ? c.two.port : c.one.port), crt, key, &q);

		ck_assert_msg(a.status == rows[i].status, "%s %s of %s: %d: %s", rows[i].method,
		              rows[i].target, rows[i].caller, a.status, a.body);
		free(a.body);
	}
	/* What was refused has changed nothing. */
	run = daemon_get(&c.one, NULL, "/v1/runs/1");
	ck_assert_str_eq(json_get_string(run, "state", ""), "running");
	/* The cluster's key is not used. */
	{
		struct raw_request q = {.method = "GET", .target = "/v1/version"};
		struct raw_answer a = daemon_ask_tls(&c.one, &q);

		ck_assert_int_eq(a.status, 0);
		free(a.body);
	}
	cluster_stop(&c);
}
END_TEST

static void reload(const struct daemon_fixture *f, size_t count)
{
	_cleanup_free_ char *path = str_path_join(f->dir, "service.log");

	ck_assert_int_eq(kill(f->pid, SIGHUP), 0);
	for (size_t found = 0; found < count; usleep(20000)) {
		_cleanup_free_ char *text = NULL;

		found = 0;
		file_read(path, 0, &text, NULL, NULL);
		for (const char *p = text; p && (p = strstr(p, "configuration reloaded")); p++)
			found++;
	}
}

/* Sends the request as the service of the node, for a user. */
static void ask_for(struct cluster *c, const char *node, const char *user, const char *method,
                    const char *target, const char *body, int status)
{
	_cleanup_free_ char *crt_name = str_printf("a/nodes/%s.pem", node),
	                    *key_name = str_printf("a/nodes/%s.key", node), *crt = read_text(c, crt_name),
	                    *key = read_text(c, key_name), *header = str_printf("Dtrain-User: %s", user);
	struct raw_request q = {.method = method, .target = target, .header = header, .body = body};
	struct raw_answer a = raw_ask_tls(raw_connect_tcp(c->one.port), crt, key, &q);

	ck_assert_msg(a.status == status, "%s %s of %s for %s: %d: %s", method, target, node, user, a.status,
	              a.body);
	free(a.body);
}

/* Once a host is marked, a node that is not asks for its own ranks alone, and shows what all may see. */
START_TEST(users_are_forwarded_from_marked_hosts)
{
	static const char one_rank[] = "{\"config\":{\"task\":\"command\",\"command\":[\"sleep\",\"60\"],"
	                               "\"directory\":\"/\",\"resources\":{\"hosts\":[\"%s\"]}}}";
	static const char metrics[] = "{\"step\":1}\n";
	_cleanup_free_ char *self = str_printf("%d:%d:root", (int)geteuid(), (int)getegid()),
	                    *on_one = str_printf(one_rank, "n1"), *on_two = str_printf(one_rank, "n2"),
	                    *hosts = NULL, *marked = NULL;
	struct cluster c;

	cluster_start(&c);
	ask_for(&c, "n2", self, "POST", "/v1/runs", on_one, 201);
	hosts = str_printf("n1 slots=2 addr=127.0.0.1 port=%d submit\nn2 slots=2 addr=127.0.0.1 port=%d\n",
	                   c.one.port, c.two.port);
	daemon_fixture_write(&c.one, "hosts", hosts);
	reload(&c.one, 1);
	ask_for(&c, "n2", self, "POST", "/v1/runs", on_two, 403);
	ask_for(&c, "n2", self, "DELETE", "/v1/runs/1", NULL, 403);
	ask_for(&c, "n2", self, "GET", "/v1/runs/1", NULL, 403);
	ask_for(&c, "n2", self, "GET", "/v1/runs/1/logs", NULL, 403);
	ask_for(&c, "n2", self, "POST", "/v1/nodes/n1/drain", NULL, 403);
	ask_for(&c, "n2", self, "GET", "/v1/backup", NULL, 403);
	ask_for(&c, "n2", self, "GET", "/v1/runs", NULL, 200);
	ask_for(&c, "n2", self, "GET", "/v1/nodes", NULL, 200);
	ask_for(&c, "n1", self, "POST", "/v1/runs", on_two, 201);
	daemon_await(&c.one, 1, "running");
	daemon_await(&c.one, 2, "running");
	ask_for(&c, "n2", self, "POST", "/v1/runs/1/metrics", metrics, 403);
	ask_for(&c, "n2", self, "GET", "/v1/runs/1/rendezvous/1/x", NULL, 403);
	ask_for(&c, "n2", self, "POST", "/v1/runs/2/metrics", metrics, 200);
	/* The mark of the other one, and none at all. */
	marked = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d submit\n",
	                    c.one.port, c.two.port);
	daemon_fixture_write(&c.one, "hosts", marked);
	reload(&c.one, 2);
	ask_for(&c, "n2", self, "DELETE", "/v1/runs/1", NULL, 202);
	ask_for(&c, "n2", self, "DELETE", "/v1/runs/2", NULL, 202);
	daemon_await(&c.one, 1, "cancelled");
	daemon_await(&c.one, 2, "cancelled");
	cluster_stop(&c);
}
END_TEST

/* The collector has a certificate of authority b, which the services do not know, and n1 serves it what it
 * may see, and nothing else. */
START_TEST(metrics_have_a_listener_of_their_own)
{
	static const struct {
		const char *authority, *method, *target;
		int status; /* 0: the handshake fails */
	} rows[] = {
	    {"b", "GET", "/metrics", 200},    {"b", "GET", "/v1/nodes", 404}, {"b", "POST", "/v1/runs", 404},
	    {"b", "GET", "/v1/version", 404}, {"b", "POST", "/metrics", 405}, {"a", "GET", "/metrics", 0},
	    {NULL, "GET", "/metrics", 0},
	};
	_cleanup_free_ char *dir = unit_tmpdir(), *more = NULL, *ca = NULL, *path = NULL;
	struct daemon_setup setup = {.port = daemon_fixture_port()};
	struct cluster c = {.dir = dir};
	int port = daemon_fixture_port();

	make_authority(&c, "a");
	make_authority(&c, "b");
	ca = read_text(&c, "b/ca.pem");
	path = str_path_join(dir, "m");
	ck_assert_int_eq(mkdir(path, 0700), 0);
	put(&c, "m", "ca.pem", ca);
	more = str_printf("metrics_listen = \"127.0.0.1:%d\"; metrics_ca = \"%s/ca.pem\";", port, path);
	setup.more = more;
	daemon_fixture_start(&c.one, &setup);
	for (size_t i = 0; i < 2 * ARRAY_SIZE(rows); i++) {
		/* After a reload the two authorities have changed places. */
		const char *authority = rows[i % ARRAY_SIZE(rows)].authority;
		bool swapped = i >= ARRAY_SIZE(rows);
		const char *name = !authority ? NULL : swapped == str_eq(authority, "a") ? "b" : "a";
		_cleanup_free_ char *crt_name = str_printf("%s/nodes/n1.pem", name ? name : "a"),
		                    *key_name = str_printf("%s/nodes/n1.key", name ? name : "a"),
		                    *crt = read_text(&c, crt_name), *key = read_text(&c, key_name),
		                    *other = NULL;
		struct raw_request q = {.method = rows[i % ARRAY_SIZE(rows)].method,
		                        .target = rows[i % ARRAY_SIZE(rows)].target};
		struct raw_answer a;

		if (i == ARRAY_SIZE(rows)) {
			other = read_text(&c, "a/ca.pem");
			put(&c, "m", "ca.pem", other);
			reload(&c.one, 1);
		}
		a = raw_ask_tls(raw_connect_tcp(port), name ? crt : NULL, name ? key : NULL, &q);
		ck_assert_msg(a.status == rows[i % ARRAY_SIZE(rows)].status, "%s %s with %s: %d: %s",
		              q.method, q.target, name ? name : "none", a.status, a.body);
		ck_assert(a.status != 200 || strstr(a.body, "dtrain_node_up{node=\"n1\"} 1"));
		free(a.body);
	}
	daemon_fixture_teardown(&c.one);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The run is on both nodes while the authority is replaced by another one. */
START_TEST(a_run_goes_on_while_the_authority_is_replaced)
{
	_cleanup_free_ char *a = NULL, *b = NULL, *both = NULL, *mark = NULL, *script = NULL;
	struct cluster c;

	cluster_start(&c);
	a = read_text(&c, "a/ca.pem");
	b = read_text(&c, "b/ca.pem");
	both = str_printf("%s%s", a, b);
	mark = str_path_join(c.one.dir, "mark");
	script = str_printf("until [ -e %s ]; do sleep 0.1; done; echo rank $RANK", mark);
	ck_assert_int_eq(daemon_submit(&c.two, NULL, script, 2, 1), 1);
	daemon_await(&c.two, 1, "running");
	for (size_t step = 1; step <= 3; step++)
		for (int i = 0; i < 2; i++) {
			const char *node = i ? "n2" : "n1";

			if (step == 2)
				put_certificate(&c, node, "b");
			else
				put(&c, node, "ca.pem", step == 1 ? both : b);
			reload(i ? &c.two : &c.one, step);
		}
	daemon_fixture_write(&c.one, "mark", "");
	daemon_await(&c.two, 1, "succeeded");
	{
		_cleanup_free_ char *crt = read_text(&c, "a/nodes/n2.pem"),
		                    *key = read_text(&c, "a/nodes/n2.key");
		struct raw_request q = {.method = "GET", .target = "/v1/version"};
		struct raw_answer old = raw_ask_tls(raw_connect_tcp(c.one.port), crt, key, &q);
		_cleanup_json_ json_t *run = daemon_get(&c.one, NULL, "/v1/runs/1");

		ck_assert_int_eq(old.status, 0);
		free(old.body);
		ck_assert_int_eq(json_get_int(run, "attempt", 0), 1);
	}
	/* With files that do not belong together everything stays as it was. */
	put(&c, "n1", "ca.pem", a);
	ck_assert_int_eq(kill(c.one.pid, SIGHUP), 0);
	ck_assert_int_eq(daemon_submit(&c.two, NULL, "true", 2, 1), 2);
	daemon_await(&c.two, 2, "succeeded");
	cluster_stop(&c);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon certificates");
	TCase *t = tcase_create("daemon certificates");

	tcase_set_timeout(t, 120);
	suite_add_tcase(s, t);
	tcase_add_test(t, a_node_speaks_for_itself_alone);
	tcase_add_test(t, users_are_forwarded_from_marked_hosts);
	tcase_add_test(t, metrics_have_a_listener_of_their_own);
	tcase_add_test(t, a_run_goes_on_while_the_authority_is_replaced);
	return unit_run(s);
}
