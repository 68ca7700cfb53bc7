/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the collectives for messages. */
#include "base/cleanup.h"
#include "engine/comm/ucx/internal.h"

static const char *const names[] = {
    [KIND_NONE] = "nothing",          [KIND_BOOTSTRAP] = "the bootstrap at start",
    [KIND_ALL_REDUCE] = "all_reduce", [KIND_REDUCE_SCATTER] = "reduce_scatter",
    [KIND_ALL_GATHER] = "all_gather", [KIND_ALL_TO_ALL] = "all_to_all",
    [KIND_BROADCAST] = "broadcast",   [KIND_BARRIER] = "barrier",
};

const char *collective_name(enum kind kind)
{
	return (size_t)kind < ARRAY_SIZE(names) ? names[kind] : "an unknown collective";
}
