/* SPDX-License-Identifier: Apache-2.0 */
/* What the store keeps of an attempt, all of it, and that the next attempt begins without any of that. */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster_fixture.h"

static char *copy(const char *text)
{
	char *s = strdup(text);

	ck_assert_ptr_nonnull(s);
	return s;
}

/* Everything that can be known of an attempt on n1 and n2, which fails. */
static void fill(struct run *r)
{
	const int slots[] = {5};
	char *const nodes[] = {(char *)"n4", (char *)"n5", NULL};
	char **avoid = str_list_copy(nodes);

	ck_assert_ptr_nonnull(avoid);
	r->parts[0].ended = true;
	r->parts[0].trouble = copy("node n1 was shut down");
	r->parts[0].trouble_at = 120.5;
	r->parts[0].clock_error = 0.25;
	r->parts[0].boot = copy("boot 1");
	r->parts[0].lease = 60;
	r->parts[1].boot = copy("boot 2");
	run_worker_error(r, 1, "cannot reach rank 0", true);
	run_worker_error(r, 0, "out of memory", false);
	r->device_error = copy("GPU 0 fell off the bus");
	r->device_node = copy("n1");
	r->timed_out = r->final_failure = true;
	r->evicted = copy("node n1 was drained");
	ck_assert_ptr_nonnull(run_add_lost(r, &r->parts[0]));
	ck_assert(run_add_spare(r, "n3", slots));
	r->spares[0].worked = true;
	r->retries.record = (struct retry_record){.restarts = 1,
	                                          .node_failures = 2,
	                                          .busy_starts = 3,
	                                          .stalled = 4,
	                                          .delays = 5,
	                                          .delay = 6.5,
	                                          .checkpoint = 70,
	                                          .checkpoint_node = copy("n1"),
	                                          .checkpoint_before = 60,
	                                          .last_failure = copy("attempt 1: node n4 is down"),
	                                          .last_detail = copy("a line"),
	                                          .avoid = avoid,
	                                          .used = 8.5};
}

static size_t fields_of(const json_t *json)
{
	return json_object_size(json);
}

/* A controller that reads it writes the same again. */
START_TEST(all_of_an_attempt_is_kept)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *other = fixture_run(2, 1);
	_cleanup_json_ json_t *record = NULL, *again = NULL;
	struct error err = ERROR_INIT;

	record = json_object();
	json_decref(record);
	ck_assert_int_eq(run_under_way(r, &record), 0);
	ck_assert_ptr_null(record); /* whatever it was */
	fixture_place(r);
	fill(r);
	ck_assert_int_eq(run_under_way(r, &record), 0);
	/* All fields and the version of the format, but for the field that version 0.1.0 wrote. */
	ck_assert_uint_eq(fields_of(record), run_record_message.count);
	ck_assert_uint_eq(fields_of(json_object_get(record, "retries")), retry_record_message.count);
	ck_assert_uint_eq(fields_of(json_array_get(json_object_get(record, "parts"), 0)), 7);
	/* One that was there before is not beside it. */
	ck_assert(run_add_spare(other, "n9", &(const int){1}));
	ck_ok(run_set_under_way(other, record, &err), &err);
	ck_assert_int_eq(run_under_way(other, &again), 0);
	ck_assert_msg(json_equal(record, again), "%s\n%s", json_to_string(record), json_to_string(again));
	ck_assert_uint_eq(other->part_count, 2);
	ck_assert(!other->parts[0].acknowledged && !other->parts[1].ended);
	ck_assert_uint_eq(other->lost_count, 1);
	ck_assert_uint_eq(other->spare_count, 1);
}
END_TEST

/* Each of them where there is nothing else, too. */
START_TEST(a_single_fact_of_an_attempt_is_kept)
{
	enum {
		PART,
		TROUBLE,
		BOOT,
		LEASE,
		RANK_ERROR,
		DEVICE_ERROR,
		TIMED_OUT,
		EVICTED,
		LOST,
		SPARE,
		RETRIES,
		FACTS
	};
	const int slots[] = {5};

	for (int fact = 0; fact < FACTS; fact++) {
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1), *other = fixture_run(2, 1);
		_cleanup_json_ json_t *record = NULL, *again = NULL;
		struct error err = ERROR_INIT;

		fixture_place(r);
		fixture_place(other);
		run_clear_parts(other);
		r->parts[1].ended = fact == PART;
		r->parts[1].trouble = fact == TROUBLE ? copy("node n2 was shut down") : NULL;
		r->parts[1].boot = fact == BOOT ? copy("boot 2") : NULL;
		r->parts[1].lease = fact == LEASE ? 30 : 0;
		if (fact == RANK_ERROR)
			run_worker_error(r, 1, "out of memory", false);
		r->device_error = fact == DEVICE_ERROR ? copy("GPU 0 fell off the bus") : NULL;
		r->timed_out = fact == TIMED_OUT;
		r->evicted = fact == EVICTED ? copy("node n1 was drained") : NULL;
		ck_assert(fact != LOST || run_add_lost(r, &r->parts[0]));
		ck_assert(fact != SPARE || run_add_spare(r, "n3", slots));
		r->retries.record.restarts = fact == RETRIES;
		ck_assert_int_eq(run_under_way(r, &record), 0);
		ck_assert_msg(record, "fact %d", fact);
		/* Beside the version. */
		ck_assert_uint_eq(fields_of(record), 2);
		ck_ok(run_set_under_way(other, record, &err), &err);
		ck_ok(run_recover(other, 200, &err), &err);
		ck_assert_uint_eq(other->part_count, 2);
		ck_assert_int_eq(run_under_way(other, &again), 0);
		ck_assert_msg(json_equal(record, again), "fact %d", fact);
	}
}
END_TEST

/* A record that cannot be read leaves the run as it was. */
START_TEST(a_record_that_is_none_changes_nothing)
{
	static const char *const wrong[] = {"{\"parts\":[{\"node\":\"n1\"},{\"node\":2}]}",
	                                    "{\"parts\":[{\"node\":\"n1\"}],\"lost\":[{\"node\":\"n1\"}]}",
	                                    "{\"timed_out\":1}"};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_(run_freep) struct run *r = fixture_run(2, 1);
		_cleanup_json_ json_t *json = json_loads(wrong[i], 0, NULL);
		struct error err = ERROR_INIT;

		ck_assert_ptr_nonnull(json);
		ck_assert(run_add_spare(r, "n9", &(const int){1}));
		ck_assert_int_lt(run_set_under_way(r, json, &err), 0);
		ck_assert_str_ne(err.message, "");
		ck_assert(r->part_count == 0 && r->lost_count == 0 && !r->timed_out);
		ck_assert_uint_eq(r->spare_count, 1);
		ck_assert_str_eq(r->spares[0].node, "n9");
	}
}
END_TEST

/* What it has kept for itself stays, and so do its counts and what of it may go on somewhere. */
START_TEST(a_placement_begins_anew)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 1);

	fixture_place(r);
	fill(r);
	r->failed = r->busy = r->requeue = true;
	r->reason = copy("node n1 was shut down");
	r->detail = copy("a line");
	r->recovered = 90;
	r->exit_status = 7;
	r->ranks[0].state = RANK_EXITED;
	r->retries.at = 10;
	r->to_start = r->dirty = r->changed = false;
	fixture_place(r);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_int_eq(r->attempt, 2);
	ck_assert_double_eq(r->started, 100);
	ck_assert(!r->failed && !r->busy && !r->requeue && !r->final_failure && !r->timed_out);
	ck_assert(!r->evicted && !r->reason && !r->detail && !r->device_error && !r->device_node);
	ck_assert_uint_eq(r->rank_error_count, 0);
	ck_assert_ptr_null(run_find_rank_error(r, 0));
	ck_assert_double_eq(r->recovered, 0);
	ck_assert_int_eq(r->exit_status, -1);
	ck_assert(r->to_start && r->dirty && r->changed);
	ck_assert_uint_eq(r->rank_count, 2);
	ck_assert_int_eq(r->ranks[0].state, RANK_STARTING);
	ck_assert_uint_eq(r->part_count, 2);
	for (size_t i = 0; i < r->part_count; i++) {
		const struct run_part *p = &r->parts[i];

		ck_assert(!p->ended && !p->acknowledged && !p->running && !p->trouble && !p->boot);
		ck_assert(p->lease == 0 && p->clock_error == 0 && p->trouble_at == 0);
	}
	ck_assert(r->retries.at == 0 && r->retries.record.delay == 0);
	ck_assert_int_eq(r->retries.record.checkpoint_before, 70);
	ck_assert_int_eq(r->retries.record.restarts, 1);
	ck_assert_uint_eq(r->lost_count, 1);
	ck_assert_uint_eq(r->spare_count, 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("run record");
	TCase *c = tcase_create("run record");

	suite_add_tcase(s, c);
	tcase_add_test(c, all_of_an_attempt_is_kept);
	tcase_add_test(c, a_single_fact_of_an_attempt_is_kept);
	tcase_add_test(c, a_record_that_is_none_changes_nothing);
	tcase_add_test(c, a_placement_begins_anew);
	return unit_run(s);
}
