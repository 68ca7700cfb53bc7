/* SPDX-License-Identifier: Apache-2.0 */
/* What the answers of a service say, and what its requests change: test_daemon.c has who may send them. */
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "daemon_fixture.h"
#include "dtraind/routes/routes.h"

static struct daemon_fixture f;

static void setup(void)
{
	daemon_fixture_start(&f, NULL);
}

static void teardown(void)
{
	daemon_fixture_teardown(&f);
}

static struct raw_answer ask(const char *method, const char *target, const char *body)
{
	return daemon_ask(&f, NULL, &(struct raw_request){.method = method, .target = target, .body = body});
}

static void expect(const char *method, const char *target, const char *body, int status, const char *words)
{
	struct raw_answer a = ask(method, target, body);

	ck_assert_msg(a.status == status && strstr(a.body, words), "%s %s: %d: %.600s, not \"%.300s\"",
	              method, target, a.status, a.body, words);
	free(a.body);
}

/* Submits a script that waits for daemon_fixture_write(&f, "go", …). */
static int64_t submit_waiting(const char *then, int slots)
{
	_cleanup_free_ char *script = str_printf("until [ -e %s/go ]; do sleep 0.02; done; %s", f.dir, then);

	return daemon_submit(&f, NULL, script, 1, slots);
}

/* One that is started again where its node is taken from it. */
static void submit_again(void)
{
	_cleanup_free_ char *body = str_printf(
	    "{\"config\":{\"task\":\"command\",\"command\":[\"sh\",\"-c\",\"until [ -e %s/go ]; do sleep "
	    "0.02; done\"],\"directory\":\"/\",\"resources\":{\"devices_per_node\":2,\"max_restarts\":1,"
	    "\"grace\":5}}}",
	    f.dir);

	expect("POST", "/v1/runs", body, 201, "\"id\":1");
	daemon_await(&f, 1, "running");
}

/* The newest first, each with what it is. */
static void ck_list(const char *query, const int *ids, size_t count)
{
	_cleanup_free_ char *target = str_printf("/v1/runs%s", query);
	_cleanup_json_ json_t *list = daemon_get(&f, NULL, target);
	const json_t *runs = json_object_get(list, "runs");

	ck_assert(json_is_array(runs));
	ck_assert_msg(json_array_size(runs) == count, "%s: %zu", query, json_array_size(runs));
	for (size_t i = 0; i < count; i++) {
		const json_t *run = json_array_get(runs, i);

		ck_assert_int_eq(json_get_int(run, "id", 0), ids[i]);
		ck_assert_str_eq(json_get_string(run, "name", ""), "test");
		ck_assert_str_ne(json_get_string(run, "state", ""), "");
	}
}

START_TEST(runs_are_listed)
{
	static const int all[] = {4, 3, 2, 1};

	ck_list("", NULL, 0);
	for (int i = 0; i < 2; i++)
		daemon_submit(&f, NULL, "true", 1, 2);
	daemon_await(&f, 1, "succeeded");
	daemon_await(&f, 2, "succeeded");
	submit_waiting("true", 2);
	daemon_await(&f, 3, "running");
	daemon_submit(&f, NULL, "true", 1, 2);
	ck_list("", all, 4);
	ck_list("?state=all&limit=1000", all, 4);
	ck_list("?state=active", all, 2);
	ck_list("?state=succeeded", all + 2, 2);
	ck_list("?state=failed", NULL, 0);
	ck_list("?limit=1", all, 1);
	ck_list("?limit=2&before=4", all + 1, 2);
	ck_list("?before=1", NULL, 0);
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 4, "succeeded");
}
END_TEST

/* An error that a rank has reported is the reason for whoever may see it; the loss of a peer is none. */
START_TEST(what_a_rank_reports_is_the_reason)
{
	_cleanup_json_ json_t *run = NULL;
	const char *reason, *detail;

	submit_waiting("exit 3", 1);
	daemon_await(&f, 1, "running");
	expect("POST", "/v1/runs/1/events", "{\"kind\":\"nix\",\"rank\":0,\"message\":\"of no kind\"}", 200,
	       "{}");
	expect("POST", "/v1/runs/1/events",
	       "{\"kind\":\"error\",\"rank\":0,\"message\":\"the disk is on fire\"}", 200, "{}");
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "failed");
	run = daemon_get(&f, NULL, "/v1/runs/1");
	reason = json_get_string(run, "reason", "");
	detail = json_get_string(run, "detail", "");
	ck_assert_msg(strstr(reason, "the disk is on fire") || strstr(detail, "the disk is on fire"),
	              "%s; %s", reason, detail);
	ck_assert(!strstr(reason, "of no kind") && !strstr(detail, "of no kind"));
}
END_TEST

START_TEST(ranks_have_logs)
{
	daemon_submit(&f, NULL, "echo rank $RANK", 1, 2);
	daemon_await(&f, 1, "succeeded");
	expect("GET", "/v1/runs/1/logs", NULL, 200, "rank 0\n");
	expect("GET", "/v1/runs/1/logs?rank=1", NULL, 200, "rank 1\n");
	expect("GET", "/v1/runs/1/logs?rank=1&tail=0", NULL, 200, "");
	expect("GET", "/v1/runs/1/logs?rank=1&attempt=1", NULL, 200, "rank 1\n");
	expect("GET", "/v1/runs/1/logs?rank=1&positions=1", NULL, 200, "1 1 0 0\n1 1 7 7\nrank 1\n");
	expect("GET", "/v1/runs/1/logs?rank=1&positions=1&tail=1&offset=5", NULL, 200,
	       "1 1 5 0\n1 1 7 2\n1\n");
	expect("GET", "/v1/runs/1/logs?rank=1&offset=8", NULL, 200, "rank 1\n");
	expect("GET", "/v1/runs/1/logs?rank=all&offset=7", NULL, 200, "");
	expect("GET", "/v1/runs/1/logs?offset=-1", NULL, 400, "offset=-1");
	expect("GET", "/v1/runs/1/logs?positions=2", NULL, 400, "positions=2");
	expect("GET", "/v1/runs/1/logs?rank=2", NULL, 404, "run 1 has the ranks 0 to 1\"");
	expect("GET", "/v1/runs/1/logs?rank=-1", NULL, 400, "rank=-1");
	expect("GET", "/v1/runs/1/logs?attempt=0", NULL, 400, "attempt=0");
	expect("GET", "/v1/runs/1/logs?tail=-1", NULL, 400, "tail=-1");
	expect("GET", "/v1/runs/1/logs?follow=2", NULL, 400, "follow=2");
}
END_TEST

#define FIFTY "01234567890123456789012345678901234567890123456789"

/* With its reason, which has a length; what runs there may stay or has to go. */
START_TEST(a_node_is_drained)
{
	_cleanup_json_ json_t *kept = NULL;

	expect("POST", "/v1/nodes/n1/drain", "{\"reason\":\"" FIFTY FIFTY FIFTY FIFTY "1\"}", 400,
	       "reason: 201 bytes; at most 200 are possible");
	expect("POST", "/v1/nodes/n1/drain", "{\"reason\":7}", 400, "reason");
	expect("POST", "/v1/nodes/n1/drain", "[]", 400, "bad-json");
	expect("GET", "/v1/nodes", NULL, 200, "\"state\":\"up\"");
	submit_again();
	expect("POST", "/v1/nodes/n1/drain",
	       "{\"reason\":\"" FIFTY FIFTY FIFTY FIFTY "\",\"keep_runs\":true}", 200,
	       FIFTY FIFTY FIFTY FIFTY "\"");
	kept = daemon_get(&f, NULL, "/v1/runs/1");
	ck_assert_str_eq(json_get_string(kept, "state", ""), "running");
	expect("POST", "/v1/nodes/N1/drain", "{\"reason\":\"a new fan\"}", 200, "a new fan");
	daemon_await(&f, 1, "queued");
	expect("GET", "/v1/nodes", NULL, 200, "a new fan");
	expect("POST", "/v1/nodes/n1/resume", NULL, 200, "\"state\":\"up\"");
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
}
END_TEST

START_TEST(a_device_is_drained)
{
	expect("POST", "/v1/nodes/n1/devices/1/drain", "{\"reason\":\"a new fan\"}", 200, "a new fan");
	expect("GET", "/v1/devices?local=1", NULL, 200, "a new fan");
	expect("GET", "/v1/devices", NULL, 200, "a new fan");
	expect("POST", "/v1/nodes/n1/devices/0/drain", "[]", 400, "bad-json");
	expect("POST", "/v1/nodes/n1/devices/0/drain", "{\"reason\":7}", 400, "reason");
	/* A resumption has no reason: whatever comes with it is not read. */
	expect("POST", "/v1/nodes/n1/devices/1/resume", "[]", 200, "\"state\":\"free\"");
	expect("POST", "/v1/nodes/n1/devices/2/resume", NULL, 404, "no-such-device");
	expect("POST", "/v1/nodes/n1/devices/-1/resume", NULL, 404,
	       "there is no slot -1: slots have numbers");
	expect("POST", "/v1/nodes/n2/devices/0/resume", NULL, 404, "there is no node n2 in the hosts file");
}
END_TEST

/* Each of the three ways to name a run that is not there says so. */
START_TEST(what_is_not_there_is_named)
{
	expect("GET", "/v1/runs/99", NULL, 404, "99");
	expect("GET", "/v1/runs/x", NULL, 404, "there is no run x: runs have numbers");
	expect("GET", "/v1/runs/0", NULL, 404, "there is no run 0: runs have numbers");
	expect("DELETE", "/v1/local/runs/7", NULL, 404, "nothing of run 7 runs on node n1");
	expect("POST", "/v1/nodes/n1/cancel-foreign", NULL, 404, "there is no foreign work on node n1");
	expect("POST", "/v1/nodes/n1/cancel-foreign?run=5", NULL, 404,
	       "there is no foreign run 5 on node n1");
	expect("POST", "/v1/nodes/n2/cancel-foreign", NULL, 404, "there is no node n2 in the hosts file");
	expect("POST", "/v1/nodes/n2/fence", NULL, 404, "there is no node n2 in the hosts file");
	expect("POST", "/v1/nodes/n1/fence", NULL, 409,
	       "node n1 is up: what runs there ends with dtrain cancel");
	expect("GET", "/v1/runs?state=nix", NULL, 400, "state=nix: active, all, or a state is needed");
	submit_waiting("true", 2);
	expect("GET", "/v1/runs", NULL, 200, "{\"runs\":[{\"id\":1");
	expect("GET", "/v1/runs?user=no%20such%20user", NULL, 200, "{\"runs\":[]}");
	expect("GET", "/v1/runs?state=active&user=no%20such%20user", NULL, 200, "{\"runs\":[]}");
}
END_TEST

/* One line is a report; it has a length, and those of an earlier attempt are not taken. */
START_TEST(a_report_has_a_length)
{
	_cleanup_strbuf_ struct strbuf body = {0};

	submit_waiting("true", 2);
	daemon_await(&f, 1, "running");
	strbuf_adds(&body, "{\"step\":1,\"x\":\"");
	while (body.len < METRICS_REPORT_MAX - 2)
		strbuf_addc(&body, 'x');
	strbuf_adds(&body, "\"}");
	ck_assert_uint_eq(body.len, METRICS_REPORT_MAX);
	expect("POST", "/v1/runs/1/metrics", body.data, 200, "{}");
	expect("GET", "/v1/runs/1/metrics", NULL, 200, "xxx\"}\n");
	strbuf_adds(&body, " ");
	expect("POST", "/v1/runs/1/metrics", body.data, 400, "bytes: at most");
	expect("POST", "/v1/runs/1/metrics", "7\n", 400, "metrics: a JSON object per line is needed");
	expect("POST", "/v1/runs/1/metrics?attempt=2", "{}\n", 410, "run 1: attempt 2 is not under way");
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
	expect("POST", "/v1/runs/1/metrics", "{}\n", 409, "run 1 has ended");
}
END_TEST

/* A key that a rank puts is there for all others, until another attempt begins. */
START_TEST(keys_are_kept_for_an_attempt)
{
	_cleanup_free_ char *big = calloc(1, (1 << 20) + 1);

	submit_waiting("true", 2);
	daemon_await(&f, 1, "running");
	expect("GET", "/v1/runs/1/rendezvous/a", NULL, 404, "no-such-key");
	expect("PUT", "/v1/runs/1/rendezvous/a", "one", 200, "{}");
	expect("PUT", "/v1/runs/1/rendezvous/b/c?attempt=1", "two", 200, "{}");
	expect("GET", "/v1/runs/1/rendezvous/a", NULL, 200, "one");
	expect("GET", "/v1/runs/1/rendezvous/b/c", NULL, 200, "two");
	expect("GET", "/v1/runs/1/rendezvous/b/c?attempt=2", NULL, 410, "run 1: attempt 2 is not under way");
	/* 2 MiB, and 64 KiB for each of its two ranks. */
	memset(big, 'x', 1 << 20);
	expect("PUT", "/v1/runs/1/rendezvous/x", big, 200, "{}");
	expect("PUT", "/v1/runs/1/rendezvous/y", big + 4096, 200, "{}");
	expect("PUT", "/v1/runs/1/rendezvous/z", big + (1 << 20) - 131072, 200, "{}");
	expect("PUT", "/v1/runs/1/rendezvous/more", big + (1 << 20) - 8192, 413, "\"rendezvous\"");
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
}
END_TEST

/* Both may have one number: a start that another controller makes, or a stop, is none of ours. */
static char *stop_by(const char *controller)
{
	return str_printf("{\"run\":1,\"attempt\":1,\"grace\":1.0%s%s%s}",
	                  controller ? ",\"controller\":\"" : "", controller ? controller : "",
	                  controller ? "\"" : "");
}

START_TEST(a_node_obeys_its_own_controller)
{
	const int port = daemon_fixture_port();
	_cleanup_free_ char *hosts = str_printf(
	                        "n1 slots=2 addr=127.0.0.1 port=%d\nn2 addr=127.0.0.1 port=1\n", port),
	                    *foreign = stop_by("n2"), *own = stop_by("N1");
	struct raw_request stop = {.method = "POST", .target = "/v1/peer/stop", .body = foreign};
	struct raw_answer a;

	daemon_fixture_teardown(&f);
	daemon_fixture_start(&f, &(struct daemon_setup){.hosts = hosts, .port = port});
	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	daemon_await(&f, 1, "running");
	a = daemon_ask_tls(&f, &stop);
	ck_assert_msg(a.status == 410 &&
	                  strstr(a.body, "n2 takes itself for the controller, n1 takes n1 for it"),
	              "%d: %s", a.status, a.body);
	free(a.body);
	/* Answered after whatever the stop would have done. */
	expect("GET", "/v1/local/runs", NULL, 200, "\"state\":\"running\"");
	stop.body = own;
	a = daemon_ask_tls(&f, &stop);
	ck_assert_msg(a.status == 200, "%d: %s", a.status, a.body);
	free(a.body);
	daemon_await(&f, 1, "failed");
}
END_TEST

/* Of another cluster, or of an older life of the controller. */
START_TEST(a_stop_that_is_out_of_date_is_refused)
{
	const int port = daemon_fixture_port();
	_cleanup_free_ char *hosts =
	    str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 addr=127.0.0.1 port=1\n", port);
	_cleanup_json_ json_t *local = NULL;
	const json_t *run;

	daemon_fixture_teardown(&f);
	daemon_fixture_start(&f, &(struct daemon_setup){.hosts = hosts, .port = port});
	daemon_fixture_stop(&f);
	daemon_fixture_again(&f);
	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	daemon_await(&f, 1, "running");
	local = daemon_get(&f, NULL, "/v1/local/runs");
	run = json_array_get(json_object_get(local, "runs"), 0);
	ck_assert_int_gt(json_get_int(run, "epoch", 0), 1);
	for (int i = 0; i < 3; i++) {
		_cleanup_free_ char *body =
		    str_printf("{\"run\":1,\"attempt\":1,\"grace\":1.0,\"cluster\":\"%s\",\"epoch\":%d}",
		               i == 0 ? "another" : json_get_string(run, "cluster", ""),
		               (int)json_get_int(run, "epoch", 0) - (i == 1));
		struct raw_request stop = {.method = "POST", .target = "/v1/peer/stop", .body = body};
		struct raw_answer a = daemon_ask_tls(&f, &stop);

		ck_assert_msg(a.status == (i == 0   ? 403
		                           : i == 1 ? 410
		                                    : 200),
		              "%d: %d: %s", i, a.status, a.body);
		free(a.body);
		if (i < 2)
			expect("GET", "/v1/local/runs", NULL, 200, "\"state\":\"running\"");
	}
	daemon_await(&f, 1, "failed");
}
END_TEST

/* Each line of a metric follows the two that explain it. */
START_TEST(metrics_are_explained)
{
	static const char *const lines[] = {
	    "dtrain_run_step{run=\"1\",name=\"test\"} 5\n",
	    "dtrain_run_loss{run=\"1\",name=\"test\"} 2.5\n",
	    "dtrain_run_learning_rate{run=\"1\",name=\"test\"} 0.001\n",
	    "dtrain_run_tokens_per_second{run=\"1\",name=\"test\"} 1000\n",
	    "dtrain_run_eta_seconds{run=\"1\",name=\"test\"} 60.5\n",
	    "dtrain_run_restarts_total{run=\"1\",name=\"test\"} 0\n",
	    "dtrain_run_node_failures_total{run=\"1\",name=\"test\"} 0\n",
	    "dtrain_runs{state=\"running\"} 1\n",
	    "dtrain_runs{state=\"queued\"} 1\n",
	    "dtrain_runs{state=\"failed\"} 0\n",
	    "dtrain_node_up{node=\"n1\"} 1\n",
	    "dtrain_slots{node=\"n1\"} 2\n",
	    "dtrain_slots_free{node=\"n1\"} 0\n",
	    "dtrain_slots_reserved{node=\"n1\"} 0\n",
	    "dtrain_slots_drained{node=\"n1\"} 0\n",
	    "dtrain_event_loop_lag_seconds 0",
	    "dtrain_event_loop_lag_max_seconds 0",
	};
	static const char *const explained[] = {
	    "dtrain_gpu_memory_bytes",        "dtrain_gpu_memory_used_bytes", "dtrain_gpu_utilization_ratio",
	    "dtrain_gpu_temperature_celsius", "dtrain_gpu_power_watts",       "dtrain_gpu_power_limit_watts",
	    "dtrain_gpu_ecc_errors_total"};
	struct raw_answer a;

	submit_waiting("true", 2);
	daemon_await(&f, 1, "running");
	submit_waiting("true", 2);
	expect("POST", "/v1/runs/1/metrics",
	       "{\"step\":5,\"loss\":2.5,\"learning_rate\":0.001,\"tokens_per_second\":1000,"
	       "\"eta_seconds\":60.5}\n",
	       200, "{}");
	a = ask("GET", "/metrics", NULL);
	ck_assert_int_eq(a.status, 200);
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		ck_assert_msg(strstr(a.body, lines[i]), "no %s in\n%s", lines[i], a.body);
	for (size_t i = 0; i < ARRAY_SIZE(lines) + ARRAY_SIZE(explained); i++) {
		const char *name = i < ARRAY_SIZE(lines) ? lines[i] : explained[i - ARRAY_SIZE(lines)];
		const size_t len = strcspn(name, "{ ");
		_cleanup_free_ char *help = str_printf("# HELP %.*s ", (int)len, name),
		                    *gauge = str_printf("\n# TYPE %.*s gauge\n", (int)len, name),
		                    *counter = str_printf("\n# TYPE %.*s counter\n", (int)len, name);
		const bool counts = len > 6 && strncmp(name + len - 6, "_total", 6) == 0;

		ck_assert_msg(strstr(a.body, help), "no %s", help);
		ck_assert_msg(strstr(a.body, counts ? counter : gauge), "no type of %.*s", (int)len, name);
	}
	free(a.body);
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 2, "succeeded");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon routes");
	TCase *c = tcase_create("daemon routes");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, runs_are_listed);
	tcase_add_test(c, what_a_rank_reports_is_the_reason);
	tcase_add_test(c, ranks_have_logs);
	tcase_add_test(c, a_node_is_drained);
	tcase_add_test(c, a_device_is_drained);
	tcase_add_test(c, what_is_not_there_is_named);
	tcase_add_test(c, a_report_has_a_length);
	tcase_add_test(c, keys_are_kept_for_an_attempt);
	tcase_add_test(c, a_node_obeys_its_own_controller);
	tcase_add_test(c, a_stop_that_is_out_of_date_is_refused);
	tcase_add_test(c, metrics_are_explained);
	return unit_run(s);
}
