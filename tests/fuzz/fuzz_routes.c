/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to all routes of the service, by callers of all kinds, some after another to a cluster of two
 * nodes in which alice's run 1 is running, bob's run 2 is queued, and alice's run 3 has ended. Each request
 * has to be answered, in JSON where the answer says so, never with status 500, and with status 2xx only to
 * those who may; and no answer shows alice's variables to others.
 *
 * An input is text: records, each followed by a line with a dot.
 *
 *     CALLER METHOD TARGET [HEADER]     a request, its body behind it; CALLER is a letter of `callers`,
 * HEADER BODY                              the value of Submission-Key, for caller H that of Dtrain-User =
 * STATUS                          what the other node answers from now on BODY
 *     + SECONDS                         the time that passes
 *     !                                 dtrain-launch of all attempts ends
 *     -                                 all callers hang up
 *
 * A cluster takes many inputs before a new one is made. What all of them were is in the file
 * /dev/shm/dtrain-fuzz-ID.inputs (or below /tmp), which stays where the fuzzer ends with a finding, and is
 * one long input: "FUZZ_ROUTES_REPLAY=1 fuzz_routes FILE" repeats it. Leaks are looked for when a cluster has
 * ended.
 */
#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <sanitizer/lsan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "dtraind/routes/routes.h"
#include "dtraind/routes/table.h"
#include "fake_service.h"
#include "http/internal.h"
#include "wire/submission_key.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SECRET "secret-of-alice"

enum {
	RECORDS = 6,       /* of an input */
	INPUTS = 500,      /* that one cluster sees, */
	CHANGES = 200,     /* and of those that have changed something in it */
	LEAK_CHECKS = 5,   /* clusters from one look for leaks to the next */
	ANSWER_MS = 20000, /* within which an answer has to come that threads have a part in */
	RUNS = 1000,
	LONGEST = 120, /* seconds that pass at a time */
	ALICE = 1000,
	BOB,
	CAROL,
	NAMELESS,
};

static const struct caller {
	char letter;
	bool tls;
	const char *node; /* of the certificate */
	int64_t uid;      /* -1: it speaks for itself */
	const char *user;
	bool admin;
	const char *said; /* in Dtrain-User */
} callers[] = {
    {'r', false, NULL, 0, "root", false, NULL},
    {'a', false, NULL, ALICE, "alice", false, NULL},
    {'b', false, NULL, BOB, "bob", false, NULL},
    {'g', false, NULL, CAROL, "carol", true, NULL},
    {'u', false, NULL, NAMELESS, NULL, false, NULL},
    {'k', true, NULL, -1, NULL, false, NULL},
    {'1', true, "n1", -1, NULL, false, NULL},
    {'2', true, "n2", -1, NULL, false, NULL},
    {'K', true, NULL, ALICE, "alice", false, "1000:1000:alice"},
    {'N', true, "n1", ALICE, "alice", false, "1000:1000:alice"},
    {'A', true, "n2", ALICE, "alice", false, "1000:1000:alice"},
    {'B', true, "n2", BOB, "bob", false, "1001:1001:bob"},
    {'R', true, "n2", 0, "root", false, "0:0:root"},
    {'G', true, "n2", CAROL, "carol", true, "1002:1002:carol"},
    {'H', true, "n2", -1, NULL, false, NULL},
};

/* Who may have an answer with status 2xx. */
enum right { ANYONE, ADMINISTRATOR, OWNER, USER, SERVICE, CONTROLLER, OF_THIS_MACHINE, ADMINISTRATOR_HERE };

/* How soon there has to be an answer. */
enum delay { AT_ONCE, THREAD, WITH_WAIT, WITH_FOLLOW, LATER };

static const struct rule {
	http_handler handler;
	enum right right;
	enum delay delay;
} rules[] = {
    {route_version, ANYONE, AT_ONCE},
    {route_devices, ANYONE, AT_ONCE},
    {route_nodes, ANYONE, AT_ONCE},
    {route_events, ANYONE, AT_ONCE},
    {route_prometheus, ANYONE, AT_ONCE},
    {route_runs, ANYONE, AT_ONCE},
    {route_run, ANYONE, WITH_WAIT},
    {route_metrics_get, ANYONE, AT_ONCE},
    {route_drain, ADMINISTRATOR, AT_ONCE},
    {route_resume, ADMINISTRATOR, AT_ONCE},
    {route_fence, ADMINISTRATOR, AT_ONCE},
    {route_device_drain, ADMINISTRATOR, THREAD},
    {route_device_resume, ADMINISTRATOR, THREAD},
    {route_cancel_foreign, ADMINISTRATOR, AT_ONCE},
    {route_backup, ADMINISTRATOR, THREAD},
    {route_local_runs, OF_THIS_MACHINE, AT_ONCE},
    {route_local_end, OF_THIS_MACHINE, AT_ONCE},
    {route_end_runs, ADMINISTRATOR_HERE, LATER},
    {route_prune, ADMINISTRATOR_HERE, THREAD},
    {route_submit, USER, AT_ONCE},
    {route_cancel, OWNER, AT_ONCE},
    {route_logs, OWNER, WITH_FOLLOW},
    {route_metrics_post, OWNER, AT_ONCE},
    {route_worker_event, OWNER, AT_ONCE},
    {route_rendezvous_put, OWNER, AT_ONCE},
    {route_rendezvous_get, OWNER, WITH_WAIT},
    {route_peer_start, CONTROLLER, AT_ONCE},
    {route_peer_stop, CONTROLLER, AT_ONCE},
    {route_peer_reports, SERVICE, AT_ONCE},
    {route_peer_heartbeat, SERVICE, AT_ONCE},
    {route_peer_short_heartbeat, SERVICE, AT_ONCE},
    {route_peer_active_runs, SERVICE, AT_ONCE},
    {route_peer_drain, CONTROLLER, THREAD},
    {route_peer_resume, CONTROLLER, THREAD},
    {route_peer_logs, CONTROLLER, AT_ONCE},
};

struct sent {
	struct exchange *exchange;
	const struct caller *caller;
};

/* The cluster, and what is known of it. */
static struct {
	char *dir, *store, *history_path;
	struct fake_service *service;
	bool changed; /* by the last input */
	unsigned inputs, changes, clusters;
	int history; /* a file: the inputs that the cluster has seen */
	struct {
		int64_t id, uid;
	} runs[RUNS];
	size_t run_count;
	struct sent sent[RECORDS];
	size_t sent_count;
	bool answer_set, answer_failed; /* the other node's answers are the inputs' */
	bool secret_is_known;           /* an input has it */
} world;

static void finding(const struct exchange *e, const char *what)
{
	fprintf(stderr, "fuzz_routes: %s %s: status %d: %s\n%.*s\nThe inputs before are in %s.\n",
	        e->route ? e->route->method : "?", e->request->target, e->status, what, (int)e->body.len,
	        e->body.data ? e->body.data : "", world.history_path);
	abort();
}

static const struct rule *find_rule(http_handler handler)
{
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
		if (rules[i].handler == handler)
			return &rules[i];
	return NULL;
}

static void require_rules(void)
{
	for (size_t i = 0; i < route_table_count; i++) {
		if (find_rule(route_table[i].handler))
			continue;
		fprintf(stderr, "fuzz_routes: %s %s is not in the table of this test\n",
		        route_table[i].method, route_table[i].pattern);
		abort();
	}
}

/* ---- what is true of an answer ---- */

static int64_t owner_of(int64_t id)
{
	for (size_t i = 0; i < world.run_count; i++)
		if (world.runs[i].id == id)
			return world.runs[i].uid;
	return -2;
}

static bool may(const struct sent *s, enum right right)
{
	const struct exchange *e = s->exchange;
	const struct caller *c = s->caller;
	int64_t uid = c->letter == 'H' ? e->request->caller.uid : c->uid;
	bool administrator = uid == 0 || c->admin;
	/* n2 is the host that is marked "submit"; the ranks of run 1 are on n1, too. */
	bool forwarded = c->tls && uid >= 0;
	const char *id = http_request_capture(e->request, 0);

	switch (right) {
	case ANYONE:
		return true;
	case ADMINISTRATOR:
		return administrator && (!forwarded || str_eq(c->node, "n2"));
	case OWNER:
		return (administrator || (uid >= 0 && owner_of(strtoll(id, NULL, 10)) == uid)) &&
		       (!forwarded || c->node);
	case USER:
		return uid > 0 && e->request->caller.user && (!forwarded || str_eq(c->node, "n2"));
	case SERVICE:
		return c->tls;
	case CONTROLLER:
		return c->tls && !str_eq(c->node, "n2");
	case OF_THIS_MACHINE:
		return !c->tls;
	case ADMINISTRATOR_HERE:
		return !c->tls && administrator;
	}
	return false;
}

/* A line is a comment, or ends with a number. */
static void check_prometheus(const struct exchange *e)
{
	_cleanup_free_ char *text = strndup(e->body.data ? e->body.data : "", e->body.len);
	char *rest = text, *line, *number, *end;

	while ((line = strsep(&rest, "\n"))) {
		if (line[0] == '#' || !line[0])
			continue;
		number = strrchr(line, ' ');
		if (!number)
			finding(e, "a line without a value");
		strtod(number + 1, &end);
		if (end == number + 1 || *end)
			finding(e, "a value that is no number");
	}
}

static void check_lines(const struct exchange *e)
{
	const char *text = e->body.data ? e->body.data : "", *end = text + e->body.len, *newline;

	for (; (newline = memchr(text, '\n', end - text)); text = newline + 1) {
		_cleanup_json_ json_t *json = json_loadb(text, newline - text, JSON_DECODE_ANY, NULL);

		if (!json)
			finding(e, "a line that is not JSON");
	}
}

static void check_json(const struct exchange *e)
{
	_cleanup_json_ json_t *json = json_loadb(e->body.data ? e->body.data : "", e->body.len, 0, NULL);
	const json_t *error = json_object_get(json, "error");
	const char *code = json_string_value(json_object_get(error, "code")),
	           *message = json_string_value(json_object_get(error, "message"));

	if (!json)
		finding(e, "the body is not JSON");
	if (e->status >= 400 && !(code && *code && message && *message))
		finding(e, "a refusal without words");
	if (e->status < 400 && error)
		finding(e, "an error that is none");
}

/* It says what the other node has answered, which is the input's. */
static bool is_passed_on(const struct exchange *e)
{
	http_handler handler = e->route ? e->route->handler : NULL;

	return (handler == route_logs && world.answer_set) ||
	       ((handler == route_device_drain || handler == route_device_resume) && world.answer_failed);
}

static bool may_see_secret(const struct sent *s)
{
	int64_t uid = s->caller->letter == 'H' ? s->exchange->request->caller.uid : s->caller->uid;

	return uid == 0 || uid == ALICE || s->caller->admin;
}

static void check(const struct sent *s)
{
	const struct exchange *e = s->exchange;
	const struct rule *rule = e->route ? find_rule(e->route->handler) : NULL;

	if (e->status == 0 || is_passed_on(e))
		return; /* it waits, as it may */
	if (e->status < 200 || e->status > 599 || e->status == 500)
		finding(e, "a status that no input may cause");
	if (!rule && e->status < 400)
		finding(e, "there is no such route");
	if (rule && e->status < 300 && !may(s, rule->right))
		finding(e, "the caller may not have this");
	if (!world.secret_is_known && !may_see_secret(s) && e->body.len > 0 &&
	    memmem(e->body.data, e->body.len, SECRET, strlen(SECRET)))
		finding(e, "it shows the variables of another user");
	if (str_eq(e->type, "application/json"))
		check_json(e);
	else if (str_eq(e->type, "application/x-ndjson"))
		check_lines(e);
	else if (rule && rule->handler == route_prometheus)
		check_prometheus(e);
}

/* ---- requests ---- */

static bool waits(const struct exchange *e, const struct rule *rule)
{
	switch (rule->delay) {
	case WITH_WAIT:
		return http_request_query(e->request, "wait");
	case WITH_FOLLOW:
		return str_eq(http_request_query(e->request, "follow"), "1");
	case LATER:
		return true;
	default:
		return false;
	}
}

static void await_answer(const struct exchange *e)
{
	const struct rule *rule = e->route ? find_rule(e->route->handler) : NULL;

	fake_service_settle(world.service);
	if (e->status || (rule && waits(e, rule)))
		return;
	for (unsigned i = 0; !e->status && rule && rule->delay == THREAD && i < ANSWER_MS / 10; i++)
		fake_service_await(world.service, 10);
	if (!e->status)
		finding(e, "there is no answer");
}

static void note_run(const struct sent *s)
{
	_cleanup_json_ json_t *json = NULL;
	const struct exchange *e = s->exchange;

	if (e->status != 201 || world.run_count == RUNS)
		return;
	json = json_loadb(e->body.data, e->body.len, 0, NULL);
	world.runs[world.run_count].id = json_integer_value(json_object_get(json, "id"));
	world.runs[world.run_count++].uid = e->request->caller.uid;
}

static const struct caller *find_caller(char letter)
{
	for (size_t i = 0; i < ARRAY_SIZE(callers); i++)
		if (callers[i].letter == letter)
			return &callers[i];
	return &callers[(unsigned char)letter % ARRAY_SIZE(callers)];
}

static const struct exchange *send_request(char letter, const char *method, const char *target,
                                           const char *header, const char *body, size_t len)
{
	const struct caller *c = find_caller(letter);
	const char *headers[4][2] = {{NULL}};
	size_t n = 0;
	struct fake_request what = {.tls = c->tls,
	                            .node = c->node,
	                            .uid = (uid_t)c->uid,
	                            .user = c->user,
	                            .admin = c->admin,
	                            .method = method,
	                            .target = target,
	                            .body = body,
	                            .len = len,
	                            .headers = headers};
	struct sent *s = &world.sent[world.sent_count++];

	if (c->said || (c->letter == 'H' && header)) {
		headers[n][0] = "Dtrain-User";
		headers[n++][1] = c->said ? c->said : header;
	}
	if (header && c->letter != 'H') {
		headers[n][0] = SUBMISSION_KEY_HEADER;
		headers[n++][1] = header;
	}
	if (c->tls && c->admin) {
		headers[n][0] = HTTP_ADMIN_HEADER;
		headers[n++][1] = "yes";
	}
	*s = (struct sent){httpd_send(fake_service_httpd(world.service), &what), c};
	await_answer(s->exchange);
	note_run(s);
	if (strcmp(method, "GET") != 0 && s->exchange->status < 300)
		world.changed = true;
	return s->exchange;
}

static void end_requests(void)
{
	httpd_end_all(fake_service_httpd(world.service));
	world.sent_count = 0;
	fake_service_settle(world.service);
}

/* ---- the cluster ---- */

static void expect(char caller, const char *method, const char *target, const char *body, int status)
{
	const struct exchange *e = send_request(caller, method, target, NULL, body, strlen(body));

	if (e->status != status)
		finding(e, "this is needed to begin with");
	end_requests();
}

#define DEVICE(index)                                                                                        \
	"{\"node\":\"n2\",\"index\":" #index                                                                 \
	",\"kind\":\"cpu\",\"name\":\"E\",\"memory\":1024,\"threads\":4,"                                    \
	"\"state\":\"free\"}"
#define RANKS(node, rank)                                                                                    \
	"[{\"run\":1,\"attempt\":1,\"node\":\"" node "\",\"state\":\"running\",\"cluster\":\"" CLUSTER       \
	"\",\"epoch\":1,\"ranks\":[{\"rank\":" #rank ",\"slot\":0,\"state\":\"running\",\"pid\":12}]}]"
#define COMMAND(name, nodes, slots)                                                                          \
	"{\"config\":{\"task\":\"command\",\"name\":\"" name                                                 \
	"\",\"command\":[\"sh\",\"-c\",\"true\"],\"directory\":\"/\",\"environment\":[\"KEY=" SECRET         \
	"\"],\"resources\":{\"nodes\":" #nodes ",\"devices_per_node\":" #slots "}}}"

static void populate(void)
{
	expect(
	    '2', "POST", "/v1/peer/heartbeat",
	    "{\"node\":\"n2\",\"instance\":\"02\",\"sequence\":1,\"version\":\"0.1.0\",\"devices\":[" DEVICE(
	        0) "," DEVICE(1) "],\"attempts\":[],\"ports\":[4001,4002]}",
	    200);
	expect('a', "POST", "/v1/runs", COMMAND("first", 2, 1), 201);
	expect('1', "POST", "/v1/peer/reports", RANKS("n1", 0), 200);
	expect('2', "POST", "/v1/peer/reports", RANKS("n2", 1), 200);
	expect('b', "POST", "/v1/runs",
	       "{\"config\":{\"task\":\"command\",\"name\":\"second\",\"command\":[\"true\"],\"directory\":"
	       "\"/\","
	       "\"resources\":{\"nodes\":2,\"devices_per_node\":2}}}",
	       201);
	expect('a', "POST", "/v1/runs", COMMAND("third", 2, 2), 201);
	expect('a', "DELETE", "/v1/runs/3", "", 202);
	expect('a', "PUT", "/v1/runs/1/rendezvous/key", "value", 200);
	expect('a', "POST", "/v1/runs/1/metrics", "{\"step\":1,\"loss\":2.5}\n", 200);
	expect('a', "GET", "/v1/runs/1?wait=1&state=running", "", 200);
}

static void begin(void)
{
	static const char answer[] = "{\"instance\":\"02\",\"sequence\":1}";

	world.run_count = 0;
	world.service = fake_service_create(world.dir, world.store);
	fake_service_set_answer(world.service, 200, answer, strlen(answer));
	populate();
	world.answer_set = world.answer_failed = world.secret_is_known = false;
	world.inputs = world.changes = 0;
	if (ftruncate(world.history, 0) < 0)
		abort();
}

static void end(void)
{
	struct error err = ERROR_INIT;

	if (!world.service)
		return;
	fake_service_destroy(world.service);
	world.service = NULL;
	if (file_remove_tree(world.dir, &err) < 0 || mkdir(world.dir, 0755) < 0)
		abort();
	if (++world.clusters % LEAK_CHECKS == 0 && __lsan_do_recoverable_leak_check())
		abort();
}

static void at_exit(void)
{
	end();
	rmdir(world.dir);
	unlink(world.store);
	free(world.dir);
	free(world.store);
	close(world.history);
	unlink(world.history_path);
	free(world.history_path);
}

/* libFuzzer looks for leaks after each input that has allocated more than it has freed, as each one does that
 * changes the cluster. */
static void turn_off_leak_detection(int *argc, char ***argv)
{
	static char option[] = "-detect_leaks=0";
	static char *list[64];

	if (*argc + 2 > (int)ARRAY_SIZE(list))
		abort();
	memcpy(list, *argv, (size_t)*argc * sizeof(*list));
	list[(*argc)++] = option;
	*argv = list;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";

	require_rules();
	turn_off_leak_detection(argc, argv);
	/* What is written is of no interest, and the order of keys in objects is the same each time. */
	log_init("fuzz", -1);
	json_object_seed(1);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	unsetenv("NOTIFY_SOCKET");
	world.dir = str_printf("%s/dtrain-fuzz-XXXXXX", place);
	if (!world.dir || !mkdtemp(world.dir))
		abort();
	world.store = str_printf("%s.db", world.dir);
	world.history_path = str_printf("%s.inputs", world.dir);
	if (!world.store || !world.history_path)
		abort();
	world.history = open(world.history_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (world.history < 0)
		abort();
	fake_service_make_store(world.store);
	atexit(at_exit);
	return 0;
}

/* ---- inputs ---- */

static void set_answer(const char *line, const char *body, size_t len)
{
	long status = strtol(line, NULL, 10);

	world.changed = world.answer_set = true;
	world.answer_failed = world.answer_failed || status != 200;
	fake_service_set_answer(world.service, status >= 200 && status <= 599 ? (int)status : 0, body, len);
}

static void check_all(void)
{
	for (size_t i = 0; i < world.sent_count; i++)
		check(&world.sent[i]);
}

static void take_record(char *line, const char *body, size_t len)
{
	char *method = line + 1, *target, *header;

	if (line[0] == '=') {
		set_answer(line + 1, body, len);
		return;
	}
	if (line[0] == '+') {
		double seconds = strtod(line + 1, NULL);

		world.changed = true;
		fake_service_advance(world.service, seconds > 0 && seconds < LONGEST ? seconds : LONGEST);
		return;
	}
	if (line[0] == '!') {
		world.changed = true;
		fake_service_end_launchers(world.service);
		fake_service_settle(world.service);
		return;
	}
	if (line[0] == '-') {
		check_all();
		end_requests();
		return;
	}
	method += strspn(method, " ");
	target = strchr(method, ' ');
	if (!target || target == method)
		return;
	*target++ = '\0';
	header = strchr(target, ' ');
	if (header)
		*header++ = '\0';
	if (target[0] == '/' && world.sent_count < RECORDS)
		send_request(line[0], method, target, header, body, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ char *text = strndup((const char *)data, size);
	bool replay = getenv("FUZZ_ROUTES_REPLAY");
	char *rest = text;

	if (!world.service)
		begin();
	if (write(world.history, text, strlen(text)) < 0 || write(world.history, "\n.\n-\n.\n", 7) < 0)
		abort();
	world.secret_is_known = world.secret_is_known || strstr(text, SECRET);
	world.changed = false;
	for (int i = 0; (i < RECORDS || replay) && rest && *rest; i++) {
		char *record = rest, *last = strstr(rest, "\n.\n"), *body;

		rest = last ? last + 3 : NULL;
		if (last)
			*last = '\0';
		body = strchr(record, '\n');
		if (body)
			*body++ = '\0';
		if (record[0])
			take_record(record, body ? body : "", body ? strlen(body) : 0);
	}
	check_all();
	end_requests();
	world.changes += world.changed;
	if (world.changes == CHANGES || ++world.inputs == INPUTS)
		end();
	return 0;
}
