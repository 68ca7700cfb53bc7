/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the batch of a run can be kept with each number of nodes that it may have. */
#include <errno.h>

#include "config/run_checks.h"

static int64_t greatest_divisor(int64_t a, int64_t b)
{
	return b == 0 ? a : greatest_divisor(b, a % b);
}

/* The number of micro-steps next to a with which each size of the range divides the batch; 0: too many. */
static int64_t nearest_accumulation(struct key_range nodes, int64_t a)
{
	int64_t multiple = 1, below;

	for (int64_t n = nodes.low; n <= nodes.high; n++) {
		int64_t factor = n / greatest_divisor(n, nodes.high);

		multiple *= factor / greatest_divisor(factor, multiple);
		if (multiple > 65536)
			return 0;
	}
	below = a / multiple * multiple;
	return below > 0 && a - below <= below + multiple - a ? below : below + multiple;
}

/* The batch of the largest size is that of each. */
int run_check_batch(const struct run_config *c, const char *where, struct error *err)
{
	struct key_range nodes = c->resources.nodes;
	int64_t micro_steps = c->train.accumulation * nodes.high, better, low, high;

	if (nodes.low == nodes.high)
		return 0;
	if (c->resources.devices_per_node == 0)
		return error_set(
		    err, -EINVAL,
		    "%s: resources.devices_per_node: \"all\" may be another number in each attempt, and "
		    "with a range of nodes the batch is kept; give a number",
		    where);
	for (int64_t n = nodes.low; n <= nodes.high; n++) {
		if (micro_steps % n == 0)
			continue;
		better = nearest_accumulation(nodes, c->train.accumulation);
		for (low = n; low > 1 && micro_steps % low; low--)
			;
		for (high = n; micro_steps % high; high++)
			;
		if (better > 0)
			return error_set(
			    err, -EINVAL,
			    "%s: resources.nodes: %lld nodes cannot keep the batch of %lld nodes, %lld "
			    "micro-steps; "
			    "the nearest that can are %lld and %lld nodes; all of %lld..%lld can with "
			    "train.accumulation = %lld",
			    where, (long long)n, (long long)nodes.high, (long long)micro_steps,
			    (long long)low, (long long)high, (long long)nodes.low, (long long)nodes.high,
			    (long long)better);
		return error_set(err, -EINVAL,
		                 "%s: resources.nodes: %lld nodes cannot keep the batch of %lld nodes, %lld "
		                 "micro-steps; the nearest that can are %lld and %lld nodes",
		                 where, (long long)n, (long long)nodes.high, (long long)micro_steps,
		                 (long long)low, (long long)high);
	}
	return 0;
}

/* A rank has all completions of its prompts, with each number of nodes that the run may have: all of these
 * keep the batch. */
int run_check_groups(const struct run_config *c, const char *where, struct error *err)
{
	struct key_range nodes = c->resources.nodes;
	int64_t each = c->train.micro_batch * c->train.accumulation,
	        generations = run_config_policy(c)->generations;

	for (int64_t n = nodes.low; n <= nodes.high; n++)
		if (each * nodes.high / n % generations)
			return error_set(
			    err, -EINVAL,
			    "%s: %s.generations: a rank makes train.micro_batch times train.accumulation = "
			    "%lld completions for a step%s, which is no multiple of %lld; expected one, such "
			    "as train.accumulation = %lld with train.micro_batch = 1",
			    where, run_task_name(c->task), (long long)(each * nodes.high / n),
			    nodes.low < nodes.high ? ", with some number of nodes" : "",
			    (long long)generations,
			    (long long)(generations * nearest_accumulation(nodes, 1)));
	return 0;
}
