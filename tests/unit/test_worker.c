/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a run have to agree on, between threads: the same inputs (agreement.h) and one
 * precision. */
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "../engine/thread_comm.h"
#include "base/str.h"
#include "engine/checkpoint/agreement.h"
#include "worker/precision.h"

#define RANKS 4

/* A device with memory, and bf16 and fp8 or not. */
struct device {
	bool bf16, fp8;
};

bool device_supports_fp8(const struct device *dev)
{
	return dev->fp8;
}

const char *device_describe(const struct device *dev)
{
	return "a device";
}

bool device_supports(const struct device *dev, enum dtype type)
{
	return type == DTYPE_F32 || (type == DTYPE_BF16 && dev->bf16);
}

struct rank {
	pthread_t thread;
	struct comm *comm;
	struct device device;
	/* agreement */
	struct agreement_item items[3];
	size_t n;
	char node[16];
	/* precision */
	const char *wanted, *checkpoint;
	struct precision precision;

	int result;
	struct error err;
};

static void run_ranks(struct rank *ranks, int n, void *(*body)(void *))
{
	struct comm *comms[RANKS];

	thread_comm_create(n, comms);
	for (int r = 0; r < n; r++) {
		ranks[r].comm = comms[r];
		ranks[r].err = (struct error)ERROR_INIT;
		ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, body, &ranks[r]), 0);
	}
	for (int r = 0; r < n; r++)
		pthread_join(ranks[r].thread, NULL);
	for (int r = 0; r < n; r++)
		comm_destroy(comms[r]);
}

static void *check_agreement(void *context)
{
	struct rank *r = context;

	r->result = agreement_check(r->items, r->n, &r->device, r->comm, r->node, "copy it", &r->err);
	return NULL;
}

static void make_items(struct rank *ranks)
{
	memset(ranks, 0, RANKS * sizeof(*ranks));
	for (int r = 0; r < RANKS; r++) {
		snprintf(ranks[r].node, sizeof(ranks[r].node), "n%d", r + 1);
		ranks[r].n = 3;
		ranks[r].items[0] = (struct agreement_item){"tensor a", "/m/1", 11};
		ranks[r].items[1] = (struct agreement_item){"tensor b", "/m/1", 22};
		ranks[r].items[2] = (struct agreement_item){"tensor c", "/m/2", 33};
	}
}

static void all_say(struct rank *ranks, const char *words)
{
	run_ranks(ranks, RANKS, check_agreement);
	for (int r = 0; r < RANKS; r++) {
		ck_assert_int_eq(ranks[r].result, words ? -EINVAL : 0);
		if (words)
			ck_assert_str_eq(ranks[r].err.message, words);
	}
}

START_TEST(every_rank_names_the_one_that_differs)
{
	struct rank ranks[RANKS];

	make_items(ranks);
	all_say(ranks, NULL);
	ck_assert_int_eq(agreement_check(ranks[0].items, 3, NULL, NULL, "n1", "", NULL), 0);
	ranks[2].items[1].digest++;
	ranks[2].items[2].digest++;
	all_say(ranks, "node n3, rank 2: /m/1: tensor b is not what rank 0 on node n1 has; copy it");
	/* Rank 0 has no preference: the value of the majority counts. */
	make_items(ranks);
	ranks[0].items[2].digest = 0;
	all_say(ranks, "node n1, rank 0: /m/2: tensor c is not what rank 1 on node n2 has; copy it");
	make_items(ranks);
	ranks[2].items[0].digest = ranks[3].items[0].digest = 5;
	all_say(ranks, "node n3, rank 2: /m/1: tensor a is not what rank 0 on node n1 has; copy it");
	make_items(ranks);
	ranks[3].n = 2;
	all_say(ranks, "node n4, rank 3 has 2 parts of the model where rank 0 on node n1 has 3; copy it");
	make_items(ranks);
	ranks[0].n = 2;
	all_say(ranks, "node n1, rank 0 has 2 parts of the model where rank 1 on node n2 has 3; copy it");
}
END_TEST

/* An error cuts what is too long for it; the remedy stands last. */
START_TEST(long_names_leave_the_remedy)
{
	struct rank ranks[RANKS];
	char path[3000], what[500];

	memset(path, 'd', sizeof(path));
	memset(what, 'w', sizeof(what));
	memcpy(path + sizeof(path) - 8, "/x/file", 8);
	what[sizeof(what) - 1] = '\0';
	make_items(ranks);
	for (int r = 0; r < RANKS; r++) {
		ranks[r].items[1].file = path;
		ranks[r].items[1].what = what;
	}
	ranks[2].items[1].digest++;
	run_ranks(ranks, RANKS, check_agreement);
	for (int r = 0; r < RANKS; r++) {
		ck_assert_int_eq(ranks[r].result, -EINVAL);
		ck_assert(str_starts(ranks[r].err.message, "node n3, rank 2: ..."));
		ck_assert_ptr_nonnull(strstr(ranks[r].err.message, "/x/file: www"));
		ck_assert(str_ends(ranks[r].err.message, " is not what rank 0 on node n1 has; copy it"));
	}
}
END_TEST

static void *choose(void *context)
{
	struct rank *r = context;

	r->result = precision_choose(r->wanted, r->checkpoint, &r->device, r->comm, &r->precision, &r->err);
	return NULL;
}

START_TEST(all_ranks_take_one_precision)
{
	static const struct {
		const char *wanted, *checkpoint;
		bool bf16[RANKS];
		enum dtype type;
		const char *words;
	} cases[] = {
	    {"auto",
	     NULL,
	     {true, true, true, true},
	     DTYPE_BF16,
	     "bf16 (auto: every rank's device multiplies it)"},
	    {"auto",
	     NULL,
	     {true, true, false, true},
	     DTYPE_F32,
	     "fp32 (auto: 1 rank has no bf16 arithmetic)"},
	    {"auto", NULL, {false}, DTYPE_F32, "fp32 (auto: 4 ranks have no bf16 arithmetic)"},
	    {"auto", "fp32", {true, true, true, true}, DTYPE_F32, "fp32 (auto: as the checkpoint)"},
	    {"auto", "bf16", {false}, DTYPE_BF16, "bf16 (auto: as the checkpoint)"},
	    {"bf16", "fp32", {false}, DTYPE_BF16, "bf16"},
	    {"fp32", "bf16", {true, true, true, true}, DTYPE_F32, "fp32"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct rank ranks[RANKS] = {0};
		char text[96];

		for (int r = 0; r < RANKS; r++) {
			ranks[r].wanted = cases[i].wanted;
			ranks[r].checkpoint = r == 0 ? cases[i].checkpoint : NULL;
			ranks[r].device.bf16 = cases[i].bf16[r];
		}
		run_ranks(ranks, RANKS, choose);
		for (int r = 0; r < RANKS; r++) {
			ck_assert_int_eq(ranks[r].result, 0);
			ck_assert_int_eq(ranks[r].precision.type, cases[i].type);
			ck_assert_str_eq(precision_describe(text, sizeof(text), &ranks[r].precision),
			                 cases[i].words);
		}
	}
}
END_TEST

START_TEST(fp8_is_given_alone)
{
	struct device fp8 = {.bf16 = true, .fp8 = true}, bf16 = {.bf16 = true};
	struct precision p;
	struct error err = ERROR_INIT;
	char text[96];

	ck_ok(precision_choose("fp8", "bf16", &fp8, NULL, &p, &err), &err);
	ck_assert(p.fp8 && p.type == DTYPE_BF16);
	ck_assert_str_eq(precision_label(&p), "fp8");
	ck_assert_str_eq(precision_describe(text, sizeof(text), &p), "fp8");
	ck_assert_int_eq(precision_choose("fp8", NULL, &bf16, NULL, &p, &err), -EOPNOTSUPP);
	ck_assert_str_eq(err.message,
	                 "train.precision = \"fp8\": a device has no fp8 arithmetic; bf16 works");
	/* A checkpoint that was made with it goes on in bf16, and no device has it chosen. */
	ck_ok(precision_choose("auto", "fp8", &fp8, NULL, &p, &err), &err);
	ck_assert_str_eq(precision_describe(text, sizeof(text), &p), "bf16 (auto: as the checkpoint)");
	ck_ok(precision_choose("auto", NULL, &fp8, NULL, &p, &err), &err);
	ck_assert(!p.fp8 && p.type == DTYPE_BF16);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("worker");
	TCase *t = tcase_create("worker");

	tcase_add_test(t, every_rank_names_the_one_that_differs);
	tcase_add_test(t, long_names_leave_the_remedy);
	tcase_add_test(t, all_ranks_take_one_precision);
	tcase_add_test(t, fp8_is_given_alone);
	suite_add_tcase(s, t);
	return unit_run(s);
}
