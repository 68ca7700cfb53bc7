/* SPDX-License-Identifier: Apache-2.0 */
/* What the nodes are to one run: which it may use, what it asks of each, and how many of them have that. */
#include "cluster/schedule_look.h"

enum { SLOTS_MAX = 1024 }; /* of a node, where equal ones are looked for */

int sched_choose(struct sched_names *names, const struct sched_run *r, struct sched_hosts *scratch,
                 struct choice *out, struct error *err)
{
	struct sched_hosts *found = r->found ? r->found : scratch;
	int code = 0;

	*out = (struct choice){.nodes = names->nodes, .count = names->count};
	if (!r->hosts)
		return 0;
	code =
	    r->found ? sched_hosts_update(names, r->hosts, found) : sched_hosts_find(names, r->hosts, found);
	if (code < 0)
		return error_oom(err);
	out->places = found->places;
	out->count = found->count;
	out->digest = found->digest;
	out->unknown = found->unknown;
	return 0;
}

size_t sched_free_slots(const struct sched_node *n)
{
	size_t k = 0;

	for (size_t i = 0; i < n->slots; i++)
		k += !n->taken[i];
	return k;
}

/* Has it enough slots when empty? */
static bool large(const struct sched_node *n, const struct need *need)
{
	if (n->kind != need->kind || need->per_node == 0)
		return false;
	return need->exact ? (int64_t)n->slots == need->per_node : (int64_t)n->slots >= need->per_node;
}

bool sched_usable(const struct sched_node *n, const struct need *need)
{
	return n->up && !n->drained && large(n, need) && (int64_t)(n->slots - n->broken) >= need->per_node;
}

bool sched_fits(const struct choice *c, size_t i, const bool *kept, const struct need *need)
{
	const struct sched_node *n = choice_node(c, i);

	return sched_usable(n, need) && !(kept && kept[choice_place(c, i)]) &&
	       (int64_t)sched_free_slots(n) >= need->per_node;
}

/* The most slots of a kind that so many nodes have in common, if the unknown ones have it too. */
static int64_t common_slots(const struct choice *c, const struct sched_run *r, enum slot_kind kind,
                            size_t unknown)
{
	size_t with[SLOTS_MAX + 1] = {0};

	for (size_t i = 0; i < c->count; i++)
		if (choice_node(c, i)->kind == kind && choice_node(c, i)->slots <= SLOTS_MAX)
			with[choice_node(c, i)->slots]++;
	for (int64_t n = SLOTS_MAX; n > 0; n--)
		if (with[n] > 0 && (int64_t)(with[n] + unknown) >= r->nodes)
			return n;
	return 0;
}

/* How many nodes of the kind have enough slots, and what that comes to for each. */
static size_t holders(const struct choice *c, const struct sched_run *r, enum slot_kind kind, size_t unknown,
                      struct need *need)
{
	size_t n = 0;

	*need = (struct need){.kind = kind, .per_node = r->per_node, .exact = r->per_node == 0};
	if (need->exact)
		need->per_node = common_slots(c, r, kind, unknown);
	for (size_t i = 0; i < c->count; i++)
		n += large(choice_node(c, i), need);
	return n;
}

/* Which kind, and how many a node. What is known decides; nodes that were never heard of do so only while
 * they are awaited, or where the run cannot do without them. */
static struct need settle(const struct choice *c, const struct sched_run *r)
{
	size_t unknown, awaited = 0, of_kind[] = {[SLOT_ANY] = 0, [SLOT_CPU] = 0, [SLOT_GPU] = 0}, gpus, cpus;
	struct need gpu, cpu;
	bool more_gpus;

	for (size_t i = 0; i < c->count; i++) {
		of_kind[choice_node(c, i)->kind]++;
		awaited += choice_node(c, i)->kind == SLOT_ANY && choice_node(c, i)->awaited;
	}
	unknown = of_kind[SLOT_ANY];
	gpus = holders(c, r, SLOT_GPU, 0, &gpu);
	cpus = holders(c, r, SLOT_CPU, 0, &cpu);
	if (r->kind != SLOT_CPU && (int64_t)gpus >= r->nodes)
		return gpu;
	if (r->kind == SLOT_ANY && awaited > 0) {
		size_t more = holders(c, r, SLOT_GPU, awaited, &gpu) + awaited;

		gpu.unsettled = (int64_t)more >= r->nodes;
		if (gpu.unsettled)
			return gpu;
	}
	if (r->kind != SLOT_GPU && (int64_t)cpus >= r->nodes)
		return cpu;
	gpus = holders(c, r, SLOT_GPU, unknown, &gpu);
	cpus = holders(c, r, SLOT_CPU, unknown, &cpu);
	/* Where it is too large for all nodes, it is so for those that there are. */
	more_gpus = gpus != cpus ? gpus > cpus : of_kind[SLOT_GPU] > 0 && of_kind[SLOT_CPU] == 0;
	return r->kind == SLOT_GPU || (r->kind == SLOT_ANY && more_gpus) ? gpu : cpu;
}

struct view sched_look(const struct choice *c, const bool *kept, const struct sched_run *r)
{
	struct view v = {.need = settle(c, r), .allowed = c->count, .unknown = c->unknown};
	bool gpus = false, cpus = false;

	for (size_t i = 0; i < c->count; i++) {
		const struct sched_node *n = choice_node(c, i);

		gpus = gpus || n->kind == SLOT_GPU;
		cpus = cpus || n->kind == SLOT_CPU;
		if (n->kind == v.need.kind || r->kind == SLOT_ANY)
			v.most = MAX(v.most, n->slots);
		v.of_kind += n->kind == v.need.kind || n->kind == SLOT_ANY;
		if (n->kind != SLOT_ANY && !large(n, &v.need))
			continue;
		v.large++;
		if (n->kind == SLOT_ANY && n->awaited)
			v.awaited = n;
		if (!sched_usable(n, &v.need)) {
			v.out = n;
			continue;
		}
		v.usable++;
		v.kept = v.kept || (kept && kept[choice_place(c, i)]);
		v.fitting += sched_fits(c, i, kept, &v.need);
	}
	v.mixed = r->kind == SLOT_ANY && gpus && cpus;
	return v;
}
