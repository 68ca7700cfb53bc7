/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker reads of its environment. */
#include <errno.h>
#include <stdlib.h>

#include "unit.h"
#include "worker/environment.h"

static void setup(void)
{
	clearenv();
	putenv((char *)"DTRAIN_CONFIG=/c.json");
}

START_TEST(a_rank_of_several_nodes)
{
	static const char *const set[] = {
	    "RANK=6",
	    "WORLD_SIZE=9",
	    "LOCAL_RANK=1",
	    "LOCAL_WORLD_SIZE=5",
	    "DTRAIN_DEVICE=3",
	    "DTRAIN_RUN_ID=12",
	    "DTRAIN_ATTEMPT=2",
	    "DTRAIN_EPOCH=7",
	    "DTRAIN_CHECKPOINT=400",
	    "DTRAIN_SOCKET=/s",
	    "DTRAIN_LEASE=/l",
	    "TORCHELASTIC_ERROR_FILE=/e",
	    "DTRAIN_CLUSTER=c",
	    "DTRAIN_CHECKPOINT_NODE=n2",
	    "DTRAIN_NODE=n1",
	    "DTRAIN_RENDEZVOUS_DIR=/r",
	};
	struct error err = ERROR_INIT;
	struct environment e;

	for (size_t i = 0; i < sizeof(set) / sizeof(*set); i++)
		putenv((char *)set[i]);
	ck_ok(environment_read(&e, &err), &err);
	ck_assert_int_eq(e.rank, 6);
	ck_assert_int_eq(e.world_size, 9);
	ck_assert_int_eq(e.local_world_size, 5);
	ck_assert_int_eq(e.device, 3);
	ck_assert_int_eq(e.attempt, 2);
	ck_assert_int_eq(e.epoch, 7);
	ck_assert_int_eq(e.checkpoint, 400);
	ck_assert_str_eq(e.config, "/c.json");
	ck_assert_str_eq(e.run_id, "12");
	ck_assert_str_eq(e.socket, "/s");
	ck_assert_str_eq(e.lease, "/l");
	ck_assert_str_eq(e.error_file, "/e");
	ck_assert_str_eq(e.cluster, "c");
	ck_assert_str_eq(e.checkpoint_node, "n2");
	ck_assert_str_eq(e.node, "n1");
	ck_assert_str_eq(e.rendezvous_dir, "/r");
	/* Without DTRAIN_DEVICE each rank of a node has the GPU of its number there. */
	unsetenv("DTRAIN_DEVICE");
	ck_ok(environment_read(&e, &err), &err);
	ck_assert_int_eq(e.device, 1);
}
END_TEST

START_TEST(what_is_not_set)
{
	struct error err = ERROR_INIT;
	struct environment e;

	putenv((char *)"DTRAIN_NODE=");
	putenv((char *)"DTRAIN_LEASE=");
	ck_ok(environment_read(&e, &err), &err);
	ck_assert_int_eq(e.rank, 0);
	ck_assert_int_eq(e.world_size, 1);
	ck_assert_int_eq(e.local_world_size, 0);
	ck_assert_int_eq(e.device, 0);
	ck_assert_int_eq(e.attempt, 1);
	ck_assert_int_eq(e.epoch, 0);
	ck_assert_int_eq(e.checkpoint, 0);
	ck_assert_ptr_null(e.run_id);
	ck_assert_ptr_null(e.socket);
	ck_assert_ptr_null(e.lease);
	ck_assert_ptr_eq(e.node, e.host);
	ck_assert_str_ne(e.host, "");
}
END_TEST

static const struct {
	const char *entries[3], *words;
} wrong[] = {
    {{"WORLD_SIZE=0"}, "WORLD_SIZE=0 in the environment: expected a number from 1 to 1048576"},
    {{"WORLD_SIZE=2", "RANK=2"}, "RANK=2 in the environment: expected a number from 0 to 1"},
    {{"WORLD_SIZE=2", "LOCAL_RANK=2"}, "LOCAL_RANK=2 in the environment: expected a number from 0 to 1"},
    {{"LOCAL_WORLD_SIZE=2"}, "LOCAL_WORLD_SIZE=2 in the environment: expected a number from 1 to 1"},
    {{"DTRAIN_DEVICE=x"}, "DTRAIN_DEVICE=x in the environment: expected a number from 0 to 4096"},
    {{"DTRAIN_CONFIG="}, "DTRAIN_CONFIG is not set"},
    {{"DTRAIN_SOCKET=/s"}, "DTRAIN_SOCKET is set, but DTRAIN_RUN_ID is not"},
    {{"WORLD_SIZE=2"}, "WORLD_SIZE=2 without DTRAIN_SOCKET"},
};

START_TEST(what_is_wrong_is_named)
{
	struct error err = ERROR_INIT;
	struct environment e;
	int r;

	for (size_t i = 0; i < 3 && wrong[_i].entries[i]; i++)
		putenv((char *)wrong[_i].entries[i]);
	r = environment_read(&e, &err);
	ck_fails(r, &err, wrong[_i].words);
	ck_assert_int_eq(r, -EINVAL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("worker environment");
	TCase *t = tcase_create("worker environment");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, a_rank_of_several_nodes);
	tcase_add_test(t, what_is_not_set);
	tcase_add_loop_test(t, what_is_wrong_is_named, 0, sizeof(wrong) / sizeof(*wrong));
	suite_add_tcase(s, t);
	return unit_run(s);
}
