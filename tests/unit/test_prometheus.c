/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster as Prometheus reads it: values, what is not known, and names of users. Server and controller
 * are stand-ins. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "dtraind/routes/routes.h"
#include "fake_request.h"

/* ---- the controller ---- */

static int code; /* of its store */
static struct run runs[2];
static size_t run_count;
static struct device_info devices[2];
static struct gpu_info gpus[2];
static struct member nodes[2];
static int noted;

int controller_count_runs(struct controller *c, int64_t counts[RUN_STATES], struct error *err)
{
	for (int i = 0; i < RUN_STATES; i++)
		counts[i] = 10 + i;
	return code < 0 ? error_set(err, code, "the disk is full") : 0;
}

size_t controller_active_count(const struct controller *c)
{
	return run_count;
}

const struct run *controller_active_run(const struct controller *c, size_t i)
{
	return &runs[i];
}

void controller_note_spares(const struct controller *c)
{
	noted++;
}

size_t controller_node_count(const struct controller *c)
{
	ck_assert_int_eq(noted, 1); /* before its slots are counted */
	return ARRAY_SIZE(nodes);
}

const struct member *controller_node(const struct controller *c, size_t i)
{
	return &nodes[i];
}

size_t member_free_slots(const struct member *m)
{
	return 3;
}

size_t member_reserved_slots(const struct member *m)
{
	return 4;
}

size_t member_drained_slots(const struct member *m)
{
	return 5;
}

const char *run_state_name(enum run_state state)
{
	static const char *const names[RUN_STATES] = {"s0", "s1", "s2", "s3", "s4"};

	return names[state] ? names[state] : "later";
}

/* ---- tests ---- */

static struct daemon d = {.loop_lag = 0.25, .loop_lag_max = 1.5};
static struct http_request request;

static void setup(void)
{
	for (int i = 0; i < 2; i++) {
		gpus[i] = (struct gpu_info){.memory_used = -1,
		                            .utilization = -1,
		                            .temperature = -1,
		                            .power = -1,
		                            .power_limit = -1,
		                            .ecc_errors = -1};
		devices[i] = (struct device_info){.memory = 80000000000, .gpu_info = &gpus[i]};
	}
	devices[0].uuid = (char *)"GPU-1";
	nodes[0] = (struct member){.name = (char *)"n1", .up = true, .slots = 2, .devices = devices};
	nodes[1] = (struct member){.name = (char *)"n2", .slots = 2, .devices = devices};
	runs[0] = (struct run){.id = 7, .name = (char *)"a\"b\\c\nd"};
	runs[1] = (struct run){.id = 8, .name = (char *)"e"};
	run_count = 2;
	noted = 0;
}

static void teardown(void)
{
	fake_request_close(&request);
}

/* want: a line of the answer; is: whether it is there. */
static void check(const char *want, bool is)
{
	_cleanup_free_ char *line = str_printf("\n%s\n", want);

	ck_assert_msg((strstr(request.answer, line) != NULL) == is, "%s in\n%s", want, request.answer);
}

static void ask(void)
{
	fake_request_close(&request);
	noted = 0;
	route_prometheus(&d, &request);
	ck_assert_ptr_nonnull(request.answer);
}

static int count_lines(const char *start)
{
	_cleanup_free_ char *line = str_printf("\n%s", start);
	int n = 0;

	for (const char *p = request.answer; (p = strstr(p, line)); p++)
		n++;
	return n;
}

START_TEST(nodes_are_counted)
{
	ask();
	ck_assert(
	    str_starts(request.answer, "200 text/plain; version=0.0.4; charset=utf-8 # HELP dtrain_runs "));
	check("dtrain_runs{state=\"s0\"} 10", true);
	check("dtrain_runs{state=\"s2\"} 12", true);
	ck_assert_int_eq(count_lines("dtrain_runs{"), RUN_STATES);
	check("dtrain_node_up{node=\"n1\"} 1", true);
	check("dtrain_node_up{node=\"n2\"} 0", true);
	check("dtrain_slots{node=\"n2\"} 2", true);
	/* Of one that is down nothing is free, but what is drained stays so. */
	check("dtrain_slots_free{node=\"n1\"} 3", true);
	check("dtrain_slots_free{node=\"n2\"} 0", true);
	check("dtrain_slots_reserved{node=\"n1\"} 4", true);
	check("dtrain_slots_reserved{node=\"n2\"} 0", true);
	check("dtrain_slots_drained{node=\"n2\"} 5", true);
	check("dtrain_event_loop_lag_seconds 0.250000", true);
	check("dtrain_event_loop_lag_max_seconds 1.500000", true);
	check("# TYPE dtrain_gpu_ecc_errors_total counter", true);
	check("# TYPE dtrain_gpu_power_watts gauge", true);
	check("# TYPE dtrain_run_restarts_total counter", true);
}
END_TEST

/* What is not known is left out, and so are the GPUs of a node that is down. */
START_TEST(gpus_have_values)
{
	ask();
	check("dtrain_gpu_memory_bytes{node=\"n1\",slot=\"0\",uuid=\"GPU-1\"} 80000000000", true);
	check("dtrain_gpu_memory_bytes{node=\"n1\",slot=\"1\",uuid=\"\"} 80000000000", true);
	ck_assert_int_eq(count_lines("dtrain_gpu_"), 2);
	gpus[1] = (struct gpu_info){.memory_used = 0,
	                            .utilization = 81,
	                            .temperature = 55,
	                            .power = 400.1,
	                            .power_limit = 700,
	                            .ecc_errors = 3};
	devices[0].gpu_info = NULL; /* a CPU slot */
	ask();
	check("dtrain_gpu_memory_used_bytes{node=\"n1\",slot=\"1\",uuid=\"\"} 0", true);
	check("dtrain_gpu_utilization_ratio{node=\"n1\",slot=\"1\",uuid=\"\"} 0.81", true);
	check("dtrain_gpu_temperature_celsius{node=\"n1\",slot=\"1\",uuid=\"\"} 55", true);
	check("dtrain_gpu_power_watts{node=\"n1\",slot=\"1\",uuid=\"\"} 400.1", true);
	check("dtrain_gpu_power_limit_watts{node=\"n1\",slot=\"1\",uuid=\"\"} 700", true);
	check("dtrain_gpu_ecc_errors_total{node=\"n1\",slot=\"1\",uuid=\"\"} 3", true);
	ck_assert_int_eq(count_lines("dtrain_gpu_"), 7);
}
END_TEST

/* Their names are those of users, who may write anything. */
START_TEST(runs_have_values)
{
	_cleanup_json_ json_t *progress =
	    json_pack("{s:i,s:f,s:f,s:f}", "step", 5, "loss", 2.5, "eta_seconds", 60.5, "reward", -0.25);

	runs[0].progress = progress;
	runs[0].retries.record.restarts = 2;
	runs[0].retries.record.node_failures = 1;
	ask();
	check("dtrain_run_step{run=\"7\",name=\"a\\\"b\\\\c\\nd\"} 5", true);
	check("dtrain_run_loss{run=\"7\",name=\"a\\\"b\\\\c\\nd\"} 2.5", true);
	check("dtrain_run_eta_seconds{run=\"7\",name=\"a\\\"b\\\\c\\nd\"} 60.5", true);
	check("dtrain_run_reward{run=\"7\",name=\"a\\\"b\\\\c\\nd\"} -0.25", true);
	ck_assert_int_eq(count_lines("dtrain_run_step{"), 1);
	ck_assert_int_eq(count_lines("dtrain_run_learning_rate{"), 0);
	ck_assert_int_eq(count_lines("dtrain_run_tokens_per_second{"), 0);
	check("dtrain_run_restarts_total{run=\"7\",name=\"a\\\"b\\\\c\\nd\"} 2", true);
	check("dtrain_run_node_failures_total{run=\"7\",name=\"a\\\"b\\\\c\\nd\"} 1", true);
	check("dtrain_run_restarts_total{run=\"8\",name=\"e\"} 0", true);
	run_count = 0;
	ask();
	ck_assert_int_eq(count_lines("dtrain_run_"), 0);
	check("# TYPE dtrain_run_step gauge", true);
}
END_TEST

START_TEST(a_store_may_fail)
{
	code = -ENOSPC;
	ask();
	ck_assert_str_eq(request.answer, "500 store: the disk is full");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("prometheus");
	TCase *c = tcase_create("prometheus");

	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, nodes_are_counted);
	tcase_add_test(c, gpus_have_values);
	tcase_add_test(c, runs_have_values);
	tcase_add_test(c, a_store_may_fail);
	return unit_run(s);
}
