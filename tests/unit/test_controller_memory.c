/* SPDX-License-Identifier: Apache-2.0 */
/* What the controller does where memory runs out: each allocation of a run's life fails in turn. The run may
 * be refused, fail or begin again; it is answered once, nothing of it stays behind, and the next one runs. */
#include "commit_bed.h"
#include "failing_memory.h"

static long paused; /* what memory_left was */

static void pause_failures(bool begin)
{
	if (begin)
		paused = memory_left;
	memory_left = begin ? 0 : paused;
}

/* The allocations of the call count, and no others. */
#define IN_CONTROLLER(call)                                                                                  \
	do {                                                                                                 \
		memory_left = paused;                                                                        \
		call;                                                                                        \
		paused = memory_left;                                                                        \
		memory_left = 0;                                                                             \
	} while (0)

static void turns(struct bed *b)
{
	IN_CONTROLLER(turn(b));
	while (store_is_busy(b->store)) {
		held_store_await_done(b->store);
		IN_CONTROLLER(turn(b));
	}
}

static void say(struct bed *b, int64_t run, int64_t attempt, const char *state)
{
	static const char *const nodes[] = {"n1", "n2"};

	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *text = report((int)run, (int)attempt, nodes[i], i, state);
		_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
		_cleanup_(report_release) struct report decoded = {0};
		struct error err = ERROR_INIT;

		ck_ok(report_decode(json, &decoded, &err), &err);
		IN_CONTROLLER(controller_report(b->controller, &decoded));
	}
	turns(b);
}

/* As the controller knows it; -1: it does not. */
static int64_t attempt_of(struct bed *b, int64_t run, enum run_state *state)
{
	_cleanup_(run_freep) struct run *owned = NULL;
	const struct run *r;

	if (controller_find_run(b->controller, run, &r, &owned, NULL) < 0)
		return -1;
	*state = r->state;
	return r->attempt;
}

/* Ends each attempt that the run still has or gets, with all the memory there is. */
static void see_off(struct bed *b, int64_t run)
{
	b->refusal = 0;
	for (int i = 0; controller_active_count(b->controller) > 0; i++) {
		enum run_state state = RUN_QUEUED;
		int64_t attempt = attempt_of(b, run, &state);

		ck_assert_int_lt(i, 10);
		if (state != RUN_QUEUED)
			both_report(b, (int)run, (int)attempt, "ended");
		heartbeats(b);
		b->now += 400;
		controller_reschedule(b->controller);
		turn(b);
		commits_end(b);
	}
}

/* A run from its submission to its end, without a failure. */
static void live_on(struct bed *b)
{
	struct answer a;

	b->starts[0] = '\0';
	submit_and_commit(b, &a);
	ck_assert_str_eq(a.error, "");
	ck_assert_int_eq(state_of(b, a.id), RUN_STARTING);
	ck_assert_ptr_nonnull(strstr(b->starts, "n2:"));
	both_report(b, (int)a.id, 1, "ended");
	turn(b);
	commits_end(b);
	ck_assert_int_eq(state_of(b, a.id), RUN_SUCCEEDED);
	ck_assert_uint_eq(controller_active_count(b->controller), 0);
}

/* Lets allocation n fail. Returns whether the life of the run had so many. */
static bool live(struct bed *b, long n, int kind)
{
	_cleanup_free_ char *key = str_printf("k%ld", n);
	struct run *r = make_run(key);
	bool busy = kind == 1;
	struct error err = ERROR_INIT;
	struct answer a = {0};
	struct submission *s;
	int64_t attempt;
	int code;

	if (kind == 2) {
		r->nodes_asked = (struct key_range){1, 1};
		r->nodes = r->spares_asked = 1;
		r->retries.max_restarts = 5;
	}
	b->refusal = busy ? -EBUSY : 0;
	b->starts[0] = b->stops[0] = '\0';
	memory_refused = false;
	paused = n;
	IN_CONTROLLER(code = controller_submit(b->controller, r, run_on_both, on_submitted, &a, &s, &err));
	if (code < 0) {
		ck_assert_int_eq(code, -ENOMEM);
		ck_assert_str_eq(err.message, "out of memory");
		turns(b);
	} else {
		enum run_state state = RUN_QUEUED;

		turns(b);
		ck_assert_int_eq(a.count, 1);
		attempt = attempt_of(b, a.id, &state);
		ck_assert_int_eq(attempt < 0, a.error[0] != '\0'); /* what is refused never was */
		if (state != RUN_QUEUED && !busy) {
			say(b, a.id, attempt, "running");
			say(b, a.id, attempt, "ended");
		}
	}
	b->now += 5;
	turns(b);
	ck_assert_int_eq(a.count, code == 0);
	paused = 0;
	see_off(b, a.id);
	ck_assert(a.id == 0 || a.error[0] || run_state_final((enum run_state)state_of(b, a.id)));
	return memory_refused;
}

/* 1: the slot of a node is taken at the first attempt. 2: the second node is a spare. */
START_TEST(whatever_is_missing_the_next_run_runs)
{
	struct bed b;
	int ran;

	json_set_alloc_funcs(__wrap_malloc, free);
	bed_start(&b);
	b.others = pause_failures;
	for (long n = 1; live(&b, n, _i); n++)
		if (n % 8 == 0)
			live_on(&b);
	live_on(&b);
	/* What it knows is what is on disk. */
	ran = listed(&b, "all");
	ck_assert_int_gt(ran, 10);
	bed_close(&b);
	bed_open(&b);
	ck_assert_int_eq(listed(&b, "all"), ran);
	ck_assert_uint_eq(controller_active_count(b.controller), 0);
	bed_end(&b);
}
END_TEST

/* A heartbeat is taken, and answered, or -ENOMEM: the node sends the next one. */
START_TEST(a_heartbeat_is_answered_or_refused)
{
	struct bed b;

	bed_start(&b);
	live_on(&b);
	memory_refused = true;
	for (long n = 1; memory_refused; n++) {
		_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
		_cleanup_(heartbeat_release) struct heartbeat beat = {0};
		_cleanup_free_ char *text = str_printf(
		    "{\"node\":\"n2\",\"instance\":\"x\",\"sequence\":%d,\"version\":\"2\",\"devices\":[],"
		    "\"attempts\":[{\"run\":9,\"attempt\":1,\"node\":\"n2\",\"state\":\"running\","
		    "\"cluster\":\"another\",\"name\":\"a\",\"user\":\"u\",\"ranks\":[{\"rank\":0,\"slot\":0,"
		    "\"state\":\"running\"}]},{\"run\":1,\"attempt\":1,\"node\":\"n2\",\"state\":\"ended\","
		    "\"cluster\":\"%s\",\"epoch\":%d,\"ranks\":[]}]}",
		    ++b.sequence, store_cluster(b.store), (int)store_epoch(b.store));
		_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
		struct error err = ERROR_INIT;
		const struct member *m;
		int code;

		ck_ok(heartbeat_decode(json, &beat, &err), &err);
		memory_refused = false;
		paused = n;
		IN_CONTROLLER(code = controller_heartbeat(b.controller, &beat, &answer, &err));
		paused = 0;
		m = controller_find_node(b.controller, "n2");
		ck_assert(m->up);
		ck_assert_int_eq(m->sequence, b.sequence);
		ck_assert_uint_le(m->foreign_count, 1);
		if (code < 0) {
			ck_assert(memory_refused);
			ck_assert_int_eq(code, -ENOMEM);
			ck_assert_str_eq(err.message, "out of memory");
			ck_assert_ptr_null(answer.cluster);
			ck_assert_ptr_null(answer.forget);
			continue;
		}
		ck_assert_str_eq(answer.cluster, store_cluster(b.store));
		ck_assert_uint_ge(m->foreign_count + answer.forget_count + memory_refused, 2);
		if (m->foreign_count == 0)
			continue;
		ck_assert_int_eq(m->foreign[0].run, 9);
		ck_assert_str_eq(m->foreign[0].cluster, "another");
		ck_assert_str_eq(m->foreign[0].user, "u");
		ck_assert_uint_eq(m->foreign[0].slot_count, 1);
	}
	bed_end(&b);
}
END_TEST

/* A controller takes over all that is in its store, or says what is missing. */
START_TEST(a_controller_begins_whole_or_not)
{
	_cleanup_(hosts_freep) struct hosts *hosts = make_hosts();
	struct error err = ERROR_INIT;
	struct answer a;
	struct bed b;
	int code = -1;

	bed_start(&b);
	submit_and_commit(&b, &a);
	bed_close(&b);
	for (long n = 1; code < 0; n++) {
		const struct controller_options options = bed_options(&b, hosts);
		struct controller *c = NULL;

		memory_refused = false;
		paused = n;
		IN_CONTROLLER(code = controller_create(&options, &c, &err));
		paused = 0;
		ck_assert_int_eq(c != NULL, code == 0);
		if (code < 0) {
			ck_assert(memory_refused);
			ck_assert_int_eq(code, -ENOMEM);
			continue;
		}
		ck_assert_uint_eq(controller_active_count(c), 1);
		/* What need not be there, such as a text to look for, may be missing. */
		if (memory_refused)
			code = -1;
		controller_destroy(c);
	}
	b = (struct bed){.dir = b.dir, .now = b.now};
	bed_open(&b);
	ck_assert_int_eq(listed(&b, "active"), 1);
	bed_end(&b);
}
END_TEST

/* A short one is answered as the whole one that it stands for, or -ENOMEM. */
START_TEST(a_short_heartbeat_is_answered_or_refused)
{
	struct bed b;

	bed_start(&b);
	memory_refused = true;
	for (long n = 1; memory_refused; n++) {
		_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0}, kept = {0};
		_cleanup_(heartbeat_release) struct heartbeat beat = {
		    .node = strdup("n2"), .instance = strdup("x"), .version = strdup("2")};
		struct short_heartbeat brief = {.node = (char *)"n2", .instance = (char *)"x"};
		struct error err = ERROR_INIT;
		int code;

		brief.whole = beat.sequence = ++b.sequence;
		ck_ok(controller_heartbeat(b.controller, &beat, &answer, &err), &err);
		controller_keep_heartbeat(b.controller, &beat, &kept);
		ck_assert_int_eq(kept.whole, brief.whole);
		heartbeat_answer_release(&answer);
		brief.sequence = ++b.sequence;
		memory_refused = false;
		paused = n;
		IN_CONTROLLER(code = controller_short_heartbeat(b.controller, &brief, &answer, &err));
		paused = 0;
		ck_assert_int_eq(controller_find_node(b.controller, "n2")->sequence, brief.sequence);
		if (code < 0) {
			ck_assert(memory_refused);
			ck_assert_int_eq(code, -ENOMEM);
			ck_assert_int_eq(answer.whole, 0);
			ck_assert_ptr_null(answer.cluster);
			continue;
		}
		ck_assert_str_eq(answer.cluster, store_cluster(b.store));
		ck_assert_int_eq(answer.whole, brief.whole);
		ck_assert(n > 1 || memory_refused);
	}
	bed_end(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("controller memory");
	TCase *tc = tcase_create("memory");

	tcase_set_timeout(tc, 20);
	tcase_add_loop_test(tc, whatever_is_missing_the_next_run_runs, 0, 3);
	tcase_add_test(tc, a_heartbeat_is_answered_or_refused);
	tcase_add_test(tc, a_short_heartbeat_is_answered_or_refused);
	tcase_add_test(tc, a_controller_begins_whole_or_not);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
