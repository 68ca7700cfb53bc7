/* SPDX-License-Identifier: Apache-2.0 */
/* Requests between services, also on behalf of users, and the behaviour while one service does not run. */
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "daemon_fixture.h"
#include "http/server.h"

struct row {
	const char *method, *target, *body, *user; /* user: as Dtrain-User has it; NULL: nobody's */
	int status;
	const char *code;
};

static void ask_tls(const struct daemon_fixture *f, const struct row *row)
{
	_cleanup_free_ char *user = row->user ? str_printf("Dtrain-User: %s", row->user) : NULL;
	struct raw_request q = {
	    .method = row->method, .target = row->target, .body = row->body, .header = user};
	struct raw_answer a = daemon_ask_tls(f, &q);

	ck_assert_msg(a.status == row->status && str_eq(a.code, row->code ? row->code : ""),
	              "%s %s %s for %s: %d %s, expected %d: %s", row->method, row->target,
	              row->body ? row->body : "", row->user ? row->user : "itself", a.status, a.code,
	              row->status, a.body);
	free(a.body);
}

static void ask_local(const struct daemon_fixture *f, const struct row *row)
{
	struct raw_request q = {.method = row->method, .target = row->target, .body = row->body};
	struct raw_answer a = daemon_ask(f, NULL, &q);

	ck_assert_msg(a.status == row->status && str_eq(a.code, row->code ? row->code : ""),
	              "%s %s: %d %s, expected %d: %s", row->method, row->target, a.status, a.code,
	              row->status, a.body);
	free(a.body);
}

#define HEARTBEAT(node)                                                                                      \
	"{\"node\":\"" node                                                                                  \
	"\",\"hosts\":\"0\",\"instance\":\"i\",\"sequence\":1,\"version\":\"0\",\"devices\":["               \
	"{\"node\":\"" node                                                                                  \
	"\",\"index\":0,\"kind\":\"cpu\",\"name\":\"CPU\",\"uuid\":null,\"memory\":1024,"                    \
	"\"threads\":1,\"state\":\"free\",\"run\":null,\"reason\":null}],\"attempts\":[],\"ports\":[4001],"  \
	"\"port_range\":[0,0],\"shutting_down\":false,\"known\":{\"clusters\":[],\"highest_run\":0}}"

#define SHORT(node, sequence, whole)                                                                         \
	"{\"node\":\"" node "\",\"instance\":\"i\",\"sequence\":" #sequence ",\"whole\":" #whole "}"

/* n1 is the controller; n2 is in the hosts file, and is given up soon, since it is not there. Run 1 of the
 * user who runs the test has ended. 4242 is the uid of another user. */
static const struct row rows_of_controller[] = {
    /* A service sends requests for a user, or for itself, which owns no run. */
    {"GET", "/v1/runs/1/logs", NULL, "4242:4242:mallory", 403, "not-allowed"},
    {"GET", "/v1/runs/1/logs", NULL, NULL, 403, "not-allowed"},
    {"GET", "/v1/runs/1/logs", NULL, "0:0:root", 200, NULL},
    {"GET", "/v1/runs/1", NULL, "4242:4242:mallory", 200, NULL},
    {"DELETE", "/v1/runs/1", NULL, "4242:4242:mallory", 403, "not-allowed"},
    {"DELETE", "/v1/runs/1", NULL, "0:0:root", 409, "ended"},
    {"POST", "/v1/nodes/n2/drain", NULL, "4242:4242:mallory", 403, "not-allowed"},
    {"POST", "/v1/nodes/n2/drain", NULL, NULL, 403, "not-allowed"},
    {"POST", "/v1/nodes/n2/drain", NULL, "0:0:root", 200, NULL},
    {"POST", "/v1/nodes/n2/devices/0/drain", NULL, "0:0:root", 502, "unreachable"},
    {"POST", "/v1/runs", "{}", NULL, 403, "no-such-user"},
    {"POST", "/v1/runs", "{}", "4242:4242:", 403, "no-such-user"},
    {"GET", "/v1/backup", NULL, NULL, 403, "not-allowed"},
    {"GET", "/v1/version", NULL, "nonsense", 403, "not-allowed"},
    /* Only the administrator of this machine. */
    {"POST", "/v1/end-runs", NULL, "0:0:root", 403, "not-allowed"},
    /* Requests of nodes. */
    {"POST", "/v1/peer/heartbeat", HEARTBEAT("n2"), NULL, 200, NULL},
    {"POST", "/v1/peer/heartbeat", HEARTBEAT("n2"), NULL, 409, "repeated"},
    {"POST", "/v1/peer/heartbeat/short", SHORT("n2", 2, 1), NULL, 200, NULL},
    {"POST", "/v1/peer/heartbeat/short", SHORT("n2", 2, 1), NULL, 409, "repeated"},
    {"POST", "/v1/peer/heartbeat/short", SHORT("n2", 3, 2), NULL, 409, "not-kept"},
    {"POST", "/v1/peer/heartbeat/short", SHORT("n3", 3, 1), NULL, 404, "no-such-node"},
    {"POST", "/v1/peer/heartbeat/short", "{\"node\":\"n2\"}", NULL, 400, "bad-json"},
    {"POST", "/v1/peer/heartbeat", HEARTBEAT("n3"), NULL, 404, "no-such-node"},
    {"POST", "/v1/peer/heartbeat", "[]", NULL, 400, "bad-json"},
    {"POST", "/v1/peer/heartbeat", "{\"node\":\"n2\"}", NULL, 400, "bad-json"},
    {"GET", "/v1/peer/active-runs", NULL, NULL, 200, NULL},
    {"POST", "/v1/peer/reports", "[]", NULL, 200, NULL},
    {"POST", "/v1/peer/reports", "{}", NULL, 400, "bad-json"},
    /* Requests of a controller. */
    {"POST", "/v1/peer/start", "{}", NULL, 400, "refused"},
    {"POST", "/v1/peer/start", "[]", NULL, 400, "bad-json"},
    {"POST", "/v1/peer/stop", "[]", NULL, 400, "bad-json"},
    {"POST", "/v1/peer/stop", "{\"run\":7,\"attempt\":1,\"grace\":1.0,\"controller\":\"n1\"}", NULL, 200,
     NULL},
    {"POST", "/v1/peer/stop", "{\"run\":7,\"attempt\":1,\"grace\":1.0,\"controller\":\"n2\"}", NULL, 410,
     "refused"},
    {"POST", "/v1/peer/devices/0/drain", NULL, NULL, 200, NULL},
    {"POST", "/v1/peer/devices/0/resume", NULL, NULL, 200, NULL},
    {"POST", "/v1/peer/devices/99/drain", NULL, NULL, 404, "no-such-device"},
    {"POST", "/v1/peer/devices/x/resume", NULL, NULL, 404, "no-such-device"},
    {"GET", "/v1/peer/logs?run=1&attempt=1&rank=0", NULL, NULL, 200, NULL},
    {"GET", "/v1/peer/logs?run=1&attempt=1&rank=0&tail=-1&follow=1", NULL, NULL, 200, NULL},
    {"GET", "/v1/peer/logs?run=99", NULL, NULL, 404, "no-such-log"},
    {"GET", "/v1/peer/logs?run=0", NULL, NULL, 400, "bad-query"},
    {"GET", "/v1/peer/logs?run=1&follow=x", NULL, NULL, 400, "bad-query"},
};

START_TEST(a_controller_answers_services)
{
	struct daemon_setup setup = {.port = daemon_fixture_port(),
	                             .more = "heartbeat = 0.2; node_timeout = 0.5;"};
	_cleanup_free_ char *hosts = str_printf(
	    "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.1 port=%d\n", daemon_fixture_port());
	struct daemon_fixture f;

	setup.hosts = hosts;
	daemon_fixture_start(&f, &setup);
	daemon_submit(&f, NULL, "echo out", 1, 1);
	daemon_await(&f, 1, "succeeded");
	for (size_t i = 0; i < ARRAY_SIZE(rows_of_controller); i++)
		ask_tls(&f, &rows_of_controller[i]);
	daemon_fixture_teardown(&f);
}
END_TEST

/* n2 is the controller, and does not run. */
static const struct row rows_without_controller[] = {
    {"GET", "/v1/version", NULL, NULL, 200, NULL},
    {"GET", "/v1/devices?local=1", NULL, NULL, 200, NULL},
    {"GET", "/v1/devices", NULL, NULL, 502, "unreachable"},
    {"GET", "/v1/nodes", NULL, NULL, 502, "unreachable"},
    {"GET", "/v1/runs", NULL, NULL, 502, "unreachable"},
    {"POST", "/v1/runs", "{}", NULL, 502, "unreachable"},
    {"GET", "/v1/runs/1/logs", NULL, NULL, 502, "unreachable"},
    {"GET", "/v1/events", NULL, NULL, 502, "unreachable"},
    {"GET", "/v1/backup", NULL, NULL, 502, "unreachable"},
    {"POST", "/v1/nodes/n1/drain", NULL, NULL, 502, "unreachable"},
    {"POST", "/v1/end-runs", NULL, NULL, 200, NULL},
};

/* A forwarded request is not forwarded again. */
static const struct row rows_of_other[] = {
    {"GET", "/v1/runs", NULL, "0:0:root", 421, "not-controller"},
    {"POST", "/v1/peer/heartbeat", HEARTBEAT("n2"), NULL, 421, "not-controller"},
    {"POST", "/v1/peer/heartbeat/short", SHORT("n2", 2, 1), NULL, 421, "not-controller"},
    {"POST", "/v1/peer/reports", "[]", NULL, 421, "not-controller"},
    {"POST", "/v1/peer/devices/1/drain", NULL, NULL, 200, NULL},
};

START_TEST(a_node_without_its_controller_says_so)
{
	struct daemon_setup setup = {.port = daemon_fixture_port(), .controller = "n2"};
	_cleanup_free_ char *hosts = str_printf(
	    "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.1 port=%d\n", daemon_fixture_port());
	struct daemon_fixture f;

	setup.hosts = hosts;
	daemon_fixture_start(&f, &setup);
	for (size_t i = 0; i < ARRAY_SIZE(rows_of_other); i++)
		ask_tls(&f, &rows_of_other[i]);
	for (size_t i = 0; i < ARRAY_SIZE(rows_without_controller); i++)
		ask_local(&f, &rows_without_controller[i]);
	daemon_fixture_teardown(&f);
}
END_TEST

/* Two services, n1 with the queue. */
static void start_two(struct daemon_fixture *one, struct daemon_fixture *two)
{
	struct daemon_setup setup = {.port = daemon_fixture_port()}, other = {.name = "n2"};
	_cleanup_free_ char *hosts = NULL;

	do
		other.port = daemon_fixture_port();
	while (other.port == setup.port);
	hosts = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d\n",
	                   setup.port, other.port);
	setup.hosts = other.hosts = hosts;
	other.other = one;
	daemon_fixture_start(one, &setup);
	daemon_fixture_start(two, &other);
}

static char *get_text(const struct daemon_fixture *f, const struct person *who, const char *target,
                      int status)
{
	struct raw_request q = {.method = "GET", .target = target};
	struct raw_answer a = daemon_ask(f, who, &q);

	ck_assert_msg(a.status == status, "GET %s: %d: %s", target, a.status, a.body);
	return a.body;
}

START_TEST(two_services_execute_a_run_together)
{
	struct daemon_fixture one, two;
	_cleanup_free_ char *merged = NULL, *second = NULL, *events = NULL;
	_cleanup_json_ json_t *run = NULL, *nodes = NULL;

	start_two(&one, &two);
	/* Submitted on the node without the queue. */
	ck_assert_int_eq(daemon_submit(&two, NULL, "echo rank $RANK of $WORLD_SIZE on $DTRAIN_NODE", 2, 1),
	                 1);
	daemon_await(&two, 1, "succeeded");
	run = daemon_get(&two, NULL, "/v1/runs/1");
	ck_assert_uint_eq(json_array_size(json_object_get(run, "nodes")), 2);
	for (int i = 0; i < 2; i++) {
		const struct daemon_fixture *f = i ? &two : &one;

		free(merged);
		free(second);
		merged = get_text(f, NULL, "/v1/runs/1/logs?rank=all", 200);
		ck_assert_ptr_nonnull(strstr(merged, "[0] rank 0 of 2"));
		ck_assert_ptr_nonnull(strstr(merged, "[1] rank 1 of 2"));
		second = get_text(f, NULL, "/v1/runs/1/logs?rank=1&tail=1", 200);
		ck_assert_ptr_nonnull(strstr(second, "rank 1 of 2"));
		free(merged);
		free(second);
		merged = get_text(f, NULL, "/v1/runs/1/logs?rank=all&positions=1", 200);
		ck_assert_ptr_nonnull(strstr(merged, "1 0 0 0\n"));
		ck_assert_ptr_nonnull(strstr(merged, "1 1 0 0\n"));
		ck_assert_ptr_nonnull(strstr(merged, "\nrank 0 of 2"));
		ck_assert_ptr_nonnull(strstr(merged, "\nrank 1 of 2"));
		second = get_text(f, NULL, "/v1/runs/1/logs?rank=1&positions=1&offset=7", 200);
		ck_assert_ptr_nonnull(strstr(second, "1 1 7 0\n1 1 "));
		ck_assert_ptr_nonnull(strstr(second, "\nof 2 on"));
	}
	nodes = daemon_get(&two, NULL, "/v1/nodes");
	ck_assert_uint_eq(json_array_size(json_object_get(nodes, "nodes")), 2);
	/* The controller's answers to heartbeats let both nodes forget the attempt. */
	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *files = str_path_join((i ? &two : &one)->dir, "run/attempts/1.1");

		while (file_exists(files))
			usleep(20000);
	}
	daemon_fixture_teardown(&two);
	daemon_fixture_teardown(&one);
}
END_TEST

/* A rank on one node fails: the other node's rank is stopped, and the reason names the first. */
START_TEST(a_failure_on_one_node_ends_the_run_on_both)
{
	struct daemon_fixture one, two;
	_cleanup_json_ json_t *run = NULL;

	start_two(&one, &two);
	daemon_submit(&one, NULL, "[ $RANK = 0 ] && exec sleep 60; exit 7", 2, 1);
	daemon_await(&one, 1, "failed");
	run = daemon_get(&one, NULL, "/v1/runs/1");
	ck_assert_str_eq(json_get_string(run, "reason", ""), "rank 1 on n2: exit status 7");
	ck_assert_int_eq(json_get_int(run, "exit_status", 0), 7);
	daemon_fixture_teardown(&two);
	daemon_fixture_teardown(&one);
}
END_TEST

/* The node of the caller names the user, and the owner is the same on every node. */
START_TEST(a_user_is_the_same_on_all_nodes)
{
	const struct passwd *nobody = getpwnam("nobody");
	struct daemon_fixture one, two;
	struct raw_request cancel = {.method = "DELETE", .target = "/v1/runs/1"};
	_cleanup_json_ json_t *run = NULL, *nameless = NULL;
	struct raw_answer a;
	struct person other;

	if (geteuid() != 0 || !nobody) {
		printf("daemon_peers: only root can send requests as another user: not tested\n");
		return;
	}
	other = (struct person){nobody->pw_uid, nobody->pw_gid, "nobody"};
	start_two(&one, &two);
	daemon_submit(&two, NULL, "exec sleep 60", 1, 1);
	daemon_await(&two, 1, "running");
	for (int i = 0; i < 2; i++) {
		const struct daemon_fixture *f = i ? &two : &one;

		free(get_text(f, &other, "/v1/runs/1/logs", 403));
		free(get_text(f, NULL, "/v1/runs/1/logs", 200));
		a = daemon_ask(f, &other, &cancel);
		ck_assert_int_eq(a.status, 403);
		free(a.body);
	}
	a = daemon_ask(&two, NULL, &cancel);
	ck_assert_int_eq(a.status, 202);
	free(a.body);
	daemon_await(&one, 1, "cancelled");
	run = daemon_get(&one, NULL, "/v1/runs/1");
	ck_assert_str_eq(json_get_string(run, "reason", ""), "cancelled by root");
	/* The password database of the caller's node does not answer. */
	daemon_submit(&two, NULL, "exec sleep 60", 1, 1);
	cancel =
	    (struct raw_request){.method = "DELETE", .target = "/v1/runs/2", .header = "Dtrain-User: 0:0:"};
	a = daemon_ask_tls(&one, &cancel);
	ck_assert_int_eq(a.status, 202);
	free(a.body);
	daemon_await(&one, 2, "cancelled");
	nameless = daemon_get(&one, NULL, "/v1/runs/2");
	ck_assert_str_eq(json_get_string(nameless, "reason", ""), "cancelled by uid 0");
	daemon_fixture_teardown(&two);
	daemon_fixture_teardown(&one);
}
END_TEST

/* What a person gets for a request without a body: the status, and the words, if any, are in the answer. */
static void expect(const struct daemon_fixture *f, const struct person *who, const char *method,
                   const char *target, int status, const char *words)
{
	struct raw_request q = {.method = method, .target = target};
	struct raw_answer a = daemon_ask(f, who, &q);

	ck_assert_msg(a.status == status && (!words || strstr(a.body, words)), "%s %s: %d: %s", method,
	              target, a.status, a.body);
	free(a.body);
}

/* The members of a group may do what root may, on every node; each node decides whose runs it starts. */
START_TEST(administrators_and_root_are_what_the_files_say)
{
	const struct passwd *nobody = getpwnam("nobody");
	struct daemon_setup setup = {.port = daemon_fixture_port(), .more = "admin_group = \"nogroup\";"},
	                    other = {.name = "n2", .more = "admin_group = \"nogroup\"; allow_root = false;"};
	_cleanup_free_ char *hosts = NULL;
	_cleanup_json_ json_t *run = NULL;
	struct daemon_fixture one, two;
	struct person admin, user = {1, 1, "daemon"};

	if (geteuid() != 0 || !nobody) {
		printf("daemon_peers: only root can send requests as another user: not tested\n");
		return;
	}
	admin = (struct person){nobody->pw_uid, nobody->pw_gid, "nobody"};
	do
		other.port = daemon_fixture_port();
	while (other.port == setup.port);
	hosts = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d\n",
	                   setup.port, other.port);
	setup.hosts = other.hosts = hosts;
	other.other = &one;
	daemon_fixture_start(&one, &setup);
	daemon_fixture_start(&two, &other);
	for (int i = 0; i < 2; i++) {
		const struct daemon_fixture *f = i ? &two : &one;

		expect(f, &user, "POST", "/v1/nodes/n2/drain", 403, "only administrators may drain");
		expect(f, &admin, "POST", "/v1/nodes/n2/drain", 200, NULL);
		expect(f, &admin, "POST", "/v1/nodes/n2/resume", 200, NULL);
	}
	/* Of the two nodes of the run one refuses it. */
	daemon_submit(&one, NULL, "true", 2, 1);
	daemon_await(&one, 1, "failed");
	run = daemon_get(&one, NULL, "/v1/runs/1");
	ck_assert_ptr_nonnull(
	    strstr(json_get_string(run, "detail", ""), "n2: runs of root are refused here"));
	/* A rank of a run that is running may not have written anything yet. */
	daemon_submit(&one, &user, "echo private", 2, 1);
	daemon_await(&one, 2, "succeeded");
	expect(&two, &admin, "GET", "/v1/runs/2/logs", 200, "private");
	daemon_submit(&one, &user, "exec sleep 60", 2, 1);
	daemon_await(&one, 3, "running");
	expect(&two, &admin, "DELETE", "/v1/runs/3", 202, NULL);
	daemon_await(&one, 3, "cancelled");
	daemon_fixture_teardown(&two);
	daemon_fixture_teardown(&one);
}
END_TEST

/* A device of another node is drained there, and the controller gets the new state. */
START_TEST(a_device_is_drained_where_it_is)
{
	struct daemon_fixture one, two;
	struct raw_request drain = {
	    .method = "POST", .target = "/v1/nodes/n2/devices/1/drain", .body = "{\"reason\":\"a new fan\"}"};
	_cleanup_json_ json_t *local = NULL;
	struct raw_answer a;

	start_two(&one, &two);
	a = daemon_ask(&one, NULL, &drain);
	ck_assert_msg(a.status == 200, "%d: %s", a.status, a.body);
	free(a.body);
	local = daemon_get(&two, NULL, "/v1/devices?local=1");
	ck_assert_str_eq(json_get_string(json_array_get(json_object_get(local, "devices"), 1), "state", ""),
	                 "drained");
	/* Its heartbeat may arrive after the answer. */
	for (bool known = false; !known; usleep(20000)) {
		_cleanup_free_ char *nodes = get_text(&one, NULL, "/v1/nodes", 200);

		known = strstr(nodes, "a new fan");
	}
	/* It uses all four slots. */
	daemon_submit(&one, NULL, "true", 2, 2);
	{
		_cleanup_json_ json_t *run = daemon_get(&one, NULL, "/v1/runs/1");

		ck_assert_ptr_nonnull(strstr(json_get_string(run, "reason", ""),
		                             "waits for node n2, of whose 2 slots 1 is drained"));
	}
	drain.target = "/v1/nodes/n2/devices/1/resume";
	a = daemon_ask(&two, NULL, &drain);
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	daemon_await(&one, 1, "succeeded");
	daemon_fixture_teardown(&two);
	daemon_fixture_teardown(&one);
}
END_TEST

/* A new line of the hosts file adds a node at the next HUP. */
static void answer_nothing(void *context, struct http_request *r)
{
	http_reply_json(r, 200, json_object());
}

/* The service of a node whose answers say nothing, in a process of its own. */
static pid_t serve_nothing(const struct identity *id, int port)
{
	static const struct http_route routes[] = {
	    {"POST", "/v1/peer/devices/{}/drain", HTTP_PEER, answer_nothing}};
	struct http_server_options options = {
	    .routes = routes, .route_count = ARRAY_SIZE(routes), .max_body = 4096};
	struct http_server *server;
	struct error err = ERROR_INIT;
	sd_event *event;
	int fd;
	pid_t pid;

	ck_ok(http_bind_tcp("127.0.0.1", port, &fd, &err), &err);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (sd_event_new(&event) < 0 || http_server_create(event, &options, &server, &err) < 0 ||
		    http_server_listen_tls(server, fd, id, &err) < 0)
			_exit(1);
		_exit(sd_event_loop(event) < 0);
	}
	close(fd);
	return pid;
}

/* As of another version of dtrain: nothing is wrong with the store of this one. */
START_TEST(the_answer_of_a_node_cannot_be_read)
{
	struct raw_request drain = {.method = "POST", .target = "/v1/nodes/n2/devices/0/drain"};
	struct daemon_setup setup = {.port = daemon_fixture_port()};
	int port = daemon_fixture_port();
	_cleanup_free_ char *hosts = str_printf(
	    "n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d\n", setup.port, port);
	struct daemon_fixture one;
	struct raw_answer a;
	pid_t pid;

	setup.hosts = hosts;
	daemon_fixture_start(&one, &setup);
	pid = serve_nothing(one.id, port);
	a = daemon_ask(&one, NULL, &drain);
	ck_assert_msg(a.status == 502 && str_eq(a.code, "bad-answer") && strstr(a.body, "node n2"), "%d: %s",
	              a.status, a.body);
	free(a.body);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	daemon_fixture_teardown(&one);
}
END_TEST

START_TEST(a_reload_takes_new_hosts_over)
{
	struct daemon_setup setup = {.port = daemon_fixture_port()};
	static const char two[] = "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.1 port=1\n",
	                  three[] =
	                      "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.1 port=1\nn3 slots=1\n";
	struct daemon_fixture f;
	size_t count = 0;

	setup.hosts = two;
	daemon_fixture_start(&f, &setup);
	daemon_fixture_write(&f, "hosts", "n1 slots=x\n");
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	daemon_fixture_write(&f, "hosts", three);
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	while (count != 3) {
		_cleanup_json_ json_t *nodes = daemon_get(&f, NULL, "/v1/nodes");

		count = json_array_size(json_object_get(nodes, "nodes"));
		ck_assert(count == 2 || count == 3);
	}
	daemon_fixture_teardown(&f);
}
END_TEST

static void await_log(const struct daemon_fixture *f, const char *line)
{
	_cleanup_free_ char *path = str_path_join(f->dir, "service.log");

	for (bool found = false; !found; usleep(20000)) {
		_cleanup_free_ char *text = NULL;

		file_read(path, 0, &text, NULL, NULL);
		found = text && strstr(text, line);
	}
}

/* Upper and lower case are the same node: this one, which is the controller, too. */
START_TEST(a_reload_takes_another_spelling_over)
{
	struct daemon_setup setup = {.port = daemon_fixture_port()};
	_cleanup_json_ json_t *nodes = NULL;
	struct daemon_fixture f;
	const json_t *list;

	setup.hosts = "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.1 port=1\n";
	daemon_fixture_start(&f, &setup);
	daemon_fixture_write(&f, "hosts",
	                     "N1 slots=2 addr=127.0.0.1\nN2 slots=2 addr=127.0.0.1 port=1\nn3\n");
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	await_log(&f, "configuration reloaded: 3 hosts");
	nodes = daemon_get(&f, NULL, "/v1/nodes");
	list = json_object_get(nodes, "nodes");
	ck_assert_uint_eq(json_array_size(list), 3);
	ck_assert_str_eq(json_get_string(json_array_get(list, 0), "name", ""), "N1");
	ck_assert(json_is_true(json_object_get(json_array_get(list, 0), "controller")));
	ck_assert_str_eq(json_get_string(json_array_get(list, 1), "name", ""), "N2");
	daemon_fixture_teardown(&f);
}
END_TEST

/* The hosts file of n1 has its own port for n2. n1 is drained: a run for n2 would be started there. */
START_TEST(a_wrong_address_starts_nothing_on_another_node)
{
	struct raw_request drain = {.method = "POST", .target = "/v1/nodes/n1/drain"};
	struct raw_request device = {.method = "POST", .target = "/v1/nodes/n2/devices/0/drain"};
	_cleanup_free_ char *right = NULL, *wrong = NULL, *mark = NULL, *script = NULL, *log = NULL;
	struct daemon_fixture one, two;
	struct raw_answer a;

	start_two(&one, &two);
	right = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d\n", one.port,
	                   two.port);
	wrong = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 slots=2 addr=127.0.0.1 port=%d\n", one.port,
	                   one.port);
	mark = str_path_join(one.dir, "mark");
	ck_assert_int_eq(chmod(one.dir, 0777), 0);
	daemon_fixture_write(&one, "hosts", wrong);
	ck_assert_int_eq(kill(one.pid, SIGHUP), 0);
	await_log(&one, "configuration reloaded");
	a = daemon_ask(&one, NULL, &drain);
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	/* A change of a device of n2 changes none of n1. The service calls itself here: on a machine that is
	 * busy it may have given the connection up before it had answered it, and is asked again. */
	for (bool named = false; !named;) {
		a = daemon_ask(&one, NULL, &device);
		ck_assert_msg(a.status == 502, "%d: %s", a.status, a.body);
		named = strstr(a.body, "this is node n1, not n2") != NULL;
		free(a.body);
	}
	script = str_printf("echo $DTRAIN_NODE >>%s", mark);
	daemon_submit(&one, NULL, script, 1, 1);
	await_log(&one, "node n2 cannot be reached: this is node n1, not n2: correct addr= or port= of n2");
	daemon_fixture_write(&one, "hosts", right);
	ck_assert_int_eq(kill(one.pid, SIGHUP), 0);
	daemon_await(&one, 1, "succeeded");
	ck_assert_int_eq(file_read(mark, 0, &log, NULL, NULL), 0);
	ck_assert_str_eq(log, "n2\n");
	daemon_fixture_teardown(&two);
	daemon_fixture_teardown(&one);
}
END_TEST

#define GPU(index, more)                                                                                     \
	"{\"node\":\"n2\",\"index\":" #index ",\"kind\":\"gpu\",\"name\":\"H200\",\"uuid\":\"GPU-" #index    \
	"\",\"memory\":1000,\"threads\":1,\"state\":\"free\",\"run\":null,\"reason\":null,"                  \
	"\"gpu\":" #index more "}"

/* Of each GPU what its node knows of it, in the unit of the name; nothing of it where it knows nothing. */
START_TEST(gpus_have_gauges)
{
	static const char heartbeat[] =
	    "{\"node\":\"n2\",\"hosts\":\"0\",\"instance\":\"i\",\"sequence\":1,\"version\":\"0\","
	    "\"devices\":[" GPU(
	        0, ",\"memory_used\":7,\"utilization\":99,\"temperature\":40,\"power\":312.5,"
	           "\"power_limit\":700.0,\"ecc_errors\":0") "," GPU(1, "") "],\"attempts\":[],\"ports\":["
	                                                                    "4001],\"port_range\":[0,0],"
	                                                                    "\"shutting_down\":false}";
	static const char *const lines[] = {
	    "dtrain_gpu_memory_bytes{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 1000\n",
	    "dtrain_gpu_memory_bytes{node=\"n2\",slot=\"1\",uuid=\"GPU-1\"} 1000\n",
	    "dtrain_gpu_memory_used_bytes{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 7\n",
	    "dtrain_gpu_utilization_ratio{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 0.99\n",
	    "dtrain_gpu_temperature_celsius{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 40\n",
	    "dtrain_gpu_power_watts{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 312.5\n",
	    "dtrain_gpu_power_limit_watts{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 700\n",
	    "dtrain_gpu_ecc_errors_total{node=\"n2\",slot=\"0\",uuid=\"GPU-0\"} 0\n",
	    "dtrain_node_up{node=\"n1\"} 1\n",
	    "dtrain_node_up{node=\"n2\"} 1\n",
	    "dtrain_slots{node=\"n1\"} 2\n",
	    "dtrain_slots{node=\"n2\"} 2\n",
	    "dtrain_slots_free{node=\"n2\"} 2\n",
	    "dtrain_slots_reserved{node=\"n2\"} 0\n",
	    "dtrain_slots_drained{node=\"n2\"} 0\n",
	    "dtrain_runs{state=\"queued\"} 0\n",
	};
	static const struct row beat = {"POST", "/v1/peer/heartbeat", heartbeat, NULL, 200, NULL};
	const int port = daemon_fixture_port();
	_cleanup_free_ char *hosts = str_printf("n1 slots=2 addr=127.0.0.1 port=%d\n"
	                                        "n2 slots=2 addr=127.0.0.1 port=1\n",
	                                        port),
	                    *text = NULL;
	struct daemon_fixture f;
	size_t count = 0;

	daemon_fixture_start(&f, &(struct daemon_setup){.hosts = hosts, .port = port});
	ask_tls(&f, &beat);
	text = get_text(&f, NULL, "/metrics", 200);
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		ck_assert_msg(strstr(text, lines[i]), "no %s in\n%s", lines[i], text);
	for (const char *at = text; (at = strstr(at, "{node=\"n2\",slot=\"1\"")); at++)
		count++;
	ck_assert_uint_eq(count, 1);
	daemon_fixture_teardown(&f);
}
END_TEST

/* The configuration of the fixture with one part in place of another one. */
static void configure(const struct daemon_fixture *f, const char *text, const char *part, const char *other)
{
	const char *at = strstr(text, part);
	_cleanup_free_ char *changed = NULL;

	ck_assert_ptr_nonnull(at);
	changed = str_printf("%.*s%s%s", (int)(at - text), text, other, at + strlen(part));
	daemon_fixture_write(f, "dtraind.conf", changed);
}

/* What a service cannot become while it runs is said, and changes nothing. */
START_TEST(a_reload_has_limits)
{
	static const char two[] = "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.1 port=1\n";
	struct daemon_setup setup = {.port = daemon_fixture_port(), .hosts = two};
	const struct {
		const char *hosts, *part, *other, *line;
	} cases[] = {
	    {"# none\n", "", "", "hosts: no host in it; a line is: HOST slots=N"},
	    {"n1 slots=3 addr=127.0.0.1\nn2 addr=127.0.0.1 port=1\n", "", "",
	     "the number of slots in the hosts file has changed: restart dtraind for it to take effect"},
	    {two, "controller = \"n1\"", "controller = \"n2\"",
	     "the controller has changed: restart dtraind for it to take effect"},
	    {two, "node = \"n1\"", "node = \"n2\"",
	     "this node's name has changed: restart dtraind for it to take effect"},
	    {two, "controller = \"n1\"", "controller = \"n7\"", "n7"},
	};
	_cleanup_free_ char *config = NULL;
	struct daemon_fixture f;

	daemon_fixture_start(&f, &setup);
	ck_assert_int_eq(file_read(f.config, 0, &config, NULL, NULL), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *nodes = NULL, *version = NULL;

		daemon_fixture_write(&f, "hosts", cases[i].hosts);
		configure(&f, config, cases[i].part, cases[i].other);
		ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
		await_log(&f, cases[i].line);
		nodes = daemon_get(&f, NULL, "/v1/nodes");
		ck_assert_uint_eq(json_array_size(json_object_get(nodes, "nodes")), 2);
		version = daemon_get(&f, NULL, "/v1/version");
		ck_assert_str_eq(json_get_string(version, "node", ""), "n1");
		ck_assert_str_eq(json_get_string(version, "controller", ""), "n1");
	}
	daemon_fixture_teardown(&f);
}
END_TEST

/* A start request for one rank on that slot, as `user`. */
static char *start_of(int run, int attempt, int slot, const char *directory)
{
	_cleanup_json_ json_t *q =
	    json_pack("{s:i,s:i,s:s,s:i,s:i,s:i,s:{s:s,s:[s,s],s:s},s:[{s:i,s:i,s:i}]}", "run", run,
	              "attempt", attempt, "user", getpwuid(geteuid())->pw_name, "uid", (int)geteuid(),
	              "world_size", 1, "nodes", 1, "config", "task", "command", "command", "sleep", "60",
	              "directory", directory, "ranks", "rank", 0, "local_rank", 0, "slot", slot);

	return json_to_string(q);
}

/* What a node answers to starts and stops. */
START_TEST(a_node_starts_and_stops_what_it_is_asked_for)
{
	const struct {
		const char *target;
		int run, attempt, slot; /* of a start */
		const char *directory, *body;
		int status;
		const char *code;
	} calls[] = {
	    {"start", 50, 2, 0, "/", NULL, 200, ""},
	    {"start", 50, 2, 0, "/", NULL, 200, ""}, /* the same again */
	    {"start", 51, 1, 0, "/", NULL, 409, "busy"},
	    {"start", 52, 1, 9, "/", NULL, 400, "refused"},
	    {"start", 53, 1, 1, "/no/such/place", NULL, 404, "refused"},
	    {"start", 50, 1, 1, "/", NULL, 410, "refused"}, /* an older attempt */
	    {"stop", .body = "{\"run\":50,\"attempt\":2,\"grace\":1.0}", .status = 200, .code = ""},
	    {"stop", .body = "{\"run\":50}", .status = 400, .code = "refused"},
	    /* What was asked to stop is not started afterwards. */
	    {"stop", .body = "{\"run\":54,\"attempt\":1,\"grace\":1.0}", .status = 200, .code = ""},
	    {"start", 54, 1, 1, "/", NULL, 410, "refused"},
	};
	struct daemon_setup setup = {.port = daemon_fixture_port()};
	_cleanup_free_ char *hosts =
	    str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 addr=127.0.0.1 port=1\n", setup.port);
	struct daemon_fixture f;

	setup.hosts = hosts;
	setup.controller = "n2";
	daemon_fixture_start(&f, &setup);
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		_cleanup_free_ char *target = str_printf("/v1/peer/%s", calls[i].target),
		                    *start = calls[i].body ? NULL
		                                           : start_of(calls[i].run, calls[i].attempt,
		                                                      calls[i].slot, calls[i].directory);
		struct raw_request q = {
		    .method = "POST", .target = target, .body = start ? start : calls[i].body};
		struct raw_answer a = daemon_ask_tls(&f, &q);

		ck_assert_msg(a.status == calls[i].status && str_eq(a.code, calls[i].code), "%zu: %d %s: %s",
		              i, a.status, a.code, a.body);
		ck_assert_msg(a.status != 200 || strstr(a.body, "\"instance\""), "%s", a.body);
		free(a.body);
	}
	daemon_fixture_teardown(&f);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon peers");
	TCase *c = tcase_create("daemon peers");

	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_controller_answers_services);
	tcase_add_test(c, gpus_have_gauges);
	tcase_add_test(c, a_node_without_its_controller_says_so);
	tcase_add_test(c, two_services_execute_a_run_together);
	tcase_add_test(c, a_failure_on_one_node_ends_the_run_on_both);
	tcase_add_test(c, a_user_is_the_same_on_all_nodes);
	tcase_add_test(c, administrators_and_root_are_what_the_files_say);
	tcase_add_test(c, a_device_is_drained_where_it_is);
	tcase_add_test(c, the_answer_of_a_node_cannot_be_read);
	tcase_add_test(c, a_reload_takes_new_hosts_over);
	tcase_add_test(c, a_reload_takes_another_spelling_over);
	tcase_add_test(c, a_reload_has_limits);
	tcase_add_test(c, a_node_starts_and_stops_what_it_is_asked_for);
	tcase_add_test(c, a_wrong_address_starts_nothing_on_another_node);
	return unit_run(s);
}
