/* SPDX-License-Identifier: Apache-2.0 */
/* From a node to the controller: when heartbeats and reports are sent, what is in them, and what an answer
 * does. The node, the controller, the client and the clock are stand-ins. */
#include <string.h>
#include <systemd/sd-event.h>
#include <time.h>

#include "base/json.h"
#include "controller/nodes.h"
#include "controller/reconcile.h"
#include "dtraind/heartbeat.h"
#include "dtraind/log_streams.h"
#include "dtraind/status.h"
#include "failing_memory.h"
#include "fake_client.h"
#include "node/lease.h"

/* ---- this node and the controller here ---- */

static struct {
	struct strbuf called; /* "learn c 9 at 500, forget 7.1, " */
	struct report reports[2];
	size_t report_count;
	int learn_code, ports;
	bool shutting_down;
	struct heartbeat_answer answer; /* of the controller here */
	int answer_code;
} node;

static double now, lease_now;

const char *node_launch(const struct node *n)
{
	return "process";
}

bool node_is_shutting_down(const struct node *n)
{
	return node.shutting_down;
}

int node_devices(const struct node *n, struct device_list *out, struct error *err)
{
	const long left = memory_left; /* the node's own memory is not what fails */

	memory_left = 0;
	*out = (struct device_list){.devices = calloc(1, sizeof(*out->devices)), .count = 1};
	out->devices[0] = (struct device_info){
	    .node = strdup("n1"), .name = strdup("CPU"), .threads = 1, .memory = 1, .state = SLOT_FREE};
	memory_left = left;
	return 0;
}

const struct report *node_attempt(const struct node *n, size_t i)
{
	return i < node.report_count ? &node.reports[i] : NULL;
}

int node_known(const struct node *n, struct known_clusters *out, struct error *err)
{
	*out = (struct known_clusters){.highest_run = 17};
	return 0;
}

int node_learn(struct node *n, const struct heartbeat_answer *answer, double sent, struct error *err)
{
	strbuf_addf(&node.called, "learn %s %g at %g, ", answer->cluster ? answer->cluster : "-",
	            answer->lease, sent);
	return node.learn_code < 0 ? error_set(err, node.learn_code, "stale") : 0;
}

void node_forget(struct node *n, int64_t run, int64_t attempt)
{
	strbuf_addf(&node.called, "forget %d.%d, ", (int)run, (int)attempt);
}

int node_free_port(struct node *n, struct error *err)
{
	return ++node.ports % 2 ? 4000 + node.ports : -EADDRINUSE;
}

double lease_clock(void)
{
	return lease_now;
}

int controller_heartbeat(struct controller *c, struct heartbeat *heartbeat, struct heartbeat_answer *answer,
                         struct error *err)
{
	strbuf_addf(&node.called, "heartbeat %d%s, ", (int)heartbeat->sequence,
	            heartbeat->leases ? " with leases" : "");
	*answer = node.answer;
	return node.answer_code < 0 ? error_set(err, node.answer_code, "no") : 0;
}

void controller_set_devices(struct controller *c, const char *name, struct device_list *devices)
{
	strbuf_addf(&node.called, "devices of %s, ", name);
	device_list_release(devices);
}

void controller_report(struct controller *c, const struct report *report)
{
	strbuf_addf(&node.called, "report %d.%d, ", (int)report->run, (int)report->attempt);
}

void controller_reschedule(struct controller *c)
{
	strbuf_adds(&node.called, "reschedule, ");
}

void log_streams_finish(struct log_streams *s, int64_t run, int64_t attempt)
{
	strbuf_addf(&node.called, "end of logs %d.%d, ", (int)run, (int)attempt);
}

void status_notify(struct daemon *d)
{
}

/* ---- the clock ---- */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	*ts = (struct timespec){(time_t)now, (long)((now - (double)(time_t)now) * 1e9)};
	return 0;
}

static double pause_set; /* seconds from the setting of the timer to its time */

/* The test says when it is due. */
int __real_sd_event_source_set_time(sd_event_source *source, uint64_t usec);
int __wrap_sd_event_source_set_time(sd_event_source *source, uint64_t usec);
int __wrap_sd_event_source_set_time(sd_event_source *source, uint64_t usec)
{
	uint64_t at = 0;

	sd_event_now(sd_event_source_get_event(source), CLOCK_MONOTONIC, &at);
	pause_set = (double)(usec - at) / 1e6;
	return __real_sd_event_source_set_time(source, 1);
}

/* ---- the service ---- */

static struct daemon_config config = {
    .node_timeout = 60, .heartbeat = 5, .port_low = 4000, .port_high = 4999};
static struct host one_host = {.name = (char *)"n1"};
static struct hosts hosts = {.list = &one_host, .count = 1};
static struct settings settings = {.config = &config, .hosts = &hosts, .name = (char *)"n1"};
static struct daemon d;
static struct error err;

static void setup(void)
{
	now = 1000;
	lease_now = 500;
	fake_leader.asked = (struct peer){"n2", "a2", 2};
	d = (struct daemon){.settings = &settings, .instance = "mine"};
	ck_assert_int_ge(sd_event_new(&d.event), 0);
	ck_ok(heartbeats_create(&d, &d.heartbeats, &err), &err);
}

static void teardown(void)
{
	heartbeats_destroy(d.heartbeats);
	sd_event_unref(d.event);
	strbuf_free(&node.called);
	fake_client_release();
}

/* What the node and the controller here were called with since the last time. */
static void expect_calls(const char *want)
{
	ck_assert_str_eq(node.called.data ? node.called.data : "", want);
	strbuf_reset(&node.called);
}

/* The body of a call. */
static json_t *body_of(const struct http_transfer *t)
{
	const char *from = strchr(t->text, '{'), *list = strchr(t->text, '['), *at = from;
	json_t *json;

	if (list && (!from || list < from))
		at = list;
	ck_assert_ptr_nonnull(at);
	json = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
	ck_assert_ptr_nonnull(json);
	return json;
}

static bool is_heartbeat(const struct http_transfer *t, bool brief)
{
	return str_starts(t->text, brief ? "POST n2 at a2:2 /v1/peer/heartbeat/short \""
	                                 : "POST n2 at a2:2 /v1/peer/heartbeat \"");
}

static void answer_json(struct http_transfer *t, int status, const char *body)
{
	fake_client_answer(t, status, "application/json", body, 0, true);
}

static void turn(void)
{
	ck_assert_int_gt(sd_event_run(d.event, 0), 0);
}

#define KEPT(n) "{\"forget\":[],\"time\":1000.0,\"cluster\":\"c\",\"epoch\":1,\"whole\":" n "}"

START_TEST(the_first_heartbeat_says_all)
{
	const struct report report = {.run = 7, .attempt = 2, .node = (char *)"n1", .state = ATTEMPT_RUNNING};
	_cleanup_json_ json_t *b = NULL;
	const json_t *list;

	node.reports[0] = report;
	node.report_count = 1;
	ck_assert(heartbeats_are_idle(d.heartbeats));
	turn();
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert(!heartbeats_are_idle(d.heartbeats));
	ck_assert(is_heartbeat(fake_client_last(), false));
	ck_assert(fake_client_last()->call.timeout == 30 && fake_client_last()->call.connect == 30);
	b = body_of(fake_client_last());
	ck_assert_str_eq(json_get_string(b, "node", ""), "n1");
	ck_assert_uint_eq(strlen(json_get_string(b, "hosts", "")), HOSTS_HASH_SIZE - 1);
	ck_assert_str_eq(json_get_string(b, "instance", ""), "mine");
	ck_assert_int_eq(json_get_int(b, "sequence", 0), 1);
	ck_assert_int_eq(heartbeats_sequence(d.heartbeats), 1);
	ck_assert_str_eq(json_get_string(b, "version", ""), DTRAIN_VERSION);
	ck_assert_str_eq(json_get_string(b, "launch", ""), "process");
	ck_assert(!json_is_true(json_object_get(b, "shutting_down")));
	ck_assert(json_is_true(json_object_get(b, "leases")));
	ck_assert(json_number_value(json_object_get(b, "sent")) == 500);
	ck_assert_int_eq(json_get_int(json_object_get(b, "known"), "highest_run", 0), 17);
	ck_assert_uint_eq(strlen(json_get_string(b, "boot", "")), 36);
	list = json_object_get(b, "devices");
	ck_assert_str_eq(json_get_string(json_array_get(list, 0), "name", ""), "CPU");
	list = json_object_get(b, "attempts");
	ck_assert_uint_eq(json_array_size(list), 1);
	ck_assert_int_eq(json_get_int(json_array_get(list, 0), "run", 0), 7);
	ck_assert_int_eq(json_get_int(json_array_get(list, 0), "attempt", 0), 2);
	/* Four were asked for, of which two were free. */
	list = json_object_get(b, "ports");
	ck_assert_uint_eq(json_array_size(list), 2);
	ck_assert_int_eq(json_integer_value(json_array_get(list, 0)), 4001);
	ck_assert_int_eq(json_integer_value(json_array_get(list, 1)), 4003);
	list = json_object_get(b, "port_range");
	ck_assert_int_eq(json_integer_value(json_array_get(list, 0)), 4000);
	ck_assert_int_eq(json_integer_value(json_array_get(list, 1)), 4999);
	/* The next one comes after the interval. */
	ck_assert(pause_set > 4.9 && pause_set <= 5);
}
END_TEST

START_TEST(a_node_that_shuts_down_says_so)
{
	_cleanup_json_ json_t *b = NULL;

	node.shutting_down = true;
	heartbeats_send(d.heartbeats);
	b = body_of(fake_client_last());
	ck_assert(json_is_true(json_object_get(b, "shutting_down")));
}
END_TEST

START_TEST(an_answer_is_taken_over)
{
	_cleanup_json_ json_t *b = NULL;

	heartbeats_send(d.heartbeats);
	lease_now = 507; /* when the answer arrives: the lease counts from the sending */
	answer_json(fake_client_last(), 200,
	            "{\"forget\":[{\"run\":7,\"attempt\":1},{\"run\":8,\"attempt\":2}],\"time\":1000.0,"
	            "\"cluster\":\"c\",\"epoch\":1,\"lease\":9.0,\"whole\":1}");
	expect_calls("learn c 9 at 500, forget 7.1, forget 8.2, ");
	ck_assert(heartbeats_are_idle(d.heartbeats));
	/* The controller keeps the whole one: the next one is short. */
	heartbeats_send(d.heartbeats);
	ck_assert(is_heartbeat(fake_client_last(), true));
	b = body_of(fake_client_last());
	ck_assert_int_eq(json_get_int(b, "sequence", 0), 2);
	ck_assert_int_eq(json_get_int(b, "whole", 0), 1);
	ck_assert(json_number_value(json_object_get(b, "sent")) == 507);
	/* What is known of a stale controller makes no difference. */
	node.learn_code = -ESTALE;
	answer_json(fake_client_last(), 200,
	            "{\"forget\":[{\"run\":7,\"attempt\":1}],\"time\":1000.0,\"cluster\":\"c\",\"epoch\":0}");
	expect_calls("learn c 0 at 507, ");
	/* One that cannot be read teaches nothing. */
	heartbeats_send(d.heartbeats);
	ck_assert(is_heartbeat(fake_client_last(), false));
	answer_json(fake_client_last(), 200, "[]");
	expect_calls("");
	ck_assert_uint_eq(fake_leader.told.len, 0);
}
END_TEST

/* The controller does not keep what a short one refers to, or takes none: a whole one follows at once. */
START_TEST(a_short_one_that_is_refused_is_followed_by_a_whole_one)
{
	static const int statuses[] = {409, 404};

	for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
		_cleanup_free_ char *kept = str_printf(KEPT("%zu"), 2 * i + i + 1);
		size_t count;

		heartbeats_send(d.heartbeats);
		ck_assert(is_heartbeat(fake_client_last(), false));
		answer_json(fake_client_last(), 200, kept);
		heartbeats_send(d.heartbeats);
		ck_assert(is_heartbeat(fake_client_last(), true));
		count = fake_client.count;
		answer_json(fake_client_last(), statuses[i],
		            "{\"error\":{\"code\":\"x\",\"message\":\"y\"}}");
		ck_assert_uint_eq(fake_client.count, count + 1);
		ck_assert(is_heartbeat(fake_client_last(), false));
		answer_json(fake_client_last(), 200, "{\"forget\":[]}");
	}
	ck_assert_uint_eq(fake_leader.told.len, 0);
}
END_TEST

START_TEST(a_repeated_one_is_no_loss)
{
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 409, "{\"error\":{\"code\":\"repeated\",\"message\":\"y\"}}");
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert_uint_eq(fake_leader.told.len, 0);
	expect_calls("");
	/* But it is not known whether that one is kept. */
	heartbeats_send(d.heartbeats);
	ck_assert(is_heartbeat(fake_client_last(), false));
}
END_TEST

/* One that does not arrive is followed by another one soon, with longer and longer pauses, and the election
 * is told. */
START_TEST(a_lost_one_is_repeated_soon)
{
	static const double longest[] = {0.2, 0.4, 0.8, 1.6, 3.2, 5, 5};

	for (size_t i = 0; i < ARRAY_SIZE(longest); i++) {
		heartbeats_send(d.heartbeats);
		fake_client_answer(fake_client_last(), 0, NULL, NULL, -EIO, false);
		ck_assert_msg(pause_set > longest[i] / 2 - 0.001 && pause_set <= longest[i], "%zu: %g s", i,
		              pause_set);
		ck_assert_str_eq(fake_leader.told.data, "away n2, ");
		strbuf_reset(&fake_leader.told);
	}
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 200, KEPT("8"));
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 421,
	            "{\"error\":{\"code\":\"not-controller\",\"message\":\"y\",\"leader\":\"n3\"}}");
	ck_assert_str_eq(fake_leader.told.data, "learn n3, ");
	ck_assert(pause_set > 0.09 && pause_set <= 0.2); /* the pauses begin anew */
	/* The timer sends it. */
	turn();
	ck_assert(is_heartbeat(fake_client_last(), false));
}
END_TEST

/* For how long, if it becomes the controller. */
START_TEST(the_election_knows_who_answers)
{
	heartbeats_send(d.heartbeats);
	now += 2;
	answer_json(fake_client_last(), 200, KEPT("8"));
	heartbeats_send(d.heartbeats);
	now += 2.5;
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -ETIMEDOUT, true);
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 421, "{\"error\":{\"code\":\"not-controller\",\"message\":\"y\"}}");
	heartbeats_send(d.heartbeats);
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -ECANCELED, false);
	/* The controller changes before that one is answered. */
	heartbeats_send(d.heartbeats);
	now += 1;
	fake_leader.asked.name = "n3";
	heartbeats_follow(d.heartbeats);
	now += 1;
	answer_json(fake_client_last(), 421, "{\"error\":{\"code\":\"not-controller\",\"message\":\"y\"}}");
	heartbeats_follow(d.heartbeats);
	ck_assert_str_eq(fake_leader.answers.data, "n2 leads and answers, n2 silent since 1002, n2 answers, "
	                                           "n2 silent since 1004.5, n3 answers, ");
}
END_TEST

/* Where the controller has many handshakes to do, a call has more time: up to four times as much. */
START_TEST(a_busy_controller_is_given_time)
{
	static const struct {
		bool queued;
		double timeout; /* of the next one */
	} cases[] = {{true, 60}, {true, 120}, {true, 120}, {false, 30}, {true, 60}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_answer a = {.queued = cases[i].queued, .body = ""};
		struct http_transfer *t;

		heartbeats_send(d.heartbeats);
		t = fake_client_last();
		error_set(&a.error, -ETIMEDOUT, "late");
		t->done = true;
		t->call.on_done(t->call.context, &a);
		heartbeats_send(d.heartbeats);
		t = fake_client_last();
		ck_assert_msg(t->call.timeout == cases[i].timeout && t->call.connect == cases[i].timeout,
		              "%zu: %g s", i, t->call.timeout);
		error_set(&a.error, -ECANCELED, "cancelled");
		t->done = true;
		t->call.on_done(t->call.context, &a);
	}
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 200, "{\"forget\":[]}");
	heartbeats_send(d.heartbeats);
	ck_assert(fake_client_last()->call.timeout == 30);
}
END_TEST

/* One call at a time; what there is to say meanwhile is said after it. */
START_TEST(one_is_under_way_at_a_time)
{
	heartbeats_send(d.heartbeats);
	turn(); /* the timer has nothing to add */
	ck_assert_uint_eq(fake_client.count, 1);
	answer_json(fake_client_last(), 200, "{\"forget\":[]}");
	ck_assert_uint_eq(fake_client.count, 1);
	heartbeats_send(d.heartbeats);
	heartbeats_send(d.heartbeats);
	ck_assert_uint_eq(fake_client.count, 2);
	answer_json(fake_client_last(), 200, "{\"forget\":[]}");
	ck_assert_uint_eq(fake_client.count, 3);
	answer_json(fake_client_last(), 200, "{\"forget\":[]}");
	ck_assert_uint_eq(fake_client.count, 3);
	ck_assert_int_eq(heartbeats_sequence(d.heartbeats), 3);
}
END_TEST

/* The service is being stopped: nothing more is sent. */
START_TEST(a_cancelled_one_ends_it)
{
	heartbeats_send(d.heartbeats);
	heartbeats_send(d.heartbeats);
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -ECANCELED, false);
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert_uint_eq(fake_leader.told.len, 0);
}
END_TEST

/* The service ends: no answer is reported. */
START_TEST(the_end_cancels_what_is_under_way)
{
	const struct report report = {.run = 7, .attempt = 2, .node = (char *)"n1", .state = ATTEMPT_RUNNING};
	struct http_transfer *heartbeat, *reports;

	heartbeats_send(d.heartbeats);
	heartbeat = fake_client_last();
	heartbeats_report(d.heartbeats, &report);
	reports = fake_client_last();
	ck_assert_ptr_ne(heartbeat, reports);
	heartbeats_destroy(steal_pointer(d.heartbeats));
	ck_assert(heartbeat->cancelled);
	ck_assert(reports->cancelled);
}
END_TEST

/* What cannot be said whole is not said. */
START_TEST(without_memory_nothing_is_said)
{
	bool refused = true;

	for (long n = 1; refused; n++) {
		_cleanup_json_ json_t *b = NULL;

		memory_refused = false;
		memory_left = n;
		heartbeats_send(d.heartbeats);
		memory_left = 0;
		refused = fake_client.count == 0;
		if (refused) {
			ck_assert_msg(memory_refused, "allocation %ld", n);
			ck_assert(heartbeats_are_idle(d.heartbeats));
			continue;
		}
		ck_assert_int_gt(n, 6);
		if (!fake_client_last()->text) /* it was the stand-in for the client that had none */
			break;
		b = body_of(fake_client_last());
		ck_assert_str_eq(json_get_string(b, "node", ""), "n1");
		ck_assert_uint_eq(strlen(json_get_string(b, "hosts", "")), HOSTS_HASH_SIZE - 1);
		ck_assert_str_eq(json_get_string(b, "instance", ""), "mine");
		ck_assert_str_eq(json_get_string(b, "version", ""), DTRAIN_VERSION);
	}
}
END_TEST

START_TEST(a_call_that_cannot_be_made_is_made_later)
{
	fake_client.refusal = "no cluster key";
	turn();
	ck_assert_uint_eq(fake_client.count, 0);
	fake_client.refusal = NULL;
	ck_assert(pause_set > 4.9 && pause_set <= 5);
	turn();
	ck_assert(is_heartbeat(fake_client_last(), false));
	/* What a short one would refer to is not sure any more. */
	answer_json(fake_client_last(), 200, KEPT("2"));
	fake_client.refusal = "no cluster key";
	turn();
	fake_client.refusal = NULL;
	turn();
	ck_assert(is_heartbeat(fake_client_last(), false));
}
END_TEST

START_TEST(lateness_of_the_loop_is_measured)
{
	turn(); /* at once, for a reason: that is not late */
	ck_assert(d.loop_lag == 0 && d.loop_lag_max == 0);
	turn(); /* due at 1 microsecond after the start of the machine */
	ck_assert(d.loop_lag > 0 && d.loop_lag_max == d.loop_lag);
	d.loop_lag_max = 1e12;
	turn();
	ck_assert(d.loop_lag_max == 1e12 && d.loop_lag < 1e12);
}
END_TEST

/* ---- reports ---- */

static void report(int run, int attempt, enum attempt_state state)
{
	const struct report r = {.run = run, .attempt = attempt, .node = (char *)"n1", .state = state};
	const struct node_callbacks callbacks = heartbeats_of_node(&d);

	callbacks.report(callbacks.context, &r);
}

/* "7.1 running, 8.1 ended, " */
static char *reports_of(const struct http_transfer *t)
{
	_cleanup_json_ json_t *list = body_of(t);
	struct strbuf b = {0};

	ck_assert(str_starts(t->text, "POST n2 at a2:2 /v1/peer/reports \"["));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *r = json_array_get(list, i);

		strbuf_addf(&b, "%d.%d %s, ", (int)json_get_int(r, "run", 0),
		            (int)json_get_int(r, "attempt", 0), json_get_string(r, "state", ""));
	}
	return strbuf_steal(&b);
}

START_TEST(a_change_is_reported_at_once)
{
	_cleanup_free_ char *first = NULL, *second = NULL;

	report(7, 1, ATTEMPT_STARTING); /* the answer to the start says as much */
	ck_assert_uint_eq(fake_client.count, 0);
	report(7, 1, ATTEMPT_RUNNING);
	ck_assert_uint_eq(fake_client.count, 1);
	first = reports_of(fake_client_last());
	ck_assert_str_eq(first, "7.1 running, ");
	expect_calls("");
	/* The newest of each attempt, once the call that is under way has ended. */
	report(7, 1, ATTEMPT_STOPPING);
	report(7, 2, ATTEMPT_RUNNING);
	report(8, 1, ATTEMPT_STOPPING);
	report(7, 1, ATTEMPT_ENDED);
	expect_calls("end of logs 7.1, ");
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert(!heartbeats_are_idle(d.heartbeats));
	answer_json(fake_client_last(), 200, "{}");
	ck_assert_uint_eq(fake_client.count, 2);
	second = reports_of(fake_client_last());
	ck_assert_str_eq(second, "7.1 ended, 7.2 running, 8.1 stopping, ");
	answer_json(fake_client_last(), 200, "{}");
	ck_assert_uint_eq(fake_client.count, 2);
	ck_assert(heartbeats_are_idle(d.heartbeats));
}
END_TEST

/* What does not arrive comes with the next heartbeat. */
START_TEST(a_lost_report_is_not_repeated)
{
	_cleanup_free_ char *text = NULL;

	report(7, 1, ATTEMPT_RUNNING);
	report(8, 1, ATTEMPT_RUNNING);
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -EIO, true);
	ck_assert_uint_eq(fake_client.count, 1);
	ck_assert(heartbeats_are_idle(d.heartbeats));
	report(9, 1, ATTEMPT_RUNNING);
	ck_assert_uint_eq(fake_client.count, 2);
	text = reports_of(fake_client_last());
	ck_assert_str_eq(text, "9.1 running, ");
	report(9, 1, ATTEMPT_STOPPING);
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -ECANCELED, true);
	ck_assert_uint_eq(fake_client.count, 2);
	/* What waits is sent with the next turn of the timer. */
	turn();
	ck_assert_uint_eq(fake_client.count, 4);
	ck_assert(is_heartbeat(&fake_client.transfers[2], false));
	free(text);
	text = reports_of(&fake_client.transfers[3]);
	ck_assert_str_eq(text, "9.1 stopping, ");
}
END_TEST

/* The times of a report are those of this node: how far its clock is from the controller's is in it. */
START_TEST(a_report_knows_the_controllers_clock)
{
	_cleanup_json_ json_t *list = NULL, *beat = NULL;
	const json_t *r;

	heartbeats_send(d.heartbeats);
	now = 1002;
	answer_json(fake_client_last(), 200, "{\"forget\":[],\"time\":1011.0}");
	report(7, 1, ATTEMPT_RUNNING);
	list = body_of(fake_client_last());
	r = json_array_get(list, 0);
	ck_assert(json_number_value(json_object_get(r, "clock_offset")) == 10);
	ck_assert(json_number_value(json_object_get(r, "clock_error")) == 1);
	node.reports[0] = (struct report){.run = 7, .attempt = 1, .node = (char *)"n1"};
	node.report_count = 1;
	heartbeats_send(d.heartbeats);
	beat = body_of(fake_client_last());
	r = json_array_get(json_object_get(beat, "attempts"), 0);
	ck_assert(json_number_value(json_object_get(r, "clock_offset")) == 10);
}
END_TEST

/* ---- the interval that the controller asks for ---- */

#define EVERY(seconds) "{\"forget\":[],\"cluster\":\"c\",\"epoch\":1,\"interval\":" seconds "}"

static bool pause_is(double seconds)
{
	return pause_set > seconds - 0.1 && pause_set <= seconds;
}

START_TEST(the_longer_interval_is_kept)
{
	static const struct {
		const char *answer;
		double interval;
	} cases[] = {
	    {EVERY("7.5"), 7.5},
	    {EVERY("4.5"), 5}, /* a node may be set to more */
	    {EVERY("7.5"), 7.5},
	    {KEPT("9"), 5}, /* none is asked for, as by a controller of an older version */
	    {EVERY("1e300"), 60},
	    {EVERY("-1e300"), 5},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		heartbeats_send(d.heartbeats);
		answer_json(fake_client_last(), 200, cases[i].answer);
		turn();
		ck_assert_msg(pause_is(cases[i].interval), "%zu: %g s", i, pause_set);
		answer_json(fake_client_last(), 200, cases[i].answer);
	}
}
END_TEST

/* What has changed does not wait for it. */
START_TEST(a_change_does_not_wait_for_the_interval)
{
	const struct node_callbacks callbacks = heartbeats_of_node(&d);

	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 200, EVERY("20"));
	turn();
	answer_json(fake_client_last(), 200, EVERY("20"));
	ck_assert(pause_is(20));
	callbacks.devices_changed(callbacks.context);
	ck_assert_uint_eq(fake_client.count, 3);
	ck_assert(is_heartbeat(fake_client_last(), false));
	answer_json(fake_client_last(), 200, EVERY("20"));
	report(7, 1, ATTEMPT_ENDED);
	ck_assert_uint_eq(fake_client.count, 4);
	/* It is lost: the next heartbeat, which has it too, comes as soon as without the longer interval. */
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -EIO, true);
	ck_assert(pause_is(5));
	turn();
	ck_assert_uint_eq(fake_client.count, 5);
	ck_assert(pause_is(20));
	answer_json(fake_client_last(), 200, EVERY("20"));
	/* Where that comes soon anyway, another lost report does not put it off. */
	for (size_t i = 0; i < 2; i++) {
		report(7, 2, ATTEMPT_RUNNING);
		pause_set = 1000 * i;
		fake_client_answer(fake_client_last(), 503, NULL, NULL, 0, true);
		ck_assert(i == 0 ? pause_is(5) : pause_set == 1000);
	}
}
END_TEST

/* Nor does a lost heartbeat, or another controller. */
START_TEST(the_interval_ends_with_its_controller)
{
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 200, EVERY("20"));
	heartbeats_send(d.heartbeats);
	fake_client_answer(fake_client_last(), 0, NULL, NULL, -EIO, true);
	ck_assert(pause_set > 0.09 && pause_set <= 0.2);
	heartbeats_follow(d.heartbeats);
	turn();
	ck_assert(pause_is(5));
}
END_TEST

/* ---- another controller, and one in this process ---- */

START_TEST(another_controller_gets_a_whole_one_at_once)
{
	heartbeats_send(d.heartbeats);
	answer_json(fake_client_last(), 200, KEPT("1"));
	heartbeats_send(d.heartbeats);
	ck_assert(is_heartbeat(fake_client_last(), true));
	report(7, 1, ATTEMPT_RUNNING);
	report(7, 1, ATTEMPT_STOPPING);
	ck_assert_uint_eq(fake_client.count, 3);
	heartbeats_follow(d.heartbeats);
	ck_assert(fake_client.transfers[1].cancelled && fake_client.transfers[2].cancelled);
	ck_assert_uint_eq(fake_client.count, 4);
	ck_assert(is_heartbeat(fake_client_last(), false));
	ck_assert(fake_client_last()->call.timeout == 30);
	answer_json(fake_client_last(), 200, "{\"forget\":[]}");
	ck_assert_uint_eq(fake_client.count, 4); /* the heartbeat had all reports */
	ck_assert(heartbeats_are_idle(d.heartbeats));
}
END_TEST

/* It reads its store: the pauses before it is asked again begin with the shortest. */
START_TEST(a_controller_that_begins_is_asked_again_soon)
{
	for (int i = 0; i < 5; i++) {
		heartbeats_send(d.heartbeats);
		fake_client_answer(fake_client_last(), 0, NULL, NULL, -EIO, false);
	}
	ck_assert(pause_set > 1);
	strbuf_reset(&fake_leader.told);
	heartbeats_follow(d.heartbeats);
	answer_json(fake_client_last(), 421,
	            "{\"error\":{\"code\":\"not-controller\",\"message\":\"y\",\"leader\":\"n2\"}}");
	ck_assert(pause_set <= 0.2);
	ck_assert_str_eq(fake_leader.told.data, "learn n2, "); /* and it is not away */
}
END_TEST

START_TEST(the_controller_here_is_called)
{
	const struct node_callbacks callbacks = heartbeats_of_node(&d);

	d.controller = (struct controller *)&d;
	fake_leader.holds = true;
	node.answer = (struct heartbeat_answer){.lease = 9};
	heartbeats_send(d.heartbeats);
	expect_calls("heartbeat 1, learn - 0 at 500, "); /* the one controller grants its node no lease */
	report(7, 1, ATTEMPT_STARTING);
	expect_calls("devices of n1, report 7.1, ");
	report(7, 1, ATTEMPT_ENDED);
	expect_calls("end of logs 7.1, devices of n1, report 7.1, ");
	callbacks.devices_changed(callbacks.context);
	expect_calls("heartbeat 2, learn - 0 at 500, reschedule, ");
	node.answer_code = -ENOENT;
	heartbeats_send(d.heartbeats);
	expect_calls("heartbeat 3, ");
	/* One that is elected may be followed by another one. */
	node.answer_code = 0;
	d.leader = (struct leader *)&d;
	heartbeats_send(d.heartbeats);
	expect_calls("heartbeat 4 with leases, learn - 9 at 500, ");
	fake_leader.holds = false;
	heartbeats_send(d.heartbeats);
	expect_calls("");
	ck_assert_uint_eq(fake_client.count, 0);
}
END_TEST

START_TEST(devices_that_change_are_told)
{
	const struct node_callbacks callbacks = heartbeats_of_node(&d);
	struct heartbeats *beats = d.heartbeats;

	callbacks.devices_changed(callbacks.context);
	ck_assert(is_heartbeat(fake_client_last(), false));
	expect_calls("");
	heartbeats_refresh_local(&d); /* of a controller that is not here */
	expect_calls("");
	/* While the node is being set up there are no heartbeats yet. */
	d.heartbeats = NULL;
	callbacks.devices_changed(callbacks.context);
	report(7, 1, ATTEMPT_RUNNING);
	ck_assert_uint_eq(fake_client.count, 1);
	d.heartbeats = beats;
}
END_TEST

int main(void)
{
	Suite *s = suite_create("heartbeat");
	TCase *c = tcase_create("heartbeat");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, the_first_heartbeat_says_all);
	tcase_add_test(c, a_node_that_shuts_down_says_so);
	tcase_add_test(c, an_answer_is_taken_over);
	tcase_add_test(c, a_short_one_that_is_refused_is_followed_by_a_whole_one);
	tcase_add_test(c, a_repeated_one_is_no_loss);
	tcase_add_test(c, a_lost_one_is_repeated_soon);
	tcase_add_test(c, the_election_knows_who_answers);
	tcase_add_test(c, a_busy_controller_is_given_time);
	tcase_add_test(c, one_is_under_way_at_a_time);
	tcase_add_test(c, a_cancelled_one_ends_it);
	tcase_add_test(c, the_end_cancels_what_is_under_way);
	tcase_add_test(c, without_memory_nothing_is_said);
	tcase_add_test(c, a_call_that_cannot_be_made_is_made_later);
	tcase_add_test(c, lateness_of_the_loop_is_measured);
	tcase_add_test(c, a_change_is_reported_at_once);
	tcase_add_test(c, a_lost_report_is_not_repeated);
	tcase_add_test(c, a_report_knows_the_controllers_clock);
	tcase_add_test(c, the_longer_interval_is_kept);
	tcase_add_test(c, a_change_does_not_wait_for_the_interval);
	tcase_add_test(c, the_interval_ends_with_its_controller);
	tcase_add_test(c, another_controller_gets_a_whole_one_at_once);
	tcase_add_test(c, a_controller_that_begins_is_asked_again_soon);
	tcase_add_test(c, the_controller_here_is_called);
	tcase_add_test(c, devices_that_change_are_told);
	suite_add_tcase(s, c);
	return unit_run(s);
}
