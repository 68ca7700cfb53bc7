/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the runs that have not ended. */
#include "cluster/queue.h"
#include "cluster_fixture.h"

START_TEST(runs_are_found_by_id_and_taken_out)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	struct run *r;

	for (int i = 1; i <= 50; i++) {
		r = fixture_run(1, 1);
		r->id = i * 2;
		ck_ok(queue_push(&q, r, &err), &err);
	}
	ck_assert_int_eq(queue_find(&q, 42)->id, 42);
	ck_assert_ptr_null(queue_find(&q, 43));
	r = queue_take(&q, 42);
	ck_assert_ptr_null(queue_find(&q, 42));
	ck_assert_uint_eq(q.count, 49);
	ck_assert_int_lt(queue_push(&q, r, &err), 0);
	run_free(r);
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
	return unit_run(s);
}
