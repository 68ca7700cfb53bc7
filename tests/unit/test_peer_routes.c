/* SPDX-License-Identifier: Apache-2.0 */
/* What services may ask of each other, and which runs a caller may touch. Server, node, controller and
 * election are stand-ins. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "controller/reconcile.h"
#include "controller/runs.h"
#include "dtraind/heartbeat.h"
#include "dtraind/leader.h"
#include "dtraind/log_streams.h"
#include "dtraind/peers.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "fake_request.h"
#include "wire/heartbeat.h"
#include "wire/node_view.h"
#include "wire/start_request.h"

/* ---- what the handlers call ---- */

static int code;                /* of the next call */
static struct strbuf trace;     /* the calls */
static node_started_fn started; /* of a start that is under way; NULL: it has been answered at once */
static void *started_context;
static const char *capture; /* of the path */

static int result(struct error *err)
{
	return code < 0 ? error_set(err, code, "because") : 0;
}

const char *http_request_capture(const struct http_request *r, size_t i)
{
	return i == 0 ? capture : NULL;
}

bool leader_is_candidate(const struct daemon *d, const char *name)
{
	return str_eq(name, "n1");
}

int64_t heartbeats_sequence(const struct heartbeats *h)
{
	return 17;
}

int node_start(struct node *node, struct start_request *start, node_started_fn fn, void *context,
               struct error *err)
{
	strbuf_addf(&trace, "start(%lld.%lld) ", (long long)start->run, (long long)start->attempt);
	started = fn;
	started_context = context;
	return result(err);
}

int node_stop_request(struct node *node, const struct stop_request *request, struct error *err)
{
	strbuf_addf(&trace, "stop(%lld.%lld %g) ", (long long)request->run, (long long)request->attempt,
	            request->grace);
	return result(err);
}

void controller_report(struct controller *c, const struct report *report)
{
	strbuf_addf(&trace, "report(%s %lld) ", report->node, (long long)report->run);
}

int controller_heartbeat(struct controller *c, struct heartbeat *heartbeat, struct heartbeat_answer *answer,
                         struct error *err)
{
	strbuf_addf(&trace, "heartbeat(%s) ", heartbeat->node);
	answer->lease = 12;
	return result(err);
}

void controller_keep_heartbeat(struct controller *c, struct heartbeat *heartbeat,
                               struct heartbeat_answer *answer)
{
	strbuf_addf(&trace, "keep(%s) ", heartbeat->node);
}

int controller_short_heartbeat(struct controller *c, const struct short_heartbeat *heartbeat,
                               struct heartbeat_answer *answer, struct error *err)
{
	strbuf_addf(&trace, "short(%s) ", heartbeat->node);
	answer->lease = 13;
	return result(err);
}

int route_read_drain(struct http_request *r, struct drain_request *request)
{
	if (code < 0) {
		http_reply_error(r, 400, "bad-json", "because");
		return code;
	}
	request->reason = strdup("its fan");
	return 0;
}

struct device_wait *route_wait_for_device(struct http_request *r)
{
	return code == -ENOMEM ? NULL : (struct device_wait *)r;
}

void route_on_device_set(void *wait, const struct peer_result *result)
{
}

void peers_set_own_device(struct daemon *d, int64_t slot, bool drained, const char *reason, peer_done_fn done,
                          void *context)
{
	ck_assert(done == route_on_device_set);
	strbuf_addf(&trace, "%s(%lld %s) ", drained ? "drain" : "resume", (long long)slot,
	            reason ? reason : "-");
}

void logs_serve_local(struct daemon *d, struct http_request *r, const struct log_query *q)
{
	strbuf_addf(&trace, "logs(%lld.%lld rank %lld tail %lld%s%s", (long long)q->run,
	            (long long)q->attempt, (long long)q->rank, (long long)q->tail, q->follow ? " follow" : "",
	            q->positions ? " positions" : "");
	if (q->offset >= 0)
		strbuf_addf(&trace, " offset %lld", (long long)q->offset);
	strbuf_adds(&trace, ") ");
}

static struct run *live, *stored; /* run 7 in memory, run 8 in the store */
static int freed;

int controller_find_run(struct controller *c, int64_t id, const struct run **out, struct run **owned,
                        struct error *err)
{
	*owned = NULL;
	if (id == 7)
		*out = live;
	else if (id == 8)
		*out = *owned = stored;
	else
		return error_set(err, code < 0 ? code : -ENOENT, "there is no run %lld", (long long)id);
	return 0;
}

void run_free(struct run *run)
{
	freed += run != NULL;
}

/* ---- the service ---- */

static struct daemon d;
static struct settings settings = {.name = (char *)"n2", .controller = (char *)"n1"};
static struct http_request request;

static void setup(void)
{
	d = (struct daemon){.settings = &settings, .instance = "i1"};
	request = (struct http_request){0};
	trace = (struct strbuf){0};
	strbuf_adds(&trace, "");
	code = freed = 0;
	started = NULL;
	capture = NULL;
}

static void teardown(void)
{
	fake_request_close(&request);
	strbuf_free(&trace);
}

static void ask(void (*route)(void *, struct http_request *), const char *body)
{
	fake_request_ask(&request, &trace, body);
	route(&d, &request);
}

static void check(const char *calls, const char *answer)
{
	fake_request_check(&request, &trace, calls, answer);
}

/* ---- starts ---- */

#define START(MORE)                                                                                          \
	"{\"run\":7,\"attempt\":2,\"user\":\"u\",\"uid\":5," MORE                                            \
	"\"config\":{\"task\":\"command\",\"command\":[\"true\"]},\"world_size\":1,"                         \
	"\"ranks\":[{\"rank\":0,\"local_rank\":0,\"slot\":0}]}"

START_TEST(a_start_is_answered_when_it_has_begun)
{
	ask(route_peer_start, START("\"controller\":\"n1\","));
	ck_assert_str_eq(trace.data, "start(7.2) ");
	ck_assert_ptr_null(request.answer);
	ck_assert_ptr_nonnull(request.closed);
	started(started_context, 0, "");
	check("start(7.2) ", "200 {");
	ck_assert_ptr_nonnull(strstr(request.answer, "\"instance\":\"i1\""));
	ck_assert_ptr_nonnull(strstr(request.answer, "\"sequence\":17"));
	ck_assert_ptr_null(request.closed);
}
END_TEST

START_TEST(a_start_that_fails_says_why)
{
	static const struct {
		int code;
		const char *answer;
	} cases[] = {
	    {-EBUSY, "409 busy: because"},        {-ESTALE, "410 refused: because"},
	    {-EPERM, "403 refused: because"},     {-ENOENT, "404 refused: because"},
	    {-EINVAL, "400 refused: because"},    {-EACCES, "400 refused: because"},
	    {-ETIMEDOUT, "503 refused: because"}, {-ENOSPC, "503 refused: because"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		for (int later = 0; later < 2; later++) {
			code = later ? 0 : cases[i].code;
			ask(route_peer_start, START(""));
			if (later)
				started(started_context, cases[i].code, "because");
			check("start(7.2) ", cases[i].answer);
			ck_assert_ptr_null(request.closed);
		}
}
END_TEST

/* Who asked has gone: the start goes on, and its result reaches no caller. */
START_TEST(a_caller_may_go_before_its_start_has_begun)
{
	for (int fails = 0; fails < 2; fails++) {
		ask(route_peer_start, START(""));
		fake_request_close(&request);
		started(started_context, fails ? -EBUSY : 0, "because");
		ck_assert_ptr_null(request.answer);
	}
}
END_TEST

START_TEST(stops_are_passed_on)
{
	static const struct {
		int code;
		const char *answer;
	} cases[] = {{0, "200 {"},
	             {-ESTALE, "410 refused: because"},
	             {-EPERM, "403 refused: because"},
	             {-EINVAL, "403 refused: because"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		code = cases[i].code;
		ask(route_peer_stop, "{\"run\":7,\"attempt\":2,\"grace\":3}");
		check("stop(7.2 3) ", cases[i].answer);
	}
	code = 0;
	ask(route_peer_stop, "{\"run\":7,\"attempt\":2,\"controller\":\"n1\"}");
	check("stop(7.2 30) ", "200 {");
	ck_assert_ptr_nonnull(strstr(request.answer, "\"sequence\":17"));
}
END_TEST

/* A node obeys the controller of its own hosts file alone. */
START_TEST(another_controller_is_refused)
{
	static const char want[] = "410 refused: n9 takes itself for the controller, n2 takes n1 for it: the "
	                           "hosts files or dtraind.conf differ";

	ask(route_peer_start, START("\"controller\":\"n9\","));
	check("", want);
	ask(route_peer_stop, "{\"run\":7,\"attempt\":2,\"controller\":\"n9\"}");
	check("", want);
}
END_TEST

START_TEST(what_is_no_message_is_refused)
{
	static const struct {
		void (*route)(void *, struct http_request *);
		const char *wrong;
	} routes[] = {{route_peer_start, "400 refused: "},
	              {route_peer_stop, "400 refused: "},
	              {route_peer_heartbeat, "400 bad-json: "},
	              {route_peer_short_heartbeat, "400 bad-json: "}};

	for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
		ask(routes[i].route, "{");
		check("", "400 bad-json: no JSON");
		ask(routes[i].route, "{}");
		check("", routes[i].wrong);
	}
	ask(route_peer_reports, "[");
	check("", "400 bad-json: request body");
	ask(route_peer_reports, "[{}]");
	check("", "400 bad-json: ");
}
END_TEST

/* ---- nodes ---- */

#define REPORT(NODE, RUN)                                                                                    \
	"{\"run\":" RUN ",\"attempt\":1,\"node\":\"" NODE "\",\"state\":\"running\",\"ranks\":[]}"
#define HEARTBEAT(NODE, ATTEMPTS)                                                                            \
	"{\"node\":\"" NODE "\",\"instance\":\"i\",\"sequence\":1,\"version\":\"1\",\"devices\":[],"         \
	"\"attempts\":[" ATTEMPTS "]}"
#define SHORT(NODE)                                                                                          \
	"{\"node\":\"" NODE "\",\"instance\":\"i\",\"sequence\":2,\"whole\":1,\"sent\":1,\"highest_run\":0}"

START_TEST(a_node_speaks_for_itself)
{
	static const struct {
		const char *caller; /* the node of its certificate; NULL: all have one key */
		bool passes;
	} cases[] = {{NULL, true}, {"n3", true}, {"N3", true}, {"n4", false}};
	static const char refused[] = "403 not-allowed: the certificate is of n4, and the message of n3";

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		bool passes = cases[i].passes;

		request.caller.node = cases[i].caller;
		ask(route_peer_reports, "[" REPORT("n3", "7") "," REPORT("n3", "8") "]");
		check(passes ? "report(n3 7) report(n3 8) " : "", passes ? "200 {}" : refused);
		ask(route_peer_heartbeat, HEARTBEAT("n3", ""));
		check(passes ? "heartbeat(n3) keep(n3) " : "", passes ? "200 {" : refused);
		ask(route_peer_short_heartbeat, SHORT("n3"));
		check(passes ? "short(n3) " : "", passes ? "200 {" : refused);
	}
	/* Not for another one among its own. */
	request.caller.node = "n4";
	ask(route_peer_reports, "[" REPORT("n4", "7") "," REPORT("n3", "8") "]");
	check("", refused);
	ask(route_peer_heartbeat, HEARTBEAT("n4", REPORT("n4", "7") "," REPORT("n3", "8")));
	check("", refused);
	ask(route_peer_reports, "[]");
	check("", "200 {}");
}
END_TEST

START_TEST(a_heartbeat_may_be_refused)
{
	static const struct {
		int code;
		const char *answer;
	} cases[] = {{-ENOENT, "404 no-such-node: because"},
	             {-EALREADY, "409 repeated: because"},
	             {-ESTALE, "409 not-kept: because"},
	             {-ENOMEM, "500 out-of-memory: because"}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		code = cases[i].code;
		ask(route_peer_heartbeat, HEARTBEAT("n3", ""));
		check("heartbeat(n3) ", cases[i].answer);
		ask(route_peer_short_heartbeat, SHORT("n3"));
		check("short(n3) ", cases[i].answer);
	}
	code = 0;
	ask(route_peer_heartbeat, HEARTBEAT("n3", ""));
	ck_assert_ptr_nonnull(strstr(request.answer, "\"lease\":12"));
	ask(route_peer_short_heartbeat, SHORT("n3"));
	ck_assert_ptr_nonnull(strstr(request.answer, "\"lease\":13"));
}
END_TEST

/* ---- devices and logs ---- */

START_TEST(a_device_has_a_number)
{
	static const char *const wrong[] = {"x", "-1", "", "2147483648"};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		capture = wrong[i];
		ask(route_peer_drain, NULL);
		check("", "404 no-such-device: slots have numbers from 0");
		ask(route_peer_resume, NULL);
		check("", "404 no-such-device: slots have numbers from 0");
	}
	capture = "3";
	ask(route_peer_drain, NULL);
	ck_assert_str_eq(trace.data, "drain(3 its fan) ");
	ask(route_peer_resume, NULL);
	ck_assert_str_eq(trace.data, "resume(3 -) ");
	ck_assert_ptr_null(request.answer);
	code = -EINVAL;
	ask(route_peer_drain, NULL);
	check("", "400 bad-json");
	code = -ENOMEM;
	ask(route_peer_resume, NULL);
	ck_assert_str_eq(trace.data, "");
}
END_TEST

START_TEST(logs_are_asked_for)
{
	static const struct {
		const char *name, *value, *want;
	} cases[] = {
	    {NULL, NULL, "logs(7.0 rank 0 tail -1) "},
	    {"attempt", "2", "logs(7.2 rank 0 tail -1) "},
	    {"rank", "5", "logs(7.0 rank 5 tail -1) "},
	    {"tail", "0", "logs(7.0 rank 0 tail 0) "},
	    {"tail", "-1", "logs(7.0 rank 0 tail -1) "},
	    {"follow", "1", "logs(7.0 rank 0 tail -1 follow) "},
	    {"positions", "1", "logs(7.0 rank 0 tail -1 positions) "},
	    {"offset", "0", "logs(7.0 rank 0 tail -1 offset 0) "},
	    {"offset", "-1", NULL},
	    {"positions", "2", NULL},
	    {"attempt", "-1", NULL},
	    {"rank", "-1", NULL},
	    {"rank", "x", NULL},
	    {"tail", "-2", NULL},
	    {"follow", "2", NULL},
	};

	request.queries[0].name = "run";
	request.queries[0].value = "7";
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		request.queries[1].name = cases[i].name;
		request.queries[1].value = cases[i].value;
		ask(route_peer_logs, NULL);
		ck_assert_str_eq(trace.data, cases[i].want ? cases[i].want : "");
		ck_assert_int_eq(request.answer != NULL, !cases[i].want);
	}
	request.queries[1].name = NULL;
	request.queries[0].value = "0";
	ask(route_peer_logs, NULL);
	check("", "400 bad-query: run=0");
}
END_TEST

/* ---- access.c ---- */

START_TEST(who_may_touch_what_is_of_a_user)
{
	const uid_t self = geteuid();
	const struct {
		struct http_caller caller;
		int64_t uid;
		bool may;
	} cases[] = {
	    {{.uid = 70001}, 70001, true},
	    {{.uid = 70001}, 70002, false},
	    {{.uid = 70001}, 0, false},
	    {{.uid = 0}, 70001, true},
	    {{.uid = (int64_t)self}, 70001, true},
	    {{.uid = 70001, .admin = true}, 70002, true},
	    {{.uid = -1, .admin = true}, 70002, false},
	    {{.uid = -1}, -1, false},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_msg(caller_may(&cases[i].caller, cases[i].uid) == cases[i].may, "case %zu", i);
}
END_TEST

/* A uid or a name alone may be another user's on another node. */
START_TEST(a_run_is_of_a_user_with_name_and_uid)
{
	static const struct {
		const char *owner, *user;
		int64_t uid;
		bool may;
		const char *words;
	} cases[] = {
	    {"ann", "ann", 70001, true, NULL},
	    {"ann", NULL, 70001, true, NULL},
	    {NULL, "bob", 70001, true, NULL},
	    {"ann", "bob", 70001, false,
	     "run 7 is of ann (uid 70001): only its owner and administrators may do this, and the caller is "
	     "bob (uid 70001); a uid needs the same name on all nodes"},
	    {"ann", "ann", 70002, false,
	     "run 7 is of ann (uid 70001): only its owner and administrators may do this, and the caller is "
	     "ann (uid 70002); a user needs the same uid on all nodes"},
	    {"ann", "bob", 70002, false, "the caller is bob (uid 70002)"},
	    {NULL, NULL, 70002, false, "run 7 is of ? (uid 70001)"},
	};

	capture = "7";
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct run run = {.id = 7, .uid = 70001, .user = (char *)cases[i].owner}, *owned = &run;

		live = &run;
		fake_request_close(&request);
		request.caller = (struct http_caller){.uid = cases[i].uid, .user = cases[i].user};
		ck_assert_int_eq(caller_may_run(&request.caller, &run), cases[i].may);
		ck_assert_ptr_eq(route_find_run(NULL, &request, true, &owned), cases[i].may ? &run : NULL);
		ck_assert_ptr_null(owned);
		if (cases[i].may) {
			ck_assert_ptr_null(request.answer);
		} else {
			ck_assert_msg(str_starts(request.answer, "403 not-allowed: ") &&
			                  strstr(request.answer, cases[i].words),
			              "%s", request.answer);
		}
		/* To be read it need not be one's own. */
		fake_request_close(&request);
		ck_assert_ptr_eq(route_find_run(NULL, &request, false, &owned), &run);
	}
	live = NULL;
}
END_TEST

START_TEST(a_run_is_found_by_its_number)
{
	static const char *const none[] = {"x", "0", "-1", "1x"};
	struct run run = {.id = 8, .uid = 70001}, *owned;

	for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
		_cleanup_free_ char *want =
		    str_printf("404 no-such-run: there is no run %s: runs have numbers", none[i]);

		capture = none[i];
		fake_request_close(&request);
		ck_assert_ptr_null(route_find_run(NULL, &request, false, &owned));
		ck_assert_str_eq(request.answer, want);
	}
	capture = "9";
	for (int i = 0; i < 2; i++) {
		code = i ? -EIO : 0;
		fake_request_close(&request);
		ck_assert_ptr_null(route_find_run(NULL, &request, false, &owned));
		ck_assert_str_eq(request.answer,
		                 i ? "500 store: there is no run 9" : "404 no-such-run: there is no run 9");
	}
	/* One of the store is the caller's, unless it is refused. */
	stored = &run;
	capture = "8";
	fake_request_close(&request);
	ck_assert_ptr_eq(route_find_run(NULL, &request, false, &owned), &run);
	ck_assert_ptr_eq(owned, &run);
	ck_assert_int_eq(freed, 0);
	request.caller.uid = 70002;
	ck_assert_ptr_null(route_find_run(NULL, &request, true, &owned));
	ck_assert_ptr_null(owned);
	ck_assert_int_eq(freed, 1);
}
END_TEST

START_TEST(what_cannot_be_taken_is_answered)
{
	struct error err = ERROR_INIT;

	error_set(&err, -EINVAL, "run: missing");
	reply_not_taken(&request, "bad-json", &err);
	ck_assert_str_eq(request.answer, "400 bad-json: run: missing");
	fake_request_close(&request);
	error_oom(&err);
	reply_not_taken(&request, "bad-json", &err);
	ck_assert(str_starts(request.answer, "500 out-of-memory: "));
}
END_TEST

/* Where hosts are marked, the others forward what the ranks of a run there ask for, and nothing else. */
START_TEST(a_host_that_is_not_marked_forwards_nothing_of_users)
{
	static const char marked[] = "n1 slots=1 submit\nn2 slots=1\nn3 slots=1\n",
	                  plain[] = "n1 slots=1\nn2 slots=1\nn3 slots=1\n";
	static const struct {
		bool marked, peer;
		int64_t uid;
		const char *node, *run;
		bool by_rank, refused;
	} cases[] = {
	    {true, true, 70001, "n2", "7", false, true},
	    {false, true, 70001, "n2", "7", false, false},
	    {true, false, 70001, "n2", "7", false, false},
	    {true, true, -1, "n2", "7", false, false},
	    {true, true, 70001, "n1", "7", false, false},
	    {true, true, 70001, NULL, "7", false, true},
	    {true, true, 70001, "n9", "7", true, true},
	    /* Run 7 has a rank on n2, and had one on n3. */
	    {true, true, 70001, "n2", "7", true, false},
	    {true, true, 70001, "n3", "7", true, false},
	    {true, true, 70001, "n3", "7", false, true},
	    {true, true, 70001, "n2", "9", true, true},
	    {true, true, 70001, "n2", "x", true, true},
	    {true, true, 70001, "n2", "8", true, true},
	};
	struct run_rank ranks[] = {{.node = (char *)"n1"}, {.node = (char *)"n2"}};
	struct run_lost lost[] = {{.record.node = (char *)"n1"}, {.record.node = (char *)"n3"}};
	struct run run = {.id = 7, .ranks = ranks, .rank_count = 2, .lost = lost, .lost_count = 2},
	           other = {.id = 8, .ranks = ranks, .rank_count = 1, .lost = lost, .lost_count = 1};
	struct error err = ERROR_INIT;

	live = &run;
	stored = &other;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *text = cases[i].marked ? marked : plain;

		ck_ok(hosts_parse(text, strlen(text), "hosts", &settings.hosts, &err), &err);
		capture = cases[i].run;
		fake_request_close(&request);
		request.caller =
		    (struct http_caller){.peer = cases[i].peer, .uid = cases[i].uid, .node = cases[i].node};
		ck_assert_msg(refuse_forwarded(&d, &request, cases[i].by_rank) == cases[i].refused,
		              "case %zu", i);
		ck_assert_int_eq(request.answer != NULL, cases[i].refused);
		if (cases[i].refused)
			ck_assert_msg(str_starts(request.answer, "403 not-allowed: node ") &&
			                  strstr(request.answer, "in the hosts file of n2"),
			              "%s", request.answer);
		hosts_free(settings.hosts);
		settings.hosts = NULL;
	}
	ck_assert_int_eq(freed, 1); /* run 8, of the store */
	live = stored = NULL;
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peer_routes");
	TCase *c = tcase_create("peer_routes");

	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_start_is_answered_when_it_has_begun);
	tcase_add_test(c, a_start_that_fails_says_why);
	tcase_add_test(c, a_caller_may_go_before_its_start_has_begun);
	tcase_add_test(c, stops_are_passed_on);
	tcase_add_test(c, another_controller_is_refused);
	tcase_add_test(c, what_is_no_message_is_refused);
	tcase_add_test(c, a_node_speaks_for_itself);
	tcase_add_test(c, a_heartbeat_may_be_refused);
	tcase_add_test(c, a_device_has_a_number);
	tcase_add_test(c, logs_are_asked_for);
	tcase_add_test(c, who_may_touch_what_is_of_a_user);
	tcase_add_test(c, a_run_is_of_a_user_with_name_and_uid);
	tcase_add_test(c, a_run_is_found_by_its_number);
	tcase_add_test(c, what_cannot_be_taken_is_answered);
	tcase_add_test(c, a_host_that_is_not_marked_forwards_nothing_of_users);
	return unit_run(s);
}
