/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the runs that have not ended. */
#include "cluster/queue.h"
#include "cluster_fixture.h"

static struct run *run_with_id(int64_t id)
{
	struct run *r = fixture_run(1, 1);

	r->id = id;
	return r;
}

START_TEST(runs_are_found_by_id_and_taken_out)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	static const int64_t out[] = {42, 2, 100, 98};

	for (int i = 1; i <= 50; i++)
		ck_ok(queue_push(&q, run_with_id(i * 2), &err), &err);
	for (int64_t id = 0; id <= 102; id++) {
		const struct run *r = queue_find(&q, id);

		ck_assert_int_eq(r ? r->id : 0, id % 2 == 0 && id >= 2 && id <= 100 ? id : 0);
	}
	for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++) {
		struct run *r = queue_take(&q, out[i]);

		ck_assert_int_eq(r->id, out[i]);
		run_free(r);
		ck_assert_ptr_null(queue_find(&q, out[i]));
		ck_assert_ptr_null(queue_take(&q, out[i]));
		ck_assert_uint_eq(q.count, 49 - i);
	}
	ck_assert_ptr_null(queue_take(&q, 43));
	for (size_t i = 1; i < q.count; i++)
		ck_assert_int_lt(q.list[i - 1]->id, q.list[i]->id);
	queue_clear(&q);
	ck_assert_uint_eq(q.count, 0);
	ck_assert_ptr_null(queue_find(&q, 4));
}
END_TEST

/* Those with parts, or lost ones, are listed apart, in the same order. */
START_TEST(placed_runs_are_listed_apart)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	static const int64_t noted[] = {40, 7, 23, 7, 1}, listed[] = {1, 7, 23, 40};

	for (int i = 1; i <= 50; i++)
		ck_ok(queue_push(&q, run_with_id(i), &err), &err);
	ck_assert_uint_eq(q.placed_count, 0);
	for (size_t i = 0; i < sizeof(noted) / sizeof(noted[0]); i++)
		queue_note_placed(&q, queue_find(&q, noted[i]));
	ck_assert_uint_eq(q.placed_count, 4);
	for (size_t i = 0; i < q.placed_count; i++)
		ck_assert_int_eq(q.placed[i]->id, listed[i]);
	run_free(queue_take(&q, 7));
	ck_assert_uint_eq(q.placed_count, 3);
	ck_assert_int_eq(q.placed[1]->id, 23);
	fixture_place(queue_find(&q, 23));
	queue_drop_unplaced(&q);
	ck_assert_uint_eq(q.placed_count, 1);
	ck_assert_int_eq(q.placed[0]->id, 23);
	run_clear_parts(q.placed[0]);
	queue_drop_unplaced(&q);
	ck_assert_uint_eq(q.placed_count, 0);
	queue_clear(&q);
}
END_TEST

/* One that comes out of the store in the middle of an attempt is in both lists. */
START_TEST(a_run_with_parts_comes_placed)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	struct run *r = run_with_id(3);

	fixture_place(r);
	ck_ok(queue_push(&q, r, &err), &err);
	ck_assert_uint_eq(q.placed_count, 1);
	ck_assert_ptr_eq(queue_next_on(&q, "n1", 0), r);
	queue_clear(&q);
}
END_TEST

/* The ids of the runs that have something on the node, as "1 3 ". */
static const char *runs_on(struct queue *q, const char *node)
{
	static char text[100];
	struct run *r = NULL;

	text[0] = '\0';
	while ((r = queue_next_on(q, node, r ? r->id : 0)))
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%lld ", (long long)r->id);
	return text;
}

static void place_on(struct run *r, const char *node)
{
	char *const names[] = {(char *)node};
	static const int slots[] = {0};
	struct error err = ERROR_INIT;

	ck_ok(run_place(r, names, slots, 100, &err), &err);
}

/* With a part, or with one that is lost; who has left the node is not found there any more. */
START_TEST(runs_are_found_by_node)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	static const struct {
		int64_t id;
		const char *node;
	} placed[] = {{4, "n2"}, {1, "n1"}, {7, "n1"}, {3, "n1"}, {9, "n2"}};

	ck_assert_str_eq(runs_on(&q, "n1"), "");
	for (int i = 1; i <= 9; i++)
		ck_ok(queue_push(&q, run_with_id(i), &err), &err);
	for (size_t i = 0; i < sizeof(placed) / sizeof(placed[0]); i++) {
		struct run *r = queue_find(&q, placed[i].id);

		place_on(r, placed[i].node);
		queue_note_placed(&q, r);
		queue_note_placed(&q, r);
	}
	ck_assert_str_eq(runs_on(&q, "n1"), "1 3 7 ");
	ck_assert_str_eq(runs_on(&q, "N2"), "4 9 ");
	ck_assert_str_eq(runs_on(&q, "n2"), "4 9 ");
	ck_assert_str_eq(runs_on(&q, "n3"), "");
	ck_assert_ptr_eq(queue_next_on(&q, "n1", 3), queue_find(&q, 7));
	ck_assert_ptr_null(queue_next_on(&q, "n1", 7));
	/* Run 3 goes on elsewhere, and what it had on n1 may go on there. */
	ck_assert_ptr_nonnull(run_add_lost(queue_find(&q, 3), &queue_find(&q, 3)->parts[0]));
	queue_note_placed_on(&q, queue_find(&q, 3), "n1");
	run_clear_parts(queue_find(&q, 3));
	queue_find(&q, 3)->state = RUN_QUEUED;
	place_on(queue_find(&q, 3), "n3");
	queue_note_placed(&q, queue_find(&q, 3));
	run_free(queue_take(&q, 7));
	ck_assert_str_eq(runs_on(&q, "n1"), "1 3 ");
	ck_assert_str_eq(runs_on(&q, "n3"), "3 ");
	run_remove_lost(queue_find(&q, 3), &queue_find(&q, 3)->lost[0]);
	run_clear_parts(queue_find(&q, 1));
	ck_assert_str_eq(runs_on(&q, "n1"), "");
	run_clear_parts(queue_find(&q, 4));
	queue_find(&q, 4)->state = RUN_QUEUED;
	place_on(queue_find(&q, 4), "n1");
	queue_note_placed(&q, queue_find(&q, 4));
	ck_assert_str_eq(runs_on(&q, "n1"), "4 ");
	ck_assert_str_eq(runs_on(&q, "n2"), "9 ");
	queue_clear(&q);
	ck_assert_str_eq(runs_on(&q, "n1"), "");
}
END_TEST

/* An id that is used already, or below the newest one, is refused; the caller keeps the run. */
START_TEST(runs_come_in_the_order_of_their_ids)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	static const int64_t late[] = {5, 4, 1};

	ck_ok(queue_push(&q, run_with_id(3), &err), &err);
	ck_ok(queue_push(&q, run_with_id(5), &err), &err);
	for (size_t i = 0; i < sizeof(late) / sizeof(late[0]); i++) {
		_cleanup_(run_freep) struct run *r = run_with_id(late[i]);

		ck_assert_int_lt(queue_push(&q, r, &err), 0);
		ck_assert_uint_eq(q.count, 2);
	}
	queue_clear(&q);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("queue");
	TCase *c = tcase_create("queue");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, runs_are_found_by_id_and_taken_out);
	tcase_add_test(c, runs_come_in_the_order_of_their_ids);
	tcase_add_test(c, placed_runs_are_listed_apart);
	tcase_add_test(c, a_run_with_parts_comes_placed);
	tcase_add_test(c, runs_are_found_by_node);
	return unit_run(s);
}
