/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes as the scheduler sees them, beside what the simplest way makes of what is kept for runs. */
#include <string.h>

#include "base/str.h"
#include "cluster_fixture.h"
#include "controller/internal.h"

enum { NODES = 12, SLOTS = 4, RUNS = 5, SPARES = 6, ROUNDS = 200 };

static double now(void *context)
{
	return 1000;
}

static bool keep_none(void *context, const char *name)
{
	return false;
}

static void add_nodes(struct controller *c, unsigned *seed)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;

	for (int i = 0; i < NODES; i++)
		strbuf_addf(&text, "%c%d slots=%d\n", rand_r(seed) % 2 ? 'n' : 'N', i, SLOTS);
	ck_ok(hosts_parse(text.data, text.len, "hosts", &hosts, &err), &err);
	ck_ok(members_create(1000, &c->members, &err), &err);
	ck_ok(members_set_hosts(c->members, hosts, 1, 1000, keep_none, NULL, &err), &err);
	for (size_t i = 0; i < NODES; i++) {
		size_t slots = (size_t)rand_r(seed) % (SLOTS + 1);
		struct device_info *devices = calloc(slots + 1, sizeof(*devices));

		for (size_t k = 0; k < slots; k++)
			devices[k].state = rand_r(seed) % 3 ? SLOT_FREE : SLOT_LEASED;
		member_set_devices(members_get(c->members, i), devices, slots);
	}
}

/* Nodes that are not there, slots that they do not have, and what is kept for another run, too. */
static void add_runs(struct controller *c, unsigned *seed)
{
	for (int i = 0; i < RUNS; i++) {
		struct run *r = fixture_run(1, 1);
		struct error err = ERROR_INIT;

		r->id = i + 1;
		r->spare_count = (size_t)rand_r(seed) % (SPARES + 1);
		r->spares = calloc(SPARES, sizeof(*r->spares));
		for (size_t k = 0; k < r->spare_count; k++) {
			struct spare_record *s = &r->spares[k];

			s->node =
			    str_printf("%c%d", rand_r(seed) % 2 ? 'n' : 'N', rand_r(seed) % (NODES + 1));
			s->slots = calloc(SLOTS + 1, sizeof(*s->slots));
			for (int64_t slot = 0; slot <= SLOTS; slot++)
				if (rand_r(seed) % 2)
					s->slots[s->slot_count++] = slot;
		}
		ck_ok(queue_push(&c->queue, r, &err), &err);
	}
}

static void keep_simply(struct sched_node *nodes, const struct run *r)
{
	for (size_t k = 0; k < r->spare_count; k++)
		for (size_t i = 0; i < NODES; i++)
			for (size_t s = 0; s < r->spares[k].slot_count; s++) {
				size_t slot = (size_t)r->spares[k].slots[s];

				if (!str_eq_host(nodes[i].name, r->spares[k].node) ||
				    slot >= nodes[i].slots || nodes[i].taken[slot])
					continue;
				nodes[i].taken[slot] = true;
				nodes[i].kept_for[slot] = r->id;
			}
}

START_TEST(what_is_kept_is_kept_as_in_the_simplest_way)
{
	unsigned seed = (unsigned)_i;
	size_t kept = 0;

	for (int round = 0; round < ROUNDS; round++) {
		struct controller c = {.options.clock.monotonic = now};
		_cleanup_(sched_nodes_freep) struct sched_node *nodes = NULL, *simple = NULL;
		size_t counts[RUNS];
		struct error err = ERROR_INIT;

		add_nodes(&c, &seed);
		add_runs(&c, &seed);
		ck_ok(sched_nodes_build(&c, &nodes, &err), &err);
		for (size_t q = 0; q < RUNS; q++) {
			counts[q] = c.queue.list[q]->spare_count;
			c.queue.list[q]->spare_count = 0;
		}
		ck_ok(sched_nodes_build(&c, &simple, &err), &err);
		for (size_t q = 0; q < RUNS; q++) {
			c.queue.list[q]->spare_count = counts[q];
			keep_simply(simple, c.queue.list[q]);
		}
		for (size_t i = 0; i < NODES; i++)
			for (size_t k = 0; k < nodes[i].slots; k++) {
				ck_assert_int_eq(nodes[i].taken[k], simple[i].taken[k]);
				ck_assert_int_eq(nodes[i].kept_for[k], simple[i].kept_for[k]);
				kept += nodes[i].kept_for[k] > 0;
			}
		queue_clear(&c.queue);
		members_destroy(c.members);
	}
	ck_assert_uint_gt(kept, ROUNDS);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sched nodes");
	TCase *c = tcase_create("sched nodes");

	tcase_add_loop_test(c, what_is_kept_is_kept_as_in_the_simplest_way, 0, 4);
	suite_add_tcase(s, c);
	return unit_run(s);
}
