/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules of the cluster do where memory runs out: each allocation fails in turn, the call reports it,
 * and what it worked on is as it was before. */
#include <string.h>

#include "base/json.h"
#include "cluster/members.h"
#include "cluster/queue.h"
#include "cluster/rendezvous.h"
#include "cluster/scheduler.h"
#include "cluster/topology.h"
#include "cluster_fixture.h"
#include "failing_memory.h"

/* ---- runs ---- */

static int make_run(void *context, struct error *err)
{
	struct run *r = NULL;
	int code = run_new(context, &r, err);

	ck_assert_int_eq(r != NULL, code == 0);
	run_free(r);
	return code;
}

START_TEST(runs_are_made_whole_or_not)
{
	_cleanup_json_ json_t *json =
	    json_loads("{\"task\":\"command\",\"command\":[\"true\"],\"name\":\"x\",\"directory\":\"/tmp\","
	               "\"output\":{\"dir\":\"out\"},\"resources\":{\"hosts\":[\"n1\",\"n2\"]}}",
	               0, NULL);
	_cleanup_(run_config_freep) struct run_config *config = fixture_config(json);

	memory_runs_out(make_run, config);
}
END_TEST

/* Each time on two other nodes: nothing is left of a place where the run could not be put. */
static int place_run(void *context, struct error *err)
{
	static const int slots[] = {0, 1, 0, 1};
	static int times;
	struct run *r = context;
	int64_t attempt = r->attempt;
	char first[16], second[16], *const own[] = {first, second};
	int code;

	snprintf(first, sizeof(first), "a%d", ++times);
	snprintf(second, sizeof(second), "b%d", times);
	code = run_place(r, own, slots, 100, err);
	ck_assert_int_eq(r->attempt, attempt + (code == 0));
	ck_assert_int_eq(r->state, code == 0 ? RUN_STARTING : RUN_QUEUED);
	ck_assert_uint_eq(r->part_count, code == 0 ? 2 : 0);
	ck_assert(code == 0 || r->rank_count == 0);
	return code;
}

START_TEST(runs_are_placed_whole_or_not)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 2);

	if (_i == 1)
		r->one_per_node = true;
	memory_runs_out(place_run, r);
	ck_assert_uint_eq(r->rank_count, _i == 1 ? 2 : 4);
	ck_assert_uint_eq(r->part_count, 2);
}
END_TEST

static int add_lost(void *context, struct error *err)
{
	struct run *r = context;
	struct run_lost *lost = run_add_lost(r, &r->parts[0]);

	ck_assert_uint_eq(r->lost_count, lost ? 1 : 0);
	if (!lost)
		return -ENOMEM;
	ck_assert_str_eq(lost->record.node, "n1");
	ck_assert_str_eq(lost->record.boot, "b1");
	ck_assert(r->dirty);
	return 0;
}

static int add_spare(void *context, struct error *err)
{
	static const int slots[] = {3, 5};
	struct run *r = context;

	if (!run_add_spare(r, "n4", slots)) {
		ck_assert_uint_eq(r->spare_count, 0);
		return -ENOMEM;
	}
	ck_assert_uint_eq(r->spare_count, 1);
	ck_assert_str_eq(r->spares[0].node, "n4");
	ck_assert_uint_eq(r->spares[0].slot_count, 2);
	ck_assert_int_eq(r->spares[0].slots[1], 5);
	run_drop_spare(r, 0);
	ck_assert_uint_eq(r->spare_count, 0);
	return 0;
}

START_TEST(lost_parts_and_spares_are_there_whole_or_not)
{
	_cleanup_(run_freep) struct run *r = fixture_run(2, 2);

	fixture_place(r);
	r->parts[0].boot = strdup("b1");
	memory_runs_out(add_lost, r);
	run_clear_lost(r);
	memory_runs_out(add_spare, r);
}
END_TEST

/* Without memory it goes on where it is; only its reason may be missing. */
START_TEST(a_run_is_moved_or_not)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 1);
	unsigned flags = 0;

	fixture_place(r);
	for (long n = 1; !flags; n++) {
		memory_left = n;
		flags = run_evict(r, "node n1 was drained", 100);
		memory_left = 0;
		ck_assert_int_eq(r->requeue, flags != 0);
		ck_assert_int_eq(r->evicted != NULL, flags != 0);
		ck_assert_int_eq(r->state, flags ? RUN_STOPPING : RUN_STARTING);
	}
	ck_assert_str_eq(r->evicted, "node n1 was drained");
}
END_TEST

/* The error of a worker is lost then, and nothing else. */
START_TEST(the_error_of_a_worker_is_noted_or_not)
{
	_cleanup_(run_freep) struct run *r = fixture_run(1, 2);

	fixture_place(r);
	for (long n = 1; n == 1 || memory_refused; n++) {
		r->dirty = memory_refused = false;
		memory_left = n;
		run_worker_error(r, 1, "no data", true);
		memory_left = 0;
		ck_assert_int_eq(r->dirty, !memory_refused);
	}
	ck_assert_uint_eq(r->rank_error_count, 1);
	ck_assert_str_eq(r->rank_errors[0].worker, "no data");
	ck_assert_int_eq(r->rank_errors[0].rank, 1);
	ck_assert(r->rank_errors[0].lost_peer);
	/* The first one counts, and only of ranks that there are. */
	r->dirty = false;
	run_worker_error(r, 1, "later", false);
	run_worker_error(r, 2, "no such rank", false);
	run_worker_error(r, -1, "no such rank", false);
	ck_assert(!r->dirty);
	ck_assert_uint_eq(r->rank_error_count, 1);
	ck_assert_str_eq(r->rank_errors[0].worker, "no data");
}
END_TEST

static int push(void *context, struct error *err)
{
	struct queue q = {0};
	struct run *runs[20];
	size_t n = 0;
	int code = 0;

	for (; n < 20 && code == 0; n++) {
		long left = memory_left;

		memory_left = 0;
		runs[n] = fixture_run(1, 1);
		runs[n]->id = (int64_t)n + 1;
		memory_left = left;
		code = queue_push(&q, runs[n], err);
		ck_assert_uint_eq(q.count, code == 0 ? n + 1 : n);
		if (code < 0)
			run_free(runs[n]);
	}
	for (size_t i = 0; i < q.count; i++)
		ck_assert_ptr_eq(queue_find(&q, (int64_t)i + 1), runs[i]);
	queue_clear(&q);
	return code;
}

START_TEST(a_queue_grows_or_not)
{
	struct queue q = {0};
	struct run *r = fixture_run(1, 1);
	struct error err = ERROR_INIT;

	memory_runs_out(push, NULL);
	ck_ok(queue_push(&q, r, &err), &err);
	ck_fails(queue_push(&q, r, &err), &err, "run 1 comes after a newer one");
	ck_assert_uint_eq(q.count, 1);
	queue_clear(&q);
}
END_TEST

/* Runs on a node are found whatever memory is missing for their index. */
START_TEST(runs_are_found_by_node_without_memory)
{
	bool refused = true;

	for (long n = 1; refused; n++) {
		struct queue q = {0};
		struct error err = ERROR_INIT;

		for (int64_t id = 1; id <= 12; id++) {
			struct run *r = fixture_run(2, 1);

			r->id = id;
			ck_ok(queue_push(&q, r, &err), &err);
			fixture_place(r);
		}
		memory_refused = false;
		memory_left = n;
		for (size_t i = 0; i < q.count; i++)
			queue_note_placed(&q, q.list[i]);
		memory_left = 0;
		refused = memory_refused;
		for (struct run *r = NULL; q.count > 1; run_free(queue_take(&q, q.list[0]->id))) {
			r = queue_next_on(&q, "n2", 0);
			ck_assert_ptr_eq(r, q.list[0]);
			ck_assert_ptr_eq(queue_next_on(&q, "n2", r->id), q.list[1]);
			ck_assert_ptr_null(queue_next_on(&q, "n2", q.list[q.count - 1]->id));
			ck_assert_ptr_null(queue_next_on(&q, "n3", 0));
		}
		queue_clear(&q);
	}
}
END_TEST

static int set_hosts(void *context, struct error *err)
{
	struct members *m = NULL;
	int code = members_create(100, &m, err);

	if (code == 0)
		code = members_set_hosts(m, context, 29600, 100, NULL, NULL, err);
	if (code == 0) {
		ck_assert_uint_eq(members_count(m), 2);
		ck_assert_str_eq(members_get(m, 1)->address, "10.0.0.2");
	}
	members_destroy(m);
	return code;
}

/* With as many members as make their index grow. */
static int add_removed(void *context, struct error *err)
{
	struct members *m = NULL;
	int code = members_create(100, &m, err);

	if (code == 0)
		code = members_set_hosts(m, context, 29600, 100, NULL, NULL, err);
	for (int i = 0; i < 40 && code == 0; i++) {
		char name[16];

		snprintf(name, sizeof(name), "gone%d", i);
		code = members_add_removed(m, name, 29600, err);
		ck_assert_uint_eq(members_count(m), 2 + i + (code == 0));
		ck_assert_int_eq(members_find(m, name) != NULL, code == 0);
	}
	members_destroy(m);
	return code;
}

START_TEST(members_are_made_whole_or_not)
{
	static const char text[] = "n1 slots=2 ssd fast\nn2 addr=10.0.0.2\n";
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	memory_runs_out(set_hosts, hosts);
	memory_runs_out(add_removed, hosts);
}
END_TEST

/* ---- places ---- */

static int schedule_runs(void *context, struct error *err)
{
	bool taken[2][4] = {{true}, {false}};
	int64_t kept[4] = {0};
	struct sched_node list[] = {
	    {.name = "n1", .up = true, .slots = 4, .taken = taken[0], .kind = SLOT_CPU},
	    {.name = "n2", .up = true, .slots = 4, .taken = taken[1], .kept_for = kept, .kind = SLOT_CPU},
	    {.name = NULL}};
	char *avoid[] = {(char *)"n1", NULL};
	struct sched_run runs[] = {
	    {.id = 1, .nodes = 1, .most = 2, .per_node = 2, .kind = SLOT_CPU, .avoid = avoid},
	    {.id = 2, .nodes = 2, .most = 2, .per_node = 1, .kind = SLOT_CPU},
	    {.id = 3, .nodes = 1, .most = 1, .kind = SLOT_CPU}};
	int code;

	code = schedule(list, 2, runs, ARRAY_SIZE(runs), err);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
		ck_assert(code < 0 || runs[i].placed == (i < 2));
		if (!runs[i].placed)
			continue;
		free(runs[i].chosen);
		free(runs[i].slots);
	}
	return code;
}

START_TEST(runs_get_all_their_places_or_an_error)
{
	memory_runs_out(schedule_runs, NULL);
}
END_TEST

/* Any free slots will do then. */
START_TEST(slots_are_chosen_without_memory)
{
	enum { SLOTS = 20, WANT = 3 };
	unsigned char links[SLOTS * SLOTS];
	bool taken[SLOTS] = {true, false, true};
	int chosen[WANT];

	memset(links, 1, sizeof(links));
	for (int i = 10; i < 13; i++)
		for (int k = 10; k < 13; k++)
			links[i * SLOTS + k] = 9;
	for (long n = 1; n == 1 || memory_refused; n++) {
		memory_refused = false;
		memory_left = n;
		topology_choose(links, SLOTS, taken, WANT, chosen);
		memory_left = 0;
		for (int i = 0; i < WANT; i++) {
			ck_assert_int_ge(chosen[i], 0);
			ck_assert_int_lt(chosen[i], SLOTS);
			ck_assert(!taken[chosen[i]]);
			for (int k = 0; k < i; k++)
				ck_assert_int_ne(chosen[i], chosen[k]);
		}
	}
	for (int i = 0; i < WANT; i++)
		ck_assert_int_eq(chosen[i], 10 + i);
}
END_TEST

/* More slots than rings are looked for in: each next to the one that it is linked best with. */
START_TEST(a_long_row_of_slots_follows_its_links)
{
	enum { SLOTS = 16 };
	static const int row[SLOTS] = {0, 5, 10, 15, 4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11};
	unsigned char links[SLOTS * SLOTS];
	bool taken[SLOTS] = {false};
	int chosen[SLOTS];

	memset(links, 1, sizeof(links));
	for (int i = 0; i + 1 < SLOTS; i++)
		links[row[i] * SLOTS + row[i + 1]] = links[row[i + 1] * SLOTS + row[i]] = 9;
	topology_choose(links, SLOTS, taken, SLOTS, chosen);
	for (int i = 0; i < SLOTS; i++)
		ck_assert_int_eq(chosen[i], row[i]);
}
END_TEST

/* ---- rendezvous ---- */

static int gone;

static void on_value(void *context, const void *value, size_t len)
{
	gone += value == NULL;
}

static int meet(void *context, struct error *err)
{
	_cleanup_(rendezvous_destroyp) struct rendezvous *r = NULL;
	struct rendezvous_waiter *w = NULL;
	const void *value;
	size_t len;
	int code = rendezvous_create(&r, err);

	if (code == 0)
		code = rendezvous_put(r, 1, 1, 1 << 20, "key", "value", 5, err);
	if (code == 0)
		code = rendezvous_put(r, 1, 1, 1 << 20, "key", "longer value", 12, err);
	if (code == 0)
		code = rendezvous_wait(r, 1, 1, "other", on_value, NULL, &w, err);
	if (code < 0)
		return code;
	ck_ok(rendezvous_get(r, 1, 1, "key", &value, &len, err), err);
	ck_assert_uint_eq(len, 12);
	ck_assert_mem_eq(value, "longer value", 12);
	return 0;
}

START_TEST(a_rendezvous_has_a_value_or_not)
{
	memory_runs_out(meet, NULL);
	ck_assert_int_eq(gone, 1); /* the waiter of the one that had memory */
}
END_TEST

/* More keys than there are buckets, and keys that are none. */
START_TEST(keys_do_not_mix)
{
	enum { KEYS = 2000 };
	_cleanup_(rendezvous_destroyp) struct rendezvous *r = NULL;
	_cleanup_free_ char *bad = calloc(1, RENDEZVOUS_KEY_MAX + 2);
	struct rendezvous_waiter *w = NULL;
	struct error err = ERROR_INIT;
	const void *value;
	size_t len;

	ck_ok(rendezvous_create(&r, &err), &err);
	for (int i = 0; i < KEYS; i++) {
		char key[16];

		snprintf(key, sizeof(key), "k%d", i);
		ck_ok(rendezvous_put(r, 1, 2, 1 << 20, key, &i, sizeof(i), &err), &err);
	}
	for (int i = 0; i < KEYS; i++) {
		char key[16];

		snprintf(key, sizeof(key), "k%d", i);
		ck_ok(rendezvous_get(r, 1, 2, key, &value, &len, &err), &err);
		ck_assert_uint_eq(len, sizeof(i));
		ck_assert_mem_eq(value, &i, sizeof(i));
	}
	ck_assert_int_eq(rendezvous_get(r, 1, 1, "k1", &value, &len, &err), -ESTALE);
	ck_assert_int_eq(rendezvous_wait(r, 1, 1, "k1", on_value, NULL, &w, &err), -ESTALE);
	ck_assert_int_eq(rendezvous_get(r, 1, 2, "", &value, &len, &err), -EINVAL);
	memset(bad, 'k', RENDEZVOUS_KEY_MAX + 1);
	ck_assert_int_eq(rendezvous_get(r, 1, 2, bad, &value, &len, &err), -EINVAL);
	ck_assert_int_eq(rendezvous_wait(r, 1, 2, bad, on_value, NULL, &w, &err), -EINVAL);
	bad[RENDEZVOUS_KEY_MAX] = '\0';
	ck_assert_int_eq(rendezvous_get(r, 1, 2, bad, &value, &len, &err), -ENOENT);
	ck_assert_ptr_null(w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cluster memory");
	TCase *runs = tcase_create("runs"), *places = tcase_create("places"),
	      *rendezvous = tcase_create("rendezvous");

	tcase_add_test(runs, runs_are_made_whole_or_not);
	tcase_add_loop_test(runs, runs_are_placed_whole_or_not, 0, 2);
	tcase_add_test(runs, lost_parts_and_spares_are_there_whole_or_not);
	tcase_add_test(runs, a_run_is_moved_or_not);
	tcase_add_test(runs, the_error_of_a_worker_is_noted_or_not);
	tcase_add_test(runs, a_queue_grows_or_not);
	tcase_add_test(runs, runs_are_found_by_node_without_memory);
	tcase_add_test(runs, members_are_made_whole_or_not);
	suite_add_tcase(s, runs);
	tcase_add_test(places, runs_get_all_their_places_or_an_error);
	tcase_add_test(places, slots_are_chosen_without_memory);
	tcase_add_test(places, a_long_row_of_slots_follows_its_links);
	suite_add_tcase(s, places);
	tcase_add_test(rendezvous, a_rendezvous_has_a_value_or_not);
	tcase_add_test(rendezvous, keys_do_not_mix);
	suite_add_tcase(s, rendezvous);
	return unit_run(s);
}
