/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A check of leases and attempts: random histories of a cluster in simulated time (controller_bed.h), with a
 * network that loses, repeats and delays messages, nodes that are cut off or restarted, a controller that
 * restarts and crashes, nodes that are drained, time limits, and clocks that differ. After each event:
 *
 *     no run has ranks of two attempts: at most one of them can publish
 *     no slot of a node has two attempts
 *     no slot that is kept for a run is kept for, or has ranks of, another one
 *
 * and in the end, once everything works again, each run that was acknowledged has ended.
 *
 * SEED=N repeats a history that has failed; STEPS=1000000 makes the histories longer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "controller/nodes.h"
#include "controller/runs.h"
#include "controller_bed_internal.h"

enum { RUNS = 12 };

struct history {
	struct chaos chaos, dice; /* for the network, and for what happens */
	int64_t runs[RUNS];       /* acknowledged, and not known to have ended; 0: none */
	size_t most;              /* runs at a time: with few of them some find room to grow */
	int64_t submitted, ended;
	unsigned seed;
};

static int roll(struct history *h, int sides)
{
	return (int)(rand_r(&h->dice.state) / (RAND_MAX + 1.0) * sides);
}

static const struct attempt *running(const struct node *n, size_t i)
{
	return n->attempts[i].state == RUNNING ? &n->attempts[i] : NULL;
}

static void check_slots(const struct bed *b, const struct history *h, const struct node *n,
                        const struct attempt *a)
{
	for (size_t i = 0; i < ATTEMPTS; i++) {
		const struct attempt *other = running(n, i);

		for (size_t k = 0; other && other != a && k < a->ranks * other->ranks; k++)
			ck_assert_msg(a->slot[k / other->ranks] != other->slot[k % other->ranks],
			              "seed %u, %.3f s: a slot of %s has runs %lld and %lld", h->seed, b->now,
			              n->name, (long long)a->run, (long long)other->run);
	}
}

static void check_spares(struct bed *b, const struct history *h);

static void check(struct bed *b, void *context)
{
	const struct history *h = context;
	struct {
		int64_t run, attempt;
		const char *node;
	} seen[NODES * SLOTS];
	size_t count = 0;

	for (size_t i = 0; i < b->node_count; i++)
		for (size_t k = 0; k < ATTEMPTS; k++) {
			const struct attempt *a = running(&b->nodes[i], k);
			size_t s = 0;

			if (!a)
				continue;
			check_slots(b, h, &b->nodes[i], a);
			while (s < count && seen[s].run != a->run)
				s++;
			if (s == count) {
				ck_assert_uint_lt(count, NODES * SLOTS);
				seen[count].run = a->run;
				seen[count].attempt = a->attempt;
				seen[count++].node = b->nodes[i].name;
			}
			ck_assert_msg(seen[s].attempt == a->attempt,
			              "seed %u, %.3f s: run %lld has attempt %lld on %s and %lld on %s",
			              h->seed, b->now, (long long)a->run, (long long)seen[s].attempt,
			              seen[s].node, (long long)a->attempt, b->nodes[i].name);
		}
	check_spares(b, h);
}

/* The spares, as the controller has them. */
static void check_spares(struct bed *b, const struct history *h)
{
	struct controller *c = bed_controller(b);
	struct {
		const char *node;
		int64_t slot, run;
	} kept[2 * NODES * SLOTS];
	size_t count = 0;

	for (size_t i = 0; i < controller_active_count(c); i++) {
		const struct run *r = controller_active_run(c, i);

		for (size_t k = 0; k < r->spare_count; k++)
			for (size_t s = 0; s < r->spares[k].slot_count; s++, count++) {
				ck_assert_uint_lt(count, ARRAY_SIZE(kept));
				kept[count].node = r->spares[k].node;
				kept[count].slot = r->spares[k].slots[s];
				kept[count].run = r->id;
			}
		for (size_t k = 0; r->part_count && k < r->rank_count; k++, count++) {
			ck_assert_uint_lt(count, ARRAY_SIZE(kept));
			kept[count].node = r->ranks[k].node;
			kept[count].slot = r->ranks[k].slot;
			kept[count].run = r->id;
		}
	}
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < i; k++)
			ck_assert_msg(kept[i].slot != kept[k].slot || !str_eq(kept[i].node, kept[k].node),
			              "seed %u, %.3f s: slot %lld of %s is given to runs %lld and %lld",
			              h->seed, b->now, (long long)kept[i].slot, kept[i].node,
			              (long long)kept[k].run, (long long)kept[i].run);
}

static void submit(struct bed *b, struct history *h)
{
	static const char *const partition[] = {"auto", "stop", "keep"};
	_cleanup_free_ char *text = NULL;
	int least = 1 + roll(h, 3), failures = roll(h, 50);
	size_t i = 0;

	while (i < h->most && h->runs[i])
		i++;
	if (i == h->most)
		return;
	text = str_printf(
	    "{\"task\":\"command\",\"name\":\"story\",\"command\":[\"true\"],\"directory\":\"/tmp\","
	    "\"resources\":{\"kind\":\"cpu\",\"nodes\":\"%d..%d\",\"max_restarts\":%d,"
	    "\"max_node_failures\":%d,\"spares\":%d,\"on_partition\":\"%s\",\"time_limit\":%d,\"save_"
	    "signal\":\"%s\","
	    "\"grow_after\":%d}}",
	    least, least + roll(h, 3), roll(h, 20), failures, failures > 0 ? roll(h, 3) / 2 : 0,
	    partition[roll(h, 3)], roll(h, 2) * roll(h, 200), roll(h, 2) ? "USR1" : "none", roll(h, 30));
	h->runs[i] = bed_submit_config(b, text);
	h->submitted++;
}

/* A run that was acknowledged is there, whatever has happened. */
static void look(struct bed *b, struct history *h)
{
	for (size_t i = 0; i < RUNS; i++)
		if (h->runs[i] && run_state_final(bed_run(b, h->runs[i])->state)) {
			h->runs[i] = 0;
			h->ended++;
		}
}

static void end_some(struct bed *b, struct history *h, bool all)
{
	for (size_t i = 0; i < b->node_count; i++)
		for (size_t k = 0; k < ATTEMPTS; k++)
			if (running(&b->nodes[i], k) && (all || roll(h, 6) == 0))
				node_end_attempt(b, &b->nodes[i], &b->nodes[i].attempts[k],
				                 all || roll(h, 3) > 0 ? 0 : 1, false);
}

static void drain(struct bed *b, const char *node, bool drained)
{
	controller_set_drained(bed_controller(b), node, drained, NULL);
	if (drained)
		controller_evict_runs(bed_controller(b), node);
}

/* The machine of the controller is never cut off from itself. */
static const char *another_node(struct bed *b, struct history *h)
{
	return b->nodes[1 + roll(h, (int)b->node_count - 1)].name;
}

static void cancel(struct bed *b, struct history *h)
{
	int64_t run = h->runs[roll(h, RUNS)];

	if (!run)
		return;
	bed_cancel(b, run);
	ck_assert(bed_run(b, run)->cancelled || run_state_final(bed_run(b, run)->state));
}

static void happen(struct bed *b, struct history *h)
{
	const char *node = another_node(b, h);
	int what = roll(h, 100);

	if (what < 30)
		submit(b, h);
	else if (what < 50)
		end_some(b, h, false);
	else if (what < 60)
		bed_cut_off(b, node, roll(h, 2));
	else if (what < 70)
		bed_cut_off(b, node, false);
	else if (what < 74)
		bed_reboot(b, node);
	else if (what < 78)
		bed_restart_controller(b);
	else if (what < 82)
		bed_crash_controller(b);
	else if (what < 86)
		bed_delay_start(b, node, roll(h, 100));
	else if (what < 88)
		bed_set_preflight(b, node, roll(h, 20));
	else if (what < 89)
		bed_lose_answer(b, node);
	else if (what < 92)
		bed_refuse_next(b, node, -EBUSY, "a slot is leased");
	else if (what < 95)
		cancel(b, h);
	else if (what < 96)
		drain(b, node, roll(h, 2));
	else if (what < 97)
		b->clock_jump += roll(h, 7200) - 3600;
	else
		bed_pass(b, roll(h, 90));
}

/* The network works, and what runs ends: each run that was acknowledged comes to an end. */
static void heal(struct bed *b, struct history *h)
{
	size_t left = 1;

	b->chaos = NULL;
	for (size_t i = 0; i < b->node_count; i++) {
		bed_cut_off(b, b->nodes[i].name, false);
		drain(b, b->nodes[i].name, false);
		b->nodes[i].start_delay = b->nodes[i].preflight = 0;
		b->nodes[i].lose_answer = false;
		b->nodes[i].refuse_code = 0;
	}
	for (int round = 0; round < 400 && left > 0; round++) {
		bed_pass(b, 5);
		end_some(b, h, true);
		look(b, h);
		left = 0;
		for (size_t i = 0; i < RUNS; i++)
			left += h->runs[i] != 0;
	}
	for (size_t i = 0; i < RUNS; i++)
		ck_assert_msg(!h->runs[i], "seed %u: run %lld does not end: %s, %s", h->seed,
		              (long long)h->runs[i], run_state_name(bed_run(b, h->runs[i])->state),
		              bed_run(b, h->runs[i])->reason);
}

static int64_t live_through(unsigned seed, int64_t steps)
{
	struct bed *b = bed_create("n1 slots=2\nn2 slots=2\nn3 slots=1\nn4 slots=2\n");
	struct history h = {.chaos = {.state = seed, .drop = 0.02, .repeat = 0.02, .most_delay = 50},
	                    .dice = {.state = seed + 1},
	                    .seed = seed};
	int64_t done;

	for (size_t i = 1; i < b->node_count; i++)
		b->nodes[i].rate = 0.99 + roll(&h, 21) * 0.001;
	h.most = roll(&h, 2) ? RUNS : 2;
	bed_set_most_heartbeats(b, (int)(seed % 3)); /* once the controller was restarted */
	b->chaos = &h.chaos;
	b->watch = check;
	b->watch_context = &h;
	while (b->steps < steps) {
		happen(b, &h);
		bed_pass(b, roll(&h, 300) * 0.01);
		look(b, &h);
	}
	heal(b, &h);
	done = b->steps;
	printf("seed %u: %lld steps, %lld runs, %d of them asked to grow\n", seed, (long long)done,
	       (long long)h.submitted, bed_count_events(b, "it can have"));
	bed_free(b);
	return done;
}

static int64_t number(const char *name, int64_t otherwise)
{
	const char *text = getenv(name);

	return text ? atoll(text) : otherwise;
}

START_TEST(no_run_is_lost_and_none_runs_twice)
{
	int64_t all = number("STEPS", 40000), each = MAX(all / 8, (int64_t)1000);
	unsigned seed = (unsigned)number("SEED", 1);

	for (int64_t done = 0; done < all; seed++)
		done += live_through(seed, each);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("model");
	TCase *tc = tcase_create("histories");

	tcase_set_timeout(tc, 3600);
	tcase_add_test(tc, no_run_is_lost_and_none_runs_twice);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
